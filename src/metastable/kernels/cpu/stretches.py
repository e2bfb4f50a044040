"""Series of one system: the sequence cut into stretches, a group of them (one per lane) to a piece of the work.

Tokens that see one another wholly come first and have groups of their own, which all get the same total; the others walk along prefix
sums. What tells one series from another is called by its address (`series.WALKS`).
"""

from __future__ import annotations

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cpu import series
from metastable.kernels.cpu.compiled import call_address, inlined, inner
from metastable.kernels.cpu.memory import line_of
from metastable.kernels.cpu.problem import Problem
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


@inlined
def _inside(length, begin, first, end):
    """Which places of a stretch that starts with token `begin` hold the tokens first..end - 1: the first one, and behind the last."""
    last = min(max(end - begin, 0), length)
    return min(max(first - begin, 0), last), last


@inner
def _gather(problem, buffers, y, group, stretch):
    """Unit tokens of a group of stretches into lanes, filled up beyond the last token (what has no mass moves nobody); no sums."""
    components, length = problem.components, stretch.length
    first, end = _range(problem, buffers, group)
    for lane in range(LANES):
        begin = first + lane * length
        last = _inside(length, begin, begin, end)[1]
        for entry in range(components * last):
            stretch.mean[entry * LANES + lane] = y[begin * components + entry]
        for entry in range(components * last, components * length):
            stretch.mean[entry * LANES + lane] = 1.0 if entry % components == 0 else 0.0
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
        for i in range(0, problem.sums * LANES, LANES):
            before = start.sums[i]
            for lane in range(LANES):
                own = stretch.sums[i + lane]
                stretch.sums[i + lane] = before
                before += own
            start.sums[i] = before


@inner
def _scatter(problem, buffers, group, stretch, out):
    """Velocities of a group of stretches, which stand in `mean`, to their tokens."""
    components, length = problem.components, stretch.length
    first, end = _range(problem, buffers, group)
    for lane in range(LANES):
        begin = first + lane * length
        start, last = _inside(length, begin, problem.first, end)
        if components == 2:
            for i in range(start, last):
                at = i * LANES + lane
                write_spin(problem, begin + i, stretch.x[at], stretch.x[length * LANES + at], stretch.mean[at], out)
        else:
            for entry in range(components * start, components * last):
                out[begin * components + entry] = stretch.mean[entry * LANES + lane]


@inner
def piece_of_series(phase, piece, system, pace, y, out):
    """Sums over the stretches of a group, sums over those before each one, then the walk along them."""
    problem, buffers = system.problem, system.buffers
    stretch = line_of(buffers.stretch, piece)
    if phase == FIRST:
        _gather(problem, buffers, y, piece, stretch)
        call_address(stretch.add, problem, stretch, stretch.length)
    elif phase == BETWEEN:
        _accumulate(problem, buffers)
    else:
        # Tokens of a lane see one another wholly: all or none.
        whole = stretch.length if piece < buffers.heads else 0
        call_address(stretch.walk, problem, fill(pace), stretch, whole, stretch.mean)
        _scatter(problem, buffers, piece, stretch, out)
