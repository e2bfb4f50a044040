"""The adaptive march of an explicit method, the same for every system: one in NumPy (`tsit5`), one with compiled steps
(`fused.system`), or one that lives on a device (`kernels.cuda.device_system`, `kernels.torch.device_system`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import control
from metastable.integrate.plan import Accuracy, Plan
from metastable.integrate.solution import (
    DEGREE,
    DENSE_LIMIT,
    Chart,
    Dense,
    Resume,
    Solution,
    Statistics,
    Status,
    dense_overflow,
    diverged,
    horner,
    out_of_steps,
    unchart,
)
from metastable.integrate.tableau import Tableau

Polynomial = Callable[[FloatArray | None], FloatArray]
"""Makes the dense output of the step at hand, (5, tokens, width), in memory that it is given (None: in its own)."""


RESERVED = 2**29
"""Bytes that a stack asks for at first. What is not written to takes no memory, and what is there need not be moved when it grows: on
some machines memory that is touched for the first time takes longer than everything else that is done to it."""
FEWEST, MOST = 32, 512
"""Items that it has room for at first, whatever their size."""


class Stack:
    """Arrays of one shape behind one another, in memory that doubles: most of a long run is written once, not once more at its end."""

    def __init__(self) -> None:
        self.count, self.memory = 0, np.empty(0)

    def __len__(self) -> int:
        return self.count

    def ahead(self, shape: tuple[int, ...]) -> FloatArray:
        """The memory of the item that comes next."""
        if self.count == len(self.memory):
            first = max(FEWEST, min(MOST, RESERVED // max(1, 8 * math.prod(shape))))
            grown = np.empty((2 * self.count or first, *shape))
            grown[: self.count] = self.memory[: self.count] if self.count else 0.0
            self.memory = grown
        return self.memory[self.count]

    def place(self, shape: tuple[int, ...]) -> FloatArray:
        """The memory of the next item, to be written to."""
        item = self.ahead(shape)
        self.count += 1
        return item

    def append(self, item: FloatArray) -> None:
        self.place(item.shape)[...] = item

    def array(self) -> FloatArray:
        """All of them, (count, ...); what is not used of the memory was never touched."""
        return self.memory[: self.count]


@dataclass
class Recorder:
    """Collects what a run keeps: states at chosen times, or every step with its polynomial.

    The constant term of a polynomial is the state that its step begins with, so in the ambient chart a run that keeps every step
    writes its states there only, the last one into the memory of a step to come.
    """

    dim: int
    times: FloatArray | None
    chart: Chart = "ambient"
    saved_times: list[float] = field(default_factory=list)
    saved_states: Stack = field(default_factory=Stack)
    start: list[float] = field(default_factory=list)
    width: list[float] = field(default_factory=list)
    pieces: Stack = field(default_factory=Stack)

    def begin(self, t: float, y: FloatArray) -> None:
        """Save the start where it is wanted."""
        if self.times is None or (self.times.size and self.times[0] <= t):
            self._save(t, y)

    @property
    def _in_pieces(self) -> bool:
        """True where the states are the constant terms of the polynomials."""
        return self.times is None and self.chart == "ambient"

    def _save(self, t: float, y: FloatArray) -> None:
        self.saved_times.append(t)
        if self._in_pieces:
            self.pieces.ahead((DEGREE + 1, *y.shape))[0] = y
        else:
            self.saved_states.append(y if self.chart == "ambient" else self.packed(y))

    def packed(self, y: FloatArray) -> FloatArray:
        """A state of the chart as a packed one of its own."""
        return y.copy() if self.chart == "ambient" else unchart(y, self.chart, self.dim)

    def step(self, t: float, h: float, end: float, new: FloatArray, polynomial: Polynomial) -> None:
        """Record an accepted step from t to (end, new) and, where it is wanted, its `polynomial` (`march.polynomial`)."""
        if self.times is None:
            self.start.append(t)
            self.width.append(h)
            polynomial(self.pieces.place((DEGREE + 1, *new.shape)))
            self._save(end, new)
            return
        due = self.times[len(self.saved_times) :]
        due = due[due <= end]
        piece = polynomial(None) if due.size and due[0] < end else new
        for time in due:
            self._save(time, new if time == end else self._between(piece, (time - t) / h))

    def _between(self, piece: FloatArray, u: float) -> FloatArray:
        """State at the fraction u of a step."""
        value = horner(piece, u)
        return value if self.chart == "angle" else unchart(value, self.chart, self.dim)

    def wants(self, end: float) -> bool:
        """True when a step that ends at `end` has something to record."""
        saved = len(self.saved_times)
        return self.times is None or (saved < self.times.size and bool(self.times[saved] <= end))

    @property
    def bytes_kept(self) -> int:
        return self.pieces.array().nbytes

    def states(self) -> FloatArray:
        """The saved states, (times, tokens, width)."""
        if self._in_pieces:
            return self.pieces.memory[: len(self.saved_times), 0]
        return self.saved_states.array()

    def dense(self) -> Dense | None:
        if not self.pieces:
            return None
        return Dense(self.chart, self.dim, np.array(self.start), np.array(self.width), self.pieces.array())


def polynomial(
    tableau: Tableau, y: FloatArray, h: float, stages: FloatArray, out: FloatArray | None = None
) -> FloatArray:
    """Coefficients (5, tokens, width) of the dense output of one step in powers of u = (time - t) / h, into `out` where it is given."""
    coefficients = np.empty((DEGREE + 1, *y.shape)) if out is None else out
    coefficients[0] = y
    np.dot(h * tableau.dense.T, stages.reshape(len(stages), -1), out=coefficients[1:].reshape(DEGREE, -1))
    return coefficients


class System(Protocol):
    """A state with its stages. Sizes are root mean squares over tokens, in units of the tolerance."""

    tableau: Tableau

    def state(self) -> FloatArray:
        """The state at the beginning of the step, in the recorder's chart."""
        ...

    def begin(self, t: float) -> None:
        """Evaluate the first stage at t."""
        ...

    def speed(self) -> float:
        """Size of the first stage."""
        ...

    def bend(self, trial: float) -> float:
        """Size of the change of velocity over an Euler step `trial` from t = 0 (one evaluation)."""
        ...

    def advance(self, t: float, step: float, latest: float) -> float:
        """Evaluate the other stages, none later than `latest`. The size of the error; NaN for a step that must not be taken."""
        ...

    def accept(self, t: float, step: float, end: float, recorder: Recorder) -> None:
        """Retract the new state, record the step and move on to it; its last stage is the next first one."""
        ...


