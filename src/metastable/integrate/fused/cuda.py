"""Tsit5 on the GPU: whole ensembles, one thread block per member, and single systems whose state stays on the device.

The semantics are those of `integrate.tsit5`: the same first step, error norm, controller, dense output and status. Ensembles of
models that do not fit into a thread block (see `kernels.cuda.support.fused_refusal`) are integrated member by member.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import UnsupportedError
from metastable.integrate import control
from metastable.integrate.solution import Solution, Statistics, Status
from metastable.integrate.tableau import TSIT5
from metastable.integrate.tsit5 import DENSE_LIMIT, Recorder
from metastable.kernels.cuda import support
from metastable.model import Attention

if TYPE_CHECKING:
    from metastable.kernels.cuda.march import DeviceSystem
    from metastable.kernels.cuda.measure import Capture, Components
    from metastable.kernels.cuda.members import Scheme

Precision = Literal["float64", "float32"]
Interaction = Literal["direct", "series"]
STATUS: tuple[Status, ...] = ("success", "max_steps", "diverged")
"""Meaning of the numbers in the status of `solve_members`."""


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
    rtol: float = 1e-6,
    atol: float = 1e-9,
    max_steps: int = 100_000,
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
    rtol: float = 1e-6,
    atol: float = 1e-9,
    max_steps: int = 100_000,
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
        status[member] = STATUS.index(solution.status)
        if progress is not None:
            progress(float(member + 1))
    return states, counts, status


# ------------------------------------------------------------------------------------------------- single systems


@dataclass
class _March:
    """The march of `integrate.tsit5` with the state on the device; only error norms and wanted outputs come to the host."""

    system: DeviceSystem
    rtol: float
    atol: float
    h: float = 0.0
    t: float = 0.0
    accepted: int = 0
    rejected: int = 0
    evaluations: int = 0
    previous: float = control.FIRST_ERROR
    after_rejection: bool = False

    def restart(self) -> None:
        """Evaluate the first stage anew (at the start, and behind a jump of the right-hand side)."""
        self.system.evaluate(self.t, 0, False)
        self.evaluations += 1
        self.previous = control.FIRST_ERROR

    def first_step(self, horizon: float) -> None:
        """The rule of `control.initial_step`."""
        tolerance = self.atol + self.rtol
        speed = self.system.norm("slope", 1.0, self.rtol, self.atol)
        trial = min(0.01 / (tolerance * speed), horizon) if speed * tolerance > 1e-10 else min(1e-6, horizon)
        self.system.probe(trial, trial)
        self.evaluations += 1
        curvature = self.system.norm("difference", 1.0, self.rtol, self.atol) / trial
        largest = max(speed, curvature)
        wanted = max(1e-6, 1e-3 * trial) if largest <= 1e-15 else (0.01 / largest) ** (1.0 / control.ORDER)
        self.h = min(100.0 * trial, wanted, horizon)

    def attempt(self, stop: float, latest: float, recorder: Recorder) -> bool:
        """Try one step towards `stop`; False when the solution cannot be continued."""
        lands = self.t + 1.0001 * self.h >= stop
        step = stop - self.t if lands else self.h
        for stage in range(1, TSIT5.stages):
            self.system.stage(min(self.t + float(TSIT5.c[stage]) * step, latest), stage, step)
        self.evaluations += TSIT5.stages - 1
        error = self.system.norm("error", step, self.rtol, self.atol)
        if not error <= 1.0:
            self.rejected += 1
            self.after_rejection = True
            self.h = step * control.rejected_factor(error)
            return self.t + self.h > self.t
        self.system.retract()
        end = stop if lands else self.t + step
        if _wants(recorder, end):
            y, new, stages = self.system.host_step()
            recorder.step(self.t, step, y, new, stages, end)
        self.system.accept()
        self.t = end
        self.accepted += 1
        factor = control.accepted_factor(error, self.previous, self.after_rejection)
        self.h = max(self.h, step * factor) if lands and factor >= 1.0 else step * factor
        self.previous = error
        self.after_rejection = False
        return True


def _wants(recorder: Recorder, end: float) -> bool:
    """True when a step that ends at `end` has something to record."""
    times, saved = recorder.times, len(recorder.saved_times)
    return times is None or (saved < times.size and bool(times[saved] <= end))


def solve(
    model: Attention,
    start: FloatArray,
    times: FloatArray | None,
    until: float,
    *,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    max_steps: int = 100_000,
    interaction: Interaction = "direct",
    dtype: Precision = "float64",
    progress: Report | None = None,
) -> Solution:
    """Integrate the packed state `start` (tokens, width) from 0 to `until`; arguments and result as in `tsit5.solve`."""
    from metastable.kernels.cuda.march import DeviceSystem

    start = np.ascontiguousarray(start, dtype=np.float64)
    _check(model, len(start), dtype)
    system = DeviceSystem(model, start, TSIT5.a, TSIT5.error, interaction, dtype)
    stops = [b for b in sorted(model.norm.breakpoints) if 0 < b < until] + [until]
    march = _March(system, rtol, atol)
    march.restart()
    march.first_step(stops[0])
    recorder = Recorder(model.dim, times)
    recorder.begin(0.0, start)
    status: Status = "success"
    message = ""
    for stop in stops:
        latest = until if stop == until else math.nextafter(stop, 0.0)
        while march.t < stop and status == "success":
            if march.accepted + march.rejected >= max_steps:
                status, message = "max_steps", f"stopped after {max_steps} steps at t = {march.t:.6g}; raise max_steps"
            elif recorder.bytes_kept > DENSE_LIMIT:
                limit = f"{DENSE_LIMIT / 2**30:.0f} GiB"
                status, message = "max_steps", f"dense output exceeds {limit} at t = {march.t:.6g}; give times=[...]"
            elif not march.attempt(stop, latest, recorder):
                status, message = "diverged", f"the solution leaves double precision near t = {march.t:.6g}"
            if progress is not None:
                progress(march.t)
        if status == "success" and stop != until:
            march.restart()
    return Solution(
        np.array(recorder.saved_times, dtype=float),
        np.array(recorder.saved_states).reshape(-1, *start.shape),
        status,
        Statistics(march.accepted, march.rejected, march.evaluations),
        recorder.dense(),
        message,
    )
