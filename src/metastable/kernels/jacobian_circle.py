"""Velocity and Jacobian on the circle, Q = K = V = I, row by row and free of cancellation.

With D = th_j - th_k and w_kj = a_j exp(beta (cos D - 1)) (a_j: the mass of column j)

    f_k  = (1/Z_k) sum_j w_kj sin D,                                     Z_k = self_k + sum_j w_kj,
    J_kj = (w_kj / Z_k) (cos D - beta sin^2 D + beta f_k sin D),         J_kk = -sum_j J_kj        (j != k).

The self term is left out of the sums and every pair adds its own sine (s_j c_k - c_j s_k): forces of 1e-50 keep their relative
accuracy, which a form such as `S c_k - C s_k` loses at 1e-17. J_kk is minus the row sum because a common rotation changes
nothing, also exactly.

What belongs to the columns j is named `Columns`, what belongs to a row k is its `Line`. The bias of a line is
log2(a_j) - beta log2(e), so that the weight is 2^(beta log2(e) cos D + bias_j). Every such array has `padded(columns)`
entries, so that whole vectors of any width can be read and blocks of rows may begin at the last column.
"""

from __future__ import annotations

from collections import namedtuple

from numba.extending import register_jitable

from metastable.kernels.cpu.chunks import store_first
from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, load, total

ROWS = 4
"""Rows of a block, see `pull_block`."""

Columns = namedtuple("Columns", ["cosine", "sine", "vector"])
"""Cosines and sines of the columns, and a vector that rows of the Jacobian are multiplied with."""
Line = namedtuple("Line", ["bias", "entries", "cosine", "sine"])
"""One row: its bias and its entries J_kj for each column, cosine and sine of its angle."""
Sums = namedtuple("Sums", ["force", "weights", "product"])
"""`sum w sin D`, `sum w` and `sum J_kj vector_j` over some columns (of one row, or an array each for the rows of a block)."""
Block = namedtuple("Block", ["biases", "jacobian", "sums"])
"""Memory of a block of rows: a line of `biases` and `jacobian` for each, and their `Sums`."""


@register_jitable
def padded(columns: int) -> int:
    """Entries for so many columns: a whole number of vectors, with room for a block that begins at the last column."""
    return -(-(columns + ROWS + LANES) // LANES) * LANES


@inlined
def at_stage(stages, i):
    """The columns at stage i, of arrays (stages, width)."""
    return Columns(stages.cosine[i], stages.sine[i], stages.vector[i])


@inlined
def line(columns, block, r, first):
    """Row r of a block whose rows are the columns from `first` on."""
    return Line(block.biases[r], block.jacobian[r], columns.cosine[first + r], columns.sine[first + r])


@inlined
def _weight(columns, line, j, scale):
    """Weights of a vector of columns and the sines of their angles to the row; `scale` is beta log2(e)."""
    cj, sj = load(columns.cosine, j), load(columns.sine, j)
    exponent = cj * (line.cosine * scale) + (sj * (line.sine * scale) + load(line.bias, j))
    return exp2(exponent), sj * line.cosine - cj * line.sine


# ------------------------------------------------------------------------------------------------- one row, any range


@inner
def keep_weights(columns, line, start, stop, scale):
    """`(sum w sin D, sum w)` over the columns `start..stop-1`, with the weights written to the entries of the line."""
    force = fill(0.0)
    weights = fill(0.0)
    for j in range(start, stop, LANES):
        weight, angle = _weight(columns, line, j, scale)
        weight = keep(weight, stop - j)
        force += weight * angle
        weights += weight
        store_first(line.entries, j, weight, stop - j)
    return total(force), total(weights)


@inner
def finish_row(columns, line, start, stop, beta, inverse, velocity):
    """Turn the weights in the entries into J_kj; returns their sum and `sum J_kj vector_j`. `inverse` is 1/Z_k."""
    c, s = line.cosine, line.sine
    sums = fill(0.0)
    product = fill(0.0)
    for j in range(start, stop, LANES):
        cj = load(columns.cosine, j)
        sj = load(columns.sine, j)
        cosine_d = cj * c + sj * s
        sine_d = sj * c - cj * s
        weight = keep(load(line.entries, j), stop - j)
        entry = weight * inverse * (cosine_d - sine_d * beta * (sine_d - velocity))
        store_first(line.entries, j, entry, stop - j)
        sums += entry
        product += entry * load(columns.vector, j)
    return total(sums), total(product)


@inlined
def _nothing():
    """Sums over no columns."""
    return Sums(fill(0.0), fill(0.0), fill(0.0))


@inlined
def _add(columns, line, j, scale, count, sums):
    """The sums of one row with those of the first `count` columns of one more vector (None, in code of its own: of all)."""
    weight, angle = _weight(columns, line, j, scale)
    entries = load(line.entries, j)
    if count is not None:
        weight, entries = keep(weight, count), keep(entries, count)
    product = entries * load(columns.vector, j)
    return Sums(sums.force + weight * angle, sums.weights + weight, sums.product + product)


@inlined
def _write(sums, r, found):
    """Totals of one row."""
    sums.force[r], sums.weights[r], sums.product[r] = total(found.force), total(found.weights), total(found.product)


@inner
def pull_row(columns, line, start, stop, scale):
    """`Sums` of one row over the columns `start..stop-1`: what a stage needs from it."""
    found = _nothing()
    for j in range(start, stop, LANES):
        found = _add(columns, line, j, scale, stop - j, found)
    return Sums(total(found.force), total(found.weights), total(found.product))


# ------------------------------------------------------------------------------------------------- several rows at once
#
# Sums over short rows are dominated by latency: each stage of a row ends in horizontal sums, a division and a sine before the
# next can begin. Neighbouring rows have independent chains and share their loads. The rows of a block are the columns `first`,
# `first + 1`, ..., each sees all columns before it.


@inner
def pull_block(stages, i, block, first, scale):
    """`pull_row` for four rows at stage i, to the sums of the block. (A function of its own: its loop needs all registers.)"""
    columns = at_stage(stages, i)
    line0, line1 = line(columns, block, 0, first), line(columns, block, 1, first)
    line2, line3 = line(columns, block, 2, first), line(columns, block, 3, first)
    sums0, sums1, sums2, sums3 = _nothing(), _nothing(), _nothing(), _nothing()
    whole = first // LANES * LANES
    for j in range(0, whole, LANES):
        sums0 = _add(columns, line0, j, scale, None, sums0)
        sums1 = _add(columns, line1, j, scale, None, sums1)
        sums2 = _add(columns, line2, j, scale, None, sums2)
        sums3 = _add(columns, line3, j, scale, None, sums3)
    for j in range(whole, first + 3, LANES):
        sums0 = _add(columns, line0, j, scale, first - j, sums0)
        sums1 = _add(columns, line1, j, scale, first + 1 - j, sums1)
        sums2 = _add(columns, line2, j, scale, first + 2 - j, sums2)
        sums3 = _add(columns, line3, j, scale, first + 3 - j, sums3)
    _write(block.sums, 0, sums0)
    _write(block.sums, 1, sums1)
    _write(block.sums, 2, sums2)
    _write(block.sums, 3, sums3)