class Movable(System, Protocol):
    """A system that can be put anywhere and shows its stages: what a derivative needs (`integrate.adjoint`)."""

    def place(self, state: FloatArray) -> None:
        """Stand at `state`, in the recorder's chart; `begin` comes next."""
        ...

    def slopes(self) -> FloatArray:
        """The stages of the step at hand (stages, tokens, width), until the next one."""
        ...


Limit = Callable[[float, float], float]
"""(t, step) -> the step from t that may be taken instead."""


@dataclass
class _March:
    """Where an integration is, how far it dares to step, and what it has cost."""

    system: System
    fixed: bool
    until: float
    h: float = 0.0
    t: float = 0.0
    accepted: int = 0
    rejected: int = 0
    evaluations: int = 0
    previous: float = control.FIRST_ERROR
    after_rejection: bool = False
    landing: Resume | None = None
    """Where the end of the integration first decided about a step: a longer one goes its own way from here."""

    def take_up(self, resume: Resume) -> None:
        """Go on from `resume`, whose state the system holds."""
        self.t, self.h = resume.t, resume.control["step"]
        self.previous = resume.control.get("previous_error", control.FIRST_ERROR)
        self.after_rejection = bool(resume.control.get("after_rejection", 0.0))
        done = resume.statistics
        self.accepted, self.rejected, self.evaluations = done.accepted, done.rejected, done.evaluations + 1
        self.system.begin(self.t)

    def here(self, recorder: Recorder) -> Resume:
        """Where the integration is."""
        memory = {
            "step": self.h,
            "previous_error": self.previous,
            "after_rejection": float(self.after_rejection),
        }
        done = Statistics(self.accepted, self.rejected, self.evaluations)
        return Resume(self.system.tableau.name, self.t, recorder.packed(self.system.state()), done, memory)

    def restart(self) -> None:
        """Evaluate the first stage anew (at the start, and behind a jump of the right-hand side)."""
        self.system.begin(self.t)
        self.evaluations += 1
        self.previous = control.FIRST_ERROR

    def first_step(self, tolerance: float, horizon: float) -> None:
        self.h = control.initial_step(self.system.speed(), self.system.bend, tolerance, horizon)
        self.evaluations += 1

    def attempt(self, stop: float, latest: float, recorder: Recorder, limit: Limit | None = None) -> bool:
        """Try one step towards `stop`; False when the solution cannot be continued."""
        wanted = min(self.h, stop - self.t)
        allowed = wanted if limit is None else limit(self.t, wanted)
        if allowed < wanted:
            self.h = allowed
        # A step that would leave a sliver before the stop is stretched onto it.
        lands = self.t + 1.0001 * self.h >= stop
        if lands and stop == self.until and self.landing is None:
            self.landing = self.here(recorder)
        step = stop - self.t if lands else self.h
        if not self.t + step > self.t:
            return False  # time no longer advances, and a step that is taken nowhere would be kept as another moment
        error = self.system.advance(self.t, step, latest)
        self.evaluations += self.system.tableau.stages - 1
        if not error <= 1.0:
            self.rejected += 1
            self.after_rejection = True
            self.h = step * control.rejected_factor(error)
            return not self.fixed and self.t + self.h > self.t
        end = stop if lands else self.t + step
        self.system.accept(self.t, step, end, recorder)
        self.t = end
        self.accepted += 1
        if not self.fixed:
            factor = control.accepted_factor(error, self.previous, self.after_rejection)
            # A step cut short by a stop says nothing against the longer one that was planned.
            self.h = max(self.h, step * factor) if lands and factor >= 1.0 else step * factor
            self.previous = error
        self.after_rejection = False
        return True


