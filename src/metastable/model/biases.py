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


class Bias(Declared, ABC, family="bias"):
    """Base of the biases."""

    @abstractmethod
    def logits(self, head: int, heads: int, rows: FloatArray, columns: FloatArray) -> FloatArray:
        """What is added to the logits of one of `heads` heads, shape (rows, columns), for tokens at these positions (0-based)."""

    def check(self, heads: int) -> None:
        """Raise `ModelError` when the bias does not fit a model with so many heads."""
        return


@dataclass(frozen=True)
class ALiBi(Bias):
    """Linear positional bias: `-slope |k - j|` added to the logit of tokens k and j (one slope, or one per head)."""

    kind: ClassVar[str] = "alibi"
    label: ClassVar[str] = "ALiBi"

    slope: float | tuple[float, ...] = parameter("slope", symbol="m", suggestion=0.1, minimum=0.0)

    def __post_init__(self) -> None:
        if isinstance(self.slope, (tuple, list)) or (isinstance(self.slope, np.ndarray) and self.slope.ndim):
            slope = tuple(_checks.number(s, "ALiBi.slope", 0.0, error=ModelError) for s in self.slope)
            if not slope:
                raise ModelError("ALiBi.slope must hold at least one slope")
        else:
            slope = _checks.number(self.slope, "ALiBi.slope", 0.0, error=ModelError)
        object.__setattr__(self, "slope", slope)

    def slopes(self, heads: int) -> tuple[float, ...]:
        """One slope per head."""
        return self.slope if isinstance(self.slope, tuple) else (self.slope,) * heads

    def check(self, heads: int) -> None:
        if len(self.slopes(heads)) != heads:
            raise ModelError(f"bias has {len(self.slopes(heads))} slopes for {heads} heads; give one each")

    def logits(self, head: int, heads: int, rows: FloatArray, columns: FloatArray) -> FloatArray:
        return -self.slopes(heads)[head] * np.abs(rows[:, None] - columns)
