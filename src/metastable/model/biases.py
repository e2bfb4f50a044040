"""What is added to the logits by position alone: the biases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import ModelError
from metastable.model.declare import Declared, parameter
from metastable.model.parts import ArrayFields

LARGEST = 1e290
"""What a bias may add to a logit at the most: with it, and times the distance of any two tokens, logits stay in double precision."""


class Bias(Declared, ABC, family="bias"):
    """Base of the biases."""

    @abstractmethod
    def logits(self, head: int, heads: int, rows: FloatArray, columns: FloatArray) -> FloatArray:
        """What is added to the logits of one of `heads` heads, shape (rows, columns), for tokens at these positions (0-based)."""

    def check(self, heads: int) -> None:
        """Raise `ModelError` when the bias does not fit a model with so many heads."""
        return

    def check_count(self, tokens: int) -> None:
        """Raise `ModelError` when the bias does not fit a sequence of this length."""
        return


@dataclass(frozen=True)
class ALiBi(Bias):
    """Linear positional bias: `-slope |k - j|` added to the logit of tokens k and j (one slope, or one per head)."""

    kind: ClassVar[str] = "alibi"
    label: ClassVar[str] = "ALiBi"

    slope: float | tuple[float, ...] = parameter("slope", symbol="m", suggestion=0.1, minimum=0.0)

    def __post_init__(self) -> None:
        if isinstance(self.slope, (tuple, list)) or (isinstance(self.slope, np.ndarray) and self.slope.ndim):
            slope = tuple(_checks.number(s, "ALiBi.slope", 0.0, LARGEST, error=ModelError) for s in self.slope)
            if not slope:
                raise ModelError("ALiBi.slope must hold at least one slope")
        else:
            slope = _checks.number(self.slope, "ALiBi.slope", 0.0, LARGEST, error=ModelError)
        object.__setattr__(self, "slope", slope)

    def slopes(self, heads: int) -> tuple[float, ...]:
        """One slope per head."""
        return self.slope if isinstance(self.slope, tuple) else (self.slope,) * heads

    def check(self, heads: int) -> None:
        if len(self.slopes(heads)) != heads:
            raise ModelError(f"bias has {len(self.slopes(heads))} slopes for {heads} heads; give one each")

    def logits(self, head: int, heads: int, rows: FloatArray, columns: FloatArray) -> FloatArray:
        return -self.slopes(heads)[head] * np.abs(rows[:, None] - columns)


@dataclass(frozen=True, eq=False)
class LogitBias(ArrayFields, Bias):
    """Any numbers added to the logits: `matrix[k, j]` to that of tokens k and j, for all heads; or (heads, n, n), one matrix each.

    Numbers are finite: whom a token must not see, the mask says.
    """

    kind: ClassVar[str] = "logits"
    label: ClassVar[str] = "own bias"

    matrix: FloatArray

    def __post_init__(self) -> None:
        array = _checks.real_array(self.matrix, "LogitBias.matrix", ModelError)
        if array.ndim not in (2, 3) or array.shape[-1] != array.shape[-2] or array.size == 0:
            raise ModelError(
                f"LogitBias.matrix must be n x n, or heads x n x n with one matrix for each head, not of shape {array.shape}"
            )
        if np.abs(array).max() > LARGEST:
            raise ModelError(
                f"LogitBias.matrix holds numbers beyond {LARGEST:g}; whom a token must not see, the mask says"
            )
        object.__setattr__(self, "matrix", _checks.readonly(array))

    def check(self, heads: int) -> None:
        if self.matrix.ndim == 3 and len(self.matrix) != heads:
            raise ModelError(f"LogitBias.matrix has {len(self.matrix)} matrices for {heads} heads; give one each")

    def check_count(self, tokens: int) -> None:
        size = self.matrix.shape[-1]
        if size != tokens:
            raise ModelError(
                f"LogitBias.matrix is {size} x {size}, but there are {tokens} tokens; give a matrix of the size of the sequence"
            )

    def logits(self, head: int, heads: int, rows: FloatArray, columns: FloatArray) -> FloatArray:
        chosen = self.matrix if self.matrix.ndim == 2 else self.matrix[head]
        return chosen[np.ix_(np.asarray(rows, dtype=int), np.asarray(columns, dtype=int))]
