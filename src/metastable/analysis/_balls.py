"""The one comparison that decides whether two tokens are near each other.

Distances are compared through squared chords |x - y|^2 = 4 sin^2(d/2), summed over the coordinates in order: cheap, exact
to rounding at any distance, and the same number in every implementation (brute force, tree, test).

A tie at exactly the radius is decided by mathematics, not by rounding: chords within `TIE_TOLERANCE` of the radius count as
equal to it. So a token at distance delta from a center is not further away than delta (it is rejected as a center), and two
tokens at distance `radius` are not closer than `radius` (they are not linked).
"""

from __future__ import annotations

import math

TIE_TOLERANCE = 1e-14
"""Chords that differ by less are equal. Unit vectors in double precision are known to a few 1e-16."""


def within_or_at(radius: float, tie_tolerance: float = TIE_TOLERANCE) -> float:
    """Threshold b such that d(x, y) <= radius exactly when |x - y|^2 <= b (infinite from radius pi on)."""
    if radius >= math.pi:
        return math.inf
    return (2.0 * math.sin(0.5 * radius) + tie_tolerance) ** 2


def closer_than(radius: float, tie_tolerance: float = TIE_TOLERANCE) -> float:
    """Threshold b such that d(x, y) < radius exactly when |x - y|^2 <= b."""
    if radius > math.pi:
        return math.inf
    chord = 2.0 * math.sin(0.5 * radius)
    # For radii near the tolerance itself a thousandth of the radius is plenty; duplicates stay linked at any radius.
    return max(0.0, chord - min(tie_tolerance, 1e-3 * chord)) ** 2
