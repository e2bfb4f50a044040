"""Who sees whom: the masks of self-attention.

Token k (0-based) attends to the tokens that its mask makes visible. All masks but the arbitrary `Mask` are unions of at most two
index ranges, so kernels loop over ranges and never build an n x n array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastable import _checks
from metastable.errors import ModelError
from metastable.model.declare import Declared, parameter
from metastable.model.describe import one_line

IntArray = NDArray[np.int64]
RULE_TOKENS = 2**14
"""Longest sequence for which a rule is asked about every pair: it takes about a minute."""


class Masking(Declared, ABC, family="mask"):
    """Base of the masks: who sees whom, as ranges where it is made of ranges, else as a matrix."""

    @abstractmethod
    def intervals(self, tokens: int) -> IntArray | None:
        """Half-open visible ranges, shape (tokens, 2, 2): token k sees `[a, b)` for `a, b` in `intervals[k]`.

        The ranges are disjoint and sorted, the second may be empty. None where a mask is not made of ranges.
        """

    def matrix(self, tokens: int) -> NDArray[np.bool_]:
        """Boolean matrix, shape (tokens, tokens): row k says whom token k sees."""
        assert self.intervals(tokens) is not None
        return self.rows(tokens, 0, tokens)

    def rows(self, tokens: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Rows start..stop-1 of `matrix(tokens)`, shape (stop - start, tokens), without the others."""
        ranges = self.intervals(tokens)
        if ranges is None:
            return self.matrix(tokens)[start:stop]
        first, second = ranges[start:stop, 0], ranges[start:stop, 1]
        inside = _inside(first, tokens)
        if (second[:, 1] > second[:, 0]).any():
            inside |= _inside(second, tokens)
        return inside

    def is_causal(self, tokens: int) -> bool:
        """True when nobody sees a later token, i.e. when the system is triangular."""
        return self._sight(tokens).causal

    @property
    def fixed_length(self) -> int | None:
        """The one length of sequence that the mask is made for; None: any."""
        return None

    def sees_self(self, tokens: int) -> bool:
        """True when every token sees itself. Read off the ranges, so that nothing a class says can be wrong."""
        return self._sight(tokens).own

    def sees_somebody(self, tokens: int) -> bool:
        """True when every token sees at least one, be it itself."""
        return self._sight(tokens).somebody

    def _sight(self, tokens: int) -> _Sight:
        """Asked many times about one run, and worth a pass over all tokens: remembered."""
        return _remembered(self, tokens)

    def extends(self, before: int, after: int) -> bool:
        """True when the first `before` tokens see the same tokens in a sequence of length `after`."""
        short, long = self.intervals(before), self.intervals(after)
        if short is not None and long is not None:
            return bool(np.array_equal(short, long[:before]))
        if self.fixed_length not in (None, after):
            return False
        seen, wide = self.matrix(before), self.matrix(after)
        return bool(np.array_equal(seen, wide[:before, :before])) and not wide[:before, before:].any()

    def check(self, tokens: int) -> None:
        """Raise `ModelError` when the mask does not fit a sequence of this length."""
        return


class _Sight(NamedTuple):
    """Whether every token sees itself, somebody, and nobody later."""

    own: bool
    somebody: bool
    causal: bool


def _look(mask: Masking, tokens: int) -> _Sight:
    """What a mask makes of a sequence of this length."""
    ranges = mask.intervals(tokens)
    if ranges is None:
        seen = mask.matrix(tokens)
        return _Sight(bool(seen.diagonal().all()), bool(seen.any(axis=1).all()), not np.triu(seen, 1).any())
    own, begin, end = np.arange(tokens), ranges[:, :, 0].T, ranges[:, :, 1].T
    return _Sight(
        bool(((begin <= own) & (own < end)).any(axis=0).all()),
        bool((end > begin).any(axis=0).all()),
        bool((end <= own + 1).all()),
    )


_remembered = lru_cache(maxsize=256)(_look)


