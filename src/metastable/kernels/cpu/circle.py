"""Direct sums on the circle for Q = K = V = I, in angles.

    dth_k/dt = (1/Z_k) sum_j exp(beta (cos(th_j - th_k) - 1)) sin(th_j - th_k)

One exponential per pair: cosine and sine of every token are kept, those of differences are products. The token itself is
left out of the sums (it pulls with force zero; `rules.own_weight` is what it weighs), and the sine is formed for each pair, so a
force of 1e-50 is as accurate, relatively, as one of order one.
"""

from __future__ import annotations

from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.rules import divisor, own_weight, range_of_others
from metastable.kernels.cpu.vector import LANES, exp2, exp2_bounded, fill, keep, load, store, total

BOUNDED = 510.0
"""Exponents lie in [-2 beta, 0] (beta in base 2): below this bound they need no clamp."""


@inlined
def _pair(beta, c, s, c_j, s_j):
    """beta (cos(th_j - th_k) - 1) in base 2, and sin(th_j - th_k)."""
    return c_j * (beta * c) + (s_j * (beta * s) - beta), s_j * c - c_j * s


@inner
def members(problem, x, out):
    """Angular velocities of several systems at once, one per lane; `x` holds a vector per token, all cosines, then all sines."""
    beta = problem.beta[0]
    sine = problem.tokens * LANES
    for k in range(problem.tokens):
        c = load(x, k * LANES)
        s = load(x, sine + k * LANES)
        z = fill(own_weight(problem, k))
        force = fill(0.0)
        for q in range(4):
            start, stop = range_of_others(problem, k, q)
            for j in range(start, stop):
                exponent, pull = _pair(beta, c, s, load(x, j * LANES), load(x, sine + j * LANES))
                weight = exp2_bounded(exponent) if beta < BOUNDED else exp2(exponent)
                z = z + weight
                force = force + weight * pull
        for j in range(problem.frozen_count):
            exponent, pull = _pair(beta, c, s, problem.frozen[j], problem.frozen[problem.mass.size + j])
            weight = exp2(exponent) * problem.mass[j]
            z = z + weight
            force = force + weight * pull
        store(out, k * LANES, force / divisor(z))


@inlined
def row(problem, x, stride, k):
    """Angular velocity of token k of one system; other tokens fill the vectors: cosines, and sines from `stride` on."""
    beta, width = problem.beta[0], problem.mass.size
    c, s = x[k], x[stride + k]
    z, force = fill(0.0), fill(0.0)
    for q in range(4):
        start, stop = range_of_others(problem, k, q)
        for j in range(start, stop, LANES):
            exponent, pull = _pair(beta, c, s, load(x, j), load(x, stride + j))
            weight = exp2(exponent)
            if j + LANES > stop:
                weight = keep(weight, stop - j)
            z = z + weight
            force = force + weight * pull
    for j in range(0, width, LANES):
        exponent, pull = _pair(beta, c, s, load(problem.frozen, j), load(problem.frozen, width + j))
        weight = exp2(exponent) * load(problem.mass, j)
        z = z + weight
        force = force + weight * pull
    return total(force) / divisor(own_weight(problem, k) + total(z))
