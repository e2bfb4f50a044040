"""Eigenmodes of a head's value matrix, from matrices of the size of a head.

V = O W (W with the norm's gain folded in) = sum_i v_i u_i^T over its modes: v_i = O y_i is written, u_i = W^T z_i reads, with Y the
eigenvectors of the core W O and rows z_i of Y^-1. They satisfy V v_i = lambda_i v_i, u_i^T V = lambda_i u_i^T and
u_i^T v_i = lambda_i: the sign of the eigenvalue is the sign with which a mode answers what excites it. A complex pair counts once and
spans a plane.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metastable._checks import FloatArray
from metastable.checkpoints.linear import gram_factor

ComplexArray = NDArray[np.complex128]


@dataclass(frozen=True)
class Modes:
    """The leading modes of one value matrix. `eigenvalue` (modes,), `write` and `read` (modes, dim), complex; real modes have no
    imaginary part; `spectrum`: all eigenvalues that are not the kernel's.
    """

    eigenvalue: ComplexArray
    write: ComplexArray
    read: ComplexArray
    spectrum: ComplexArray

    @property
    def sign_score(self) -> float:
        """sum Re lambda / sum |lambda|; 0 for a head that writes nothing."""
        size = float(np.abs(self.spectrum).sum())
        return float(self.spectrum.real.sum()) / size if size > 0 else 0.0


def modes_of(output: FloatArray, value: FloatArray, count: int) -> Modes:
    """The `count` modes of largest real part of V = output @ value, for factors (dim, k) and (k, dim)."""
    values, right = np.linalg.eig(value @ output)
    values, right = values.astype(np.complex128), right.astype(np.complex128)
    try:
        left = np.linalg.inv(right)
    except np.linalg.LinAlgError:  # a defective core (a head that was switched off): the least-squares inverse
        left = np.linalg.pinv(right)
    order = np.lexsort((-values.imag, -values.real))
    kept = [index for index in order if values[index].imag >= 0][:count]
    write = (output @ right[:, kept]).T
    read = left[kept] @ value
    return Modes(values[kept], write, read, values[order])


def haar_head(output: FloatArray, value: FloatArray, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Factors of a random value matrix with the singular values of output @ value between independent Haar frames.

    The same null as `ov_spectra_null(kind="haar")`, with its frames in R^dim, so that it has words.
    """
    dim, size = output.shape
    outer, inner = (gram_factor(factor) for factor in (output, value.T))
    strengths = np.linalg.svd(outer @ inner.T, compute_uv=False)
    frames = []
    for _ in range(2):
        q, r = np.linalg.qr(generator.standard_normal((dim, size)))
        frames.append(q * np.sign(np.diag(r)))
    return frames[0] * strengths, frames[1].T
