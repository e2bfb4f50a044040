"""`CausalDensity`: infinitely many tokens in an order, a law for every position u in (0, 1] of the sequence.

Under a causal mask a token at position u sees those before it, so its velocity comes from the average of the laws below u,

    m(u) = (1/u) integral_0^u mu(s) ds.

A polynomial in u stays one under this average, so the laws are kept at Gauss's nodes in u and everything is spectral in u, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial import legendre

from metastable import _checks, sphere
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, ResolutionError, UnsupportedError
from metastable.meanfield import bases
from metastable.meanfield.bases import Basis, Circle, resized
from metastable.meanfield.density import NEGATIVE, Density
from metastable.meanfield.making import (
    angles_of_shares,
    at_nodes,
    check_axis,
    check_degree,
    degree_of,
    kind_of,
    lift_of,
    lifted,
    projected,
    smeared,
    smearing,
    tail_of_sizes,
)
from metastable.meanfield.witnesses import GOLDEN

POSITIONS = 12
MOST_POSITIONS = 384
POSITION_TAIL = 1e-12
"""Part of laws that may be left in the last quarter of their polynomials in u, where as many are taken as it needs."""
BETWEEN = 1e-3
"""Part of the mass that may be made uniform to lift negative values of a law between two positions, before it counts as unknown."""
OTHER_POSITIONS = 48
"""How many positions between those at which laws are kept are looked at, too, where as many are taken as it needs."""
POSITION_BETWEEN = 1e-9
"""How far (root mean square) laws there may be from those that the others say."""


@lru_cache(maxsize=32)
def nodes_of(count: int) -> tuple[FloatArray, FloatArray]:
    """Gauss's nodes u in (0, 1), ascending, and their weights (sum one)."""
    z, weights = legendre.leggauss(count)
    return 0.5 * (z + 1.0), 0.5 * weights


def interpolation(count: int, u: FloatArray) -> FloatArray:
    """Matrix (m, count) from values at the nodes to those of their polynomial at u."""
    return _functions(u, count) @ _analysis(count)


@lru_cache(maxsize=32)
def _analysis(count: int) -> FloatArray:
    """From values at the nodes to coefficients of shifted Legendre polynomials P_n(2 u - 1)."""
    u, weights = nodes_of(count)
    return (2.0 * np.arange(count) + 1.0)[:, None] * (_functions(u, count) * weights[:, None]).T


def _functions(u: FloatArray, count: int) -> FloatArray:
    return np.asarray(legendre.legvander(2.0 * np.asarray(u) - 1.0, count - 1), dtype=np.float64)


def averages(count: int, u: FloatArray) -> FloatArray:
    """Matrix (m, count) from values at the nodes to (1/u) integral_0^u of their polynomial; its value at 0 for u = 0."""
    u = np.asarray(u, dtype=float)
    value = legendre.legvander(2.0 * u - 1.0, count)
    integral = np.empty((u.size, count))
    integral[:, 0] = u
    for n in range(1, count):  # (2 n + 1) times the integral of P_n is P_(n+1) - P_(n-1)
        integral[:, n] = 0.5 * (value[:, n + 1] - value[:, n - 1]) / (2.0 * n + 1.0)
    mean = np.where(u[:, None] > 0, integral / np.where(u > 0, u, 1.0)[:, None], value[:, :count])
    return mean @ _analysis(count)


@lru_cache(maxsize=32)
def smoothing(count: int) -> FloatArray:
    """Factors (count,) of the Legendre polynomials of degree 0..count-1 that make a kernel out of them which is positive and as
    narrow as can be: sum_j factors_j (2 j + 1) P_j(t) is proportional to (P_m(t)/(t - z))^2, z the largest zero of P_m,
    m = (count + 1)/2.

    By the product formula of Legendre polynomials sum_j factors_j (2 j + 1) P_j(s) P_j(t) is positive for all s and t, too. The first
    factor is 1, the second one z = 1 - O(count^-2).
    """
    m = (count + 1) // 2
    zero = legendre.leggauss(m)[0][-1]
    t, weights = legendre.leggauss(2 * m + 1)
    known = legendre.legvander(t, max(m, count))
    square = (known[:, m] / np.where(t == zero, 1.0, t - zero)) ** 2
    factors = (weights * square) @ known[:, :count]
    return factors / factors[0]