def integrate(
    system: System,
    recorder: Recorder,
    until: float,
    accuracy: Accuracy,
    *,
    breakpoints: Sequence[float] = (),
    progress: Report | None = None,
    resume: Resume | None = None,
    limit: Limit | None = None,
) -> Solution:
    """March `system` from where it stands, at 0 (or at `resume`, whose state it holds), to `until`.

    A `step` of the accuracy switches error control off. `breakpoints`: times where the right-hand side jumps, which are stepped onto.
    `limit`: who may ask for a shorter step than the error control does.
    """
    begin, start, max_steps = 0.0 if resume is None else resume.t, system.state(), accuracy.max_steps
    stops = [b for b in sorted(breakpoints) if begin < b < until] + [until]
    march = _March(system, accuracy.step > 0.0, until, h=accuracy.step)
    if resume is not None:
        march.take_up(resume)
    else:
        march.restart()
        if not march.fixed:
            march.first_step(accuracy.tolerance, stops[0])
    recorder.begin(begin, start)
    status: Status = "success"
    message, ran_out = "", None
    for stop in stops:
        # Just before a jump the right-hand side of the left side is meant.
        latest = until if stop == until else float(np.nextafter(stop, 0.0))
        while march.t < stop and status == "success":
            if march.accepted + march.rejected >= max_steps:
                status, message = out_of_steps(march.t, max_steps)
                ran_out = ""
            elif recorder.bytes_kept > DENSE_LIMIT:
                status, message = dense_overflow(march.t)
            elif not march.attempt(stop, latest, recorder, limit):
                status, message = diverged(march.t)
            if progress is not None:
                progress(march.t)
        if status == "success" and stop != until:
            march.restart()
    return Solution(
        np.array(recorder.saved_times, dtype=float),
        recorder.states().reshape(-1, len(start), max(start.shape[1], recorder.dim)),
        status,
        Statistics(march.accepted, march.rejected, march.evaluations),
        recorder.dense(),
        message,
        resume=None if status == "diverged" else march.landing or march.here(recorder),
        steps_ran_out=ran_out,
    )


def follow(system: System, plan: Plan, report: Report | None, chart: Chart = "ambient") -> Solution:
    """`integrate` as a plan says, for a system whose state is in `chart`."""
    return integrate(
        system,
        Recorder(plan.model.dim, plan.save.times, chart),
        plan.save.until,
        plan.accuracy,
        breakpoints=plan.model.norm.breakpoints,
        progress=report,
        resume=plan.resume,
    )
