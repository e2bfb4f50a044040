"""A bracketed root search for means of random counts: `find`.

The mean count N is a smooth, monotone function of a knob, seen through the noise of members. On the scale x = log(knob) the
search fits

    log N(x) = f(x) + a + b (x - x0)

to all tries near the goal, weighted by their errors: f is a law (zero where there is none), a and b its correction. Every try has
members of its own, so all of them tell about the root; new ones are spent a little to the left and a little to the right of it.
Tries that are surely (three standard errors) on one side of the goal bracket the root, and no later one leaves the bracket.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import ConvergenceError, GoalError

FIRST, MOST = 64, 1024
"""Members of the first try, and of any."""
SURE = 3.0
"""Standard errors from the goal at which a try is on one side of it for sure."""
NEAR = 0.25
"""|log(mean/goal)| up to which a try takes part in the fit."""
OFFSET = 0.02
"""|log(mean/goal)| at which tries beside the root are made: near enough for a line, far enough for its slope. (What the mean bends over
the law moves the root by as much as the bend at this distance; twice as far that is up to an error of the answer.)"""
SLOPE_DOUBT = 0.3
"""Relative standard deviation of a law's slope before anything is measured."""
STRIDE = math.log(2.0)
"""Widest step in x without a bracket; it grows with every further one."""
BLIND = math.log(4.0)
"""Steps in x while the direction is not known."""
SHORTEST = 0.1
"""Shortest step in x without a bracket."""
MOST_LOST = 0.02
"""Share of the members of a try that may stop early: they are the slow ones, so that the others are not a fair sample."""

MOST_TRIES = 60


@dataclass(frozen=True)
class Try:
    """An ensemble at one value of a knob: how many members, their mean number of clusters, and its standard error."""

    value: float
    members: int
    mean: float
    error: float


