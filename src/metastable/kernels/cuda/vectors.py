"""Vector arithmetic of the integrator on packed states that stay on the device."""

from __future__ import annotations

import math

import numba
import numpy as np

from metastable.kernels.cuda.device import SIMULATED
from metastable.kernels.cuda.intrinsics import cuda

THREADS = 8 if SIMULATED else 256


def make_advance():
    """Kernel `advance(y, stages, weights, row, count, h, first, out)`: out = y + h sum_{i < count} weights[row, i] stages[i].

    Rows below `first` are left alone.
    """

    @cuda.jit
    def advance(y, stages, weights, row, count, h, first, out):
        item = cuda.grid(1)
        width = y.shape[1]
        token, column = item // width, item % width
        if token < y.shape[0] and token >= first:
            total = 0.0
            for i in range(count):
                total += weights[row, i] * stages[i, token, column]
            out[token, column] = y[token, column] + h * total

    return advance


def make_square_error():
    """Kernel that adds up squared scaled errors of tokens, one number per block, in a fixed order.

    `sums[block] = sum_k |h sum_i weights[i] stages[i, k] / scale|^2` over the tokens from `first` on, with the scales of
    `integrate.control.scaled_error`: `atol + rtol` for directions, `atol + rtol r` for a radius.
    """

    @cuda.jit
    def square_error(y, new, stages, weights, h, dim, rtol, atol, first, sums):
        shared = cuda.shared.array(THREADS, numba.float64)
        thread = cuda.threadIdx.x
        square = 0.0
        token = first + cuda.grid(1)
        while token < y.shape[0]:
            for column in range(y.shape[1]):
                error = 0.0
                for i in range(weights.shape[0]):
                    error += weights[i] * stages[i, token, column]
                scale = atol + rtol
                if column >= dim:
                    scale = atol + rtol * max(abs(y[token, column]), abs(new[token, column]))
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

    return square_error


def make_retract():
    """Kernel `retract(y, dim, first)`: unit directions for the tokens from `first` on."""

    @cuda.jit
    def retract(y, dim, first):
        token = first + cuda.grid(1)
        if token < y.shape[0]:
            square = 0.0
            for i in range(dim):
                square += y[token, i] * y[token, i]
            inverse = 1.0 / math.sqrt(square)
            for i in range(dim):
                y[token, i] *= inverse

    return retract


def blocks(items: int) -> int:
    """Blocks of `THREADS` that cover so many items."""
    return max(1, -(-items // THREADS))


REDUCTION_BLOCKS = 2 if SIMULATED else 256
"""Blocks of the error norm: fixed, so that sums are added in the same order whatever the GPU."""

STAGE_TYPE = np.float64
"""States and slopes are kept in double precision between launches."""
