"""Brownian motion on the sphere S^(d-1), exact in law at any step.

A Brownian motion of variance t (generator Delta/2) that starts at x is at cos(a) x + sin(a) u, where u is uniform among the unit
tangents at x and the angle a is independent of it. With theta = d - 1 and y = sin^2(a/2) = (1 - cos a)/2 the law of the angle is

    y ~ Beta(theta/2, theta/2 + M),    P(M = m) = P(the death chain from infinity with rates m (m + theta - 1)/2 is at m at time t)

(A. Mijatovic, V. Mramor, G. Uribe Bravo, *A note on the exact simulation of spherical Brownian motion*, Stat. Probab. Lett. 165
(2020), arXiv:1803.06263). All terms are positive, so its distribution function keeps its digits in every dimension.

Here the angle is a function of a Gaussian increment z in R^d: the tangent part P_x z has a length r with the chi law of d - 1 degrees,
independent of its direction, and a = T(r) with the increasing T that turns the one law into the other. So a step needs no random
numbers but z, and since T(r) = sqrt(t) r (1 + O(d t)) it is a geodesic step along sqrt(t) P_x z: paths converge as well (strong
order 1/2). On the circle T(r) = sqrt(t) r, the wrapped Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from metastable._checks import FloatArray

SHORT = 1e-8
"""Below this (d - 1) t the sphere is flat: T(r) = sqrt(t) r to the same relative error."""
SMOOTH = 1e-5
"""Below this t the law of M, whose mean is about 2/t, is taken as Gaussian: relative error t^2 in the law of the angle."""
UNIFORM = 80.0
"""Beyond this (d - 1) t the mean cosine is below exp(-40): the law is uniform, and M = 0."""
NEGLIGIBLE = 1e-14
"""Probabilities below this are left out; the map T is continued by its ends."""
STATES = 64
"""States of M that the law of the angle is summed over at the most (a stride beyond: the sum is then a trapezoidal rule)."""
KNOTS = 240
"""Points at which T is computed; a spline goes through them."""
GRID = 2**14
"""Points at which the spline is tabulated; a straight line between them is off by less than 1e-8."""


def move(x: FloatArray, normal: FloatArray, variance: float) -> FloatArray:
    """Unit rows x (tokens, dim) after a Brownian motion of the given variance, from standard normal rows of the same shape."""
    dim = x.shape[1]
    if dim == 2:
        # Beyond this variance the wrapped Gaussian is uniform to exp(-500).
        angle = x[:, 0] * normal[:, 1]
        angle -= x[:, 1] * normal[:, 0]
        angle *= math.sqrt(min(variance, 1e3))
        cosine, sine = np.cos(angle), np.sin(angle)
        moved = x * cosine[:, None]
        moved[:, 0] -= sine * x[:, 1]
        moved[:, 1] += sine * x[:, 0]
        return moved
    tangent = normal - np.einsum("ij,ij->i", x, normal)[:, None] * x
    length = np.sqrt(np.einsum("ij,ij->i", tangent, tangent))
    angle = angle_map(dim, variance)(length)
    length[length == 0] = 1.0
    tangent *= (np.sin(angle) / length)[:, None]
    tangent += np.cos(angle)[:, None] * x
    return tangent


@lru_cache(maxsize=64)
def angle_map(dim: int, variance: float) -> Callable[[FloatArray], FloatArray]:
    """The map T from the length of a standard normal tangent vector (dim - 1 degrees of freedom) to the angle moved, dim >= 3."""
    root = math.sqrt(variance)
    if (dim - 1) * variance < SHORT:
        return lambda length: root * length
    from scipy.interpolate import CubicSpline

    length, angle = _quantiles(dim, variance)
    # The quotient varies little, and its ends continue T: to first order at 0, and where nothing is ever drawn.
    grid = np.linspace(length[0], length[-1], GRID)
    quotient = CubicSpline(length, angle / length)(grid)
    return lambda length: np.minimum(np.interp(length, grid, quotient) * length, math.pi)


def _quantiles(dim: int, variance: float) -> tuple[FloatArray, FloatArray]:
    """Lengths r and angles a of equal probability, P(|P z| < r) = P(angle < a), increasing, over all but `NEGLIGIBLE` of it."""
    from scipy import special

    half = 0.5 * (dim - 1)
    states, weights = chain_law(dim, variance)
    bulk = np.cumsum(weights)
    few = states[np.searchsorted(bulk, NEGLIGIBLE)]
    many = states[min(np.searchsorted(bulk, 1.0 - NEGLIGIBLE), states.size - 1)]
    # Beta(half, half + M) lies to the left for large M.
    first = math.asin(math.sqrt(special.betaincinv(half, half + many, NEGLIGIBLE)))
    last = math.asin(math.sqrt(special.betaincinv(half, half + few, 1.0 - NEGLIGIBLE)))
    angle = 2.0 * np.linspace(first, last, KNOTS)
    y, other = np.sin(0.5 * angle)[:, None] ** 2, np.cos(0.5 * angle)[:, None] ** 2
    below = special.betainc(half, half + states, y) @ weights
    above = special.betainc(half + states, half, other) @ weights
    # Each side from its own tail, so that both keep their digits.
    length = np.sqrt(
        2.0
        * np.where(
            below < 0.5,
            special.gammaincinv(half, np.minimum(below, 1.0)),
            special.gammainccinv(half, np.minimum(above, 1.0)),
        )
    )
    drawn = (below > NEGLIGIBLE) & (above > NEGLIGIBLE)
    return length[drawn], angle[drawn]


def chain_law(dim: int, variance: float) -> tuple[FloatArray, FloatArray]:
    """States (not always whole: see `STATES`) and weights, summing to one, of the law of M; dim >= 3."""
    rate = dim - 2.0
    if (rate + 1.0) * variance > UNIFORM:
        return np.zeros(1), np.ones(1)
    # Without randomness: dm/dt = -m (m + rate)/2 from infinity.
    mean = rate / math.expm1(0.5 * rate * variance)
    if variance < SMOOTH:
        return _gaussian_law(rate, variance, mean)
    spread = math.sqrt(_chain_variance(rate, mean))
    low, high = max(1.0, math.floor(mean - 9.0 * spread)), math.ceil(mean + 9.0 * spread + 30.0)
    stride = max(1.0, (high - low) / STATES)
    states = np.arange(low, high + stride, stride)
    weights = stride * np.array([_occupation(rate, variance, m) for m in states])
    weights = np.maximum(weights, 0.0)
    if low == 1.0:
        states, weights = np.insert(states, 0, 0.0), np.insert(weights, 0, max(0.0, 1.0 - weights.sum()))
    return states, weights / weights.sum()


def _chain_variance(rate: float, mean: float) -> float:
    """Variance of M near its mean m: (lambda_m)^2 sum_{k>=m} lambda_k^-2 with the sum as an integral, to a relative error 1/m."""
    node, weight = np.polynomial.legendre.leggauss(16)
    u = 0.5 * (node + 1.0)
    ratio = rate / mean
    return mean * (1.0 + ratio) ** 2 * float(0.5 * weight @ (u / (1.0 + ratio * u)) ** 2)


def _gaussian_law(rate: float, variance: float, mean: float) -> tuple[FloatArray, FloatArray]:
    """M as a Gaussian with the exact E cos a = E[M/(M + theta)] = exp(-theta t/2), by Gauss-Hermite quadrature."""
    theta = rate + 1.0
    spread = _chain_variance(rate, mean)
    flat = -theta / math.expm1(-0.5 * theta * variance)  # 1/E[1/(M + theta)]
    center = flat * (1.0 + spread / flat**2) - theta
    node, weight = np.polynomial.hermite_e.hermegauss(7)
    return center + math.sqrt(spread) * node, weight / weight.sum()


def _occupation(rate: float, variance: float, m: float) -> float:
    """P(M = m) for m >= 1: the flow out of m at time t, which is the density of the time to leave m, divided by the rate of leaving.

    That time is a sum of independent exponentials, whose characteristic function is a quotient of Gamma functions:
    prod_{k>=m} (1 + i u/lambda_k)^-1 = G(m - r_1) G(m - r_2)/(G(m) G(m + rate)), r_i the roots of k^2 + rate k + 2 i u. It is
    inverted by the trapezoidal rule, whose error is the density one period away.
    """
    from scipy.special import digamma, loggamma

    leaving = 0.5 * m * (m + rate)
    when = 2.0 * float(digamma(m + rate) - digamma(m)) / rate
    spread = math.sqrt(_chain_variance(rate, m)) / leaving + 1.0 / leaving
    period = abs(when - variance) + 12.0 * spread + 40.0 / leaving

    def characteristic(u: Any) -> Any:
        root = np.sqrt(rate * rate - 8j * u)
        sum_ = loggamma(m + 0.5 * (rate + root)) + loggamma(m + 0.5 * (rate - root))
        return np.exp(sum_ - loggamma(m) - loggamma(m + rate))

    end = 8.0 / spread
    while abs(characteristic(np.array([end]))[0]) > 1e-17:
        end *= 1.5
    count = math.ceil(end * period / (2.0 * math.pi))
    u = (2.0 * math.pi / period) * np.arange(1.0, count + 1.0)
    density = (0.5 + np.sum(np.real(np.exp(1j * variance * u) * characteristic(u)))) * 2.0 / period
    return density / leaving
