"""How wide the clouds of repelling tokens are (rows 4 and 5 of Table 1): ours, a mean-field law.

Q = K = I, V with largest eigenvalue lambda < 0 and leading space L. A token rests where V m = c x, with m the mean of the
tokens it sees under its weights: across L the mean must be m_i = y_i/r_i, with r_i = lambda_i/lambda > 1. Near L the weights
are Gaussian of variance 1/beta, and a Gaussian cloud of variance s_i^2 has m_i = y_i beta s_i^2/(1 + beta s_i^2) for every
y at once. Hence every token rests exactly when

    s_i^2 = 1/(beta (r_i - 1)) = |lambda| / (beta (lambda - lambda_i)).

On the sphere the Gaussian becomes a Bingham density, ~ exp(-sum_i b_i y_i^2/2), and the same balance at a point of L gives
b_i = (beta/A)(r_i - 1), with A the mean cosine of what a token at L sees. It is uniform for r_i = 1, as it must be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, special

from metastable import _checks
from metastable.errors import InvalidInputError, NumericalRangeError

FloatArray = NDArray[np.float64]

ANGLES = 400
"""Nodes of the quadrature in the angle to L."""

CONTOUR = 121
"""Nodes of the contour integral behind the density; twice as many change nothing beyond 1e-12."""

SYMMETRIC = 1e-12
"""Relative asymmetry below which a block counts as symmetric."""

CONVERGED = 1e-10
"""Relative change at which the covariance has converged."""

ROUNDS = 2000
"""Most rounds of the covariance; enough for ratios from 1.01 on."""

NEIGHBOURS = 8.0
"""The law needs each token to see this many times r_min others (measured, see `CloudWidth.tokens`)."""


@dataclass(frozen=True)
class CloudWidth:
    """Predicted width of a cloud around L, for many tokens.

    Fields
    ------
    median, rms : of the geodesic distance of a token to L, in radians.
    deviations : (d - dim L,) standard deviations of the flat law across L, (beta (r_i - 1))^(-1/2), in radians.
    share : of all tokens, the part that a token at L sees (their weights over its own weight).
    tokens : the law is for at least this many tokens, each of which then sees 8 min_i r_i others. Fewer tokens leave the
        cloud narrower: the first r or so on each side sit in L itself.
    """

    median: float
    rms: float
    deviations: FloatArray
    share: float
    tokens: int

    def __repr__(self) -> str:
        return f"CloudWidth(median={self.median:.3g}, rms={self.rms:.3g}, tokens={self.tokens})"


def cloud_width(ratios: ArrayLike, beta: float, rank: int = 1) -> CloudWidth:
    """Width of the clouds that repelling tokens form around L, for many tokens with Q = K = I.

    The cloud has the density ~ exp(-sum_i b_i y_i^2/2) on the sphere, y_i the coordinates across L, with
    b_i = (beta/A)(r_i - 1), A = sqrt(1 + c^2) - c, c = (rank - 1 + sum_i 1/r_i)/(2 beta). For large beta this is the Gaussian
    of variances 1/(beta (r_i - 1)), an exact rest of the mean field; elsewhere it is an approximation.

    Args:
        ratios: r_i = lambda_i/lambda_max > 1, one for each direction across L, shape (d - rank,).
        beta: inverse temperature, 1e-6 to 1e12.
        rank: dim L >= 1.

    Measured error of the median: over random V (r_i - 1 from 0.15 to 6, beta from 6 to 100, d from 2 to 8,
    dim L from 1 to 3, 64 to 1024 tokens, at least `tokens` of them) half are within 2.4 to 3.7 % and 90 % within 8 to 15 %,
    depending on the number of tokens, most of the larger ones in d = 6 and 8 (12 % and 18 % too wide). For beta from 2 to 4 half
    are within 6 to 9 % and 90 % within 12 to 26 %. Only 21 of these V were not symmetric. The factor 8 in `tokens` was chosen on
    the same runs.

    Reference: ours; `docs/mathematics.md` has the argument.
    """
    r = _checks.vector(ratios, "ratios")
    if r.size == 0 or (r <= 1.0).any():
        raise InvalidInputError(
            "ratios must hold a number above 1 for each direction across L: lambda_i/lambda_max, both negative"
        )
    beta = _checks.number(beta, "beta", 1e-6, 1e12)
    rank = _checks.count(rank, "rank", 1, 10**6)
    c = (rank - 1 + float((1.0 / r).sum())) / (2.0 * beta)
    cosine = 1.0 / (np.hypot(1.0, c) + c)
    angle, cumulative = _angles(beta / cosine * (r - 1.0), rank)
    weights = np.diff(cumulative, prepend=0.0)
    along = _share_along(beta, rank)
    share = along * float(np.prod(np.sqrt(1.0 - 1.0 / r)))
    # Clouds in many dimensions are so thin that no number of tokens fills them.
    needed = min(NEIGHBOURS * float(r.min()) / share, 1e18) if share > 0 else 1e18
    return CloudWidth(
        float(np.interp(0.5, cumulative, angle)),
        float(np.sqrt(np.sum(weights * (angle - 0.5 * angle[0]) ** 2))),  # cells end at `angle`
        _checks.readonly(1.0 / np.sqrt(beta * (r - 1.0))),
        share,
        math.ceil(needed),
    )


def _share_along(beta: float, rank: int) -> float:
    """Mean of exp(beta (<u, u'> - 1)) over u' uniform on the unit sphere of L: 1/2 for two far points."""
    order = 0.5 * rank - 1.0
    with np.errstate(divide="ignore"):
        logarithm = special.gammaln(0.5 * rank) + order * math.log(2.0 / beta) + np.log(special.ive(order, beta))
    return float(np.exp(logarithm))


def _angles(concentration: FloatArray, rank: int) -> tuple[FloatArray, FloatArray]:
    """Distances to L (grid) and the share of the Bingham density up to each of them.

    The density of the distance t is cos^(rank-1)(t) sin^(m-1)(t) E_w exp(-sin^2(t) sum_i b_i w_i^2/2), w uniform on S^(m-1).
    """
    size = concentration.size
    # Up to where the density has fallen below rounding, which is near L for a tight cloud.
    end = min(0.5 * np.pi, (9.0 + np.sqrt(size)) / np.sqrt(concentration.min()))
    angle = end * (np.arange(ANGLES) + 0.5) / ANGLES
    exponent = 0.5 * np.sin(angle)[:, None] ** 2 * concentration
    log_density = (
        (rank - 1) * np.log(np.cos(angle)) + (size - 1) * np.log(np.sin(angle)) + log_mean_exponential(exponent)
    )
    cumulative = np.cumsum(np.exp(log_density - log_density.max()))
    return angle + 0.5 * end / ANGLES, cumulative / cumulative[-1]


def log_mean_exponential(exponents: ArrayLike) -> Any:
    """log E_w exp(-sum_i a_i w_i^2) for w uniform on the unit sphere of R^m; a_i >= 0 in the last axis, shape (..., m).

    E = Gamma(m/2)/(2 pi i) integral exp(s) prod_i (s + a_i)^(-1/2) ds, on the parabola s = p (1 + i v)^2 through the saddle
    point p, where the trapezoidal rule converges exponentially.

    Reference: A. Kume and A. Wood, Biometrika 92 (2005) 465 (the integral, there by saddle point).
    """
    a = _checks.real_array(exponents, "exponents")
    if a.ndim == 0 or a.shape[-1] == 0 or (a < 0).any():
        raise InvalidInputError("exponents must hold numbers >= 0, shape (..., m) with m >= 1")
    size = a.shape[-1]
    low = a.min(axis=-1)
    if size == 1:
        return -low
    a = a - low[..., None]
    saddle = _saddle(a)
    curvature = 0.5 * np.sum((saddle[..., None] + a) ** -2.0, axis=-1)
    reach = np.minimum(np.sqrt(40.0 / saddle), 9.0 / (saddle * np.sqrt(curvature)))
    v = reach[..., None] * np.linspace(-1.0, 1.0, CONTOUR)
    s = saddle[..., None] * (1.0 + 1j * v) ** 2
    top = saddle - 0.5 * np.log(saddle[..., None] + a).sum(axis=-1)
    logarithm = s + np.log(1.0 + 1j * v) - top[..., None]
    for index in range(size):  # axis by axis: no array larger than the contour itself
        logarithm -= 0.5 * np.log(s + a[..., index, None])
    total = np.exp(logarithm).real.sum(axis=-1) * reach * (2.0 / (CONTOUR - 1)) * saddle / np.pi
    return special.gammaln(0.5 * size) - low + top + np.log(total)


def _saddle(a: FloatArray) -> FloatArray:
    """p > 0 with sum_i 1/(p + a_i) = 2, by bisection (the smallest a_i is 0)."""
    low, high = np.full(a.shape[:-1], 0.5), np.full(a.shape[:-1], 0.5 * a.shape[-1])
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = np.sum(1.0 / (middle[..., None] + a), axis=-1) > 2.0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


def cloud_covariance(ratio: ArrayLike) -> FloatArray:
    """beta times the covariance of the flat cloud across L for any block R = B/lambda, symmetric or not, shape (m, m).

    B is what V does across L. Tokens of a Gaussian cloud move by dy/dt ~ y - R T (T + I)^(-1) y, with T = beta times the
    covariance, so T rests when R N + N R^T = 2 T, N = T^2 (T + I)^(-1). For symmetric R that is T = (R - I)^(-1) and every
    token rests; otherwise tokens circulate inside a cloud of constant shape.

    Args:
        ratio: R, eigenvalues with real parts above 1, shape (m, m).

    Reference: ours.
    """
    r = _checks.matrix(ratio, "ratio")
    if r.shape[0] != r.shape[1] or r.shape[0] == 0 or np.linalg.eigvals(r).real.min() <= 1.0:
        raise InvalidInputError("ratio must be a square matrix whose eigenvalues have real parts above 1")
    if np.allclose(r, r.T, rtol=0.0, atol=SYMMETRIC * np.abs(r).max()):
        return np.asarray(np.linalg.inv(0.5 * (r + r.T) - np.eye(len(r))), dtype=np.float64)
    t: Any = np.eye(len(r)) / (np.linalg.eigvals(r).real.mean() - 1.0)
    for _ in range(ROUNDS):
        # Lyapunov for N at this T, then T from N = T^2 (T + I)^(-1); the error falls by r/(2 r - 1) each time.
        sizes, vectors = np.linalg.eigh(_symmetric(linalg.solve_continuous_lyapunov(r, 2.0 * t)))
        n = np.maximum(sizes, 0.0)
        new = (vectors * (0.5 * (n + np.sqrt(n * n + 4.0 * n)))) @ vectors.T
        done = np.abs(new - t).max() <= CONVERGED * np.abs(new).max()
        t = new
        if done:
            return t
    raise NumericalRangeError(
        f"the covariance of the cloud did not converge in {ROUNDS} rounds: an eigenvalue of the ratio is too close to 1"
    )


def _symmetric(matrix: Any) -> FloatArray:
    return 0.5 * (matrix + matrix.T)
