"""What value matrices are up to rounding: multiples of the identity, and coordinates in which the leading eigenspace is exact."""

from __future__ import annotations

import numpy as np

from metastable._checks import FloatArray

ROUNDING = 16.0 * float(np.finfo(float).eps)
"""Relative size, for each dimension, of what products of orthogonal matrices and eigenvalue solvers leave behind."""


def scalar_multiple(value: FloatArray) -> float | None:
    """c when V (d, d) is c I up to rounding, |V - c I| <= 16 eps d |c| entry by entry, else None.

    A product such as `1.1 * Q @ Q.T` is meant to be a multiple of the identity; its rounding errors are no dynamics.
    """
    size = len(value)
    mean = float(np.trace(value)) / size
    close = np.abs(value - mean * np.eye(size)).max() <= ROUNDING * size * abs(mean)
    return mean if close else None


def leading_frame(value: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Orthogonal Q whose first columns span the null space of V - lambda I, and Q^T (V - lambda I) Q with those columns exactly zero.

    lambda is the largest real part of the eigenvalues of V (d, d). In such coordinates tokens in the leading eigenspace feel exactly
    nothing from V - lambda I, where the plain product leaves rounding errors of 1e-16 that stand for a motion inside the
    space. None when it is empty (a complex leading pair).
    """
    size = len(value)
    center = float(np.linalg.eigvals(value).real.max())
    shifted = value - center * np.eye(size)
    _, singular, rows = np.linalg.svd(shifted)
    nullity = int(np.sum(singular <= ROUNDING * size * np.linalg.norm(value, 2)))
    if nullity == 0:
        return None
    flat = ~shifted.any(axis=0)
    if int(flat.sum()) == nullity:
        # The coordinates already are such, up to their order.
        frame = np.eye(size)[:, np.argsort(~flat, kind="stable")]
    else:
        frame = rows[::-1].T
    drift = frame.T @ shifted @ frame
    drift[:, :nullity] = 0.0
    return np.ascontiguousarray(frame), drift
