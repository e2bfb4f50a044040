"""What directions and heads that mean nothing give: the two nulls of `meaning`.

- Random directions: how far do the best words of a direction, or of a plane, stand out when it was drawn at random?
- Haar heads: how alike are read and written words when a head has its singular values between random frames? The law is that of
  `ov_spectra_null(kind="haar")`. Under a common rotation of R^dim it does not change, so given their inner products the vectors that a
  mode reads and writes with are uniformly distributed: a draw needs the k x k core and a few Gaussian vectors, not two frames of R^dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.checkpoints.linear import haar_corner
from metastable.checkpoints.meanings.modes import ComplexArray, chosen, eigensystem, sign_score
from metastable.checkpoints.meanings.vocabulary import Matrix, Vocabulary, project

RANDOM_DIRECTIONS = 512
"""Random directions (and planes) that the strength of word lists is compared with: their standard deviation is then known to 3 %."""
AT_ONCE = 128
"""Random directions whose scores over a vocabulary are kept at a time (25 MB for 50 000 words)."""
SHAPES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Ratios of semi-axes for which random planes are drawn; between them mean and deviation are interpolated."""
TURNS = 2
"""Rotations of R^dim for one random head: its core takes the time."""


def best(scores: FloatArray, count: int) -> np.ndarray:
    """Indices of the `count` largest scores, best first."""
    top = np.argpartition(scores, -count)[-count:]
    return top[np.argsort(-scores[top])]


def strength(scores: FloatArray, chosen: np.ndarray) -> float:
    """Mean score of the chosen words in units of the root mean square over all of them: the best of a random direction have about 4."""
    size = float(np.sqrt(np.mean(np.square(scores, dtype=np.float64))))
    return float(scores[chosen].mean()) / size if size > 0 else 0.0


def top_strength(scores: FloatArray, count: int) -> float:
    """Strength of the `count` best."""
    return strength(scores, best(scores, min(count, len(scores))))


def top_strengths(scores: Any, count: int) -> FloatArray:
    """`top_strength` of every row of scores (directions, items)."""
    count = min(count, scores.shape[1])
    size = np.sqrt(np.einsum("ij,ij->i", scores, scores, dtype=np.float64) / scores.shape[1])
    top = np.partition(scores, -count, axis=1)[:, -count:].mean(axis=1, dtype=np.float64)
    return np.where(size > 0, top / np.where(size > 0, size, 1.0), 0.0)


@dataclass(frozen=True)
class StrengthNull:
    """Mean and standard deviation of the strength of lists of random directions, and of random planes by `SHAPES`."""

    line: tuple[float, float]
    planes: FloatArray

    def standardize(self, value: float, shape: float | None) -> float:
        """A strength in standard deviations from the mean of random directions (`shape` None) or planes of that shape."""
        if shape is None:
            mean, deviation = self.line
        else:
            mean, deviation = (float(np.interp(shape, SHAPES, column)) for column in self.planes.T)
        return (value - mean) / deviation if deviation > 0 else 0.0


