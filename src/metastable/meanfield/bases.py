"""Functions on the sphere as short series: Fourier on the circle, spherical harmonics on S^2, Gegenbauer polynomials for what is
zonal (depends on the angle to one axis only) in any dimension.

All three are the same thing to the rest of this room: real functions phi_i, orthonormal for the uniform law s of the sphere (s has mass
one, phi_0 = 1), ordered by their degree l, with

    Laplace-Beltrami:    -Delta phi_i = l (l + d - 2) phi_i,
    Funk and Hecke:      integral W(<x, y>) phi_i(y) ds(y) = w_l phi_i(x),      w_l = integral W(z) P_l(z),

and nodes with weights whose sums are integrals of products of three such functions. Coefficients are vectors (..., size) whose leading
axes go along; a longer series begins with the shorter one, so refining is padding with zeros.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.fft import irfft, rfft
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal

from metastable._checks import FloatArray

ComplexArray = NDArray[np.complex128]
IntArray = NDArray[np.int64]

SQRT2 = float(np.sqrt(2.0))


@dataclass(frozen=True)
class Basis(ABC):
    """Orthonormal functions up to `degree` on the unit sphere of R^`dim`."""

    dim: int
    degree: int

    @property
    @abstractmethod
    def degrees(self) -> FloatArray:
        """Degree l of each function, shape (size,)."""

    @property
    @abstractmethod
    def nodes(self) -> FloatArray:
        """Quadrature nodes, unit vectors (q, dim)."""

    @property
    @abstractmethod
    def frames(self) -> FloatArray:
        """Tangent directions at the nodes in which gradients are given, (components, q, dim)."""

    @property
    @abstractmethod
    def weights(self) -> FloatArray:
        """Quadrature weights (q,), of sum one."""

    @abstractmethod
    def values(self, coefficients: FloatArray) -> FloatArray:
        """The series at the nodes, (..., size) -> (..., q)."""

    @abstractmethod
    def gradient(self, coefficients: FloatArray) -> FloatArray:
        """Its gradient at the nodes, (..., size) -> (components, ..., q)."""

    @abstractmethod
    def project(self, values: FloatArray) -> FloatArray:
        """Integrals of `values` (..., q) against the functions, (..., size)."""

    @abstractmethod
    def project_gradient(self, flux: FloatArray) -> FloatArray:
        """Integrals of <flux, grad phi_i>, (components, ..., q) -> (..., size): minus the divergence, weakly, exact in mass."""

    @abstractmethod
    def functions(self, points: FloatArray) -> FloatArray:
        """phi_i at unit vectors (m, dim), shape (m, size)."""

    @property
    def size(self) -> int:
        """Number of functions."""
        return self.degrees.size

    @cached_property
    def laplacian(self) -> FloatArray:
        """l (l + d - 2) for each function."""
        return self.degrees * (self.degrees + self.dim - 2.0)

    def with_degree(self, degree: int) -> Basis:
        """The basis of the same kind up to another degree."""
        return make(type(self), self.dim, degree)


@lru_cache(maxsize=32)
def make(kind: type[Basis], dim: int, degree: int) -> Basis:
    """The basis of a kind; tables are made once."""
    return kind(dim, degree)


def fast_length(least: int) -> int:
    """The smallest 2^a 3^b that is not below `least`: lengths that fast Fourier transforms like."""
    powers = [3**b for b in range(12)]
    return min(power * 2 ** max(0, math.ceil(math.log2(least / power))) for power in powers)


def resized(coefficients: FloatArray, size: int) -> FloatArray:
    """Coefficients (..., any) cut or padded with zeros to `size`."""
    result = np.zeros((*coefficients.shape[:-1], size))
    kept = min(size, coefficients.shape[-1])
    result[..., :kept] = coefficients[..., :kept]
    return result


# --------------------------------------------------------------------------------------------------------------- circle


@dataclass(frozen=True)
class Circle(Basis):
    """1, sqrt(2) cos(k theta), sqrt(2) sin(k theta), k = 1..degree; four nodes for each k."""

    @cached_property
    def degrees(self) -> FloatArray:
        return np.concatenate([[0.0], np.repeat(np.arange(1.0, self.degree + 1.0), 2)])

    @cached_property
    def _count(self) -> int:
        return fast_length(max(8, 4 * self.degree))

    @cached_property
    def angles(self) -> FloatArray:
        """Angles of the nodes, from 0."""
        return 2.0 * np.pi * np.arange(self._count) / self._count

    @cached_property
    def nodes(self) -> FloatArray:
        return np.stack([np.cos(self.angles), np.sin(self.angles)], axis=-1)

    @cached_property
    def frames(self) -> FloatArray:
        return np.stack([-np.sin(self.angles), np.cos(self.angles)], axis=-1)[None]

    @cached_property
    def weights(self) -> FloatArray:
        return np.full(self._count, 1.0 / self._count)

    def complex_modes(self, coefficients: FloatArray) -> ComplexArray:
        """integral e^(-i k theta) f ds for k = 0..degree."""
        modes = np.empty((*coefficients.shape[:-1], self.degree + 1), dtype=complex)
        modes[..., 0] = coefficients[..., 0]
        modes[..., 1:] = (coefficients[..., 1::2] - 1j * coefficients[..., 2::2]) / SQRT2
        return modes

    def _real(self, modes: ComplexArray) -> FloatArray:
        result = np.empty((*modes.shape[:-1], 2 * self.degree + 1))
        result[..., 0] = modes[..., 0].real
        result[..., 1::2] = SQRT2 * modes[..., 1 : self.degree + 1].real
        result[..., 2::2] = -SQRT2 * modes[..., 1 : self.degree + 1].imag
        return result

    def values(self, coefficients: FloatArray) -> FloatArray:
        return irfft(self.complex_modes(coefficients), self._count, axis=-1) * self._count

    def gradient(self, coefficients: FloatArray) -> FloatArray:
        modes = self.complex_modes(coefficients) * (1j * np.arange(self.degree + 1))
        return irfft(modes, self._count, axis=-1)[None] * self._count

    def project(self, values: FloatArray) -> FloatArray:
        return self._real(rfft(values, axis=-1)[..., : self.degree + 1] / self._count)

    def project_gradient(self, flux: FloatArray) -> FloatArray:
        modes = rfft(flux[0], axis=-1)[..., : self.degree + 1] / self._count
        return self._real(modes * (-1j * np.arange(self.degree + 1)))

    def functions(self, points: FloatArray) -> FloatArray:
        waves = np.exp(-1j * np.arctan2(points[:, 1], points[:, 0])[:, None] * np.arange(self.degree + 1.0))
        return self._real(waves)


# ---------------------------------------------------------------------------------------------------------------- zonal


def _recurrence(dim: int, count: int) -> FloatArray:
    """b_1..b_count of z p_(l-1) = b_l p_l + b_(l-1) p_(l-2), the p_l orthonormal for the law of z = <x, e> on the sphere."""
    l = np.arange(1.0, count + 1.0)
    bottom = (2.0 * l + dim - 4.0) * (2.0 * l + dim - 2.0)
    # The first one is E z^2 = 1/d; the general form is 0/0 there in the plane.
    return np.sqrt(np.where(l == 1, 1.0 / dim, l * (l + dim - 3.0) / np.where(bottom == 0, 1.0, bottom)))


def zonal_polynomials(dim: int, degree: int, z: FloatArray) -> tuple[FloatArray, FloatArray]:
    """p_0..p_degree and their derivatives at z (m,), shape (m, degree + 1): Gegenbauer polynomials, p_l = sqrt(N_l) P_l."""
    b = _recurrence(dim, degree + 1)
    value = np.zeros((z.size, degree + 1))
    slope = np.zeros_like(value)
    value[:, 0] = 1.0
    if degree:
        value[:, 1], slope[:, 1] = z / b[0], 1.0 / b[0]
    for l in range(2, degree + 1):
        value[:, l] = (z * value[:, l - 1] - b[l - 2] * value[:, l - 2]) / b[l - 1]
        slope[:, l] = (value[:, l - 1] + z * slope[:, l - 1] - b[l - 2] * slope[:, l - 2]) / b[l - 1]
    return value, slope


@lru_cache(maxsize=64)
def gauss_rule(dim: int, count: int) -> tuple[FloatArray, FloatArray]:
    """Nodes z and weights (sum one) of Gauss's rule for the law of <x, e> on the sphere of R^dim (Golub and Welsch)."""
    if dim == 2:
        z = np.cos(np.pi * (np.arange(count)[::-1] + 0.5) / count)
        return z, np.full(count, 1.0 / count)
    z = np.asarray(eigh_tridiagonal(np.zeros(count), _recurrence(dim, count)[: count - 1], eigvals_only=True))
    z = 0.5 * (z - z[::-1])
    value, _ = zonal_polynomials(dim, count - 1, z)
    weights = 1.0 / np.einsum("ql,ql->q", value, value)
    return z, weights / weights.sum()


