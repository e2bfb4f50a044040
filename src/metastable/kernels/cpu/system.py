"""Right-hand side of one system, its tokens shared among threads.

The work is cut into pieces that depend on the number of tokens only, and every piece writes numbers of its own: results are
the same, bit for bit, for any number of threads. Direct sums are cut into rows (an early and a late block together, so that
the triangle is balanced); series into stretches of the sequence, eight to a vector, summed first and then walked through.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import prange

from metastable._checks import FloatArray
from metastable.kernels import fourier, harmonics
from metastable.kernels.cpu import circle, general, tiles
from metastable.kernels.cpu.compiled import address_of, aligned_array, call_piece, compiled, inlined, inner, parallel
from metastable.kernels.cpu.fastmath import sincos as sincos_scalar
from metastable.kernels.cpu.members import clear_sums, matrix_velocity, start_sums, sums_size
from metastable.kernels.cpu.problem import (
    CIRCLE,
    CIRCLE_SERIES,
    GENERAL,
    MATRIX_SERIES,
    SERIES,
    SPHERE_SERIES,
    SQUARE_ROOT,
    TILES,
    Problem,
)
from metastable.kernels.cpu.vector import LANES, fill, load, root, sincos, store

PIECES_LIMIT = 32
"""Pieces of the work of direct sums at the most, and rows per piece aimed at."""
PIECE = 64

STRETCH = 256
"""Tokens per stretch aimed at, and the most groups of eight stretches."""
GROUPS_LIMIT = 64

FIRST, SECOND = range(2)
"""Phases of an evaluation."""

PARALLEL_WORK = 400_000
"""Pairs (or tokens times modes) from which threads pay."""


class Buffers(NamedTuple):
    """Memory for `evaluate`. `x`: unit tokens, coordinates first in rows of `stride`; `tiles` has layouts of its own
    for `x` and `points`."""

    pieces: int
    stride: int
    groups: int
    length: int
    x: FloatArray
    points: FloatArray
    lane_x: FloatArray
    lane_out: FloatArray
    table: FloatArray
    sums: FloatArray
    before: FloatArray
    scratch: FloatArray


def allocate(problem: Problem) -> Buffers:
    """Memory for one system."""
    tokens, dim = problem.tokens, problem.dim
    empty = aligned_array(LANES)
    if problem.kind in SERIES:
        groups = int(np.clip(tokens // (LANES * STRETCH), 1, GROUPS_LIMIT))
        length = -(-tokens // (LANES * groups))
        vectors = groups * length
        sphere = problem.kind == SPHERE_SERIES
        table = groups * (problem.modes + 4) * LANES if problem.kind == MATRIX_SERIES else LANES
        return Buffers(
            pieces=groups,
            stride=0,
            groups=groups,
            length=length,
            x=empty,
            points=empty,
            lane_x=aligned_array(vectors * dim * LANES),
            lane_out=aligned_array(vectors * (3 if sphere else 2) * LANES),
            table=aligned_array(table),
            sums=aligned_array((groups + 1) * int(sums_size(problem)) * LANES),
            before=aligned_array((groups + 1) * LANES),
            scratch=empty,
        )
    stride = (tokens // LANES + 3) * LANES
    wide = problem.wide
    pieces = int(np.clip(tokens // PIECE, 1, PIECES_LIMIT))
    return Buffers(
        pieces=pieces,
        stride=stride,
        groups=0,
        length=0,
        x=aligned_array(dim * stride),
        points=aligned_array(tokens * wide) if problem.kind == TILES else empty,
        lane_x=empty,
        lane_out=empty,
        table=empty,
        sums=empty,
        before=empty,
        scratch=aligned_array(pieces * scratch_size(problem)),
    )


def scratch_size(problem: Problem) -> int:
    """Numbers of scratch memory per piece, in whole vectors."""
    size = (
        int(tiles.work_size(problem.dim, problem.wide))
        if problem.kind == TILES
        else 4 * problem.wide + LANES * problem.dim
    )
    return -(-size // LANES) * LANES


def pays(problem: Problem) -> bool:
    """True when the work is enough to be shared among threads."""
    if problem.kind in SERIES:
        return problem.tokens * max(problem.modes, problem.rise.size) > PARALLEL_WORK
    pairs = float((problem.intervals[:, :, 1] - problem.intervals[:, :, 0]).sum())
    return pairs * problem.beta.size * max(1.0, problem.dim / 8) > PARALLEL_WORK


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
def _tile_rows(problem, time, buffers, piece, first, last, out):
    size = buffers.scratch.size // buffers.pieces
    scratch = buffers.scratch[piece * size : (piece + 1) * size]
    tiles.rows(problem, time, buffers.x, buffers.points, first, last, scratch, out)


@inlined
def _general_rows(problem, time, buffers, piece, first, last, out):
    size = buffers.scratch.size // buffers.pieces
    scratch = buffers.scratch[piece * size : (piece + 1) * size]
    for k in range(first, last):
        general.row(problem, time, buffers.x, buffers.stride, k, scratch, out)


@inlined
def _circle_rows(problem, time, buffers, piece, first, last, out):
    stride = buffers.stride
    cosine = buffers.x[:stride]
    sine = buffers.x[stride : 2 * stride]
    factor = 1.0 / math.sqrt(time + 1.0) if problem.scaling == SQUARE_ROOT else 1.0
    for k in range(first, last):
        _write_spin(problem, k, cosine[k], sine[k], factor * circle.row(problem, cosine, sine, k), out)


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
    """Unit tokens of eight stretches into lanes; tokens beyond the last are filled up (they come last and move nobody)."""
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
    width = problem.dim * buffers.length * LANES
    x = buffers.lane_x[group * width : (group + 1) * width]
    room = sums_size(problem) * LANES
    sums = buffers.sums[group * room : (group + 1) * room]
    _gather(problem, y, buffers, group, x)
    size = buffers.length * LANES
    clear_sums(problem, sums)
    fourier.add_stretch(problem.weight, problem.modes, x[:size], x[size:], buffers.length, sums)


@inner
def _sphere_sums(problem, y, buffers, group):
    width = problem.dim * buffers.length * LANES
    x = buffers.lane_x[group * width : (group + 1) * width]
    room = sums_size(problem) * LANES
    sums = buffers.sums[group * room : (group + 1) * room]
    _gather(problem, y, buffers, group, x)
    clear_sums(problem, sums)
    harmonics.add_stretch(problem, x, buffers.length, sums)


@inner
def _accumulate(problem, buffers):
    """Turn the sums of each stretch into the sums of all before it (frozen tokens first)."""
    vectors = sums_size(problem)
    size = vectors * LANES
    groups = buffers.groups
    sums = buffers.sums
    base = sums[groups * size :]
    start_sums(problem, buffers.before[groups * LANES :], base)
    mass = buffers.before[groups * LANES]
    for group in range(groups):
        for lane in range(LANES):
            buffers.before[group * LANES + lane] = mass + (group * LANES + lane) * buffers.length
            for i in range(vectors):
                at = group * size + i * LANES + lane
                stretch = sums[at]
                sums[at] = base[i * LANES]
                base[i * LANES] += stretch


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
def _circle_walk(problem, time, buffers, group, out):
    length = buffers.length
    size = length * LANES
    width = problem.dim * buffers.length * LANES
    x = buffers.lane_x[group * width : (group + 1) * width]
    room = sums_size(problem) * LANES
    sums = buffers.sums[group * room : (group + 1) * room]
    spins = buffers.lane_out[group * width : (group + 1) * width]
    before = buffers.before[group * LANES : (group + 1) * LANES]
    fourier.circle_stretch(problem, x[:size], x[size:], length, before, sums, spins)
    factor = 1.0 / math.sqrt(time + 1.0) if problem.scaling == SQUARE_ROOT else 1.0
    _write_spins(problem, buffers, group, x, factor, spins, out)


@inner
def _matrix_walk(problem, time, buffers, group, out):
    length = buffers.length
    size = length * LANES
    width = problem.dim * buffers.length * LANES
    x = buffers.lane_x[group * width : (group + 1) * width]
    room = sums_size(problem) * LANES
    sums = buffers.sums[group * room : (group + 1) * room]
    mean = buffers.lane_out[group * width : (group + 1) * width]
    before = buffers.before[group * LANES : (group + 1) * LANES]
    table = buffers.table[group * (problem.modes + 4) * LANES :]
    fourier.matrix_stretch(problem, x[:size], x[size:], length, before, sums, table, mean[:size], mean[size:])
    now = fill(time)
    for i in range(length):
        at = i * LANES
        spin = matrix_velocity(problem, now, load(x, at), load(x, size + at), load(mean, at), load(mean, size + at))
        store(mean, at, spin)
    _write_spins(problem, buffers, group, x, 1.0, mean, out)


@inner
def _sphere_walk(problem, time, buffers, group, out):
    length = buffers.length
    width = problem.dim * buffers.length * LANES
    x = buffers.lane_x[group * width : (group + 1) * width]
    room = sums_size(problem) * LANES
    sums = buffers.sums[group * room : (group + 1) * room]
    result = buffers.lane_out[group * width : (group + 1) * width]
    harmonics.sphere_stretch(problem, x, length, sums, result)
    factor = 1.0 / math.sqrt(time + 1.0) if problem.scaling == SQUARE_ROOT else 1.0
    for lane in range(LANES):
        for i in range(length):
            k = (group * LANES + lane) * length + i
            if problem.first <= k < problem.tokens:
                for a in range(3):
                    out[3 * k + a] = factor * result[(3 * i + a) * LANES + lane]


# -------------------------------------------------------------------------------------------------------- evaluation


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
def _circle_piece(phase, piece, problem, time, y, buffers, out):
    if phase == FIRST:
        first, last = _share(problem.tokens, buffers, piece)
        _directions(problem, y, buffers, first, last)
        return
    for half in range(2):
        first, last = _block(problem, buffers, piece, half)
        _circle_rows(problem, time, buffers, piece, first, last, out)


@inner
def _general_piece(phase, piece, problem, time, y, buffers, out):
    if phase == FIRST:
        first, last = _share(problem.tokens, buffers, piece)
        _directions(problem, y, buffers, first, last)
        return
    for half in range(2):
        first, last = _block(problem, buffers, piece, half)
        _general_rows(problem, time, buffers, piece, first, last, out)


@inner
def _tile_piece(phase, piece, problem, time, y, buffers, out):
    if phase == FIRST:
        first, last = _share(problem.tokens, buffers, piece)
        _tile_directions(problem, y, buffers, first, last)
        return
    for half in range(2):
        first, last = _block(problem, buffers, piece, half)
        _tile_rows(problem, time, buffers, piece, first, last, out)


@inner
def _circle_series_piece(phase, piece, problem, time, y, buffers, out):
    if phase == FIRST:
        _circle_sums(problem, y, buffers, piece)
    else:
        _circle_walk(problem, time, buffers, piece, out)


@inner
def _matrix_series_piece(phase, piece, problem, time, y, buffers, out):
    if phase == FIRST:
        _circle_sums(problem, y, buffers, piece)
    else:
        _matrix_walk(problem, time, buffers, piece, out)


@inner
def _sphere_series_piece(phase, piece, problem, time, y, buffers, out):
    if phase == FIRST:
        _sphere_sums(problem, y, buffers, piece)
    else:
        _sphere_walk(problem, time, buffers, piece, out)


_KERNELS = {
    CIRCLE: _circle_piece,
    GENERAL: _general_piece,
    TILES: _tile_piece,
    CIRCLE_SERIES: _circle_series_piece,
    MATRIX_SERIES: _matrix_series_piece,
    SPHERE_SERIES: _sphere_series_piece,
}


def kernel(problem: Problem, buffers: Buffers) -> int:
    """Address of the kernel for this problem, the first argument of `evaluate`."""
    numbers = np.zeros(1)
    return address_of(_KERNELS[problem.kind], 0, 0, problem, 0.0, numbers, buffers, numbers)


@parallel
def _phase_parallel(kernel, phase, pieces, problem, time, y, buffers, out):
    for piece in prange(pieces):
        call_piece(kernel, phase, np.int64(piece), problem, time, y, buffers, out)


@compiled
def evaluate(kernel, problem, time, y, buffers, out, threads):
    """Velocity `out` at the state `y` of one system, both flat with `components` numbers per token; `threads`: use them.

    Entries of `out` for tokens below `problem.first` are left alone. Direct sums: directions, then rows. Series: sums of the
    stretches, sums of all before each stretch, then the walk through them.
    """
    series = buffers.groups > 0
    pieces = buffers.pieces
    for phase in range(2):
        # Directions cost too little for threads.
        if threads and (series or phase == SECOND or problem.tokens > 20_000):
            _phase_parallel(kernel, phase, pieces, problem, time, y, buffers, out)
        else:
            for piece in range(pieces):
                call_piece(kernel, phase, piece, problem, time, y, buffers, out)
        if series and phase == FIRST:
            _accumulate(problem, buffers)
