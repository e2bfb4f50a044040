"""Where tokens may start: distributions on the sphere.

Every one is a function of (tokens, dim, seed) and of its own parameters, and `seed` may be a `numpy.random.Generator`. So they make
the start of a run, or of every member of an ensemble:

    metastable.simulate(model, metastable.starts.correlated(200, 2, seed=0, correlation=0.5), until=100.0)
    metastable.ensemble(model, start=lambda generator: metastable.starts.correlated(200, 2, generator, correlation=0.5), ...)

Tokens are rows, shape (tokens, dim), unit vectors. (The uniform distribution and that of a cap are in `metastable.sphere`.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metastable import _checks, sphere
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, TokenError

__all__ = ["chain", "correlated", "equally_spaced", "mixture", "subspace", "von_mises_fisher"]

Seed = int | np.random.Generator


def _sizes(tokens: int, dim: int) -> tuple[int, int]:
    tokens, dim = _checks.count(tokens, "tokens"), _checks.count(dim, "dim", minimum=2)
    _checks.room((tokens, dim), "the points")
    return tokens, dim


def _generator(seed: Seed) -> np.random.Generator:
    return seed if isinstance(seed, np.random.Generator) else np.random.default_rng(_checks.seed(seed))


def _center(center: ArrayLike | None, dim: int) -> FloatArray:
    """A unit vector (dim,), the first axis for None."""
    if center is None:
        return np.eye(dim)[0]
    vector = _checks.vector(center, "center", error=TokenError)
    return _checks.tokens(vector[None, :], "center", dim=dim)[0]


def von_mises_fisher(
    tokens: int, dim: int, seed: Seed, *, concentration: float, center: ArrayLike | None = None
) -> FloatArray:
    """Independent points with density proportional to exp(kappa <x, center>): one soft cluster.

    Args:
        tokens, dim, seed: number of points, dimension of the space, and an integer or a generator.
        concentration: kappa >= 0; 0 is the uniform distribution.
        center: unit vector (dim,), None for the first axis.

    The height w = <x, center> is drawn by rejection from a beta distribution, for any dimension and concentration.
    Reference: A. T. A. Wood, *Simulation of the von Mises Fisher distribution*, Comm. Stat. Simul. 23 (1994) 157.
    """
    tokens, dim = _sizes(tokens, dim)
    middle = _center(center, dim)
    kappa = _checks.number(concentration, "concentration", 0.0, 1e300)
    generator = _generator(seed)
    return _around(generator, np.broadcast_to(middle, (tokens, dim)), kappa)


def _around(generator: np.random.Generator, centers: FloatArray, kappa: float) -> FloatArray:
    """One von Mises-Fisher point around each of the unit rows `centers`."""
    depth = _depths(generator, len(centers), centers.shape[1], kappa)[:, None]
    tangent = generator.standard_normal(centers.shape)
    for _ in range(2):  # twice: the first projection may cancel nearly everything
        tangent -= np.sum(tangent * centers, axis=1, keepdims=True) * centers
        tangent = sphere.normalize(tangent)
    return sphere.normalize((1.0 - depth) * centers + np.sqrt(depth * (2.0 - depth)) * tangent)


def _depths(generator: np.random.Generator, count: int, dim: int, kappa: float) -> FloatArray:
    """1 - w for heights w with density proportional to exp(kappa w) (1 - w^2)^((dim - 3)/2); keeps its digits near w = 1."""
    half = 0.5 * (dim - 1)
    b = (dim - 1.0) / (math.hypot(2.0 * kappa, dim - 1.0) + 2.0 * kappa)
    # The height where the proposal is worst is top, 1 - top = rest; all is counted from there, so that nothing cancels.
    top, rest = (1.0 - b) / (1.0 + b), 2.0 * b / (1.0 + b)
    bound = math.log(4.0 * b) - 2.0 * math.log1p(b)  # ln(1 - top^2)
    found, missing = np.empty(count), np.arange(count)
    while missing.size:
        z = generator.beta(half, half, missing.size)
        depth = 2.0 * b * z / (1.0 - (1.0 - b) * z)
        odds = kappa * (rest - depth) + (dim - 1.0) * (np.log(rest + top * depth) - bound)
        taken = np.log1p(-generator.random(missing.size)) <= odds
        found[missing[taken]] = depth[taken]
        missing = missing[~taken]
    return found


def mixture(
    tokens: int,
    dim: int,
    seed: Seed,
    *,
    centers: int | ArrayLike,
    concentration: float,
    weights: ArrayLike | None = None,
) -> FloatArray:
    """Independent points from several von Mises-Fisher distributions: tokens of several topics, in random order.

    Args:
        centers: unit vectors (m, dim), or how many to draw (uniformly, from the same seed).
        concentration: kappa >= 0 of each.
        weights: m probabilities that a token belongs to each center (any positive scale); None for equal ones.
    """
    tokens, dim = _sizes(tokens, dim)
    kappa = _checks.number(concentration, "concentration", 0.0, 1e300)
    generator = _generator(seed)
    if isinstance(centers, (int, np.integer)) and not isinstance(centers, bool):
        places = sphere.uniform(_checks.count(centers, "centers"), dim, generator)
    else:
        places = _checks.tokens(centers, "centers", dim=dim)
    share = np.ones(len(places)) if weights is None else _checks.vector(weights, "weights", len(places))
    if (share < 0).any() or not share.sum() > 0:
        raise InvalidInputError("weights must not be negative, and some must be positive")
    chosen = generator.choice(len(places), size=tokens, p=share / share.sum())
    return _around(generator, places[chosen], kappa)


def correlated(tokens: int, dim: int, seed: Seed, *, correlation: float) -> FloatArray:
    """Points any two of which are correlated alike: x_k = g_k/|g_k|, g_k = rho^(1/2) z + (1 - rho)^(1/2) z_k with Gaussian z, z_k.

    They share the part z: like tokens of one text, which are alike because they have one subject. Each is uniform on the sphere by
    itself, and their order does not matter (in `chain` it does). The mean of <x_i, x_j> over draws is

        c(rho) = (2/d) (Gamma((d + 1)/2)/Gamma(d/2))^2 rho 2F1(1/2, 1/2; d/2 + 1; rho^2),

    which is 0 at rho = 0, 1 at rho = 1, below rho between (0.41, 0.44, 0.48 for rho = 0.5 in d = 2, 3, 8), and tends to rho as d grows:
    `correlation` is that of the Gaussian vectors. Over the tokens of one draw the mean scatters around that, for z is one vector.
    Reference: R. J. Muirhead, *Aspects of Multivariate Statistical Theory* (1982), section 5.1: the moments of a sample correlation.

    Args:
        tokens, dim, seed: number of points, dimension of the space, and an integer or a generator.
        correlation: rho, 0 (independent) to 1 (all the same).
    """
    tokens, dim = _sizes(tokens, dim)
    rho = _checks.number(correlation, "correlation", 0.0, 1.0)
    generator = _generator(seed)
    common = generator.standard_normal(dim)
    return sphere.normalize(math.sqrt(rho) * common + math.sqrt(1.0 - rho) * generator.standard_normal((tokens, dim)))


def chain(tokens: int, dim: int, seed: Seed, *, correlation: float) -> FloatArray:
    """Points each of which remembers the one before: x_k = g_k/|g_k|, g_k = rho g_(k-1) + (1 - rho^2)^(1/2) z_k with Gaussian z_k.

    Each is uniform on the sphere; the Gaussians of two tokens are correlated by rho^|i - j|. A sequence like text, where
    neighbours are alike. The mean of <x_i, x_j> over draws is c(rho^|i - j|) with the function c of `correlated`.

    Args:
        tokens, dim, seed: number of points, dimension of the space, and an integer or a generator.
        correlation: rho of neighbours, -1 < rho < 1.
    """
    tokens, dim = _sizes(tokens, dim)
    rho = _checks.number(correlation, "correlation", -1.0, 1.0, strict=True)
    generator = _generator(seed)
    steps = generator.standard_normal((tokens, dim))
    steps[1:] *= math.sqrt(1.0 - rho * rho)
    for k in range(1, tokens):
        steps[k] += rho * steps[k - 1]
    return sphere.normalize(steps)


def equally_spaced(tokens: int, dim: int, seed: Seed | None = None) -> FloatArray:
    """Points that are spread evenly: a regular polygon on the circle, a golden spiral on the sphere of R^3.

    Args:
        dim: 2, or 3 (where distances between neighbours are equal to about 10 % away from the poles).
        seed: turns the whole by a random rotation and shuffles the order of the tokens, which causal attention notices; None does
            neither: token 0 is at the first axis of the circle (near the pole of the sphere), and the others follow in order.
    """
    tokens, dim = _sizes(tokens, dim)
    place = np.arange(tokens)
    if dim == 2:
        points = sphere.from_angle(2.0 * np.pi * place / tokens)
    elif dim == 3:
        height = 1.0 - (2.0 * place + 1.0) / tokens
        turn = place * np.pi * (3.0 - math.sqrt(5.0))
        across = np.sqrt((1.0 - height) * (1.0 + height))
        points = np.stack([across * np.cos(turn), across * np.sin(turn), height], axis=1)
    else:
        raise InvalidInputError(f"points are equally spaced for dim 2 and 3, not {dim}; use metastable.sphere.uniform")
    if seed is None:
        return points
    generator = _generator(seed)
    frame, triangle = np.linalg.qr(generator.standard_normal((dim, dim)))
    rotation = frame * np.sign(np.diag(triangle))  # uniform among the orthogonal matrices
    return generator.permutation(points) @ rotation.T


def subspace(tokens: int, dim: int, seed: Seed, *, basis: Any) -> FloatArray:
    """Independent uniform points of the great sphere in a subspace of R^dim.

    Args:
        basis: spanning columns (dim, k), for example `metastable.predict(model).subspace`, or how many of the first axes: k.
    """
    tokens, dim = _sizes(tokens, dim)
    if isinstance(basis, (int, np.integer)) and not isinstance(basis, bool):
        columns = np.eye(dim)[:, : _checks.count(basis, "basis", maximum=dim)]
    else:
        columns = _checks.real_array(basis, "basis")
        columns = columns[:, None] if columns.ndim == 1 else columns
        if columns.ndim != 2 or columns.shape[0] != dim or not columns.any():
            raise InvalidInputError(
                f"basis must hold spanning vectors as columns, shape ({dim}, k), not all zero; not an array of shape {columns.shape}"
            )
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    orthonormal = left[:, sizes > sizes[0] * dim * np.finfo(float).eps]
    generator = _generator(seed)
    flat = generator.standard_normal((tokens, orthonormal.shape[1]))
    return sphere.normalize(flat @ orthonormal.T)
