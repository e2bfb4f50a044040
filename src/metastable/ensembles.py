"""Many members with observables on the fly: `ensemble` and the statistics over members.

Every member draws its start from its own child of one seed, so a member's numbers do not depend on how many others there are, on
batches, threads or workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks, sphere
from metastable._checks import FloatArray
from metastable._progress import Report, progress_bar
from metastable.analysis import _balls
from metastable.errors import InvalidInputError, MetastableError, UnsupportedError
from metastable.kernels import select
from metastable.model import Attention

if TYPE_CHECKING:
    import xarray as xr

    from metastable.analysis.observe import Observable

METHODS = ("auto", "tsit5", "rodas", "layers", "sde")
LONG_HORIZON = select.LONG_HORIZON
MEMORY = 512 * 2**20
"""Default bound on the bytes of states held at a time."""
SUCCESS, MAX_STEPS, DIVERGED, UNFINISHED = 0, 1, 2, 3
STATUSES = ("success", "max_steps", "diverged", "unfinished", "failed")
"""Names of the integrators' status codes, in order; the last one is ours: a member that raised."""
FAILED = STATUSES.index("failed")

Start = Callable[[np.random.Generator], Any]


def ensemble(
    model: Attention,
    *,
    tokens: int,
    members: int,
    times: Any,
    seed: int,
    observe: Mapping[str, Observable] | None = None,
    start: str | Start = "uniform",
    method: str = "auto",
    engine: str = "auto",
    interaction: str = "auto",
    rtol: float = 1e-6,
    atol: float = 1e-9,
    step: float | None = None,
    max_steps: int = 100_000,
    memory: int = MEMORY,
    threads: int | None = None,
    dtype: str = "float64",
    progress: bool | None = None,
) -> xr.Dataset:
    """Simulate `members` independent copies of `model` and measure each while it runs.

    Parameters
    ----------
    tokens, members : tokens per member, number of members.
    times : output times, shared by all members.
    seed : one integer; member i uses the i-th child of `numpy.random.SeedSequence(seed)`.
    observe : name -> observable of `metastable.observe` (None: keep the states as `x`).
    start : "uniform" on the sphere, or a function of a `numpy.random.Generator` that returns unit tokens (tokens, dim).
    method : "tsit5", "rodas", "sde" and "layers" (with `step`), or "auto" (by noise and horizon).
    memory : bound in bytes on the states held at a time; batches are sized to it.
    engine, interaction, rtol, atol, max_steps, threads, dtype, progress : as in `metastable.simulate`.

    Returns a dataset with dims (member, time, ...), one variable per observable, and per member `status`, `accepted`, `rejected`,
    `evaluations`. A member that fails is NaN from where it failed, says so in `status`, and stops nobody else. Ctrl-C returns the
    members that were finished.

    >>> import metastable as ms
    >>> stats = ms.ensemble(ms.Attention(dim=2, beta=9.0), tokens=20, members=4, times=[0.0, 5.0], seed=0,
    ...                     observe={"cosine": ms.observe.mean_cosine()})
    >>> stats.cosine.dims
    ('member', 'time')
    """
    if not isinstance(model, Attention):
        raise InvalidInputError(f"model must be an Attention, not {model!r}")
    times = _checks.output_times(times)
    if times[-1] == 0:
        raise InvalidInputError("times holds only 0, which is the start; give later times")
    count = _checks.count(tokens, "tokens")
    model.mask.check(count)
    method = _method(model, count, method, float(times[-1]))
    _check_step(step, method)
    problem = Problem(
        model,
        count,
        _checks.count(members, "members"),
        times,
        _checks.seed(seed),
        _observables(observe),
        _start(start),
        method,
        select.choose(
            model,
            count,
            _engine(engine, method),
            interaction,
            float(times[-1]),
            threads,
            members=_checks.count(members, "members"),
            method=method,
            dtype=dtype,
        ),
        _checks.number(rtol, "rtol", 0.0, 1.0, strict=True),
        _checks.number(atol, "atol", 0.0),
        0.0 if step is None else _checks.number(step, "step", 0.0, strict=True),
        _checks.count(max_steps, "max_steps"),
        _checks.count(memory, "memory"),
    )
    record = Record(problem)
    with progress_bar("ensemble", problem.members, progress) as report:
        try:
            for first in range(0, problem.members, problem.batch):
                if not _run_batch(problem, record, first, report):
                    break
        except KeyboardInterrupt:
            record.interrupted = True
    return record.dataset()


