"""Causal attention of one member on the sphere of R^d, inside one thread block, with any heads Q, K, V.

Rows and tiles are dealt to threads as in `circle.py`. Heads come as matrices: `matrices[h, 0]` is `beta log2(e) Q^T K` and
`matrices[h, 1]` is V, so that with q = M^T x_k the weights are `exp2(q . x_j - |q|)`: the Cauchy-Schwarz bound |q| stands in for
the largest logit (`support.weight_gap` says when it may). V is applied once per row, to the weighted mean of the tokens.
"""

from __future__ import annotations

import numpy as np

from metastable.kernels.cuda.device import LANES
from metastable.kernels.cuda.intrinsics import Arithmetic, cuda, inlined
from metastable.kernels.cuda.members import Geometry, deal
from metastable.kernels.cuda.sums import Rows, make_add, make_answer, make_ask, make_inverse_length, make_load
from metastable.kernels.cuda.support import padded


def make_velocity(arithmetic: Arithmetic, dim: int):
    """The device function `velocity` of `Geometry` for tokens in R^dim."""
    real, number = arithmetic.real, arithmetic.number
    pad, width = padded(dim), 2 * dim
    zero, unit = real(0), real(1)
    add, load = make_add(arithmetic, dim), make_load(pad)
    ask, answer, inverse_length = make_ask(arithmetic, dim), make_answer(arithmetic, dim), make_inverse_length(dim)

    @inlined
    def place(z, x, shared, at, position):
        """Normalise a row and publish it."""
        inverse = inverse_length(z, at)
        for i in range(dim):
            x[at + i] = real(z[at + i] * inverse)
            shared[np.int32(pad * position + i)] = x[at + i]

    @inlined
    def project(x, f, at):
        along = zero
        for i in range(dim):
            along += x[at + i] * f[at + i]
        for i in range(dim):
            f[at + i] -= along * x[at + i]

    @inlined
    def velocity(z, f, shared, field):
        x, key = cuda.local.array(width, number), cuda.local.array(pad, number)
        rows = Rows(
            cuda.local.array(width, number),
            cuda.local.array(2, number),
            cuda.local.array(width, number),
            cuda.local.array(2, number),
        )
        low_start, high_start, lane = deal(field.tokens)
        low, high = np.int32(low_start + lane), np.int32(high_start + lane)
        for i in range(width):
            x[i] = zero
            f[i] = zero
        cuda.syncthreads()
        if low >= np.int32(0):
            place(z, x, shared, 0, low)
        if high >= np.int32(0):
            place(z, x, shared, dim, high)
        cuda.syncthreads()
        low_end, high_end = np.int32(low_start + np.int32(LANES)), np.int32(high_start + np.int32(LANES))
        for head in range(field.matrices.shape[0]):
            for row in range(2):
                rows.shift[row] = ask(x, row * dim, field.matrices, head, rows.query)
                rows.weight[row] = zero
            for i in range(width):
                rows.total[i] = zero
            p = np.int32(0)
            while p < low_end:
                load(shared, pad * p, key)
                add(p <= low, unit, key, zero, rows, 0)
                add(p <= high, unit, key, zero, rows, 1)
                p = np.int32(p + np.int32(1))
            while p < high_end:
                load(shared, pad * p, key)
                add(p <= high, unit, key, zero, rows, 1)
                p = np.int32(p + np.int32(1))
            # Rows that do not exist have seen nobody.
            answer(rows.total, rows.weight[0] if low >= np.int32(0) else unit, 0, field.matrices, head, f)
            answer(rows.total, rows.weight[1] if high >= np.int32(0) else unit, dim, field.matrices, head, f)
        project(x, f, 0)
        project(x, f, dim)

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
