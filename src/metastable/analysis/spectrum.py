"""The leading eigenvalue of a value matrix: its multiplicities, Jordan blocks and the space L that tokens approach.

Multiplicities are not continuous, so they are decided by backward error: an eigenvalue has multiplicity m, with blocks of
given lengths, if a matrix within `tolerance * |V|` of V has it exactly. Computed eigenvalues alone cannot tell (a Jordan block
of length m spreads them by the m-th root of the rounding error), so clusters of eigenvalues are isolated by an ordered
Schur form, and the ranks of the nearly nilpotent rest are found by the staircase algorithm with singular values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError

LONGEST_CLUSTER = 32
"""Largest cluster of eigenvalues that is examined for Jordan blocks (repeated semisimple ones may be more)."""


@dataclass(frozen=True)
class LeadingEigenvalue:
    """The eigenvalue of largest real part, and what one token does with it (Lemma 3.1).

    Fields
    ------
    eigenvalue : float when real, complex (with positive imaginary part) otherwise.
    multiplicity : algebraic multiplicity.
    geometric_multiplicity : number of Jordan blocks.
    longest_block : length of the longest Jordan block.
    subspace : (d, k) orthonormal columns spanning L, the eigenvectors that close the longest blocks (for a complex pair
        the real span of both).
    alone : False when other eigenvalues have the same real part (a real one and a pair, or two different pairs); then
        `subspace` is the invariant space of all of them.
    tolerance, scale : numbers up to `tolerance * scale` are zero; scale is the spectral norm of V, and the tolerance is the one
        asked for or, where that is more, the rounding error of V.
    eigenvalues : (d,) the whole spectrum, by decreasing real part.
    """

    eigenvalue: float | complex
    multiplicity: int
    geometric_multiplicity: int
    longest_block: int
    subspace: FloatArray
    alone: bool
    tolerance: float
    scale: float
    eigenvalues: NDArray[np.complex128]

    @property
    def is_complex(self) -> bool:
        """True for a complex pair."""
        return isinstance(self.eigenvalue, complex)

    @property
    def sign(self) -> int:
        """Sign of the real part, 0 within the tolerance."""
        part = self.eigenvalue.real
        return 0 if abs(part) <= self.tolerance * self.scale else (1 if part > 0 else -1)


def leading_eigenvalue(value: ArrayLike, tolerance: float = 1e-9, *, scale: float | None = None) -> LeadingEigenvalue:
    """Leading eigenvalue of V with multiplicities, Jordan blocks and the space L.

    Args:
        value: V, shape (d, d).
        tolerance: relative to the spectral norm of V. Two well-conditioned eigenvalues count as equal when they differ by
            less than about twice this. Below the rounding error of the decomposition, 4 d eps, it counts as that.
        scale: what V was computed from has this norm, so V is known to 4 d eps of it and no better (a V that is zero up to
            that is zero); None for the norm of V itself.

    Reference: arXiv:2411.04990, Lemma 3.1 (L); G. Golub and J. Wilkinson, SIAM Review 18 (1976) 578, and B. Kagstrom and
    A. Ruhe, ACM TOMS 6 (1980) 398 (the staircase).
    """
    matrix = _checks.real_array(value, "value")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise InvalidInputError(f"value must be a square matrix, not an array of shape {matrix.shape}")
    tolerance = _checks.number(tolerance, "tolerance", 0.0, 0.1)
    size = float(np.linalg.norm(matrix, 2))
    dim = len(matrix)
    rounding = 4 * dim * np.finfo(np.float64).eps
    origin = size if scale is None else max(size, _checks.number(scale, "scale", 0.0))
    if size <= rounding * origin:
        return LeadingEigenvalue(0.0, dim, dim, 1, np.eye(dim), True, tolerance, size, np.zeros(dim, complex))
    upper, unitary = _schur(matrix, "complex")
    spectrum: Any = np.diag(upper)
    spectrum = spectrum[np.argsort(-spectrum.real, kind="stable")]
    # What is tested is never below the rounding error of the decomposition itself.
    small = max(max(tolerance, rounding) * size, rounding * origin)
    top = spectrum[0]
    form = _Form(matrix, upper, unitary, spectrum, small, size)
    found = _largest_cluster(form, complex(top.real, 0.0))
    if found is None or found.center.real < top.real - _spread(found, small, size):
        found = _largest_cluster(form, complex(top.real, abs(top.imag)))
    assert found is not None  # a cluster of one eigenvalue always passes
    real = 0.0 if abs(found.center.real) <= rounding * origin else float(found.center.real)
    eigenvalue = real if found.center.imag == 0 else complex(real, found.center.imag)
    others: Any = np.delete(spectrum, found.members)
    if found.center.imag != 0:
        others = others[np.abs(others - found.center.conjugate()) > _spread(found, small, size)]
    level = found.center.real - 2 * small
    alone = not bool((others.real >= level).any())
    subspace = found.subspace if alone else _invariant_space(matrix, lambda re, im: re >= level)
    return LeadingEigenvalue(
        eigenvalue,
        len(found.members),
        found.nullities[0],
        len(found.nullities),
        subspace,
        alone,
        small / size,
        size,
        spectrum,
    )


@dataclass(frozen=True)
class _Form:
    """V with its complex Schur form V = unitary upper unitary^H, spectrum, and the absolute tolerance `small`."""

    matrix: FloatArray
    upper: Any
    unitary: Any
    spectrum: Any
    small: float
    scale: float


@dataclass(frozen=True)
class _Cluster:
    center: complex
    members: NDArray[np.intp]
    nullities: list[int]
    subspace: FloatArray


def _spread(cluster: _Cluster, small: float, scale: float) -> float:
    """How far the computed eigenvalues of a cluster may lie from its center."""
    return 2.0 * scale * (small / scale) ** (1.0 / len(cluster.nullities))


def _largest_cluster(form: _Form, near: complex) -> _Cluster | None:
    """The largest set of eigenvalues closest to `near` that a backward error of `small` makes one eigenvalue."""
    spectrum, small, scale = form.spectrum, form.small, form.scale
    away = np.abs(spectrum - near)
    order = np.argsort(away, kind="stable")
    real = near.imag == 0
    repeated = int(np.sum(away <= small * len(spectrum)))
    sizes = set(range(1, min(len(spectrum), LONGEST_CLUSTER) + 1)) | ({repeated} if repeated else set())
    for size in sorted(sizes, reverse=True):
        members = order[:size]
        if away[members[-1]] > 2.0 * scale * (small / scale) ** (1.0 / size):
            continue
        chosen = spectrum[members]
        if real and abs(chosen.imag.sum()) > small * size:  # half of a conjugate pair: not closed
            continue
        center = complex(chosen.real.mean(), 0.0 if real else chosen.imag.mean())
        smallest, vector = _smallest_singular_value(form.upper, center)
        if smallest > 10.0 * small:
            continue
        if size == 1 and vector is not None:
            return _Cluster(center, members, [1], _real_span((form.unitary @ vector)[:, None], real))
        cluster = _examine(form, center, members, real)
        if cluster is not None:
            return cluster
    return None


def _schur(matrix: FloatArray, output: str, sort: Callable[..., bool] | None = None) -> Any:
    """SciPy's Schur form (block, basis) or, with `sort`, (block, basis, how many eigenvalues were selected)."""
    return linalg.schur(matrix, output=output, sort=sort)


