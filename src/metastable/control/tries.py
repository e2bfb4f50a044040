"""Tries: ensembles at one value of a knob each, what they say of the goal, and what is looked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import ConvergenceError, GoalError

FIRST, MOST = 64, 1024
"""Members of the first try, and of any."""
SURE = 3.0
"""Standard errors from the goal at which a try is on one side of it for sure."""
MOST_LOST = 0.02
"""Share of the members of a try that may stop early: they are the slow ones, so that the others are not a fair sample."""
MOST_TRIES = 60
NEAR = 0.25
"""|log(mean/goal)| up to which a try says something about the root."""


@dataclass(frozen=True)
class Try:
    """An ensemble at one value of a knob: how many members, their mean number of clusters, and its standard error.

    `lost`: members that stopped early, which are not among them.
    """

    value: float
    members: int
    mean: float
    error: float
    lost: int = 0

    @property
    def asked(self) -> int:
        """Members that were spent."""
        return self.members + self.lost


@dataclass(frozen=True)
class Root:
    """Where the fitted mean is the goal: `x`, its standard error, the slope d log N/dx there, and all tries.

    Of a whole-numbered knob the error is infinite: `x` is between the two numbers on either side of the goal, see `wholes`.
    """

    x: float
    error: float
    slope: float
    tries: tuple[Try, ...]


Measure = Callable[[float, int, int], FloatArray]
"""(value, number of the try, members) -> counts of as many members, independent of all others."""


@dataclass(frozen=True)
class Problem:
    """What is looked for.

    Fields
    ------
    goal : the mean wanted; accuracy : standard error of the mean at the root at which the search ends; members : the most to spend.
    low, high : bounds in x; first : where to begin; law : function of x, log of the expected count; None: no law.
    rounded : function x -> x' next to it that the knob can have; whole : these are whole numbers (and there is no law).
    """

    goal: float
    accuracy: float
    members: int
    low: float
    high: float
    first: float
    law: Callable[[float], float] | None
    rounded: Callable[[float], float]
    whole: bool = False


@dataclass(frozen=True)
class Record:
    """The tries that were made, and those who make them; `report` is called with the share of the work that is done."""

    problem: Problem
    measure: Measure
    report: Callable[[float], None]
    tries: list[Try] = field(default_factory=list)

    @property
    def spent(self) -> int:
        """Members that were spent."""
        return sum(item.asked for item in self.tries)

    @property
    def left(self) -> int:
        """Members that may be spent yet."""
        return max(0, self.problem.members - self.spent)

    def tried(self, x: float, members: int) -> list[Try]:
        """All tries, with one more at x, of so many members (or of those that are left)."""
        value = float(f"{math.exp(x):.12g}")  # whole numbers stay whole
        counts = self.measure(value, len(self.tries), min(members, self.left))
        self.tries.append(summary(value, counts))
        self.report(self._done())
        return self.tries

    def _done(self) -> float:
        """Share of the work: of what the members are known to, of what was asked for."""
        accuracy, near = self.problem.accuracy, near_goal(self.problem, self.tries)
        variance = max((item.error**2 * item.members for item in near), default=self.problem.goal)
        known = sum(item.members for item in near) * accuracy * (accuracy / variance)
        return min(1.0, max(self.spent / self.problem.members, known))


def near_goal(problem: Problem, tries: Sequence[Try]) -> list[Try]:
    """The tries whose means are near the goal."""
    return [item for item in tries if abs(math.log(item.mean / problem.goal)) <= NEAR]


def summary(value: float, counts: FloatArray) -> Try:
    """A try from the counts of its members; `ConvergenceError` where too many of them are none."""
    asked, counts = counts.size, counts[np.isfinite(counts)]
    if asked - counts.size > MOST_LOST * asked:
        raise ConvergenceError(
            f"{asked - counts.size} of {asked} members did not reach the horizon at {value:.6g}, and those that did are not like all; "
            "simulate one to see why (raise max_steps where that is the reason)"
        )
    spread = float(counts.std(ddof=1)) if counts.size > 1 else 0.0
    # Of members that are all alike nobody knows more than that others are rare.
    error = max(spread, 1.0 / math.sqrt(counts.size)) / math.sqrt(counts.size)
    return Try(value, counts.size, float(counts.mean()), error, asked - counts.size)


def pooled(tries: Sequence[Try]) -> list[Try]:
    """The tries with those at one value as one, in order of the values."""
    return [_pool([item for item in tries if item.value == value]) for value in sorted({item.value for item in tries})]


def nearest(tries: Sequence[Try], goal: float) -> Try:
    """The value (all its tries as one) whose mean is nearest to the goal."""
    return min(pooled(tries), key=lambda item: abs(item.mean - goal))


def _pool(tries: list[Try]) -> Try:
    """Tries at one value as one."""
    members = sum(item.members for item in tries)
    mean = sum(item.members * item.mean for item in tries) / members
    error = math.sqrt(sum((item.members * item.error) ** 2 for item in tries)) / members
    return Try(tries[0].value, members, mean, error, sum(item.lost for item in tries))


def sides(tries: Sequence[Try], goal: float) -> tuple[Try, Try] | None:
    """The values next to the goal, one with fewer clusters and one with more (all tries of each as one); None while there are none."""
    below = [item for item in pooled(tries) if item.mean < goal]
    above = [item for item in pooled(tries) if item.mean >= goal]
    if not below or not above:
        return None
    return max(below, key=lambda item: item.mean), min(above, key=lambda item: item.mean)


def beyond(problem: Problem, last: Try, at_top: bool) -> GoalError:
    """What is said where a bound of the knob does not reach the goal."""
    return GoalError(
        f"{problem.goal:g} clusters are out of reach: at {last.value:.6g}, the {'largest' if at_top else 'smallest'} value allowed, "
        f"there are {last.mean:.4g} on average; another goal, or other bounds: between=(low, high)"
    )
