"""Gaps between saved states: where a token moved too far for a line, and what may be drawn there instead.

Without dense output nobody knows how a token went from one saved state to the next. Where it moved by no more than `moments.STRIDE`
a line shows it all the same; over a wider gap a solid line would be invented, with corners that the motion does not have. There the
saved states are marked by dots, and a dotted great-circle arc says no more than that they belong to one token.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from metastable.figures.moments import STRIDE

DOTTED = (0, (1.0, 2.2))
"""The line over a gap."""
MARK = 2.2
"""Size (points) of the dots at the saved states on both sides of a gap."""
HALF_WAY_ROUND = 1e-6
"""Opposite points, up to this angle, have no arc between them that is shorter than the others."""


def angles_between(states: np.ndarray) -> np.ndarray:
    """Angles (m - 1, tokens) that tokens moved by from each of `states` (m, tokens, dim) to the next; accurate near 0 and pi."""
    a, b = states[:-1], states[1:]
    return 2.0 * np.arctan2(np.linalg.norm(b - a, axis=2), np.linalg.norm(b + a, axis=2))


def with_arcs(states: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`states` (m, tokens, dim) with points of great-circle arcs between them, at most `STRIDE` apart.

    Returns points (M, tokens, dim), `far` (M - 1, tokens), True on pieces of a gap wider than `STRIDE`, and `lost`
    (M - 1, tokens), True where the two states are opposite, so that there is no arc to draw.
    """
    angles = angles_between(states)
    pieces = [states[:1]]
    parts = np.maximum(1, np.ceil(angles.max(axis=1, initial=0.0) / STRIDE).astype(int))
    for number, (angle, count) in enumerate(zip(angles, parts)):
        u = np.arange(1, count + 1)[:, None] / count
        whole = np.where(angle > 0, np.sin(angle), 1.0)
        whole = np.where(whole > 0, whole, 1.0)
        before = np.where(angle > 0, np.sin((1.0 - u) * angle) / whole, 1.0 - u)
        after = np.where(angle > 0, np.sin(u * angle) / whole, u)
        pieces.append(before[..., None] * states[number] + after[..., None] * states[number + 1])
        pieces[-1][-1] = states[number + 1]
    far = np.repeat(angles > STRIDE, parts, axis=0)
    lost = np.repeat(angles > np.pi - HALF_WAY_ROUND, parts, axis=0)
    return np.concatenate(pieces), far, lost


def beside_gaps(far: np.ndarray) -> np.ndarray:
    """Which moments (m, tokens) have a gap on either side: `far` (m - 1, tokens)."""
    edge = np.zeros((1, far.shape[1]), dtype=bool)
    return np.concatenate([far, edge]) | np.concatenate([edge, far])


def stretches(flags: np.ndarray) -> list[tuple[int, int, bool]]:
    """Unbroken stretches of equal `flags` (m - 1,) of the segments of a line: first and last point, and the flag."""
    if not len(flags):
        return []
    borders = np.concatenate([[0], np.flatnonzero(np.diff(flags)) + 1, [len(flags)]])
    return [(int(a), int(b), bool(flags[a])) for a, b in pairwise(borders)]


def note(count: int | None, far: bool, log: bool = False) -> str:
    """What a picture says of the `count` saved states that it is drawn from ("" where dense output has every moment).

    The first of them is at t = 0, which a logarithmic axis does not have.
    """
    if count is None:
        return ""
    told = f"{count - 1} saved states behind $t = 0$" if log else f"{count} saved states"
    return f"drawn from {told}" + (" (dots), which dotted lines only join" if far else "")