def _smallest_singular_value(upper: Any, center: complex) -> tuple[float, Any]:
    """Upper bound on the smallest singular value of upper - center I, and its vector, by inverse iteration.

    The vector is None, and the bound 0, when the iteration overflows: then many singular values are tiny.
    """
    shifted = upper - center * np.eye(len(upper))
    tiny = np.finfo(np.float64).eps * np.abs(upper).max()
    diagonal = np.diag(shifted).copy()
    diagonal[np.abs(diagonal) < tiny] = tiny
    np.fill_diagonal(shifted, diagonal)
    vector = np.random.default_rng(0).standard_normal(len(upper)) + 0j
    vector /= np.linalg.norm(vector)
    growth = 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(3):
            half = linalg.solve_triangular(shifted, vector, trans=2, check_finite=False)
            vector = linalg.solve_triangular(shifted, half, check_finite=False)
            growth = float(np.linalg.norm(vector))
            if not np.isfinite(growth):
                return 0.0, None
            vector = vector / growth
    return growth**-0.5, vector


def _invariant_space(matrix: FloatArray, select: Callable[[float, float], bool]) -> FloatArray:
    """Orthonormal basis of the invariant space of the selected eigenvalues (real and imaginary part)."""
    _, basis, count = _schur(matrix, "real", select)
    return np.ascontiguousarray(basis[:, :count])


def _real_span(columns: Any, real: bool) -> FloatArray:
    """Orthonormal real basis of the span of complex columns (of the columns and their conjugates, for a pair)."""
    left, sizes, _ = np.linalg.svd(np.concatenate([columns.real, columns.imag], axis=1), full_matrices=False)
    return np.ascontiguousarray(left[:, : columns.shape[1]] if real else left[:, sizes > 1e-8 * sizes[0]])


def _examine(form: _Form, center: complex, members: NDArray[np.intp], real: bool) -> _Cluster | None:
    """The cluster's Jordan structure, or None when it is not one eigenvalue at this tolerance."""
    inside = np.abs(form.spectrum[members] - center).max()
    outside = np.abs(np.delete(form.spectrum, members) - center).min(initial=np.inf)
    if outside <= inside:
        return None
    limit = 0.5 * (inside + outside) if np.isfinite(outside) else np.inf
    if real:
        block, basis, count = _schur(form.matrix, "real", lambda re, im: abs(complex(re, im) - center) <= limit)
    else:
        block, basis, count = _schur(form.matrix, "complex", lambda z: abs(z - center) <= limit)
    if count != len(members):
        return None
    shift = center.real if real else center
    nilpotent = block[:count, :count] - shift * np.eye(count)
    nullities = _staircase(nilpotent, form.small)
    if nullities is None:
        return None
    closing = basis[:, :count]
    if len(nullities) > 1:
        left, _, _ = np.linalg.svd(np.linalg.matrix_power(nilpotent, len(nullities) - 1))
        closing = closing @ left[:, : nullities[-1]]
    return _Cluster(center, members, nullities, closing.copy() if real else _real_span(closing, real))


def _staircase(nilpotent: Any, small: float) -> list[int] | None:
    """Weyr characteristic: numbers of Jordan blocks of length >= 1, 2, ...; None if the matrix is not nilpotent.

    Each round takes the null space (singular values up to `small`) and continues on its orthogonal complement.
    """
    nullities: list[int] = []
    rest = nilpotent
    while rest.size:
        _, sizes, right = np.linalg.svd(rest)
        nullity = int(np.sum(sizes <= small))
        if nullity == 0 or (nullities and nullity > nullities[-1]):
            return None
        nullities.append(nullity)
        keep = right[: len(rest) - nullity].conj().T
        rest = keep.conj().T @ rest @ keep
    return nullities
