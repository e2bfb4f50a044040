"""Curves through tries: log(mean/goal) as a function of x = log(knob), what it is known to, and where it is zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from metastable._checks import FloatArray
from metastable.control.tries import Problem, Try

BEND, LAW_BEND = 5.0, 3.0
"""By how much log(mean/goal) = d may be off a straight line through the root (off a line over the law, where there is one), over d^2.
A mean that falls to a floor has half its distance to the goal in such a bend, and a try there, however well it is known, says little
about the root."""
SLOPE_DOUBT = 0.3
"""Relative standard deviation of a law's slope before anything is measured."""


def bend_of(problem: Problem) -> float:
    """`BEND`, or `LAW_BEND` where the problem has a law."""
    return BEND if problem.law is None else LAW_BEND


@dataclass(frozen=True)
class Curve:
    """log(mean/goal) = law(x) + c0 + c1 (x - middle) + c2 (x - middle)^2 with the covariance of c; law(x) is zero where there is none.

    Lines have two coefficients.
    """

    law: Callable[[float], float]
    middle: float
    coefficients: FloatArray
    covariance: FloatArray

    def at(self, x: float) -> float:
        """log(mean/goal) at x."""
        return self.law(x) + float(self._row(x) @ self.coefficients)

    def slope(self, x: float) -> float:
        """Its derivative there."""
        step = 1e-4
        return (self.at(x + step) - self.at(x - step)) / (2.0 * step)

    def deviation(self, x: float) -> float:
        """Its standard error there."""
        return math.sqrt(float(self._row(x) @ self.covariance @ self._row(x)))

    def _row(self, x: float) -> FloatArray:
        return np.power(x - self.middle, np.arange(len(self.coefficients)), dtype=float)


def line(problem: Problem, near: Sequence[Try]) -> Curve:
    """The line (over the law) through tries, weighted by their errors and, without a law, by how far the mean may bend from there to
    the goal. Behind a law its slope is right to a third, unless tries say otherwise.
    """
    law, places, offsets = _read(problem, near)
    bends = 0.0 if problem.law is not None else BEND * np.square(offsets)
    weights = 1.0 / (np.square([item.error / item.mean for item in near]) + np.square(bends))
    middle = float(np.average(places, weights=weights))
    doubt = 0.0 if problem.law is None else 1.0 / (SLOPE_DOUBT * _law_slope(law, middle)) ** 2
    return _solved(law, middle, places, offsets, weights, np.array([0.0, doubt]), np.zeros(2))


def parabola(problem: Problem, tries: Sequence[Try], centre: float, known: Curve) -> Curve:
    """The parabola (over the law) through tries around `centre`.

    Its tilt there is that of the line `known`, from tries of others, and its bend is zero, each unless the tries say otherwise and
    within what it is known to (the bend: `bend_of` times the square of the slope): so what a bend may do to the root is in its error.
    """
    law, places, offsets = _read(problem, tries)
    weights = 1.0 / np.square([item.error / item.mean for item in tries])
    slope = max(abs(known.slope(centre)), 1e-6)
    spread = np.array([math.inf, math.sqrt(known.covariance[1, 1]), bend_of(problem) * slope**2])
    guess = np.array([0.0, known.coefficients[1], 0.0])
    return _solved(law, centre, places, offsets, weights, 1.0 / np.square(spread), guess)


def _read(problem: Problem, tries: Sequence[Try]) -> tuple[Callable[[float], float], FloatArray, FloatArray]:
    """The law, x of the tries, and log(mean/goal) over the law."""
    law = problem.law or (lambda x: 0.0)
    places = np.array([math.log(item.value) for item in tries])
    return law, places, np.array([math.log(item.mean / problem.goal) - law(x) for item, x in zip(tries, places)])


def _solved(
    law: Callable[[float], float],
    middle: float,
    places: FloatArray,
    offsets: FloatArray,
    weights: FloatArray,
    doubts: FloatArray,
    guess: FloatArray,
) -> Curve:
    """Weighted least squares, with coefficients that are `guess` to 1/sqrt(doubts) beforehand."""
    design = (places - middle)[:, None] ** np.arange(len(guess))
    covariance: FloatArray = np.asarray(
        np.linalg.inv(design.T @ (weights[:, None] * design) + np.diag(doubts)), dtype=float
    )
    return Curve(law, middle, covariance @ (design.T @ (weights * offsets) + doubts * guess), covariance)


def _law_slope(law: Callable[[float], float], x: float) -> float:
    return max(abs(law(x + 1e-3) - law(x - 1e-3)) / 2e-3, 1e-6)
