"""Right-hand sides of several members at once, one per lane of the vectors: what the ensembles run on.

State and velocity hold `components` vectors per token: the angle on the circle, coordinates else. Lanes never mix, so a
member's numbers do not depend on who its neighbours are.

`kernel` compiles the one kernel that a problem needs and returns its address.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cpu import circle, general, series
from metastable.kernels.cpu.compiled import address_of, call_address, inner, vectors
from metastable.kernels.cpu.problem import CIRCLE, SERIES, Problem
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
def _series(problem, pace, y, scratch, out):
    """The walk along the tokens begins with the sums of the frozen ones, and of those who see one another wholly: they are summed
    first, and count as lying before everybody."""
    stretch = scratch.stretch
    directions(problem, problem.tokens, y, problem.dim == 2, stretch.x)
    series.start_sums(problem, stretch)
    if problem.whole > 0:
        store(stretch.before, 0, load(stretch.before, 0) + problem.whole_mass)
        call_address(stretch.add, problem, stretch, problem.whole)
    call_address(stretch.walk, problem, load(pace, 0), stretch, problem.whole, out)


def kernel(kind: int, problem: Any, scratch: Any) -> int:
    """Address of a kernel `(problem, pace, y, scratch, out)` for these types, to be called by `compiled.call_address`.

    It writes the velocities `out` at the states `y` of as many members as there are lanes; `pace` holds `rules.pace` of each.
    """
    numbers = np.zeros(1)
    chosen = _circle if kind == CIRCLE else _series if kind in SERIES else _general
    return address_of(chosen, problem, numbers, numbers, scratch, numbers)
