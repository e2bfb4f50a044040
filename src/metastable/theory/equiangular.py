"""Equiangular tokens: all pairs at the same cosine, which full attention preserves, leaving one scalar equation."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastable import _checks
from metastable.errors import InvalidInputError, NumericalRangeError

FloatArray = NDArray[np.float64]
EquiangularWeights = Literal["softmax", "unnormalized"]

COSINE_ROUNDING = 1e-9
"""How far outside its range a computed cosine may lie."""

LARGEST_EXPONENT = 700.0
"""Beyond it exp leaves the range of double precision."""

REST_EXPONENT = 746.0
"""exp of this, times the rounding of v, is longer than any time of double precision: nothing moves."""

TIME_SCALE = 40.0
"""Softmax clocks tick in units of exp(40), so that exp(REST_EXPONENT) of them can be counted."""


def _check(tokens: int, beta: float, weights: str) -> tuple[int, float]:
    tokens = _checks.count(tokens, "tokens", minimum=2)
    beta = _checks.number(beta, "beta", 0.0)
    _checks.choice(weights, "weights", ("softmax", "unnormalized"))
    if weights == "unnormalized" and beta > LARGEST_EXPONENT:
        raise NumericalRangeError(
            f"unnormalised weights reach exp(beta) = exp({beta:g}), beyond double precision; use beta below "
            f"{LARGEST_EXPONENT:g} or weights='softmax'"
        )
    return tokens, beta


def _speed(gap: Any, tokens: int, beta: float, weights: str) -> Any:
    """-(d gap/dt)/gap for gap = 1 - rho: exact and positive down to gap -> 0."""
    numerator = 2.0 * np.exp(-beta * gap) * ((tokens - 1) * (1.0 - gap) + 1.0)
    if weights == "softmax":
        return numerator / (1.0 + (tokens - 1) * np.exp(-beta * gap))
    return numerator * math.exp(beta) / tokens


def equiangular_rate(rho: ArrayLike, tokens: int, beta: float, weights: EquiangularWeights = "softmax") -> Any:
    """Rate d rho/dt of the common cosine rho = <x_i, x_j> of equiangular tokens under full attention, Q = K = V = I.

    softmax:       d rho/dt = 2 e^{beta rho} (1 - rho)((n-1) rho + 1) / (e^beta + (n-1) e^{beta rho})
    unnormalized:  the same numerator over n (Z_k is replaced by the number of tokens)

    Both sides are divided by e^beta first, so softmax never overflows.

    Args:
        rho: common cosine, between -1/(n-1) and 1, any shape.
        tokens: n >= 2.
        beta: inverse temperature >= 0.
        weights: "softmax" or "unnormalized" (USA).

    Returns:
        A float for a scalar rho, otherwise an array of its shape.

    Reference: arXiv:2512.01868; arXiv:2312.10794, section 6 (both kinds of weights).
    """
    tokens, beta = _check(tokens, beta, weights)
    cosine = _checks.real_array(rho, "rho")
    _check_cosine(cosine, tokens)
    gap = np.maximum(1.0 - cosine, 0.0)  # a cosine may exceed one by rounding
    rate = gap * _speed(gap, tokens, beta, weights)
    return float(rate) if cosine.ndim == 0 else rate


def _check_cosine(cosine: FloatArray, tokens: int) -> None:
    lowest = -1.0 / (tokens - 1)
    if (cosine < lowest - COSINE_ROUNDING).any() or (cosine > 1.0 + COSINE_ROUNDING).any():
        raise InvalidInputError(
            f"rho must lie between -1/(tokens - 1) = {lowest:.6g} and 1: no other cosine is shared by {tokens} unit vectors"
        )


def equiangular_flow(
    rho: float, tokens: int, beta: float, times: ArrayLike, weights: EquiangularWeights = "softmax"
) -> FloatArray:
    """Common cosine rho(t) of equiangular tokens at the given times (see `equiangular_rate` for the equation).

    With g = 1 - rho and v = ln(g/(n - (n-1) g)) the equation separates: dt/dv = -(e^{beta g} + n - 1)/(2n) for softmax
    and -e^{-beta (1 - g)}/2 for unnormalised weights. t(v) is integrated by Gauss-Legendre panels and inverted, so the
    result is accurate to rounding on any horizon, also through metastable phases of length exp(beta).

    Args:
        rho: cosine at t = 0, between -1/(n-1) (the regular simplex, which rests) and 1.
        tokens: n >= 2.
        beta: inverse temperature >= 0.
        times: increasing times >= 0, shape (m,).
        weights: "softmax" or "unnormalized".

    Returns:
        Cosines, shape (m,).

    Reference: arXiv:2512.01868 (the equation; the separation is elementary).
    """
    tokens, beta = _check(tokens, beta, weights)
    times = _checks.output_times(times)
    start = _checks.number(rho, "rho")
    _check_cosine(np.asarray(start), tokens)
    gap = 1.0 - start
    to_simplex = tokens - (tokens - 1) * gap
    if gap <= 0 or to_simplex <= 0:  # one point and the regular simplex rest
        return np.full(times.size, start)
    clock = _Clock(tokens, beta, weights, math.log(gap / to_simplex))
    return 1.0 - np.array([_gap(clock.variable_at(float(time)), tokens) for time in times])


def _gap(variable: Any, tokens: int) -> Any:
    """g = 1 - rho from v = ln(g/(n - (n-1) g))."""
    growth = np.exp(variable)
    return tokens * growth / (1.0 + (tokens - 1) * growth)


class _Clock:
    """Time as a function of v (decreasing from its start), in panels made as they are needed, and its inverse."""

    def __init__(self, tokens: int, beta: float, weights: str, start: float) -> None:
        self.tokens, self.beta, self.weights = tokens, beta, weights
        self.edges, self.elapsed = [start], [0.0]
        self.unit = math.exp(-TIME_SCALE) if weights == "softmax" else 1.0
        self.node, self.weight = np.polynomial.legendre.leggauss(20)

    def slowness(self, variable: Any) -> Any:
        """-dt/dv, in units of this clock."""
        gap = _gap(variable, self.tokens)
        if self.weights == "softmax":
            waiting = np.exp(self.beta * gap - math.log(2.0 * self.tokens) - TIME_SCALE)
            return waiting + self.unit * (self.tokens - 1) / (2.0 * self.tokens)
        return 0.5 * np.exp(-self.beta * (1.0 - gap))

    def between(self, low: float, high: float) -> float:
        """Time in which v falls from `high` to `low`."""
        half = 0.5 * (high - low)
        return half * float(self.weight @ self.slowness(low + half * (self.node + 1.0)))

    def variable_at(self, time: float) -> float:
        """v at the given time; times must be asked for in increasing order."""
        time *= self.unit
        while self.elapsed[-1] < time:
            edge = self.edges[-1]
            gap = float(_gap(edge, self.tokens))
            if self.weights == "softmax" and self.beta * gap - math.log(2.0 * self.tokens) > REST_EXPONENT:
                return edge
            if max(self.beta, 1.0) * gap < 1e-18:  # from here on the rate is constant
                return edge - (time - self.elapsed[-1]) / float(self.slowness(edge))
            slope = self.beta * gap * (self.tokens - (self.tokens - 1) * gap) / self.tokens
            step = min(0.5, 1.0 / slope) if slope > 0 else 0.5
            self.edges.append(edge - step)
            self.elapsed.append(self.elapsed[-1] + self.between(edge - step, edge))
        if len(self.edges) == 1:
            return self.edges[0]
        panel = int(np.searchsorted(self.elapsed, time)) if time > 0 else 1
        high, before = self.edges[panel - 1], self.elapsed[panel - 1]
        from scipy.optimize import brentq

        root: Any = brentq(lambda v: before + self.between(v, high) - time, self.edges[panel], high, xtol=1e-15)
        return float(root)
