"""`Run`: the handle that users hold on a finished simulation."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import progress_bar
from metastable.errors import StoppedEarlyWarning, TimeError, UnsupportedError
from metastable.integrate.plan import Accuracy, Plan, Save
from metastable.integrate.solution import Dense, JoinedDense, Solution, Statistics
from metastable.kernels import select
from metastable.model import Attention, Schedule

if TYPE_CHECKING:
    import xarray as xr


def from_solution(plan: Plan, start: FloatArray, solution: Solution) -> Run:
    """The run that a solved plan makes of the tokens `start`."""
    from metastable import dataset

    segments = solution.notes.get("segments", [])
    attributes = {
        "method": "+".join(segment["method"] for segment in segments) or plan.method,
        **asdict(plan.accuracy),
        "engine": plan.backend.engine,
        "interaction": plan.backend.interaction,
        "dtype": plan.backend.dtype,
        "until": plan.save.until,
        "seed": -1 if plan.seed is None else plan.seed,
    }
    if plan.joints:
        attributes["schedule"] = json.dumps(plan.joints)
        return Run(dataset.from_solution(solution, plan.models, start, attributes))
    first = plan.model
    models = first if all(item is first or item == first for item in plan.models) else plan.models
    return Run(dataset.from_solution(solution, models, start, attributes))


def warn_if_early(solution: Solution) -> None:
    """`StoppedEarlyWarning` where a solution did not reach its end; it is the caller's caller that is warned."""
    if solution.status != "success":
        warnings.warn(
            f"{solution.message} (the run holds what was reached, its status is {solution.status!r})",
            StoppedEarlyWarning,
            stacklevel=3,
        )


