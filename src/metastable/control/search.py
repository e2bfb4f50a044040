"""A bracketed root search for means of random counts: `find`.

The mean count N is a smooth, monotone function of a knob, seen through the noise of members. On the scale x = log(knob) the
search fits

    log N(x) = f(x) + a + b (x - x0)

to all tries near the goal, weighted by their errors (and, where there is no law, by how far the mean may bend from there to the
goal): f is a law (zero where there is none), a and b its correction. Every try has members of its own, so all of them tell about
the root; new ones are spent a little to the left and a little to the right of it. Tries that are surely (three standard errors) on
one side of the goal bracket the root, and no later one leaves the bracket.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from metastable.control import wholes
from metastable.control.tries import FIRST, MOST, MOST_TRIES, SURE, Measure, Problem, Root, Try, sides, summary
from metastable.errors import ConvergenceError, GoalError

NEAR = 0.25
"""|log(mean/goal)| up to which a try takes part in the fit."""
BEND = 5.0
"""Without a law: by how much log(mean/goal) = d may be off a straight line through the root, over d^2. A mean that falls to a floor has
half its distance to the goal in such a bend, and a try there, however well it is known, says little about the root."""
OFFSET = 0.02
"""|log(mean/goal)| at which tries beside the root are made: near enough for a line, far enough for its slope. (What the mean bends over
the law moves the root by as much as the bend at this distance; twice as far that is up to an error of the answer.)"""
SLOPE_DOUBT = 0.3
"""Relative standard deviation of a law's slope before anything is measured."""
ENOUGH = 5.0
"""Times the accuracy that was asked for up to which an error is an answer when the members are spent."""
STRIDE = math.log(2.0)
"""Widest step in x without a bracket; it grows with every further one."""
BLIND = math.log(4.0)
"""Steps in x while the direction is not known."""
SHORTEST = 0.1
"""Shortest step in x without a bracket."""


def find(problem: Problem, measure: Measure, report: Callable[[float], None]) -> Root:
    """The root; `GoalError` where the goal is beyond the bounds, `ConvergenceError` where the members do not suffice."""
    tries: list[Try] = []
    bracket = [problem.low, problem.high]
    x, spent, stride = problem.rounded(problem.first), 0, STRIDE
    side, members = 1.0, FIRST
    while True:
        members = min(members, problem.members - spent)
        value = float(f"{math.exp(x):.12g}")  # whole numbers stay whole
        counts = measure(value, len(tries), members)
        spent += members
        tries.append(summary(value, counts))
        report(_progress(problem, tries, spent))
        rising = _direction(problem, tries)
        _narrow(bracket, problem, tries[-1], x, rising)
        last = spent >= problem.members or len(tries) >= MOST_TRIES
        if problem.whole:
            # Two numbers next to each other may both be far from the goal, so there is no line to be fitted.
            root = wholes.neighbours(problem, tries, slack=ENOUGH if last else 1.0)
            if root is not None:
                return root
        _check_bracket(problem, bracket, tries[-1], x)
        root = None if problem.whole else _fit(problem, tries, bracket)
        enough = (
            root is not None and root.error * abs(root.slope) * problem.goal <= problem.accuracy and len(tries) >= 3
        )
        if root is not None and (enough or spent >= problem.members):
            if not enough:
                _give_up(problem, root)
            return root
        if last:
            raise ConvergenceError(
                f"{spent} members were not enough: the last try, {tries[-1].value:.6g}, has {tries[-1].mean:.4g} clusters on average "
                f"instead of {problem.goal:g}; give more (members=), or bounds (between=)"
            )
        planned = wholes.next_try(problem, tries) if problem.whole else None
        if planned is not None:
            x, members = planned
            continue
        members = _members(problem, tries)
        if root is None:
            x = _blind(problem, tries) if rising is None else _stride(problem, tries[-1], bracket, rising, stride)
            stride *= 1.5
        else:
            side = -side
            offset = 0.0 if len(tries) < 3 else side * OFFSET / max(abs(root.slope), OFFSET)
            x = root.x + offset
        x = problem.rounded(min(max(x, bracket[0]), bracket[1]))


def _check_bracket(problem: Problem, bracket: list[float], last: Try, x: float) -> None:
    """Raise where nothing is left between the ends of the bracket."""
    if bracket[0] == bracket[1]:
        raise _beyond(problem, last, at_top=x >= problem.high)
    if bracket[0] > bracket[1]:
        raise ConvergenceError(
            f"tries on both sides of {last.value:.6g} contradict each other: the mean number of clusters is not monotone in this "
            "knob; give narrower bounds: between=(low, high)"
        )


def _give_up(problem: Problem, root: Root) -> None:
    """Raise when what the members told is far from what was wanted; a somewhat wider interval is an answer."""
    error = root.error * abs(root.slope) * problem.goal
    if error > ENOUGH * problem.accuracy:
        raise ConvergenceError(
            f"{problem.members} members give the mean number of clusters to {error:.2g} only, and accuracy={problem.accuracy:g} was "
            f"asked for; give more members, or ask for less"
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
    bends = 0.0 if problem.law is not None else BEND * np.square([math.log(item.mean / problem.goal) for item in near])
    weights = 1.0 / (np.square([item.error / item.mean for item in near]) + np.square(bends))
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


def _law_slope(law: Callable[[float], float], x: float) -> float:
    return max(abs(law(x + 1e-3) - law(x - 1e-3)) / 2e-3, 1e-6)


def _secant(problem: Problem, tries: list[Try], bracket: list[float]) -> Root | None:
    """Between the nearest tries on either side; only a hint (its error is infinite) where the next try belongs."""
    found = sides(tries, problem.goal)
    if found is None:
        return None
    root = wholes.secant(problem, found, tries)
    return Root(min(max(root.x, bracket[0]), bracket[1]), math.inf, root.slope, tuple(tries))


def _root_of(function: Callable[[float], float], bracket: list[float]) -> float | None:
    """The zero of a monotone function in the bracket, or the end next to it when it is not far beyond; None elsewhere."""
    from scipy.optimize import brentq

    low, high = bracket
    ends = function(low), function(high)
    if ends[0] * ends[1] <= 0.0:
        found: float = brentq(function, low, high, xtol=1e-12)  # pyright: ignore[reportAssignmentType]
        return float(found)
    return None