def _inside(ranges: IntArray, tokens: int) -> NDArray[np.bool_]:
    """True where 0..tokens-1 lies within the range of a row (rows, 2); asked at every evaluation, so with few passes."""
    index = np.arange(tokens)
    inside = index < ranges[:, 1:]
    if ranges[:, 0].any():
        inside &= index >= ranges[:, :1]
    return inside


def _ranges(first: Any, second: Any = None, tokens: int = 0) -> IntArray:
    """Assemble (tokens, 2, 2) from (start, stop) pairs that broadcast over tokens."""
    out = np.zeros((tokens, 2, 2), dtype=np.int64)
    out[:, 0, 0], out[:, 0, 1] = first
    if second is not None:
        out[:, 1, 0], out[:, 1, 1] = second
    return out


@dataclass(frozen=True, repr=False)
class Causal(Masking):
    """Token k sees tokens 1..k (the paper's (CSA)), without itself if `include_self` is False: the first one then stands still."""

    kind: ClassVar[str] = "causal"
    label: ClassVar[str] = "causal"

    include_self: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "include_self", _checks.flag(self.include_self, "Causal.include_self"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.include_self else 'include_self=False'})"

    def intervals(self, tokens: int) -> IntArray:
        return _ranges((0, np.arange(tokens) + self.include_self), tokens=tokens)


@dataclass(frozen=True, repr=False)
class Full(Masking):
    """Everybody sees everybody (the paper's (SA)), except themselves if `include_self` is False."""

    kind: ClassVar[str] = "full"
    label: ClassVar[str] = "full"

    include_self: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "include_self", _checks.flag(self.include_self, "Full.include_self"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.include_self else 'include_self=False'})"

    def intervals(self, tokens: int) -> IntArray:
        if self.include_self:
            return _ranges((0, tokens), tokens=tokens)
        own = np.arange(tokens)
        return _ranges((0, own), (own + 1, tokens), tokens=tokens)


@dataclass(frozen=True)
class Window(Masking):
    """Token k sees itself and the `width` - 1 tokens before it."""

    kind: ClassVar[str] = "window"
    label: ClassVar[str] = "window"

    width: int = parameter("width", symbol="w", suggestion=16, minimum=1, whole=True)

    def intervals(self, tokens: int) -> IntArray:
        stop = np.arange(1, tokens + 1)
        return _ranges((np.maximum(0, stop - self.width), stop), tokens=tokens)


@dataclass(frozen=True)
class Sink(Masking):
    """Token k sees the first `sinks` tokens (attention sinks) and the last `width` tokens up to itself."""

    kind: ClassVar[str] = "sink"
    label: ClassVar[str] = "sinks and window"

    sinks: int = parameter("sinks", symbol="s", suggestion=1, minimum=1, whole=True)
    width: int = parameter("width", symbol="w", suggestion=16, minimum=1, whole=True)

    def intervals(self, tokens: int) -> IntArray:
        stop = np.arange(1, tokens + 1)
        sink = np.minimum(self.sinks, stop)
        start = np.maximum(sink, stop - self.width)
        return _ranges((0, sink), (start, stop), tokens=tokens)


@dataclass(frozen=True)
class Prefix(Masking):
    """The first `length` tokens see each other fully; later tokens are causal."""

    kind: ClassVar[str] = "prefix"
    label: ClassVar[str] = "prefix"

    length: int = parameter("length", symbol="p", suggestion=16, minimum=1, whole=True)

    def intervals(self, tokens: int) -> IntArray:
        stop = np.maximum(np.arange(1, tokens + 1), min(self.length, tokens))
        return _ranges((0, stop), tokens=tokens)