def tail_of_positions(values: FloatArray) -> float:
    """Part of laws (positions, size) at the end of their polynomials in u: in the last quarter, or see `tail_of_sizes`."""
    count = len(values)
    if count == 1:
        return 0.0
    found = _analysis(count) @ values / np.sqrt(2.0 * np.arange(count) + 1.0)[:, None]
    # The last two at least, wherever there are more: laws may be even around the middle of the sequence.
    last = max(count // 4, min(2, count - 1))
    return tail_of_sizes(np.linalg.norm(found, axis=1), (last - 0.5) / (count - 1.0))


def _laws(
    function: Callable[[float, FloatArray], Any],
    kind: type[Basis],
    dim: int,
    positions: FloatArray,
    degree: int | None,
    axis: FloatArray | None,
) -> FloatArray:
    """The series (count, size) of a user's laws at positions (count,)."""
    at = [at_nodes(lambda x, u=float(u): function(u, x), axis) for u in positions]
    found = projected(lambda nodes: np.array([law(nodes) for law in at]), kind, dim, degree)
    if not (found[:, 0] > 0).all():
        raise InvalidInputError("function has no mass that the nodes see; smooth it, or give more modes (degree=)")
    return found / found[:, :1]


def checked_position(u: Any) -> float:
    """`u` as a position of the sequence."""
    return _checks.number(u, "u", 0.0, 1.0)


@dataclass(frozen=True, eq=False, repr=False)
class CausalDensity(_checks.LockedArrays):
    """Laws of tokens by their position u in (0, 1] of a sequence.

    Fields
    ------
    dim : dimension of the space.
    coefficients : (positions, size), those of `Density` at Gauss's nodes in u (`positions`).
    axis : None, or the axis of zonal laws.

    Made by `CausalDensity.from_function`, `CausalDensity.from_tokens` and `CausalDensity.alike`.
    """

    dim: int
    coefficients: FloatArray
    axis: FloatArray | None = None

    def __post_init__(self) -> None:
        dim = _checks.count(self.dim, "dim", minimum=2, maximum=10_000)
        axis = check_axis(self.axis, dim)
        kind = kind_of(dim, axis)
        coefficients = _checks.matrix(self.coefficients, "coefficients")
        check_degree(degree_of(kind, coefficients.shape[1]), kind, "the degree of coefficients")
        if not 1 <= len(coefficients) <= MOST_POSITIONS:
            raise InvalidInputError(f"coefficients must have 1 to {MOST_POSITIONS} rows, not {len(coefficients)}")
        if np.abs(coefficients[:, 0] - 1.0).max() > 1e-9:
            raise InvalidInputError("the mass at every position, the first coefficient, is 1")
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "axis", None if axis is None else _checks.readonly(axis))
        object.__setattr__(self, "coefficients", _checks.readonly(coefficients))
        values = self.basis.values(coefficients)
        if values.min() < -NEGATIVE * values.max():
            raise InvalidInputError(f"a density is not negative, but this series goes down to {values.min():.3g}")

    def __repr__(self) -> str:
        return f"<CausalDensity on the sphere of R^{self.dim}, {len(self.coefficients)} positions, degree {self.basis.degree}>"

    @staticmethod
    def alike(density: Density, positions: int = POSITIONS) -> CausalDensity:
        """The same law at every position."""
        _checks.instance(density, Density, "density")
        count = _checks.count(positions, "positions", maximum=MOST_POSITIONS)
        return CausalDensity(density.dim, np.tile(density.coefficients, (count, 1)), density.axis)

    @staticmethod
    def from_function(
        function: Callable[[float, FloatArray], Any],
        dim: int,
        positions: int | None = None,
        degree: int | None = None,
        axis: Any = None,
    ) -> CausalDensity:
        """Laws proportional to `function(u, points)`, of a position and unit vectors (m, dim) to m numbers >= 0.

        `positions` None: as many as it takes to have the laws between them to rounding, and as many modes where `degree` is None.
        """
        dim = _checks.count(dim, "dim", minimum=2, maximum=10_000)
        axis = check_axis(axis, dim)
        if not callable(function):
            raise InvalidInputError(f"function must take a position and unit vectors (m, dim), not be {function!r}")
        kind = kind_of(dim, axis)
        if positions is not None:
            count = _checks.count(positions, "positions", maximum=MOST_POSITIONS)
            return CausalDensity(dim, _laws(function, kind, dim, nodes_of(count)[0], degree, axis), axis)
        count, others = POSITIONS, np.mod((np.arange(OTHER_POSITIONS) + 0.5) * GOLDEN, 1.0)
        while True:
            laws = _laws(function, kind, dim, np.concatenate([nodes_of(count)[0], others]), degree, axis)
            coefficients, between = laws[:count], laws[count:]
            left = tail_of_positions(coefficients)
            # A law that varies like the polynomial of degree `count` has the same value at all nodes.
            wrong = np.linalg.norm(interpolation(count, others) @ coefficients - between, axis=1)
            off = float((wrong / np.linalg.norm(between, axis=1)).max())
            if left <= POSITION_TAIL and off <= POSITION_BETWEEN:
                return CausalDensity(dim, coefficients, axis)
            if 2 * count > MOST_POSITIONS:
                raise ResolutionError(
                    f"function changes more along the sequence than {count} positions can show (the end of its polynomial has "
                    f"{left:.1e} of it, and between the positions it is off by {off:.1e}); smooth it in u, or say positions= to take "
                    "what there is"
                )
            count *= 2

    @staticmethod
    def from_tokens(
        x: Any,
        positions: int = 2 * POSITIONS,
        bandwidth: float | None = None,
        degree: int | None = None,
        axis: Any = None,
    ) -> CausalDensity:
        """The laws of tokens x (n, dim) in order, token k at position (k - 1/2)/n.

        Tokens are smeared out along the sequence, too, by a polynomial in u that is positive (`smoothing`), so that there is a law at
        every position; the average of all of them, `mean()`, is the law of all tokens. What varies along the sequence is
        blurred by O(positions^-2). `bandwidth` is that of `Density.from_tokens`; None: that of n/positions tokens, or what
        `degree` modes can show.
        """
        tokens = _checks.tokens(x, "x")
        n, dim = tokens.shape
        axis = check_axis(axis, dim)
        count = _checks.count(positions, "positions", maximum=MOST_POSITIONS)
        if n < count:
            raise InvalidInputError(f"x has {n} tokens, fewer than positions={count}; use positions={n} or less")
        _checks.room((2 * n, count), "the tokens by position")
        spread = smearing(n / count, dim, kind_of(dim, axis), bandwidth, degree)
        # Token k fills the interval from (k - 1)/n to k/n: (2 j + 1) times the integral of P_j(2 u - 1) over it, j = 0..count-1.
        value = legendre.legvander(np.linspace(-1.0, 1.0, n + 1), count)
        moments = np.empty((count, n))
        moments[0] = 1.0 / n
        for j in range(1, count):
            moments[j] = 0.5 * np.diff(value[:, j + 1] - value[:, j - 1])
        series = smeared(tokens, smoothing(count)[:, None] * moments, axis, *spread)
        laws = _functions(nodes_of(count)[0], count) @ series
        return CausalDensity(dim, laws / laws[:, :1], axis)

    @property
    def basis(self) -> Basis:
        """The functions of the series."""
        kind = kind_of(self.dim, self.axis)
        return bases.make(kind, self.dim, degree_of(kind, self.coefficients.shape[1]))

    @property
    def positions(self) -> FloatArray:
        """The positions u (p,) at which the laws are kept."""
        return _checks.readonly(nodes_of(len(self.coefficients))[0].copy())

    def at(self, u: float) -> Density:
        """The law at position u."""
        row = interpolation(len(self.coefficients), np.array([checked_position(u)]))[0]
        return self._density(row)

    def mean(self, u: float = 1.0) -> Density:
        """The average of the laws below position u: that of all tokens for u = 1, that at 0 for u = 0."""
        return self._density(averages(len(self.coefficients), np.array([checked_position(u)]))[0])

    def _density(self, row: FloatArray) -> Density:
        mixed = row @ self.coefficients
        mixed = mixed / mixed[0]
        lift = lift_of(self.basis, mixed)
        if not lift <= BETWEEN:
            raise ResolutionError(
                f"between the {len(self.coefficients)} positions at which the laws are known their polynomial is negative (by "
                f"{lift:.1e} of the mass): they differ too much; use more positions"
            )
        return Density(self.dim, lifted(self.basis, mixed), self.axis)

    def with_degree(self, degree: int) -> CausalDensity:
        """The same laws with more modes, or cut to fewer."""
        basis = self.basis.with_degree(check_degree(degree, type(self.basis)))
        return CausalDensity(self.dim, resized(self.coefficients, basis.size), self.axis)

    def sequence(self, tokens: int, seed: int | None = None) -> FloatArray:
        """Tokens (tokens, 2) of the circle in order, token k of the law at (k - 1/2)/tokens.

        With a seed they are independent; without, the mass below token k is the k-th number of Kronecker's sequence of the golden
        ratio, so that every beginning of the sequence is spread as evenly as can be.
        """
        tokens = _checks.count(tokens, "tokens")
        _checks.room((tokens, 2), "the tokens")
        basis = self.basis
        if not isinstance(basis, Circle):
            raise UnsupportedError("sequences exist on the circle (dim=2, no axis)")
        k = np.arange(tokens)
        if seed is None:
            shares = np.mod((k + 0.5) * GOLDEN, 1.0)
        else:
            shares = np.random.default_rng(_checks.seed(seed)).random(tokens)
        angles = np.empty(tokens)
        rows = 20_000
        for first in range(0, tokens, rows):
            part = slice(first, first + rows)
            laws = interpolation(len(self.coefficients), (k[part] + 0.5) / tokens) @ self.coefficients
            angles[part] = angles_of_shares(basis, laws, shares[part])
        return sphere.from_angle(angles)
