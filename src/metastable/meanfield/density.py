"""`Density`: infinitely many tokens, as a series on the sphere."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from metastable import _checks, sphere
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, ResolutionError, UnsupportedError
from metastable.meanfield import bases
from metastable.meanfield.bases import Basis, Circle, Sphere, Zonal, resized

DEGREE = 32
"""Degree that a density starts with where nothing asks for more."""
LARGEST_DEGREE: dict[type[Basis], int] = {Circle: 4096, Zonal: 1024, Sphere: 128}
"""Degrees beyond which tables and steps take too long."""
TAIL = 1e-13
"""Part of a function (in mean square) that may be left in the last tenth of its modes."""
NEGATIVE = 1e-9
"""How far below zero, against its largest value, a density may go: what a truncated series leaves."""
BLOCK = 2**22
"""Numbers in a table of functions at points, at most."""
REJECTIONS = 10**8
"""Points that are drawn in vain, at most."""


def kind_of(dim: int, axis: Any) -> type[Basis]:
    """The basis for a dimension; `axis` not None: zonal."""
    if axis is not None:
        return Zonal
    if dim in (2, 3):
        return Circle if dim == 2 else Sphere
    raise UnsupportedError(
        f"densities exist on the circle, on S^2, and zonal in any dimension; for dim={dim} give the axis of symmetry: axis=[1, 0, ...]"
    )


def degree_of(kind: type[Basis], size: int) -> int:
    """The degree of a series of so many coefficients."""
    degree = {Circle: (size - 1) // 2, Zonal: size - 1, Sphere: math.isqrt(size) - 1}[kind]
    if degree < 0 or {Circle: 2 * degree + 1, Zonal: degree + 1, Sphere: (degree + 1) ** 2}[kind] != size:
        raise InvalidInputError(f"{size} coefficients are no full set of degrees on the {kind.__name__.lower()}")
    return degree


def tail_of(basis: Basis, coefficients: FloatArray) -> float:
    """Part of the series (root mean square) in the last tenth of the degrees."""
    last = basis.degrees > 0.9 * basis.degree
    size = float(np.linalg.norm(coefficients))
    return float(np.linalg.norm(coefficients[..., last])) / size if size > 0 else 0.0


def check_degree(degree: Any, kind: type[Basis], name: str = "degree") -> int:
    """`degree` as the degree of a series of this kind."""
    return _checks.count(degree, name, minimum=1, maximum=LARGEST_DEGREE[kind])


def check_axis(axis: Any, dim: int) -> FloatArray | None:
    """`axis` as a unit vector of R^dim."""
    if axis is None:
        return None
    return _checks.tokens(_checks.vector(axis, "axis", dim)[None, :], "axis", dim=dim)[0]


def in_frame(points: FloatArray, axis: FloatArray | None) -> FloatArray:
    """Points as a basis sees them: a zonal one looks at the height along the axis only, in the first coordinate."""
    if axis is None:
        return points
    height = np.clip(points @ axis, -1.0, 1.0)
    flat = np.zeros_like(points)
    flat[:, 0], flat[:, 1] = height, np.sqrt(1.0 - height**2)
    return flat


def out_of_frame(points: FloatArray, axis: FloatArray | None) -> FloatArray:
    """Points of the space for nodes of a basis: on the meridian towards some direction across the axis."""
    if axis is None:
        return points
    across = np.zeros_like(axis)
    across[int(np.argmin(np.abs(axis)))] = 1.0
    across -= (across @ axis) * axis
    return points[:, :1] * axis + points[:, 1:2] * (across / np.linalg.norm(across))


def evaluated(function: Callable[[FloatArray], Any], points: FloatArray) -> FloatArray:
    """A user's function at points (m, dim): finite, not negative, one number each."""
    if not callable(function):
        raise InvalidInputError(f"function must take unit vectors (m, dim) and return m numbers, not be {function!r}")
    try:
        answer = function(_checks.readonly(points.copy()))
    except Exception as reason:
        raise InvalidInputError(f"function failed at unit vectors (m, dim): {type(reason).__name__}: {reason}") from reason
    values = _checks.real_array(answer, "what function returns")
    if values.shape != (len(points),):
        raise InvalidInputError(f"function must return one number for each of {len(points)} points, not {values.shape}")
    if (values < 0).any():
        raise InvalidInputError(f"a density is not negative, but function returns {values.min():g}")
    if not values.max() > 0:
        raise InvalidInputError("function is zero everywhere: that is no density")
    return values / values.max()


