"""Causal sums on the sphere S^2 in O(n L^2) for Q = K = V = I: the interaction as a short series of spherical harmonics.

    exp(beta (x.y - 1)) = sum_l g_l P_l(x.y),    g_l = (2 l + 1) sqrt(pi / (2 beta)) e^-beta I_{l+1/2}(beta),

and by the addition theorem P_l(x.y) is a sum over m of products of functions of x and of y. In coordinates without poles

    P_l(x.y) = sum_{m=0}^l q_lm(x_3) q_lm(y_3) Re[(x_1 + i x_2)^m (y_1 - i y_2)^m],   q_lm ~ d^m P_l / dz^m,

so sums over earlier tokens are prefix sums A_lm, B_lm. The force is the tangent gradient of Z_k(x)/beta, which needs q_lm and its
derivative in z only; both follow from the three-term recurrence in l (upward, stable). The degree L grows like sqrt(beta).

Vectors hold members or stretches of one sequence, as in `fourier`.
"""

from __future__ import annotations

import numpy as np

from metastable.errors import NumericalRangeError
from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.vector import LANES, fill, load, spread, store
from metastable.kernels.fourier import SMALLEST_BETA, pair_tolerance

DEGREE_LIMIT = 1500
"""q_lm(z) reaches (1 + sqrt(2))^(l/2) at the poles, its derivative l^2 times that: beyond this degree they leave double precision."""


def degree_for(beta: float, tolerance: float) -> tuple[int, np.ndarray]:
    """Degree L whose neglected tail, in weight and in force, is below `tolerance`; and g_0..g_L."""
    from scipy.special import ive

    top = 32
    while True:
        l = np.arange(top)
        g = (2 * l + 1) * np.sqrt(np.pi / (2 * beta)) * ive(l + 0.5, beta)
        # |d/dt P_l(cos t)| <= l (Bernstein), and the force is the gradient over beta.
        size = g * np.maximum(1.0, l / beta)
        tail = np.cumsum(size[::-1])[::-1]
        if size[-1] < 1e-6 * tolerance:
            degree = max(1, int(np.argmax(tail < tolerance)) - 1)
            if degree <= DEGREE_LIMIT:
                return degree, g[: degree + 1]
        if (
            not size[-1] >= 1e-6 * tolerance or top > DEGREE_LIMIT
        ):  # too high, or not a number: Bessel functions of huge beta
            raise NumericalRangeError(
                f"a series for beta = {beta:g} would need a degree above {DEGREE_LIMIT}; use interaction='direct'"
            )
        top *= 2


