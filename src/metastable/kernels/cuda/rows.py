"""Work per row around the pair sums: normalise tokens, form queries, add up partial sums, apply V and the norm.

All of it is O(tokens dim^2) and runs one thread per token.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from metastable.kernels.cuda.intrinsics import Arithmetic, cuda
from metastable.kernels.cuda.sums import make_ask, make_inverse_length
from metastable.model.norms import Law


class RowKernels(NamedTuple):
    """Kernels for tokens in R^dim that lie `pad` numbers apart in `x` and `query`; rows below `first` are left alone.

    - `prepare(y, x)`: unit vectors of the packed states y (tokens, width).
    - `ask(x, matrices, head, first, query, shift)`: q = M^T x with `M = matrices[head, 0]`, and its length as shift.
    - `largest(x, query, intervals, slope, frozen, first, shift)`: the largest logit of every row as shift. Needed only where the
      Cauchy-Schwarz bound may lie so far above it that all weights underflow.
    - `combine(partial, query, shift, frozen, matrices, head, counts, first, drift)`: V times the attention of one head, added to
      `drift` (tokens, dim). `partial` (chunks, dim + 1, tokens) holds weighted sums of tokens and of weights; `frozen`
      (m, dim + 1) frozen tokens with their weight in the last column. `counts` (tokens,) is empty for softmax, else what
      its weights are divided by (`reference.log_divisors`).
    """

    prepare: Any
    ask: Any
    largest: Any
    combine: Any


@lru_cache(maxsize=64)
def make_kernels(arithmetic: Arithmetic, dim: int, pad: int) -> RowKernels:
    """The kernels before and after the pair sums."""
    real, number, exp2 = arithmetic.real, arithmetic.number, arithmetic.exp2
    inverse_length, ask_row = make_inverse_length(dim), make_ask(arithmetic, dim)

    @cuda.jit
    def prepare(y, x):
        token = np.int32(cuda.grid(1))
        if token < y.shape[0]:
            inverse = inverse_length(y[token], 0)
            for i in range(dim):
                x[token * np.int32(pad) + i] = real(y[token, i] * inverse)
            for i in range(dim, pad):
                x[token * np.int32(pad) + i] = real(0)

    @cuda.jit
    def ask(x, matrices, head, first, query, shift):
        token = np.int32(first + cuda.grid(1))
        if token < shift.shape[0]:
            shift[token] = ask_row(x, token * np.int32(pad), matrices, head, query)
            for i in range(dim, pad):
                query[token * np.int32(pad) + i] = real(0)

    @cuda.jit
    def largest(x, query, intervals, slope, frozen, first, shift):
        token = np.int32(first + cuda.grid(1))
        if token < shift.shape[0]:
            top = real(-math.inf)
            for interval in range(2):
                for j in range(intervals[token, interval, 0], intervals[token, interval, 1]):
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

    return RowKernels(prepare, ask, largest, combine)


@lru_cache(maxsize=64)
def make_finish(dim: int, pad: int, law: Law):
    """Kernel `finish(y, x, drift, pace, first, out)`: the velocity of the packed state, by the powers of the norm's `law`.

    `pace` is the part of the law that depends on depth alone, amplitude (t + 1)^-decay. Where A = 0 nothing moves.
    """
    radius_power, length_power, radial = law.radius_power, law.length_power, law.radial

    @cuda.jit
    def finish(y, x, drift, pace, first, out):
        token = np.int32(first + cuda.grid(1))
        if token >= y.shape[0]:
            return
        along, square = 0.0, 0.0
        for i in range(dim):
            value = np.float64(drift[token, i])
            along += np.float64(x[token * np.int32(pad) + i]) * value
            square += value * value
        length = 1.0
        if length_power != 0.0 and square > 0.0:
            length = math.sqrt(square) if length_power == 1.0 else math.pow(square, 0.5 * length_power)
        scale = length
        if radius_power != 0.0:
            radius = y[token, dim]
            scale = (radius if radius_power == 1.0 else math.pow(radius, radius_power)) * length
        for i in range(dim):
            tangent = np.float64(drift[token, i]) - along * np.float64(x[token * np.int32(pad) + i])
            out[token, i] = pace / scale * tangent
        if out.shape[1] > dim:
            out[token, dim] = radial * (pace * along / length)

    return finish