# ------------------------------------------------------------------------------------------------ what was asked


@dataclass(frozen=True)
class Problem:
    """A checked call of `ensemble`."""

    model: Attention
    tokens: int
    members: int
    times: FloatArray
    seed: int
    observables: dict[str, Observable]
    draw: Start | None
    method: str
    choice: select.Choice
    rtol: float
    atol: float
    step: float
    max_steps: int
    memory: int

    @property
    def batch(self) -> int:
        """Members per batch: as many as fit into the memory bound, at least one."""
        return max(1, self.memory // (8 * self.times.size * self.tokens * self.model.dim))

    @cached_property
    def on_device(self) -> dict[str, Any]:
        """The observables as the GPU measures them, if it can measure them all; else empty."""
        if self.choice.engine != "cuda" or self.method != "tsit5" or self.choice.interaction == "series":
            return {}
        from metastable.kernels.cuda import support

        if support.fused_refusal(self.model, self.tokens, self.choice.dtype) is not None:
            return {}
        translated = {name: _device_observable(item) for name, item in self.observables.items()}
        return translated if all(item is not None for item in translated.values()) else {}

    def start(self, member: int) -> FloatArray:
        """Start of one member, from its own child of the seed."""
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(member,)))
        if self.draw is None:
            return sphere.uniform(self.tokens, dim=self.model.dim, seed=generator)
        drawn = _checks.tokens(self.draw(generator), "start(generator)", dim=self.model.dim)
        if len(drawn) != self.tokens:
            raise InvalidInputError(f"start(generator) returned {len(drawn)} tokens, but tokens={self.tokens}")
        return drawn

    def noise_seed(self, member: int) -> int:
        """Seed of one member's noise: independent of its start."""
        return int(np.random.SeedSequence(self.seed, spawn_key=(member, 0)).generate_state(1, np.uint64)[0])


def _method(model: Attention, tokens: int, method: str, horizon: float) -> str:
    """The method that "auto" stands for, or the named one if it can do the model."""
    from metastable.integrate import rodas

    _checks.choice(method, "method", METHODS)
    if method == "auto":
        if model.noise > 0:
            return "sde"
        return "rodas" if horizon > LONG_HORIZON and rodas.refusal(model, tokens) is None else "tsit5"
    if model.noise > 0 and method != "sde":
        raise UnsupportedError(
            f"method={method!r} has no noise (the model has noise={model.noise:g}); use method='sde'"
        )
    if method == "rodas":
        reason = rodas.refusal(model, tokens)
        if reason is not None:
            raise UnsupportedError(reason)
    return method


def _check_step(step: float | None, method: str) -> None:
    if (step is None) == (method in ("sde", "layers")):
        need = "needs step=, for example step=0.01" if step is None else "chooses its own steps; leave step out"
        raise InvalidInputError(f"method={method!r} {need}")


def _observables(observe: Mapping[str, Observable] | None) -> dict[str, Observable]:
    from metastable.analysis import observe as known

    if observe is None:
        return {"x": known.state()}
    if not isinstance(observe, Mapping) or not observe:
        raise InvalidInputError(
            'observe must be a dictionary such as {"clusters": metastable.observe.clusters(radius=0.1)}'
        )
    for name, observable in observe.items():
        if not isinstance(observable, known.Observable):
            raise InvalidInputError(
                f"observe[{name!r}] must be an observable of metastable.observe, not {observable!r}"
            )
        if name in ("status", "accepted", "rejected", "evaluations", "member", "time"):
            raise InvalidInputError(f"observe: the name {name!r} is taken by the dataset itself; choose another")
    return dict(observe)


def _start(start: str | Start) -> Start | None:
    if start == "uniform":
        return None
    if not callable(start):
        raise InvalidInputError(f"start must be 'uniform' or a function of a numpy.random.Generator, not {start!r}")
    return start


def _engine(engine: str, method: str) -> str:
    if method != "layers":
        return engine
    if engine not in ("auto", "reference"):
        raise UnsupportedError(f"method='layers' runs on engine='reference', not {engine!r}; use engine='auto'")
    return "reference"


def _device_observable(observable: Observable) -> Any:
    """What the GPU measures in place of an observable, or None."""
    from metastable.analysis import observe as known
    from metastable.kernels.cuda.measure import Capture, Components

    if isinstance(observable, known.Consumed):
        bounds = _balls.within_or_at(observable.delta), _balls.within_or_at(observable.radius)
        return Capture(*bounds, strong=observable.strong, moving=observable.moving)
    if isinstance(observable, known.Clusters):
        return Components(_balls.closer_than(observable.radius))
    return None


