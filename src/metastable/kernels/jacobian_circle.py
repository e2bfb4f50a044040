"""Velocity and Jacobian on the circle, Q = K = V = I, row by row and free of cancellation.

With D = th_j - th_k and w_kj = a_j exp(beta (cos D - 1)) (a_j: the mass of column j)

    f_k  = (1/Z_k) sum_j w_kj sin D,                                     Z_k = self_k + sum_j w_kj,
    J_kj = (w_kj / Z_k) (cos D - beta sin^2 D + beta f_k sin D),         J_kk = -sum_j J_kj        (j != k).

The self term is left out of the sums and every pair adds its own sine (s_j c_k - c_j s_k): forces of 1e-50 keep their relative
accuracy, which a form such as `S c_k - C s_k` loses at 1e-17. J_kk is minus the row sum because a common rotation changes
nothing, also exactly.

All columns live in one flat array `work`, and functions get the offsets of its parts (cosines, sines, ...): compiled calls then
pass one array instead of six. The part `bias` holds log2(a_j) - beta log2(e), so that the weight is 2^(beta log2(e) cos D +
bias_j). Every part is padded by eight entries, so that whole vectors can be read.
"""

from __future__ import annotations

import numpy as np

from metastable.kernels.cpu.compiled import allocating as helper
from metastable.kernels.cpu.compiled import compiled, inlined
from metastable.kernels.cpu.compiled import inner as kernel
from metastable.kernels.cpu.fastmath import LOG2E, sincos
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, load, store, total

PADDING = LANES
ROWS = 2
"""Rows of a block, see `pull_block`."""
LARGE_ROWS = 4
"""Rows of a large block."""


@inlined
def _weight(cj, sj, bias, c, s, scale):
    """Weights of eight columns and the sines of their angles to the row; `scale` is beta log2(e)."""
    return exp2(cj * (c * scale) + (sj * (s * scale) + bias)), sj * c - cj * s


@inlined
def _store_first(work, index, value, count):
    """Store the first `count` lanes only; the entries behind them belong to another range."""
    if count < LANES:
        before = load(work, index)
        value = keep(value, count) + (before - keep(before, count))
    store(work, index, value)


# ------------------------------------------------------------------------------------------------- one row, any range


@kernel
def pull_and_product(work, cosine, sine, bias, row, vector, start, stop, c, s, scale):
    """`(sum w sin D, sum w, sum row_j vector_j)` over the columns `start..stop-1`: what a stage needs from a row."""
    force = fill(0.0)
    weights = fill(0.0)
    product = fill(0.0)
    for j in range(start, stop, LANES):
        cj, sj = load(work, cosine + j), load(work, sine + j)
        weight, angle = _weight(cj, sj, load(work, bias + j), c, s, scale)
        weight = keep(weight, stop - j)
        force += weight * angle
        weights += weight
        product += keep(load(work, row + j), stop - j) * load(work, vector + j)
    return total(force), total(weights), total(product)


@kernel
def pull_and_keep(work, cosine, sine, bias, row, start, stop, c, s, scale):
    """`(sum w sin D, sum w)` over the columns `start..stop-1`, with the weights written to `row`."""
    force = fill(0.0)
    weights = fill(0.0)
    for j in range(start, stop, LANES):
        cj, sj = load(work, cosine + j), load(work, sine + j)
        weight, angle = _weight(cj, sj, load(work, bias + j), c, s, scale)
        weight = keep(weight, stop - j)
        force += weight * angle
        weights += weight
        _store_first(work, row + j, weight, stop - j)
    return total(force), total(weights)


@kernel
def finish_row(work, cosine, sine, row, vector, start, stop, c, s, beta, inverse, velocity):
    """Turn the weights in `row` into J_kj; returns their sum and `sum J_kj vector_j`. `inverse` is 1/Z_k."""
    sums = fill(0.0)
    product = fill(0.0)
    for j in range(start, stop, LANES):
        cj = load(work, cosine + j)
        sj = load(work, sine + j)
        cosine_d = cj * c + sj * s
        sine_d = sj * c - cj * s
        weight = keep(load(work, row + j), stop - j)
        entry = weight * inverse * (cosine_d - sine_d * beta * (sine_d - velocity))
        _store_first(work, row + j, entry, stop - j)
        sums += entry
        product += entry * load(work, vector + j)
    return total(sums), total(product)


