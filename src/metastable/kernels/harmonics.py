"""Sums on the sphere S^2 in O(n L^2) for Q = K = V = I: the interaction as a short series of spherical harmonics.

    exp(beta (x.y - 1)) = sum_l g_l P_l(x.y),    g_l = (2 l + 1) sqrt(pi / (2 beta)) e^-beta I_{l+1/2}(beta),

and by the addition theorem P_l(x.y) is a sum over m of products of functions of x and of y. In coordinates without poles

    P_l(x.y) = sum_{m=0}^l q_lm(x_3) q_lm(y_3) Re[(x_1 + i x_2)^m (y_1 - i y_2)^m],   q_lm ~ d^m P_l / dz^m,

so sums over earlier tokens are prefix sums A_lm, B_lm. The force is the tangent gradient of Z_k(x)/beta, which needs q_lm and its
derivative in z only; both follow from the three-term recurrence in l (upward, stable). The degree L grows like sqrt(beta).

Tokens that see one another wholly share one total of each, and repulsion mirrors what is added, as in `fourier`. Vectors
hold members or stretches of one sequence, as there.
"""

from __future__ import annotations

import math

import numpy as np

from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.vector import LANES, fill, load, spread, store
from metastable.kernels.expansion import truncated
from metastable.kernels.fourier import SMALLEST_BETA, divisor, pair_tolerance

DEGREE_LIMIT = 1500
"""q_lm(z) reaches (1 + sqrt(2))^(l/2) at the poles, its derivative l^2 times that: beyond this degree they leave double precision."""


def degree_for(beta: float, tolerance: float) -> tuple[int, np.ndarray]:
    """Degree L whose neglected tail, in weight and in force, is below `tolerance`; and g_0..g_L."""
    from scipy.special import ive

    scale, beyond = np.sqrt(np.pi / (2 * beta)), f"a degree above {DEGREE_LIMIT}"
    return truncated(lambda l: (2 * l + 1) * scale * ive(l + 0.5, beta), beta, tolerance, DEGREE_LIMIT, beyond)


