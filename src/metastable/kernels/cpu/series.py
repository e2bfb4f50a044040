"""What series share, whether lanes hold members or stretches of one sequence: their memory, and the walk along the tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels import fourier, harmonics
from metastable.kernels.cpu.compiled import address_of, inner, vectors
from metastable.kernels.cpu.memory import line_type, reference_type
from metastable.kernels.cpu.problem import CIRCLE_SERIES, MATRIX_SERIES, SPHERE_SERIES, Problem
from metastable.kernels.cpu.rules import norm_factor
from metastable.kernels.cpu.vector import LANES, VECTOR, fill, load, root, sincos, store


class Stretch(NamedTuple):
    """Memory of a series, in whole vectors: `length` unit tokens `x` to a lane (on the circle all cosines, then all sines;
    else dim vectors per token) and the `mass` of each (zero where there is no token), the weight of what lies `before`
    the first (one vector) and the `sums` over it, a `table` of Bessel functions, and room for results, `mean` (as x).

    `add` and `walk` are addresses of the two functions that the series of a kind has (see `WALKS`).
    """

    length: int
    add: int
    walk: int
    x: FloatArray
    mass: FloatArray
    before: FloatArray
    sums: FloatArray
    table: FloatArray
    mean: FloatArray


def make_stretch(problem: Problem, masses: FloatArray) -> Stretch:
    """Memory for stretches of tokens with these masses, (length, lanes); or for groups of such stretches, (groups, length,
    lanes), with a line of every array for each."""
    *groups, length, _ = masses.shape
    lines = groups[0] if groups else None
    mass = vectors(length, lines)
    np.copyto(mass[..., : length * LANES], masses.reshape(*groups, -1))
    sizes = (1, problem.sums, problem.modes + 3, length * problem.dim)
    x, others = vectors(length * problem.dim, lines), (vectors(size, lines) for size in sizes)
    stretch = Stretch(length, 0, 0, x, mass, *others)
    if problem.kind not in WALKS:
        return stretch
    (add, *walks), given, memory = WALKS[problem.kind], reference_type(problem), reference_type(stretch)
    if groups:
        memory = line_type(memory)
    return stretch._replace(
        # Whoever walks from the first token on adds nobody beforehand.
        add=address_of(add, given, memory, 0) if groups or problem.whole else 0,
        walk=address_of(walks[problem.whole > 0], given, VECTOR, memory, 0, np.zeros(1)),
    )


@inner
def unit_tokens(problem, length, y, planes, x):
    """Unit tokens, `length` to a lane. `planes` True: coordinates apart (x[a length + k]), else together as in y (x[k dim + a])."""
    dim = problem.dim
    for k in range(length):
        square = fill(0.0)
        for a in range(dim):
            component = load(y, (k * dim + a) * LANES)
            square = square + component * component
        inverse = 1.0 / root(square)
        for a in range(dim):
            place = a * length + k if planes else k * dim + a
            store(x, place * LANES, load(y, (k * dim + a) * LANES) * inverse)


@inner
def directions(problem, length, y, planes, x):
    """`unit_tokens` from states in their chart."""
    if problem.components > 1:
        unit_tokens(problem, length, y, planes, x)
        return
    for k in range(length):
        s, c = sincos(load(y, k * LANES))
        store(x, (k if planes else 2 * k) * LANES, c)
        store(x, (length + k if planes else 2 * k + 1) * LANES, s)


@inner
def clear_sums(problem, sums):
    """Zero in every sum."""
    for i in range(problem.sums):
        store(sums, i * LANES, fill(0.0))


@inner
def start_sums(problem, stretch):
    """Sums of the frozen tokens (zero without any) in every lane, and their weight into `before`."""
    for i in range(problem.sums):
        store(stretch.sums, i * LANES, fill(problem.frozen_sums[i]))
    store(stretch.before, 0, fill(problem.frozen_mass))


@inner
def scale(problem, pace, count, out):
    """So many vectors of velocities at the norm's pace, where that is not one."""
    if problem.amplitude != 1.0 or problem.decay != 0.0:
        for i in range(0, count * LANES, LANES):
            store(out, i, load(out, i) * pace)


@inner
def circle_walk(problem, pace, stretch, whole, out):
    """Angular velocities of the tokens of each lane, for Q = K = V = I; `whole` is zero."""
    fourier.circle_stretch(problem, stretch, whole, out)
    scale(problem, pace, stretch.length, out)


@inner
def circle_total_walk(problem, pace, stretch, whole, out):
    """The same where the first `whole` tokens of each lane see one another wholly: they are in the sums and in `before`."""
    fourier.circle_total(problem, stretch, whole, out)
    if whole < stretch.length:
        fourier.circle_stretch(problem, stretch, whole, out)
    scale(problem, pace, stretch.length, out)


@inner
def matrix_walk(problem, pace, stretch, whole, out):
    """Angular velocities of the tokens of each lane: the part across each of V times the mean position that it sees, scaled by the
    norm. (`out` may be the memory of the means.) `whole` as above."""
    fourier.matrix_stretch(problem, stretch, whole)
    v, rest, below = problem.value, problem.rest, problem.wide
    size = stretch.length * LANES
    for at in range(0, size, LANES):
        x, y = load(stretch.x, at), load(stretch.x, size + at)
        mean_x, mean_y = load(stretch.mean, at), load(stretch.mean, size + at)
        gap_x, gap_y = mean_x - x, mean_y - y
        drift_x = (v[0] * gap_x + v[below] * gap_y) + (rest[0] * x + rest[below] * y)
        drift_y = (v[1] * gap_x + v[below + 1] * gap_y) + (rest[1] * x + rest[below + 1] * y)
        along_x = v[0] * mean_x + v[below] * mean_y
        along_y = v[1] * mean_x + v[below + 1] * mean_y
        factor = norm_factor(problem, pace, along_x * along_x + along_y * along_y)
        store(out, at, (drift_y * x - drift_x * y) * factor)


@inner
def sphere_walk(problem, pace, stretch, whole, out):
    """Velocities of the tokens of each lane on the sphere; `whole` is zero."""
    harmonics.walk(problem, stretch, 0, stretch.length, True, out)
    scale(problem, pace, 3 * stretch.length, out)


@inner
def sphere_total_walk(problem, pace, stretch, whole, out):
    """The same where the first `whole` tokens of each lane see one another wholly."""
    harmonics.walk(problem, stretch, 0, whole, None, out)
    if whole < stretch.length:
        harmonics.walk(problem, stretch, whole, stretch.length, True, out)
    scale(problem, pace, 3 * stretch.length, out)


WALKS = {
    CIRCLE_SERIES: (fourier.add_stretch, circle_walk, circle_total_walk),
    MATRIX_SERIES: (fourier.add_stretch, matrix_walk, matrix_walk),
    SPHERE_SERIES: (harmonics.add_stretch, sphere_walk, sphere_total_walk),
}
"""Kind of series -> what adds the first tokens of each lane to the sums, `(problem, stretch, last)`; and what walks along the tokens
and makes their velocities, `(problem, pace, stretch, whole, out)`: under a causal mask, and where some tokens see one another wholly
(in code of its own, so that nobody compiles what he does not need)."""
