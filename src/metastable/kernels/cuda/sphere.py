"""Causal attention of one member on the sphere of R^d, inside one thread block, with any heads Q, K, V.

Rows and tiles are dealt to threads as in `circle.py`. Heads come as matrices: `matrices[h, 0]` is `beta log2(e) Q^T K` and
`matrices[h, 1]` is V, so that with q = M^T x_k the weights are `exp2(q . x_j - |q|)`: the Cauchy-Schwarz bound |q| stands in for
the largest logit (`support.weight_gap` says when it may). V is applied once per row, to the weighted mean of the tokens.
"""

from __future__ import annotations

import numpy as np

from metastable.kernels.cuda.device import LANES
from metastable.kernels.cuda.intrinsics import Arithmetic, cuda, inlined, load_four
from metastable.kernels.cuda.members import Geometry, deal
from metastable.kernels.cuda.sums import make_ask, make_inverse_length
from metastable.kernels.cuda.support import padded


def _make_gather(arithmetic: Arithmetic, dim: int):
    """Device functions that add one token to the sums of a thread's rows: both of them, or only the high one.

    Not `sums.make_add`: written out like this the compiler unrolls the loops over tokens, which is a quarter of the time.
    """
    exp2, number, zero, pad = arithmetic.exp2, arithmetic.number, arithmetic.real(0), padded(dim)
    fours = pad // 4

    @inlined
    def row(seen, key, query, bound, total, weight, at):
        logit = -bound[at]
        for i in range(dim):
            logit += query[at * dim + i] * key[i]
        w = exp2(logit)
        w = w if seen else zero
        weight[at] += w
        for i in range(dim):
            total[at * dim + i] += w * key[i]

    @inlined
    def load(shared, position, key):
        for i in range(fours):
            a, b, c, d = load_four(shared, np.int32(pad * position + 4 * i))
            key[4 * i], key[4 * i + 1], key[4 * i + 2], key[4 * i + 3] = a, b, c, d

    @inlined
    def both(shared, position, low, high, query, bound, total, weight):
        key = cuda.local.array(pad, number)
        load(shared, position, key)
        row(position <= low, key, query, bound, total, weight, 0)
        row(position <= high, key, query, bound, total, weight, 1)

    @inlined
    def one(shared, position, high, query, bound, total, weight):
        key = cuda.local.array(pad, number)
        load(shared, position, key)
        row(position <= high, key, query, bound, total, weight, 1)

    return both, one


def make_velocity(arithmetic: Arithmetic, dim: int):
    """The device function `velocity` of `Geometry` for tokens in R^dim."""
    real, number = arithmetic.real, arithmetic.number
    pad, width = padded(dim), 2 * dim
    zero, unit = real(0), real(1)
    both, one = _make_gather(arithmetic, dim)
    ask, inverse_length = make_ask(arithmetic, dim), make_inverse_length(dim)

    @inlined
    def place(z, x, shared, at, position):
        """Normalise a row and publish it."""
        inverse = inverse_length(z, at * dim)
        for i in range(dim):
            x[at * dim + i] = real(z[at * dim + i] * inverse)
            shared[np.int32(pad * position + i)] = x[at * dim + i]

    @inlined
    def answer(total, weight, matrices, head, f, at):
        """f += V total / weight."""
        for i in range(dim):
            value = zero
            for j in range(dim):
                value += matrices[head, 1, i, j] * total[at * dim + j]
            f[at * dim + i] += value / weight[at]

    @inlined
    def project(x, f, at):
        along = zero
        for i in range(dim):
            along += x[at * dim + i] * f[at * dim + i]
        for i in range(dim):
            f[at * dim + i] -= along * x[at * dim + i]

    @inlined
    def velocity(z, f, shared, field):
        tokens, matrices = field.tokens, field.matrices
        x = cuda.local.array(width, number)
        query = cuda.local.array(width, number)
        total = cuda.local.array(width, number)
        bound, weight = cuda.local.array(2, number), cuda.local.array(2, number)
        low_start, high_start, lane = deal(tokens)
        low, high = np.int32(low_start + lane), np.int32(high_start + lane)
        for i in range(width):
            x[i] = zero
            f[i] = zero
        cuda.syncthreads()
        if low >= np.int32(0):
            place(z, x, shared, 0, low)
        if high >= np.int32(0):
            place(z, x, shared, 1, high)
        cuda.syncthreads()
        low_end, high_end = np.int32(low_start + np.int32(LANES)), np.int32(high_start + np.int32(LANES))
        for head in range(matrices.shape[0]):
            bound[0] = ask(x, 0, matrices, head, query)
            bound[1] = ask(x, dim, matrices, head, query)
            for i in range(width):
                total[i] = zero
            weight[0], weight[1] = zero, zero
            p = np.int32(0)
            while p < low_end:
                both(shared, p, low, high, query, bound, total, weight)
                p = np.int32(p + np.int32(1))
            while p < high_end:
                one(shared, p, high, query, bound, total, weight)
                p = np.int32(p + np.int32(1))
            # Rows that do not exist have seen nobody.
            weight[0] = weight[0] if low >= np.int32(0) else unit
            weight[1] = weight[1] if high >= np.int32(0) else unit
            answer(total, weight, matrices, head, f, 0)
            answer(total, weight, matrices, head, f, 1)
        project(x, f, 0)
        project(x, f, 1)

    return velocity


def make_geometry(arithmetic: Arithmetic, dim: int) -> Geometry:
    """Tokens of the sphere by their coordinates in R^dim."""
    inverse_length = make_inverse_length(dim)

    @cuda.jit(device=True)
    def read(y, at, starts, member, token):
        for i in range(dim):
            y[at + i] = starts[member, token, i]

    @cuda.jit(device=True)
    def retract(z):
        for row in range(2):
            inverse = inverse_length(z, row * dim)
            for i in range(dim):
                z[row * dim + i] *= inverse

    @cuda.jit(device=True)
    def write(z, at, out, member, slot, token):
        inverse = inverse_length(z, at)
        for i in range(dim):
            out[member, slot, token, i] = z[at + i] * inverse

    return Geometry(dim, padded(dim), make_velocity(arithmetic, dim), read, retract, write)
