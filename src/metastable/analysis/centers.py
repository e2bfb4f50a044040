"""Renyi centers, strong Renyi centers and the tokens they have consumed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastable import _checks
from metastable.analysis import _balls
from metastable.errors import InvalidInputError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def renyi_centers(
    x: ArrayLike,
    delta: float,
    strong: bool = False,
    *,
    metric: ArrayLike | None = None,
    tie_tolerance: float = _balls.TIE_TOLERANCE,
) -> IntArray:
    """Indices of the Renyi centers of a sequence of tokens, in order.

    Tokens are scanned in order. Token s is a Renyi center if dist(x_s, x_c) > delta for every earlier center c; it is a
    strong Renyi center if dist(x_s, x_i) > delta for every earlier token i. Token 0 is always both; strong centers are
    Renyi centers. At exactly delta (to within `tie_tolerance`) a token is not a center.

    Many tokens cost O(n) time on the circle (cells) and about n log n elsewhere (a k-d tree out of which every center takes
    its ball), and O(n) memory.

    Args:
        x: unit tokens, shape (n, d).
        delta: geodesic radius >= 0; from pi on only token 0 is a center. The paper uses c beta^(-1/2), c = 4 in figures.
        strong: strong centers instead of Renyi centers.
        metric: M = Q^T K, shape (d, d), for the geometry of <Qx, Ky> = x^T M y instead of the round one. Then
            dist(x_s, x_i) > delta is replaced by 2 (x_s^T M x_s - x_s^T M x_i) > (2 sin(delta/2))^2: the logit that
            token s gives token i falls short of the one it gives itself by as much as it does at distance delta for M = I.
            It is not symmetric (an earlier token pulls a later one, never back), and an i that s attends to more than to
            itself is always near. A scan of all pairs at worst, but O(n) memory.
        tie_tolerance: chords closer to the radius than this count as equal to it.

    Returns:
        Increasing indices, int64.

    Reference: arXiv:2411.04990, section 5 (definitions) and the remark on general Q, K.
    """
    from metastable.analysis import _kernels

    tokens = _checks.tokens(x, "x")
    delta = _checks.number(delta, "delta", 0.0)
    strong = _checks.flag(strong, "strong")
    bound = _balls.within_or_at(delta, _checks.number(tie_tolerance, "tie_tolerance", 0.0, 2.0))
    if metric is not None:
        form = _checks.square(metric, "metric", tokens.shape[1])
        return _kernels.centers_bilinear(tokens, tokens @ form, bound, strong)
    if len(tokens) <= _kernels.FEW:
        return _kernels.centers_few(tokens, bound, strong)
    if tokens.shape[1] == 2 and max(_kernels.SHORTEST_ARC, 4.0 / len(tokens)) <= delta <= 1.0:
        return _kernels.centers_circle(tokens, bound, delta, strong)
    return _kernels.centers_many(tokens, bound, strong)


def consumed(x: ArrayLike, centers: ArrayLike, radius: float) -> float:
    """Fraction of tokens within `radius` of some center (centers count themselves).

    Args:
        x: unit tokens, shape (n, d), at the time of interest.
        centers: indices of tokens (whole numbers, shape (m,)), whose positions in `x` are meant, or fixed positions,
            unit vectors of shape (m, d).
        radius: geodesic radius >= 0; the figures use 0.1 delta.

    Returns:
        A number between 0 and 1 (0 when there are no centers).

    Reference: arXiv:2411.04990, Figure 3.
    """
    from metastable.analysis import _kernels

    tokens = _checks.tokens(x, "x")
    bound = _balls.within_or_at(_checks.number(radius, "radius", 0.0))
    indices, positions = _positions(tokens, centers)
    if len(positions) == 0:
        return 0.0
    if len(positions) <= _kernels.FEW:
        return float(_kernels.consumed_fraction(tokens[None], indices, positions, False, bound)[0])
    from scipy.spatial import KDTree

    _, nearest = KDTree(positions).query(tokens)
    difference = tokens - positions[nearest]
    return float(np.mean(np.sum(difference * difference, axis=1) <= bound))


def _positions(tokens: FloatArray, centers: Any) -> tuple[IntArray, FloatArray]:
    """Centers as indices (empty for fixed positions) and positions."""
    try:
        array = np.asarray(centers)
    except (ValueError, TypeError, RuntimeError) as reason:
        raise InvalidInputError(f"centers is not an array of numbers: {reason}") from None
    if array.size == 0:
        return np.empty(0, np.int64), np.empty((0, tokens.shape[1]))
    if array.ndim == 2:
        return np.empty(0, np.int64), _checks.tokens(array, "centers", dim=tokens.shape[1])
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidInputError(
            f"centers must be indices of tokens (whole numbers) or positions of shape (m, {tokens.shape[1]}), not an "
            f"array of {array.dtype} of shape {array.shape}"
        )
    if array.min() < 0 or array.max() >= len(tokens):
        raise InvalidInputError(
            f"centers must be indices between 0 and {len(tokens) - 1}, not {array.min()}..{array.max()}"
        )
    indices = array.astype(np.int64)
    return indices, tokens[indices]
