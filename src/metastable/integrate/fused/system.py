"""One system in compiled code: the stages of a step, its error and its polynomial. `integrate.march` says which steps.

Long arrays are cut into chunks of a fixed number, shared among threads: the numbers do not depend on how many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import prange

from metastable._checks import FloatArray
from metastable.integrate import march
from metastable.integrate.fused.stages import Method, Step, make_step, method_of, square_sum, stage_state
from metastable.integrate.solution import DEGREE
from metastable.integrate.tableau import Tableau
from metastable.kernels.cpu import system as kernels
from metastable.kernels.cpu.compiled import compiled, inner, parallel, vectors
from metastable.kernels.cpu.memory import Reference
from metastable.kernels.cpu.problem import Problem
from metastable.kernels.cpu.rules import inverse_length
from metastable.kernels.cpu.threads import using
from metastable.kernels.cpu.vector import LANES, fill, load, store, total

CHUNKS = 64
"""Chunks of a long array."""

LONG = 65536
"""Entries from which threads pay for sums of arrays."""

EULER = {"a": np.array([[0.0, 0.0], [1.0, 0.0]]), "c": np.array([0.0, 1.0])}
"""Of the step that measures how fast the velocity changes at the start."""

SPEED, BEND = np.array([1.0]), np.array([-1.0, 1.0])
"""Weights of the stages whose size is the speed, and of those whose size is the change of velocity."""


class Memory(NamedTuple):
    """What compiled code needs (by reference): a system, a step of it, the method, and sums of squares over one or many chunks."""

    system: kernels.System
    step: Step
    method: Method
    one: FloatArray
    many: FloatArray


@inner
def _do_chunk(step, weights, count, partial, chunk):
    """A chunk of the argument of the stage `count`; or, for a negative one, of the sum of squares into `partial`."""
    vectors = step.y.size // LANES
    chunks = partial.size // LANES
    first = vectors * chunk // chunks * LANES
    last = vectors * (chunk + 1) // chunks * LANES
    if count >= 0:
        stage_state(step, weights, count, first, last)
    else:
        store(partial, chunk * LANES, square_sum(step, weights, load(step.h, 0), first, last))


@parallel
def _do_chunks_parallel(step, weights, count, partial):
    for chunk in prange(partial.size // LANES):
        _do_chunk(step, weights, count, partial, np.int64(chunk))


@compiled
def advance(memory, span, stages, weights, chunks, threads):
    """Evaluate the stages first..last - 1 (`stages`) of the step from t, none later than `latest` (`span`), each at `new`.

    Returns the sum of squares of h sum_j weights_j k_j, added up in one or in many `chunks`. After the last stage `new` is
    retracted to unit tokens. `threads`: as in `kernels.cpu.system.velocity`.
    """
    step, method, problem = memory.step, memory.method, memory.system.problem
    partial = memory.one if chunks == 1 else memory.many
    for stage in range(stages[0], stages[1] + 1):
        last = stage == stages[1]
        row = weights if last else method.a[stage]
        count = -1 if last else stage
        if threads is not None and step.y.size > LONG:
            _do_chunks_parallel(step, row, count, partial)
        else:
            for chunk in range(partial.size // LANES):
                _do_chunk(step, row, count, partial, chunk)
        if not last:
            time = min(span[0] + method.c[stage] * step.h[0], span[1])
            kernels.velocity(memory.system, time, step.new, step.k[stage], threads)
    if stages[1] == method.c.size and problem.components > 1:
        for token in range(problem.tokens):
            inverse = inverse_length(step.new, token * problem.dim, problem.dim)
            for i in range(token * problem.dim, (token + 1) * problem.dim):
                step.new[i] *= inverse
    result = fill(0.0)
    for chunk in range(partial.size // LANES):
        result = result + load(partial, chunk * LANES)
    return total(result)


@compiled
def keep_polynomial(memory, piece):
    """Coefficients of the dense output of a step into `piece` (powers + 1, tokens * components)."""
    step, method = memory.step, memory.method
    for i in range(piece.shape[1]):
        piece[0, i] = step.y[i]
        for power in range(piece.shape[0] - 1):
            change = 0.0
            for stage in range(method.c.size):
                change += method.dense[stage, power] * step.k[stage, i]
            piece[power + 1, i] = step.h[0] * change


@dataclass
class System:
    """A state in its chart, (tokens, components); a `march.Movable`."""

    problem: Problem
    start: FloatArray
    tolerance: float
    threads: int
    tableau: Tableau

    def __post_init__(self) -> None:
        self.step, self.method = make_step(self.tableau.stages, self.start.size), method_of(self.tableau)
        self.step.y[: self.start.size] = self.start.reshape(-1)
        system = kernels.make(self.problem).memory
        memory = Memory(system, self.step, self.method, vectors(1), vectors(CHUNKS))
        self.memory, self.euler = Reference(memory), Reference(memory._replace(method=self.method._replace(**EULER)))
        self.parallel = True if self.threads > 1 and kernels.pays(self.problem) else None

    def _advance(
        self,
        span: tuple[float, float],
        stages: tuple[int, int],
        step: float,
        weights: FloatArray,
        memory: Reference | None = None,
    ) -> float:
        """`advance`, as a root mean square over tokens in units of the tolerance."""
        self.step.h[:] = step
        chunks = CHUNKS if weights is self.method.error else 1
        with using(self.threads if self.parallel else None):
            square = advance(memory or self.memory, span, stages, weights, chunks, self.parallel)
        return math.sqrt(square / self.problem.tokens) / self.tolerance

    def state(self) -> FloatArray:
        return self.step.y[: self.start.size].reshape(self.start.shape)

    def place(self, state: FloatArray) -> None:
        self.step.y[: self.start.size] = state.reshape(-1)

    def slopes(self) -> FloatArray:
        return self.step.k[:, : self.start.size].reshape(-1, *self.start.shape)

    def begin(self, t: float) -> None:
        self._advance((t, t), (0, 1), 0.0, SPEED)

    def speed(self) -> float:
        return self._advance((0.0, 0.0), (0, 0), 1.0, SPEED)

    def bend(self, trial: float) -> float:
        self._advance((0.0, trial), (1, 2), trial, BEND, self.euler)
        return self._advance((0.0, 0.0), (0, 0), 1.0, BEND)

    def advance(self, t: float, step: float, latest: float) -> float:
        return self._advance((t, latest), (1, self.tableau.stages), step, self.method.error)

    def accept(self, t: float, step: float, end: float, recorder: march.Recorder) -> None:
        if recorder.wants(end):
            new = self.step.new[: self.start.size].reshape(self.start.shape)
            recorder.step(t, step, end, new, self._polynomial)
        self.step.y[:] = self.step.new
        self.step.k[0] = self.step.k[-1]

    def _polynomial(self, out: FloatArray | None) -> FloatArray:
        piece = np.empty((DEGREE + 1, *self.start.shape)) if out is None else out
        keep_polynomial(self.memory, piece.reshape(DEGREE + 1, -1))
        return piece
