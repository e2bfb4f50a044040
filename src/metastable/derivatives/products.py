"""Singular values and leading singular vectors of long products of triangular matrices, R_m ... R_1.

A sweep of QR over the factors in turn, P^T E = R_1^T ... R_m^T E = Z T_1 ... T_m, makes another triangular product with the same
singular values, whose diagonal is nearer to them: Rutishauser's iteration for R^T R, in factors. (E puts the largest entries of the
diagonal first: values that no other one is coupled to stay where they are.) Values further apart than exp(`CLOSE`) are told apart by a
few sweeps; groups of closer ones are products of small blocks on the diagonal, whose singular values LAPACK finds. Nothing is
multiplied out as a whole, so nothing overflows and small values are not buried under large ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import ConvergenceError

CLOSE, WIDEST = 6.0, 600.0
"""Logarithms of singular values that differ by more than `CLOSE` are told apart by sweeps over the factors of a run, closer ones in
groups, which must not span more than `WIDEST` (the range of double precision)."""
RESOLVED = 24.0
"""Two sweeps make values at the distance D in their logarithms better by exp(-4 D), and vectors by exp(-2 D): 2 D of them in all."""
POLISHED = 1e-12
"""Part of the largest singular value by which |P^T u - s v| of leading vectors may be off; above it they are iterated further."""
ROUNDS = 40
"""Rounds of that iteration at the most; each makes it better by exp(-2 `CLOSE`)."""


@dataclass(frozen=True)
class Decomposed:
    """What is known of P = R_m ... R_1.

    Fields
    ------
    logarithms : natural logarithms of the singular values, the largest first, (size,).
    right, left : singular vectors (size, count) of the first `count` of them: P right = left exp(logarithms), column by column.
    residual : |P^T left - right exp(logarithms)| over the largest singular value.
    """

    logarithms: FloatArray
    right: FloatArray
    left: FloatArray
    residual: float


def decomposed(factors: list[FloatArray]) -> Decomposed:
    """Singular values of R_m ... R_1, each relatively exact, and the vectors of the group that begins with the largest."""
    swept, right = _swept(factors)
    heights = _heights(swept)
    cuts = (np.flatnonzero(~(np.abs(np.diff(heights)) <= _close(heights))) + 1).tolist()
    found = [_group(swept, heights, first, last) for first, last in zip([0, *cuts], [*cuts, len(heights)])]
    # Values that are coupled to no other one may stand behind smaller ones.
    leader = int(np.argmax([values[0] for values in found]))
    first, last = ([0, *cuts][leader], [*cuts, len(heights)][leader])
    vectors, images, residual = _leading(factors, right[:, first:last])
    return Decomposed(np.sort(np.concatenate(found))[::-1], vectors, images, residual)


def applied(factors: list[FloatArray], vectors: FloatArray) -> tuple[FloatArray, float]:
    """R_m ... R_1 times vectors (size, count), divided by exp of the number that comes with it."""
    scale = 0.0
    for factor in factors:
        vectors = factor @ vectors
        top = float(np.abs(vectors).max())
        if top == 0.0:
            return vectors, -np.inf
        vectors, scale = vectors / top, scale + float(np.log(top))
    return vectors, scale


def _heights(factors: list[FloatArray]) -> FloatArray:
    """Logarithms of the diagonal of a triangular product."""
    with np.errstate(divide="ignore"):
        return np.sum([np.log(np.abs(np.diagonal(factor))) for factor in factors], axis=0)


def _close(heights: FloatArray) -> float:
    """Difference of logarithms up to which values belong to one group."""
    return CLOSE if np.ptp(heights) < WIDEST else min(CLOSE, WIDEST / len(heights))


def _swept(factors: list[FloatArray]) -> tuple[list[FloatArray], FloatArray]:
    """The factors of L^T P W after as many pairs of sweeps as are needed, and the orthogonal W (size, size)."""
    right, done = np.eye(len(factors[0])), 0.0
    while done < RESOLVED:
        factors, turned, _ = _sweep(factors)
        factors, _, order = _sweep(factors)
        right = right @ turned[:, order]
        done += 2.0 * _close(_heights(factors))
    return factors, right


def _sweep(factors: list[FloatArray]) -> tuple[list[FloatArray], FloatArray, np.ndarray]:
    """Factors of Z^T P^T E, the orthogonal Z, and the order of columns that E is."""
    order = np.argsort(-_heights(factors), kind="stable")
    turned, made = np.eye(len(order))[:, order], []
    for factor in factors[::-1]:
        turned, upper = np.linalg.qr(factor.T @ turned)
        made.append(upper)
    return made, turned, order


def _group(factors: list[FloatArray], heights: FloatArray, first: int, last: int) -> FloatArray:
    """Logarithms of the singular values of a block on the diagonal of a triangular product, the largest first."""
    from scipy.linalg.lapack import dgejsv  # pyright: ignore[reportAttributeAccessIssue]

    if last - first == 1:
        return heights[first:last]
    block, scale = applied([factor[first:last, first:last] for factor in factors], np.eye(last - first))
    values, _, _, work, _, failed = dgejsv(np.asfortranarray(block), jobu=3, jobv=3)
    if failed:
        raise ConvergenceError(
            f"the singular values of a block of {last - first} close ones did not converge; ask for another t"
        )
    return np.sort(np.log(values) + np.log(work[0] / work[1]) + scale)[::-1]


def _leading(factors: list[FloatArray], right: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Right and left singular vectors from orthonormal columns that nearly span the right ones of the largest values, and how far they
    are off: subspace iteration, whose next round is wanted as long as that is too much and becomes less.
    """
    best: tuple[FloatArray, FloatArray, float] | None = None
    for _ in range(ROUNDS):
        image, uppers = _orthonormal(factors, right)
        block, _ = applied(uppers, np.eye(right.shape[1]))
        inner, values, outer = np.linalg.svd(block)
        vectors, images = right @ outer.T, image @ inner
        back, _ = applied([factor.T for factor in factors[::-1]], images)
        # Every vector by itself: back is P^T u = s v, up to one factor.
        back *= values[0] / np.linalg.norm(back[:, 0])
        off = float(np.linalg.norm(back - vectors * values, axis=0).max() / values[0])
        if best is None or off < best[2]:
            best = vectors, images, off
        elif off > 0.5 * best[2]:
            break
        if best[2] <= POLISHED:
            break
        right, _ = _orthonormal([factor.T for factor in factors[::-1]], image)
    assert best is not None
    return best


def _orthonormal(factors: list[FloatArray], vectors: FloatArray) -> tuple[FloatArray, list[FloatArray]]:
    """Q and U_1, ..., U_m with R_m ... R_1 vectors = Q U_m ... U_1."""
    uppers = []
    for factor in factors:
        vectors, upper = np.linalg.qr(factor @ vectors)
        uppers.append(upper)
    return vectors, uppers