def strength_null(rows: Matrix, count: int, either_side: bool, generator: np.random.Generator) -> StrengthNull:
    """The null for lists of `count` among `rows` (items, dim), from `RANDOM_DIRECTIONS` Gaussian directions and as many planes.

    A standard deviation of n draws is itself uncertain by 1/sqrt(2n), 3 % here, and so is every z; their zero by 1/sqrt(n), 0.04.

    `either_side`: a real direction may show its other side where that stands out more (the reading list chooses; the writing list
    follows it, and has one side).
    """
    lines: list[FloatArray] = []
    planes: list[list[FloatArray]] = []
    for _ in range(RANDOM_DIRECTIONS // AT_ONCE):
        drawn = generator.standard_normal((2, AT_ONCE, rows.shape[1]))
        first, second = (np.ascontiguousarray(project(rows, directions).T) for directions in drawn)
        up, down = top_strengths(first, count), top_strengths(-first, count)
        # g and -g are as likely: where one side is shown each of them is a draw.
        lines += [np.maximum(up, down)] if either_side else [up, down]
        planes.append([top_strengths(np.hypot(first, np.float32(shape) * second), count) for shape in SHAPES])
    line, plane = np.concatenate(lines), np.concatenate(planes, axis=1)
    return StrengthNull(
        (float(line.mean()), float(line.std(ddof=1))), np.stack([plane.mean(axis=1), plane.std(axis=1, ddof=1)], axis=1)
    )


@dataclass(frozen=True)
class Moments:
    """X^T X, Y^T Y and X^T Y (dim, dim) of a vocabulary's inputs X and outputs Y: all that likeness needs to know of the words."""

    inputs: Matrix
    outputs: Matrix
    both: Matrix

    @staticmethod
    def of(words: Vocabulary) -> Moments:
        x, y = words.inputs, words.outputs
        return Moments(x.T @ x, y.T @ y, x.T @ y)

    def likeness(self, read: Any, write: Any) -> FloatArray:
        """`likeness` of pairs of rows (pairs, 2, dim), real and imaginary parts of what is read and written."""
        (a, b), (c, d) = np.moveaxis(read, 1, 0), np.moveaxis(write, 1, 0)
        # Re (a + ib)^T C (c + id) = a^T C c - b^T C d
        together = _form(self.both, a, c) - _form(self.both, b, d)
        sizes = (_form(self.inputs, a, a) + _form(self.inputs, b, b)) * (
            _form(self.outputs, c, c) + _form(self.outputs, d, d)
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(sizes > 0, together / np.sqrt(sizes), np.nan)


def _form(matrix: Matrix, left: Any, right: Any) -> FloatArray:
    return np.einsum("ij,ij->i", left @ matrix, right).astype(np.float64)


def _gram(block: FloatArray, strengths: FloatArray, right: ComplexArray, left: ComplexArray) -> FloatArray:
    """Inner products (4, 4) of Re u, Im u, Re v, Im v for u = F' z and v = F S y with F'^T F = `block`, u and v at unit length."""
    reading, writing = (_unit(np.stack([one.real, one.imag])) for one in (left, strengths * right))
    across = reading @ block @ writing.T
    return np.block([[reading @ reading.T, across], [across.T, writing @ writing.T]])


def _unit(parts: FloatArray) -> FloatArray:
    size = float(np.linalg.norm(parts))
    return parts / size if size > 0 else parts


def _root(gram: FloatArray, rank: int) -> FloatArray:
    """R (.., 4, rank) with R R^T = gram, for positive semidefinite matrices (.., 4, 4) of that rank; symmetric where it is 4."""
    values, vectors = np.linalg.eigh(gram)
    scaled = vectors * np.sqrt(np.clip(values, 0.0, None))[..., None, :]
    return scaled @ np.swapaxes(vectors, -1, -2) if rank == 4 else scaled[..., -rank:]


def one_corner(dim: int, size: int, generator: np.random.Generator) -> FloatArray:
    """F'^T F (size, size) of two independent Haar frames F, F' (dim, size): the law of `linear.haar_corner`, without dim x size work.

    F' may be the first `size` unit vectors and F = G R^-1 with G Gaussian and R^T R = G^T G, of which the upper rows T of G give T^T T
    and the others a Wishart matrix A A^T, with A lower triangular (Bartlett: Gaussian below the diagonal, roots of chi-squares on it).
    """
    if dim < 2 * size:
        return haar_corner(generator, 1, dim, size)[0]
    upper = generator.standard_normal((size, size))
    factor = np.tril(generator.standard_normal((size, size)), -1)
    factor[np.diag_indices(size)] = np.sqrt(generator.chisquare(dim - size - np.arange(size)))
    root = np.linalg.cholesky(upper.T @ upper + factor @ factor.T)
    return np.asarray(np.linalg.solve(root, upper.T).T, dtype=np.float64)


def haar_likeness(
    strengths: FloatArray,
    numbers: Sequence[int],
    moments: Moments,
    draws: int,
    generator: np.random.Generator,
    which: str = "largest",
) -> tuple[FloatArray, ComplexArray, FloatArray]:
    """Likeness and eigenvalue (draws, modes) of the modes with these numbers (`modes.chosen`) of random heads with these singular
    values, NaN for missing modes, and the heads' sign scores (draws,).

    A core gives two heads, itself and its negative, which has the same law and other leading modes, and each head `TURNS` draws.
    """
    modes = len(numbers)
    dim = len(moments.both)
    strengths = strengths[:dim]  # a head wider than the stream has no more than dim of them
    size, rank = len(strengths), min(4, dim)
    heads = 2 * -(-draws // (2 * TURNS))
    values = np.full((heads, modes), complex(np.nan, np.nan), dtype=np.complex128)
    grams = np.zeros((heads, modes, 4, 4))
    scores = np.zeros(heads)
    for head in range(0, heads, 2):
        corner = one_corner(dim, size, generator)
        found, right, left = eigensystem(corner * strengths)
        for shift, sign in enumerate((1.0, -1.0)):
            scores[head + shift] = sign * sign_score(found)
            for mode, place in enumerate(chosen(sign * found, numbers, which)):
                values[head + shift, mode] = sign * found[place]
                grams[head + shift, mode] = _gram(sign * corner, strengths, right[:, place], left[place])
    alike = np.full((heads, TURNS, modes), np.nan)
    for mode in range(modes):
        gaussian = generator.standard_normal((heads, TURNS, rank, dim), dtype=np.float32)
        # Orthonormal rows, turned into vectors with the inner products of the mode: uniformly distributed among all such.
        inner = np.linalg.cholesky((gaussian @ np.swapaxes(gaussian, -1, -2)).astype(np.float64))
        mixing = _root(grams[:, None, mode], rank) @ np.linalg.inv(inner)
        vectors = (mixing.astype(np.float32) @ gaussian).reshape(-1, 4, dim)
        alike[..., mode] = moments.likeness(vectors[:, :2], vectors[:, 2:]).reshape(heads, TURNS)
    alike[np.isnan(values.real)[:, None, :].repeat(TURNS, axis=1)] = np.nan
    return alike.reshape(-1, modes)[:draws], values.repeat(TURNS, axis=0)[:draws], scores.repeat(TURNS)[:draws]
