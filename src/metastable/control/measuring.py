"""The root of a mean, measured where a search has located it.

A search is sent about by its own draws and ends when they look good, so its tries are no fair sample of the root. These are: two
places, a little to the left and a little to the right of where the search ended, settled before the first of their members is drawn,
and so is the number of members, from the variance that the search has seen. The root is that of a parabola through both. Its tilt is
helped by what the search knew (other draws), its bend is unknown within `fitting.bend_of`; the places are so near that what it may do
is a third of the accuracy asked for.

Where the error comes out larger than was asked for, members are added around the root as it is known then.
"""

from __future__ import annotations

import math

from metastable.control.fitting import Curve, bend_of, parabola
from metastable.control.tries import FIRST, MOST, SURE, Problem, Record, Root, Try, beyond, near_goal, pooled
from metastable.errors import ConvergenceError

BENT = 0.3
"""Part of the accuracy that a bend between the places may be."""
WIDEST = 0.05
"""|log(mean/goal)| at which the places are at most."""
MARGIN = 1.15
"""Members over those that the variance asks for: the tilt is not known either."""
ENOUGH = 5.0
"""Times the accuracy that was asked for up to which an error is an answer when the members are spent."""
REACH = 4.0
"""Times the distance of the places (or the error of the search) up to which the root is looked for around them."""


def measured(problem: Problem, record: Record, located: Root, known: Curve) -> Root:
    """The root near `located`, whose line is `known`, from members of its own."""
    centre, begin, wanted = located.x, len(record.tries), _wanted(problem, record)
    members = wanted
    while True:
        places = _places(problem, centre, known)
        _spend(record, places, members)
        own = record.tries[begin:]
        curve = parabola(problem, pooled(own), centre, known)
        x, sure = _zero(curve, centre, max(places[1] - places[0], located.error))
        error = curve.deviation(x) * problem.goal if sure else math.inf
        if error <= problem.accuracy or record.left == 0:
            return _answer(problem, record, curve, x, error)
        inside = min(max(x, problem.low), problem.high)
        if inside != x and abs(curve.at(inside)) > SURE * curve.deviation(inside) and inside in places:
            raise beyond(problem, _outermost(record, x > inside), at_top=x > inside)
        centre = inside
        # Around the root, what is known counts as members that are there already.
        members = max(math.ceil(wanted * (1.0 - (problem.accuracy / error) ** 2)), FIRST)


def _outermost(record: Record, at_top: bool) -> Try:
    """The try with the largest or the smallest value."""
    return (max if at_top else min)(record.tries, key=lambda item: item.value)


def _wanted(problem: Problem, record: Record) -> int:
    """Members for the accuracy, from the variance that tries near the goal have; refused where there are far too few."""
    near = near_goal(problem, record.tries) or record.tries[-1:]
    variance = sum(item.error**2 * item.members**2 for item in near) / sum(item.members for item in near)
    wanted = MARGIN * variance / problem.accuracy / problem.accuracy
    if record.left == 0 or wanted > ENOUGH**2 * record.left:
        raise ConvergenceError(
            f"accuracy={problem.accuracy:g} takes about {wanted:.2g} members, and {record.left} of {problem.members} are left; give "
            "more (members=), or ask for less"
        )
    return max(math.ceil(wanted), FIRST)


def _places(problem: Problem, centre: float, known: Curve) -> tuple[float, float]:
    """Left and right of the centre, within the bounds."""
    distance = min(math.sqrt(BENT * problem.accuracy / problem.goal / bend_of(problem)), WIDEST)
    distance /= max(abs(known.slope(centre)), distance)
    return max(centre - distance, problem.low), min(centre + distance, problem.high)


def _spend(record: Record, places: tuple[float, float], members: int) -> None:
    """So many members (or those that are left), the same number at both places, in portions that take turns."""
    members = min(members, record.left)
    portions = max(1, math.ceil(members / 2 / MOST))
    for x in places * portions:
        if record.left:
            record.tried(x, math.ceil(members / 2 / portions))


def _zero(curve: Curve, centre: float, reach: float) -> tuple[float, bool]:
    """The zero of the curve next to the centre, and True; or False and the end of the reach where it would be further off."""
    x = centre
    for _ in range(20):
        step = -curve.at(x) / (curve.slope(x) or math.inf)
        x += step
        if not abs(x - centre) <= REACH * reach:
            return centre + math.copysign(REACH * reach, x - centre), False
        if abs(step) <= 1e-12:
            break
    return x, True


def _answer(problem: Problem, record: Record, curve: Curve, x: float, error: float) -> Root:
    """The root; refused where it is known far too badly, or beyond a bound by more than its error."""
    if not error <= ENOUGH * problem.accuracy:
        raise ConvergenceError(
            f"{problem.members} members give the mean number of clusters to {error:.2g} only, and accuracy={problem.accuracy:g} was "
            f"asked for; give more members, or ask for less"
        )
    inside = min(max(x, problem.low), problem.high)
    if abs(curve.at(inside)) > 2.0 * curve.deviation(inside) + problem.accuracy / problem.goal:
        raise beyond(problem, _outermost(record, x >= problem.high), at_top=x >= problem.high)
    slope = curve.slope(inside)
    return Root(inside, curve.deviation(inside) / max(abs(slope), 1e-12), slope, tuple(record.tries))
