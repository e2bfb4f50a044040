"""One integration by Rodas5P: marches of some hundred steps, what they wrote, and the `Solution` that it makes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate.plan import LATEST, SETTLED_HORIZON, size_of_value
from metastable.integrate.rodas import control
from metastable.integrate.rodas.prepare import Prepared, rotation
from metastable.integrate.rodas.solver import JOINED
from metastable.integrate.solution import (
    DENSE_LIMIT,
    Dense,
    Resume,
    Solution,
    Statistics,
    Status,
    dense_overflow,
    out_of_steps,
    unchart,
    unresolved,
)
from metastable.model import Attention, why_not

MARCH_BYTES = 2**26
"""Dense output that one march keeps."""
NO_ROOM = -1
"""Beside the codes that a march returns: dense output has no room left."""


class Integration:
    """From `begin` to the goal; every step is saved (`goal.keep_pieces`) or only the output times."""

    def __init__(
        self,
        prepared: Prepared,
        start: FloatArray,
        times: FloatArray,
        begin: float,
        goal: control.Goal,
    ) -> None:
        self.prepared, self.start, self.begin, self.goal = prepared, start, begin, goal
        shape = (len(start), prepared.components)
        piece = 5 * 8 * math.prod(shape)
        self.room = DENSE_LIMIT // piece
        steps = min(256, max(8, MARCH_BYTES // piece))
        self.journal = control.new_journal(
            np.ascontiguousarray(times, dtype=float),
            np.full((len(times), *shape), np.nan),
            np.zeros((steps if goal.keep_pieces else 1, 5, *shape)),
            steps,
            begin,
            min(prepared.first_step, goal.until - begin),
        )
        prepared.system.result[control.ENOUGH] = prepared.enough * goal.tolerance
        self.steps: list[tuple[FloatArray, ...]] = []
        """Starts, widths and pieces of the steps that are kept."""
        self.ends: list[FloatArray] = []
        self.last_piece: FloatArray | None = None

    def take_up(self, resume: Resume) -> None:
        """Remember what the step control and the counters of an earlier integration knew."""
        for name, value in resume.control.items():
            self.journal.control[control.MEMORY.index(name)] = value
        done = resume.statistics
        self.journal.counters[: control.OUTPUTS] = done.accepted, done.rejected, done.evaluations, done.jacobians

    def _here(self, code: int) -> Resume | None:
        """Where it can be taken up: at its end, or before the step that was cut short for it."""
        if code in (control.LOST, control.UNRESOLVED):
            return None
        counts, known = self.journal.counters[: control.OUTPUTS].tolist(), self.journal.control
        state, memory = self.prepared.current().copy(), known[: control.LANDS]
        if code == control.REACHED and known[control.LANDS] and self.last_piece is not None:
            state, memory = self.prepared.back(self.last_piece[0]), known[control.BEFORE :]
            counts = [count - spent for count, spent in zip(counts, (1, 0, 8, 1))]
        state = unchart(state, self.prepared.chart, self.start.shape[1])
        remembered = dict(zip(control.MEMORY, memory.tolist()))
        return Resume("rodas", float(memory[control.T]), state, Statistics(*counts), remembered)

    @property
    def t(self) -> float:
        """How far it is."""
        return float(self.journal.control[control.T])

    def run(self, progress: Report | None) -> int:
        """March to the end; returns the code of `control`, or `NO_ROOM`."""
        kept = 0
        while True:
            code = self.prepared.march(self.journal, self.goal)
            count = int(self.journal.counters[control.PIECES])
            if count:
                self.last_piece = self.journal.pieces[count - 1 if self.goal.keep_pieces else 0].copy()
            if self.goal.keep_pieces and count:
                self._keep(count)
                kept += count
            self.journal.counters[control.PIECES] = 0
            if progress is not None:
                # Decades are what these runs go through.
                progress(self.goal.until * min(1.0, math.log1p(self.t) / math.log1p(self.goal.until)))
            if code != control.FULL:
                return code
            if kept > self.room:
                return NO_ROOM

    def _keep(self, count: int) -> None:
        """Put the steps of a march away, and give the next one new memory."""
        journal = self.journal
        pieces = self.prepared.back(journal.pieces[:count])
        self.ends.append(unchart(pieces.sum(axis=1), self.prepared.chart, self.start.shape[1]))
        self.steps.append((journal.starts[:count], journal.widths[:count], pieces))
        fresh = {name: np.empty_like(getattr(journal, name)) for name in ("starts", "widths", "pieces")}
        self.journal = journal._replace(**fresh)

    def _outputs(self, code: int) -> tuple[FloatArray, FloatArray]:
        """Saved times and states."""
        dim, times = self.start.shape[1], self.journal.times
        if not self.goal.keep_pieces:
            done = int(self.journal.counters[control.OUTPUTS])
            saved = self.prepared.back(self.journal.saved)
            if code == control.SETTLED:
                saved[done:] = self.prepared.current()
                done = times.size
            states = unchart(saved[:done], self.prepared.chart, dim)
            states[times[:done] <= self.begin] = self.start
            return times[:done], states
        if not self.steps:
            return np.array([self.begin]), self.start[None].copy()
        starts, widths = (np.concatenate(part) for part in list(zip(*self.steps))[:2])
        until = self.goal.until
        ends = np.append(starts[1:], min(starts[-1] + widths[-1], until) if self.t < until else until)
        times = np.append(self.begin, ends)
        states = np.concatenate([self.start[None], *self.ends])
        # Where the system is, which differs from the end of the last polynomial by the snapping of slaved tokens.
        states[-1] = unchart(self.prepared.current().copy(), self.prepared.chart, dim)
        # Steps that are too short to move the clock end at the same time: the last one counts.
        last = np.append(times[1:] > times[:-1], True)
        return times[last], states[last]

    def solution(self, model: Attention, code: int) -> Solution:
        """What `solve` returns."""
        times, states = self._outputs(code)
        notes: dict[str, Any] = {"reached": self.t}
        if code == control.SETTLED:
            notes["settled"] = self.t
        dense = None
        if self.steps:
            dense = Dense(self.prepared.chart, model.dim, *(np.concatenate(part) for part in zip(*self.steps)))
        ran_out = self._why_steps_ran_out(model) if code == control.EXHAUSTED else None
        status, message = self._verdict(model, code, ran_out or "")
        # The counters begin with what a solution counts.
        statistics = Statistics(*self.journal.counters[: control.OUTPUTS].tolist())
        return Solution(times, states, status, statistics, dense, message, notes, self._here(code), ran_out)

    def _verdict(self, model: Attention, code: int, reason: str) -> tuple[Status, str]:
        """Status and message for the way the last march ended; `reason`: why steps ran out, where they did."""
        t, goal, times = self.t, self.goal, self.journal.times
        if code == control.SETTLED or (code == control.REACHED and goal.settle == 0.0):
            return "success", ""
        if code == control.REACHED:
            where = _end_of_dense_steps(model, len(self.start))
            if times.size and times[-1] <= goal.until:
                where = "the last of the output times"
            elif t >= SETTLED_HORIZON:
                where = _end_of_time(model)
            return "max_steps", f"the tokens had not settled at t = {t:.6g}, {where}"
        if code == control.UNRESOLVED:
            return unresolved(t)
        if code == control.LOST:
            return "diverged", f"no step was short enough near t = {t:.6g}"
        if code == NO_ROOM:
            return dense_overflow(t)
        return out_of_steps(t, goal.max_steps, reason)

    def _why_steps_ran_out(self, model: Attention) -> str:
        """Why steps were not enough, and what to do; "" where nobody knows."""
        leading = rotation(model)
        if leading is None:
            return ""
        pair = f"{leading.real:.4g} +- {abs(leading.imag):.4g} i"
        horizon = "give a horizon" if self.goal.settle else "use a shorter horizon"
        latest = LATEST / size_of_value(model)
        return (
            f"the leading eigenvalues of the value matrix are the complex pair {pair}, so token 1 rotates for ever and the others "
            f"follow it, which asks for short steps; {horizon}; up to about t = {latest:.3g} method='tsit5' may do"
        )


def _end_of_dense_steps(model: Attention, tokens: int) -> str:
    """Why steps of all tokens at once ended before these were at rest, and what to do."""
    said = "where rounding errors begin to decide where clusters go"
    if why_not(model, JOINED, tokens) is not None:
        return said
    return f"{said}; give a horizon (until=1e30, say): up to that one clusters are joined, for this V too"


def _end_of_time(model: Attention) -> str:
    """Why tokens may be on their way still where numbers end: clusters at opposite places wait for about exp(2 beta |Q^T K|)."""
    exponent = max(2.0 * head.beta * head.bilinear_size for head in model.all_heads)
    decades = exponent / math.log(10.0)
    said = "where double precision ends, and more steps change nothing"
    if decades < math.log10(SETTLED_HORIZON) - 1.0:
        return f"{said}; give a horizon"
    wait = f"exp(2 beta |Q^T K|) = exp({exponent:.4g}), about 10^{decades:.0f}"
    return f"{said}: clusters of this model wait for up to {wait}; lower beta, or give a horizon"
