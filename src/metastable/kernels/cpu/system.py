"""Right-hand side of one system, its tokens shared among threads.

The work is cut into pieces that depend on the number of tokens only, and every piece writes numbers of its own: results are
the same, bit for bit, for any number of threads. Direct sums are cut into rows (an early and a late block together, so that
the triangle is balanced); series into stretches of the sequence, one to a lane, summed first and then walked through.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import prange

from metastable._checks import FloatArray
from metastable.kernels.cpu import tiles
from metastable.kernels.cpu.compiled import address_of, aligned_array, call_piece, compiled, inner, parallel
from metastable.kernels.cpu.members import start_sums
from metastable.kernels.cpu.memory import Reference
from metastable.kernels.cpu.pieces import FIRST, KERNELS, SECOND
from metastable.kernels.cpu.problem import MATRIX_SERIES, SERIES, TILES, Problem
from metastable.kernels.cpu.rules import pace
from metastable.kernels.cpu.vector import LANES

PIECES_LIMIT = 32
"""Pieces of the work of direct sums at the most, and rows per piece aimed at."""
PIECE = 64

STRETCH = 256
"""Tokens per stretch aimed at, and the most groups of stretches (one per lane)."""
GROUPS_LIMIT = 64

PARALLEL_WORK = 400_000
"""Pairs (or tokens times modes) from which threads pay."""


class Buffers(NamedTuple):
    """Memory for `evaluate`.

    Direct sums, in `pieces`: unit tokens `x`, coordinates first in rows of `stride` (`tiles` has layouts of its own for `x` and
    `points`), and `scratch` for each piece. Series, in as many groups of stretches, `length` tokens to a lane: tokens and
    results of each group, its `sums` and the weight `before` it (one more for the beginning), and its `table`.
    """

    pieces: int
    stride: int
    length: int
    x: FloatArray
    points: FloatArray
    scratch: FloatArray
    lane_x: FloatArray
    lane_out: FloatArray
    table: FloatArray
    sums: FloatArray
    before: FloatArray


class System(NamedTuple):
    """A problem with its memory and the address of its kernel: what `evaluate` needs (by reference)."""

    kernel: int
    problem: Problem
    buffers: Buffers


def allocate(problem: Problem) -> Buffers:
    """Memory for one system."""
    tokens, dim = problem.tokens, problem.dim
    series, tiled = problem.kind in SERIES, problem.kind == TILES
    pieces = tokens // (LANES * STRETCH) if series else tokens // PIECE
    pieces = int(np.clip(pieces, 1, GROUPS_LIMIT if series else PIECES_LIMIT))
    length = -(-tokens // (LANES * pieces)) if series else 0
    stride = 0 if series else (tokens // LANES + 3) * LANES

    def lines(count: int, size: int) -> FloatArray:
        """So many lines of memory, each in whole vectors."""
        wide = max(1, -(-size // LANES)) * LANES
        return aligned_array(count * wide).reshape(count, wide)

    return Buffers(
        pieces=pieces,
        stride=stride,
        length=length,
        x=aligned_array(max(LANES, dim * stride)),
        points=aligned_array(tokens * problem.wide if tiled else LANES),
        scratch=lines(pieces, 0 if series else scratch_size(problem)),
        lane_x=lines(pieces, length * dim * LANES),
        lane_out=lines(pieces, length * dim * LANES),
        table=lines(pieces, (problem.modes + 3) * LANES if problem.kind == MATRIX_SERIES else 0),
        sums=lines(pieces + 1, problem.sums * LANES if series else 0),
        before=lines(pieces + 1, LANES),
    )


def scratch_size(problem: Problem) -> int:
    """Numbers of scratch memory per piece."""
    if problem.kind == TILES:
        return tiles.work_size(problem.dim, problem.wide)
    return 4 * problem.wide + LANES * problem.dim


def pays(problem: Problem) -> bool:
    """True when the work is enough to be shared among threads."""
    if problem.kind in SERIES:
        return problem.tokens * max(problem.modes, problem.rise.size) > PARALLEL_WORK
    pairs = float((problem.intervals[:, :, 1] - problem.intervals[:, :, 0]).sum())
    return pairs * problem.beta.size * max(1.0, problem.dim / 8) > PARALLEL_WORK


@inner
def _accumulate(problem, buffers):
    """Turn the sums of each stretch into the sums of all before it (frozen tokens first)."""
    sums, before = buffers.sums, buffers.before
    base = sums[buffers.pieces]
    start_sums(problem, before[buffers.pieces], base)
    mass = before[buffers.pieces, 0]
    for group in range(buffers.pieces):
        for lane in range(LANES):
            before[group, lane] = mass + (group * LANES + lane) * buffers.length
            for i in range(problem.sums):
                at = i * LANES + lane
                stretch = sums[group, at]
                sums[group, at] = base[i * LANES]
                base[i * LANES] += stretch


def make(problem: Problem) -> Reference:
    """Memory and kernel for a problem."""
    system = System(0, problem, allocate(problem))
    numbers = np.zeros(1)
    kernel = address_of(KERNELS[problem.kind], 0, 0, Reference(system), 0.0, numbers, numbers)
    return Reference(system._replace(kernel=kernel))


@parallel
def _phase_parallel(system, phase, pace, y, out):
    for piece in prange(system.buffers.pieces):
        call_piece(system.kernel, phase, np.int64(piece), system, pace, y, out)


@inner
def velocity(system, time, y, out, threads):
    """Velocity `out` at the state `y` of one system, both flat with `components` numbers per token.

    `threads`: True to use them; None to do without, in code that has no parallel part (which would take long to compile).
    Entries of `out` for tokens below `problem.first` are left alone. Direct sums: directions, then rows. Series: sums of the
    stretches, sums of all before each stretch, then the walk through them.
    """
    problem, buffers = system.problem, system.buffers
    series = buffers.length > 0
    speed = pace(problem, time)
    for phase in range(2):
        # Directions cost too little for threads.
        if threads is not None and (series or phase == SECOND or problem.tokens > 20_000):
            _phase_parallel(system, phase, speed, y, out)
        else:
            for piece in range(buffers.pieces):
                call_piece(system.kernel, phase, piece, system, speed, y, out)
        if series and phase == FIRST:
            _accumulate(problem, buffers)


@compiled
def evaluate(system, time, y, out, threads):
    """`velocity`, for callers outside compiled code."""
    velocity(system, time, y, out, threads)