@dataclass(frozen=True)
class Root:
    """Where the fitted mean is the goal: `x`, its standard error, the slope d log N/dx there, and all tries."""

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
    rounded : function x -> x' next to it that the knob can have.
    """

    goal: float
    accuracy: float
    members: int
    low: float
    high: float
    first: float
    law: Callable[[float], float] | None
    rounded: Callable[[float], float]


def find(problem: Problem, measure: Measure, report: Callable[[float], None]) -> Root:
    """The root; `GoalError` where the goal is beyond the bounds, `ConvergenceError` where the members do not suffice."""
    tries: list[Try] = []
    bracket = [problem.low, problem.high]
    x, spent, stride = problem.rounded(problem.first), 0, STRIDE
    side = 1.0
    while True:
        members = min(_members(problem, tries), problem.members - spent)
        value = float(f"{math.exp(x):.12g}")  # whole numbers stay whole
        counts = measure(value, len(tries), members)
        spent += members
        tries.append(_summary(value, counts))
        report(_progress(problem, tries, spent))
        rising = _direction(problem, tries)
        _narrow(bracket, problem, tries[-1], x, rising)
        if bracket[0] == bracket[1]:
            raise _beyond(problem, tries[-1], at_top=x >= problem.high)
        if bracket[0] > bracket[1]:
            raise ConvergenceError(
                f"tries on both sides of {tries[-1].value:.6g} contradict each other: the mean number of clusters is not monotone "
                "in this knob; give narrower bounds: between=(low, high)"
            )
        root = _fit(problem, tries, bracket)
        if root is not None and math.isinf(root.error) and _settled(problem, tries):
            return _between(problem, measure, report, root, spent)
        enough = (
            root is not None and root.error * abs(root.slope) * problem.goal <= problem.accuracy and len(tries) >= 3
        )
        if root is not None and (enough or spent >= problem.members or _pinned(problem, bracket)):
            if spent >= problem.members and not enough:
                _give_up(problem, root)
            return root
        if spent >= problem.members or len(tries) >= MOST_TRIES:
            raise ConvergenceError(
                f"{spent} members were not enough: the last try, {tries[-1].value:.6g}, has {tries[-1].mean:.4g} clusters on average "
                f"instead of {problem.goal:g}; give more (members=), or bounds (between=)"
            )
        if root is None:
            x = _blind(problem, tries) if rising is None else _stride(problem, tries[-1], bracket, rising, stride)
            stride *= 1.5
        else:
            side = -side
            offset = 0.0 if len(tries) < 3 else side * OFFSET / max(abs(root.slope), OFFSET)
            x = _elsewhere(problem, root.x + offset, tries[-1], side)
        x = problem.rounded(min(max(x, bracket[0]), bracket[1]))


def _elsewhere(problem: Problem, x: float, last: Try, side: float) -> float:
    """`x`, or for whole numbers the next one to this side, when the last try was there already."""
    step = OFFSET
    while abs(problem.rounded(x) - math.log(last.value)) < 1e-12 and step < 1.0:
        x, step = x + side * step, 2.0 * step
    return x


def _pinned(problem: Problem, bracket: list[float]) -> bool:
    """True when a whole-numbered knob has no value strictly inside the bracket."""
    middle = problem.rounded(0.5 * (bracket[0] + bracket[1]))
    return not bracket[0] < middle < bracket[1]


def _sides(problem: Problem, tries: list[Try]) -> tuple[Try, Try] | None:
    """The values next to the goal, one with fewer clusters and one with more (all tries of each as one); None while there are none."""
    below = [item for item in pooled(tries) if item.mean < problem.goal]
    above = [item for item in pooled(tries) if item.mean >= problem.goal]
    if not below or not above:
        return None
    return max(below, key=lambda item: item.mean), min(above, key=lambda item: item.mean)


def _settled(problem: Problem, tries: list[Try]) -> bool:
    """True when a whole-numbered knob has no value between those on either side of the goal, and they are there for sure, or one of
    them has the mean that is wanted.
    """
    sides = _sides(problem, tries)
    if sides is None:
        return False
    ends = [math.log(item.value) for item in sides]
    if not _pinned(problem, sorted(ends)):
        return False
    best = nearest(tries, problem.goal)
    hit = best.error <= problem.accuracy and abs(best.mean - problem.goal) <= problem.accuracy + 2.0 * best.error
    return hit or all(abs(item.mean - problem.goal) > SURE * item.error for item in sides)


def _between(problem: Problem, measure: Measure, report: Callable[[float], None], root: Root, spent: int) -> Root:
    """The root between neighbouring whole numbers, of which not two are near the goal: the nearest one is counted until its mean is
    known, as far as the members go. The error of the root stays infinite: there is no line through one value.
    """
    tries = list(root.tries)
    while True:
        last = nearest(tries, problem.goal)
        missing = int(1.1 * (last.error / problem.accuracy) ** 2 * last.members) - last.members
        members = min(max(missing, FIRST), MOST, problem.members - spent)
        if last.error <= problem.accuracy or members < 2 or len(tries) >= MOST_TRIES:
            return Root(root.x, math.inf, root.slope, tuple(tries))
        tries.append(_summary(last.value, measure(last.value, len(tries), members)))
        spent += members
        report(_progress(problem, tries, spent))


def pooled(tries: Sequence[Try]) -> list[Try]:
    """The tries with those at one value as one, in order of the values."""
    return [_pool([item for item in tries if item.value == value]) for value in sorted({item.value for item in tries})]


def nearest(tries: Sequence[Try], goal: float) -> Try:
    """The value (all its tries as one) whose mean is nearest to the goal."""
    return min(pooled(tries), key=lambda item: abs(item.mean - goal))


def _give_up(problem: Problem, root: Root) -> None:
    """Raise when what the members told is far from what was wanted; a somewhat wider interval is an answer."""
    error = root.error * abs(root.slope) * problem.goal
    if error > 5.0 * problem.accuracy:
        raise ConvergenceError(
            f"{problem.members} members give the mean number of clusters to {error:.2g} only, and accuracy={problem.accuracy:g} was "
            f"asked for; give more members, or ask for less"
        )


def _summary(value: float, counts: FloatArray) -> Try:
    asked, counts = counts.size, counts[np.isfinite(counts)]
    if asked - counts.size > MOST_LOST * asked:
        raise ConvergenceError(
            f"{asked - counts.size} of {asked} members did not reach the horizon at {value:.6g}, and those that did are not like all; "
            "simulate one to see why (raise max_steps where that is the reason)"
        )
    spread = float(counts.std(ddof=1)) if counts.size > 1 else 0.0
    # Of members that are all alike nobody knows more than that others are rare.
    return Try(
        value, counts.size, float(counts.mean()), max(spread, 1.0 / math.sqrt(counts.size)) / math.sqrt(counts.size)
    )


def _members(problem: Problem, tries: list[Try]) -> int:
    """How many for the next try: few while the root is not in sight, then what is missing, in several portions."""
    near = [item for item in tries if abs(math.log(item.mean / problem.goal)) <= NEAR]
    if not near:
        return FIRST
    variance = max(item.error**2 * item.members for item in near)
    missing = 1.1 * variance / problem.accuracy**2 - sum(item.members for item in near)
    return int(min(max(missing / (3.0 if len(near) < 4 else 1.0), FIRST), MOST))


def _progress(problem: Problem, tries: list[Try], spent: int) -> float:
    """Share of the work that is done."""
    near = [item for item in tries if abs(math.log(item.mean / problem.goal)) <= NEAR]
    variance = max((item.error**2 * item.members for item in near), default=problem.goal)
    return min(1.0, max(spent / problem.members, sum(item.members for item in near) * problem.accuracy**2 / variance))


def _direction(problem: Problem, tries: list[Try]) -> float | None:
    """+1 when the mean rises with the knob, -1 when it falls, None while nobody knows."""
    if problem.law is not None:
        step = 1e-3 * (problem.high - problem.low)
        middle = min(max(problem.first, problem.low + step), problem.high - step)
        return math.copysign(1.0, problem.law(middle + step) - problem.law(middle - step))
    first, last = min(tries, key=lambda item: item.value), max(tries, key=lambda item: item.value)
    difference = last.mean - first.mean
    if abs(difference) > SURE * math.hypot(first.error, last.error):
        return math.copysign(1.0, difference)
    return None


def _narrow(bracket: list[float], problem: Problem, last: Try, x: float, rising: float | None) -> None:
    """Move an end of the bracket to a try that is surely on its side of the root."""
    if rising is None or abs(last.mean - problem.goal) <= SURE * last.error:
        return
    bracket[0 if (last.mean < problem.goal) == (rising > 0) else 1] = x


def _blind(problem: Problem, tries: list[Try]) -> float:
    """Where to look next while nobody knows which way the mean goes: above the first try, below it, further above, ..."""
    known = {round(math.log(item.value), 9) for item in tries}
    for count in range(1, 2 * MOST_TRIES):
        away = BLIND * ((count + 1) // 2) * (1.0 if count % 2 else -1.0)
        x = problem.rounded(min(max(problem.first + away, problem.low), problem.high))
        if round(x, 9) not in known:
            return x
    raise GoalError(
        f"{problem.goal:g} clusters are out of reach: between {math.exp(problem.low):.4g} and {math.exp(problem.high):.4g} the knob "
        f"changes nothing that {tries[0].members} members could see, and there are {tries[0].mean:.4g} on average; another knob, "
        "or other bounds"
    )


def _beyond(problem: Problem, last: Try, at_top: bool) -> GoalError:
    return GoalError(
        f"{problem.goal:g} clusters are out of reach: at {last.value:.6g}, the {'largest' if at_top else 'smallest'} value allowed, "
        f"there are {last.mean:.4g} on average; another goal, or other bounds: between=(low, high)"
    )


def _stride(problem: Problem, last: Try, bracket: list[float], rising: float, stride: float) -> float:
    """Where to look next while the goal is not within reach of a fit."""
    x = math.log(last.value)
    up = (last.mean < problem.goal) == (rising > 0)
    end = bracket[1] if up else bracket[0]
    bounded = bracket[0] > problem.low and bracket[1] < problem.high
    # Not far beyond the goal, when that is near.
    stride = min(stride, max(SHORTEST, 3.0 * abs(math.log(last.mean / problem.goal))))
    step = 0.5 * abs(end - x) if bounded else min(stride, abs(end - x))
    while step < abs(end - x) and problem.rounded(x + (step if up else -step)) == problem.rounded(x):
        step = min(2.0 * step, abs(end - x))  # to the next whole number at least
    if step < 1e-9:
        raise _beyond(problem, last, at_top=up)
    return x + (step if up else -step)


def _fit(problem: Problem, tries: list[Try], bracket: list[float]) -> Root | None:
    """The root of the line (over the law) through the tries near the goal; None while they do not say where it is."""
    near = [item for item in tries if abs(math.log(item.mean / problem.goal)) <= NEAR]
    hint = not near
    if hint and problem.law is not None:
        near = [min(tries, key=lambda item: abs(math.log(item.mean / problem.goal)))]
    law = problem.law or (lambda x: 0.0)
    places = np.array([math.log(item.value) for item in near])
    if not near or (problem.law is None and np.unique(places).size < 2):
        return _secant(problem, tries, bracket)
    offsets = np.array([math.log(item.mean / problem.goal) - law(x) for item, x in zip(near, places)])
    weights = np.array([(item.mean / item.error) ** 2 for item in near])
    middle = float(np.average(places, weights=weights))
    design = np.stack([np.ones(places.size), places - middle], axis=1)
    # Behind a law: its slope is right to a third, unless tries say otherwise.
    doubt = 0.0 if problem.law is None else 1.0 / (SLOPE_DOUBT * _law_slope(law, middle)) ** 2
    precision = design.T @ (weights[:, None] * design) + np.diag([0.0, doubt])
    covariance = np.linalg.inv(precision)
    level, tilt = covariance @ (design.T @ (weights * offsets))

    def fitted(x: float) -> float:
        return float(law(x) + level + tilt * (x - middle))

    x = _root_of(fitted, bracket)
    if x is None:
        return None
    step = 1e-4
    slope = (fitted(x + step) - fitted(x - step)) / (2.0 * step)
    row = np.array([1.0, x - middle])
    deviation = math.sqrt(float(row @ covariance @ row))
    return Root(x, math.inf if hint else deviation / max(abs(slope), 1e-12), slope, tuple(tries))


def _pool(tries: list[Try]) -> Try:
    """Tries at one value as one."""
    members = sum(item.members for item in tries)
    mean = sum(item.members * item.mean for item in tries) / members
    error = math.sqrt(sum((item.members * item.error) ** 2 for item in tries)) / members
    return Try(tries[0].value, members, mean, error)


def _law_slope(law: Callable[[float], float], x: float) -> float:
    return max(abs(law(x + 1e-3) - law(x - 1e-3)) / 2e-3, 1e-6)


def _secant(problem: Problem, tries: list[Try], bracket: list[float]) -> Root | None:
    """Between the nearest tries on either side; only a hint (its error is infinite) where the next try belongs."""
    sides = _sides(problem, tries)
    if sides is None:
        return None
    a, b = sides
    slope = math.log(b.mean / a.mean) / (math.log(b.value) - math.log(a.value))
    x = math.log(a.value) + math.log(problem.goal / a.mean) / slope
    return Root(min(max(x, bracket[0]), bracket[1]), math.inf, slope, tuple(tries))


def _root_of(function: Callable[[float], float], bracket: list[float]) -> float | None:
    """The zero of a monotone function in the bracket, or the end next to it when it is not far beyond; None elsewhere."""
    from scipy.optimize import brentq

    low, high = bracket
    ends = function(low), function(high)
    if ends[0] * ends[1] <= 0.0:
        found: float = brentq(function, low, high, xtol=1e-12)  # pyright: ignore[reportAssignmentType]
        return float(found)
    return None
