"""Who sees whom: the masks of self-attention.

Token k (0-based) attends to the tokens that its mask makes visible. All masks but the arbitrary `Mask` are unions of at most two
index ranges, so kernels loop over ranges and never build an n x n array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastable import _checks
from metastable.errors import ModelError

IntArray = NDArray[np.int64]


class Visibility(ABC):
    """Base of the masks."""

    @abstractmethod
    def intervals(self, tokens: int) -> IntArray | None:
        """Half-open visible ranges, shape (tokens, 2, 2): token k sees `[a, b)` for `a, b` in `intervals[k]`.

        The ranges are disjoint and sorted, the second may be empty. None where a mask is not made of ranges.
        """

    def matrix(self, tokens: int) -> NDArray[np.bool_]:
        """Boolean matrix, shape (tokens, tokens): row k says whom token k sees."""
        ranges = self.intervals(tokens)
        assert ranges is not None
        index = np.arange(tokens)
        inside = (index >= ranges[:, :, :1]) & (index < ranges[:, :, 1:])
        return inside[:, 0] | inside[:, 1]

    def is_causal(self, tokens: int) -> bool:
        """True when nobody sees a later token, i.e. when the system is triangular."""
        ranges = self.intervals(tokens)
        if ranges is None:
            return not np.triu(self.matrix(tokens), 1).any()
        return bool((ranges[:, :, 1].max(axis=1) <= np.arange(1, tokens + 1)).all())

    def extends(self, before: int, after: int) -> bool:
        """True when the first `before` tokens see the same tokens in a sequence of length `after`."""
        short, long = self.intervals(before), self.intervals(after)
        return short is not None and long is not None and bool(np.array_equal(short, long[:before]))

    def check(self, tokens: int) -> None:
        """Raise `ModelError` when the mask does not fit a sequence of this length."""
        return


def _ranges(first: Any, second: Any = None, tokens: int = 0) -> IntArray:
    """Assemble (tokens, 2, 2) from (start, stop) pairs that broadcast over tokens."""
    out = np.zeros((tokens, 2, 2), dtype=np.int64)
    out[:, 0, 0], out[:, 0, 1] = first
    if second is not None:
        out[:, 1, 0], out[:, 1, 1] = second
    return out


@dataclass(frozen=True)
class Causal(Visibility):
    """Token k sees tokens 1..k (the paper's (CSA))."""

    def intervals(self, tokens: int) -> IntArray:
        return _ranges((0, np.arange(1, tokens + 1)), tokens=tokens)


@dataclass(frozen=True)
class Full(Visibility):
    """Everybody sees everybody (the paper's (SA))."""

    def intervals(self, tokens: int) -> IntArray:
        return _ranges((0, tokens), tokens=tokens)


@dataclass(frozen=True)
class Window(Visibility):
    """Token k sees itself and the `width` - 1 tokens before it."""

    width: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", _checks.count(self.width, "Window.width", error=ModelError))

    def intervals(self, tokens: int) -> IntArray:
        stop = np.arange(1, tokens + 1)
        return _ranges((np.maximum(0, stop - self.width), stop), tokens=tokens)


@dataclass(frozen=True)
class Sink(Visibility):
    """Token k sees the first `sinks` tokens (attention sinks) and the last `width` tokens up to itself."""

    sinks: int
    width: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sinks", _checks.count(self.sinks, "Sink.sinks", error=ModelError))
        object.__setattr__(self, "width", _checks.count(self.width, "Sink.width", error=ModelError))

    def intervals(self, tokens: int) -> IntArray:
        stop = np.arange(1, tokens + 1)
        sink = np.minimum(self.sinks, stop)
        start = np.maximum(sink, stop - self.width)
        return _ranges((0, sink), (start, stop), tokens=tokens)


@dataclass(frozen=True)
class Prefix(Visibility):
    """The first `length` tokens see each other fully; later tokens are causal."""

    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", _checks.count(self.length, "Prefix.length", error=ModelError))

    def intervals(self, tokens: int) -> IntArray:
        stop = np.maximum(np.arange(1, tokens + 1), min(self.length, tokens))
        return _ranges((0, stop), tokens=tokens)


@dataclass(frozen=True, eq=False)
class Mask(Visibility):
    """Any boolean matrix: row k says whom token k sees. Every token must see at least one token."""

    allowed: NDArray[np.bool_]

    def __post_init__(self) -> None:
        try:
            array = np.array(self.allowed)
        except ValueError:
            raise ModelError("Mask.allowed must be a square matrix; its rows have different lengths") from None
        if array.dtype != np.bool_:
            if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
                raise ModelError("Mask.allowed must be a boolean matrix (or hold only 0 and 1)")
            array = array.astype(bool)
        if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
            raise ModelError(f"Mask.allowed must be a square matrix, not an array of shape {array.shape}")
        blind = np.flatnonzero(~array.any(axis=1))
        if blind.size:
            raise ModelError(f"Mask.allowed: token {blind[0]} sees nobody; let it see at least itself")
        object.__setattr__(self, "allowed", _checks.readonly(array))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and np.array_equal(self.allowed, other.allowed)

    def __hash__(self) -> int:
        return hash((self.allowed.shape, self.allowed.tobytes()))

    def intervals(self, tokens: int) -> None:
        return None

    def matrix(self, tokens: int) -> NDArray[np.bool_]:
        self.check(tokens)
        return self.allowed

    def check(self, tokens: int) -> None:
        if self.allowed.shape[0] != tokens:
            raise ModelError(
                f"Mask.allowed is {self.allowed.shape[0]} x {self.allowed.shape[0]}, but there are {tokens} tokens; "
                "give a matrix of the size of the sequence"
            )
