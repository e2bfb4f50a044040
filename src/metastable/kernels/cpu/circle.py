"""Direct sums on the circle for Q = K = V = I, in angles.

    dth_k/dt = (1/Z_k) sum_j exp(beta (cos(th_j - th_k) - 1)) sin(th_j - th_k)

One exponential per pair: cosine and sine of every token are kept, those of differences are products. The token itself is
left out of the sums (it pulls with force zero; `rules.own_weight` is what it weighs), and the sine is formed for each pair, so a
force of 1e-50 is as accurate, relatively, as one of order one.
"""

from __future__ import annotations

from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.rules import divisor, own_weight, segment
from metastable.kernels.cpu.vector import LANES, exp2, exp2_bounded, fill, first, keep, load, store, total

BOUNDED = 510.0
"""Exponents lie in [-2 beta, 0] (beta in base 2): below this bound they need no clamp."""


@inlined
def _exponent(beta, c, s, c_j, s_j):
    """beta (cos(th_j - th_k) - 1), in base 2."""
    return c_j * (beta * c) + (s_j * (beta * s) - beta)


@inner
def members(problem, cosine, sine, out):
    """Angular velocities of several systems at once, one per lane; arrays hold a vector per token."""
    beta = problem.beta[0]
    width = problem.mass.size
    for k in range(problem.tokens):
        c = load(cosine, k * LANES)
        s = load(sine, k * LANES)
        z = fill(own_weight(problem, k))
        force = fill(0.0)
        for part in range(4):
            start, stop = segment(problem, k, part, k)
            for j in range(start, stop):
                c_j = load(cosine, j * LANES)
                s_j = load(sine, j * LANES)
                exponent = _exponent(beta, c, s, c_j, s_j)
                weight = exp2_bounded(exponent) if beta < BOUNDED else exp2(exponent)
                z = z + weight
                force = force + weight * (s_j * c - c_j * s)
        for j in range(problem.frozen_count):
            c_j = problem.frozen[j]
            s_j = problem.frozen[width + j]
            weight = exp2(_exponent(beta, c, s, c_j, s_j)) * problem.mass[j]
            z = z + weight
            force = force + weight * (s_j * c - c_j * s)
        store(out, k * LANES, force / divisor(z))


@inlined
def row(problem, cosine, sine, k):
    """Angular velocity of token k of one system; other tokens fill the vectors (arrays are padded by a vector)."""
    beta = problem.beta[0]
    c = cosine[k]
    s = sine[k]
    z = fill(0.0)
    force = fill(0.0)
    z_odd = fill(0.0)
    force_odd = fill(0.0)
    for part in range(4):
        j, stop = segment(problem, k, part, k)
        while j + 2 * LANES <= stop:
            c_j = load(cosine, j)
            s_j = load(sine, j)
            weight = exp2(_exponent(beta, c, s, c_j, s_j))
            z = z + weight
            force = force + weight * (s_j * c - c_j * s)
            c_j = load(cosine, j + LANES)
            s_j = load(sine, j + LANES)
            weight = exp2(_exponent(beta, c, s, c_j, s_j))
            z_odd = z_odd + weight
            force_odd = force_odd + weight * (s_j * c - c_j * s)
            j += 2 * LANES
        while j < stop:
            c_j = load(cosine, j)
            s_j = load(sine, j)
            weight = keep(exp2(_exponent(beta, c, s, c_j, s_j)), stop - j)
            z = z + weight
            force = force + weight * (s_j * c - c_j * s)
            j += LANES
    width = problem.mass.size
    for j in range(0, width, LANES):
        c_j = load(problem.frozen, j)
        s_j = load(problem.frozen, width + j)
        weight = exp2(_exponent(beta, c, s, c_j, s_j)) * load(problem.mass, j)
        z_odd = z_odd + weight
        force_odd = force_odd + weight * (s_j * c - c_j * s)
    return total(force + force_odd) / first(divisor(fill(own_weight(problem, k) + total(z + z_odd))))
