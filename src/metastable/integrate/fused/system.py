"""One system in compiled code: the stages of a step and its error. `integrate.march` says which steps.

Long arrays are cut into chunks of a fixed number, shared among threads: the numbers do not depend on how many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numba import prange

from metastable._checks import FloatArray
from metastable.integrate import control, march
from metastable.integrate.fused.stages import Method, Step, make_step, method_of, square_sum, stage_state
from metastable.integrate.tableau import Tableau
from metastable.kernels.cpu import system as kernels
from metastable.kernels.cpu.compiled import compiled, inner, parallel, vectors
from metastable.kernels.cpu.memory import Reference
from metastable.kernels.cpu.problem import Problem
from metastable.kernels.cpu.rules import inverse_length
from metastable.kernels.cpu.threads import using
from metastable.kernels.cpu.vector import LANES, fill, load, store, total

CHUNKS = 64
"""Chunks of a long array; a short one is a single chunk."""

LONG = 65536
"""Entries from which an array is long, and threads pay for its sums."""


class Memory(NamedTuple):
    """What compiled code needs (by reference): a system, a step of it, the method, and sums of squares over the chunks."""

    system: kernels.System
    step: Step
    method: Method
    partial: FloatArray


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
def advance(memory, span, stages, threads):
    """Evaluate the stages first..last - 1 (`stages`) of the step from t, none later than `latest` (`span`), each at `new`.

    Returns the sum of squares of the error estimate. After the last stage `new` is retracted to unit tokens. `threads`: as in
    `kernels.cpu.system.velocity`.
    """
    step, method, problem, partial = memory.step, memory.method, memory.system.problem, memory.partial
    for stage in range(stages[0], stages[1] + 1):
        last = stage == stages[1]
        row = method.error if last else method.a[stage]
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


@dataclass
class System:
    """A state in its chart, (tokens, components); a `march.Movable`."""

    problem: Problem
    start: FloatArray
    tolerance: float
    threads: int
    tableau: Tableau

    def __post_init__(self) -> None:
        self.step = make_step(self.tableau.stages, self.start.size)
        self.place(self.start)
        system = kernels.make(self.problem)
        chunks = vectors(CHUNKS if self.step.y.size > LONG else 1)
        self.memory = Reference(Memory(system, self.step, method_of(self.tableau), chunks))
        self.parallel = self.threads > 1 and kernels.pays(self.problem)

    def _advance(self, span: tuple[float, float], stages: tuple[int, int], step: float) -> float:
        """`advance`, as a root mean square over tokens in units of the tolerance."""
        self.step.h[:] = step
        if self.parallel:
            with using(self.threads):
                square = advance(self.memory, span, stages, True)
        else:
            square = advance(self.memory, span, stages, None)
        return math.sqrt(square / self.problem.tokens) / self.tolerance

    def _size(self, change: FloatArray) -> float:
        return control.scaled_error(change, change, change, self.problem.components, self.tolerance, 0.0)

    def state(self) -> FloatArray:
        return self.step.y[: self.start.size].reshape(self.start.shape)

    def place(self, state: FloatArray) -> None:
        self.step.y[: self.start.size] = state.reshape(-1)

    def slopes(self) -> FloatArray:
        return self.step.k[:, : self.start.size].reshape(-1, *self.start.shape)

    def begin(self, t: float) -> None:
        self._advance((t, t), (0, 1), 0.0)

    def speed(self) -> float:
        return self._size(self.slopes()[0])

    def bend(self, trial: float) -> float:
        # The second stage is an Euler step of a_21 h away.
        self._advance((0.0, trial), (1, 2), trial / self.tableau.a[1, 0])
        first, second = self.slopes()[:2]
        return self._size(second - first)

    def advance(self, t: float, step: float, latest: float) -> float:
        return self._advance((t, latest), (1, self.tableau.stages), step)

    def accept(self, t: float, step: float, end: float, recorder: march.Recorder) -> None:
        if recorder.wants(end):
            new = self.step.new[: self.start.size].reshape(self.start.shape)
            polynomial = partial(march.polynomial, self.tableau, self.state(), step, self.slopes())
            recorder.step(t, step, end, new, polynomial)
        self.step.y[:] = self.step.new
        self.step.k[0] = self.step.k[-1]
