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
from metastable.kernels.cpu.members import start_sums, sums_size
from metastable.kernels.cpu.pieces import FIRST, KERNELS, SECOND
from metastable.kernels.cpu.problem import MATRIX_SERIES, SERIES, SPHERE_SERIES, TILES, Problem
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


def kernel(problem: Problem, buffers: Buffers) -> int:
    """Address of the kernel for this problem, the first argument of `evaluate`."""
    numbers = np.zeros(1)
    return address_of(KERNELS[problem.kind], 0, 0, problem, 0.0, numbers, buffers, numbers)


@parallel
def _phase_parallel(kernel, phase, pieces, problem, time, y, buffers, out):
    for piece in prange(pieces):
        call_piece(kernel, phase, np.int64(piece), problem, time, y, buffers, out)


@compiled
def evaluate(kernel, problem, time, y, buffers, out, threads):
    """Velocity `out` at the state `y` of one system, both flat with `components` numbers per token.

    `threads`: True to use them; None to do without, in code that has no parallel part (which would take long to compile).
    Entries of `out` for tokens below `problem.first` are left alone. Direct sums: directions, then rows. Series: sums of the
    stretches, sums of all before each stretch, then the walk through them.
    """
    series = buffers.groups > 0
    pieces = buffers.pieces
    for phase in range(2):
        # Directions cost too little for threads.
        if threads is not None and (series or phase == SECOND or problem.tokens > 20_000):
            _phase_parallel(kernel, phase, pieces, problem, time, y, buffers, out)
        else:
            for piece in range(pieces):
                call_piece(kernel, phase, piece, problem, time, y, buffers, out)
        if series and phase == FIRST:
            _accumulate(problem, buffers)
