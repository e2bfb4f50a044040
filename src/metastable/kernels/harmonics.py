"""Causal sums on the sphere S^2 in O(n L^2) for Q = K = V = I: the interaction as a short series of spherical harmonics.

    exp(beta (x.y - 1)) = sum_l g_l P_l(x.y),    g_l = (2 l + 1) sqrt(pi / (2 beta)) e^-beta I_{l+1/2}(beta),

and by the addition theorem P_l(x.y) is a sum over m of products of functions of x and of y. In coordinates without poles

    P_l(x.y) = sum_{m=0}^l q_lm(x_3) q_lm(y_3) Re[(x_1 + i x_2)^m (y_1 - i y_2)^m],   q_lm ~ d^m P_l / dz^m,

so sums over earlier tokens are prefix sums A_lm, B_lm. The force is the tangent gradient of Z_k(x)/beta, which needs q_lm and its
derivative in z only; both follow from the three-term recurrence in l (upward, stable). The degree L grows like sqrt(beta).

Vectors hold eight members or eight stretches of one sequence, as in `fourier`.
"""

from __future__ import annotations

import numpy as np

from metastable.kernels.cpu.compiled import inner
from metastable.kernels.cpu.vector import LANES, fill, load, store
from metastable.kernels.fourier import SMALLEST_BETA, pair_tolerance

DEGREE_LIMIT = 4096


def degree_for(beta: float, tolerance: float) -> tuple[int, np.ndarray]:
    """Degree L whose neglected tail, in weight and in force, is below `tolerance`; and g_0..g_L."""
    from scipy.special import ive

    top = 32
    while True:
        l = np.arange(top)
        g = (2 * l + 1) * np.sqrt(np.pi / (2 * beta)) * ive(l + 0.5, beta)
        # |grad P_l| <= l (l + 1) / 2, and the force is the gradient over beta.
        size = g * np.maximum(1.0, 0.5 * l * (l + 1) / beta)
        tail = np.cumsum(size[::-1])[::-1]
        if size[-1] < 1e-6 * tolerance or top >= DEGREE_LIMIT:
            degree = max(1, int(np.argmax(tail < tolerance)) - 1)
            return degree, g[: degree + 1]
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


@inner
def add_stretch(problem, x, length, sums):
    """Add the harmonics of all tokens of each lane to `sums` (two vectors per (m, l), in the order of the coefficients).

    `x` holds three vectors per token.
    """
    degree = problem.modes
    for i in range(length):
        a = load(x, 3 * i * LANES)
        b = load(x, (3 * i + 1) * LANES)
        z = load(x, (3 * i + 2) * LANES)
        c = fill(1.0)
        s = fill(0.0)
        place = 0
        for m in range(degree + 1):
            q = fill(0.0)
            q_old = fill(-1.0)
            for _ in range(m, degree + 1):
                q, q_old = (z * q) * problem.rise[place] - q_old * problem.fall[place], q
                at = 2 * LANES * place
                store(sums, at, load(sums, at) + q * c)
                store(sums, at + LANES, load(sums, at + LANES) + q * s)
                place += 1
            c, s = c * a - s * b, c * b + s * a


@inner
def sphere_stretch(problem, x, length, sums, out):
    """Velocities (three vectors per token) of the tokens of each lane, one after the other; `sums` is what lies before them."""
    degree = problem.modes
    inverse_beta = problem.ratio[0]
    for i in range(length):
        a = load(x, 3 * i * LANES)
        b = load(x, (3 * i + 1) * LANES)
        z = load(x, (3 * i + 2) * LANES)
        c = fill(1.0)
        s = fill(0.0)
        c_old = fill(0.0)
        s_old = fill(0.0)
        weight = fill(0.0)
        grad_x = fill(0.0)
        grad_y = fill(0.0)
        grad_z = fill(0.0)
        place = 0
        for m in range(degree + 1):
            q = fill(0.0)
            slope = fill(0.0)
            q_old = fill(-1.0)
            slope_old = fill(0.0)
            even = fill(0.0)
            odd = fill(0.0)
            even_z = fill(0.0)
            odd_z = fill(0.0)
            for _ in range(m, degree + 1):
                rise = problem.rise[place]
                fall = problem.fall[place]
                # The derivative in z obeys the derivative of the recurrence.
                slope, slope_old = (z * slope + q) * rise - slope_old * fall, slope
                q, q_old = (z * q) * rise - q_old * fall, q
                at = 2 * LANES * place
                real = load(sums, at) + q * c
                imaginary = load(sums, at + LANES) + q * s
                store(sums, at, real)
                store(sums, at + LANES, imaginary)
                even = even + q * real
                odd = odd + q * imaginary
                even_z = even_z + slope * real
                odd_z = odd_z + slope * imaginary
                place += 1
            weight = weight + even * c + odd * s
            grad_z = grad_z + even_z * c + odd_z * s
            # d(x + i y)^m = m (x + i y)^(m-1) (dx + i dy)
            grad_x = grad_x + (1.0 * m) * (even * c_old + odd * s_old)
            grad_y = grad_y + (1.0 * m) * (odd * c_old - even * s_old)
            c_old = c
            s_old = s
            c, s = c * a - s * b, c * b + s * a
        radial = grad_x * a + grad_y * b + grad_z * z
        scale = inverse_beta / weight
        store(out, 3 * i * LANES, scale * (grad_x - radial * a))
        store(out, (3 * i + 1) * LANES, scale * (grad_y - radial * b))
        store(out, (3 * i + 2) * LANES, scale * (grad_z - radial * z))
