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
from metastable.integrate.plan import Accuracy, Plan, Save, Wishes
from metastable.integrate.solution import Dense, JoinedDense, Solution, Statistics
from metastable.kernels import select
from metastable.model import Attention

if TYPE_CHECKING:
    import xarray as xr


def from_solution(plan: Plan, start: FloatArray, solution: Solution, wishes: Wishes | None = None) -> Run:
    """The run that a solved plan makes of the tokens `start`; `wishes`: what was asked for."""
    from metastable import dataset
    from metastable.run.resume import remember

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
    return Run(remember(dataset.from_solution(solution, models, start, attributes), solution.resume, wishes))


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
    """The result of `simulate`: a handle on an `xarray.Dataset`. Its arrays are read-only; `run.final.copy()` may be changed."""

    dataset: xr.Dataset

    def __post_init__(self) -> None:
        from metastable.dataset import readonly

        object.__setattr__(self, "dataset", readonly(self.dataset))

    def __repr__(self) -> str:
        tokens, dim = self.start.shape
        return (
            f"<Run: {tokens} tokens on the sphere of R^{dim}, t = 0..{self.end:g}, {self.method} on {self.engine}, "
            f"{self.stats.accepted} steps, {self.status}>"
        )

    def _repr_html_(self) -> str:
        from metastable.model.describe import table

        tokens, dim = self.start.shape
        stats, models = self.stats, self.models
        facts = {
            "tokens": f"{tokens} on the unit sphere of R^{dim}",
            "time": f"0 to {self.end:g}, {len(self.times)} states kept{'' if self.dense is None else ', dense output'}",
            "model": repr(models[0]) if len(models) == 1 else f"{len(models)} layers, the first {models[0]!r}",
            "method": f"{self.method} on engine {self.engine}, {self.interaction} interaction",
            "work": f"{stats.accepted} steps, {stats.rejected} rejected, {stats.evaluations} evaluations",
            "status": f"{self.status}{': ' + self.message if self.message else ''}",
        }
        return table("Run", facts)

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
        """An observable at the saved times: one of `metastable.observe`, or a function of your own.

        A function is `f(x) -> number or array` of one state (tokens, dim), or `f(states, times, model) -> array (times, ...)` of
        all of them; the result has its name (see also `metastable.observe.own`).

        >>> import metastable as ms
        >>> run = ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(5, dim=2, seed=0), times=[0.0, 1.0])
        >>> def height(x):
        ...     return x[:, 1].max()
        >>> run.observe(height).name
        'height'
        """
        import xarray as xr

        from metastable.analysis.observe import along

        name, values, dims, text = along(self, observable)
        attrs = {"observable": text}
        return xr.DataArray(values, dims=("time", *dims), coords={"time": self.times}, attrs=attrs, name=name or None)

    def append(self, tokens: Any, *, progress: bool | None = None) -> Run:
        """The run with more tokens behind the others: only the new ones are computed.

        Exact under masks where earlier tokens never notice later ones (causal, window, sink, prefix beyond its length). The earlier
        tokens are read off the dense output of an explicit run; for other runs the message says the call that does the same
        (under such a mask tokens move as if those behind them were not there, so all of them together are as exact).
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
                f"append reads the earlier tokens off the dense output of an explicit run, which this one ({self.method}"
                f"{'' if self.dense is not None else ', without dense output'}) does not have; simulate all tokens together, the "
                f"earlier ones move as before: {self._call('numpy.concatenate([run.start, tokens])')}"
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

    def extend(
        self,
        until: float | str | None = None,
        *,
        times: Any = None,
        method: str = "auto",
        max_steps: int | None = None,
        threads: int | None = None,
        progress: bool | None = None,
    ) -> Run:
        """The same run, further: what `simulate` with a later `until` would have given; only the new part is computed.

        Depth, radii, noise and the memory of the step control go on where they were, also in a run that was loaded. Equal to the
        run that is longer from the beginning: bit for bit for "layers" and "sde" (the noise goes on, too), to rounding for
        "tsit5" and "rodas" (the same steps are made; so with every step kept, the last one, which was cut short to end on
        time, is made anew), to the tolerance where the method changes, where the run was saved by version 0.1, and behind `append`.
        (`simulate(model, run.final)` is another thing: a new run, from depth 0 and with radii 1.)

        Parameters
        ----------
        until : the later time to reach, or "settled"; may be left out when `times` is given.
        times : further output times, all beyond `run.end`. A run that kept every step and is extended with `times` keeps its steps
            so far, but no dense output. A run that kept chosen times and is extended without them keeps the state at `until`.
        method : "auto" goes on as the run was made; a run that was explicit because its horizon was short goes on implicitly where that
            pays. "tsit5" and "rodas" decide.
        max_steps : give up after this many further steps (None: as many as the run was given).
        threads, progress : as in `metastable.simulate`.

        >>> import metastable as ms
        >>> model, start = ms.Attention(dim=2, beta=9.0, norm=ms.PreLN()), ms.sphere.uniform(8, dim=2, seed=0)
        >>> further = ms.simulate(model, start, until=5.0).extend(until=20.0)
        >>> abs(further.final - ms.simulate(model, start, until=20.0).final).max() < 1e-12
        np.True_
        """
        from metastable.run.extension import extended

        plan, wishes, solution = extended(self, until, times, method, max_steps, threads, progress)
        warn_if_early(solution)
        return from_solution(plan, self.start, solution, wishes)

    def _call(self, start: str) -> str:
        """The call of `simulate` that makes this run from other tokens."""
        attrs = self.dataset.attrs
        options = [
            f"{name}={attrs[name]!r}" for name in ("rtol", "atol") if self.method.split("+")[0] in ("tsit5", "rodas")
        ]
        options += [f"step={attrs['step']!r}"] if self.method in ("layers", "sde") else []
        options += [f"seed={attrs['seed']}"] if attrs["seed"] >= 0 else []
        method = "auto" if "+" in self.method else self.method
        models = "list(run.models)" if len(self.models) > 1 else "run.model"
        every = self.dense is not None or len(self.times) == self.stats.accepted + 1
        when = f"until={self.end!r}" if every else "times=run.times"
        return f"metastable.simulate({models}, {start}, {when}, method={method!r}, {', '.join(options)})"

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
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


def load(path: str | os.PathLike[str]) -> Run:
    """The run that `Run.save` stored."""
    from metastable import dataset

    return Run(dataset.load(_checks.path(path)))
