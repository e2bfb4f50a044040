"""Velocity and Jacobian on the circle, Q = K = V = I, row by row and free of cancellation.

With D = th_j - th_k and w_kj = a_j exp(beta (cos D - 1)) (a_j: the mass of column j)

    f_k  = (1/Z_k) sum_j w_kj sin D,                                     Z_k = self_k + sum_j w_kj,
    J_kj = (w_kj / Z_k) (cos D - beta sin^2 D + beta f_k sin D),         J_kk = -sum_j J_kj        (j != k).

The self term is left out of the sums and every pair adds its own sine (s_j c_k - c_j s_k): forces of 1e-50 keep their relative
accuracy, which a form such as `S c_k - C s_k` loses at 1e-17. J_kk is minus the row sum because a common rotation changes
nothing, also exactly.

What belongs to the columns j is named: `Columns`, and beside them for each row its `bias` and its `row` of the Jacobian. The bias
is log2(a_j) - beta log2(e), so that the weight is 2^(beta log2(e) cos D + bias_j). Every such array has `padded(columns)`
entries, so that whole vectors of any width can be read and blocks of rows may begin at the last column.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba.extending import register_jitable

from metastable.kernels.cpu.compiled import allocating as helper
from metastable.kernels.cpu.compiled import compiled, inlined
from metastable.kernels.cpu.compiled import inner as kernel
from metastable.kernels.cpu.fastmath import LOG2E, sincos
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, load, store, total

ROWS = 2
"""Rows of a block, see `pull_block`."""
LARGE_ROWS = 4
"""Rows of a large block."""

Columns = namedtuple("Columns", ["cosine", "sine", "vector"])
"""Cosines and sines of the columns, and a vector that rows of the Jacobian are multiplied with: three padded arrays."""

# Columns of the sums that a block of rows leaves behind.
FORCE, WEIGHTS, PRODUCT = range(3)


@register_jitable
def padded(columns: int) -> int:
    """Entries for so many columns: a whole number of vectors, with room for a block that begins at the last column."""
    return -(-(columns + LARGE_ROWS + LANES) // LANES) * LANES


@inlined
def _weight(cj, sj, bias, c, s, scale):
    """Weights of a vector of columns and the sines of their angles to the row; `scale` is beta log2(e)."""
    return exp2(cj * (c * scale) + (sj * (s * scale) + bias)), sj * c - cj * s


@inlined
def _store_first(target, index, value, count):
    """Store the first `count` lanes only; the entries behind them belong to another range."""
    if count < LANES:
        before = load(target, index)
        value = keep(value, count) + (before - keep(before, count))
    store(target, index, value)


# ------------------------------------------------------------------------------------------------- one row, any range


@kernel
def pull_and_product(columns, bias, row, start, stop, c, s, scale):
    """`(sum w sin D, sum w, sum row_j vector_j)` over the columns `start..stop-1`: what a stage needs from a row."""
    force = fill(0.0)
    weights = fill(0.0)
    product = fill(0.0)
    for j in range(start, stop, LANES):
        cj, sj = load(columns.cosine, j), load(columns.sine, j)
        weight, angle = _weight(cj, sj, load(bias, j), c, s, scale)
        weight = keep(weight, stop - j)
        force += weight * angle
        weights += weight
        product += keep(load(row, j), stop - j) * load(columns.vector, j)
    return total(force), total(weights), total(product)


@kernel
def pull_and_keep(columns, bias, row, start, stop, c, s, scale):
    """`(sum w sin D, sum w)` over the columns `start..stop-1`, with the weights written to `row`."""
    force = fill(0.0)
    weights = fill(0.0)
    for j in range(start, stop, LANES):
        cj, sj = load(columns.cosine, j), load(columns.sine, j)
        weight, angle = _weight(cj, sj, load(bias, j), c, s, scale)
        weight = keep(weight, stop - j)
        force += weight * angle
        weights += weight
        _store_first(row, j, weight, stop - j)
    return total(force), total(weights)


@kernel
def finish_row(columns, row, start, stop, c, s, beta, inverse, velocity):
    """Turn the weights in `row` into J_kj; returns their sum and `sum J_kj vector_j`. `inverse` is 1/Z_k."""
    sums = fill(0.0)
    product = fill(0.0)
    for j in range(start, stop, LANES):
        cj = load(columns.cosine, j)
        sj = load(columns.sine, j)
        cosine_d = cj * c + sj * s
        sine_d = sj * c - cj * s
        weight = keep(load(row, j), stop - j)
        entry = weight * inverse * (cosine_d - sine_d * beta * (sine_d - velocity))
        _store_first(row, j, entry, stop - j)
        sums += entry
        product += entry * load(columns.vector, j)
    return total(sums), total(product)


# ------------------------------------------------------------------------------------------------- several rows at once
#
# Sums over short rows are dominated by latency: each stage of a row ends in horizontal sums, a division and a sine before the
# next can begin. Neighbouring rows have independent chains and share their loads. The rows of a block are the columns `first`,
# `first + 1`, ..., each sees the columns before it; `biases`, `rows` and `sums` have one line for each.


@inlined
def _add(bias, row, j, cj, sj, u, c, s, scale, force, weights, product):
    """The sums of one row with those of one more vector of columns."""
    weight, angle = _weight(cj, sj, load(bias, j), c, s, scale)
    return force + weight * angle, weights + weight, product + load(row, j) * u


@inlined
def _add_some(bias, row, j, cj, sj, u, c, s, scale, count, force, weights, product):
    """The same with the first `count` columns of the vector."""
    weight, angle = _weight(cj, sj, load(bias, j), c, s, scale)
    weight = keep(weight, count)
    return force + weight * angle, weights + weight, product + keep(load(row, j), count) * u


@inlined
def _write(sums, r, force, weights, product):
    """Totals of one row."""
    sums[r, FORCE], sums[r, WEIGHTS], sums[r, PRODUCT] = total(force), total(weights), total(product)


@inlined
def pull_block(columns, biases, rows, first, scale, sums):
    """`pull_and_product` for two rows; `sums` gets a line `(force, weights, product)` for each."""
    cosine, sine, vector = columns.cosine, columns.sine, columns.vector
    bias0, bias1 = biases[0], biases[1]
    row0, row1 = rows[0], rows[1]
    c0, c1 = cosine[first], cosine[first + 1]
    s0, s1 = sine[first], sine[first + 1]
    f0, w0, p0 = fill(0.0), fill(0.0), fill(0.0)
    f1, w1, p1 = fill(0.0), fill(0.0), fill(0.0)
    whole = first // LANES * LANES
    for j in range(0, whole, LANES):
        cj, sj, u = load(cosine, j), load(sine, j), load(vector, j)
        f0, w0, p0 = _add(bias0, row0, j, cj, sj, u, c0, s0, scale, f0, w0, p0)
        f1, w1, p1 = _add(bias1, row1, j, cj, sj, u, c1, s1, scale, f1, w1, p1)
    for j in range(whole, first + 1, LANES):
        cj, sj, u = load(cosine, j), load(sine, j), load(vector, j)
        f0, w0, p0 = _add_some(bias0, row0, j, cj, sj, u, c0, s0, scale, first - j, f0, w0, p0)
        f1, w1, p1 = _add_some(bias1, row1, j, cj, sj, u, c1, s1, scale, first + 1 - j, f1, w1, p1)
    _write(sums, 0, f0, w0, p0)
    _write(sums, 1, f1, w1, p1)


@inlined
def pull_large_block(columns, biases, rows, first, scale, sums):
    """`pull_block` for four rows: less latency, but more memory to keep at hand, so for short rows."""
    cosine, sine, vector = columns.cosine, columns.sine, columns.vector
    bias0, bias1, bias2, bias3 = biases[0], biases[1], biases[2], biases[3]
    row0, row1, row2, row3 = rows[0], rows[1], rows[2], rows[3]
    c0, c1, c2, c3 = cosine[first], cosine[first + 1], cosine[first + 2], cosine[first + 3]
    s0, s1, s2, s3 = sine[first], sine[first + 1], sine[first + 2], sine[first + 3]
    f0, w0, p0 = fill(0.0), fill(0.0), fill(0.0)
    f1, w1, p1 = fill(0.0), fill(0.0), fill(0.0)
    f2, w2, p2 = fill(0.0), fill(0.0), fill(0.0)
    f3, w3, p3 = fill(0.0), fill(0.0), fill(0.0)
    whole = first // LANES * LANES
    for j in range(0, whole, LANES):
        cj, sj, u = load(cosine, j), load(sine, j), load(vector, j)
        f0, w0, p0 = _add(bias0, row0, j, cj, sj, u, c0, s0, scale, f0, w0, p0)
        f1, w1, p1 = _add(bias1, row1, j, cj, sj, u, c1, s1, scale, f1, w1, p1)
        f2, w2, p2 = _add(bias2, row2, j, cj, sj, u, c2, s2, scale, f2, w2, p2)
        f3, w3, p3 = _add(bias3, row3, j, cj, sj, u, c3, s3, scale, f3, w3, p3)
    for j in range(whole, first + 3, LANES):
        cj, sj, u = load(cosine, j), load(sine, j), load(vector, j)
        f0, w0, p0 = _add_some(bias0, row0, j, cj, sj, u, c0, s0, scale, first - j, f0, w0, p0)
        f1, w1, p1 = _add_some(bias1, row1, j, cj, sj, u, c1, s1, scale, first + 1 - j, f1, w1, p1)
        f2, w2, p2 = _add_some(bias2, row2, j, cj, sj, u, c2, s2, scale, first + 2 - j, f2, w2, p2)
        f3, w3, p3 = _add_some(bias3, row3, j, cj, sj, u, c3, s3, scale, first + 3 - j, f3, w3, p3)
    _write(sums, 0, f0, w0, p0)
    _write(sums, 1, f1, w1, p1)
    _write(sums, 2, f2, w2, p2)
    _write(sums, 3, f3, w3, p3)


@inlined
def keep_block(columns, biases, rows, line, first, scale, sums):
    """`pull_and_keep` for two rows, the lines `line` and `line + 1` of the block that begins at column `first`.

    Their sums `(force, weights)` go to these lines of `sums`, their weights to those of `rows`.
    """
    cosine, sine = columns.cosine, columns.sine
    bias0, bias1 = biases[line], biases[line + 1]
    row0, row1 = rows[line], rows[line + 1]
    column = first + line
    c0, c1 = cosine[column], cosine[column + 1]
    s0, s1 = sine[column], sine[column + 1]
    f0, w0 = fill(0.0), fill(0.0)
    f1, w1 = fill(0.0), fill(0.0)
    for j in range(0, column + 1, LANES):
        cj, sj = load(cosine, j), load(sine, j)
        weight, angle = _weight(cj, sj, load(bias0, j), c0, s0, scale)
        weight = keep(weight, column - j)
        w0 += weight
        f0 += weight * angle
        store(row0, j, weight)
        weight, angle = _weight(cj, sj, load(bias1, j), c1, s1, scale)
        weight = keep(weight, column + 1 - j)
        w1 += weight
        f1 += weight * angle
        store(row1, j, weight)
    sums[line, FORCE], sums[line, WEIGHTS] = total(f0), total(w0)
    sums[line + 1, FORCE], sums[line + 1, WEIGHTS] = total(f1), total(w1)


# ------------------------------------------------------------------------------------------------- whole right-hand side

Block = namedtuple("Block", ["columns", "biases", "rows", "sums"])
"""Memory of the functions below: all tokens as columns, and what a block of `ROWS` rows works with."""


@helper
def _all_tokens(angles, beta):
    """Memory with the tokens in their places."""
    n = angles.size
    width = padded(n)
    columns = Columns(np.zeros(width), np.zeros(width), np.zeros(width))
    for k in range(n):
        columns.sine[k], columns.cosine[k] = sincos(angles[k])
    return Block(columns, np.full((ROWS, width), -beta * LOG2E), np.zeros((ROWS, width)), np.zeros((ROWS, 3)))


@compiled
def velocity(angles, beta, out):
    """dth/dt under the causal mask, all tokens: `angles`, `out` (n,)."""
    block = _all_tokens(angles, beta)
    sums = block.sums
    for k in range(0, angles.size, ROWS):
        pull_block(block.columns, block.biases, block.rows, k, beta * LOG2E, sums)
        for r in range(min(ROWS, angles.size - k)):
            out[k + r] = sums[r, FORCE] / (1.0 + sums[r, WEIGHTS])


@compiled
def velocity_and_jacobian(angles, beta, out, jacobian):
    """dth/dt and its lower triangular Jacobian under the causal mask: `out` (n,), `jacobian` (n, n), upper part untouched."""
    block = _all_tokens(angles, beta)
    columns, sums = block.columns, block.sums
    for k in range(0, angles.size, ROWS):
        keep_block(columns, block.biases, block.rows, 0, k, beta * LOG2E, sums)
        for r in range(min(ROWS, angles.size - k)):
            inverse = 1.0 / (1.0 + sums[r, WEIGHTS])
            out[k + r] = sums[r, FORCE] * inverse
            row = block.rows[r]
            c, s = columns.cosine[k + r], columns.sine[k + r]
            entries, _ = finish_row(columns, row, 0, k + r, c, s, beta, inverse, out[k + r])
            target = jacobian[k + r]
            target[: k + r] = row[: k + r]
            target[k + r] = -entries
