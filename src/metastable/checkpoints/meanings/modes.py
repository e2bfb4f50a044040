"""Eigenmodes of a head's value matrix, from matrices of the size of a head.

V = O W (W with the norm's gain folded in) = sum_i v_i u_i^T over its modes: v_i = O y_i is written, u_i = W^T z_i reads, with Y the
eigenvectors of the core W O and rows z_i of Y^-1. They satisfy V v_i = lambda_i v_i, u_i^T V = lambda_i u_i^T and
u_i^T v_i = lambda_i: the sign of the eigenvalue is the sign with which a mode answers what excites it. A complex pair counts once and
spans a plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metastable._checks import FloatArray
from metastable.checkpoints.linear import gram_factor

ComplexArray = NDArray[np.complex128]
ROUNDING = 1e-12
"""Eigenvalues below this fraction of the size of their matrix are zero."""


ORDERS = ("largest", "most negative", "modulus")
"""Orders in which modes are counted: by real part from the largest down, by real part from the lowest up, by |eigenvalue|."""


@dataclass(frozen=True)
class Modes:
    """The chosen modes of one value matrix. `eigenvalue` (modes,), `write` and `read` (modes, dim), complex; real modes have no
    imaginary part; `spectrum`: all eigenvalues that are not the kernel's.
    """

    eigenvalue: ComplexArray
    write: ComplexArray
    read: ComplexArray
    spectrum: ComplexArray

    @property
    def sign_score(self) -> float:
        """sum Re lambda / sum |lambda|; 0 for a head that writes nothing."""
        return sign_score(self.spectrum)


def sign_score(spectrum: ComplexArray) -> float:
    """sum Re lambda / sum |lambda|; 0 where all are zero."""
    size = float(np.abs(spectrum).sum())
    return float(spectrum.real.sum()) / size if size > 0 else 0.0


def eigensystem(core: FloatArray) -> tuple[ComplexArray, ComplexArray, ComplexArray]:
    """Eigenvalues of a core (k, k), right eigenvectors as columns, left ones as rows with z_i y_j = 1 for i = j and 0 else."""
    values, right = np.linalg.eig(core)
    values, right = values.astype(np.complex128), right.astype(np.complex128)
    try:
        left = np.linalg.inv(right)
    except np.linalg.LinAlgError:  # a defective core (a head that was switched off): the least-squares inverse
        left = np.linalg.pinv(right)
    return values, right, left.astype(np.complex128)


def chosen(values: ComplexArray, numbers: Sequence[int], which: str = "largest") -> list[int]:
    """Places of the eigenvalues with these increasing numbers in the order `which` of `ORDERS`.

    A complex pair counts once, so there may be fewer; those that are missing are the last.
    """
    key = {"largest": -values.real, "most negative": values.real, "modulus": -np.abs(values)}[which]
    order = [int(index) for index in np.lexsort((-values.imag, key)) if values[index].imag >= 0]
    return [order[number] for number in numbers if number < len(order)]


def modes_of(output: FloatArray, value: FloatArray, numbers: Sequence[int], which: str = "largest") -> Modes:
    """The modes of V = output @ value with these numbers (see `chosen`), for factors (dim, k) and (k, dim).

    An eigenvalue that is zero up to rounding (`ROUNDING` of |output| |value|: a head of low rank has such) is zero, and its mode
    neither reads nor writes.
    """
    values, right, left = eigensystem(value @ output)
    there = np.abs(values) > ROUNDING * np.linalg.norm(output) * np.linalg.norm(value)
    values = np.where(there, values, 0.0)
    kept = chosen(values, numbers, which)
    write, read = (output @ right[:, kept]).T, left[kept] @ value
    write[~there[kept]], read[~there[kept]] = 0.0, 0.0
    return Modes(values[kept], write, read, values)


def singular_values(output: FloatArray, value: FloatArray) -> FloatArray:
    """The k largest singular values of output @ value, for factors (dim, k) and (k, dim)."""
    outer, inner = (gram_factor(factor) for factor in (output, value.T))
    return np.asarray(np.linalg.svd(outer @ inner.T, compute_uv=False), dtype=np.float64)


def plane_shape(directions: ComplexArray) -> FloatArray:
    """Ratio of the semi-axes, 0 (a line) to 1 (a circle), of the ellipse Re(e^{it} q) of every row q (directions, dim).

    sqrt((|q|^2 - |q^T q|) / (|q|^2 + |q^T q|)): what is left of a plane when neither phase nor length of q matters.
    """
    size = np.einsum("ij,ij->i", directions, directions.conj()).real
    turn = np.abs(np.einsum("ij,ij->i", directions, directions))
    total = size + turn
    return np.sqrt(np.clip(size - turn, 0.0, None) / np.where(total > 0, total, 1.0))
