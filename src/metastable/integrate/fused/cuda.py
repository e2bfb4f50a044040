"""Tsit5 on the GPU: whole ensembles, one thread block per member, and single systems whose state stays on the device.

The semantics are those of `integrate.tsit5`: the same first step, error norm, controller, dense output and status. Ensembles of
models that do not fit into a thread block (see `kernels.cuda.support.fused_refusal`) are integrated member by member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import UnsupportedError
from metastable.integrate import control, march
from metastable.integrate.plan import ATOL, MAX_STEPS, RTOL
from metastable.integrate.solution import STATUSES, Resume, Solution
from metastable.integrate.tableau import TSIT5
from metastable.kernels.cuda import support
from metastable.kernels.protocol import Interaction, Precision
from metastable.model import Attention

if TYPE_CHECKING:
    from metastable.kernels.cuda.march import DeviceSystem
    from metastable.kernels.cuda.measure import Capture, Components
    from metastable.kernels.cuda.members import Scheme


def tsit5_scheme() -> Scheme:
    """The method and its step control as the kernels want them."""
    from metastable.kernels.cuda.members import Scheme

    return Scheme(
        a=tuple(map(tuple, TSIT5.a.tolist())),
        error=tuple(TSIT5.error.tolist()),
        dense=tuple(map(tuple, TSIT5.dense.tolist())),
        order=float(control.ORDER),
        safety=control.SAFETY,
        proportional=control.PROPORTIONAL,
        integral=control.INTEGRAL,
        shrink=control.SHRINK,
        grow=control.GROW,
        error_floor=control.ERROR_FLOOR,
        first_error=control.FIRST_ERROR,
    )


def _check(model: Attention, tokens: int, dtype: str) -> None:
    reason = support.variant_refusal(model, dtype) or support.refusal(model, tokens)
    if reason is not None:
        raise UnsupportedError(reason)


# ------------------------------------------------------------------------------------------------------ ensembles


def solve_members(
    model: Attention,
    starts: FloatArray,
    times: FloatArray,
    *,
    rtol: float = RTOL,
    atol: float = ATOL,
    max_steps: int = MAX_STEPS,
    interaction: Interaction = "direct",
    threads: int | None = None,
    progress: Report | None = None,
    dtype: Precision = "float64",
) -> tuple[FloatArray, np.ndarray, np.ndarray]:
    """Integrate many members from 0 to `times[-1]`, each with its own step size; as `fused.solve_members`.

    `starts` (members, tokens, dim). Returns states (members, times, tokens, dim), NaN where a member stopped early; statistics
    (members, 3): steps accepted, rejected, and right-hand sides; status (members,): 0 success, 1 max_steps, 2 diverged.
    `threads` is for the CPU and means nothing here; `progress` is called with the number of members finished.

    `dtype="float32"` evaluates velocities in single precision (states are still added up in double): for statistics of
    runs to T of a few hundred, where the median member is off by about 1e-5; never for long horizons.
    """
    starts = np.ascontiguousarray(starts, dtype=np.float64)
    tokens = starts.shape[1]
    _check(model, tokens, dtype)
    if interaction == "series" or support.fused_refusal(model, tokens, dtype) is not None:
        return _one_by_one(model, starts, times, rtol, atol, max_steps, interaction, dtype, progress)
    from metastable.kernels.cuda.batch import MemberBatch, largest_batch

    count, scheme = len(starts), tsit5_scheme()
    states = np.empty((count, len(times), tokens, model.dim))
    counts = np.empty((count, 5), dtype=np.int64)
    size = largest_batch(model, tokens, len(times), dtype)
    for begin in range(0, count, size):
        part = slice(begin, min(begin + size, count))
        batch = MemberBatch(model, starts[part], times, rtol + atol, max_steps, scheme, dtype)
        batch.launch()
        states[part], counts[part] = batch.states(), batch.counts()
        if progress is not None:
            progress(float(part.stop))
    return states, counts[:, :3], counts[:, 3]


def observe_members(
    model: Attention,
    starts: FloatArray,
    times: FloatArray,
    wanted: Mapping[str, Capture | Components],
    *,
    rtol: float = RTOL,
    atol: float = ATOL,
    max_steps: int = MAX_STEPS,
    dtype: Precision = "float64",
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """As `solve_members`, but with observables measured on the device instead of states: arrays (members, times) by name.

    Only for models that fit into a thread block (`kernels.cuda.support.fused_refusal`).
    """
    starts = np.ascontiguousarray(starts, dtype=np.float64)
    tokens = starts.shape[1]
    _check(model, tokens, dtype)
    reason = support.fused_refusal(model, tokens, dtype)
    if reason is not None:
        raise UnsupportedError(
            f"observables cannot be measured on the GPU: {reason}; use solve_members and measure states"
        )
    from metastable.kernels.cuda.batch import MemberBatch, largest_batch
    from metastable.kernels.cuda.measure import measure

    count, scheme = len(starts), tsit5_scheme()
    values = {name: np.empty((count, len(times))) for name in wanted}
    counts = np.empty((count, 5), dtype=np.int64)
    size = largest_batch(model, tokens, len(times), dtype)
    for begin in range(0, count, size):
        part = slice(begin, min(begin + size, count))
        batch = MemberBatch(model, starts[part], times, rtol + atol, max_steps, scheme, dtype)
        batch.launch()
        for name, observable in wanted.items():
            values[name][part] = measure(observable, batch.starts, batch.out)
        counts[part] = batch.counts()
    return values, counts[:, :3], counts[:, 3]


def _one_by_one(
    model: Attention,
    starts: FloatArray,
    times: FloatArray,
    rtol: float,
    atol: float,
    max_steps: int,
    interaction: Interaction,
    dtype: Precision,
    progress: Report | None,
) -> tuple[FloatArray, np.ndarray, np.ndarray]:
    """Members that do not fit into a thread block, one after the other."""
    count, tokens, dim = starts.shape
    states = np.full((count, len(times), tokens, dim), np.nan)
    counts = np.zeros((count, 3), dtype=np.int64)
    status = np.zeros(count, dtype=np.int64)
    for member, start in enumerate(starts):
        packed = start if not model.norm.has_radius else np.concatenate([start, np.ones((tokens, 1))], axis=1)
        options = {"rtol": rtol, "atol": atol, "max_steps": max_steps, "interaction": interaction, "dtype": dtype}
        solution = solve(model, packed, times, float(times[-1]), **options)
        states[member, : len(solution.states)] = solution.states[:, :, :dim]
        done = solution.statistics
        counts[member] = done.accepted, done.rejected, done.evaluations
        status[member] = STATUSES.index(solution.status)
        if progress is not None:
            progress(float(member + 1))
    return states, counts, status


# ------------------------------------------------------------------------------------------------- single systems


@dataclass
class _System:
    """A state that stays on the device (a `march.System`): only sizes and wanted outputs come to the host."""

    device: DeviceSystem
    rtol: float
    atol: float

    def _size(self, kind: str, step: float = 1.0) -> float:
        return self.device.norm(kind, step, self.rtol, self.atol)

    def state(self) -> FloatArray:
        return self.device.host_step()[0]

    def begin(self, t: float) -> None:
        self.device.evaluate(t, 0, False)

    def speed(self) -> float:
        return self._size("slope")

    def bend(self, trial: float) -> float:
        self.device.probe(trial, trial)
        return self._size("difference")

    def advance(self, t: float, step: float, latest: float) -> float:
        for stage in range(1, TSIT5.stages):
            self.device.stage(min(t + float(TSIT5.c[stage]) * step, latest), stage, step)
        return self._size("error", step)

    def accept(self, t: float, step: float, end: float, recorder: march.Recorder) -> None:
        self.device.retract()
        if recorder.wants(end):
            y, new, stages = self.device.host_step()
            recorder.step(t, step, end, new, lambda: march.polynomial(y, step, stages))
        self.device.accept()


def solve(
    model: Attention,
    start: FloatArray,
    times: FloatArray | None,
    until: float,
    *,
    rtol: float = RTOL,
    atol: float = ATOL,
    max_steps: int = MAX_STEPS,
    interaction: Interaction = "direct",
    dtype: Precision = "float64",
    progress: Report | None = None,
    resume: Resume | None = None,
) -> Solution:
    """Integrate the packed state `start` (tokens, width) from 0 to `until`; arguments and result as in `tsit5.solve`."""
    from metastable.kernels.cuda.march import DeviceSystem

    start = np.ascontiguousarray(start, dtype=np.float64)
    _check(model, len(start), dtype)
    device = DeviceSystem(model, start, TSIT5.a, TSIT5.error, interaction, dtype)
    return march.integrate(
        _System(device, rtol, atol),
        start,
        march.Recorder(model.dim, times),
        until,
        tolerance=atol + rtol,
        max_steps=max_steps,
        breakpoints=model.norm.breakpoints,
        progress=progress,
        resume=resume,
    )
