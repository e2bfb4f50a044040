"""Optional parts of a model: feed-forward drift and frozen tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import ModelError
from metastable.model.describe import one_line

Activation = Literal["relu", "gelu", "silu", "tanh", "identity"]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)


class ArrayFields(_checks.LockedArrays):
    """Equality, hashing, copies and a short form for frozen dataclasses that hold arrays."""

    def _key(self) -> tuple:
        values = (getattr(self, name) for name in self.__dataclass_fields__)  # type: ignore[attr-defined]
        return tuple((v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key() == other._key()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key()))

    def __repr__(self) -> str:
        return one_line(self)


@dataclass(frozen=True, eq=False, repr=False)
class FeedForward(ArrayFields):
    """A drift added to the attention sum before the projection: `W2 act(W1 x + b1) + b2`.

    Shapes: `w1` (hidden, dim), `b1` (hidden,), `w2` (dim, hidden), `b2` (dim,). `gelu` is the exact one (error function).
    """

    w1: FloatArray
    b1: FloatArray
    w2: FloatArray
    b2: FloatArray
    activation: Activation = "gelu"

    def __post_init__(self) -> None:
        w1 = _checks.matrix(self.w1, "FeedForward.w1", error=ModelError)
        hidden, dim = w1.shape
        b1 = _checks.vector(self.b1, "FeedForward.b1", hidden, error=ModelError)
        w2 = _checks.matrix(self.w2, "FeedForward.w2", dim, hidden, error=ModelError)
        b2 = _checks.vector(self.b2, "FeedForward.b2", dim, error=ModelError)
        _checks.choice(self.activation, "FeedForward.activation", ACTIVATIONS, error=ModelError)
        for name, array in (("w1", w1), ("b1", b1), ("w2", w2), ("b2", b2)):
            object.__setattr__(self, name, _checks.readonly(array))

    @property
    def dim(self) -> int:
        """Dimension of the tokens it acts on."""
        return self.w1.shape[1]


@dataclass(frozen=True, eq=False, repr=False)
class Frozen(ArrayFields):
    """Tokens that never move and that every token attends to, as in cross-attention (Theorem 5.2).

    Shapes: `tokens` (m, dim) of unit length, `weights` (m,), each >= 0 (None: all one).
    """

    tokens: FloatArray
    weights: FloatArray | None = None

    def __post_init__(self) -> None:
        tokens = _checks.tokens(self.tokens, "Frozen.tokens")
        if self.weights is None:
            weights = np.ones(len(tokens))
        else:
            weights = _checks.vector(self.weights, "Frozen.weights", len(tokens), error=ModelError)
            if (weights < 0).any():
                raise ModelError(f"Frozen.weights must not be negative, but entry {int(weights.argmin())} is")
        object.__setattr__(self, "tokens", _checks.readonly(tokens))
        object.__setattr__(self, "weights", _checks.readonly(weights))
