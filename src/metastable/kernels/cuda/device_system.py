"""One system on the device: its state and slopes stay there between the stages of a Runge-Kutta step.

What `integrate.march` marches (its `System`); only sizes and wanted outputs come to the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cuda import device
from metastable.kernels.cuda.device import SIMULATED, THREADS, blocks
from metastable.kernels.cuda.intrinsics import cuda

REDUCTION_BLOCKS = 2 if SIMULATED else 256
"""Blocks of the error norm: fixed, so that sums are added in the same order whatever the GPU."""


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, Any, Any]:
    """Vector arithmetic on packed states (tokens, width), in double precision.

    - `advance(y, slopes, weights, row, count, h, out)`: out = y + h sum_{i < count} weights[row, i] slopes[i].
    - `square_error(y, new, slopes, weights, h, dim, rtol, atol, sums)`: sums[block] of the squares of h sum_i weights[i] slopes[i, k]
      over the scales of `integrate.control.scaled_error`: `atol + rtol` for directions, `atol + rtol r` for a radius. One number
      per block, in a fixed order; NaN where a radius of `new` is not above zero.
    - `retract(y, dim)`: unit directions.
    """

    @cuda.jit
    def advance(y, slopes, weights, row, count, h, out):
        item = cuda.grid(1)
        width = y.shape[1]
        token, column = item // width, item % width
        if token < y.shape[0]:
            total = 0.0
            for i in range(count):
                total += weights[row, i] * slopes[i, token, column]
            out[token, column] = y[token, column] + h * total

    @cuda.jit
    def square_error(y, new, slopes, weights, h, dim, rtol, atol, sums):
        shared = cuda.shared.array(THREADS, numba.float64)
        thread = cuda.threadIdx.x
        square = 0.0
        token = cuda.grid(1)
        while token < y.shape[0]:
            for column in range(y.shape[1]):
                error = 0.0
                for i in range(weights.shape[0]):
                    error += weights[i] * slopes[i, token, column]
                scale = atol + rtol
                if column >= dim:
                    scale = atol + rtol * max(abs(y[token, column]), abs(new[token, column]))
                    if not new[token, column] > 0.0:
                        error = math.nan  # a radius that reaches zero has no direction: the solution ends there
                error *= h / scale
                square += error * error
            token += cuda.gridsize(1)
        shared[thread] = square
        cuda.syncthreads()
        half = THREADS // 2
        while half > 0:
            if thread < half:
                shared[thread] += shared[thread + half]
            cuda.syncthreads()
            half //= 2
        if thread == 0:
            sums[cuda.blockIdx.x] = shared[0]

    @cuda.jit
    def retract(y, dim):
        token = cuda.grid(1)
        if token < y.shape[0]:
            square = 0.0
            for i in range(dim):
                square += y[token, i] * y[token, i]
            inverse = 1.0 / math.sqrt(square)
            for i in range(dim):
                y[token, i] *= inverse

    return advance, square_error, retract


class DeviceSystem:
    """A state `y` that stays on the device, with its trial state `new` and the slopes of the stages (an `integrate.march.System`).

    `velocity` is a right-hand side of `engine`, `tableau` the method (`integrate.tableau.Tableau`), `accuracy` has rtol and atol, and
    `polynomial(tableau, y, step, slopes, out)` makes dense output on the host.
    """

    def __init__(
        self, velocity: Any, start: FloatArray, tableau: Any, accuracy: Any, polynomial: Callable[..., FloatArray]
    ) -> None:
        self.velocity, self.tableau, self.accuracy, self.polynomial = velocity, tableau, accuracy, polynomial
        stages, tokens = tableau.stages, len(start)
        purpose, fix = f"a step of {tokens} tokens", "use fewer tokens or engine='cpu'"
        with device.allocating((stages + 2) * start.nbytes, purpose, fix):
            self.y, self.new = cuda.to_device(start), cuda.to_device(start)
            # Weights may be zero where no slope was evaluated yet, but zero times what was in memory before may be NaN.
            self.slopes = cuda.to_device(np.zeros((stages, *start.shape)))
            self.weights, self.error = cuda.to_device(tableau.a), cuda.to_device(tableau.error)
            first, second = np.eye(2, stages)
            self.euler, self.difference = cuda.to_device(first[None]), cuda.to_device(second - first)
            self.sums = cuda.device_array(REDUCTION_BLOCKS, np.float64)
        self._slope = [self.slopes[i] for i in range(stages)]
        self._advance, self._square, self._retract = _kernels()

    def _evaluate(self, t: float, stage: int, weights: Any, row: int, h: float) -> None:
        """Slope of `stage` at depth t, a step h along a row of `weights` away from the state."""
        count, grid = np.int32(stage), (blocks(self.y.size), THREADS)
        self._advance[grid](self.y, self.slopes, weights, np.int32(row), count, float(h), self.new)
        self.velocity.evaluate(t, self.new, self._slope[stage])

    def _size(self, weights: Any, new: Any, h: float = 1.0) -> float:
        """Root mean square over tokens of h times a combination of slopes, over the tolerance."""
        dim, rtol, atol = np.int32(self.velocity.model.dim), float(self.accuracy.rtol), float(self.accuracy.atol)
        self._square[REDUCTION_BLOCKS, THREADS](self.y, new, self.slopes, weights, float(h), dim, rtol, atol, self.sums)
        return float(np.sqrt(self.sums.copy_to_host().sum() / len(self.y)))

    def state(self) -> FloatArray:
        return self.y.copy_to_host()

    def begin(self, t: float) -> None:
        self.velocity.evaluate(t, self.y, self._slope[0])

    def speed(self) -> float:
        return self._size(self.euler[0], self.y)

    def bend(self, trial: float) -> float:
        self._evaluate(trial, 1, self.euler, 0, trial)
        return self._size(self.difference, self.y)

    def advance(self, t: float, step: float, latest: float) -> float:
        for stage in range(1, self.tableau.stages):
            self._evaluate(min(t + float(self.tableau.c[stage]) * step, latest), stage, self.weights, stage, step)
        return self._size(self.error, self.new, step)

    def accept(self, t: float, step: float, end: float, recorder: Any) -> None:
        self._retract[blocks(len(self.y)), THREADS](self.new, np.int32(self.velocity.model.dim))
        if recorder.wants(end):
            y, new, slopes = self.y.copy_to_host(), self.new.copy_to_host(), self.slopes.copy_to_host()
            recorder.step(t, step, end, new, lambda out: self.polynomial(self.tableau, y, step, slopes, out))
        self.y, self.new = self.new, self.y
        self._slope[0].copy_to_device(self._slope[-1])
