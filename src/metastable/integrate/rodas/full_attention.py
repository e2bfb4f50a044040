"""Full attention beyond the horizon of a dense block, behind `rodas.solve`: a march that becomes one of points (`clusters`)."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate.rodas import clusters, control
from metastable.integrate.rodas.control import BEFORE, LANDS, REACHED, T
from metastable.integrate.rodas.points import MET, STILL
from metastable.integrate.rodas.prepare import (
    DENSE_HORIZON,
    Prepared,
    default_step,
    dense_system,
    dense_tokens,
    sphere_system,
)
from metastable.model import Attention

if TYPE_CHECKING:
    from metastable.integrate.rodas.dense import DenseSystem

FIRST_STRETCH = 64.0
"""Length of the first stretch with a dense block, while there are many points."""


class Gathering:
    """Tokens on their way to one point: with a dense block as long as there are many points, then as points (`flow`)."""

    def __init__(self, model: Attention, start: FloatArray) -> None:
        self.model, self.start = model, start
        self.field, self.prefix = clusters.Field.of(model), dense_tokens(model, len(start))
        self.result = np.zeros(control.RESULT_SIZE)
        self.flow: clusters.Flow | None = None
        self.end = -math.inf
        """Of the stretch at hand."""

    @cached_property
    def dense(self) -> DenseSystem:
        """The tokens with a dense block, made where there are many points."""
        system = dense_system(self.model, sphere_system(self.model, self.start, self.prefix, self.field.frame))
        system.result[:] = self.result
        return system

    @property
    def tokens(self) -> FloatArray:
        """Where the tokens are now, in the coordinates of the field."""
        if self.flow is not None:
            return self.flow.places[self.flow.point_of]
        return self.dense.system.charts.origin if self.end > 0.0 else self.field.frame.into(self.start)

    def current(self) -> FloatArray:
        """Tokens where they are now."""
        return self.field.frame.back(self.tokens)

    def march(self, journal: control.Journal, goal: control.Goal) -> int:
        """As `control.march`."""
        code = REACHED if self.flow is not None else self._while_many(journal, goal)
        return code if self.flow is None else self._while_few(self.flow, journal, goal)

    def _while_many(self, journal: control.Journal, goal: control.Goal) -> int:
        """With a dense block, in stretches of doubling length, until few points are left or something else happens."""
        latest = min(DENSE_HORIZON, goal.until)
        while True:
            t = float(journal.control[T])
            if t >= self.end:
                flow = clusters.make_flow(self.field, self.tokens, self.prefix, goal.tolerance)
                if flow.leading * (flow.places.shape[1] - 1) <= clusters.SMALL or t >= latest:
                    self.flow = flow
                    return REACHED
                self.end = min(latest, max(2.0 * t, t + FIRST_STRETCH))
            due = journal._replace(times=journal.times[journal.times <= self.end])
            code = control.march_plain(self.dense, due, goal._replace(until=self.end, settle=0.0))
            if code != REACHED:
                return code
            if journal.control[LANDS] and self.end < goal.until:
                # A step that was cut for the end of a stretch says nothing about the next one.
                journal.control[T + 1 : LANDS] = journal.control[BEFORE + 1 :]

    def _while_few(self, flow: clusters.Flow, journal: control.Journal, goal: control.Goal) -> int:
        """Points to the goal, or to one point (or to one place, where tokens behind a prefix are points of their own)."""
        still = False
        while True:
            room = journal.starts.size - int(journal.counters[control.PIECES])
            if room == 0:
                return control.FULL
            if still or (flow.gathered(goal.settle) and self.field.at_rest_alone):
                return self._rest(flow, journal, goal)
            if goal.settle > 0.0 and clusters.hidden(self.field, flow.places, flow.sizes, flow.leading):
                return control.UNRESOLVED
            # Points behind a prefix never meet: after every step they are asked whether they are there.
            point_of, closely = flow.point_of, goal.settle > 0.0 and flow.leading == 1
            trail, code = flow.advance(journal, goal, 1 if closely else room)
            for begin, width, piece in zip(*trail):
                _write(journal, goal, begin, width, piece[:, point_of])
            still = code == STILL
            if code not in (STILL, MET, control.FULL):
                return code

    def _rest(self, flow: clusters.Flow, journal: control.Journal, goal: control.Goal) -> int:
        """Nothing moves any more, for ever; tokens have settled when they are near enough to the point that they are."""
        begin = journal.control[T]
        width = goal.until - begin
        if goal.settle > 0.0:
            width = min(width, flow.resting(goal.settle)) if flow.leading == 1 else 0.0
        if width > 0.0:
            piece = np.zeros((5, *self.start.shape))
            piece[0] = self.tokens
            _write(journal, goal, begin, width, piece)
        journal.control[T] = begin + width if goal.settle > 0.0 else goal.until
        journal.control[LANDS] = 0.0
        return control.SETTLED if goal.settle > 0.0 else REACHED


def _write(journal: control.Journal, goal: control.Goal, begin: float, width: float, piece: FloatArray) -> None:
    """An accepted step with its polynomial (5, tokens, d)."""
    number = journal.counters[control.PIECES]
    kept = journal.pieces[number if goal.keep_pieces else 0]
    kept[:] = piece
    journal.starts[number], journal.widths[number] = begin, width
    journal.counters[control.PIECES] += 1
    control.record_plain(journal.counters, journal.times, journal.saved, begin, width, goal.until, kept)


def prepare(model: Attention, start: FloatArray) -> Prepared:
    """The system for horizons beyond that of a dense block."""
    system = Gathering(model, start)
    march, back = system.march, system.field.frame.back
    return Prepared(system, march, "ambient", model.dim, default_step(model), system.current, back=back)
