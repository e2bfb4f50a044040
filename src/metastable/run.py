"""`simulate` and `Run`: what users call and what they hold. Each method is one call into a room below."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import Report, progress_bar
from metastable.errors import InvalidInputError, TimeError, UnsupportedError
from metastable.integrate.solution import Dense, JoinedDense, Solution, Statistics
from metastable.kernels import select
from metastable.model import Attention

if TYPE_CHECKING:
    import xarray as xr

METHODS = ("auto", "tsit5", "rodas", "layers", "sde")
SDE_STEP = 0.01
"""Default step of `method="sde"`."""
SETTLED_HORIZON = 1e300
"""How far `until="settled"` may go: double precision ends near here."""
KEEP_EVERYTHING_LIMIT = 200_000
"""Numbers per state (tokens times dim) beyond which every step cannot be kept: `times` must be given."""


@dataclass(frozen=True)
class Problem:
    """A checked call of `simulate`."""

    models: tuple[Attention, ...]
    start: FloatArray
    until: float
    settled: bool
    times: FloatArray | None
    choice: select.Choice
    rtol: float
    atol: float
    step: float
    seed: int | None
    max_steps: int

    @property
    def model(self) -> Attention:
        return self.models[0]

    @property
    def packed(self) -> FloatArray:
        """The start as a packed state: with a column of radii, all one, where the norm has a radius."""
        if not self.model.norm.has_radius:
            return self.start
        return np.concatenate([self.start, np.ones((len(self.start), 1))], axis=1)


def simulate(
    model: Attention | Sequence[Attention],
    start: Any,
    until: float | str | None = None,
    *,
    times: Any = None,
    method: str = "auto",
    engine: str = "auto",
    interaction: str = "auto",
    rtol: float = 1e-6,
    atol: float = 1e-9,
    step: float | None = None,
    seed: int | None = None,
    max_steps: int = 100_000,
    threads: int | None = None,
    progress: bool | None = None,
) -> Run:
    """Move the tokens `start` (tokens, dim) under `model` from depth 0 to `until`.

    Parameters
    ----------
    model : an `Attention`; for `method="layers"` also a list with one model per layer.
    start : unit vectors, shape (tokens, dim), for example `metastable.sphere.uniform(200, dim=2, seed=0)`.
    until : the time to reach; `"settled"` runs until all tokens stopped for good. May be left out when `times` is given.
    times : output times. None keeps every step with dense output, so that `run.at(t)` works for any t.
    method : "tsit5" (explicit, adaptive), "rodas" (implicit, for long horizons), "layers" (x <- N(x + step A(x))),
        "sde" (with noise), or "auto".
    engine : "reference" (NumPy), "cpu" (Numba), "cuda", or "auto".
    interaction : "direct" sums over pairs, "series" (Fourier or harmonic expansions, O(n) in the tokens), or "auto".
    rtol, atol : tolerances of the adaptive methods; tokens have length one, so they add up.
    step : step of "layers" (required with a single model) and of "sde" (default 0.01).
    seed : seed of the noise.
    max_steps : give up after this many steps; the part that was computed is kept.
    threads : CPU threads (None: all). Results do not depend on it.
    progress : show a progress bar; None shows one on a terminal.

    Returns a `Run`, whose `status` is "success", "max_steps" or "diverged".

    >>> import metastable as ms
    >>> run = ms.simulate(ms.Attention(dim=2, beta=9.0), ms.sphere.uniform(8, dim=2, seed=0), until=20.0)
    >>> run.status
    'success'
    """
    _checks.choice(method, "method", METHODS)
    if method == "auto" and not isinstance(model, Attention):
        method = "layers"
    models = _models(model, method)
    if method == "auto" and models[0].noise > 0:
        method = "sde"
    tokens = models[0].check_tokens(start)
    step = _step(step, method, isinstance(model, Attention))
    output = None if times is None else _checks.output_times(times)
    if until is None and not isinstance(model, Attention):
        until = len(models) * float(step)
    horizon, settled = _horizon(until, output, method)
    if method in ("layers", "sde"):
        models = _layers(models, horizon, output, step, method)
    _refuse(models[0], method, engine)
    problem = Problem(
        models,
        tokens,
        horizon,
        settled,
        output,
        _choice(models[0], tokens, method, engine, interaction, horizon, threads),
        _checks.number(rtol, "rtol", 0.0, 1.0, strict=True),
        _checks.number(atol, "atol", 0.0),
        step,
        None if seed is None else _checks.seed(seed),
        _checks.count(max_steps, "max_steps"),
    )
    if output is None and tokens.size > KEEP_EVERYTHING_LIMIT:
        raise TimeError(
            f"{len(tokens)} tokens are too many to keep every step; say which times to keep, for example times=[1, 10, 100]"
        )
    with progress_bar("simulate", horizon, progress) as report:
        solution = _SOLVERS[method](problem, report)
    return _run(problem, solution, method)


def _models(model: Attention | Sequence[Attention], method: str) -> tuple[Attention, ...]:
    """One model, or the models of the layers, checked to fit together."""
    if isinstance(model, Attention):
        return (model,)
    if not isinstance(model, Sequence) or not model or not all(isinstance(item, Attention) for item in model):
        raise InvalidInputError(f"model must be an Attention (or a list of them, one per layer), not {model!r}")
    if method != "layers":
        raise UnsupportedError(f"method={method!r} takes one model; a list of models is for method='layers'")
    for number, item in enumerate(model):
        if item.dim != model[0].dim or item.norm.has_radius != model[0].norm.has_radius:
            raise InvalidInputError(f"layer {number} has another dim or kind of norm than layer 0")
    return tuple(model)


def _step(step: float | None, method: str, single: bool) -> float:
    """The step of the fixed-step methods (0 where it has no meaning)."""
    if method not in ("layers", "sde"):
        if step is not None:
            raise InvalidInputError(f"method={method!r} chooses its own steps; leave step out (or use method='layers')")
        return 0.0
    if step is None:
        if method == "layers" and single:
            raise InvalidInputError(
                "method='layers' needs step=, for example step=0.1 (or a list of models, one per layer)"
            )
        return SDE_STEP if method == "sde" else 1.0
    return _checks.number(step, "step", 0.0, strict=True)


def _horizon(until: float | str | None, times: FloatArray | None, method: str) -> tuple[float, bool]:
    """The time to reach, and whether to stop earlier when everything has settled."""
    if until == "settled":
        if method not in ("auto", "rodas"):
            raise UnsupportedError(f"until='settled' needs method='rodas' or 'auto', not {method!r}")
        return (SETTLED_HORIZON if times is None else float(times[-1])), True
    if isinstance(until, str):
        raise TimeError(f"until must be a time or 'settled', not {until!r}")
    if until is None:
        if times is None:
            raise TimeError("say how far to go: until=200.0, until='settled' or times=[...]")
        if times[-1] == 0:
            raise TimeError("times holds only 0, which is the start; give later times")
        return float(times[-1]), False
    horizon = _checks.horizon(until)
    if times is not None and times[-1] > horizon:
        raise TimeError(f"the last of times, {times[-1]:g}, is beyond until={horizon:g}; raise until or drop it")
    return horizon, False


def _layers(
    models: tuple[Attention, ...], horizon: float, times: FloatArray | None, step: float, method: str
) -> tuple[Attention, ...]:
    """One model per step, after checking that the horizon and the output times are whole numbers of steps."""
    wanted = np.array([horizon]) if times is None else np.append(times, horizon)
    count = wanted / step
    off = np.abs(count - np.rint(count)) > 1e-6 * np.maximum(1.0, count)
    if off.any():
        raise TimeError(
            f"method={method!r} moves in steps of {step:g}, and {wanted[off][0]:g} is not a multiple of it; "
            "change step, until or times"
        )
    steps = int(np.rint(horizon / step))
    if len(models) not in (1, steps):
        raise TimeError(
            f"{len(models)} layers of step {step:g} end at {len(models) * step:g}, not at until={horizon:g}"
        )
    return models * steps if len(models) == 1 and method == "layers" else models


def _refuse(model: Attention, method: str, engine: str) -> None:
    """Combinations that a method cannot do."""
    _checks.choice(engine, "engine", select.ENGINES)
    if model.noise > 0 and method != "sde":
        raise UnsupportedError(
            f"method={method!r} has no noise (the model has noise={model.noise:g}); use method='sde'"
        )
    if method == "layers" and engine not in ("auto", "reference"):
        raise UnsupportedError(f"method='layers' runs on engine='reference', not {engine!r}; use engine='auto'")


def _choice(
    model: Attention, start: FloatArray, method: str, engine: str, interaction: str, horizon: float, threads: int | None
) -> select.Choice:
    if method == "layers":
        return select.choose(model, len(start), "reference", interaction, horizon, threads)
    return select.choose(model, len(start), engine, interaction, horizon, threads)


# ------------------------------------------------------------------------------------------------------- methods


def _tsit5(problem: Problem, report: Report) -> Solution:
    from metastable.integrate import explicit

    return explicit.solve(
        problem.model,
        problem.packed,
        problem.until,
        times=problem.times,
        rtol=problem.rtol,
        atol=problem.atol,
        max_steps=problem.max_steps,
        choice=problem.choice,
        progress=report,
    )


def _solve_layers(problem: Problem, report: Report) -> Solution:
    from metastable.integrate import layers

    return layers.solve(problem.models, problem.packed, problem.step, times=problem.times, progress=report)


def _sde(problem: Problem, report: Report) -> Solution:
    from metastable.integrate import sde

    model = problem.model
    if problem.seed is None and model.noise > 0:
        raise InvalidInputError("a run with noise needs a seed, so that it can be repeated: seed=0")
    steps = int(np.rint(problem.until / problem.step))
    return sde.solve(
        select.right_hand_side(model, len(problem.start), problem.choice),
        problem.packed,
        model.dim,
        model.noise,
        problem.step,
        sde.brownian(problem.seed or 0, steps, len(problem.start), model.dim, problem.step),
        times=problem.times,
        progress=report,
    )


def _rodas(problem: Problem, report: Report) -> Solution:
    from metastable.integrate import rodas

    reason = rodas.refusal(problem.model, len(problem.start))
    if reason is not None:
        raise UnsupportedError(reason)
    return rodas.solve(
        problem.model,
        problem.start,
        times=problem.times,
        until=problem.until,
        rtol=problem.rtol,
        atol=problem.atol,
        max_steps=problem.max_steps,
        settled=problem.settled,
        progress=report,
    )


_SOLVERS: dict[str, Callable[[Problem, Report], Solution]] = {
    "auto": _tsit5,
    "tsit5": _tsit5,
    "rodas": _rodas,
    "layers": _solve_layers,
    "sde": _sde,
}


def _run(problem: Problem, solution: Solution, method: str) -> Run:
    from metastable import dataset

    attributes = {
        "method": method,
        "engine": problem.choice.engine,
        "interaction": problem.choice.interaction,
        "until": problem.until,
        "rtol": problem.rtol,
        "atol": problem.atol,
        "step": problem.step,
        "seed": -1 if problem.seed is None else problem.seed,
        "max_steps": problem.max_steps,
    }
    models = problem.models[0] if len(set(problem.models)) == 1 else problem.models
    return Run(dataset.from_solution(solution, models, problem.start, attributes))


# ----------------------------------------------------------------------------------------------------------- Run


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
        """The models of the layers (one, where all layers are the same)."""
        from metastable import dataset

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
        """ "success", "max_steps" or "diverged"; `message` says more."""
        return self.dataset.attrs["status"]

    @property
    def message(self) -> str:
        """Why a run stopped early; empty for a success."""
        return self.dataset.attrs["message"]

    @property
    def method(self) -> str:
        """The method that made the run."""
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

    def at(self, t: float) -> FloatArray:
        """Tokens at time t, shape (tokens, dim): dense output of order four, or a saved time."""
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
        """An observable (see `metastable.observe`) at the saved times."""
        import xarray as xr

        values = np.asarray(observable.measure(self.states, start=self.start, model=self.model, times=self.times))
        return xr.DataArray(values, dims=("time", *observable.dims), coords={"time": self.times})

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
        if self.dense is None or self.method not in ("auto", "tsit5") or self.stats.jacobians:
            raise UnsupportedError(
                "append reads the earlier tokens off the dense output of an explicit run; simulate without times= and with "
                "method='tsit5'"
            )
        attrs = self.dataset.attrs
        choice = select.choose(model, after, self.engine, "direct")
        start = np.concatenate([self.start, new])
        problem = Problem(
            self.models,
            start,
            self.end,
            False,
            None,
            choice,
            attrs["rtol"],
            attrs["atol"],
            0.0,
            None,
            attrs["max_steps"],
        )
        with progress_bar("append", self.end, progress) as report:
            solution = append.solve(
                lambda first: select.right_hand_side(model, after, choice, first),
                self.dense,
                problem.packed[before:],
                self.end,
                rtol=problem.rtol,
                atol=problem.atol,
                max_steps=problem.max_steps,
                breakpoints=model.norm.breakpoints,
                progress=report,
            )
        return _run(problem, solution, self.method)

    def save(self, path: str | os.PathLike, overwrite: bool = False) -> None:
        """Keep the run as a zarr store; an existing store stays untouched unless `overwrite=True`."""
        from metastable import dataset

        dataset.save(self.dataset, path, overwrite)

    def plot(self, **options: Any) -> Any:
        """Draw the run as its dimension suggests; see `metastable.figures.draw_run`."""
        from metastable import figures

        return figures.draw_run(self, **options)

    def animate(self, path: str | Path, **options: Any) -> None:
        """Write a film of the run (.mp4 or .gif); see `metastable.figures.animate`."""
        from metastable import figures

        figures.animate(self, path, **options)


def load(path: str | os.PathLike) -> Run:
    """The run that `Run.save` stored."""
    from metastable import dataset

    return Run(dataset.load(path))