# --------------------------------------------------------------------------------------------------- doing it


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

    def dataset(self) -> xr.Dataset:
        """The finished members as a dataset."""
        import xarray as xr

        from metastable import __version__
        from metastable.dataset import FORMAT

        problem = self.problem
        finished = np.flatnonzero(self.status != UNFINISHED)
        dims = {name: ("member", "time", *item.dims) for name, item in problem.observables.items()}
        variables: dict[str, Any] = {
            name: (dims[name], values if finished.size == problem.members else values[finished])
            for name, values in self.values.items()
        }
        variables["status"] = ("member", np.array(STATUSES)[self.status[finished]])
        for column, name in enumerate(("accepted", "rejected", "evaluations")):
            variables[name] = ("member", self.statistics[finished, column])
        return xr.Dataset(
            variables,
            coords={"member": finished, "time": problem.times},
            attrs={
                "format": FORMAT,
                "metastable_version": __version__,
                "model": problem.model.to_json(),
                "tokens": problem.tokens,
                "members": problem.members,
                "seed": problem.seed,
                "start": "uniform" if problem.draw is None else getattr(problem.draw, "__name__", "callable"),
                "method": problem.method,
                "engine": problem.choice.engine,
                "interaction": problem.choice.interaction,
                "dtype": problem.choice.dtype,
                "rtol": problem.rtol,
                "atol": problem.atol,
                "step": problem.step,
                "max_steps": problem.max_steps,
                "status": "interrupted" if self.interrupted else "success",
                "observe": json.dumps({name: repr(item) for name, item in problem.observables.items()}),
            },
        )


def _run_batch(problem: Problem, record: Record, first: int, report: Report) -> bool:
    """Simulate and measure one batch; False when it was interrupted."""
    count = min(problem.batch, problem.members - first)
    starts = np.stack([problem.start(member) for member in range(first, first + count)])
    if problem.on_device and _measure_on_device(problem, record, first, starts):
        report(first + count)
        return True
    states, statistics, status = _SOLVERS[problem.method](problem, starts, first, lambda done: report(first + done))
    for i in range(count):
        member = first + i
        if status[i] == UNFINISHED:
            continue
        try:
            record.measure(member, starts[i], states[i])
        except (MetastableError, ArithmeticError, ValueError, TypeError):
            if not record.values:
                raise  # the first member already fails: the observable is wrong, not the member
            status[i] = FAILED
        record.statistics[member] = statistics[i]
        record.status[member] = status[i]
    record.interrupted = bool((np.asarray(status) == UNFINISHED).any())
    return not record.interrupted


def _measure_on_device(problem: Problem, record: Record, first: int, starts: FloatArray) -> bool:
    """Measure a batch on the GPU, without copying states back; False when a member failed and must be looked at closely."""
    from metastable.integrate import fused_cuda

    values, statistics, status = fused_cuda.observe_members(
        problem.model,
        starts,
        problem.times,
        problem.on_device,
        rtol=problem.rtol,
        atol=problem.atol,
        max_steps=problem.max_steps,
        dtype=problem.choice.dtype,
    )
    if (status != SUCCESS).any():
        return False
    part = slice(first, first + len(starts))
    for name, measured in values.items():
        record.values.setdefault(name, np.full((problem.members, problem.times.size), np.nan))[part] = measured
    record.statistics[part], record.status[part] = statistics, status
    return True


Batch = tuple[FloatArray, np.ndarray, np.ndarray]


def _tsit5(problem: Problem, starts: FloatArray, first: int, report: Report) -> Batch:
    """Explicit members: one compiled call (CPU or GPU) where the model fits one, else one after the other."""
    options = {
        "rtol": problem.rtol,
        "atol": problem.atol,
        "max_steps": problem.max_steps,
        "interaction": problem.choice.interaction,
        "threads": problem.choice.threads,
        "progress": report,
    }
    if problem.choice.engine == "cuda":
        from metastable.integrate import fused_cuda

        return fused_cuda.solve_members(problem.model, starts, problem.times, dtype=problem.choice.dtype, **options)
    if problem.choice.engine == "cpu":
        from metastable.integrate import fused

        if fused.supports(problem.model, problem.tokens, problem.choice.interaction):
            return fused.solve_members(problem.model, starts, problem.times, **options)

    def solve(start: FloatArray, member: int) -> Any:
        from metastable.integrate import explicit

        return explicit.solve(
            problem.model,
            start,
            float(problem.times[-1]),
            times=problem.times,
            rtol=problem.rtol,
            atol=problem.atol,
            max_steps=problem.max_steps,
            choice=problem.choice,
        )

    return _one_by_one(problem, starts, first, report, solve)


