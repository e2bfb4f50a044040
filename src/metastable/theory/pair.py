"""Two tokens (Q = K = V = I, causal): the exact time in which the second collapses onto the first."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastable import _checks
from metastable.errors import InvalidInputError, NumericalRangeError

LARGEST_LOGARITHM = math.log(np.finfo(np.float64).max)
NEGLIGIBLE_EXPONENT = 60.0
"""Parts of the integrand smaller than exp(-60) of its maximum do not reach the last digit."""


def log_pair_collapse_time(end: float, beta: float, start: float | None = None, gap: float | None = None) -> float:
    """Natural logarithm of `pair_collapse_time`: does not overflow for any beta."""
    end = _checks.number(end, "end", 0.0, math.pi, strict=True)
    beta = _checks.number(beta, "beta", 0.0)
    if (start is None) == (gap is None):
        raise InvalidInputError("give exactly one of start (the angle at t = 0) and gap (pi minus that angle)")
    if gap is not None:
        gap = _checks.number(gap, "gap", 0.0, math.pi, strict=True)
        first = -_log_tangent(gap)
    else:
        start = _checks.number(start, "start", 0.0, math.pi, strict=True)
        first = _log_tangent(start)
    last = _log_tangent(end)
    if last >= first:
        raise InvalidInputError("end must be smaller than the angle at t = 0: the angle decreases")
    integral = _scaled_integral(last, first, beta)
    # 1 + tanh(first) without cancellation.
    leading = beta * (2.0 / (1.0 + math.exp(min(-2.0 * first, 700.0)))) + math.log(integral)
    if not math.isfinite(leading):
        raise NumericalRangeError(
            f"beta={beta:g} is too large: the logarithm of the time, 2 beta, leaves double precision"
        )
    return float(np.logaddexp(math.log(first - last), leading))


def _log_tangent(angle: float) -> float:
    """ln tan(angle/2), also where half the angle underflows."""
    return math.log(math.tan(0.5 * angle)) if angle > 1e-300 else math.log(angle) - math.log(2.0)


def pair_collapse_time(end: float, beta: float, start: float | None = None, gap: float | None = None) -> float:
    """Time in which the angle between two tokens shrinks from its start to `end`.

    Token 1 rests and the angle x obeys dx/dt = -h(x)/(1 + e^{beta(cos x - 1)}), so

        t = integral from end to start of (1 + e^{beta(1 - cos x)})/sin x dx.

    With tan(x/2) = e^w this is the integral of 1 + e^{beta(1 + tanh w)} dw, smooth up to the antipode; the largest value
    of the exponential is divided out before integrating. The formula holds in every dimension.

    Args:
        end: final angle, 0 < end < start (angle 0 is reached only as t -> infinity, at rate 1/2).
        beta: inverse temperature >= 0.
        start: angle at t = 0, below pi. Within 1e-8 of pi pass `gap` instead: pi - angle is not representable there.
        gap: pi minus the angle at t = 0 (exactly one of `start` and `gap`).

    Raises:
        NumericalRangeError: the time exceeds 1.8e308 (use `log_pair_collapse_time`).

    Reference: separation of variables in the paper's equation (CSA) for two tokens on the circle.
    """
    logarithm = log_pair_collapse_time(end, beta, start, gap)
    if logarithm > LARGEST_LOGARITHM:
        raise NumericalRangeError(
            f"the collapse time is exp({logarithm:.6g}), beyond double precision; use log_pair_collapse_time"
        )
    return math.exp(logarithm)


class PairElasticities(NamedTuple):
    """d log t/d log(knob) of the time t in which a token collapses onto a place: see `pair_elasticities`."""

    beta: float
    mass: float
    distance: float


def pair_elasticities(end: float, beta: float, start: float, mass: float = 1.0) -> PairElasticities:
    """How the time in which a token falls onto `mass` tokens at the angle `start` depends on beta, mass and angle, as d log t/d log.

    The time is t = integral from end to start of (1 + e^{beta u}/m)/sin x dx, u = 1 - cos x (`pair_collapse_time` has m = 1), so

        beta:      beta integral (u e^{beta u}/m)/sin x dx / t        = beta (1 - cos D) (1 - 1/(beta (1 - cos D)) + ...)
        mass:      -integral (e^{beta u}/m)/sin x dx / t              = -1 + ...
        distance:  D (1 + e^{beta (1 - cos D)}/m)/(sin(D) t)          = beta D sin D (1 + ...)

    with D = `start`: the leading terms are those of t ~ e^{beta (1 - cos D)}/(m beta sin^2 D), up to the factor beta sin^2 D.

    Args:
        end, start: final and first angle, 0 < end < start < pi.
        beta: inverse temperature > 0.
        mass: m > 0, the tokens at the place (which sees none of the falling token).

    Reference: separation of variables in the paper's equation (CSA), differentiated under the integral.
    """
    end = _checks.number(end, "end", 0.0, math.pi, strict=True)
    start = _checks.number(start, "start", end, math.pi, strict=True)
    beta = _checks.number(beta, "beta", 0.0, strict=True)
    mass = _checks.number(mass, "mass", 0.0, strict=True)
    first, last = _log_tangent(start), _log_tangent(end)
    height = 2.0 / (1.0 + math.exp(min(-2.0 * first, 700.0)))  # 1 - cos D
    # All terms over e^{beta (1 - cos D)}/m, which may leave double precision.
    waiting = _scaled_integral(last, first, beta)
    weighted = _scaled_integral(last, first, beta, raised=True)
    rest = math.exp(max(-beta * height, -745.0)) * mass
    total = waiting + rest * (first - last)
    return PairElasticities(
        beta * weighted / total,
        -waiting / total,
        start * (1.0 + rest) / (math.sin(start) * total),
    )


def _scaled_integral(low: float, high: float, beta: float, raised: bool = False) -> float:
    """Integral over [low, high] of exp(-beta (tanh(high) - tanh(w))) dw by Gauss-Legendre on panels in s = high - w.

    `raised`: of (1 + tanh(w)) times it.

    The panels end where the exponent reaches powers of sqrt(2) and are at most half a unit long, so each holds a smooth
    function of moderate variation. What lies beyond the last power is negligible and left out. tanh(high) - tanh(high - s) = E
    has the solution tanh(s) = E/(1 - tanh(high)^2 + tanh(high) E), which keeps its digits however large beta is.
    """
    length = high - low
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        heights = NEGLIGIBLE_EXPONENT * 2.0 ** np.arange(-10.0, 0.5, 0.5) / beta
        reached = heights / (math.cosh(min(abs(high), 350.0)) ** -2.0 + math.tanh(high) * heights)
    found = (reached > 0) & (reached < 1)
    cuts = np.arctanh(reached[found])
    if found[-1]:
        length = min(length, float(cuts[-1]))
    regular = np.linspace(0.0, length, max(2, math.ceil(2.0 * length) + 1))
    edges = np.unique(np.concatenate([regular, cuts[cuts < length]]))
    node, weight = np.polynomial.legendre.leggauss(24)
    half = 0.5 * np.diff(edges)[:, None]
    points = edges[:-1, None] + half * (node + 1.0)
    with np.errstate(over="ignore"):
        values = half * weight * np.exp(-beta * _tanh_difference(high, points))
    if raised:
        values = values * (1.0 + np.tanh(high - points))
    return math.fsum(values.ravel())


def _tanh_difference(a: float, s: NDArray[np.float64]) -> NDArray[np.float64]:
    """tanh(a) - tanh(a - s) for s >= 0, as a quotient of positive terms: neither cancels nor overflows."""
    growth = (1.0 + math.exp(min(-2.0 * a, 700.0))) * (1.0 + np.exp(np.minimum(2.0 * (a - s), 600.0)))
    return -2.0 * np.expm1(-2.0 * s) / growth