# ------------------------------------------------------------------------------------------------- several rows at once
#
# Sums over short rows are dominated by latency: each stage of a row ends in horizontal sums, a division and a sine before the
# next can begin. Neighbouring rows have independent chains and share their loads. The rows are the columns `first`,
# `first + 1`, ..., each sees the columns before it; bias and row of the Jacobian of each lie one part behind the one before.


@inlined
def _add(work, bias, row, j, cj, sj, u, c, s, scale, force, weights, product):
    """The sums of one row with those of eight more columns."""
    weight, angle = _weight(cj, sj, load(work, bias + j), c, s, scale)
    return force + weight * angle, weights + weight, product + load(work, row + j) * u


@inlined
def _add_some(work, bias, row, j, cj, sj, u, c, s, scale, count, force, weights, product):
    """The same with the first `count` of the eight columns."""
    weight, angle = _weight(cj, sj, load(work, bias + j), c, s, scale)
    weight = keep(weight, count)
    return force + weight * angle, weights + weight, product + keep(load(work, row + j), count) * u


@kernel
def pull_block(work, width, cosine, sine, bias, row, vector, first, scale, out):
    """`pull_and_product` for two rows; their sums `(force, weights, product)` go to `out` and `out + 3`."""
    c0, c1 = work[cosine + first], work[cosine + first + 1]
    s0, s1 = work[sine + first], work[sine + first + 1]
    f0, w0, p0 = fill(0.0), fill(0.0), fill(0.0)
    f1, w1, p1 = fill(0.0), fill(0.0), fill(0.0)
    bias1, row1 = bias + width, row + width
    whole = first // LANES * LANES
    for j in range(0, whole, LANES):
        cj, sj, u = load(work, cosine + j), load(work, sine + j), load(work, vector + j)
        f0, w0, p0 = _add(work, bias, row, j, cj, sj, u, c0, s0, scale, f0, w0, p0)
        f1, w1, p1 = _add(work, bias1, row1, j, cj, sj, u, c1, s1, scale, f1, w1, p1)
    for j in range(whole, first + 1, LANES):
        cj, sj, u = load(work, cosine + j), load(work, sine + j), load(work, vector + j)
        f0, w0, p0 = _add_some(work, bias, row, j, cj, sj, u, c0, s0, scale, first - j, f0, w0, p0)
        f1, w1, p1 = _add_some(work, bias1, row1, j, cj, sj, u, c1, s1, scale, first + 1 - j, f1, w1, p1)
    work[out], work[out + 1], work[out + 2] = total(f0), total(w0), total(p0)
    work[out + 3], work[out + 4], work[out + 5] = total(f1), total(w1), total(p1)


@kernel
def pull_large_block(work, width, cosine, sine, bias, row, vector, first, scale, out):
    """`pull_block` for four rows: less latency, but more memory to keep at hand, so for short rows."""
    c0, c1, c2, c3 = work[cosine + first], work[cosine + first + 1], work[cosine + first + 2], work[cosine + first + 3]
    s0, s1, s2, s3 = work[sine + first], work[sine + first + 1], work[sine + first + 2], work[sine + first + 3]
    bias1, bias2, bias3 = bias + width, bias + 2 * width, bias + 3 * width
    row1, row2, row3 = row + width, row + 2 * width, row + 3 * width
    f0, w0, p0 = fill(0.0), fill(0.0), fill(0.0)
    f1, w1, p1 = fill(0.0), fill(0.0), fill(0.0)
    f2, w2, p2 = fill(0.0), fill(0.0), fill(0.0)
    f3, w3, p3 = fill(0.0), fill(0.0), fill(0.0)
    whole = first // LANES * LANES
    for j in range(0, whole, LANES):
        cj, sj, u = load(work, cosine + j), load(work, sine + j), load(work, vector + j)
        f0, w0, p0 = _add(work, bias, row, j, cj, sj, u, c0, s0, scale, f0, w0, p0)
        f1, w1, p1 = _add(work, bias1, row1, j, cj, sj, u, c1, s1, scale, f1, w1, p1)
        f2, w2, p2 = _add(work, bias2, row2, j, cj, sj, u, c2, s2, scale, f2, w2, p2)
        f3, w3, p3 = _add(work, bias3, row3, j, cj, sj, u, c3, s3, scale, f3, w3, p3)
    for j in range(whole, first + 3, LANES):
        cj, sj, u = load(work, cosine + j), load(work, sine + j), load(work, vector + j)
        f0, w0, p0 = _add_some(work, bias, row, j, cj, sj, u, c0, s0, scale, first - j, f0, w0, p0)
        f1, w1, p1 = _add_some(work, bias1, row1, j, cj, sj, u, c1, s1, scale, first + 1 - j, f1, w1, p1)
        f2, w2, p2 = _add_some(work, bias2, row2, j, cj, sj, u, c2, s2, scale, first + 2 - j, f2, w2, p2)
        f3, w3, p3 = _add_some(work, bias3, row3, j, cj, sj, u, c3, s3, scale, first + 3 - j, f3, w3, p3)
    work[out], work[out + 1], work[out + 2] = total(f0), total(w0), total(p0)
    work[out + 3], work[out + 4], work[out + 5] = total(f1), total(w1), total(p1)
    work[out + 6], work[out + 7], work[out + 8] = total(f2), total(w2), total(p2)
    work[out + 9], work[out + 10], work[out + 11] = total(f3), total(w3), total(p3)


