"""How many Renyi centers and strong Renyi centers a random sequence of tokens has."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from metastable import _checks
from metastable.errors import InvalidInputError, NumericalRangeError
from metastable.sphere import cap_measure

FloatArray = NDArray[np.float64]


def _geometric_sum(measure: FloatArray, tokens: int | None) -> FloatArray:
    """sum_{k=1..n} (1 - s)^(k-1) = (1 - (1 - s)^n)/s, without cancellation for small s; 1/s for n infinite."""
    if tokens is None:
        with np.errstate(divide="ignore", over="ignore"):
            count = 1.0 / measure
        if np.isinf(count).any():
            raise NumericalRangeError(
                "the ball of this radius has a measure below 1e-308, so an infinite sequence has more centers than double "
                "precision can count; give tokens, or a larger radius"
            )
        return count
    with np.errstate(divide="ignore", invalid="ignore"):
        total = -np.expm1(tokens * np.log1p(-measure)) / measure
    return np.where(measure == 0, float(tokens), total)


def strong_centers(delta: ArrayLike, dim: int, tokens: int | None = None) -> Any:
    """Expected number of strong Renyi centers among uniform independent tokens.

    After n tokens (1 - (1 - sigma)^n)/sigma with sigma = sigma(B_delta) the normalised cap measure; 1/sigma for an
    infinite sequence: pi/delta for dim = 2, 1/sin^2(delta/2) for dim = 3. (An appendix of the paper prints
    (3 sin^2(delta/2))^(-1) for dim = 3; the cap measure is sin^2(delta/2), and simulation agrees with the latter.)

    Args:
        delta: geodesic radius > 0, any shape.
        dim: dimension of the space.
        tokens: n, or None for an infinite sequence.

    Returns:
        A float for a scalar delta, otherwise an array of its shape.

    Reference: the paper, Lemma C.1.
    """
    radius = _checks.real_array(delta, "delta")
    if (radius <= 0).any():
        raise InvalidInputError("delta must be greater than 0")
    count = _geometric_sum(np.asarray(cap_measure(radius, dim)), _tokens(tokens))
    return float(count) if radius.ndim == 0 else count


def strong_centers_from_measure(ball_measure: ArrayLike, tokens: int | None = None) -> float:
    """Expected number of strong centers for any law mu, from mu(B_delta(x)) at points x drawn from mu.

    E_x[1/mu(B_delta(x))] for an infinite sequence, sum_{k=1..n} E_x[(1 - mu(B_delta(x)))^(k-1)] after n tokens, with
    the expectation replaced by the mean over the given values.

    Args:
        ball_measure: mu(B_delta(x_i)) for independent x_i ~ mu, values in (0, 1].
        tokens: n, or None for an infinite sequence.

    Reference: the paper, Lemma C.1.
    """
    measure = _checks.real_array(ball_measure, "ball_measure")
    if measure.size == 0 or (measure <= 0).any() or (measure > 1).any():
        raise InvalidInputError("ball_measure must hold probabilities greater than 0 and at most 1")
    return float(_geometric_sum(measure, _tokens(tokens)).mean())


def strong_centers_from_samples(samples: ArrayLike, delta: float, tokens: int | None = None) -> float:
    """Expected number of strong centers among n tokens of an unknown law, estimated from N >= n samples of it.

    With K_i the number of other samples within `delta` of sample i, the estimate is the mean over i of
    (N/(K_i + 1)) (1 - C(N-n, K_i+1)/C(N, K_i+1)): the exact mean over all ways to draw n of the N samples in order, hence
    unbiased. For n = N it is sum_i 1/(1 + K_i), the exact mean over all orders of the cloud, and as N grows it tends to
    Lemma C.1's E[1/mu(B_delta(x))].

    Args:
        samples: unit vectors, shape (N, d).
        delta: geodesic radius > 0.
        tokens: n <= N; None for n = N.

    Reference: the paper, Lemma C.1; the finite-sample identity is elementary.
    """
    points = _checks.tokens(samples, "samples")
    delta = _checks.number(delta, "delta", 0.0, strict=True)
    total = len(points)
    drawn = total if tokens is None else _checks.count(tokens, "tokens", maximum=total)
    chord = 2.0 * math.sin(0.5 * min(delta, math.pi))
    from scipy.spatial import KDTree

    tree = KDTree(points)
    inside = np.asarray(tree.query_ball_point(points, chord, return_length=True), dtype=np.float64)  # counts i itself
    if drawn == total:
        return float(np.sum(1.0 / inside))
    # C(N-n, K)/C(N, K), zero when K > N - n; logarithms because the binomials overflow.
    possible = inside <= total - drawn
    size = np.where(possible, inside, 0.0)
    log_ratio = (
        special.gammaln(total - drawn + 1.0)
        - special.gammaln(total - drawn - size + 1.0)
        - special.gammaln(total + 1.0)
        + special.gammaln(total - size + 1.0)
    )
    missed = np.where(possible, np.exp(log_ratio), 0.0)
    return float(np.sum((1.0 - missed) / inside))


@functools.cache
def parking_constant() -> float:
    """Renyi's parking constant m = 0.7475979202534..., computed to rounding.

    m = integral over t > 0 of exp(-2 Ein(t)), Ein(t) = integral_0^t (1 - e^-s)/s ds = E_1(t) + ln t + gamma. Up to t = 40
    by Gauss-Legendre quadrature on unit panels; beyond, E_1 < 1e-18 and the integrand is exp(-2 gamma)/t^2, whose
    integral is exp(-2 gamma)/40.

    Reference: A. Renyi, On a one-dimensional problem concerning random space filling, Publ. Math. Inst. Hung. Acad.
    Sci. 3 (1958) 109; the paper, section 5.
    """
    end, order = 40, 30
    node, weight = np.polynomial.legendre.leggauss(order)
    panels = np.arange(end)[:, None] + 0.5 * (node + 1.0)[None, :]
    inner = special.exp1(panels) + np.log(panels) + np.euler_gamma
    values = np.exp(-2.0 * inner) * (0.5 * weight)
    return math.fsum(values.ravel()) + math.exp(-2.0 * np.euler_gamma) / end


def renyi_centers_limit(delta: ArrayLike) -> Any:
    """Expected number of Renyi centers on the circle for infinitely many tokens, m * 2 pi/delta.

    m is the parking constant. It is the limit delta -> 0, but the error vanishes faster than any power of delta: the
    parking problem on an interval has mean m x - (1 - m) up to such an error, and the first center turns the circle into
    an interval of length 2 pi/delta - 1 and adds one.

    Reference: the paper, section 5; A. Renyi (1958).
    """
    radius = _checks.real_array(delta, "delta")
    if (radius <= 0).any():
        raise InvalidInputError("delta must be greater than 0")
    with np.errstate(over="ignore"):
        count = parking_constant() * 2.0 * np.pi / radius
    if np.isinf(count).any():
        raise NumericalRangeError(
            "delta is so small that the number of centers leaves double precision; give a larger one"
        )
    return float(count) if radius.ndim == 0 else count


def center_exponent(dim: int) -> float:
    """Exponent (dim - 1)/2 with which both kinds of centers grow: count ~ beta^((dim-1)/2) for delta = c beta^(-1/2).

    For V = I this follows from the cap measure. For general V the authors conjecture the same with `dim` replaced by
    d_1 = dim L, the dimension of the leading eigenspace: pass that.

    Reference: the paper, section 5 (V = I) and its conjecture on the effective dimension.
    """
    return 0.5 * (_checks.count(dim, "dim") - 1)


def _tokens(tokens: int | None) -> int | None:
    return None if tokens is None else _checks.count(tokens, "tokens")
