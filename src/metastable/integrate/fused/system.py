"""One system in compiled code: the stages of a step, its error and its polynomial. `integrate.march` says which steps.

Long arrays are cut into chunks of a fixed number, shared among threads: the numbers do not depend on how many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import prange

from metastable._checks import FloatArray
from metastable.integrate import march
from metastable.integrate.fused.stages import Method, make_step, method_of, square_sum, stage_state
from metastable.integrate.solution import DEGREE
from metastable.integrate.tableau import TSIT5
from metastable.kernels.cpu import system as kernels
from metastable.kernels.cpu.compiled import aligned_array, compiled, inner, parallel
from metastable.kernels.cpu.problem import Problem
from metastable.kernels.cpu.threads import using
from metastable.kernels.cpu.vector import LANES, fill, load, store, total

CHUNKS = 64
"""Pieces of long arrays."""

LONG = 65536
"""Entries from which threads pay for sums of arrays."""

METHOD = method_of(TSIT5)
EULER = METHOD._replace(a=np.array([[0.0, 0.0], [1.0, 0.0]]), c=np.array([0.0, 1.0]))
"""The method, and the step that measures how fast the velocity changes at the start."""

SPEED, BEND = np.array([1.0]), np.array([-1.0, 1.0])
"""Weights of the stages whose size is the speed, and of those whose size is the change of velocity."""


@inner
def _share(step, stage, weights, partial, chunk):
    """A chunk of the argument of a stage; or, for a negative stage, of the sum of squares into `partial`."""
    vectors = step.y.size // LANES
    chunks = partial.size // LANES
    first = vectors * chunk // chunks * LANES
    last = vectors * (chunk + 1) // chunks * LANES
    if stage >= 0:
        stage_state(step, weights, stage, first, last)
    else:
        store(partial, chunk * LANES, square_sum(step, weights, load(step.h, 0), first, last))


@parallel
def _share_parallel(step, stage, weights, partial):
    for chunk in prange(partial.size // LANES):
        _share(step, stage, weights, partial, chunk)


@inner
def _shares(step, stage, weights, partial, threads):
    """All chunks."""
    if threads is not None and step.y.size > LONG:
        _share_parallel(step, stage, weights, partial)
    else:
        for chunk in range(partial.size // LANES):
            _share(step, stage, weights, partial, chunk)


@inner
def _retract(problem, y):
    """Unit rows (nothing to do for angles)."""
    dim = problem.dim
    if problem.components == 1:
        return
    for token in range(problem.tokens):
        square = 0.0
        for a in range(dim):
            square += y[token * dim + a] ** 2
        inverse = 1.0 / math.sqrt(square)
        for a in range(dim):
            y[token * dim + a] *= inverse


@compiled
def advance(system, step, method, span, stages, weights, partial, threads):
    """Evaluate the stages first..last - 1 (`stages`) of the step from t, none later than `latest` (`span`), each at `new`.

    Returns the sum of squares of h sum_j weights_j k_j, added up in as many chunks as `partial` has vectors. After the last
    stage `new` is retracted. `threads`: as in `kernels.cpu.system.velocity`.
    """
    t, latest = span
    for stage in range(stages[0], stages[1]):
        _shares(step, stage, method.a[stage], partial, threads)
        time = min(t + method.c[stage] * step.h[0], latest)
        kernels.velocity(system, time, step.new, step.k[stage], threads)
    _shares(step, -1, weights, partial, threads)
    result = fill(0.0)
    for chunk in range(partial.size // LANES):
        result = result + load(partial, chunk * LANES)
    if stages[1] == method.c.size:
        _retract(system.problem, step.new)
    return total(result)


@compiled
def keep_polynomial(step, method, piece):
    """Coefficients of the dense output of a step into `piece` (powers + 1, tokens * components)."""
    for i in range(piece.shape[1]):
        piece[0, i] = step.y[i]
        for power in range(piece.shape[0] - 1):
            change = 0.0
            for stage in range(method.c.size):
                change += method.dense[stage, power] * step.k[stage, i]
            piece[power + 1, i] = step.h[0] * change


@dataclass
class System:
    """A state in its chart, (tokens, components); a `march.System`."""

    problem: Problem
    start: FloatArray
    tolerance: float
    threads: int

    def __post_init__(self) -> None:
        self.system = kernels.make(self.problem)
        self.step = make_step(TSIT5, self.start.size)
        self.step.y[: self.start.size] = self.start.reshape(-1)
        self.parallel = True if self.threads > 1 and kernels.pays(self.problem) else None
        self.one, self.many = aligned_array(LANES), aligned_array(CHUNKS * LANES)

    def _advance(
        self,
        span: tuple[float, float],
        stages: tuple[int, int],
        step: float,
        weights: FloatArray,
        method: Method = METHOD,
    ) -> float:
        """`advance`, as a root mean square over tokens in units of the tolerance."""
        self.step.h[:] = step
        partial = self.many if weights is METHOD.error else self.one
        with using(self.threads if self.parallel else None):
            square = advance(self.system, self.step, method, span, stages, weights, partial, self.parallel)
        return math.sqrt(square / self.problem.tokens) / self.tolerance

    def state(self) -> FloatArray:
        return self.step.y[: self.start.size].reshape(self.start.shape)

    def begin(self, t: float) -> None:
        self._advance((t, t), (0, 1), 0.0, SPEED)

    def speed(self) -> float:
        return self._advance((0.0, 0.0), (0, 0), 1.0, SPEED)

    def bend(self, trial: float) -> float:
        self._advance((0.0, trial), (1, 2), trial, BEND, EULER)
        return self._advance((0.0, 0.0), (0, 0), 1.0, BEND)

    def advance(self, t: float, step: float, latest: float) -> float:
        return self._advance((t, latest), (1, TSIT5.stages), step, METHOD.error)

    def accept(self, t: float, step: float, end: float, recorder: march.Recorder) -> None:
        if recorder.wants(end):
            new = self.step.new[: self.start.size].reshape(self.start.shape)
            recorder.step(t, step, end, new, self._polynomial)
        self.step.y[:] = self.step.new
        self.step.k[0] = self.step.k[-1]

    def _polynomial(self) -> FloatArray:
        piece = np.empty((DEGREE + 1, self.start.size))
        keep_polynomial(self.step, METHOD, piece)
        return piece.reshape(DEGREE + 1, *self.start.shape)
