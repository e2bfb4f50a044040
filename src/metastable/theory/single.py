"""One token (Lemma 3.1): dx/dt = P_x(V x), which every first token of a causal run obeys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from metastable import _checks
from metastable.errors import InvalidInputError, NumericalRangeError

FloatArray = NDArray[np.float64]

EIGENBASIS_CONDITION = 1e6
"""Up to this condition number of the eigenvectors the solution is summed over eigenvectors, otherwise by squaring."""


LARGEST_TURN = 1e15
"""Radians beyond which a turn is not known to a radian."""


def single_token(value: ArrayLike | None, x: ArrayLike, t: ArrayLike) -> FloatArray:
    """Solution x(t) = exp(tV) x / |exp(tV) x| of the single-token equation dx/dt = P_x(V x).

    Nothing overflows however large t is: growth is divided out before it is exponentiated. A normal or well diagonalisable
    V is summed over its eigenvectors with the logarithm of the largest term removed, which keeps relative accuracy even
    for starts that are nearly orthogonal to the leading eigenvectors; otherwise (Jordan blocks) exp(tV) is formed by
    scaling and squaring, renormalised after every squaring.

    Args:
        value: V, shape (d, d); None for the identity.
        x: unit vector (d,) or several (n, d), each moved alone.
        t: times >= 0, any shape.

    Returns:
        Array of shape t.shape + x.shape, unit along the last axis.

    Reference: the paper, section 3 and Lemma 3.1.
    """
    point = _checks.real_array(x, "x")
    if point.ndim not in (1, 2):
        raise InvalidInputError(f"x must have shape (d,) or (n, d), not {point.shape}")
    rows = _checks.tokens(np.atleast_2d(point), "x")
    matrix = np.eye(rows.shape[1]) if value is None else _checks.square(value, "value", rows.shape[1])
    times = _checks.real_array(t, "t")
    if (times < 0).any():
        raise InvalidInputError("t must not be negative")
    eigenbasis = _eigenbasis(matrix)
    result = np.empty((times.size, *rows.shape))
    for index, time in enumerate(times.ravel()):
        if eigenbasis is None:
            result[index] = _by_squaring(matrix, rows, float(time))
        else:
            result[index] = _by_eigenvectors(*eigenbasis, rows, float(time))
    return result.reshape(times.shape + point.shape)


def _eigenbasis(matrix: FloatArray) -> tuple[Any, Any, Any] | None:
    """Eigenvalues, eigenvectors (columns) and their inverse; None when they are too ill conditioned to be used."""
    if np.array_equal(matrix, matrix.T):
        eigenvalues, vectors = np.linalg.eigh(matrix)
        return eigenvalues, vectors, vectors.T
    eigenvalues, vectors = np.linalg.eig(matrix)
    if np.linalg.cond(vectors) > EIGENBASIS_CONDITION:
        return None
    return eigenvalues, vectors, np.linalg.inv(vectors)


def _by_eigenvectors(eigenvalues: Any, vectors: Any, inverse: Any, rows: FloatArray, time: float) -> FloatArray:
    """Sum of c_i exp(t lambda_i) v_i, with the largest |c_i exp(t lambda_i)| of each row divided out."""
    coefficients = rows @ inverse.T
    present = coefficients != 0
    # Relative to the fastest growth that is there, so that nothing overflows but towards minus infinity.
    growth = np.where(present, eigenvalues.real, -np.inf)
    growth = np.where(present, growth - growth.max(axis=1, keepdims=True), 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        size = np.log(np.abs(coefficients)) + time * growth
        turns = time * np.imag(eigenvalues)
    modulus = np.exp(size - size.max(axis=1, keepdims=True))
    lost = np.abs(turns) > LARGEST_TURN
    if lost.any() and modulus[:, lost].max() > np.finfo(np.float64).eps:
        raise NumericalRangeError(
            f"at t = {time:g} the token has turned by {np.abs(turns).max():.3g} radians, too many to know where it is; take a smaller t"
        )
    phase = np.exp(1j * (np.angle(coefficients) + np.where(lost, 0.0, turns)))
    moved = ((modulus * phase) @ vectors.T).real
    return moved / np.linalg.norm(moved, axis=1, keepdims=True)


def _by_squaring(matrix: FloatArray, rows: FloatArray, time: float) -> FloatArray:
    """exp(tV) by repeated squaring of a small exponential, normalised after each squaring so that it cannot overflow."""
    shifted = matrix - np.max(np.linalg.eigvals(matrix).real) * np.eye(len(matrix))
    norm = time * float(np.linalg.norm(shifted, 2))
    if not math.isfinite(norm):
        raise NumericalRangeError(f"t |V| leaves double precision at t = {time:g}; take a smaller t")
    squarings = max(0, math.ceil(math.log2(norm))) if norm > 0 else 0
    flow = linalg.expm(shifted * math.ldexp(time, -squarings))
    for _ in range(squarings):
        flow = flow @ flow
        largest = np.abs(flow).max()
        if not 0 < largest < np.inf:
            raise NumericalRangeError(f"exp(tV) of this Jordan block cannot be held at t = {time:g}; take a smaller t")
        flow /= largest
    moved = rows @ flow.T
    return moved / np.linalg.norm(moved, axis=1, keepdims=True)


def spectral_gap(value: ArrayLike, tolerance: float = 1e-9) -> float:
    """Exponential rate at which one token approaches the leading generalised eigenspace.

    The largest real part in the spectrum of V minus the next different one (different by more than `tolerance` times the
    spectral norm of V); infinite when all real parts agree, since then the whole space is the leading one.

    Reference: the paper, Lemma 3.1.
    """
    array = _checks.real_array(value, "value")
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise InvalidInputError(f"value must be a square matrix, not an array of shape {array.shape}")
    tolerance = _checks.number(tolerance, "tolerance", 0.0, 1.0)
    if float(np.abs(array).max()) * len(array) > 1e150:  # its square must fit into double precision
        raise NumericalRangeError(
            "the entries of value are beyond 1e150, where eigenvalues cannot be computed; scale it"
        )
    parts = np.sort(np.linalg.eigvals(array).real)[::-1]
    below = parts[parts < parts[0] - tolerance * np.linalg.norm(array, 2)]
    return math.inf if below.size == 0 else float(parts[0] - below[0])


def jordan_decay(size: int) -> int:
    """Limit of t * dist(x(t), L) when the longest leading Jordan block has length `size`: size - 1.

    For a block of length m, exp(tJ)x has leading coordinates x_m t^(m-1)/(m-1)! and x_m t^(m-2)/(m-2)!, whose ratio is
    (m-1)/t; hence 1/t for blocks of length 2 and 2/t for length 3.

    Reference: the paper, Lemma 3.1 (the rate C/t; the constant is elementary).
    """
    return _checks.count(size, "size") - 1
