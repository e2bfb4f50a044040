"""`Run`: the handle that users hold on a finished simulation."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import progress_bar
from metastable.errors import StoppedEarlyWarning, TimeError, UnsupportedError
from metastable.handle import Handle, moments_of
from metastable.integrate.plan import Accuracy, Plan, Save
from metastable.integrate.solution import Dense, JoinedDense, Solution
from metastable.kernels import select
from metastable.model import Attention

if TYPE_CHECKING:
    from metastable.run.trees import MergeTree


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


@dataclass(frozen=True, eq=False, repr=False)
class Run(Handle):
    """The result of `simulate`: a handle on an `xarray.Dataset`; what it shares with other results is in `metastable.handle.Handle`."""

    def __repr__(self) -> str:
        tokens, dim = self.start.shape
        return (
            f"<Run: {tokens} tokens on the sphere of R^{dim}, t = 0..{self.end:g}, {self.method} on {self.engine}, "
            f"{self.stats.accepted} steps, {self.status}>"
        )

    @cached_property
    def models(self) -> tuple[Attention, ...]:
        """The models of the layers (one, where all layers are the same)."""
        from metastable import dataset

        if dataset.describes_layers(self.dataset.attrs["model"]):
            raise UnsupportedError(
                "the layers of a checkpoint made this run, not an Attention; open it with metastable.checkpoints.FlowRun.load"
            )
        return dataset.models_from_json(self.dataset.attrs["model"])

    @property
    def model(self) -> Attention:
        """The model (of the first layer)."""
        return self.models[0]

    @property
    def method(self) -> str:
        """The method that made the run; "tsit5+rodas" where an automatic one switched (`notes["segments"]` says when)."""
        return super().method

    @cached_property
    def dense(self) -> Dense | JoinedDense | None:
        """Dense output, where the run kept it (no `times` given, adaptive method)."""
        from metastable import dataset

        return dataset.dense_of(self.dataset)

    def at(self, t: float | Sequence[float] | FloatArray) -> FloatArray:
        """Tokens at time t, shape (tokens, dim): dense output of order four, or a saved time. A list of times gives one more axis."""
        t = moments_of(t)
        if isinstance(t, np.ndarray):
            return np.array([self.at(float(time)) for time in t]).reshape(-1, *self.start.shape)
        if self.dense is not None:
            return self.dense(t)[:, : self.model.dim]
        near = np.flatnonzero(np.isclose(self.times, t, rtol=1e-12, atol=0.0))
        if near.size:
            return self.states[near[0]]
        raise TimeError(
            f"this run kept {len(self.times)} chosen times, and t = {t:g} is not among them; "
            "simulate without times= to have every t"
        )

    def predict_merges(self, t: float | None = None, **options: Any) -> MergeTree:
        """The merges after time t (None: the end) as they follow from the clusters at t alone; see `metastable.predict_merges`."""
        from metastable.run.trees import predict_merges

        moment = self.end if t is None else t
        return predict_merges(self.final if t is None else self.at(t), self.model, moment, **options)

    def append(self, tokens: Any, *, progress: bool | None = None) -> Run:
        """The run with more tokens behind the others: only the new ones are computed.

        Exact under masks where earlier tokens never notice later ones (causal, window, sink, prefix beyond its length).
        """
        from metastable.integrate import append

        model = self.model
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


def load(path: str | os.PathLike) -> Run:
    """The run that `Run.save` stored."""
    from metastable import dataset

    return Run(dataset.load(_checks.path(path)))
