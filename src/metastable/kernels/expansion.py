"""What both engines know of a series before they sum one: how many terms it has, who is summed at once, and what is lost to rounding
where its terms are larger than what they add up to. No Numba here: asking costs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from metastable.errors import NumericalRangeError
from metastable.model import Attention, Full, Prefix

EPSILON = 2.0**-52

SERIES_TOLERANCE = 1e-12
"""Error of the velocity that a series must be able to reach where its terms cancel."""


def expected_modes(beta: float) -> float:
    """Modes that a series needs on the circle (degrees, on the sphere) for the default tolerance, to about ten percent."""
    return 8.0 + 7.4 * math.sqrt(abs(beta))


def truncated(
    coefficients: Callable[[np.ndarray], np.ndarray], beta: float, tolerance: float, limit: int, beyond: str
) -> tuple[int, np.ndarray]:
    """The number of terms whose neglected tail, in weight and in force, is below `tolerance`; and their coefficients, from 0 on.

    `coefficients` of the numbers l = 0, 1, ...; a force is the gradient over beta, at most l / beta times the term (Bernstein).
    """
    top = 64
    while True:
        number = np.arange(top)
        found = coefficients(number)
        size = found * np.maximum(1.0, number / beta)
        tail = np.cumsum(size[::-1])[::-1]
        terms = max(1, int(np.argmax(tail < tolerance)) - 1)
        if size[-1] < 1e-6 * tolerance and terms <= limit:
            return terms, found[: terms + 1]
        # Too many, or not a number: Bessel functions of huge beta.
        if not size[-1] >= 1e-6 * tolerance or top > limit:
            raise NumericalRangeError(f"a series for beta = {beta:g} would need {beyond}; use interaction='direct'")
        top *= 2


def whole(model: Attention, tokens: int) -> int:
    """How many tokens, from the first on, see one another wholly (but perhaps themselves): they are summed at once."""
    if isinstance(model.mask, Full):
        return tokens
    return min(model.mask.length, tokens) if isinstance(model.mask, Prefix) else 0


def frozen_share(model: Attention, tokens: int) -> float:
    """How much heavier than all tokens the frozen ones are together; at least one. Sums are rounded to what is in them."""
    if model.frozen is None:
        return 1.0
    mass = float(tokens) if model.masses is None else float(np.sum(np.asarray(model.masses)))
    return max(1.0, float(np.sum(np.asarray(model.frozen.weights))) / mass)


def too_much(loss: float, error: float) -> str | None:
    """The sentence about terms that are `loss` times larger than what they add up to, where that matters."""
    if loss <= 4.0 or error <= SERIES_TOLERANCE:
        return None
    return (
        f"would lose accuracy: the weights that a token of this model sees can be {loss:.1e} times smaller than the terms "
        f"of the series, which leaves an error of {error:.1e}"
    )
