"""Many members with observables on the fly: `ensemble`.

Every member draws its start from its own child of one seed, so a member's numbers do not depend on how many others there are, on
batches, threads or workers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks, sphere
from metastable._checks import FloatArray
from metastable._progress import Report, progress_bar
from metastable._words import counted
from metastable.ensembles.problem import DrawModel, Problem, Start, check
from metastable.ensembles.record import GIVE_UP, Record
from metastable.errors import (
    MetastableError,
    NumericalRangeError,
    ObservableError,
    OwnFunctionError,
    StandstillWarning,
    StoppedEarlyWarning,
)
from metastable.integrate.methods import METHODS
from metastable.integrate.plan import ATOL, MAX_STEPS, RTOL, Plan, Wishes
from metastable.integrate.solution import SUCCESS, UNFINISHED, Members, tally
from metastable.kernels.directions import require_directions
from metastable.model import Attention
from metastable.model.standstill import standstill

if TYPE_CHECKING:
    import xarray as xr

MEMORY = 512 * 2**20
"""Default bound on the bytes of states held at a time."""


def ensemble(
    model: Attention | DrawModel,
    *,
    tokens: int,
    members: int,
    times: Any,
    seed: int,
    observe: Mapping[str, Any] | Callable[..., Any] | None = None,
    start: str | Start = "uniform",
    method: str = "auto",
    engine: str = "auto",
    interaction: str = "auto",
    rtol: float = RTOL,
    atol: float = ATOL,
    step: float | None = None,
    max_steps: int = MAX_STEPS,
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
    model : an `Attention`; or a function of a `numpy.random.Generator` that returns one: a random model for each member, drawn from
        a stream of its own (starts and noise are those of an ensemble with one model and the same seed).
    observe : name -> observable of `metastable.observe`, or a function of your own, `f(x)` of one state (tokens, dim) or
        `f(states, times, model)` of all (None: keep the states as `x`).
    start : "uniform" on the sphere, or a function of a `numpy.random.Generator` (or of generator, tokens and dim) that returns unit
        tokens (tokens, dim); `metastable.sphere` has samplers.
    method : "tsit5", "rodas", "layers" (needs `step`), "sde" (`step` as in `simulate`), or "auto" (by noise and horizon).
    memory : bound in bytes on the states held at a time; batches are sized to it.
    engine, interaction, rtol, atol, max_steps, threads, dtype, progress : as in `metastable.simulate`.

    Returns a dataset with dims (member, time, ...), one variable per observable, and per member `status`, `accepted`, `rejected`,
    `evaluations`, `member_digest` (which tells `save_ensemble` whether it was changed), and the coordinate
    `member_seed`. An observable says in its attributes what was measured (`observable`) and with which `radius` and `delta`; where each
    member has a model of its own that sets them, they are variables (`clusters_radius`).
    A function of your own that raises (`OwnFunctionError`) fails its member, and all observables of that member are NaN, not only
    that one; return NaN where yours has no value, and the others keep theirs. Where all members fail, or the first 32 do, the call
    does. A member that stops early is NaN from there on. Either says so in `status`, and stops nobody else: there is a warning, and
    `attrs["status"]` is "incomplete" (`attrs["failure"]` says what the first of your functions raised that did).
    Ctrl-C returns the members that were finished, with a warning and "interrupted" there (once more while they are being measured:
    those that were measured).

    >>> import metastable as ms
    >>> stats = ms.ensemble(ms.Attention(dim=2, beta=9.0), tokens=20, members=4, times=[0.0, 5.0], seed=0,
    ...                     observe={"cosine": ms.observe.mean_cosine()})
    >>> stats.cosine.dims
    ('member', 'time')
    """
    _checks.progress(progress)
    wishes = Wishes(method, engine, interaction, rtol, atol, step, max_steps, threads, dtype)
    problem = check(model, tokens, members, times, seed, observe, start, memory, wishes)
    reason = standstill(problem.model, problem.tokens)
    if reason is not None:
        warnings.warn(reason, StandstillWarning, stacklevel=2)
    record = Record(problem)
    with progress_bar("ensemble", problem.members, progress) as report:
        try:
            _run_batches(problem, record, report)
        except KeyboardInterrupt:
            record.interrupted = True
    result = record.dataset()
    if result.attrs["status"] != "success":
        warnings.warn(_shortfall(result, problem.members, record.failure), StoppedEarlyWarning, stacklevel=2)
    return result


def _shortfall(result: xr.Dataset, members: int, failure: str) -> str:
    """What an ensemble lacks, in words."""
    if result.attrs["status"] == "interrupted":
        return f"interrupted: the dataset holds {result.sizes['member']} of {counted(members, 'member')}"
    early = result["status"].values[result["status"].values != "success"]
    advice = "; raise max_steps" if (early == "max_steps").any() else ""
    failed = f"; the first that could not be drawn or measured: {failure}" if failure else ""
    return (
        f"{early.size} of {counted(members, 'member')} stopped early ({tally(early)}): their values are NaN from there on, and "
        f"means over members leave them out; see stats.status{advice}{failed}"
    )


