"""Right-hand sides of several members at once, one per lane of the vectors: what the ensembles run on.

State and velocity hold `components` vectors per token: the angle on the circle, coordinates else. Lanes never mix, so a
member's numbers do not depend on who its neighbours are.

`kernel` compiles the one kernel that a problem needs and returns its address.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels import fourier, harmonics
from metastable.kernels.cpu import circle, general, series
from metastable.kernels.cpu.compiled import address_of, inner, vectors
from metastable.kernels.cpu.problem import (
    CIRCLE,
    CIRCLE_SERIES,
    CIRCLE_TOTAL,
    GENERAL,
    MATRIX_SERIES,
    MATRIX_TOTAL,
    SPHERE_SERIES,
    SPHERE_TOTAL,
    TILES,
    Problem,
)
from metastable.kernels.cpu.series import Stretch, directions
from metastable.kernels.cpu.vector import LANES, load, store


class Scratch(NamedTuple):
    """Memory for the kernels: that of a series, with the unit tokens `stretch.x`; and for one row of direct sums (dim vectors each)
    the query, the sum of differences and the drift."""

    stretch: Stretch
    query: FloatArray
    difference: FloatArray
    drift: FloatArray


def make_scratch(problem: Problem) -> Scratch:
    """Memory for as many members as there are lanes."""
    masses = np.repeat(problem.masses[:, None], LANES, axis=1)
    return Scratch(series.make_stretch(problem, masses), *(vectors(problem.dim) for _ in range(3)))


@inner
def _circle(problem, pace, y, scratch, out):
    directions(problem, problem.tokens, y, True, scratch.stretch.x)
    circle.members(problem, scratch.stretch.x, out)
    series.scale(problem, load(pace, 0), problem.tokens, out)


@inner
def _general(problem, pace, y, scratch, out):
    directions(problem, problem.tokens, y, False, scratch.stretch.x)
    general.members(problem, load(pace, 0), scratch.stretch.x, scratch, out)


@inner
def _series(walk, planes, problem, pace, y, stretch, out):
    """Series under a causal mask: the walk along the tokens begins with the sums of the frozen ones."""
    directions(problem, problem.tokens, y, planes, stretch.x)
    series.start_sums(problem, stretch)
    walk(problem, load(pace, 0), stretch, 0, out)


@inner
def _total(add_stretch, walk, planes, problem, pace, y, stretch, out):
    """The same where some see one another wholly: they are summed first, and count as lying before everybody."""
    directions(problem, problem.tokens, y, planes, stretch.x)
    series.start_sums(problem, stretch)
    store(stretch.before, 0, load(stretch.before, 0) + problem.whole_mass)
    add_stretch(problem, stretch, problem.whole)
    walk(problem, load(pace, 0), stretch, problem.whole, out)


@inner
def _circle_series(problem, pace, y, scratch, out):
    _series(series.circle_walk, True, problem, pace, y, scratch.stretch, out)


@inner
def _matrix_series(problem, pace, y, scratch, out):
    _series(series.matrix_walk, True, problem, pace, y, scratch.stretch, out)


@inner
def _sphere_series(problem, pace, y, scratch, out):
    _series(series.sphere_walk, False, problem, pace, y, scratch.stretch, out)


@inner
def _circle_total(problem, pace, y, scratch, out):
    _total(fourier.add_stretch, series.circle_total_walk, True, problem, pace, y, scratch.stretch, out)


@inner
def _matrix_total(problem, pace, y, scratch, out):
    _total(fourier.add_stretch, series.matrix_walk, True, problem, pace, y, scratch.stretch, out)


@inner
def _sphere_total(problem, pace, y, scratch, out):
    _total(harmonics.add_stretch, series.sphere_total_walk, False, problem, pace, y, scratch.stretch, out)


_KERNELS = {
    CIRCLE: _circle,
    GENERAL: _general,
    TILES: _general,
    CIRCLE_SERIES: _circle_series,
    MATRIX_SERIES: _matrix_series,
    SPHERE_SERIES: _sphere_series,
    CIRCLE_TOTAL: _circle_total,
    MATRIX_TOTAL: _matrix_total,
    SPHERE_TOTAL: _sphere_total,
}


def kernel(kind: int, problem: Any, scratch: Any) -> int:
    """Address of a kernel `(problem, pace, y, scratch, out)` for these types, to be called by `compiled.call_address`.

    It writes the velocities `out` at the states `y` of as many members as there are lanes; `pace` holds `rules.pace` of each.
    """
    numbers = np.zeros(1)
    return address_of(_KERNELS[kind], problem, numbers, numbers, scratch, numbers)
