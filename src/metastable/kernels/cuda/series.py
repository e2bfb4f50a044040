"""Causal attention on the circle in O(tokens modes) on the GPU: Fourier series between chunks, direct sums inside them.

With z_m = (cos m angle, sin m angle) and modified Bessel functions I_m,

    exp(beta (cos a - 1)) = sum_m c_m cos(m a),                    c_0 = e^-beta I_0, c_m = 2 e^-beta I_m,
    exp(beta (cos a - 1)) sin a = sum_m b_m sin(m a),              b_m = e^-beta (I_{m-1} - I_{m+1}),

so sums over all earlier tokens are sums over modes of prefix sums of z_m. The tokens are cut into chunks of `CHUNK`. Prefix
sums are formed per chunk (`sums`, then a scan over chunks); each token adds the series over the chunks before its own
and direct sums over its own chunk, so that no scan inside a chunk is needed. Accuracy: about 1e-16 times the number of
tokens, not relative to the force: see `select.LONG_HORIZON`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cuda.device import SIMULATED
from metastable.kernels.cuda.intrinsics import Arithmetic, cuda
from metastable.kernels.fourier import modes_for

CHUNK = 8 if SIMULATED else 64
"""Tokens per chunk, and threads per block."""

BATCH = 4 if SIMULATED else 16
"""Modes that are summed at a time; two numbers each."""

MODE_TOLERANCE = 1e-15
"""Sum of the coefficients that are cut off. Saddles amplify errors, so this is far below the tolerance of a run."""

SMALLEST_BETA = 1e-20
"""Stands for beta = 0: what it changes is far below rounding."""


def coefficients(beta: float) -> FloatArray:
    """`c_m` and `b_m` for m = 0 .. modes, shape (2, modes + 1); the tails that are left out sum to less than `MODE_TOLERANCE`."""
    _, weight = modes_for(max(beta, SMALLEST_BETA), MODE_TOLERANCE)
    bessel = np.append(weight / 2.0, 0.0)
    bessel[0] = weight[0]
    return np.stack([weight, np.append(0.0, bessel[:-2] - bessel[2:])])


@lru_cache(maxsize=4)
def make_kernels(arithmetic: Arithmetic) -> tuple[Any, ...]:
    """The kernels of a velocity, in order; x holds (cos, sin) pairs, `table` (chunks, 2 modes) sums of z_m.

    - `sums(x, modes, table)`: over each chunk.
    - `totals(table, length, segments)`, `offsets(segments)`, `prefix(table, length, segments)`: over the chunks before each one.
      Segments of chunks are summed, the segments are scanned, and each segment is scanned from its offset.
    - `evaluate(x, table, series, shift, first, drift)`: the attention sum minus its part along the token, (tokens, 2).
      `series` (2, modes + 1) are the coefficients, `shift` is beta log2(e).
    """
    real, number, exp2 = arithmetic.real, arithmetic.number, arithmetic.exp2
    values, line, quarters = 2 * BATCH, CHUNK + 1, 4
    storage, share, pairs = values * line, CHUNK // quarters, 2 * CHUNK

    @cuda.jit
    def sums(x, modes, table):
        shared = cuda.shared.array(storage, number)
        pieces = cuda.shared.array((values, quarters), number)
        thread = np.int32(cuda.threadIdx.x)
        chunk = np.int32(cuda.blockIdx.x)
        token = np.int32(chunk * np.int32(CHUNK) + thread)
        c1, s1, present = real(0), real(0), real(0)
        if token < x.shape[0] // 2:
            c1, s1, present = x[2 * token], x[2 * token + 1], real(1)
        c, s = present, real(0)
        mode = np.int32(0)
        while mode < modes:
            for b in range(BATCH):
                c, s = c * c1 - s * s1, s * c1 + c * s1
                shared[np.int32(2 * b * line) + thread] = c
                shared[np.int32((2 * b + 1) * line) + thread] = s
            cuda.syncthreads()
            item = thread
            while item < values * quarters:
                value, quarter = np.int32(item // quarters), np.int32(item % quarters)
                total = real(0)
                for i in range(share):
                    total += shared[value * np.int32(line) + quarter * np.int32(share) + i]
                pieces[value, quarter] = total
                item += np.int32(CHUNK)
            cuda.syncthreads()
            item = thread
            while item < values:
                if 2 * mode + item < 2 * modes:
                    early, late = pieces[item, 0] + pieces[item, 1], pieces[item, 2] + pieces[item, 3]
                    table[chunk, 2 * mode + item] = early + late
                item += np.int32(CHUNK)
            mode = np.int32(mode + np.int32(BATCH))

    @cuda.jit
    def totals(table, length, segments):
        column, segment = np.int32(cuda.grid(1)), np.int32(cuda.blockIdx.y)
        if column < table.shape[1]:
            total = real(0)
            for chunk in range(segment * length, min((segment + 1) * length, table.shape[0])):
                total += table[chunk, column]
            segments[segment, column] = total

    @cuda.jit
    def offsets(segments):
        column = np.int32(cuda.grid(1))
        if column < segments.shape[1]:
            running = real(0)
            for segment in range(segments.shape[0]):
                total = segments[segment, column]
                segments[segment, column] = running
                running += total

    @cuda.jit
    def prefix(table, length, segments):
        column, segment = np.int32(cuda.grid(1)), np.int32(cuda.blockIdx.y)
        if column < table.shape[1]:
            running = segments[segment, column]
            for chunk in range(segment * length, min((segment + 1) * length, table.shape[0])):
                total = table[chunk, column]
                table[chunk, column] = running
                running += total

    @cuda.jit
    def evaluate(x, table, series, shift, first, drift):
        shared = cuda.shared.array(pairs, number)
        thread, chunk = np.int32(cuda.threadIdx.x), np.int32(cuda.blockIdx.x)
        base = np.int32(chunk * np.int32(CHUNK))
        token = np.int32(base + thread)
        tokens = np.int32(x.shape[0] // 2)
        c1, s1 = real(0), real(0)
        if token < tokens:
            c1, s1 = x[2 * token], x[2 * token + 1]
        shared[2 * thread], shared[2 * thread + 1] = c1, s1
        cuda.syncthreads()
        if token >= tokens or token < first:
            return
        weight = series[0, 0] * real(base)
        force = real(0)
        c, s = real(1), real(0)
        for mode in range(1, series.shape[1]):
            c, s = c * c1 - s * s1, s * c1 + c * s1
            cosines, sines = table[chunk, 2 * mode - 2], table[chunk, 2 * mode - 1]
            weight += series[0, mode] * (c * cosines + s * sines)
            force += series[1, mode] * (c * sines - s * cosines)
        # Not `sums.make_gather`: written out, the compiler unrolls the loop, which is half of the time of short sequences.
        weight += real(1)
        for j in range(thread):
            cj, sj = shared[2 * j], shared[2 * j + 1]
            w = exp2(shift * (cj * c1 + sj * s1) - shift)
            weight += w
            force += w * (sj * c1 - cj * s1)
        force /= weight
        drift[token, 0] = -force * s1
        drift[token, 1] = force * c1

    return sums, totals, offsets, prefix, evaluate
