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
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cuda.device import SIMULATED
from metastable.kernels.cuda.intrinsics import ARITHMETIC, Arithmetic, cuda
from metastable.kernels.cuda.tables import BATCH, CHUNK, LINE, QUARTERS, STORAGE, VALUES, make_fold
from metastable.kernels.fourier import mode_sums, modes_for
from metastable.kernels.minimax import LOG2E

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


@lru_cache(maxsize=8)
def make_gather(arithmetic: Arithmetic, rows: int) -> Any:
    """Kernel `gather(x, last, modes, table)`: sums of z_m over blocks of `rows * CHUNK` of the first `last` tokens; x holds (cos, sin)
    pairs, `table` (blocks, 2 modes). A thread adds up its `rows` tokens before anything is written to shared memory."""
    real, number = arithmetic.real, arithmetic.number
    fold = make_fold(arithmetic)

    @cuda.jit
    def gather(x, last, modes, table):
        shared = cuda.shared.array(STORAGE, number)
        pieces = cuda.shared.array((VALUES, QUARTERS), number)
        c1, s1 = cuda.local.array(rows, number), cuda.local.array(rows, number)
        c, s = cuda.local.array(rows, number), cuda.local.array(rows, number)
        thread, block = np.int32(cuda.threadIdx.x), np.int32(cuda.blockIdx.x)
        for r in range(rows):
            token = np.int32(block * np.int32(rows * CHUNK) + r * CHUNK + thread)
            c1[r], s1[r], c[r], s[r] = real(0), real(0), real(0), real(0)
            if token < last:
                c1[r], s1[r], c[r] = x[2 * token], x[2 * token + 1], real(1)
        mode = np.int32(0)
        while mode < modes:
            for b in range(BATCH):
                cosines, sines = real(0), real(0)
                for r in range(rows):
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

    return gather


@lru_cache(maxsize=8)
def make_causal(arithmetic: Arithmetic, lengths: bool = False) -> Any:
    """Kernel `evaluate(x, table, series, shift, first, drift)`: the attention sum (tokens, 2) under a causal mask, without its part
    along the token unless `lengths`. `table` (chunks, 2 modes) holds sums of z_m over the chunks before each, `series`
    (3, modes + 1) the coefficients, `shift` is beta log2(e)."""
    real, number, exp2, pairs = arithmetic.real, arithmetic.number, arithmetic.exp2, 2 * CHUNK

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

    return evaluate


@lru_cache(maxsize=8)
def make_total(arithmetic: Arithmetic, lengths: bool = False) -> Any:
    """Kernel `evaluate(x, total, series, count, fixed, first, last, drift)`: as above, for the tokens first..last-1, who see one
    another wholly and share the `total`; `count` is the number of tokens in it (with the weights of the frozen ones), `fixed` what to
    divide by, or 0: the sum of weights. A thread holds `ROWS` tokens, which share loads."""
    real, number = arithmetic.real, arithmetic.number

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

    return evaluate


class Fourier:
    """Series on the circle as `engine.SeriesSums` asks for them: `columns` numbers in a sum, `chunk` (`block`) tokens to a line of
    the table of prefix sums (of a total)."""

    pad, chunk, block = 2, CHUNK, BLOCK

    def __init__(self, beta: float, dtype: str, lengths: bool) -> None:
        terms = coefficients(beta)
        self.arithmetic, self.lengths = ARITHMETIC[dtype], lengths
        self.modes, self.columns = np.int32(terms.shape[1] - 1), 2 * (terms.shape[1] - 1)
        self.terms = cuda.to_device(terms.astype(self.arithmetic.real))
        self.shift = self.arithmetic.real(LOG2E * beta)

    def constant(self, tokens: FloatArray, weights: FloatArray) -> FloatArray:
        """What frozen tokens add to a total, (columns,)."""
        return mode_sums(tokens, weights, int(self.modes)).ravel()

    def sums(self, x: Any, table: Any) -> None:
        """Sums over the chunks."""
        make_gather(self.arithmetic, 1)[len(table), CHUNK](x, np.int32(len(x) // 2), self.modes, table)

    def evaluate(self, x: Any, table: Any, first: np.int32, drift: Any) -> None:
        """Attention sums of the tokens from `first` on, from sums over the chunks before each one."""
        make_causal(self.arithmetic, self.lengths)[len(table), CHUNK](x, table, self.terms, self.shift, first, drift)

    def gather(self, x: Any, last: np.int32, table: Any) -> None:
        """Sums over blocks of the first `last` tokens."""
        make_gather(self.arithmetic, ROWS)[len(table), CHUNK](x, last, self.modes, table)

    def evaluate_total(self, x: Any, total: Any, count: Any, fixed: Any, rows: tuple[Any, Any], drift: Any) -> None:
        """Attention sums of the tokens rows[0]..rows[1]-1, who all see the total."""
        kernel, (first, last) = make_total(self.arithmetic, self.lengths), rows
        kernel[-(-int(last - first) // BLOCK), CHUNK](x, total, self.terms, count, fixed, first, last, drift)