def _run_batches(problem: Problem, record: Record, report: Report) -> None:
    """All members, in batches."""
    if not problem.on_device:
        _measure_here(problem, record, range(problem.members), report)
        return
    for first in range(0, problem.members, problem.device_batch):
        numbers = range(first, min(first + problem.device_batch, problem.members))
        if not _measure_on_device(problem, record, numbers):
            _measure_here(problem, record, numbers, report)
        report(numbers.stop)


def _measure_here(problem: Problem, record: Record, numbers: range, report: Report) -> None:
    """Members batch after batch; with threads to spare, one is measured while the next is simulated."""
    measured: Future[None] | None = None
    with ThreadPoolExecutor(1, "metastable-measure") as measuring:
        for first in range(numbers.start, numbers.stop, problem.batch):
            starts, undrawn = _starts(problem, range(first, min(first + problem.batch, numbers.stop)))
            plan = _plan(problem, record, first)
            if plan is None:
                continue
            record.methods.add(plan.method)
            undrawn |= _directionless(problem, plan.model, starts, first)
            solve_members = METHODS[plan.method].solve_members
            assert solve_members is not None
            solved = solve_members(plan, starts, first, lambda done, first=first: report(first + done))
            if measured is not None:
                _wait(measured, record)
            interrupted = bool((solved.status == UNFINISHED).any())
            measured = measuring.submit(_measure, problem, record, first, starts, solved, plan.model, undrawn)
            del solved  # its states go as soon as they are measured
            if not problem.overlap:
                _wait(measured, record)
            if interrupted:
                break
        if measured is not None:
            _wait(measured, record)


def _wait(measured: Future[None], record: Record) -> None:
    """Wait for a batch to be measured; Ctrl-C meanwhile leaves the rest of it alone."""
    try:
        measured.result()
    except KeyboardInterrupt:
        record.stopped = True
        raise


def _directionless(problem: Problem, model: Attention, starts: FloatArray, first: int) -> dict[int, MetastableError]:
    """The members from `first` on whose own starts have no direction to go (`require_directions`), and why."""
    found: dict[int, MetastableError] = {}
    for member, start in enumerate(starts if problem.draw is not None else (), first):
        try:
            require_directions(model, start)
        except NumericalRangeError as reason:
            found[member] = reason
    return found


def _starts(problem: Problem, members: range) -> tuple[FloatArray, dict[int, MetastableError]]:
    """Starts (batch, tokens, dim), and the members whose start could not be drawn, which take part with uniform tokens in its place.

    (Members of a batch are numbered through, so none can be left out; what became of those is not looked at.)
    """
    if problem.draw is None:
        return problem.uniform_starts(members), {}
    starts: list[FloatArray] = []
    undrawn: dict[int, MetastableError] = {}
    for member in members:
        try:
            starts.append(problem.start(member))
        except OwnFunctionError as reason:
            undrawn[member] = reason
            starts.append(sphere.uniform(problem.tokens, problem.model.dim, seed=member))
    if len(undrawn) == len(members) >= min(GIVE_UP, problem.members):
        raise undrawn[members[0]]  # it has never worked
    return np.stack(starts), undrawn


def _plan(problem: Problem, record: Record, member: int) -> Plan | None:
    """The plan of a batch that begins with `member`; None where its model could not be drawn (such batches have one member)."""
    try:
        return problem.member_plan(member)
    except OwnFunctionError as reason:
        record.fail(member, reason)
        record.check_hope()
        return None


def _measure(
    problem: Problem,
    record: Record,
    first: int,
    starts: FloatArray,
    solved: Members,
    model: Attention,
    undrawn: Mapping[int, MetastableError],
) -> None:
    """Measure the members of a batch that were finished."""
    states, statistics, status = solved
    for i, start in enumerate(starts):
        member = first + i
        if record.stopped:
            return
        if status[i] == UNFINISHED:
            record.interrupted = True
            continue
        if member in undrawn:
            record.fail(member, undrawn[member])
            continue
        record.statistics[member] = statistics[i]
        try:
            record.measure(member, start, states[i], model)
            record.status[member] = status[i]
        except ObservableError:
            raise  # it does not return what an observable must: it is wrong, not the member
        except (MetastableError, ArithmeticError, ValueError, TypeError) as reason:
            record.fail(member, reason)
    record.check_hope()


def _measure_on_device(problem: Problem, record: Record, numbers: range) -> bool:
    """Measure members on the GPU, without copying states back; False when one failed and they must be looked at closely."""
    from metastable.integrate.fused import cuda as fused_cuda

    starts, undrawn = _starts(problem, numbers)
    if undrawn or _directionless(problem, problem.plan.model, starts, numbers.start):
        return False
    values, statistics, status = fused_cuda.observe_members(problem.plan, starts, problem.on_device)
    if (status != SUCCESS).any():
        return False
    part = slice(numbers.start, numbers.stop)
    for name, measured in values.items():
        record.values.setdefault(name, np.full((problem.members, problem.times.size), np.nan))[part] = measured
    record.statistics[part], record.status[part] = statistics, status
    return True