def sphere_series(
    beta: float, tokens: int, tolerance: float, loss: float = 1.0
) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Degree L (for |beta|), [1/beta], and the coefficients `rise`, `fall` of the recurrence, flat: m = 0..L, and within each m
    l = m..L.

    q_lm = rise_lm z q_{l-1,m} - fall_lm q_{l-2,m}, normalised so that the kernel is the plain sum of products. At l = m the
    recurrence is started by q_{m-1} = 0, q_{m-2} = -1, rise = 0 and fall = q_mm.
    """
    from scipy.special import gammaln

    size = max(abs(beta), SMALLEST_BETA)
    degree, g = degree_for(size, pair_tolerance(tokens, tolerance, loss))
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
    return degree, np.array([1.0 / (-size if beta < 0 else size)]), np.concatenate(rise), np.concatenate(fall)


def harmonic_sums(tokens: np.ndarray, weights: np.ndarray, rise: np.ndarray, fall: np.ndarray) -> np.ndarray:
    """Sums over tokens (k, 3) of their weights times q_lm(z) (x + i y)^m, (harmonics, 2) in the order of the coefficients."""
    degree = (math.isqrt(8 * rise.size + 1) - 3) // 2
    result, place = np.empty((rise.size, 2)), 0
    power = np.asarray(weights, dtype=complex)
    for m in range(degree + 1):
        value, old = np.zeros(len(tokens)), np.full(len(tokens), -1.0)
        for _ in range(m, degree + 1):
            value, old = rise[place] * tokens[:, 2] * value - fall[place] * old, value
            total = np.sum(value * power)
            result[place] = total.real, total.imag
            place += 1
        power = power * (tokens[:, 0] + 1j * tokens[:, 1])
    return result


@inlined
def _token(x, i):
    """The three coordinates of token i in each lane."""
    return load(x, 3 * i * LANES), load(x, (3 * i + 1) * LANES), load(x, (3 * i + 2) * LANES)


@inlined
def turn(power, token):
    """(x_1 + i x_2)^(m + 1), and behind it (x_1 + i x_2)^m, from the one before: real and imaginary parts."""
    c, s, _, _ = power
    a, b, _ = token
    return c * a - s * b, c * b + s * a, c, s


@inlined
def climb(q, z, rise, fall):
    """q_lm and its derivative in z, and behind them those of l - 1, from the degree before. (The derivative obeys the derivative of the
    recurrence.)"""
    value, slope, value_old, slope_old = q
    up = z * rise
    return up * value - fall * value_old, up * slope + (rise * value - fall * slope_old), value, slope


@inlined
def _mirrored(token, mirror):
    """A token, or the point opposite to it for `mirror` -1."""
    return token[0] * mirror, token[1] * mirror, token[2] * mirror


@inner
def add_stretch(problem, stretch, last):
    """Add the harmonics of the first `last` tokens of each lane, times their masses, to the sums (two vectors per (m, l), in
    the order of the coefficients)."""
    sums, mass = stretch.sums, stretch.mass
    for i in range(0, last, 2):
        # An odd token out is added with weight zero in place of the second.
        j, present = (i + 1, 1.0) if i + 1 < last else (i, 0.0)
        token_1, token_2 = _token(stretch.x, i), _token(stretch.x, j)
        token_1, token_2 = _mirrored(token_1, problem.mirror), _mirrored(token_2, problem.mirror)
        power_1 = (load(mass, i * LANES), fill(0.0), fill(0.0), fill(0.0))
        power_2 = (load(mass, j * LANES) * present, fill(0.0), fill(0.0), fill(0.0))
        place = 0
        for m in range(problem.modes + 1):
            q1 = q2 = fill(0.0)
            q1_old = q2_old = fill(-1.0)
            for _ in range(m, problem.modes + 1):
                rise, fall = spread(problem.rise, place), spread(problem.fall, place)
                q1, q1_old = (token_1[2] * rise) * q1 - fall * q1_old, q1
                q2, q2_old = (token_2[2] * rise) * q2 - fall * q2_old, q2
                at = 2 * LANES * place
                store(sums, at, load(sums, at) + q1 * power_1[0] + q2 * power_2[0])
                store(sums, at + LANES, load(sums, at + LANES) + q1 * power_1[1] + q2 * power_2[1])
                place += 1
            power_1, power_2 = turn(power_1, token_1), turn(power_2, token_2)


@inlined
def _add_degree(order, q, real, imaginary):
    """Sums over the degrees of one order m: of q and of its derivative, times the real and the imaginary prefix sum."""
    even, odd, even_z, odd_z = order
    return even + q[0] * real, odd + q[0] * imaginary, even_z + q[1] * real, odd_z + q[1] * imaginary


@inlined
def _add_order(gradient, order, power, m):
    """Add one order m to the weight and its gradient: d(x + i y)^m = m (x + i y)^(m-1) (dx + i dy)."""
    weight, x, y, z = gradient
    even, odd, even_z, odd_z = order
    c, s, c_old, s_old = power
    weight = weight + even * c + odd * s
    x = x + m * (even * c_old + odd * s_old)
    y = y + m * (odd * c_old - even * s_old)
    return weight, x, y, z + even_z * c + odd_z * s


@inlined
def _finish(problem, stretch, token, gradient, i, out):
    """Velocity of token i: the tangent part of the gradient over beta Z."""
    a, b, z = token
    weight, x, y, up = gradient
    radial = x * a + y * b + up * z
    scale = problem.ratio[0] / divisor(problem, stretch, i, weight)
    store(out, 3 * i * LANES, scale * (x - radial * a))
    store(out, (3 * i + 1) * LANES, scale * (y - radial * b))
    store(out, (3 * i + 2) * LANES, scale * (up - radial * z))


@inner
def walk(problem, stretch, first, last, grows, out):
    """Velocities (three vectors per token) of the tokens first..last of each lane.

    `grows` True: one after the other, the sums are what lies before them; None (in code of its own): they see one another wholly, the
    sums are those of everybody. Two tokens at a time (1 and 2 in the names) share the loads of sums and coefficients.
    """
    sums = stretch.sums
    none = (fill(0.0), fill(0.0), fill(0.0), fill(0.0))
    for i in range(first, last, 2):
        second = i + 1 < last
        token_1, token_2 = _token(stretch.x, i), _token(stretch.x, i + 1 if second else i)
        power_1 = power_2 = (fill(1.0), fill(0.0), fill(0.0), fill(0.0))
        gradient_1 = gradient_2 = none
        place = 0
        for m in range(problem.modes + 1):
            q1 = q2 = (fill(0.0), fill(0.0), fill(-1.0), fill(0.0))
            order_1 = order_2 = none
            for _ in range(m, problem.modes + 1):
                rise, fall = spread(problem.rise, place), spread(problem.fall, place)
                q1, q2 = climb(q1, token_1[2], rise, fall), climb(q2, token_2[2], rise, fall)
                at = 2 * LANES * place
                real, imaginary = load(sums, at), load(sums, at + LANES)
                if grows is not None:
                    real, imaginary = real + q1[0] * power_1[0], imaginary + q1[0] * power_1[1]
                order_1 = _add_degree(order_1, q1, real, imaginary)
                if grows is not None:
                    real, imaginary = real + q2[0] * power_2[0], imaginary + q2[0] * power_2[1]
                    store(sums, at, real)
                    store(sums, at + LANES, imaginary)
                order_2 = _add_degree(order_2, q2, real, imaginary)
                place += 1
            gradient_1 = _add_order(gradient_1, order_1, power_1, 1.0 * m)
            gradient_2 = _add_order(gradient_2, order_2, power_2, 1.0 * m)
            power_1, power_2 = turn(power_1, token_1), turn(power_2, token_2)
        _finish(problem, stretch, token_1, gradient_1, i, out)
        if second:
            _finish(problem, stretch, token_2, gradient_2, i + 1, out)
