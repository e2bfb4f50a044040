"""Series of one system: the sequence cut into stretches, a group of them (one per lane) to a piece of the work.

Tokens that see one another wholly come first and have groups of their own, which all get the same total; the others walk along prefix
sums. There is one kernel of each kind, as in `system`.
"""

from __future__ import annotations

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels import fourier, harmonics
from metastable.kernels.cpu import series
from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.memory import line_of
from metastable.kernels.cpu.problem import (
    CIRCLE_SERIES,
    CIRCLE_TOTAL,
    MATRIX_SERIES,
    MATRIX_TOTAL,
    SPHERE_SERIES,
    SPHERE_TOTAL,
    Problem,
)
from metastable.kernels.cpu.rules import write_spin
from metastable.kernels.cpu.vector import LANES, fill, load, store, total

FIRST, BETWEEN, SECOND = range(3)
"""Phases of the evaluation of one system; the one between is for series, and has one piece."""

STRETCH = 256
"""Tokens per stretch aimed at, and the most groups of stretches (one per lane)."""
GROUPS_LIMIT = 64


def cut(problem: Problem) -> tuple[int, int, FloatArray]:
    """How a series is cut: groups of stretches, those of tokens that see one another wholly, and the mass of the token at each place
    (groups, length, lanes), zero where there is none."""
    tokens, whole = problem.tokens, problem.whole
    aim = int(np.clip(tokens // (LANES * STRETCH), 1, GROUPS_LIMIT))
    length = -(-tokens // (LANES * aim))
    heads, tails = -(-whole // (LANES * length)), -(-(tokens - whole) // (LANES * length))
    room = LANES * length
    masses = np.zeros((heads + tails + 1) * room)
    masses[:whole] = problem.masses[:whole]
    masses[heads * room : heads * room + tokens - whole] = problem.masses[whole:]
    return heads + tails, heads, masses.reshape(-1, LANES, length).transpose(0, 2, 1)


@inlined
def _range(problem, buffers, group):
    """The first token of a group of stretches, and where its tokens end."""
    if group < buffers.heads:
        return group * LANES * buffers.stretch.length, problem.whole
    return problem.whole + (group - buffers.heads) * LANES * buffers.stretch.length, problem.tokens


@inner
def _gather(problem, buffers, y, group, stretch):
    """Unit tokens of a group of stretches into lanes, filled up beyond the last token (what has no mass moves nobody); no sums."""
    components = problem.components
    first, end = _range(problem, buffers, group)
    # Lanes inside: what is written lies together, and what is read are as many streams as there are lanes.
    for i in range(stretch.length):
        for lane in range(LANES):
            k = first + lane * stretch.length + i
            for a in range(components):
                value = y[k * components + a] if k < end else (1.0 if a == 0 else 0.0)
                stretch.mean[(i * components + a) * LANES + lane] = value
    series.directions(problem, stretch.length, stretch.mean, problem.dim == 2, stretch.x)
    series.clear_sums(problem, stretch.sums)


@inner
def _share_total(problem, buffers, start):
    """Those who see one another wholly: the sums of all of them for each."""
    if buffers.heads == 0:
        return
    for group in range(buffers.heads):
        stretch = line_of(buffers.stretch, group)
        for i in range(problem.sums):
            start.sums[i * LANES] += total(load(stretch.sums, i * LANES))
    store(start.before, 0, load(start.before, 0) + problem.whole_mass)
    for group in range(buffers.heads):
        stretch = line_of(buffers.stretch, group)
        store(stretch.before, 0, load(start.before, 0))
        for i in range(problem.sums):
            store(stretch.sums, i * LANES, fill(start.sums[i * LANES]))


@inner
def _accumulate(problem, buffers):
    """Turn the sums of each stretch into the sums of all before it (frozen tokens first)."""
    start = line_of(buffers.stretch, buffers.pieces)
    series.start_sums(problem, start)
    _share_total(problem, buffers, start)
    mass = start.before[0]
    for group in range(buffers.heads, buffers.pieces):
        stretch = line_of(buffers.stretch, group)
        for lane in range(LANES):
            stretch.before[lane] = mass + ((group - buffers.heads) * LANES + lane) * stretch.length
            for i in range(problem.sums):
                at = i * LANES + lane
                own = stretch.sums[at]
                stretch.sums[at] = start.sums[i * LANES]
                start.sums[i * LANES] += own


@inner
def _scatter(problem, buffers, group, stretch, out):
    """Velocities of a group of stretches, which stand in `mean`, to their tokens."""
    length = stretch.length
    first, end = _range(problem, buffers, group)
    for i in range(length):
        for lane in range(LANES):
            k = first + lane * length + i
            if problem.first <= k < end:
                at = i * LANES + lane
                if problem.dim == 2:
                    write_spin(problem, k, stretch.x[at], stretch.x[length * LANES + at], stretch.mean[at], out)
                else:
                    for a in range(3):
                        out[3 * k + a] = stretch.mean[(3 * i + a) * LANES + lane]


@inner
def _do_piece(add_stretch, walk, phase, piece, system, pace, y, out):
    """What all series have in common: sums over the stretches of a group, sums over those before each one, then the walk along them."""
    problem, buffers = system.problem, system.buffers
    stretch = line_of(buffers.stretch, piece)
    if phase == FIRST:
        _gather(problem, buffers, y, piece, stretch)
        add_stretch(problem, stretch, stretch.length)
    elif phase == BETWEEN:
        _accumulate(problem, buffers)
    else:
        # Tokens of a lane see one another wholly: all or none.
        whole = stretch.length if piece < buffers.heads else 0
        walk(problem, fill(pace), stretch, whole, stretch.mean)
        _scatter(problem, buffers, piece, stretch, out)


# One function for each kind: one that is made by a function would be a new type in every process, which Numba's cache on disk would
# never find again. (Nor does it keep code that hands on a function by a global name; by that of its module it may be.)


@inner
def _circle_series_piece(phase, piece, system, pace, y, out):
    _do_piece(fourier.add_stretch, series.circle_walk, phase, piece, system, pace, y, out)


@inner
def _matrix_piece(phase, piece, system, pace, y, out):
    _do_piece(fourier.add_stretch, series.matrix_walk, phase, piece, system, pace, y, out)


@inner
def _sphere_series_piece(phase, piece, system, pace, y, out):
    _do_piece(harmonics.add_stretch, series.sphere_walk, phase, piece, system, pace, y, out)


@inner
def _circle_total_piece(phase, piece, system, pace, y, out):
    _do_piece(fourier.add_stretch, series.circle_total_walk, phase, piece, system, pace, y, out)


@inner
def _sphere_total_piece(phase, piece, system, pace, y, out):
    _do_piece(harmonics.add_stretch, series.sphere_total_walk, phase, piece, system, pace, y, out)


KERNELS = {
    CIRCLE_SERIES: _circle_series_piece,
    MATRIX_SERIES: _matrix_piece,
    SPHERE_SERIES: _sphere_series_piece,
    CIRCLE_TOTAL: _circle_total_piece,
    MATRIX_TOTAL: _matrix_piece,
    SPHERE_TOTAL: _sphere_total_piece,
}
"""Kind of problem -> kernel."""
