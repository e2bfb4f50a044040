"""Many members with observables on the fly: `ensemble`.

Every member draws its start from its own child of one seed, so a member's numbers do not depend on how many others there are, on
batches, threads or workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import Report, progress_bar
from metastable.ensembles import problem as checks
from metastable.ensembles.problem import Problem, Start
from metastable.ensembles.record import Record
from metastable.ensembles.solvers import FAILED, SOLVERS, SUCCESS, UNFINISHED
from metastable.errors import InvalidInputError, MetastableError
from metastable.kernels import select
from metastable.model import Attention

if TYPE_CHECKING:
    import xarray as xr

    from metastable.analysis.observe import Observable

MEMORY = 512 * 2**20
"""Default bound on the bytes of states held at a time."""


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
    method = checks.method(model, count, method, float(times[-1]))
    checks.check_step(step, method)
    problem = Problem(
        model,
        count,
        _checks.count(members, "members"),
        times,
        _checks.seed(seed),
        checks.observables(observe),
        checks.start(start),
        method,
        select.choose(
            model,
            count,
            checks.engine(engine, method),
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


def _run_batch(problem: Problem, record: Record, first: int, report: Report) -> bool:
    """Simulate and measure one batch; False when it was interrupted."""
    count = min(problem.batch, problem.members - first)
    starts = np.stack([problem.start(member) for member in range(first, first + count)])
    if problem.on_device and _measure_on_device(problem, record, first, starts):
        report(first + count)
        return True
    states, statistics, status = SOLVERS[problem.method](problem, starts, first, lambda done: report(first + done))
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
    from metastable.integrate.fused import cuda as fused_cuda

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