@dataclass(frozen=True, eq=False)
class Run:
    """The result of `simulate`: a handle on an `xarray.Dataset`."""

    dataset: xr.Dataset

    def __repr__(self) -> str:
        tokens, dim = self.start.shape
        return (
            f"<Run: {tokens} tokens on the sphere of R^{dim}, t = 0..{self.end:g}, {self.method} on {self.engine}, "
            f"{self.stats.accepted} steps, {self.status}>"
        )

    @cached_property
    def models(self) -> tuple[Attention, ...]:
        """The models in order: those of a `Schedule`, or of the layers (one, where all are the same). `schedule` says which is when."""
        from metastable import dataset

        if dataset.describes_layers(self.dataset.attrs["model"]):
            raise UnsupportedError(
                "the layers of a checkpoint made this run, not an Attention; open it with metastable.checkpoints.FlowRun.load"
            )
        return dataset.models_of(self.dataset)

    @property
    def model(self) -> Attention:
        """The model (of the first layer)."""
        return self.models[0]

    @cached_property
    def schedule(self) -> Schedule:
        """Which model is when: the `Schedule` of the run; layer i of a layered run holds from depth i step on."""
        if len(self.models) == 1:
            return Schedule(((0.0, self.model),))
        joints = self.dataset.attrs.get("schedule")
        if joints is not None:
            return Schedule(tuple(zip(json.loads(joints), self.models)))
        step = float(self.dataset.attrs["step"])
        return Schedule(tuple((number * step, model) for number, model in enumerate(self.models)))

    def model_at(self, t: float) -> Attention:
        """The model that moves the tokens at depth t (the last one at the end)."""
        return self.schedule.at(t)

    @property
    def times(self) -> FloatArray:
        """Saved times, shape (times,)."""
        return self.dataset["time"].values

    @property
    def states(self) -> FloatArray:
        """Tokens at the saved times, shape (times, tokens, dim)."""
        return self.dataset["x"].values

    @property
    def radius(self) -> FloatArray | None:
        """Radii at the saved times, shape (times, tokens), for norms that have them."""
        return self.dataset["radius"].values if "radius" in self.dataset else None

    @property
    def start(self) -> FloatArray:
        """Tokens at depth 0, shape (tokens, dim)."""
        return self.dataset["start"].values

    @property
    def final(self) -> FloatArray:
        """Tokens at the last saved time, shape (tokens, dim)."""
        return self.states[-1] if len(self.times) else self.start

    @property
    def end(self) -> float:
        """The last time that was reached and kept."""
        return float(self.times[-1]) if len(self.times) else 0.0

    @property
    def status(self) -> str:
        """ "success", "max_steps", "diverged" or "unresolved"; `message` says more."""
        return self.dataset.attrs["status"]

    @property
    def message(self) -> str:
        """Why a run stopped early; empty for a success."""
        return self.dataset.attrs["message"]

    @property
    def method(self) -> str:
        """The method that made the run; "tsit5+rodas" where an automatic one switched (`notes["segments"]` says when)."""
        return self.dataset.attrs["method"]

    @property
    def engine(self) -> str:
        """The engine that made the run."""
        return self.dataset.attrs["engine"]

    @property
    def interaction(self) -> str:
        """How interactions were summed: "direct" or "series"."""
        return self.dataset.attrs["interaction"]

    @property
    def notes(self) -> dict[str, Any]:
        """What else is worth knowing, for example where an automatic method switched."""
        return json.loads(self.dataset.attrs["notes"])

    @property
    def stats(self) -> Statistics:
        """Steps accepted and rejected, right-hand sides and Jacobians evaluated."""
        names = ("accepted", "rejected", "evaluations", "jacobians")
        return Statistics(*(int(self.dataset.attrs[name]) for name in names))

    @cached_property
    def dense(self) -> Dense | JoinedDense | None:
        """Dense output, where the run kept it (no `times` given, adaptive method)."""
        from metastable import dataset

        return dataset.dense_of(self.dataset)

    def at(self, t: float | Sequence[float] | FloatArray) -> FloatArray:
        """Tokens at time t, shape (tokens, dim): dense output of order four, or a saved time. A list of times gives one more axis."""
        if isinstance(t, (Sequence, np.ndarray)) and not isinstance(t, str):
            moments = _checks.real_array(t, "t", TimeError)
            if moments.ndim != 0:
                moments = _checks.vector(moments, "t", error=TimeError)
                return np.array([self.at(float(time)) for time in moments]).reshape(-1, *self.start.shape)
            t = float(moments)
        t = _checks.number(t, "t", 0.0, error=TimeError)
        if self.dense is not None:
            return self.dense(t)[:, : self.model.dim]
        near = np.flatnonzero(np.isclose(self.times, t, rtol=1e-12, atol=0.0))
        if near.size:
            return self.states[near[0]]
        raise TimeError(
            f"this run kept {len(self.times)} chosen times, and t = {t:g} is not among them; "
            "simulate without times= to have every t"
        )

    def observe(self, observable: Any) -> xr.DataArray:
        """An observable (see `metastable.observe`) at the saved times; those that look at the model see the one of each time."""
        import xarray as xr

        from metastable.analysis.observe import check_observable, for_model

        check_observable(observable, "observe")
        observable = for_model(observable, self.model)
        values = self._measured(observable)
        dims, attrs = ("time", *observable.dims), {"observable": repr(observable)}
        return xr.DataArray(values, dims=dims, coords={"time": self.times}, attrs=attrs)

    def _measured(self, observable: Any) -> np.ndarray:
        """Values of an observable at the saved times. One that `follows_model` is measured with the model of each time."""
        if len(self.models) == 1 or not getattr(observable, "follows_model", False):
            return np.asarray(observable.measure(self.states, start=self.start, model=self.model, times=self.times))
        when = np.array([self.schedule.index(_within(float(t), self.schedule.joints)) for t in self.times])
        parts = []
        for number in np.unique(when):
            chosen, model = when == number, self.models[number]
            measured = observable.measure(self.states[chosen], start=self.start, model=model, times=self.times[chosen])
            parts.append(np.asarray(measured))
        return np.concatenate(parts)

    def append(self, tokens: Any, *, progress: bool | None = None) -> Run:
        """The run with more tokens behind the others: only the new ones are computed.

        Exact under masks where earlier tokens never notice later ones (causal, window, sink, prefix beyond its length).
        """
        from metastable.integrate import append

        model = self.model
        if len(self.models) > 1:
            raise UnsupportedError("append takes runs of one model; simulate all tokens together under the Schedule")
        new = _checks.tokens(tokens, "tokens", dim=model.dim)
        before, after = len(self.start), len(self.start) + len(new)
        if not model.mask.extends(before, after):
            raise UnsupportedError(
                f"under {model.mask!r} the first {before} tokens move differently when more are there; "
                "simulate all of them together"
            )
        model.check_count(after)
        if self.status != "success":
            raise UnsupportedError(
                f"this run stopped early ({self.message}); finish it first: simulate again with a larger max_steps"
            )
        if self.dense is None or self.method != "tsit5":
            raise UnsupportedError(
                "append reads the earlier tokens off the dense output of an explicit run; simulate without times= and with "
                "method='tsit5'"
            )
        attrs = self.dataset.attrs
        plan = Plan(
            self.models,
            self.method,
            Save(self.end),
            Accuracy(attrs["rtol"], attrs["atol"], attrs["max_steps"]),
            select.choose(model, after, self.engine, "direct", dtype=attrs["dtype"]),
        )
        with progress_bar("append", self.end, progress) as report:
            solution = append.solve(plan, self.dense, plan.packed(new), report)
        warn_if_early(solution)
        return from_solution(plan, np.concatenate([self.start, new]), solution)

    def save(self, path: str | os.PathLike, overwrite: bool = False) -> None:
        """Keep the run as a zarr store; an existing store stays untouched unless `overwrite=True`."""
        from metastable import dataset

        dataset.save(self.dataset, _checks.path(path), _checks.flag(overwrite, "overwrite"))

    def plot(self, **options: Any) -> Any:
        """Draw the run as its dimension suggests; see `metastable.figures.draw_run`."""
        from metastable import figures

        return figures.draw_run(self, **options)

    def animate(self, path: str | Path, **options: Any) -> None:
        """Write a film of the run (.mp4 or .gif); see `metastable.figures.animate`."""
        from metastable import figures

        figures.animate(self, path, **options)


def _within(t: float, joints: tuple[float, ...]) -> float:
    """t, or the joint that it is but for the rounding of a multiple of the step."""
    near = [joint for joint in joints if abs(t - joint) <= 4 * np.spacing(joint)]
    return near[-1] if near else t


def load(path: str | os.PathLike) -> Run:
    """The run that `Run.save` stored."""
    from metastable import dataset

    return Run(dataset.load(_checks.path(path)))
