"""Small linear algebra on stacks of thin matrices."""

from __future__ import annotations

import numpy as np

from metastable import sphere
from metastable._checks import FloatArray


def gram_factor(columns: FloatArray) -> FloatArray:
    """F (..., k, k) with F^T F = M^T M for thin matrices M (..., dim, k): M is a rotation of F.

    By the symmetric eigendecomposition, which also takes rank-deficient M (a head that was switched off). It is what the R of a
    QR factorisation would be, at the cost of k x k work only; singular values below 1e-8 of the largest are lost.
    """
    values, vectors = np.linalg.eigh(columns.swapaxes(-1, -2) @ columns)
    return np.sqrt(values.clip(0.0))[..., :, None] * vectors.swapaxes(-1, -2)


def haar_corner(generator: np.random.Generator, count: int, dim: int, size: int) -> FloatArray:
    """`count` independent size x size corners of Haar-distributed rotations of R^dim, shape (count, size, size).

    The first columns of a rotation are G R^-1 with G Gaussian (dim x size) and R the factor of G^T G = R^T R with positive
    diagonal (Mezzadri, math-ph/0609050); only their first rows are formed.
    """
    gaussian = generator.standard_normal((count, dim, size))
    lower = np.linalg.cholesky(gaussian.transpose(0, 2, 1) @ gaussian)
    corner = np.linalg.solve(lower, gaussian[:, :size, :].transpose(0, 2, 1)).transpose(0, 2, 1)
    return np.asarray(corner, dtype=np.float64)


NEARLY_PARALLEL = 0.999
"""Beyond this |cosine| the inner product cannot resolve the distance, and it is computed from the chord instead."""


def cloud_distances(x: FloatArray, y: FloatArray | None = None) -> FloatArray:
    """`sphere.pairwise_distance` for tokens of high dimension: one matrix product, with the nearly parallel pairs done exactly.

    Where |<x, y>| <= 0.999 the error of arccos is below 1e-14; the few pairs beyond go through the chord, as everywhere else.
    At 512 tokens of dimension 576 this takes 18 ms instead of 1.7 s (one core).
    """
    other = x if y is None else y
    cosine = np.clip(x @ other.T, -1.0, 1.0)
    distances = np.arccos(cosine)
    rows, columns = np.nonzero(np.abs(cosine) > NEARLY_PARALLEL)
    # In slices: a cloud of duplicates has as many such pairs as there are pairs.
    for first in range(0, len(rows), PAIRS_AT_ONCE):
        i, j = rows[first : first + PAIRS_AT_ONCE], columns[first : first + PAIRS_AT_ONCE]
        distances[i, j] = sphere.distance(x[i], other[j])
    return distances


PAIRS_AT_ONCE = 16384
"""Pairs per slice in `cloud_distances`."""
