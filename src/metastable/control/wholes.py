"""Whole-numbered knobs: which number has the mean that is nearest to the goal.

There is no line through means a number apart, which may be far from one another. So the search ends at two neighbours: one has fewer
clusters than the goal, the other one more, and the nearer of them is counted until its mean is known.
"""

from __future__ import annotations

import math

from metastable.control.tries import FIRST, MOST, SURE, Problem, Root, Try, nearest, sides


def neighbours(problem: Problem, tries: list[Try], *, slack: float = 1.0) -> Root | None:
    """The root between two neighbouring numbers, where it is settled that it is there; None elsewhere.

    Settled: the mean that is nearest to the goal is known to the accuracy (times `slack`), and it is the goal, or both are on their
    sides for sure, and which one is nearer is sure or known as well as asked for.
    """
    found, best = sides(tries, problem.goal), nearest(tries, problem.goal)
    if best.error > slack * problem.accuracy:
        return None
    # Where nothing more can be spent, a mean that may be the goal is one.
    hit = _hit(problem, best, 0.0 if slack == 1.0 else 2.0)
    if found is None:
        return Root(math.log(best.value), math.inf, 0.0, tuple(tries)) if hit else None
    apart = not _between(problem, *found) and _chosen(problem, *found, slack * problem.accuracy)
    return secant(problem, found, tries) if apart or hit else None


def secant(problem: Problem, found: tuple[Try, Try], tries: list[Try]) -> Root:
    """Where the line between two tries on either side of the goal has it."""
    a, b = found
    slope = math.log(b.mean / a.mean) / (math.log(b.value) - math.log(a.value))
    return Root(math.log(a.value) + math.log(problem.goal / a.mean) / slope, math.inf, slope, tuple(tries))


def next_try(problem: Problem, tries: list[Try]) -> tuple[float, int] | None:
    """Where (x) and with how many members to go on; None while all tries are on one side of the goal, and far from it."""
    found, best = sides(tries, problem.goal), nearest(tries, problem.goal)
    if found is None:
        if _sure(problem, best):
            return None
        item = best
    else:
        inside = _between(problem, *found)
        # A number that may be the goal is looked at first, then those between.
        if inside and (_sure(problem, best) or best.error <= problem.accuracy):
            wish = secant(problem, found, tries).x
            return min(inside, key=lambda x: abs(x - wish)), FIRST
        # Known already, and not the goal: then the other one is not known well enough to be the further one.
        item = best if inside or best.error > problem.accuracy else max(found, key=lambda one: one.error)
    wanted = min(problem.accuracy, 0.5 * item.error)
    missing = 1.1 * item.members * ((item.error / wanted) ** 2 - 1.0)
    return math.log(item.value), int(min(max(missing, FIRST), MOST))


def _hit(problem: Problem, item: Try, doubt: float) -> bool:
    """True when a mean is the goal, as well as asked for (or may be, within `doubt` standard errors)."""
    return abs(item.mean - problem.goal) <= problem.accuracy + doubt * item.error


def _sure(problem: Problem, item: Try) -> bool:
    return abs(item.mean - problem.goal) > SURE * item.error


def _chosen(problem: Problem, one: Try, other: Try, accuracy: float) -> bool:
    """True when it is clear which of two tries on either side of the goal is the nearer one."""
    if max(one.error, other.error) <= accuracy:
        return True
    differs = abs(one.mean - problem.goal) - abs(other.mean - problem.goal)
    return _sure(problem, one) and _sure(problem, other) and abs(differs) > SURE * math.hypot(one.error, other.error)


def _between(problem: Problem, one: Try, other: Try) -> list[float]:
    """Values x of the knob strictly between two tries, those around their secant too; none for neighbours."""
    low, high = sorted((one.value, other.value))
    if high - low < 1.5:
        return []
    there = math.exp(secant(problem, (one, other), []).x)
    values = (low + 1.0, math.floor(there), math.ceil(there), high - 1.0)
    return sorted({problem.rounded(math.log(min(max(value, low + 1.0), high - 1.0))) for value in values})
