"""Attention on the circle in O(tokens modes) on the GPU: Fourier series between chunks and direct sums inside them under a causal
mask, one total of all tokens under full attention.

With z_m = (cos m angle, sin m angle) and modified Bessel functions I_m,

    exp(beta (cos a - 1)) = sum_m c_m cos(m a),                    c_0 = e^-beta I_0, c_m = 2 e^-beta I_m,
    exp(beta (cos a - 1)) sin a = sum_m b_m sin(m a),              b_m = e^-beta (I_{m-1} - I_{m+1}),
    exp(beta (cos a - 1)) cos a = sum_m d_m cos(m a),              d_0 = e^-beta I_1, d_m = e^-beta (I_{m-1} + I_{m+1}),

so sums over all earlier tokens are sums over modes of prefix sums of z_m. The tokens are cut into chunks of `CHUNK`. Prefix
sums are formed per chunk (`sums`, then a scan over chunks); each token adds the series over the chunks before its own
and direct sums over its own chunk, so that no scan inside a chunk is needed. Tokens that see one another wholly share one
total, and nothing is scanned. The part along a token (d_m) is summed only for norms that ask for it. Accuracy: about 1e-16
times the number of tokens, not relative to the force: see `select.LONG_HORIZON`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cuda.device import SIMULATED
from metastable.kernels.cuda.intrinsics import Arithmetic, cuda
from metastable.kernels.fourier import modes_for

CHUNK = 8 if SIMULATED else 64
"""Tokens per chunk, and threads per block."""

BATCH = 4 if SIMULATED else 16
"""Modes that are summed at a time; two numbers each."""

QUARTERS = 4
"""Parts in which the threads of a block add up what they have put down."""

VALUES, LINE = 2 * BATCH, CHUNK + 1
STORAGE = VALUES * LINE
"""Shared memory of a block: a line for every value, one longer than there are threads, so that they meet no bank twice."""

ROWS = 2 if SIMULATED else 4
"""Tokens per thread where all see the same total."""

BLOCK = ROWS * CHUNK
"""Tokens per block there."""

MODE_TOLERANCE = 1e-15
"""Sum of the coefficients that are cut off. Saddles amplify errors, so this is far below the tolerance of a run."""

SMALLEST_BETA = 1e-20
"""Stands for beta = 0: what it changes is far below rounding."""


def coefficients(beta: float) -> FloatArray:
    """`c_m`, `b_m` and `d_m` for m = 0 .. modes, shape (3, modes + 1); the tails that are left out sum to less than
    `MODE_TOLERANCE`."""
    _, weight = modes_for(max(beta, SMALLEST_BETA), MODE_TOLERANCE)
    bessel = np.append(weight / 2.0, 0.0)
    bessel[0] = weight[0]
    across, along = bessel[:-2] - bessel[2:], bessel[:-2] + bessel[2:]
    return np.stack([weight, np.append(0.0, across), np.append(bessel[1], along)])


@lru_cache(maxsize=2)
def make_fold(arithmetic: Arithmetic) -> Any:
    """A part of kernels: `fold(shared, quarters, thread, mode, modes, row)` adds up what the threads of a block have for each of the
    2 `BATCH` values of modes from `mode` on, and writes it to its `row` of the table. The block has just been synchronised."""
    real = arithmetic.real

    @cuda.jit(device=True)
    def fold(shared, quarters, thread, mode, modes, row):
        item = thread
        while item < VALUES * QUARTERS:
            value, quarter = np.int32(item // QUARTERS), np.int32(item % QUARTERS)
            some = real(0)
            for i in range(CHUNK // QUARTERS):
                some += shared[value * np.int32(LINE) + quarter * np.int32(CHUNK // QUARTERS) + i]
            quarters[value, quarter] = some
            item += np.int32(CHUNK)
        cuda.syncthreads()
        item = thread
        while item < VALUES:
            if 2 * mode + item < 2 * modes:
                early, late = quarters[item, 0] + quarters[item, 1], quarters[item, 2] + quarters[item, 3]
                row[2 * mode + item] = early + late
            item += np.int32(CHUNK)

    return fold


@lru_cache(maxsize=8)
def make_kernels(arithmetic: Arithmetic, lengths: bool = False) -> tuple[Any, ...]:
    """The kernels of a velocity, in order; x holds (cos, sin) pairs, `table` (chunks, 2 modes) sums of z_m.

    - `sums(x, modes, table)`: over each chunk.
    - `totals(table, length, segments)`, `offsets(segments)`, `prefix(table, length, segments)`: over the chunks before each one.
      Segments of chunks are summed, the segments are scanned, and each segment is scanned from its offset.
    - `evaluate(x, table, series, shift, first, drift)`: the attention sum (tokens, 2), without its part along the token unless
      `lengths`. `series` (3, modes + 1) are the coefficients, `shift` is beta log2(e).
    """
    real, number, exp2 = arithmetic.real, arithmetic.number, arithmetic.exp2
    fold, pairs = make_fold(arithmetic), 2 * CHUNK

    @cuda.jit
    def sums(x, modes, table):
        shared = cuda.shared.array(STORAGE, number)
        pieces = cuda.shared.array((VALUES, QUARTERS), number)
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
                shared[np.int32(2 * b * LINE) + thread] = c
                shared[np.int32((2 * b + 1) * LINE) + thread] = s
            cuda.syncthreads()
            fold(shared, pieces, thread, mode, modes, table[chunk])
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
        along = series[2, 0] * real(base) + real(1)
        c, s = real(1), real(0)
        for mode in range(1, series.shape[1]):
            c, s = c * c1 - s * s1, s * c1 + c * s1
            cosines, sines = table[chunk, 2 * mode - 2], table[chunk, 2 * mode - 1]
            weight += series[0, mode] * (c * cosines + s * sines)
            force += series[1, mode] * (c * sines - s * cosines)
            if lengths:
                along += series[2, mode] * (c * cosines + s * sines)
        # Not `sums.make_gather`: written out, the compiler unrolls the loop, which is half of the time of short sequences.
        weight += real(1)
        for j in range(thread):
            cj, sj = shared[2 * j], shared[2 * j + 1]
            w = exp2(shift * (cj * c1 + sj * s1) - shift)
            weight += w
            force += w * (sj * c1 - cj * s1)
            if lengths:
                along += w * (cj * c1 + sj * s1)
        force /= weight
        drift[token, 0] = -force * s1
        drift[token, 1] = force * c1
        if lengths:
            along /= weight
            drift[token, 0] += along * c1
            drift[token, 1] += along * s1

    return sums, totals, offsets, prefix, evaluate


class Total(NamedTuple):
    """Kernels of tokens that see one another wholly.

    - `gather(x, last, modes, table)`: sums of z_m over blocks of `BLOCK` of the first `last` tokens; x and table as above.
    - `collect(table, extra, total)`: the sum over all blocks and of `extra` (2 modes,), the frozen tokens.
    - `evaluate(x, total, series, count, fixed, first, last, drift)`: as above, for the tokens first..last-1; `count` is the number of
      tokens in the total (with the weights of the frozen ones), `fixed` what to divide by, or 0: the sum of weights.
    """

    gather: Any
    collect: Any
    evaluate: Any


@lru_cache(maxsize=8)
def make_total(arithmetic: Arithmetic, lengths: bool = False) -> Total:
    """The kernels of a velocity with one total, in order. A thread holds `ROWS` tokens: they share loads, and are added up before
    anything is written to shared memory."""
    real, number = arithmetic.real, arithmetic.number
    fold = make_fold(arithmetic)

    @cuda.jit
    def gather(x, last, modes, table):
        shared = cuda.shared.array(STORAGE, number)
        pieces = cuda.shared.array((VALUES, QUARTERS), number)
        c1, s1 = cuda.local.array(ROWS, number), cuda.local.array(ROWS, number)
        c, s = cuda.local.array(ROWS, number), cuda.local.array(ROWS, number)
        thread, block = np.int32(cuda.threadIdx.x), np.int32(cuda.blockIdx.x)
        for r in range(ROWS):
            token = np.int32(block * np.int32(BLOCK) + r * CHUNK + thread)
            c1[r], s1[r], c[r], s[r] = real(0), real(0), real(0), real(0)
            if token < last:
                c1[r], s1[r], c[r] = x[2 * token], x[2 * token + 1], real(1)
        mode = np.int32(0)
        while mode < modes:
            for b in range(BATCH):
                cosines, sines = real(0), real(0)
                for r in range(ROWS):
                    turned = c[r] * c1[r] - s[r] * s1[r]
                    s[r] = s[r] * c1[r] + c[r] * s1[r]
                    c[r] = turned
                    cosines += c[r]
                    sines += s[r]
                shared[np.int32(2 * b * LINE) + thread] = cosines
                shared[np.int32((2 * b + 1) * LINE) + thread] = sines
            cuda.syncthreads()
            fold(shared, pieces, thread, mode, modes, table[block])
            mode = np.int32(mode + np.int32(BATCH))

    @cuda.jit
    def collect(table, extra, total):
        shared = cuda.shared.array(CHUNK, number)
        thread, column = np.int32(cuda.threadIdx.x), np.int32(cuda.blockIdx.x)
        some = real(0)
        block = thread
        while block < table.shape[0]:
            some += table[block, column]
            block += np.int32(CHUNK)
        shared[thread] = some
        cuda.syncthreads()
        half = np.int32(CHUNK // 2)
        while half > 0:
            if thread < half:
                shared[thread] += shared[thread + half]
            cuda.syncthreads()
            half = np.int32(half // np.int32(2))
        if thread == 0:
            total[column] = shared[0] + extra[column]

    @cuda.jit
    def evaluate(x, total, series, count, fixed, first, last, drift):
        c1, s1 = cuda.local.array(ROWS, number), cuda.local.array(ROWS, number)
        c, s = cuda.local.array(ROWS, number), cuda.local.array(ROWS, number)
        weight, force = cuda.local.array(ROWS, number), cuda.local.array(ROWS, number)
        along = cuda.local.array(ROWS, number)
        base = np.int32(first + cuda.blockIdx.x * np.int32(BLOCK) + cuda.threadIdx.x)
        for r in range(ROWS):
            token = np.int32(base + r * CHUNK)
            c1[r], s1[r], c[r], s[r] = real(1), real(0), real(1), real(0)
            weight[r], force[r], along[r] = series[0, 0] * count, real(0), series[2, 0] * count
            if token < last:
                c1[r], s1[r] = x[2 * token], x[2 * token + 1]
        for mode in range(1, series.shape[1]):
            cosines, sines = total[2 * mode - 2], total[2 * mode - 1]
            heavy_cosines, heavy_sines = series[0, mode] * cosines, series[0, mode] * sines
            turned_cosines, turned_sines = series[1, mode] * cosines, series[1, mode] * sines
            for r in range(ROWS):
                turned = c[r] * c1[r] - s[r] * s1[r]
                s[r] = s[r] * c1[r] + c[r] * s1[r]
                c[r] = turned
                weight[r] += c[r] * heavy_cosines
                weight[r] += s[r] * heavy_sines
                force[r] += c[r] * turned_sines
                force[r] -= s[r] * turned_cosines
                if lengths:
                    along[r] += series[2, mode] * (c[r] * cosines + s[r] * sines)
        for r in range(ROWS):
            token = np.int32(base + r * CHUNK)
            if token < last:
                divisor = fixed if fixed > real(0) else weight[r]
                turn = force[r] / divisor
                drift[token, 0], drift[token, 1] = -turn * s1[r], turn * c1[r]
                if lengths:
                    drift[token, 0] += along[r] / divisor * c1[r]
                    drift[token, 1] += along[r] / divisor * s1[r]

    return Total(gather, collect, evaluate)
