"""The axis around which a density is most nearly zonal."""

from __future__ import annotations

import numpy as np
from scipy import optimize

from metastable._checks import FloatArray
from metastable.meanfield import bases
from metastable.meanfield.bases import Basis, Circle

SEARCHED = 24
"""Degree whose nodes are where the search for an axis begins (on S^2)."""
SAME = 1e-9
"""Part of what an axis keeps by which another one must be better to be taken instead of the default."""


def default_axis(dim: int) -> FloatArray:
    """The axis where none is given: the third basis vector in three dimensions, the pole of spherical harmonics, else the first."""
    return np.eye(dim)[2 if dim == 3 else 0]


def zonal_parts(basis: Basis, coefficients: FloatArray, axes: FloatArray) -> FloatArray:
    """Values at axes (m, dim) of the parts of degree 0..degree of a series (size,), shape (m, degree + 1): all that is left of them
    when the series is averaged around the axis."""
    starts = np.searchsorted(basis.degrees, np.arange(basis.degree + 1.0))
    return np.add.reduceat(basis.functions(axes) * coefficients, starts, axis=1)


def best_axis(basis: Basis, coefficients: FloatArray) -> FloatArray:
    """The axis (dim,) around which averaging keeps most of a series of the circle or of S^2, in mean square.

    Of axes that keep as much (those of a uniform law, both ends of an even one) it is the default one, if it is among them.
    """
    kept = resolved_part(basis, coefficients)
    basis, coefficients = kept
    many = np.bincount(basis.degrees.astype(int)).astype(float)

    def keeps(axes: FloatArray) -> FloatArray:
        return (np.square(zonal_parts(basis, coefficients, axes)) / many)[:, 1:].sum(axis=1)

    default = default_axis(basis.dim)
    begin = basis if isinstance(basis, Circle) else bases.make(type(basis), basis.dim, min(basis.degree, SEARCHED))
    nodes = np.concatenate([default[None], begin.nodes])
    found = nodes[int(np.argmax(keeps(nodes)))]
    # Around it, in the tangent space.
    across = np.linalg.svd(found[None])[2][1:]

    def moved(step: FloatArray) -> FloatArray:
        point = found + step @ across
        return point / np.linalg.norm(point)

    size = float(np.square(coefficients[1:]).sum()) or 1.0
    best = optimize.minimize(
        lambda step: -float(keeps(moved(step)[None])[0]) / size, np.zeros(basis.dim - 1), method="Nelder-Mead",
        options={"initial_simplex": _simplex(basis), "xatol": 1e-12, "fatol": 1e-16, "maxiter": 400},
    )  # fmt: skip
    axis = moved(best.x)
    return default if keeps(default[None])[0] >= (1.0 - SAME) * keeps(axis[None])[0] else axis


def _simplex(basis: Basis) -> FloatArray:
    """Steps as wide as the nodes are apart."""
    width = 1.0 / (2.0 * min(basis.degree, 4 * SEARCHED) + 1.0)
    return width * np.vstack([np.zeros(basis.dim - 1), np.eye(basis.dim - 1)])


def resolved_part(basis: Basis, coefficients: FloatArray) -> tuple[Basis, FloatArray]:
    """A series without the modes at its end that hold nothing."""
    present = np.flatnonzero(np.abs(coefficients) > 1e-14 * np.abs(coefficients).max())
    least = basis.with_degree(max(1, int(basis.degrees[present[-1]])))
    return least, coefficients[: least.size]
