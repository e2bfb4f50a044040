"""A bracketed root search for means of random counts: `find`.

The mean count N is a smooth, monotone function of a knob, seen through the noise of members. On the scale x = log(knob) the
search fits

    log N(x) = f(x) + a + b (x - x0)

to all tries near the goal, weighted by their errors (and, where there is no law, by how far the mean may bend from there to the
goal): f is a law (zero where there is none), a and b its correction. Every try has members of its own, so all of them tell about
the root; new ones are spent a little to the left and a little to the right of it. Tries that are surely (three standard errors) on
one side of the goal bracket the root, and no later one leaves the bracket.

That is only where the root is looked for: each try is where those before it sent it, and the search ends when its numbers look good.
What is answered is then measured with members of its own, as many as was settled beforehand (`metastable.control.measuring`).
"""

from __future__ import annotations

import math

from metastable.control import measuring, wholes
from metastable.control.fitting import Curve, line
from metastable.control.tries import FIRST, MOST, MOST_TRIES, SURE, Problem, Record, Root, Try, beyond, near_goal, sides
from metastable.errors import ConvergenceError, GoalError

OFFSET = 0.02
"""|log(mean/goal)| at which tries beside the root are made: near enough for a line, far enough for its slope."""
LOCATED = 2.5
"""Times the accuracy that was asked for to which the root is located before it is measured."""
SHARE = 0.5
"""Part of the members after which a root that is known at all is measured with what is left."""
STRIDE = math.log(2.0)
"""Widest step in x without a bracket; it grows with every further one."""
BLIND = math.log(4.0)
"""Steps in x while the direction is not known."""
SHORTEST = 0.1
"""Shortest step in x without a bracket."""


def find(problem: Problem, record: Record) -> Root:
    """The root; `GoalError` where the goal is beyond the bounds, `ConvergenceError` where the members do not suffice."""
    bracket = [problem.low, problem.high]
    x, stride, side, members = problem.rounded(problem.first), STRIDE, 1.0, FIRST
    while True:
        tries = record.tried(x, members)
        rising = _direction(problem, tries)
        _narrow(bracket, problem, tries[-1], x, rising)
        last = record.left == 0 or len(tries) >= MOST_TRIES
        if problem.whole:
            # Two numbers next to each other may both be far from the goal, so there is no line to be fitted.
            found = wholes.neighbours(problem, tries, slack=measuring.ENOUGH if last else 1.0)
            if found is not None:
                return found
        _check_bracket(problem, bracket, tries[-1], x)
        curve = None if problem.whole else _line(problem, tries)
        root = None if problem.whole else _root(problem, tries, bracket, curve)
        if root is not None and curve is not None and _located(problem, record, root):
            return measuring.measured(problem, record, root, curve)
        if last:
            raise ConvergenceError(
                f"{record.spent} members were not enough: the last try, {tries[-1].value:.6g}, has {tries[-1].mean:.4g} clusters on "
                f"average instead of {problem.goal:g}; give more (members=), or bounds (between=)"
            )
        planned = wholes.next_try(problem, tries) if problem.whole else None
        if planned is not None:
            x, members = planned
            continue
        members = FIRST if curve is None else _members(problem, tries)
        if root is None:
            x = _blind(problem, tries) if rising is None else _stride(problem, tries[-1], bracket, rising, stride)
            stride *= 1.5
        else:
            side = -side
            offset = 0.0 if len(tries) < 3 else side * OFFSET / max(abs(root.slope), OFFSET)
            x = root.x + offset
        x = problem.rounded(min(max(x, bracket[0]), bracket[1]))


def _located(problem: Problem, record: Record, root: Root) -> bool:
    """True when a root is known well enough to be measured, or as well as there are members for."""
    if not math.isfinite(root.error):
        return False
    error = root.error * abs(root.slope) * problem.goal
    enough = error <= LOCATED * problem.accuracy and len(record.tries) >= 3
    return enough or record.spent >= SHARE * problem.members


def _check_bracket(problem: Problem, bracket: list[float], last: Try, x: float) -> None:
    """Raise where nothing is left between the ends of the bracket."""
    if bracket[0] == bracket[1]:
        raise beyond(problem, last, at_top=x >= problem.high)
    if bracket[0] > bracket[1]:
        raise ConvergenceError(
            f"tries on both sides of {last.value:.6g} contradict each other: the mean number of clusters is not monotone in this "
            "knob; give narrower bounds: between=(low, high)"
        )


def _members(problem: Problem, tries: list[Try]) -> int:
    """How many for the next try: few while the root is not in sight, then what is missing, in several portions."""
    near = near_goal(problem, tries)
    if not near:
        return FIRST
    variance = max(item.error**2 * item.members for item in near)
    known = sum(item.members for item in near)
    missing = 1.1 * variance / (LOCATED * problem.accuracy) ** 2 - known
    return int(min(max(missing / (3.0 if len(near) < 4 else 1.0), 0.2 * known, FIRST), MOST))


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
        raise beyond(problem, last, at_top=up)
    return x + (step if up else -step)


def _line(problem: Problem, tries: list[Try]) -> Curve | None:
    """The line (over the law) through the tries near the goal; None while they do not make one."""
    near = near_goal(problem, tries)
    if not near and problem.law is not None:
        near = [min(tries, key=lambda item: abs(math.log(item.mean / problem.goal)))]
    if not near or (problem.law is None and len({item.value for item in near}) < 2):
        return None
    return line(problem, near)


def _root(problem: Problem, tries: list[Try], bracket: list[float], curve: Curve | None) -> Root | None:
    """Where the line is zero; only a hint (its error is infinite) where no try is near; None while they do not say where it is."""
    if curve is None:
        return _secant(problem, tries, bracket)
    x = _zero(curve, bracket)
    if x is None:
        return None
    slope = curve.slope(x)
    error = curve.deviation(x) / max(abs(slope), 1e-12) if near_goal(problem, tries) else math.inf
    return Root(x, error, slope, tuple(tries))


def _secant(problem: Problem, tries: list[Try], bracket: list[float]) -> Root | None:
    """Between the nearest tries on either side; only a hint (its error is infinite) where the next try belongs."""
    found = sides(tries, problem.goal)
    if found is None:
        return None
    root = wholes.secant(problem, found, tries)
    return Root(min(max(root.x, bracket[0]), bracket[1]), math.inf, root.slope, tuple(tries))


def _zero(curve: Curve, bracket: list[float]) -> float | None:
    """The zero of a line in the bracket; None where there is none."""
    from scipy.optimize import brentq

    low, high = bracket
    if curve.at(low) * curve.at(high) > 0.0:
        return None
    found: float = brentq(curve.at, low, high, xtol=1e-12)  # pyright: ignore[reportAssignmentType]
    return float(found)