def sphere_series(beta: float, tokens: int, tolerance: float) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Degree L, [1/beta], and the coefficients `rise`, `fall` of the recurrence: m = 0..L, and l = m..L within each m, flat.

    q_lm = rise_lm z q_{l-1,m} - fall_lm q_{l-2,m}, normalised so that the kernel is the plain sum of products. At l = m the
    recurrence is started by q_{m-1} = 0, q_{m-2} = -1, rise = 0 and fall = q_mm.
    """
    from scipy.special import gammaln

    beta = max(beta, SMALLEST_BETA)
    degree, g = degree_for(beta, pair_tolerance(tokens, tolerance))
    rise, fall = [], []
    for m in range(degree + 1):
        l = np.arange(m, degree + 1)
        # Half the logarithm of g_l (2 - [m = 0]) (l - m)! / (l + m)!, the square of the normalisation of d^m P_l.
        with np.errstate(divide="ignore"):
            scale = 0.5 * (np.log(g[m:]) + np.log(1.0 if m == 0 else 2.0) + gammaln(l - m + 1) - gammaln(l + m + 1))
        first = np.zeros(l.size)
        second = np.zeros(l.size)
        first[1:] = (2 * l[1:] - 1) / (l[1:] - m) * np.exp(scale[1:] - scale[:-1])
        second[2:] = (l[2:] + m - 1) / (l[2:] - m) * np.exp(scale[2:] - scale[:-2])
        # d^m P_m / dz^m = (2 m - 1)!!
        second[0] = np.exp(scale[0] + gammaln(2 * m + 1) - gammaln(m + 1) - m * np.log(2.0))
        rise.append(first)
        fall.append(second)
    return degree, np.array([1.0 / beta]), np.concatenate(rise), np.concatenate(fall)


@inlined
def _token(x, place):
    """The three coordinates of a token in each lane."""
    return load(x, place), load(x, place + LANES), load(x, place + 2 * LANES)


@inlined
def _turn(c, s, a, b):
    """(c + i s) (a + i b): the next power of x_1 + i x_2."""
    return c * a - s * b, c * b + s * a


@inner
def add_stretch(problem, x, length, sums):
    """Add the harmonics of all tokens of each lane to `sums` (two vectors per (m, l), in the order of the coefficients).

    `x` holds three vectors per token.
    """
    degree = problem.modes
    for i in range(0, length, 2):
        place_1 = 3 * i * LANES
        # An odd token out is added with weight zero in place of the second.
        second = i + 1 < length
        place_2 = place_1 + 3 * LANES if second else place_1
        present = fill(1.0 if second else 0.0)
        a1, b1, z1 = _token(x, place_1)
        a2, b2, z2 = _token(x, place_2)
        c1 = fill(1.0)
        s1 = fill(0.0)
        c2 = present
        s2 = fill(0.0)
        place = 0
        for m in range(degree + 1):
            q1 = fill(0.0)
            q2 = fill(0.0)
            q1_old = fill(-1.0)
            q2_old = fill(-1.0)
            for _ in range(m, degree + 1):
                rise = spread(problem.rise, place)
                fall = spread(problem.fall, place)
                q1, q1_old = (z1 * rise) * q1 - fall * q1_old, q1
                q2, q2_old = (z2 * rise) * q2 - fall * q2_old, q2
                at = 2 * LANES * place
                store(sums, at, load(sums, at) + q1 * c1 + q2 * c2)
                store(sums, at + LANES, load(sums, at + LANES) + q1 * s1 + q2 * s2)
                place += 1
            c1, s1 = _turn(c1, s1, a1, b1)
            c2, s2 = _turn(c2, s2, a2, b2)


@inlined
def _finish(problem, a, b, z, weight, grad_x, grad_y, grad_z, out, place):
    """Tangent part of the gradient over beta Z."""
    radial = grad_x * a + grad_y * b + grad_z * z
    scale = problem.ratio[0] / weight
    store(out, place, scale * (grad_x - radial * a))
    store(out, place + LANES, scale * (grad_y - radial * b))
    store(out, place + 2 * LANES, scale * (grad_z - radial * z))


@inner
def sphere_stretch(problem, x, length, sums, out):
    """Velocities (three vectors per token) of the tokens of each lane, one after the other; `sums` is what lies before them.

    Two tokens at a time (1 and 2 in the names) share the loads of sums and coefficients.
    """
    degree = problem.modes
    for i in range(0, length, 2):
        second = i + 1 < length
        place_1 = 3 * i * LANES
        place_2 = place_1 + 3 * LANES if second else place_1
        a1, b1, z1 = _token(x, place_1)
        a2, b2, z2 = _token(x, place_2)
        c1 = fill(1.0)
        s1 = fill(0.0)
        c2 = fill(1.0)
        s2 = fill(0.0)
        c1_old = fill(0.0)
        s1_old = fill(0.0)
        c2_old = fill(0.0)
        s2_old = fill(0.0)
        weight_1 = fill(0.0)
        gx_1 = fill(0.0)
        gy_1 = fill(0.0)
        gz_1 = fill(0.0)
        weight_2 = fill(0.0)
        gx_2 = fill(0.0)
        gy_2 = fill(0.0)
        gz_2 = fill(0.0)
        place = 0
        for m in range(degree + 1):
            q1 = fill(0.0)
            q2 = fill(0.0)
            q1_old = fill(-1.0)
            q2_old = fill(-1.0)
            d1 = fill(0.0)
            d2 = fill(0.0)
            d1_old = fill(0.0)
            d2_old = fill(0.0)
            even_1 = fill(0.0)
            odd_1 = fill(0.0)
            even_z1 = fill(0.0)
            odd_z1 = fill(0.0)
            even_2 = fill(0.0)
            odd_2 = fill(0.0)
            even_z2 = fill(0.0)
            odd_z2 = fill(0.0)
            for _ in range(m, degree + 1):
                rise = spread(problem.rise, place)
                fall = spread(problem.fall, place)
                up_1 = z1 * rise
                up_2 = z2 * rise
                # The derivative in z obeys the derivative of the recurrence.
                d1, d1_old = up_1 * d1 + (rise * q1 - fall * d1_old), d1
                d2, d2_old = up_2 * d2 + (rise * q2 - fall * d2_old), d2
                q1, q1_old = up_1 * q1 - fall * q1_old, q1
                q2, q2_old = up_2 * q2 - fall * q2_old, q2
                at = 2 * LANES * place
                real = load(sums, at) + q1 * c1
                imaginary = load(sums, at + LANES) + q1 * s1
                even_1 = even_1 + q1 * real
                odd_1 = odd_1 + q1 * imaginary
                even_z1 = even_z1 + d1 * real
                odd_z1 = odd_z1 + d1 * imaginary
                real = real + q2 * c2
                imaginary = imaginary + q2 * s2
                store(sums, at, real)
                store(sums, at + LANES, imaginary)
                even_2 = even_2 + q2 * real
                odd_2 = odd_2 + q2 * imaginary
                even_z2 = even_z2 + d2 * real
                odd_z2 = odd_z2 + d2 * imaginary
                place += 1
            weight_1 = weight_1 + even_1 * c1 + odd_1 * s1
            weight_2 = weight_2 + even_2 * c2 + odd_2 * s2
            gz_1 = gz_1 + even_z1 * c1 + odd_z1 * s1
            gz_2 = gz_2 + even_z2 * c2 + odd_z2 * s2
            # d(x + i y)^m = m (x + i y)^(m-1) (dx + i dy)
            order = fill(1.0 * m)
            gx_1 = gx_1 + order * (even_1 * c1_old + odd_1 * s1_old)
            gy_1 = gy_1 + order * (odd_1 * c1_old - even_1 * s1_old)
            gx_2 = gx_2 + order * (even_2 * c2_old + odd_2 * s2_old)
            gy_2 = gy_2 + order * (odd_2 * c2_old - even_2 * s2_old)
            c1_old = c1
            s1_old = s1
            c2_old = c2
            s2_old = s2
            c1, s1 = _turn(c1, s1, a1, b1)
            c2, s2 = _turn(c2, s2, a2, b2)
        _finish(problem, a1, b1, z1, weight_1, gx_1, gy_1, gz_1, out, place_1)
        if second:
            _finish(problem, a2, b2, z2, weight_2, gx_2, gy_2, gz_2, out, place_2)
