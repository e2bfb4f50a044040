"""The unit sphere: projection, retraction, geodesic distance, sampling and the measure of caps.

Points are rows: an array of shape (..., dim) holds points of the sphere S^(dim-1) in R^dim, dim >= 2. Distances are
geodesic, in radians, between 0 and pi. All functions are plain NumPy and accept leading batch axes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from metastable import _checks
from metastable.errors import InvalidInputError, TokenError

__all__ = [
    "cap",
    "cap_measure",
    "distance",
    "from_angle",
    "normalize",
    "pairwise_distance",
    "project",
    "retract",
    "to_angle",
    "uniform",
]

FloatArray = NDArray[np.float64]


def _points(value: Any, name: str) -> FloatArray:
    """`value` as finite points: the last axis holds at least two coordinates."""
    array = _checks.real_array(value, name, TokenError)
    if array.ndim == 0 or array.shape[-1] < 2:
        raise TokenError(f"{name} must have shape (..., dim) with dim >= 2, not {array.shape}")
    return array


def _unit_points(value: Any, name: str) -> FloatArray:
    """`value` as finite points of the sphere."""
    array = _points(value, name)
    off = np.abs(_length(array)[..., 0] - 1.0)
    if off.max(initial=0.0) > _checks.UNIT_TOLERANCE:
        where = tuple(int(i) for i in np.unravel_index(off.argmax(), off.shape))
        raise TokenError(
            f"{name} must hold unit vectors, and the length of the one at index {where} is off by {off[where]:.3g}; "
            f"put it on the sphere with metastable.sphere.normalize({name})"
        )
    return array


def _length(x: FloatArray) -> FloatArray:
    """Euclidean length of the rows, kept as a last axis of size one."""
    return np.sqrt(np.sum(x * x, axis=-1, keepdims=True))


def _generator(seed: int | np.random.Generator) -> np.random.Generator:
    """A random generator from an integer seed, or the generator itself."""
    if isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(_checks.seed(seed))


def project(x: ArrayLike, v: ArrayLike) -> FloatArray:
    """Tangent part of `v` at the unit vector `x`: P_x v = v - <x, v> x.

    Args:
        x: unit vectors, shape (..., dim).
        v: vectors, shape (..., dim), broadcast against `x`.

    Returns:
        Array of the broadcast shape, orthogonal to `x`.
    """
    point, vector = _unit_points(x, "x"), _points(v, "v")
    _check_same_space(point, vector, "x", "v")
    return _project(point, vector)


def _project(x: FloatArray, v: FloatArray) -> FloatArray:
    return v - np.sum(x * v, axis=-1, keepdims=True) * x


def _check_same_space(x: FloatArray, y: FloatArray, first: str, second: str) -> None:
    """Refuse points of different dimensions, and batches that do not broadcast."""
    if x.shape[-1] != y.shape[-1]:
        raise TokenError(
            f"{first} and {second} have vectors of dimension {x.shape[-1]} and {y.shape[-1]}; they must be the same"
        )
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        raise TokenError(
            f"{first} and {second} have shapes {x.shape} and {y.shape}, which do not fit together; give as many points in both, "
            "one point in one of them, or see pairwise_distance"
        ) from None


def retract(x: ArrayLike) -> FloatArray:
    """Nearest point of the sphere, x/|x|: `normalize` under the name that geometry has for it."""
    return normalize(x)


def _retract(x: FloatArray) -> FloatArray:
    """x/|x| without any checking."""
    return x / _length(x)


def normalize(x: ArrayLike) -> FloatArray:
    """Rows of `x` scaled to unit length.

    Zero vectors, which have no direction, and NaN or infinite entries are refused. Very long and very short rows are
    scaled by their largest entry first, so that nothing overflows or underflows.

    Args:
        x: array of shape (..., dim), dim >= 2.

    Raises:
        TokenError: a row is zero or not finite.
    """
    array = _points(x, "x")
    largest = np.max(np.abs(array), axis=-1, keepdims=True)
    if not largest.all():
        where = tuple(int(i) for i in np.argwhere(largest[..., 0] == 0)[0])
        raise TokenError(f"x: the vector at index {where} is zero, which has no direction; drop it")
    # frexp gives a power of two, so the scaling is exact and vectors that were already unit stay unit to rounding.
    _, exponent = np.frexp(largest)
    return _retract(np.ldexp(array, -exponent))


def distance(x: ArrayLike, y: ArrayLike) -> FloatArray:
    """Geodesic distance between unit vectors, accurate at both ends of [0, pi].

    d(x, y) = 2 arcsin(|x - y|/2) for <x, y> >= 0 and pi - 2 arcsin(|x + y|/2) otherwise. The textbook arccos <x, y>
    cannot see distances below 1e-8; this form resolves 1e-16 apart, and the gap to pi near antipodes.

    Args:
        x, y: unit vectors, shapes (..., dim), broadcast against each other.

    Returns:
        Distances in radians, of the broadcast shape without its last axis.

    Raises:
        TokenError: a vector is not finite or not of unit length, or the dimensions differ.
    """
    a, b = _unit_points(x, "x"), _unit_points(y, "y")
    _check_same_space(a, b, "x", "y")
    return _distance(a, b)


def _distance(x: FloatArray, y: FloatArray) -> FloatArray:
    difference, total = x - y, x + y
    near = np.sqrt(np.sum(difference * difference, axis=-1))
    far = np.sqrt(np.sum(total * total, axis=-1))
    half = 2.0 * np.arcsin(np.minimum(0.5 * np.minimum(near, far), 1.0))
    return np.where(near <= far, half, np.pi - half)


def pairwise_distance(x: ArrayLike, y: ArrayLike | None = None) -> FloatArray:
    """Matrix of geodesic distances between the rows of `x` and of `y` (of `x` with itself when `y` is None).

    Args:
        x: unit vectors, shape (n, dim).
        y: unit vectors, shape (m, dim), or None.

    Returns:
        Shape (n, m); memory is O(n m dim) for a block of rows only, never for the whole.
    """
    a = _unit_points(x, "x")
    b = a if y is None else _unit_points(y, "y")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise TokenError(f"x and y must have shapes (n, dim) and (m, dim), not {a.shape} and {b.shape}")
    _checks.room((len(a), len(b)), "the matrix of distances")
    result = np.empty((len(a), len(b)))
    rows = max(1, 2**20 // max(1, b.size))
    for first in range(0, len(a), rows):
        result[first : first + rows] = _distance(a[first : first + rows, None, :], b[None, :, :])
    return result


def uniform(tokens: int, dim: int, seed: int | np.random.Generator) -> FloatArray:
    """Independent uniform points of the sphere, shape (tokens, dim): normalised Gaussian vectors.

    Args:
        tokens: number of points.
        dim: dimension of the space, dim >= 2.
        seed: an integer, or a `numpy.random.Generator` to draw from.
    """
    tokens = _checks.count(tokens, "tokens")
    dim = _checks.count(dim, "dim", minimum=2)
    _checks.room((tokens, dim), "the points")
    generator = _generator(seed)
    x = generator.standard_normal((tokens, dim))
    zero = ~np.any(x, axis=1)
    while zero.any():  # probability zero in exact arithmetic, but a zero row would become NaN
        x[zero] = generator.standard_normal((int(zero.sum()), dim))
        zero = ~np.any(x, axis=1)
    return _retract(x)


def cap(tokens: int, center: ArrayLike, angle: float, seed: int | np.random.Generator) -> FloatArray:
    """Independent uniform points of the cap {x : d(x, center) <= angle}, shape (tokens, dim).

    The distance to the center has density proportional to sin(s)^(dim - 2) on [0, angle]; it is drawn by inverting the
    regularised incomplete beta function, so small caps in high dimension cost no rejections.

    Args:
        tokens: number of points.
        center: unit vector, shape (dim,).
        angle: geodesic radius of the cap, 0 < angle <= pi.
        seed: an integer, or a `numpy.random.Generator` to draw from.
    """
    tokens = _checks.count(tokens, "tokens")
    middle = _checks.tokens(_checks.vector(center, "center", error=TokenError)[None, :], "center")[0]
    angle = _checks.number(angle, "angle", 0.0, math.pi)
    if angle == 0:
        raise InvalidInputError("angle must be greater than 0; a cap of radius 0 is its center")
    generator = _generator(seed)
    dim = middle.size
    _checks.room((tokens, dim), "the points")
    away = _inverse_cap_measure(generator.random(tokens) * cap_measure(angle, dim), dim)
    tangent = generator.standard_normal((tokens, dim))
    tangent = _retract(_project(middle, tangent))
    tangent = _retract(_project(middle, tangent))  # twice: the first projection may cancel nearly everything
    return _retract(np.cos(away)[:, None] * middle + np.sin(away)[:, None] * tangent)


def _cap_fraction(delta: FloatArray, dim: int) -> FloatArray:
    """Measure of the cap of radius `delta` <= pi/2, through sin^2(delta/2), which keeps its digits as delta -> 0."""
    half = 0.5 * (dim - 1)
    return special.betainc(half, half, np.sin(0.5 * delta) ** 2)


def cap_measure(delta: ArrayLike, dim: int) -> Any:
    """Normalised measure sigma(B_delta) of a geodesic ball of radius `delta` on S^(dim-1).

    With u = sin^2(delta/2) the measure is the regularised incomplete beta function I_u((dim-1)/2, (dim-1)/2): delta/pi
    for dim = 2 and sin^2(delta/2) for dim = 3. It is evaluated in a form that stays accurate as delta -> 0.

    Args:
        delta: radius in radians, 0 <= delta; from pi on the ball is the whole sphere.
        dim: dimension of the space, dim >= 2.

    Returns:
        A float for a scalar `delta`, otherwise an array of its shape, with values in [0, 1].

    Reference: arXiv:2411.04990, Lemma C.1 (the measure sigma); S. Li, Asian J. Math. Stat. 4 (2011) 66 (the formula).
    """
    dim = _checks.count(dim, "dim", minimum=2)
    radius = _checks.real_array(delta, "delta")
    if (radius < 0).any():
        raise InvalidInputError("delta must not be negative; it is a geodesic radius in radians")
    radius = np.minimum(radius, np.pi)
    if dim == 2:
        measure = radius / np.pi
    else:
        small = _cap_fraction(np.minimum(radius, 0.5 * np.pi), dim)
        large = 1.0 - _cap_fraction(np.minimum(np.pi - radius, 0.5 * np.pi), dim)
        measure = np.where(radius <= 0.5 * np.pi, small, large)
    return float(measure) if radius.ndim == 0 else measure


def _inverse_cap_measure(measure: FloatArray, dim: int) -> FloatArray:
    """Radius of the ball of the given normalised measure."""
    if dim == 2:
        return np.pi * measure
    half = 0.5 * (dim - 1)
    return 2.0 * np.arcsin(np.sqrt(special.betaincinv(half, half, measure)))


def from_angle(theta: ArrayLike) -> FloatArray:
    """Points (cos theta, sin theta) of the circle, shape theta.shape + (2,)."""
    angle = _checks.real_array(theta, "theta")
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def to_angle(x: ArrayLike) -> FloatArray:
    """Angles in (-pi, pi] of points of the circle, shape x.shape[:-1]; the inverse of `from_angle` modulo 2 pi.

    Raises:
        TokenError: the points are not in the plane.
    """
    point = _points(x, "x")
    if point.shape[-1] != 2:
        raise TokenError(f"x must have shape (..., 2): only the circle has angles, not dimension {point.shape[-1]}")
    angle = np.arctan2(point[..., 1], point[..., 0])
    return np.where(angle == -np.pi, np.pi, angle)
