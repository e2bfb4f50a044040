"""Adaptive explicit Runge-Kutta (Tsitouras 5(4)) on the sphere, for any engine's right-hand side.

The state is advanced in R^d and retracted to unit rows after every accepted step. Since right-hand sides normalise first
(`f(x) = F(x/|x|)`), retraction moves the state only along directions that f does not see: the order is kept, and the last
stage of one step is exactly the first of the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import control
from metastable.integrate.solution import DEGREE, Dense, Solution, Statistics, Status, unchart
from metastable.integrate.tableau import TSIT5
from metastable.kernels.protocol import RightHandSide

DENSE_LIMIT = 4 * 2**30
"""Bytes of dense output kept at the most; a run that needs more stops with a message that says to give `times`."""


def retract(y: FloatArray, dim: int) -> None:
    """Normalise the direction columns of a packed state in place."""
    direction = y[:, :dim]
    direction /= np.sqrt(np.einsum("ij,ij->i", direction, direction))[:, None]


@dataclass
class Recorder:
    """Collects what a run keeps: states at chosen times, or every step with its polynomial."""

    dim: int
    times: FloatArray | None
    saved_times: list[float] = field(default_factory=list)
    saved_states: list[FloatArray] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    width: list[float] = field(default_factory=list)
    pieces: list[FloatArray] = field(default_factory=list)

    def begin(self, t: float, y: FloatArray) -> None:
        """Save the start where it is wanted."""
        if self.times is None or (self.times.size and self.times[0] <= t):
            self._save(t, y)

    def _save(self, t: float, y: FloatArray) -> None:
        self.saved_times.append(t)
        self.saved_states.append(y.copy())

    def step(self, t: float, h: float, y: FloatArray, new: FloatArray, stages: FloatArray, end: float) -> None:
        """Record an accepted step from (t, y) to (end, new)."""
        if self.times is None:
            self.start.append(t)
            self.width.append(h)
            self.pieces.append(polynomial(y, h, stages))
            self._save(end, new)
            return
        due = self.times[len(self.saved_times) :]
        due = due[due <= end]
        if due.size:
            piece = polynomial(y, h, stages)
            for time in due:
                if time == end:
                    self._save(time, new)
                else:
                    self._save(time, evaluate(piece, (time - t) / h, self.dim))

    @property
    def bytes_kept(self) -> int:
        return len(self.pieces) * self.pieces[0].nbytes if self.pieces else 0

    def dense(self) -> Dense | None:
        if not self.pieces:
            return None
        return Dense("ambient", self.dim, np.array(self.start), np.array(self.width), np.array(self.pieces))


def polynomial(y: FloatArray, h: float, stages: FloatArray) -> FloatArray:
    """Coefficients (5, tokens, width) of the dense output of one step in powers of u = (time - t) / h."""
    coefficients = np.empty((DEGREE + 1, *y.shape))
    coefficients[0] = y
    np.einsum("ip,i...->p...", h * TSIT5.dense, stages, out=coefficients[1:])
    return coefficients


def evaluate(piece: FloatArray, u: float, dim: int) -> FloatArray:
    """Packed state at the fraction u of a step."""
    value = piece[DEGREE]
    for power in range(DEGREE - 1, -1, -1):
        value = piece[power] + u * value
    return unchart(value, "ambient", dim)


def _advance(rhs: RightHandSide, t: float, h: float, y: FloatArray, stages: FloatArray, latest: float) -> FloatArray:
    """Fill stages 2..7 and return the new state (not retracted). Stage times never pass `latest`."""
    state = y
    for i in range(1, TSIT5.stages):
        state = y + h * np.einsum("i,i...->...", TSIT5.a[i, :i], stages[:i])
        rhs(min(t + TSIT5.c[i] * h, latest), state, stages[i])
    return state


@dataclass
class _March:
    """The state of one integration: where it is, how far it dares to step, and what it has cost."""

    rhs: RightHandSide
    dim: int
    first: int
    rtol: float
    atol: float
    fixed: bool
    y: FloatArray
    stages: FloatArray
    h: float
    t: float = 0.0
    accepted: int = 0
    rejected: int = 0
    evaluations: int = 0
    previous: float = control.FIRST_ERROR
    after_rejection: bool = False

    def restart(self) -> None:
        """Evaluate the first stage anew (at the start, and behind a jump of the right-hand side)."""
        self.rhs(self.t, self.y, self.stages[0])
        self.evaluations += 1
        self.previous = control.FIRST_ERROR

    def attempt(self, stop: float, latest: float, recorder: Recorder) -> bool:
        """Try one step towards `stop`; False when the solution cannot be continued."""
        # A step that would leave a sliver before the stop is stretched onto it.
        lands = self.t + 1.0001 * self.h >= stop
        step = stop - self.t if lands else self.h
        new = _advance(self.rhs, self.t, step, self.y, self.stages, latest)
        self.evaluations += TSIT5.stages - 1
        error = self._error(step, new)
        if not error <= 1.0:
            self.rejected += 1
            self.after_rejection = True
            self.h = step * control.rejected_factor(error)
            return not self.fixed and self.t + self.h > self.t
        retract(new, self.dim)
        end = stop if lands else self.t + step
        recorder.step(self.t, step, self.y, new, self.stages, end)
        self.y, self.t = new, end
        self.stages[0] = self.stages[-1]
        self.accepted += 1
        if not self.fixed:
            factor = control.accepted_factor(error, self.previous, self.after_rejection)
            # A step cut short by a stop says nothing against the longer one that was planned.
            self.h = max(self.h, step * factor) if lands and factor >= 1.0 else step * factor
            self.previous = error
        self.after_rejection = False
        return True

    def _error(self, step: float, new: FloatArray) -> float:
        """Scaled error of a step; NaN for a step that must not be taken."""
        if (new[:, self.dim :] <= 0).any():
            return math.nan  # a radius that reaches zero has no direction: the solution ends there
        if self.fixed:
            return 0.0 if np.isfinite(new).all() else math.nan
        estimate = step * np.einsum("i,i...->...", TSIT5.error, self.stages)
        moving = slice(self.first, None)
        return control.scaled_error(estimate[moving], self.y[moving], new[moving], self.dim, self.rtol, self.atol)


def solve(
    rhs: RightHandSide,
    start: FloatArray,
    dim: int,
    until: float,
    *,
    times: FloatArray | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    max_steps: int = 100_000,
    first: int = 0,
    breakpoints: Sequence[float] = (),
    fixed_step: float | None = None,
    progress: Report | None = None,
) -> Solution:
    """Integrate the packed state `start` (tokens, width) from 0 to `until`.

    `times` None: every step is saved, with dense output; else only those times. `first`: tokens below it are not moved by the
    integrator and not counted in the error (the right-hand side knows where they are). `breakpoints`: times where the right-hand
    side jumps, which are stepped onto. `fixed_step` switches error control off.
    """
    y = np.array(start)
    stops = [b for b in sorted(breakpoints) if 0 < b < until] + [until]
    march = _March(rhs, dim, first, rtol, atol, fixed_step is not None, y, np.zeros((TSIT5.stages, *y.shape)), 0.0)
    march.restart()
    if fixed_step is None:
        march.h = control.initial_step(rhs, y, march.stages[0], dim, rtol, atol, stops[0], first)
        march.evaluations += 1
    else:
        march.h = fixed_step
    recorder = Recorder(dim, times)
    recorder.begin(0.0, y)
    status: Status = "success"
    message = ""
    for stop in stops:
        # Just before a jump the right-hand side of the left side is meant.
        latest = until if stop == until else float(np.nextafter(stop, 0.0))
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
        np.array(recorder.saved_states).reshape(-1, *y.shape),
        status,
        Statistics(march.accepted, march.rejected, march.evaluations),
        recorder.dense(),
        message,
    )
