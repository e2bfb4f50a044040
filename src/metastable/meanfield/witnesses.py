"""Points off the nodes: whether a series is the function that it was made from.

A rule sees nothing of a wave that vanishes on its nodes, and takes fast ones for slow ones. Witnesses are points that no rule of these
bases has as nodes, as many as it takes to see whatever the largest degree could show; series are summed there by fast transforms.
"""

from __future__ import annotations

import numpy as np
from numpy.fft import irfft

from metastable._checks import FloatArray
from metastable.meanfield.bases import Basis, Circle, Sphere, Zonal, gauss_rule, legendre_table

AROUND = 8209
"""Witnesses on the circle: a prime, so that no grid of nodes shares more than one point with them."""
HEIGHTS, TURNS = 131, 257
"""Witnesses on S^2, along and around the axis."""
ALONG = 1031
"""Witnesses of zonal functions, at least (in high dimension fewer: all coordinates of `POINTS` of them are too many)."""
POINTS = 2**21
GOLDEN = 0.5 * (5.0**0.5 - 1.0)
"""Shift of the witnesses, in parts of their distance."""


def _turns(count: int) -> FloatArray:
    return 2.0 * np.pi * (np.arange(count) + GOLDEN) / count


def _heights(basis: Basis) -> tuple[FloatArray, FloatArray]:
    """Heights along the axis and their weights: Gauss's rule of another order than those of the basis."""
    if isinstance(basis, Sphere):
        return gauss_rule(3, HEIGHTS)
    # In high dimension nearly all of the sphere is near the equator; a rule knows where.
    return gauss_rule(basis.dim, max(min(ALONG, POINTS // basis.dim), 2 * basis.degree + 9))


def witnesses(basis: Basis) -> tuple[FloatArray, FloatArray]:
    """Points (m, dim), as the basis sees them, and their weights under the uniform law (sum one)."""
    if isinstance(basis, Circle):
        turn = _turns(AROUND)
        return np.stack([np.cos(turn), np.sin(turn)], axis=-1), np.full(AROUND, 1.0 / AROUND)
    z, weights = _heights(basis)
    across = np.sqrt(1.0 - z**2)
    if isinstance(basis, Zonal):
        points = np.zeros((z.size, basis.dim))
        points[:, 0], points[:, 1] = z, across
        return points, weights
    turn = _turns(TURNS)
    points = np.stack([np.outer(across, np.cos(turn)), np.outer(across, np.sin(turn)), np.outer(z, np.ones(TURNS))], -1)
    return points.reshape(-1, 3), np.repeat(weights / TURNS, TURNS)


def at_witnesses(basis: Basis, coefficients: FloatArray) -> FloatArray:
    """Series (..., size) at the witnesses, (..., m)."""
    if isinstance(basis, Circle):
        shift = np.exp(2j * np.pi * GOLDEN / AROUND * np.arange(basis.degree + 1))
        return irfft(basis.complex_modes(coefficients) * shift, AROUND, axis=-1) * AROUND
    if isinstance(basis, Sphere):
        table = legendre_table(basis.degree, _heights(basis)[0])
        rings = np.matmul(basis.packed(coefficients)[..., :, None, :], table)[..., 0, :]
        shift = np.exp(2j * np.pi * GOLDEN / TURNS * np.arange(basis.degree + 1))
        fields = irfft(np.moveaxis(rings, -2, -1) * shift, TURNS, axis=-1) * TURNS
        return fields.reshape(*fields.shape[:-2], -1)
    return coefficients @ basis.functions(witnesses(basis)[0]).T


def difference(basis: Basis, coefficients: FloatArray, values: FloatArray) -> float:
    """Root mean square of series (..., size) less values (..., m) at the witnesses, against theirs; the worst of the series."""
    weights = witnesses(basis)[1]
    error = np.sqrt(np.square(at_witnesses(basis, coefficients) - values) @ weights)
    size = np.maximum(np.sqrt(np.square(values) @ weights), np.linalg.norm(coefficients, axis=-1))
    return float((error / size).max())
