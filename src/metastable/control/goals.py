"""What a placed token is for: `Together`, `Apart`, and which meeting times serve them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metastable import _checks
from metastable.errors import GoalError, InvalidInputError


@dataclass(frozen=True)
class Together:
    """The goal that all these tokens (positions in the sequence, from 0) are in one cluster at the end."""

    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        given = self.tokens.tolist() if isinstance(self.tokens, np.ndarray) else self.tokens
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise InvalidInputError(f"Together.tokens must be positions of tokens, such as (3, 7), not {self.tokens!r}")
        tokens = tuple(_checks.count(token, "each token of Together", 0) for token in given)
        if len(set(tokens)) < 2:
            raise GoalError(f"Together needs two different tokens, not {self.tokens!r}")
        object.__setattr__(self, "tokens", tokens)


@dataclass(frozen=True)
class Apart:
    """The goal that two tokens, and so their clusters, are still apart at the end."""

    first: int
    second: int

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            object.__setattr__(self, name, _checks.count(getattr(self, name), f"Apart.{name}", 0))
        if self.first == self.second:
            raise GoalError(f"token {self.first} cannot be apart from itself")

    @property
    def tokens(self) -> tuple[int, ...]:
        """Both."""
        return self.first, self.second


Goal = Together | Apart


def serves(goal: Goal, logarithm: float, until: float) -> bool:
    """True when a meeting at 10^logarithm serves the goal at the time `until`."""
    in_time = logarithm <= math.log10(until)
    return in_time if isinstance(goal, Together) else not in_time


def score(goal: Goal, logarithm: float) -> float:
    """More is better: early meetings for `Together`, late ones for `Apart`."""
    return -logarithm if isinstance(goal, Together) else logarithm
