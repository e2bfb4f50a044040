"""The pieces that the work on one system is cut into, one function per kernel.

A piece `(phase, piece, system, pace, y, out)` does its share of one of two phases and writes numbers of its own. Direct
sums: directions of the tokens, then rows (an early and a late block together, so that the triangle is balanced). Series: sums of
stretches of the sequence, one per lane, then the walk through them.
"""

from __future__ import annotations

import math

from metastable.kernels import fourier, harmonics
from metastable.kernels.cpu import circle, general, tiles
from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.fastmath import sincos as sincos_scalar
from metastable.kernels.cpu.members import clear_sums, matrix_velocities
from metastable.kernels.cpu.problem import (
    CIRCLE,
    CIRCLE_SERIES,
    GENERAL,
    MATRIX_SERIES,
    SPHERE_SERIES,
    TILES,
)
from metastable.kernels.cpu.vector import LANES, fill, load, root, sincos, store

FIRST, SECOND = range(2)
"""Phases of an evaluation."""


# ---------------------------------------------------------------------------------------------------- direct sums


@inlined
def _directions(problem, y, buffers, first, last):
    """Unit tokens first..last from the state, coordinates first."""
    dim = problem.dim
    stride = buffers.stride
    x = buffers.x
    for k in range(first, last):
        if problem.components == 1:
            s, c = sincos_scalar(y[k])
            x[k] = c
            x[stride + k] = s
        else:
            square = 0.0
            for a in range(dim):
                square += y[k * dim + a] * y[k * dim + a]
            inverse = 1.0 / math.sqrt(square)
            for a in range(dim):
                x[a * stride + k] = y[k * dim + a] * inverse


