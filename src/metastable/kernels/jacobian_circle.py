"""Velocity and Jacobian on the circle, Q = K = V = I, row by row and free of cancellation.

With D = th_j - th_k and w_kj = a_j exp(beta (cos D - 1)) (a_j: the mass of column j)

    f_k  = (1/Z_k) sum_j w_kj sin D,                                     Z_k = self_k + sum_j w_kj,
    J_kj = (w_kj / Z_k) (cos D - beta sin^2 D + beta f_k sin D),         J_kk = -sum_j J_kj        (j != k).

The self term is left out of the sums and every pair adds its own sine (s_j c_k - c_j s_k): forces of 1e-50 keep their relative
accuracy, which a form such as `S c_k - C s_k` loses at 1e-17. J_kk is minus the row sum because a common rotation changes
nothing, also exactly.

All columns live in one flat array `work`, and functions get the offsets of its parts (cosines, sines, masses, ...): compiled
calls then pass one array instead of six. Every part is padded by eight entries, so that whole vectors can be read.
"""

from __future__ import annotations

import numpy as np

from metastable.kernels.cpu.fastmath import LOG2E, sincos
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, load, store, total
from metastable.kernels.jacobian_compiled import compiled, helper, inlined, kernel

PADDING = LANES


@inlined
def _weight(work, cosine, sine, mass, j, c, s, scale):
    """Weights of eight columns and the sines of their angles to the row."""
    cj = load(work, cosine + j)
    sj = load(work, sine + j)
    weight = load(work, mass + j) * exp2((cj * c + sj * s - 1.0) * scale)
    return weight, sj * c - cj * s


@inlined
def _store_first(work, index, value, count):
    """Store the first `count` lanes only; the entries behind them belong to another range."""
    if count < LANES:
        before = load(work, index)
        value = keep(value, count) + (before - keep(before, count))
    store(work, index, value)


@kernel
def pull(work, cosine, sine, mass, start, stop, c, s, scale):
    """`(sum w sin D, sum w)` over the columns `start..stop-1`; `scale` is beta * log2(e)."""
    force = fill(0.0)
    weights = fill(0.0)
    for j in range(start, stop, LANES):
        weight, angle = _weight(work, cosine, sine, mass, j, c, s, scale)
        weight = keep(weight, stop - j)
        force += weight * angle
        weights += weight
    return total(force), total(weights)


@kernel
def pull_and_product(work, cosine, sine, mass, row, vector, start, stop, c, s, scale):
    """`pull`, and with it `sum row_j vector_j`: what one stage of a Rosenbrock step needs from a row."""
    force = fill(0.0)
    weights = fill(0.0)
    product = fill(0.0)
    for j in range(start, stop, LANES):
        weight, angle = _weight(work, cosine, sine, mass, j, c, s, scale)
        weight = keep(weight, stop - j)
        force += weight * angle
        weights += weight
        product += keep(load(work, row + j), stop - j) * load(work, vector + j)
    return total(force), total(weights), total(product)


@kernel
def pull_and_keep(work, cosine, sine, mass, row, start, stop, c, s, scale):
    """`pull`, with the weights written to `row`."""
    force = fill(0.0)
    weights = fill(0.0)
    for j in range(start, stop, LANES):
        weight, angle = _weight(work, cosine, sine, mass, j, c, s, scale)
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


@helper
def _columns(n):
    """Flat work array of `velocity` and `velocity_and_jacobian`: cosines, sines, masses, row, vector, with their width."""
    width = n + PADDING
    work = np.zeros(5 * width)
    work[2 * width : 3 * width] = 1.0
    return work, width


@compiled
def velocity(angles, beta, out):
    """dth/dt under the causal mask, all tokens: `angles`, `out` (n,)."""
    work, width = _columns(angles.size)
    for k in range(angles.size):
        s, c = sincos(angles[k])
        force, weights = pull(work, 0, width, 2 * width, 0, k, c, s, beta * LOG2E)
        out[k] = force / (1.0 + weights)
        work[k] = c
        work[width + k] = s


@compiled
def velocity_and_jacobian(angles, beta, out, jacobian):
    """dth/dt and its lower triangular Jacobian under the causal mask: `out` (n,), `jacobian` (n, n), upper part untouched."""
    work, width = _columns(angles.size)
    row, vector = 3 * width, 4 * width
    for k in range(angles.size):
        s, c = sincos(angles[k])
        force, weights = pull_and_keep(work, 0, width, 2 * width, row, 0, k, c, s, beta * LOG2E)
        inverse = 1.0 / (1.0 + weights)
        out[k] = force * inverse
        sums, _ = finish_row(work, 0, width, row, vector, 0, k, c, s, beta, inverse, out[k])
        jacobian[k, k] = -sums
        jacobian[k, :k] = work[row : row + k]
        work[k] = c
        work[width + k] = s
