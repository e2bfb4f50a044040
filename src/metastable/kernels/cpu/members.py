"""Right-hand sides of several members at once, one per lane of the vectors: what the ensembles run on.

State and velocity hold `components` vectors per token: the angle on the circle, coordinates else. Lanes never mix, so a
member's numbers do not depend on who its neighbours are.

`kernel(problem)` compiles the one kernel that a problem needs and returns its address.
"""

from __future__ import annotations

import numpy as np

from metastable.kernels import fourier, harmonics
from metastable.kernels.cpu import circle, general
from metastable.kernels.cpu.compiled import address_of, compiled, inner
from metastable.kernels.cpu.problem import (
    CIRCLE,
    CIRCLE_SERIES,
    GENERAL,
    MATRIX_SERIES,
    SPHERE_SERIES,
    SQUARE_ROOT,
    TILES,
    UNIT_SPEED,
    Problem,
)
from metastable.kernels.cpu.vector import LANES, fill, load, root, sincos, store, where


@compiled
def sums_size(problem):
    """Vectors of prefix sums that a series keeps (`rise` has one entry per harmonic, and one in all on the circle)."""
    return 2 * max(problem.rise.size, problem.modes + 1)


@compiled
def work_size(problem):
    """Numbers of scratch memory for `evaluate`."""
    vectors = problem.tokens * (problem.dim + 2) + 3 * problem.dim + 2 + sums_size(problem) + problem.modes + 4
    return vectors * LANES


@inner
def clear_sums(problem, sums):
    """Zero in every sum."""
    for i in range(sums_size(problem)):
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
def matrix_velocity(problem, time, x, y, mean_x, mean_y):
    """Angular velocity from the mean position that a token sees: the part of V mean across the token, scaled by the norm."""
    v = problem.value
    rest = problem.rest
    below = problem.wide
    gap_x = mean_x - x
    gap_y = mean_y - y
    drift_x = (v[0] * gap_x + v[below] * gap_y) + (rest[0] * x + rest[below] * y)
    drift_y = (v[1] * gap_x + v[below + 1] * gap_y) + (rest[1] * x + rest[below + 1] * y)
    spin = drift_y * x - drift_x * y
    if problem.scaling == SQUARE_ROOT:
        spin = spin / root(time + 1.0)
    elif problem.scaling == UNIT_SPEED:
        a = v[0] * mean_x + v[below] * mean_y
        b = v[1] * mean_x + v[below + 1] * mean_y
        square = a * a + b * b
        spin = spin * (problem.alpha / where(square, root(square), fill(1.0)))
    return spin


@inner
def _damp(problem, time, out):
    """Divide the velocities by sqrt(t + 1) where the norm asks for it."""
    if problem.scaling == SQUARE_ROOT:
        factor = 1.0 / root(load(time, 0) + 1.0)
        for i in range(problem.tokens * problem.components):
            store(out, i * LANES, load(out, i * LANES) * factor)


@inner
def _circle(problem, time, y, work, out):
    size = problem.tokens * LANES
    to_directions(problem, y, work, True)
    circle.members(problem, work[:size], work[size : 2 * size], out)
    _damp(problem, time, out)


@inner
def _circle_series(problem, time, y, work, out):
    size = problem.tokens * LANES
    before = work[2 * size : 2 * size + LANES]
    sums = work[2 * size + LANES :]
    to_directions(problem, y, work, True)
    start_sums(problem, before, sums)
    fourier.circle_stretch(problem, work[:size], work[size : 2 * size], problem.tokens, before, sums, out)
    _damp(problem, time, out)


@inner
def _matrix_series(problem, time, y, work, out):
    size = problem.tokens * LANES
    cosine = work[:size]
    sine = work[size : 2 * size]
    mean_x = work[2 * size : 3 * size]
    mean_y = work[3 * size : 4 * size]
    before = work[4 * size : 4 * size + LANES]
    table = work[4 * size + LANES :]
    sums = table[(problem.modes + 3) * LANES :]
    to_directions(problem, y, work, True)
    start_sums(problem, before, sums)
    fourier.matrix_stretch(problem, cosine, sine, problem.tokens, before, sums, table, mean_x, mean_y)
    now = load(time, 0)
    for k in range(problem.tokens):
        at = k * LANES
        store(
            out, at, matrix_velocity(problem, now, load(cosine, at), load(sine, at), load(mean_x, at), load(mean_y, at))
        )


@inner
def _sphere_series(problem, time, y, work, out):
    size = problem.tokens * problem.dim * LANES
    sums = work[size:]
    to_directions(problem, y, work, False)
    clear_sums(problem, sums)
    harmonics.sphere_stretch(problem, work, problem.tokens, sums, out)
    _damp(problem, time, out)


@inner
def _general(problem, time, y, work, out):
    size = problem.tokens * problem.dim * LANES
    to_directions(problem, y, work, False)
    general.members(problem, time, work[:size], work[size:], out)


_KERNELS = {
    CIRCLE: _circle,
    GENERAL: _general,
    TILES: _general,
    CIRCLE_SERIES: _circle_series,
    MATRIX_SERIES: _matrix_series,
    SPHERE_SERIES: _sphere_series,
}


def kernel(problem: Problem) -> int:
    """Address of the kernel `(problem, time, y, work, out)` for this problem, to be called by `compiled.call_members`.

    It writes the velocities `out` at the states `y` of as many members as there are lanes; `time` holds the time of each, and
    `work` is scratch of
    `work_size(problem)` numbers.
    """
    numbers = np.zeros(1)
    return address_of(_KERNELS[problem.kind], problem, numbers, numbers, numbers, numbers)