@inlined
def _tile_directions(problem, y, buffers, first, last):
    """Unit tokens first..last from the state, in the two layouts of `tiles`."""
    dim = problem.dim
    for k in range(first, last):
        square = 0.0
        for a in range(dim):
            square += y[k * dim + a] * y[k * dim + a]
        inverse = 1.0 / math.sqrt(square)
        panel = k // LANES * dim * LANES + k % LANES
        for a in range(dim):
            value = y[k * dim + a] * inverse
            buffers.points[(a // LANES * problem.tokens + k) * LANES + a % LANES] = value
            buffers.x[panel + a * LANES] = value


@inlined
def _write_spin(problem, k, c, s, spin, out):
    """The velocity of a token on the circle that turns with angular velocity `spin`."""
    if problem.components == 1:
        out[k] = spin
    else:
        out[2 * k] = -s * spin
        out[2 * k + 1] = c * spin


# ----------------------------------------------------------------------------------------------------------- series


@inner
def _gather(problem, y, buffers, group, x):
    """Unit tokens of a group of stretches into lanes, filled up beyond the last token (what comes last moves nobody)."""
    tokens = problem.tokens
    length = buffers.length
    dim = problem.dim
    components = problem.components
    planes = dim == 2
    for i in range(length):
        for lane in range(LANES):
            k = (group * LANES + lane) * length + i
            for a in range(components):
                value = y[k * components + a] if k < tokens else (1.0 if a == 0 else 0.0)
                x[((a * length + i) if planes else (i * dim + a)) * LANES + lane] = value
    for i in range(length):
        if components == 1:
            s, c = sincos(load(x, i * LANES))
            store(x, i * LANES, c)
            store(x, (length + i) * LANES, s)
        else:
            square = fill(0.0)
            for a in range(dim):
                component = load(x, ((a * length + i) if planes else (i * dim + a)) * LANES)
                square = square + component * component
            inverse = 1.0 / root(square)
            for a in range(dim):
                place = ((a * length + i) if planes else (i * dim + a)) * LANES
                store(x, place, load(x, place) * inverse)


@inner
def _circle_sums(problem, y, buffers, group):
    x, sums = buffers.lane_x[group], buffers.sums[group]
    size = buffers.length * LANES
    _gather(problem, y, buffers, group, x)
    clear_sums(problem, sums)
    fourier.add_stretch(problem.weight, problem.modes, x[:size], x[size:], buffers.length, sums)


@inner
def _sphere_sums(problem, y, buffers, group):
    x, sums = buffers.lane_x[group], buffers.sums[group]
    _gather(problem, y, buffers, group, x)
    clear_sums(problem, sums)
    harmonics.add_stretch(problem, x, buffers.length, sums)


@inner
def _write_spins(problem, buffers, group, x, factor, spins, out):
    """Scatter the angular velocities of one group."""
    length = buffers.length
    for lane in range(LANES):
        for i in range(length):
            k = (group * LANES + lane) * length + i
            if problem.first <= k < problem.tokens:
                at = i * LANES + lane
                _write_spin(problem, k, x[at], x[length * LANES + at], factor * spins[at], out)


@inner
def _circle_walk(problem, pace, buffers, group, out):
    x, spins = buffers.lane_x[group], buffers.lane_out[group]
    size = buffers.length * LANES
    cosine, sine = x[:size], x[size:]
    fourier.circle_stretch(problem, cosine, sine, buffers.length, buffers.before[group], buffers.sums[group], spins)
    _write_spins(problem, buffers, group, x, pace, spins, out)


@inner
def _matrix_walk(problem, pace, buffers, group, out):
    x, mean, length = buffers.lane_x[group], buffers.lane_out[group], buffers.length
    before, sums = buffers.before[group], buffers.sums[group]
    fourier.matrix_stretch(problem, x, length, before, sums, buffers.table[group], mean)
    # Each velocity takes the place of the mean that it came from.
    matrix_velocities(problem, fill(pace), x, mean, length * LANES, mean)
    _write_spins(problem, buffers, group, x, 1.0, mean, out)


@inner
def _sphere_walk(problem, pace, buffers, group, out):
    length, result = buffers.length, buffers.lane_out[group]
    harmonics.sphere_stretch(problem, buffers.lane_x[group], length, buffers.sums[group], result)
    for lane in range(LANES):
        for i in range(length):
            k = (group * LANES + lane) * length + i
            if problem.first <= k < problem.tokens:
                for a in range(3):
                    out[3 * k + a] = pace * result[(3 * i + a) * LANES + lane]


# -------------------------------------------------------------------------------------------------------- evaluation
#
# The three direct sums are written out: a function that is handed its rows as an argument is a new type in every process, which
# Numba's cache on disk would never find again.


@inlined
def _block(problem, buffers, piece, half):
    """Rows of a piece, first and last: an early block (half 0) and the late one that makes up for it."""
    blocks = 2 * buffers.pieces
    block = piece if half == 0 else blocks - 1 - piece
    rows = problem.tokens - problem.first
    return problem.first + rows * block // blocks, problem.first + rows * (block + 1) // blocks


@inlined
def _share(tokens, buffers, piece):
    """Tokens of a piece where all cost the same: first, last."""
    return tokens * piece // buffers.pieces, tokens * (piece + 1) // buffers.pieces


@inner
def _circle_piece(phase, piece, system, pace, y, out):
    problem, buffers = system.problem, system.buffers
    if phase == FIRST:
        first, last = _share(problem.tokens, buffers, piece)
        _directions(problem, y, buffers, first, last)
        return
    for half in range(2):
        first, last = _block(problem, buffers, piece, half)
        stride = buffers.stride
        cosine, sine = buffers.x[:stride], buffers.x[stride:]
        for k in range(first, last):
            _write_spin(problem, k, cosine[k], sine[k], pace * circle.row(problem, cosine, sine, k), out)


@inner
def _general_piece(phase, piece, system, pace, y, out):
    problem, buffers = system.problem, system.buffers
    if phase == FIRST:
        first, last = _share(problem.tokens, buffers, piece)
        _directions(problem, y, buffers, first, last)
        return
    for half in range(2):
        first, last = _block(problem, buffers, piece, half)
        for k in range(first, last):
            general.row(problem, pace, buffers.x, buffers.stride, k, buffers.scratch[piece], out)


@inner
def _tile_piece(phase, piece, system, pace, y, out):
    problem, buffers = system.problem, system.buffers
    if phase == FIRST:
        first, last = _share(problem.tokens, buffers, piece)
        _tile_directions(problem, y, buffers, first, last)
        return
    for half in range(2):
        first, last = _block(problem, buffers, piece, half)
        tiles.rows(problem, pace, buffers.x, buffers.points, first, last, buffers.scratch[piece], out)


@inner
def _circle_series_piece(phase, piece, system, pace, y, out):
    problem, buffers = system.problem, system.buffers
    if phase == FIRST:
        _circle_sums(problem, y, buffers, piece)
    else:
        _circle_walk(problem, pace, buffers, piece, out)


@inner
def _matrix_series_piece(phase, piece, system, pace, y, out):
    problem, buffers = system.problem, system.buffers
    if phase == FIRST:
        _circle_sums(problem, y, buffers, piece)
    else:
        _matrix_walk(problem, pace, buffers, piece, out)


@inner
def _sphere_series_piece(phase, piece, system, pace, y, out):
    problem, buffers = system.problem, system.buffers
    if phase == FIRST:
        _sphere_sums(problem, y, buffers, piece)
    else:
        _sphere_walk(problem, pace, buffers, piece, out)


KERNELS = {
    CIRCLE: _circle_piece,
    GENERAL: _general_piece,
    TILES: _tile_piece,
    CIRCLE_SERIES: _circle_series_piece,
    MATRIX_SERIES: _matrix_series_piece,
    SPHERE_SERIES: _sphere_series_piece,
}
