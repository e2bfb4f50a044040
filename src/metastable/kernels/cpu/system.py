"""Right-hand side of one system, its tokens shared among threads.

The work is cut into pieces that depend on the number of tokens only, and every piece writes numbers of its own: results are the
same, bit for bit, for any number of threads. There is one kernel of each kind, a function `(phase, piece, system, pace, y, out)`:

- direct sums: directions of the tokens, then rows (an early and a late block together, so that the triangle is balanced);
- series: sums of stretches of the sequence, one per lane; sums of all before each stretch (not a piece); then the walk along them
  (`stretches`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import prange

from metastable._checks import FloatArray
from metastable.kernels.cpu import circle, general, stretches, tiles
from metastable.kernels.cpu.compiled import address_of, call_address, compiled, inlined, inner, parallel, vectors
from metastable.kernels.cpu.fastmath import sincos
from metastable.kernels.cpu.memory import line_of, reference_type
from metastable.kernels.cpu.problem import CIRCLE, GENERAL, SERIES, TILES, Problem
from metastable.kernels.cpu.rules import inverse_length, pace, write_spin
from metastable.kernels.cpu.series import Stretch, make_stretch
from metastable.kernels.cpu.stretches import BETWEEN, FIRST, SECOND
from metastable.kernels.cpu.vector import LANES

PIECES_LIMIT = 32
"""Pieces of the work of direct sums at the most, and rows per piece aimed at."""
PIECE = 64

PARALLEL_WORK = 400_000
"""Pairs (or tokens times modes) from which threads pay."""


class Buffers(NamedTuple):
    """Memory for `evaluate`, a line for each of the `pieces`.

    Direct sums: unit tokens `x`, coordinates first in rows of `stride`, and memory for a `row`; or `tile`, with layouts of its own
    for the tokens (`x` and `points`). Series: a group of stretches to a piece, and one more line for the beginning; the first `heads`
    groups hold the tokens that see one another wholly, and begin where the others end.
    """

    pieces: int
    heads: int
    stride: int
    x: FloatArray
    points: FloatArray
    row: general.Row
    tile: tiles.Tile
    stretch: Stretch


class System(NamedTuple):
    """A problem with its memory and the address of its kernel: what `evaluate` needs (by reference)."""

    kernel: int
    problem: Problem
    buffers: Buffers


def allocate(problem: Problem) -> Buffers:
    """Memory for one system."""
    tokens, dim = problem.tokens, problem.dim
    series, tiled = problem.kind in SERIES, problem.kind == TILES
    pieces, heads, masses = int(np.clip(tokens // PIECE, 1, PIECES_LIMIT)), 0, np.zeros((2, 0, LANES))
    if series:
        pieces, heads, masses = stretches.cut(problem)
    stride = 0 if series else (tokens // LANES + 3) * LANES
    return Buffers(
        pieces=pieces,
        heads=heads,
        stride=stride,
        x=vectors(dim * stride // LANES),
        points=vectors(tokens * problem.wide // LANES if tiled else 1),
        row=general.make_row(problem, pieces),
        tile=tiles.make_tile(problem, pieces if tiled else 0),
        stretch=make_stretch(problem, masses),
    )


def pays(problem: Problem) -> bool:
    """True when the work is enough to be shared among threads."""
    if problem.kind in SERIES:
        return problem.tokens * max(problem.modes, problem.rise.size) > PARALLEL_WORK
    pairs = float((problem.intervals[:, :, 1] - problem.intervals[:, :, 0]).sum())
    return pairs * problem.beta.size * max(1.0, problem.dim / 8) > PARALLEL_WORK


# ---------------------------------------------------------------------------------------------------- direct sums
#
# The three direct sums are written out: a function that is handed its rows as an argument is a new type in every process, which
# Numba's cache on disk would never find again.


@inlined
def _normalise(problem, piece, y, buffers):
    """Unit tokens from the state: those of a piece where all cost the same, in the layout of `tiles` or coordinates first."""
    tokens, dim, stride, x = problem.tokens, problem.dim, buffers.stride, buffers.x
    for k in range(tokens * piece // buffers.pieces, tokens * (piece + 1) // buffers.pieces):
        if problem.components == 1:
            x[stride + k], x[k] = sincos(y[k])
            continue
        inverse = inverse_length(y, k * dim, dim)
        for a in range(dim):
            value = y[k * dim + a] * inverse
            if problem.kind == TILES:
                tiles.set_token(problem, buffers, k, a, value)
            else:
                x[a * stride + k] = value


@inlined
def _rows(problem, buffers, piece, half):
    """Rows of a piece, first and last: an early block (half 0) and the late one that makes up for it."""
    blocks = 2 * buffers.pieces
    block = piece if half == 0 else blocks - 1 - piece
    rows = problem.tokens - problem.first
    return problem.first + rows * block // blocks, problem.first + rows * (block + 1) // blocks


@inner
def _circle_piece(phase, piece, system, pace, y, out):
    problem, buffers = system.problem, system.buffers
    if phase == FIRST:
        _normalise(problem, piece, y, buffers)
        return
    x, stride = buffers.x, buffers.stride
    for half in range(2):
        first, last = _rows(problem, buffers, piece, half)
        for k in range(first, last):
            write_spin(problem, k, x[k], x[stride + k], pace * circle.row(problem, x, stride, k), out)


@inner
def _general_piece(phase, piece, system, pace, y, out):
    problem, buffers = system.problem, system.buffers
    if phase == FIRST:
        _normalise(problem, piece, y, buffers)
        return
    memory = line_of(buffers.row, piece)
    for half in range(2):
        first, last = _rows(problem, buffers, piece, half)
        for k in range(first, last):
            general.row(problem, pace, buffers.x, buffers.stride, k, memory, out)


@inner
def _tile_piece(phase, piece, system, pace, y, out):
    problem, buffers = system.problem, system.buffers
    if phase == FIRST:
        _normalise(problem, piece, y, buffers)
        return
    memory = line_of(buffers.tile, piece)
    for half in range(2):
        first, last = _rows(problem, buffers, piece, half)
        tiles.rows(problem, pace, buffers, memory, first, last, out)


# -------------------------------------------------------------------------------------------------------- evaluation

_DIRECT = {CIRCLE: _circle_piece, GENERAL: _general_piece, TILES: _tile_piece}


def make(problem: Problem) -> System:
    """Memory and kernel for a problem."""
    system = System(0, problem, allocate(problem))
    numbers = np.zeros(1)
    piece = _DIRECT.get(problem.kind, stretches.piece_of_series)
    return system._replace(kernel=address_of(piece, 0, 0, reference_type(system), 0.0, numbers, numbers))


@parallel
def _phase_parallel(system, phase, pace, y, out):
    for piece in prange(system.buffers.pieces):
        call_address(system.kernel, phase, np.int64(piece), system, pace, y, out)


@inner
def velocity(system, time, y, out, threads):
    """Velocity `out` at the state `y` of one system, both flat with `components` numbers per token.

    `threads`: True to use them; None to do without, in code that has no parallel part (which would take long to compile).
    Entries of `out` for tokens below `problem.first` are left alone.
    """
    problem, buffers = system.problem, system.buffers
    series = buffers.stretch.length > 0
    speed = pace(problem, time)
    for phase in range(3):
        pieces = (1 if series else 0) if phase == BETWEEN else buffers.pieces
        # Directions cost too little for threads.
        if threads is not None and phase != BETWEEN and (series or phase == SECOND or problem.tokens > 20_000):
            _phase_parallel(system, phase, speed, y, out)
        else:
            for piece in range(pieces):
                call_address(system.kernel, phase, piece, system, speed, y, out)


@compiled
def evaluate(system, time, y, out, threads):
    """`velocity`, for callers outside compiled code."""
    velocity(system, time, y, out, threads)