@dataclass(frozen=True, eq=False, repr=False)
class Mask(_checks.LockedArrays, Masking):
    """Any boolean matrix: row k says whom token k sees. Or a rule for any length: a function (k, j) -> bool of two positions (0-based).

    Every token must see at least one token. A rule is asked once for every pair of a length; stores keep the matrix that it made.
    """

    kind: ClassVar[str] = "matrix"
    label: ClassVar[str] = "own mask"

    allowed: NDArray[np.bool_] | Callable[[int, int], bool]

    def __post_init__(self) -> None:
        if callable(self.allowed):
            object.__setattr__(self, "_made", {})
        else:
            object.__setattr__(self, "allowed", _checks.readonly(_allowed(self.allowed)))

    def __repr__(self) -> str:
        return one_line(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask) or self.is_rule != other.is_rule:
            return False
        return self.allowed == other.allowed if self.is_rule else bool(np.array_equal(self.allowed, other.allowed))  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash(
            (self.allowed.shape, self.allowed.tobytes()) if isinstance(self.allowed, np.ndarray) else id(self.allowed)
        )

    @property
    def is_rule(self) -> bool:
        """True for a mask that is given by a function."""
        return callable(self.allowed)

    @property
    def fixed_length(self) -> int | None:
        return len(self.allowed) if isinstance(self.allowed, np.ndarray) else None

    def _sight(self, tokens: int) -> _Sight:
        """Not remembered: that would keep the matrix."""
        return _look(self, tokens)

    def intervals(self, tokens: int) -> None:
        return None

    def matrix(self, tokens: int) -> NDArray[np.bool_]:
        self.check(tokens)
        return self.allowed if isinstance(self.allowed, np.ndarray) else self._by_rule(tokens)

    def _by_rule(self, tokens: int) -> NDArray[np.bool_]:
        """The matrix that the rule makes; the last one is kept, for a right-hand side asks again and again."""
        made: dict[int, NDArray[np.bool_]] = vars(self)["_made"]
        matrix = made.get(tokens)
        if matrix is None:
            size = _checks.count(tokens, "tokens", error=ModelError)
            if size > RULE_TOKENS:
                raise ModelError(f"a mask by rule is asked for every pair, too often for {size} tokens; give a matrix")
            answers = [[self._answer(k, j) for j in range(size)] for k in range(size)]
            matrix = _checks.readonly(_allowed(answers))
            made.clear()
            made[tokens] = matrix
        # Not read again: another thread may have asked about another length meanwhile.
        return matrix

    def _answer(self, k: int, j: int) -> bool:
        """What the rule says about one pair."""
        rule: Any = self.allowed
        try:
            answer = rule(k, j)
        except Exception as reason:  # whatever a function of somebody raises
            raise ModelError(f"Mask: the rule failed for the positions ({k}, {j}): {reason!r}") from reason
        return _checks.flag(answer, f"the answer of the rule of Mask for the positions ({k}, {j})", error=ModelError)

    def check(self, tokens: int) -> None:
        if self.is_rule:
            self._by_rule(tokens)
        elif self.fixed_length != tokens:
            raise ModelError(
                f"Mask.allowed is {self.fixed_length} x {self.fixed_length}, but there are {tokens} tokens; "
                "give a matrix of the size of the sequence"
            )


def _allowed(given: Any) -> NDArray[np.bool_]:
    """A boolean matrix in which everybody sees somebody, or `ModelError`."""
    _checks.refuse_masked(given, "Mask.allowed", ModelError)
    try:
        array = np.array(given)
    except ValueError:
        raise ModelError("Mask.allowed must be a square matrix; its rows have different lengths") from None
    if array.dtype != np.bool_:
        if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
            raise ModelError(
                "Mask.allowed must be a boolean matrix (or hold only 0 and 1), or a function (k, j) -> bool"
            )
        array = array.astype(bool)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise ModelError(f"Mask.allowed must be a square matrix, not an array of shape {array.shape}")
    blind = np.flatnonzero(~array.any(axis=1))
    if blind.size:
        raise ModelError(f"Mask.allowed: token {blind[0]} sees nobody; let it see at least itself")
    return array
