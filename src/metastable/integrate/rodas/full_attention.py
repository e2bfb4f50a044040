"""Full attention beyond the horizon of a dense block, behind `rodas.solve`: points with masses (`clusters`), and what is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate.plan import Save
from metastable.integrate.rodas import clusters, control
from metastable.integrate.rodas.prepare import DENSE_HORIZON, Departure
from metastable.integrate.solution import (
    DENSE_LIMIT,
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
    unresolved,
)
from metastable.model import Attention

FIRST_STRETCH = 64.0
"""Length of the first stretch with a dense block, while there are many points."""

Stretch = Callable[[FloatArray, Save, Departure, int], Solution]
"""`rodas.solve` with a dense block: (start, save, departure, max_steps)."""


class Record:
    """What is kept of a run: the states at `times`, or (None) every step with its polynomial."""

    def __init__(self, start: FloatArray, begin: float, times: FloatArray | None) -> None:
        self.requested, self.dim = times, start.shape[1]
        self.nothing = np.empty((0, *start.shape))
        self.times: list[FloatArray] = []
        self.states: list[FloatArray] = []
        self.pieces: list[tuple[FloatArray, FloatArray, FloatArray]] = []
        self.bytes = 0
        self.begin = begin
        if times is None or (times <= begin).any():
            early = np.array([begin]) if times is None else times[times <= begin]
            self.times.append(early)
            self.states.append(np.repeat(start[None], early.size, axis=0))

    def add(self, begins: FloatArray, widths: FloatArray, pieces: FloatArray, end: float) -> None:
        """Steps with polynomials (s, 5, tokens, d), the last of which ends at `end`."""
        if not begins.size:
            return
        ends = np.append(begins[1:], end)
        if self.requested is None:
            self.times.append(ends)
            self.states.append(unchart(pieces.sum(axis=1), "ambient", self.dim))
            self.pieces.append((begins, widths, pieces))
            self.bytes += pieces.nbytes
            return
        for begin, width, piece, stop in zip(begins, widths, pieces, ends):
            due = self.requested[(self.requested > begin) & (self.requested <= stop)]
            if due.size:
                shares = np.clip((due - begin) / width, 0.0, 1.0)
                self.times.append(due)
                self.states.append(unchart(np.array([horner(piece, u) for u in shares]), "ambient", self.dim))

    def take_over(self, part: Solution) -> None:
        """The steps of a stretch with a dense block."""
        skip = 1 if self.requested is None else 0
        self.times.append(part.times[skip:])
        self.states.append(part.states[skip:])
        if isinstance(part.dense, Dense):
            self.pieces.append((part.dense.start, part.dense.width, part.dense.coefficients))
            self.bytes += part.dense.coefficients.nbytes

    def rest(self, state: FloatArray, begin: float, width: float, end: float) -> None:
        """Nothing moves for so long from `begin` on (which may be too short to move the clock), until `end`: rounded, their sum may
        be earlier, and whoever asked for the end would get nothing."""
        if width > 0.0:
            piece = np.zeros((1, 5, *state.shape))
            piece[0, 0] = state
            self.add(np.array([begin]), np.array([width]), piece, end)

    def solution(self, status: Status, message: str, statistics: Statistics, notes: dict[str, Any]) -> Solution:
        """Everything as one `Solution`."""
        times = np.concatenate(self.times) if self.times else np.empty(0)
        states = np.concatenate([self.nothing, *self.states])
        if self.requested is None:
            # Steps that are too short to move the clock end at the same time: the last one counts.
            last = np.append(times[1:] > times[:-1], True)
            times, states = times[last], states[last]
        dense = None
        if self.pieces:
            dense = Dense("ambient", self.dim, *(np.concatenate(part) for part in zip(*self.pieces)))
        return Solution(times, states, status, statistics, dense, message, notes)


def solve(
    model: Attention,
    start: FloatArray,
    goal: control.Goal,
    record: Record,
    step: float,
    stretch: Stretch,
    progress: Report | None,
    resume: Resume | None,
) -> Solution:
    """Integrate `start` from where the record begins to the goal, with a first `step`. `stretch` moves many points, as far as
    `DENSE_HORIZON`."""
    base = Statistics() if resume is None else resume.statistics
    state, t, done = start, record.begin, base
    while True:
        flow = clusters.make_flow(model, state, t, step, goal.tolerance, goal.max_steps - _work(done))
        if flow.leading * (model.dim - 1) <= clusters.SMALL or t >= min(DENSE_HORIZON, goal.until):
            break
        end = min(DENSE_HORIZON, goal.until, max(2.0 * t, t + FIRST_STRETCH))
        part = _stretch(state, stretch, record, Departure(t, step), end, flow.tries)
        record.take_over(part)
        done = done + part.statistics
        if part.status != "success" or part.resume is None:
            return record.solution(part.status, part.message, done, {"reached": part.notes["reached"]})
        state, t, step = part.resume.state, end, part.resume.control["h"]
        if part.resume.t < end:
            # The step that was cut for the end: what was reached is what counts.
            state = part.states[-1]
    if resume is not None and done is base:
        for name, value in resume.control.items():
            flow.control[control.MEMORY.index(name)] = value
    return _follow(flow, goal, record, done, progress)


def _work(statistics: Statistics) -> int:
    return statistics.accepted + statistics.rejected


def _stretch(
    state: FloatArray, stretch: Stretch, record: Record, departure: Departure, end: float, tries: int
) -> Solution:
    """A stretch with a dense block; with output times its end is one of them, so that the next one can start there."""
    output = record.requested
    if output is not None:
        output = np.append(output[(output > departure.begin) & (output < end)], end)
    part = stretch(state, Save(end, output), departure, max(1, tries))
    if output is None or part.status != "success" or record.requested is None or end in record.requested:
        return part
    # The end is where the next stretch starts, and nobody asked for it.
    assert part.resume is not None
    last = replace(part.resume, state=part.states[-1], t=end)
    return replace(part, times=part.times[:-1], states=part.states[:-1], resume=last)


def _follow(
    flow: clusters.Flow, goal: control.Goal, record: Record, done: Statistics, progress: Report | None
) -> Solution:
    """Points to the goal, or to one point (or to one place, where tokens behind a prefix are points of their own)."""
    until, last = goal.until, flow.state()
    code = clusters.FILLED
    notes: dict[str, float] = {}
    while True:
        if (flow.gathered(goal.settle) and flow.field.at_rest_alone) or code == clusters.STILL:
            code = clusters.STILL
            break
        if goal.settle > 0.0 and clusters.hidden(flow.field, flow.places, flow.sizes, flow.leading):
            break
        # Points behind a prefix never meet: after every step they are asked whether they are there.
        closely = goal.settle > 0.0 and flow.leading == 1
        begins, widths, pieces, code = flow.advance(until, closely)
        if begins.size:
            record.add(begins, widths, pieces, flow.t)
            last = unchart(pieces[-1, 0], "ambient", record.dim)
        if progress is not None:
            progress(until * min(1.0, math.log1p(flow.t) / math.log1p(until)))
        if code not in (clusters.MET, clusters.FILLED, clusters.STILL):
            break
        if record.bytes > DENSE_LIMIT:
            code = clusters.EXHAUSTED
            break
    status, message = _verdict(code, flow, goal, record)
    reached = flow.t
    if code == clusters.STILL and status == "success":
        width = until - reached
        if goal.settle > 0.0:
            width = min(width, flow.resting(goal.settle)) if flow.leading == 1 else 0.0
            reached = notes["settled"] = reached + width
        else:
            reached = until
        if record.requested is None:
            record.rest(flow.state(), flow.t, width, reached)
        else:
            # Later output times hold the state at rest.
            record.rest(flow.state(), flow.t, until - flow.t, until)
    tries = flow.attempts
    statistics = done + Statistics(flow.accepted, tries - flow.accepted, 8 * tries, tries)
    solution = record.solution(status, message, statistics, {"reached": reached, **notes})
    return _resumable(solution, flow, code, last)


def _resumable(solution: Solution, flow: clusters.Flow, code: int, last: FloatArray) -> Solution:
    """With the place where it can be taken up: at its end, or before the step that was cut short for it."""
    if code in (clusters.LOST, clusters.FILLED):
        return solution
    memory, state, work = flow.control[: control.LANDS], flow.state(), solution.statistics
    if code == clusters.REACHED and flow.control[control.LANDS]:
        memory, state = flow.control[control.BEFORE :], last
        work = work + Statistics(-1, 0, -8, -1)
    remembered = dict(zip(control.MEMORY, memory.tolist()))
    return replace(solution, resume=Resume("rodas", float(memory[control.T]), state, work, remembered))


def _verdict(code: int, flow: clusters.Flow, goal: control.Goal, record: Record) -> tuple[Status, str]:
    """Status and message for the way it ended."""
    if code == clusters.STILL or (code == clusters.REACHED and goal.settle == 0.0):
        return "success", ""
    if code == clusters.REACHED:
        return "max_steps", f"the tokens had not settled at t = {flow.t:.6g}, the last of the output times"
    if code in (clusters.MET, clusters.FILLED):
        return unresolved(flow.t)
    if code == clusters.LOST:
        return diverged(flow.t)
    if record.bytes > DENSE_LIMIT:
        return dense_overflow(flow.t)
    return out_of_steps(flow.t, goal.max_steps)