def projected(function: Callable[[FloatArray], FloatArray], kind: type[Basis], dim: int, degree: int | None) -> FloatArray:
    """Coefficients (..., size) of a function of nodes (q, dim) to (..., q), of so high a degree as it needs where none is given."""
    if degree is not None:
        basis = bases.make(kind, dim, check_degree(degree, kind))
        return basis.project(function(basis.nodes))
    degree = DEGREE
    while True:
        basis = bases.make(kind, dim, degree)
        coefficients = basis.project(function(basis.nodes))
        if tail_of(basis, coefficients) <= TAIL:
            return coefficients
        if 2 * degree > LARGEST_DEGREE[kind]:
            raise ResolutionError(
                f"function has more detail than {degree} modes hold (the last tenth has {tail_of(basis, coefficients):.1e} of it); "
                "smooth it, or say degree= to take what there is"
            )
        degree *= 2


@dataclass(frozen=True, eq=False, repr=False)
class Density:
    """A law of tokens on the unit sphere of R^dim: its density against the uniform law (which is 1 everywhere), as a series.

    Fields
    ------
    dim : dimension of the space.
    coefficients : (size,) against real functions of mean square one, ordered by degree; the first is the mass, 1. On the circle
        1, sqrt(2) cos(k theta), sqrt(2) sin(k theta); on S^2 spherical harmonics (index l^2 + l + m, sines for m < 0); with an `axis`,
        in any dimension, the Gegenbauer polynomials of <x, axis>.
    axis : None, or the axis of a zonal density (dim,).

    Made by `Density.uniform`, `perturbed`, `from_function`, `from_tokens`.
    """

    dim: int
    coefficients: FloatArray
    axis: FloatArray | None = None

    def __post_init__(self) -> None:
        dim = _checks.count(self.dim, "dim", minimum=2, maximum=10_000)
        axis = check_axis(self.axis, dim)
        kind = kind_of(dim, axis)
        coefficients = _checks.vector(self.coefficients, "coefficients")
        check_degree(degree_of(kind, coefficients.size), kind, "the degree of coefficients")
        if abs(coefficients[0] - 1.0) > 1e-9:
            raise InvalidInputError(f"the mass of a density, its first coefficient, is 1, not {coefficients[0]:g}")
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "axis", None if axis is None else _checks.readonly(axis))
        object.__setattr__(self, "coefficients", _checks.readonly(coefficients))
        if self._lowest < -NEGATIVE:
            raise InvalidInputError(
                f"a density is not negative, but this series goes down to {self._lowest:.3g} of its largest value; "
                "smooth it (bandwidth=), or give it more modes (degree=)"
            )

    def __repr__(self) -> str:
        where = "the circle" if self.dim == 2 and self.axis is None else f"the sphere of R^{self.dim}"
        zonal = "" if self.axis is None else ", zonal"
        return f"<Density on {where}{zonal}, degree {self.basis.degree}, |mean| = {self.order_parameter:.6g}>"

    # ------------------------------------------------------------------------------------------------------------ made

    @staticmethod
    def uniform(dim: int, degree: int = DEGREE, axis: Any = None) -> Density:
        """The uniform law."""
        return Density.perturbed(dim, {}, degree, axis)

    @staticmethod
    def perturbed(dim: int, amplitudes: dict[int, float], degree: int = DEGREE, axis: Any = None) -> Density:
        """The uniform law and a perturbation: 1 + sum_l amplitudes[l] P_l(<x, e>), P_l(1) = 1; cos(l theta) on the circle.

        e is the axis; on the circle and on S^2 it is the first and the third basis vector where none is given.

        >>> import metastable as ms
        >>> ms.meanfield.Density.perturbed(2, {3: 0.1}).fourier(3).round(3)
        array([0.  +0.j, 0.  +0.j, 0.05+0.j])
        """
        dim = _checks.count(dim, "dim", minimum=2, maximum=10_000)
        axis = check_axis(axis, dim)
        kind = kind_of(dim, axis)
        basis = bases.make(kind, dim, check_degree(degree, kind))
        if not isinstance(amplitudes, dict):
            raise InvalidInputError(f"amplitudes must say how much of which degree: {{3: 0.1}}, not {amplitudes!r}")
        pole = np.zeros((1, dim))
        pole[0, 2 if kind is Sphere else 0] = 1.0
        top = basis.functions(pole)[0]
        coefficients = np.zeros(basis.size)
        coefficients[0] = 1.0
        for key, amplitude in amplitudes.items():
            l = _checks.count(key, "the degrees in amplitudes", maximum=basis.degree)
            size = _checks.number(amplitude, "amplitudes", -1e6, 1e6)
            chosen = basis.degrees == l
            coefficients[chosen] += size * top[chosen] / float(top[chosen] @ top[chosen])
        return Density(dim, coefficients, axis)

    @staticmethod
    def from_function(
        function: Callable[[FloatArray], Any], dim: int, degree: int | None = None, axis: Any = None
    ) -> Density:
        """The law whose density is proportional to `function`, of unit vectors (m, dim) to m numbers >= 0.

        `degree` None: as many modes as it takes to have it to rounding. `axis`: the function depends on <x, axis> only.
        """
        dim = _checks.count(dim, "dim", minimum=2, maximum=10_000)
        axis = check_axis(axis, dim)
        coefficients = projected(
            lambda nodes: evaluated(function, out_of_frame(nodes, axis)), kind_of(dim, axis), dim, degree
        )
        if not coefficients[0] > 0:
            raise InvalidInputError("function has no mass that the nodes see; smooth it, or give more modes (degree=)")
        return Density(dim, coefficients / coefficients[0], axis)

    @staticmethod
    def from_tokens(
        x: Any, bandwidth: float | None = None, degree: int | None = None, masses: Any = None, axis: Any = None
    ) -> Density:
        """The law of tokens x (n, dim), each smeared out by a Brownian motion of `bandwidth` radians (the heat kernel), which keeps
        it positive and multiplies harmonics of degree l by exp(-l (l + d - 2) bandwidth^2/2).

        `bandwidth` None: 0.5 n^(-1/(d + 3)), or what `degree` modes can show. `masses`: how often each token counts. `axis`: the law
        of the heights <x, axis> only.
        """
        tokens = _checks.tokens(x, "x")
        n, dim = tokens.shape
        axis = check_axis(axis, dim)
        kind = kind_of(dim, axis)
        share = np.ones(n) if masses is None else _checks.vector(masses, "masses", n)
        if (share < 0).any() or not 0 < share.sum() < math.inf:
            raise InvalidInputError("masses must not be negative, and their sum must be positive and finite")
        if degree is not None:
            degree = check_degree(degree, kind)
        reach = math.sqrt(-2.0 * math.log(TAIL))
        if bandwidth is None:
            bandwidth = 0.5 * n ** (-1.0 / (dim + 3)) if degree is None else reach / degree
        bandwidth = _checks.number(bandwidth, "bandwidth", 0.0, strict=True)
        if degree is None:
            needed = max(4.0, reach / bandwidth)
            if needed > LARGEST_DEGREE[kind]:
                raise ResolutionError(
                    f"a bandwidth of {bandwidth:g} needs {needed:.3g} modes, more than {LARGEST_DEGREE[kind]}; "
                    f"use bandwidth={1.01 * reach / LARGEST_DEGREE[kind]:.2g} or more"
                )
            degree = math.ceil(needed)
        basis = bases.make(kind, dim, degree)
        coefficients = np.zeros(basis.size)
        rows = max(1, BLOCK // (basis.size * (degree if kind is Sphere else 1)))
        framed = in_frame(tokens, axis)
        for first in range(0, n, rows):
            part = slice(first, first + rows)
            coefficients += share[part] @ basis.functions(framed[part])
        coefficients *= np.exp(-0.5 * bandwidth**2 * basis.laplacian)
        return Density(dim, coefficients / coefficients[0], axis)

    # ------------------------------------------------------------------------------------------------------------ asked

    @property
    def basis(self) -> Basis:
        """The functions of the series."""
        kind = kind_of(self.dim, self.axis)
        return bases.make(kind, self.dim, degree_of(kind, self.coefficients.size))

    @property
    def mass(self) -> float:
        """1."""
        return float(self.coefficients[0])

    @cached_property
    def _lowest(self) -> float:
        values = self.basis.values(self.coefficients)
        return float(values.min() / values.max())

    @cached_property
    def nodes(self) -> FloatArray:
        """Points (q, dim) at which `values` are; with `weights` a quadrature rule. Zonal: on one meridian."""
        return _checks.readonly(out_of_frame(self.basis.nodes, self.axis).copy())

    @property
    def weights(self) -> FloatArray:
        """Weights (q,) of the nodes under the uniform law, of sum one: sum weights values f(nodes) is the mean of f."""
        return _checks.readonly(self.basis.weights.copy())

    @cached_property
    def values(self) -> FloatArray:
        """The density at the nodes (q,); 1 is uniform. (What the truncated series leaves below zero is zero.)"""
        return _checks.readonly(np.maximum(self.basis.values(self.coefficients), 0.0))

    def __call__(self, points: Any) -> FloatArray:
        """The density at unit vectors (m, dim), shape (m,); 1 is uniform."""
        tokens = in_frame(_checks.tokens(points, "points", dim=self.dim), self.axis)
        basis, rows = self.basis, max(1, BLOCK // self.coefficients.size)
        parts = [basis.functions(tokens[i : i + rows]) @ self.coefficients for i in range(0, len(tokens), rows)]
        return np.maximum(np.concatenate(parts), 0.0)

    def at_angle(self, theta: Any) -> FloatArray:
        """The density at angles of the circle, against the uniform law; over 2 pi it is the density in the angle."""
        if self.dim != 2:
            raise UnsupportedError(f"only the circle has angles, not dimension {self.dim}; call the density at unit vectors")
        angles = np.atleast_1d(_checks.real_array(theta, "theta"))
        return self(sphere.from_angle(angles.ravel())).reshape(angles.shape)

    def fourier(self, modes: int) -> np.ndarray:
        """Means of e^(-i k theta), k = 1..modes, on the circle: complex (modes,)."""
        modes = _checks.count(modes, "modes", maximum=LARGEST_DEGREE[Circle])
        basis = self.basis
        if not isinstance(basis, Circle):
            raise UnsupportedError("Fourier modes exist on the circle (dim=2, no axis); use amplitudes(modes)")
        found = np.zeros(modes, dtype=complex)
        kept = min(modes, basis.degree)
        found[:kept] = basis.complex_modes(self.coefficients)[1 : kept + 1]
        return found

    def amplitudes(self, modes: int) -> FloatArray:
        """Size of the part of degree 1..modes, shape (modes,): 1 for a point mass, |mean of e^(i k theta)| on the circle.

        It is the root of the mean of P_l(<x, y>) over independent x, y of the law.
        """
        modes = _checks.count(modes, "modes", maximum=max(LARGEST_DEGREE.values()))
        basis = self.basis
        top = basis.functions(np.eye(1, self.dim))[0]
        found = np.zeros(modes)
        for l in range(1, min(modes, basis.degree) + 1):
            chosen = basis.degrees == l
            found[l - 1] = np.linalg.norm(self.coefficients[chosen]) / np.linalg.norm(top[chosen])
        return found

    @property
    def mean(self) -> FloatArray:
        """The mean token (dim,)."""
        first = self.coefficients[self.basis.degrees == 1] / math.sqrt(self.dim)
        if self.axis is not None:
            return first[0] * self.axis
        return first if self.dim == 2 else first[[2, 0, 1]]

    @property
    def order_parameter(self) -> float:
        """|mean token|: 0 for the uniform law, 1 for a point mass."""
        return float(np.linalg.norm(self.mean))

    def with_degree(self, degree: int) -> Density:
        """The same density with more modes, or cut to fewer."""
        basis = self.basis.with_degree(check_degree(degree, type(self.basis)))
        return Density(self.dim, resized(self.coefficients, basis.size), self.axis)

    def as_zonal(self) -> Density:
        """A density of the circle or of S^2 as a zonal one, averaged around its mean token (around the first axis if that is 0)."""
        if self.axis is not None:
            return self
        size = self.order_parameter
        axis = self.mean / size if size > 1e-12 else np.eye(1, self.dim)[0]
        degree = min(self.basis.degree, LARGEST_DEGREE[Zonal])
        basis = bases.make(Zonal, self.dim, degree)
        # The zonal part of degree l is the value of that part at the pole, over sqrt(N_l).
        parts = self.basis.functions(axis[None])[0] * self.coefficients
        pole = np.array([parts[self.basis.degrees == l].sum() for l in range(degree + 1)])
        return Density(self.dim, pole / basis.functions(np.eye(1, self.dim))[0], axis)

    # ------------------------------------------------------------------------------------------------------------ drawn

    def sample(self, tokens: int, seed: int) -> FloatArray:
        """Independent tokens of this law, (tokens, dim), by rejection from the uniform law."""
        tokens = _checks.count(tokens, "tokens")
        _checks.room((tokens, self.dim), "the tokens")
        generator = np.random.default_rng(_checks.seed(seed))
        fine = self.basis.with_degree(min(2 * self.basis.degree, LARGEST_DEGREE[type(self.basis)]))
        top = 1.05 * float(fine.values(resized(self.coefficients, fine.size)).max())
        if top * tokens > REJECTIONS:
            raise ResolutionError(f"the density is too concentrated to be sampled by rejection (its peak is {top:.3g})")
        kept: list[FloatArray] = []
        missing = tokens
        while missing > 0:
            points = sphere.uniform(min(10**5, math.ceil(1.1 * top * missing) + 16), self.dim, generator)
            chosen = points[generator.random(len(points)) * top < self(points)][:missing]
            kept.append(chosen)
            missing -= len(chosen)
        return np.concatenate(kept)

    def quantiles(self, tokens: int) -> FloatArray:
        """Tokens (tokens, 2) of the circle that share its mass evenly: the start that stands best for the density."""
        tokens = _checks.count(tokens, "tokens")
        _checks.room((tokens, 2), "the tokens")
        if not isinstance(self.basis, Circle):
            raise UnsupportedError("quantiles exist on the circle (dim=2, no axis); elsewhere use nodes with masses weights * values")
        shares = (np.arange(tokens) + 0.5) / tokens
        return sphere.from_angle(angles_of_shares(self.basis, self.coefficients[None, :], shares))


def angles_of_shares(basis: Circle, coefficients: FloatArray, shares: FloatArray) -> FloatArray:
    """Angles t (m,) at which the law of each row (m or 1, size) has mass `shares` between 0 and t."""
    k = np.arange(1.0, basis.degree + 1.0)
    modes = basis.complex_modes(coefficients)[:, 1:]
    grid = np.linspace(0.0, 2.0 * np.pi, 4 * basis.degree + 65)

    def law(at: FloatArray, rows: np.ndarray) -> tuple[FloatArray, FloatArray]:
        """Mass up to `at`, and the density in the angle there."""
        waves = np.exp(1j * at[:, None] * k) * rows
        mass = at + 2.0 * ((waves - rows) / (1j * k)).sum(axis=1).real
        return mass / (2.0 * np.pi), (1.0 + 2.0 * waves.sum(axis=1).real) / (2.0 * np.pi)

    table = (np.exp(1j * grid[:, None] * k) - 1.0) / (1j * k)
    rows = max(1, BLOCK // (8 * grid.size))
    found = np.empty(shares.size)
    for first in range(0, shares.size, rows):
        part = slice(first, first + rows)
        own = modes if len(modes) == 1 else modes[part]
        known = (grid + 2.0 * (own @ table.T).real) / (2.0 * np.pi)
        wanted = shares[part]
        left = np.array(
            [np.searchsorted(known[0 if len(known) == 1 else i], share) for i, share in enumerate(wanted)], dtype=int
        )
        low, high = grid[np.clip(left - 1, 0, None)], grid[np.clip(left, 1, grid.size - 1)]
        at = 0.5 * (low + high)
        for _ in range(60):  # Newton's method, kept between what is known to be below and above
            share, height = law(at, own)
            low, high = np.where(share < wanted, at, low), np.where(share < wanted, high, at)
            with np.errstate(divide="ignore", invalid="ignore"):
                better = at - (share - wanted) / height
            inside = (better > low) & (better < high)
            better = np.where(inside, better, 0.5 * (low + high))
            moved = np.abs(better - at).max()
            at = better
            if moved < 1e-14:
                break
        found[part] = at
    return found
