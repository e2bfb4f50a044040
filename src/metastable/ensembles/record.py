"""What an ensemble keeps: observables member by member, and the statistics over members."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.ensembles.problem import Problem
from metastable.errors import InvalidInputError
from metastable.integrate.solution import MEMBER_STATUSES, SUCCESS, UNFINISHED

if TYPE_CHECKING:
    import xarray as xr


@dataclass
class Record:
    """What has been measured so far, member by member."""

    problem: Problem
    values: dict[str, np.ndarray] = field(default_factory=dict)
    status: np.ndarray = field(init=False)
    statistics: np.ndarray = field(init=False)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.status = np.full(self.problem.members, UNFINISHED)
        self.statistics = np.zeros((self.problem.members, 3), dtype=np.int64)

    def measure(self, member: int, start: FloatArray, states: FloatArray) -> None:
        """Measure the times that a member reached; the others stay NaN."""
        problem = self.problem
        reached = int(np.isfinite(states).all(axis=(1, 2)).sum())
        for name, observable in problem.observables.items():
            measured = observable.measure(
                states[:reached], start=start, model=problem.model, times=problem.times[:reached]
            )
            measured = np.asarray(measured, dtype=float)
            if name not in self.values:
                shape = (problem.members, problem.times.size, *measured.shape[1:])
                self.values[name] = np.full(shape, np.nan)
            self.values[name][member, :reached] = measured

    def forget(self, member: int) -> None:
        """Nothing of a member that failed is kept."""
        for values in self.values.values():
            values[member] = np.nan

    def _status(self) -> str:
        """Of the whole ensemble: "success" when every member reached the last time."""
        if self.interrupted:
            return "interrupted"
        return "success" if (self.status == SUCCESS).all() else "incomplete"

    def dataset(self) -> xr.Dataset:
        """The finished members as a dataset."""
        import xarray as xr

        from metastable import __version__
        from metastable.dataset import FORMAT

        problem, plan = self.problem, self.problem.plan
        # Only members before the first unfinished one: beyond it the quick ones would be over-represented.
        unfinished = np.flatnonzero(self.status == UNFINISHED)
        finished = np.arange(unfinished[0] if unfinished.size else problem.members)
        dims = {name: ("member", "time", *item.dims) for name, item in problem.observables.items()}
        variables: dict[str, Any] = {
            name: (dims[name], values if finished.size == problem.members else values[finished])
            for name, values in self.values.items()
        }
        variables["status"] = ("member", np.array(MEMBER_STATUSES)[self.status[finished]])
        for column, name in enumerate(("accepted", "rejected", "evaluations")):
            variables[name] = ("member", self.statistics[finished, column])
        return xr.Dataset(
            variables,
            coords={"member": finished, "time": problem.times},
            attrs={
                "format": FORMAT,
                "metastable_version": __version__,
                "model": problem.model.for_tokens(problem.tokens).to_json(),
                "tokens": problem.tokens,
                "members": finished.size,
                "seed": problem.seed,
                "start": "uniform" if problem.draw is None else getattr(problem.draw, "__name__", "callable"),
                "method": plan.method,
                "engine": plan.backend.engine,
                "interaction": plan.backend.interaction,
                "dtype": plan.backend.dtype,
                **asdict(plan.accuracy),
                "status": self._status(),
                "observe": json.dumps({name: repr(item) for name, item in problem.observables.items()}),
            },
        )


def summarize(stats: xr.Dataset, quantiles: Sequence[float] = (0.1, 0.9)) -> xr.Dataset:
    """Mean, standard error and quantiles over the members, NaN left out.

    Each observable `NAME` becomes `NAME_mean`, `NAME_error` and `NAME_quantile` (dim `quantile` in front).
    """
    import xarray as xr

    if not isinstance(stats, xr.Dataset):
        raise InvalidInputError(
            f"stats must be the dataset that metastable.ensemble returns, not {type(stats).__name__}"
        )
    if isinstance(quantiles, (str, bytes)) or not isinstance(quantiles, (Sequence, np.ndarray)):
        raise InvalidInputError(f"quantiles must be a list of numbers such as (0.1, 0.9), not {quantiles!r}")
    levels = [_checks.number(q, "quantiles", 0.0, 1.0) for q in _checks.vector(quantiles, "quantiles")]
    result: dict[str, Any] = {}
    for name, values in stats.data_vars.items():
        if "time" in values.dims:
            result[f"{name}_mean"] = values.mean("member")
            result[f"{name}_error"] = values.std("member", ddof=1) / np.sqrt(values.count("member"))
            result[f"{name}_quantile"] = values.quantile(levels, dim="member")
    return xr.Dataset(result, attrs=stats.attrs)
