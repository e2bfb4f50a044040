"""The arithmetic of one explicit step on flat arrays of whole vectors, driven by a tableau.

The vectors hold members of an ensemble, one to a lane, each with a step size of its own; or they run along one system, and all
lanes of `h` are equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate.tableau import Tableau
from metastable.kernels.cpu.compiled import aligned_array, inlined, inner
from metastable.kernels.cpu.vector import LANES, fill, load, spread, store


class Method(NamedTuple):
    """A `Tableau` as compiled code reads it: weights `a` (stages, stages), nodes `c`, weights of the error estimate, and of the
    dense output (stages, powers)."""

    a: FloatArray
    c: FloatArray
    error: FloatArray
    dense: FloatArray


class Step(NamedTuple):
    """Memory of a step: state `y`, new state, stages `k` (stages, size), all in whole vectors; `h` a vector of step sizes."""

    y: FloatArray
    new: FloatArray
    k: FloatArray
    h: FloatArray


def method_of(tableau: Tableau) -> Method:
    """The arrays of a tableau."""
    return Method(*(np.ascontiguousarray(part) for part in (tableau.a, tableau.c, tableau.error, tableau.dense)))


def make_step(stages: int, entries: int) -> Step:
    """Memory for so many stages of a state of so many numbers, zeros behind them up to a whole vector."""
    size = -(-entries // LANES) * LANES
    return Step(aligned_array(size), aligned_array(size), aligned_array(stages, size), aligned_array(LANES))


@inlined
def weighted(k, weights, count, i):
    """sum_{j < count} weights_j k_j, the vector at i; at least one stage."""
    result = spread(weights, 0) * load(k[0], i)
    for j in range(1, count):
        result = result + spread(weights, j) * load(k[j], i)
    return result


@inner
def stage_state(step, weights, count, first, last):
    """`new` = y + h sum_{j < count} weights_j k_j, entries first..last."""
    h = load(step.h, 0)
    for i in range(first, last, LANES):
        if count == 0:
            store(step.new, i, load(step.y, i))
        else:
            store(step.new, i, load(step.y, i) + h * weighted(step.k, weights, count, i))


@inner
def square_sum(step, weights, h, first, last):
    """Sum over the entries first..last of (h sum_j weights_j k_j)^2, in each lane."""
    result = fill(0.0)
    for i in range(first, last, LANES):
        value = h * weighted(step.k, weights, weights.size, i)
        result = result + value * value
    return result