@dataclass(frozen=True)
class Zonal(Basis):
    """sqrt(N_l) P_l(<x, e>), l = 0..degree, e the first axis: Gegenbauer polynomials, N_l harmonics of degree l; Gauss's nodes."""

    @cached_property
    def degrees(self) -> FloatArray:
        return np.arange(self.degree + 1.0)

    @cached_property
    def _rule(self) -> tuple[FloatArray, FloatArray]:
        return gauss_rule(self.dim, 2 * self.degree + 8)

    @property
    def heights(self) -> FloatArray:
        """z = <x, e> at the nodes, ascending."""
        return self._rule[0]

    @cached_property
    def nodes(self) -> FloatArray:
        points = np.zeros((self.heights.size, self.dim))
        points[:, 0], points[:, 1] = self.heights, np.sqrt(1.0 - self.heights**2)
        return points

    @cached_property
    def frames(self) -> FloatArray:
        directions = np.zeros_like(self.nodes)
        directions[:, 0], directions[:, 1] = self.nodes[:, 1], -self.nodes[:, 0]
        return directions[None]

    @property
    def weights(self) -> FloatArray:
        return self._rule[1]

    @cached_property
    def _tables(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        value, slope = zonal_polynomials(self.dim, self.degree, self.heights)
        steep = slope * self.nodes[:, 1:2]
        return value.T.copy(), steep.T.copy(), self.weights[:, None] * value, self.weights[:, None] * steep

    def values(self, coefficients: FloatArray) -> FloatArray:
        return coefficients @ self._tables[0]

    def gradient(self, coefficients: FloatArray) -> FloatArray:
        return (coefficients @ self._tables[1])[None]

    def project(self, values: FloatArray) -> FloatArray:
        return values @ self._tables[2]

    def project_gradient(self, flux: FloatArray) -> FloatArray:
        return flux[0] @ self._tables[3]

    def functions(self, points: FloatArray) -> FloatArray:
        return zonal_polynomials(self.dim, self.degree, np.clip(points[:, 0], -1.0, 1.0))[0]


# --------------------------------------------------------------------------------------------------------------- sphere


def legendre_table(degree: int, z: FloatArray) -> FloatArray:
    """Associated Legendre functions of mean square one over z in [-1, 1], shape (m, l, q) for 0 <= m, l <= degree (0 for l < m)."""
    table = np.zeros((degree + 1, degree + 1, z.size))
    across = np.sqrt(1.0 - z**2)
    table[0, 0] = 1.0
    for m in range(1, degree + 1):
        table[m, m] = np.sqrt((2.0 * m + 1.0) / (2.0 * m)) * across * table[m - 1, m - 1]
    for m in range(degree):
        table[m, m + 1] = np.sqrt(2.0 * m + 3.0) * z * table[m, m]
        for l in range(m + 2, degree + 1):
            a = np.sqrt((4.0 * l * l - 1.0) / (l * l - m * m))
            b = np.sqrt(((l - 1.0) ** 2 - m * m) / (4.0 * (l - 1.0) ** 2 - 1.0))
            table[m, l] = a * (z * table[m, l - 1] - b * table[m, l - 2])
    return table


@dataclass(frozen=True)
class Sphere(Basis):
    """Real spherical harmonics of S^2 with mean square one, index l^2 + l + m (m < 0: sines); Gauss's nodes in x_3."""

    @cached_property
    def degrees(self) -> FloatArray:
        l = np.arange(self.degree + 1)
        return np.repeat(l, 2 * l + 1).astype(float)

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        return 3 * self.degree // 2 + 4, fast_length(max(8, 3 * self.degree + 1))

    @cached_property
    def _heights(self) -> tuple[FloatArray, FloatArray]:
        return gauss_rule(3, self._sizes[0])

    @cached_property
    def _mesh(self) -> tuple[FloatArray, FloatArray]:
        around = 2.0 * np.pi * np.arange(self._sizes[1]) / self._sizes[1]
        z, turn = np.meshgrid(self._heights[0], around, indexing="ij")
        return z.ravel(), turn.ravel()

    @cached_property
    def nodes(self) -> FloatArray:
        z, turn = self._mesh
        across = np.sqrt(1.0 - z**2)
        return np.stack([across * np.cos(turn), across * np.sin(turn), z], axis=-1)

    @cached_property
    def frames(self) -> FloatArray:
        z, turn = self._mesh
        down = np.stack([z * np.cos(turn), z * np.sin(turn), -np.sqrt(1.0 - z**2)], axis=-1)
        return np.stack([down, np.stack([-np.sin(turn), np.cos(turn), np.zeros_like(z)], axis=-1)])

    @cached_property
    def weights(self) -> FloatArray:
        return np.repeat(self._heights[1] / self._sizes[1], self._sizes[1])

    @cached_property
    def _tables(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Legendre functions, their derivative in the angle from the pole, and m times them over its sine; each (m, l, q)."""
        z, degree = self._heights[0], self.degree
        table = legendre_table(degree, z)
        l = np.arange(degree + 1.0)[None, :, None]
        m = np.arange(degree + 1.0)[:, None, None]
        lower = np.zeros_like(table)
        lower[:, 1:] = table[:, :-1]
        factor = np.sqrt(np.maximum((2.0 * l + 1.0) * (l * l - m * m) / np.where(l == 0, 1.0, 2.0 * l - 1.0), 0.0))
        across = np.sqrt(1.0 - z**2)
        return table, (l * z * table - factor * lower) / across, m * table / across

    @cached_property
    def _places(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """m and l of the pairs 0 <= m <= l, and the places of their cosines and sines among the coefficients."""
        m, l = np.meshgrid(np.arange(self.degree + 1), np.arange(self.degree + 1), indexing="ij")
        m, l = m[l >= m], l[l >= m]
        return m, l, l * l + l + m, l * l + l - m

    def packed(self, coefficients: FloatArray) -> ComplexArray:
        """Coefficients as complex amplitudes (..., m, l) of e^(i m phi), m >= 0."""
        m, l, cosine, sine = self._places
        result = np.zeros((*coefficients.shape[:-1], self.degree + 1, self.degree + 1), dtype=complex)
        result[..., m, l] = np.where(m == 0, 1.0, 1.0 / SQRT2) * coefficients[..., cosine]
        result[..., m, l] -= np.where(m == 0, 0.0, 1j / SQRT2) * coefficients[..., sine]
        return result

    def _unpacked(self, packed: ComplexArray) -> FloatArray:
        m, l, cosine, sine = self._places
        result = np.zeros((*packed.shape[:-2], (self.degree + 1) ** 2))
        chosen = packed[..., m, l]
        # Sines first: for m = 0 both have one place, which is the cosine's.
        result[..., sine] = -SQRT2 * chosen.imag
        result[..., cosine] = np.where(m == 0, 1.0, SQRT2) * chosen.real
        return result

    def _around(self, packed: ComplexArray, table: FloatArray) -> FloatArray:
        """sum_m e^(i m phi) sum_l table packed at the nodes."""
        rings = np.matmul(packed[..., :, None, :], table)[..., 0, :]
        fields = irfft(np.moveaxis(rings, -2, -1), self._sizes[1], axis=-1) * self._sizes[1]
        return fields.reshape(*fields.shape[:-2], -1)

    def _rings(self, values: FloatArray) -> ComplexArray:
        """Integrals around, times the weights in x_3: (..., q) -> (..., m, heights)."""
        heights, turns = self._sizes
        field = values.reshape(*values.shape[:-1], heights, turns)
        modes = rfft(field, axis=-1)[..., : self.degree + 1] / turns
        return np.moveaxis(modes * self._heights[1][:, None], -1, -2)

    @staticmethod
    def _gather(rings: ComplexArray, table: FloatArray) -> ComplexArray:
        return np.matmul(table, rings[..., None])[..., 0]

    def values(self, coefficients: FloatArray) -> FloatArray:
        return self._around(self.packed(coefficients), self._tables[0])

    def gradient(self, coefficients: FloatArray) -> FloatArray:
        packed = self.packed(coefficients)
        return np.stack([self._around(packed, self._tables[1]), self._around(1j * packed, self._tables[2])])

    def project(self, values: FloatArray) -> FloatArray:
        return self._unpacked(self._gather(self._rings(values), self._tables[0]))

    def project_gradient(self, flux: FloatArray) -> FloatArray:
        total = self._gather(self._rings(flux[0]), self._tables[1])
        # The conjugate of d/d phi: -i m.
        total = total - 1j * self._gather(self._rings(flux[1]), self._tables[2])
        return self._unpacked(total)

    def functions(self, points: FloatArray) -> FloatArray:
        table = legendre_table(self.degree, np.clip(points[:, 2], -1.0, 1.0))
        turns: ComplexArray = np.exp(-1j * np.arange(self.degree + 1)[:, None] * np.arctan2(points[:, 1], points[:, 0]))
        packed: ComplexArray = np.moveaxis(table * turns[:, None, :], -1, 0)
        return self._unpacked(packed)
