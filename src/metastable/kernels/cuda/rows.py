"""Work per row around the pair sums: normalise tokens, form queries, add up partial sums, apply V and the norm.

All of it is O(tokens dim^2) and runs one thread per token.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from metastable.kernels.cuda.intrinsics import cuda, exp2_double, exp2_single

PLAIN, PRE, PERI, UNIT = 0, 1, 2, 3
"""How a norm turns the attention sum A into a velocity: `factor P A`, `PreLN`, `PeriLN`, `factor P A / |A|` (NGPT)."""
KINDS = {(0.0, 0.0, 0.0): PLAIN, (1.0, 0.0, 1.0): PRE, (1.0, 1.0, 1.0): PERI, (0.0, 1.0, 0.0): UNIT}
"""The same by `radius_power`, `length_power` and `radial` of the norm's law."""


def make_prepare(real, dim: int, pad: int):
    """Kernel `prepare(y, x)`: unit vectors of the packed states y (tokens, width) into x (tokens * pad)."""

    @cuda.jit
    def prepare(y, x):
        token = np.int32(cuda.grid(1))
        if token < y.shape[0]:
            square = 0.0
            for i in range(dim):
                square += y[token, i] * y[token, i]
            inverse = 1.0 / math.sqrt(square)
            for i in range(dim):
                x[token * np.int32(pad) + i] = real(y[token, i] * inverse)
            for i in range(dim, pad):
                x[token * np.int32(pad) + i] = real(0)

    return prepare


def make_ask(real, dim: int, pad: int):
    """Kernel `ask(x, matrices, head, first, query, shift)`: q = M^T x with `M = matrices[head, 0]`, and its length as shift."""

    @cuda.jit
    def ask(x, matrices, head, first, query, shift):
        token = np.int32(first + cuda.grid(1))
        if token < shift.shape[0]:
            square = real(0)
            for i in range(dim):
                value = real(0)
                for j in range(dim):
                    value += matrices[head, 0, j, i] * x[token * np.int32(pad) + j]
                query[token * np.int32(pad) + i] = value
                square += value * value
            for i in range(dim, pad):
                query[token * np.int32(pad) + i] = real(0)
            shift[token] = real(math.sqrt(square))

    return ask


def make_largest(real, dim: int, pad: int):
    """Kernel `largest(x, query, intervals, slope, frozen, first, shift)`: the largest logit of every row as shift.

    Needed only where the Cauchy-Schwarz bound may lie so far above it that all weights underflow.
    """

    @cuda.jit
    def largest(x, query, intervals, slope, frozen, first, shift):
        token = np.int32(first + cuda.grid(1))
        if token < shift.shape[0]:
            top = real(-math.inf)
            for interval in range(2):
                for j in range(intervals[token, 2 * interval], intervals[token, 2 * interval + 1]):
                    logit = -slope * real(abs(token - j))
                    for i in range(dim):
                        logit += query[token * np.int32(pad) + i] * x[j * pad + i]
                    top = max(top, logit)
            for j in range(frozen.shape[0]):
                if frozen[j, dim] > real(0):
                    logit = real(0)
                    for i in range(dim):
                        logit += query[token * np.int32(pad) + i] * frozen[j, i]
                    top = max(top, logit)
            shift[token] = top

    return largest


def make_combine(real, dim: int, pad: int):
    """Kernel that adds V times the attention of one head to `drift` (tokens, dim).

    `partial` (chunks, dim + 1, tokens) holds weighted sums of tokens and of weights; `frozen` (m, dim + 1) frozen tokens with
    their weight in the last column. `counts` (tokens,) is empty for softmax, else the number of visible tokens
    plus frozen weights.
    """
    exp2 = exp2_single if real is np.float32 else exp2_double
    number = numba.float32 if real is np.float32 else numba.float64

    @cuda.jit
    def combine(partial, query, shift, frozen, matrices, head, counts, first, drift):
        token = np.int32(first + cuda.grid(1))
        if token >= shift.shape[0]:
            return
        total = cuda.local.array(dim, number)
        weight = real(0)
        for i in range(dim):
            total[i] = real(0)
        for piece in range(partial.shape[0]):
            for i in range(dim):
                total[i] += partial[piece, i, token]
            weight += partial[piece, dim, token]
        for j in range(frozen.shape[0]):
            logit = -shift[token]
            for i in range(dim):
                logit += query[token * np.int32(pad) + i] * frozen[j, i]
            w = frozen[j, dim] * exp2(logit)
            weight += w
            for i in range(dim):
                total[i] += w * frozen[j, i]
        if counts.shape[0] > 0:
            weight = counts[token] / exp2(shift[token])
        for i in range(dim):
            value = real(0)
            for j in range(dim):
                value += matrices[head, 1, i, j] * total[j]
            if head == 0:
                drift[token, i] = value / weight
            else:
                drift[token, i] += value / weight

    return combine


def make_finish(real, dim: int, pad: int):
    """Kernel `finish(y, x, drift, kind, factor, first, out)`: the velocity of the packed state, by the norm `kind`."""

    @cuda.jit
    def finish(y, x, drift, kind, factor, first, out):
        token = np.int32(first + cuda.grid(1))
        if token >= y.shape[0]:
            return
        along, square = 0.0, 0.0
        for i in range(dim):
            value = np.float64(drift[token, i])
            along += np.float64(x[token * np.int32(pad) + i]) * value
            square += value * value
        length = math.sqrt(square) if square > 0.0 else 1.0
        speed = factor
        radial = 0.0
        if kind == np.int32(PRE):
            speed = 1.0 / y[token, dim]
            radial = along
        elif kind == np.int32(PERI):
            speed = 1.0 / (y[token, dim] * length)
            radial = along / length
        elif kind == np.int32(UNIT):
            speed = factor / length
        for i in range(dim):
            tangent = np.float64(drift[token, i]) - along * np.float64(x[token * np.int32(pad) + i])
            out[token, i] = speed * tangent
        if out.shape[1] > dim:
            out[token, dim] = radial

    return finish
