"""Small linear algebra on stacks of thin matrices."""

from __future__ import annotations

import numpy as np

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
    return np.linalg.solve(lower, gaussian[:, :size, :].transpose(0, 2, 1)).transpose(0, 2, 1)
