"""Right-hand sides of several members at once, one per lane of the vectors: what the ensembles run on.

State and velocity hold `components` vectors per token: the angle on the circle, coordinates else. Lanes never mix, so a
member's numbers do not depend on who its neighbours are.

`kernel(problem)` compiles the one kernel that a problem needs and returns its address.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels import fourier, harmonics
from metastable.kernels.cpu import circle, general
from metastable.kernels.cpu.compiled import address_of, aligned_array, inner
from metastable.kernels.cpu.problem import (
    CIRCLE,
    CIRCLE_SERIES,
    GENERAL,
    MATRIX_SERIES,
    SPHERE_SERIES,
    TILES,
    Problem,
)
from metastable.kernels.cpu.rules import norm_factor
from metastable.kernels.cpu.vector import LANES, fill, load, root, sincos, store


class Scratch(NamedTuple):
    """Memory for the kernels, in whole vectors: unit tokens `x` (dim per token), the `mean` position that each token sees (2 per
    token), what lies `before` (one), prefix `sums`, a `table` of Bessel functions, and a `row` (3 dim)."""

    x: FloatArray
    mean: FloatArray
    before: FloatArray
    sums: FloatArray
    table: FloatArray
    row: FloatArray


def make_scratch(problem: Problem) -> Scratch:
    """Memory for as many members as there are lanes."""
    tokens, dim = problem.tokens, problem.dim
    means = 2 * tokens if problem.kind == MATRIX_SERIES else 1
    vectors = (tokens * dim, means, 1, problem.sums, problem.modes + 3, 3 * dim)
    return Scratch(*(aligned_array(count * LANES) for count in vectors))


@inner
def clear_sums(problem, sums):
    """Zero in every sum."""
    for i in range(problem.sums):
        store(sums, i * LANES, fill(0.0))


@inner
def start_sums(problem, before, sums):
    """Sums of the frozen tokens (zero without any) in every lane, and their weight into `before` (a vector)."""
    width = problem.mass.size
    clear_sums(problem, sums)
    mass = 0.0
    for j in range(problem.frozen_count):
        mass += problem.mass[j]
        x = problem.frozen[j]
        y = problem.frozen[width + j]
        c, s = x, y
        for m in range(1, problem.modes + 1):
            factor = problem.mass[j] * problem.weight[m]
            place = 2 * LANES * (m - 1)
            store(sums, place, load(sums, place) + factor * c)
            store(sums, place + LANES, load(sums, place + LANES) + factor * s)
            c, s = c * x - s * y, c * y + s * x
    store(before, 0, fill(mass))


@inner
def to_directions(problem, y, x, planes):
    """Unit tokens from the state. `planes` True: coordinates apart (x[a tokens + k]), else together (x[k dim + a])."""
    tokens = problem.tokens
    dim = problem.dim
    if problem.components == 1:
        sine_at = tokens if planes else 1
        step = 1 if planes else 2
        for k in range(tokens):
            s, c = sincos(load(y, k * LANES))
            store(x, k * step * LANES, c)
            store(x, (k * step + sine_at) * LANES, s)
        return
    for k in range(tokens):
        square = fill(0.0)
        for a in range(dim):
            component = load(y, (k * dim + a) * LANES)
            square = square + component * component
        inverse = 1.0 / root(square)
        for a in range(dim):
            place = a * tokens + k if planes else k * dim + a
            store(x, place * LANES, load(y, (k * dim + a) * LANES) * inverse)


@inner
def matrix_velocity(problem, pace, x, y, mean_x, mean_y):
    """Angular velocity from the mean position that a token sees: the part of V mean across the token, scaled by the norm."""
    v = problem.value
    rest = problem.rest
    below = problem.wide
    gap_x = mean_x - x
    gap_y = mean_y - y
    drift_x = (v[0] * gap_x + v[below] * gap_y) + (rest[0] * x + rest[below] * y)
    drift_y = (v[1] * gap_x + v[below + 1] * gap_y) + (rest[1] * x + rest[below + 1] * y)
    spin = drift_y * x - drift_x * y
    along_x = v[0] * mean_x + v[below] * mean_y
    along_y = v[1] * mean_x + v[below + 1] * mean_y
    return spin * norm_factor(problem, pace, along_x * along_x + along_y * along_y)


@inner
def _scale(problem, pace, out):
    """Velocities at the norm's pace, where that is not one."""
    if problem.amplitude != 1.0 or problem.decay != 0.0:
        factor = load(pace, 0)
        for i in range(problem.tokens * problem.components):
            store(out, i * LANES, load(out, i * LANES) * factor)


@inner
def _circle(problem, pace, y, scratch, out):
    size = problem.tokens * LANES
    to_directions(problem, y, scratch.x, True)
    circle.members(problem, scratch.x[:size], scratch.x[size:], out)
    _scale(problem, pace, out)


@inner
def _circle_series(problem, pace, y, scratch, out):
    size = problem.tokens * LANES
    to_directions(problem, y, scratch.x, True)
    start_sums(problem, scratch.before, scratch.sums)
    cosine, sine = scratch.x[:size], scratch.x[size:]
    fourier.circle_stretch(problem, cosine, sine, problem.tokens, scratch.before, scratch.sums, out)
    _scale(problem, pace, out)


@inner
def _matrix_series(problem, pace, y, scratch, out):
    size = problem.tokens * LANES
    to_directions(problem, y, scratch.x, True)
    start_sums(problem, scratch.before, scratch.sums)
    fourier.matrix_stretch(
        problem, scratch.x, problem.tokens, scratch.before, scratch.sums, scratch.table, scratch.mean
    )
    matrix_velocities(problem, load(pace, 0), scratch.x, scratch.mean, size, out)


@inner
def matrix_velocities(problem, pace, x, mean, size, out):
    """Angular velocities of the tokens `x` (two planes of `size` numbers) with the means that they see."""
    for at in range(0, size, LANES):
        own_x, own_y = load(x, at), load(x, size + at)
        store(out, at, matrix_velocity(problem, pace, own_x, own_y, load(mean, at), load(mean, size + at)))


@inner
def _sphere_series(problem, pace, y, scratch, out):
    to_directions(problem, y, scratch.x, False)
    clear_sums(problem, scratch.sums)
    harmonics.sphere_stretch(problem, scratch.x, problem.tokens, scratch.sums, out)
    _scale(problem, pace, out)


@inner
def _general(problem, pace, y, scratch, out):
    to_directions(problem, y, scratch.x, False)
    general.members(problem, pace, scratch.x, scratch.row, out)


_KERNELS = {
    CIRCLE: _circle,
    GENERAL: _general,
    TILES: _general,
    CIRCLE_SERIES: _circle_series,
    MATRIX_SERIES: _matrix_series,
    SPHERE_SERIES: _sphere_series,
}


def kernel(kind: int, problem: Any, scratch: Any) -> int:
    """Address of a kernel `(problem, pace, y, scratch, out)` for these types, to be called by `compiled.call_members`.

    It writes the velocities `out` at the states `y` of as many members as there are lanes; `pace` holds `rules.pace` of each.
    """
    numbers = np.zeros(1)
    return address_of(_KERNELS[kind], problem, numbers, numbers, scratch, numbers)
