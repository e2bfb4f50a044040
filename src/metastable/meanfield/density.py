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
from metastable.meanfield.bases import Basis, Circle, Zonal, resized
from metastable.meanfield.making import (
    BLOCK,
    DEGREE,
    LARGEST_DEGREE,
    angles_of_shares,
    at_nodes,
    check_axis,
    check_degree,
    check_kept,
    degree_of,
    in_frame,
    kind_of,
    out_of_frame,
    projected,
    smeared,
    smearing,
)
from metastable.meanfield.symmetry import best_axis, default_axis, zonal_parts

NEGATIVE = 1e-9
"""How far below zero, against its largest value, a density may go: what a truncated series leaves."""
REJECTIONS = 10**8
"""Points that are drawn in vain, at most."""


@dataclass(frozen=True, eq=False, repr=False)
class Density(_checks.LockedArrays):
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
        # A zonal basis has its pole in front, wherever the axis is.
        top = basis.functions((np.eye(dim)[0] if kind is Zonal else default_axis(dim))[None])[0]
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

        `degree` None: as many modes as it takes to have it to rounding, also at points between those that the series is made from
        (`ResolutionError` where the largest degree does not do: 4096 on the circle, 128 on S^2, 1024 with an axis). Else the
        series is cut there. `axis`: the function depends on <x, axis> only.
        """
        dim = _checks.count(dim, "dim", minimum=2, maximum=10_000)
        axis = check_axis(axis, dim)
        coefficients = projected(at_nodes(function, axis), kind_of(dim, axis), dim, degree)
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
        if (share < 0).any() or not share.max() > 0:
            raise InvalidInputError("masses must not be negative, and not all of them zero")
        share = share / share.max()
        (coefficients,) = smeared(tokens, (share / share.sum())[None], axis, *smearing(n, dim, kind, bandwidth, degree))
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
            raise UnsupportedError(
                f"only the circle has angles, not dimension {self.dim}; call the density at unit vectors"
            )
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
        """A density of the circle or of S^2 as a zonal one, averaged around an axis: that of its mean token, or, where that is
        0, the one that keeps most of it (of the uniform law: e_1, on S^2 e_3, as in `perturbed`)."""
        if self.axis is not None:
            return self
        size = self.order_parameter
        axis = self.mean / size if size > 1e-12 else best_axis(self.basis, self.coefficients)
        degree = min(self.basis.degree, LARGEST_DEGREE[Zonal])
        check_kept(self.basis, self.coefficients, degree, NEGATIVE, f"zonal ones keep {degree} of them")
        basis = bases.make(Zonal, self.dim, degree)
        # The zonal part of degree l is the value of that part at the pole, over sqrt(N_l).
        pole = zonal_parts(self.basis, self.coefficients, axis[None])[0, : degree + 1]
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
            raise UnsupportedError(
                "quantiles exist on the circle (dim=2, no axis); elsewhere use nodes with masses weights * values"
            )
        shares = (np.arange(tokens) + 0.5) / tokens
        return sphere.from_angle(angles_of_shares(self.basis, self.coefficients[None, :], shares))