def _rodas(problem: Problem, starts: FloatArray, first: int, report: Report) -> Batch:
    """Implicit members, parallel over threads."""
    from metastable.integrate import rodas

    solved = rodas.solve_members(
        problem.model,
        starts,
        times=problem.times,
        rtol=problem.rtol,
        atol=problem.atol,
        max_steps=problem.max_steps,
        threads=problem.choice.threads,
        progress=report,
    )
    statistics = np.array([[s.accepted, s.rejected, s.evaluations] for s in solved.statistics])
    return solved.states, statistics, np.array([STATUSES.index(name) for name in solved.statuses])


def _sde(problem: Problem, starts: FloatArray, first: int, report: Report) -> Batch:
    from metastable.integrate import sde

    model = problem.model
    steps = _steps(problem)
    rhs = select.right_hand_side(model, problem.tokens, problem.choice)

    def solve(start: FloatArray, member: int) -> Any:
        increments = sde.brownian(problem.noise_seed(member), steps, problem.tokens, model.dim, problem.step)
        return sde.solve(rhs, start, model.dim, model.noise, problem.step, increments, times=problem.times)

    return _one_by_one(problem, starts, first, report, solve)


def _layers(problem: Problem, starts: FloatArray, first: int, report: Report) -> Batch:
    from metastable.integrate import layers

    models = (problem.model,) * _steps(problem)
    return _one_by_one(
        problem,
        starts,
        first,
        report,
        lambda start, member: layers.solve(models, start, problem.step, times=problem.times),
    )


def _steps(problem: Problem) -> int:
    """Number of fixed steps, after checking that the output times are whole numbers of them."""
    count = problem.times / problem.step
    off = np.abs(count - np.rint(count)) > 1e-6 * np.maximum(1.0, count)
    if off.any():
        raise InvalidInputError(
            f"times must be multiples of step={problem.step:g}, and {problem.times[off][0]:g} is not"
        )
    return int(np.rint(count[-1]))


def _one_by_one(problem: Problem, starts: FloatArray, first: int, report: Report, solve: Callable[..., Any]) -> Batch:
    """Members in a plain loop; one that raises is recorded as failed."""
    count = len(starts)
    dim = problem.model.dim
    states = np.full((count, problem.times.size, *starts.shape[1:]), np.nan)
    statistics = np.zeros((count, 3), dtype=np.int64)
    status = np.full(count, UNFINISHED)
    packed = np.ones((*starts.shape[:2], problem.model.width))
    packed[:, :, :dim] = starts
    for i in range(count):
        try:
            solution = solve(packed[i], first + i)
        except KeyboardInterrupt:
            break
        except MetastableError:
            status[i] = FAILED
            continue
        states[i, : len(solution.times)] = solution.states[:, :, :dim]
        statistics[i] = solution.statistics.accepted, solution.statistics.rejected, solution.statistics.evaluations
        status[i] = STATUSES.index(solution.status)
        report(i + 1)
    return states, statistics, status


_SOLVERS: dict[str, Callable[[Problem, FloatArray, int, Report], Batch]] = {
    "tsit5": _tsit5,
    "rodas": _rodas,
    "sde": _sde,
    "layers": _layers,
}


# ---------------------------------------------------------------------------------------------------- statistics


def summarize(stats: xr.Dataset, quantiles: Sequence[float] = (0.1, 0.9)) -> xr.Dataset:
    """Mean, standard error and quantiles over the members, NaN left out.

    Each observable `NAME` becomes `NAME_mean`, `NAME_error` and `NAME_quantile` (dim `quantile` in front).
    """
    import xarray as xr

    levels = [_checks.number(q, "quantiles", 0.0, 1.0) for q in quantiles]
    result: dict[str, Any] = {}
    for name, values in stats.data_vars.items():
        if "time" in values.dims:
            result[f"{name}_mean"] = values.mean("member")
            result[f"{name}_error"] = values.std("member", ddof=1) / np.sqrt(values.count("member"))
            result[f"{name}_quantile"] = values.quantile(levels, dim="member")
    return xr.Dataset(result, attrs=stats.attrs)