@kernel
def keep_block(work, width, cosine, sine, bias, row, first, scale, out):
    """`pull_and_keep` for two rows: sums `(force, weights)` to `out` and `out + 3`, weights to the two rows."""
    c0, c1 = work[cosine + first], work[cosine + first + 1]
    s0, s1 = work[sine + first], work[sine + first + 1]
    f0, w0 = fill(0.0), fill(0.0)
    f1, w1 = fill(0.0), fill(0.0)
    for j in range(0, first + 1, LANES):
        cj, sj = load(work, cosine + j), load(work, sine + j)
        weight, angle = _weight(cj, sj, load(work, bias + j), c0, s0, scale)
        weight = keep(weight, first - j)
        w0 += weight
        f0 += weight * angle
        store(work, row + j, weight)
        weight, angle = _weight(cj, sj, load(work, bias + width + j), c1, s1, scale)
        weight = keep(weight, first + 1 - j)
        w1 += weight
        f1 += weight * angle
        store(work, row + width + j, weight)
    work[out], work[out + 1] = total(f0), total(w0)
    work[out + 3], work[out + 4] = total(f1), total(w1)


# ------------------------------------------------------------------------------------------------- whole right-hand side

# Parts of the work array below: cosines, sines, vector, two biases, two rows, sums.
_COSINE, _SINE, _VECTOR, _BIAS, _ROW, _SUMS, _PARTS = 0, 1, 2, 3, 5, 7, 8


@helper
def _columns(angles, beta):
    """Work array for all tokens, with its width."""
    n = angles.size
    width = (n + 2 * PADDING) // LANES * LANES
    work = np.zeros(_PARTS * width)
    work[_BIAS * width : _ROW * width] = -beta * LOG2E
    for k in range(n):
        s, c = sincos(angles[k])
        work[_COSINE * width + k] = c
        work[_SINE * width + k] = s
    return work, width


@compiled
def velocity(angles, beta, out):
    """dth/dt under the causal mask, all tokens: `angles`, `out` (n,)."""
    work, width = _columns(angles, beta)
    cosine, sine, vector = _COSINE * width, _SINE * width, _VECTOR * width
    bias, row, sums = _BIAS * width, _ROW * width, _SUMS * width
    for k in range(0, angles.size, ROWS):
        pull_block(work, width, cosine, sine, bias, row, vector, k, beta * LOG2E, sums)
        for r in range(min(ROWS, angles.size - k)):
            out[k + r] = work[sums + 3 * r] / (1.0 + work[sums + 3 * r + 1])


@compiled
def velocity_and_jacobian(angles, beta, out, jacobian):
    """dth/dt and its lower triangular Jacobian under the causal mask: `out` (n,), `jacobian` (n, n), upper part untouched."""
    work, width = _columns(angles, beta)
    cosine, sine, vector = _COSINE * width, _SINE * width, _VECTOR * width
    bias, row, sums = _BIAS * width, _ROW * width, _SUMS * width
    for k in range(0, angles.size, ROWS):
        keep_block(work, width, cosine, sine, bias, row, k, beta * LOG2E, sums)
        for r in range(min(ROWS, angles.size - k)):
            inverse = 1.0 / (1.0 + work[sums + 3 * r + 1])
            out[k + r] = work[sums + 3 * r] * inverse
            line = row + r * width
            c, s = work[cosine + k + r], work[sine + k + r]
            entries, _ = finish_row(work, cosine, sine, line, vector, 0, k + r, c, s, beta, inverse, out[k + r])
            target = jacobian[k + r]
            target[: k + r] = work[line : line + k + r]
            target[k + r] = -entries
