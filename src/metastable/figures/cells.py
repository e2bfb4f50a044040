"""Cells of an axis: which scale its values have, where the cells around them end, and which of them holds a number."""

from __future__ import annotations

from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import InvalidInputError

DECADES_FOR_LOG = 0.75
"""Span of an axis from which on it may be logarithmic: 25, 50, 100, 200 are."""


def is_log(values: Any) -> bool:
    """True when positive values span more than a decade and are spaced more evenly in the logarithm."""
    array = np.sort(np.asarray(values, dtype=float))
    if array.size < 3 or array[0] <= 0 or np.log10(array[-1] / array[0]) < DECADES_FOR_LOG:
        return False
    steps, ratios = np.diff(array), np.diff(np.log(array))
    return bool(ratios.std() / ratios.mean() < steps.std() / steps.mean())


def cell_edges(centers: Any, log: bool = False) -> FloatArray:
    """Edges (m + 1,) of cells around `centers` (m,), which rise or fall: halfway between neighbours (in the logarithm, for `log`)."""
    array = np.log(np.asarray(centers, dtype=float)) if log else np.asarray(centers, dtype=float)
    steps = np.diff(array)
    if not ((steps > 0).all() or (steps < 0).all()):
        raise InvalidInputError(
            "the values of an axis must rise, or fall, from each to the next: there are no cells around others; sort them"
        )
    if array.size == 1:
        half = 0.5
        edges = np.array([array[0] - half, array[0] + half])
    else:
        middle = 0.5 * (array[1:] + array[:-1])
        edges = np.concatenate([[2 * array[0] - middle[0]], middle, [2 * array[-1] - middle[-1]]])
    return np.exp(edges) if log else edges
