"""Rodas5P for few points with masses: the flow of clusters, whose tokens sit in one place. What moves them is in `forces`.

The method is that of the other systems (gnomonic charts), written for few points with a matrix of masses. Linear systems are
solved block by block: the leading points, who see each other, at once; those behind them, who see earlier ones only, one after the
other (no rounding error of a fast one reaches a slow one). `clusters` follows tokens under full attention (all points lead) and prefix
masks with it, `analysis.leaders` predicts merges (of causal leaders the first one leads).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate.rodas.charts import (
    bound_of_real_parts,
    factor,
    rate_of_modes,
    rate_of_pair,
    solve_factored,
)
from metastable.integrate.rodas.control import CAP, OVERSHOOT, accept, break_cap, propose, refuse
from metastable.integrate.rodas.forces import attend, to_chart
from metastable.integrate.rodas.tableau import GAMMA, POLYNOMIAL, STAGES, WEIGHTS, A, C
from metastable.kernels.cpu.compiled import allocating, inner, summing

REFUSED = 2.0
"""Error (over the tolerance) that stands for a step which was not taken."""
MOST_FORGIVEN = 1000.0
"""Tolerances by which a point that falls may be off along its way."""


class Work(NamedTuple):
    """Memory of a march of m leaders in dimension d = n + 1."""

    x: FloatArray  # (m, d) where the leaders are at the start of a step
    place: FloatArray  # (d, m) where they are at a stage, one coordinate after the other: sums over leaders are loops over vectors
    frames: FloatArray  # (m, d, n) tangent bases
    velocity: FloatArray  # (m, n) in the charts, at the start of a step
    jacobian: FloatArray  # (m n, m n) of it
    stages: FloatArray  # (8, m, n) the increments of a step
    chart: FloatArray  # (m, n + 1) chart points of a stage, and r = sqrt(1 + |y|^2) behind them
    slope: FloatArray  # (m n,) right-hand sides of the linear systems
    factors: FloatArray  # (m n, together) LU factors of the diagonal blocks
    pivots: np.ndarray  # (m n,)
    block: FloatArray  # (together, together) the leading block; single points use its corner
    weights: FloatArray  # (heads, m) p_kj of one leader
    queries: FloatArray  # (heads, d) beta M^T x_k of it
    spreads: FloatArray  # (heads, d) D_k of it
    others: FloatArray  # (heads,) the weight of the others
    force: FloatArray  # (d,) G_k of it
    vectors: FloatArray  # (5, d)
    result: FloatArray  # (1,)
    owner: np.ndarray  # (m,) the leader that each one is one with
    alone: np.ndarray  # (m,) True while a leader is its own owner


def make_work(x: FloatArray, together: int, heads: int = 1) -> Work:
    m, d = x.shape
    n = d - 1
    return Work(
        x=np.array(x, dtype=float),
        place=np.array(x.T, dtype=float, order="C"),
        frames=np.zeros((m, d, n)),
        velocity=np.zeros((m, n)),
        jacobian=np.zeros((m * n, m * n)),
        stages=np.zeros((STAGES, m, n)),
        chart=np.zeros((m, n + 1)),
        slope=np.zeros(m * n),
        factors=np.zeros((m * n, together)),
        pivots=np.zeros(m * n, dtype=np.int64),
        block=np.zeros((together, together)),
        weights=np.zeros((heads, m)),
        queries=np.zeros((heads, d)),
        spreads=np.zeros((heads, d)),
        others=np.zeros(heads),
        force=np.zeros(d),
        vectors=np.zeros((5, d)),
        result=np.zeros(1),
        owner=np.arange(m),
        alone=np.ones(m, dtype=np.bool_),
    )


@inner
def set_frames(work):
    """Tangent bases: columns 2..d of the reflectors that map x_k to a multiple of e_1."""
    m, d = work.x.shape
    mirror = work.vectors[0]
    for k in range(m):
        square = 0.0
        for a in range(d):
            mirror[a] = work.x[k, a]
            if a == 0:
                mirror[a] += 1.0 if mirror[a] >= 0.0 else -1.0
            square += mirror[a] * mirror[a]
        for a in range(d):
            for b in range(d - 1):
                work.frames[k, a, b] = (1.0 if a == b + 1 else 0.0) - 2.0 / square * mirror[a] * mirror[b + 1]


@summing
def _product(row, column, count):
    """Sum over the first `count` entries of row_j column_j."""
    total = 0.0
    for j in range(count):
        total += row[j] * column[j]
    return total


@inner
def _size_of_block(work, first):
    """Rows of the diagonal block that begins at row `first`."""
    return len(work.block) if first == 0 else work.velocity.shape[1]


@inner
def _copy_block(work, first, size):
    """The diagonal block that begins at row `first`, to `work.block`."""
    for a in range(size):
        for b in range(size):
            work.block[a, b] = work.jacobian[first + a, first + b]


@allocating
def fastest(work):
    """Rate of the fastest unstable mode of the diagonal blocks whose leaders move; 0 when none grows."""
    rate = 0.0
    n = work.velocity.shape[1]
    last = 0
    while last < len(work.jacobian):
        first, size = last, _size_of_block(work, last)
        last = first + size
        moves = False
        for row in range(first, last):
            moves |= work.velocity[row // n, row % n] != 0.0
        if not moves:
            continue
        _copy_block(work, first, size)
        if size == 1:
            rate = max(rate, work.block[0, 0])
        elif bound_of_real_parts(work.block, size) > 0.0:
            if size == 2:
                rate = max(rate, rate_of_pair(work.block))
            else:
                rate_of_modes(work.block, size, work.result)
                rate = max(rate, work.result[0])
    return rate


@inner
def _place_stage(work, i):
    """Where the leaders are at stage i."""
    x, place, chart, stages = work.x, work.place, work.chart, work.stages
    m, d = x.shape
    n = d - 1
    for k in range(m):
        if not work.alone[k]:
            continue
        square = 1.0
        for b in range(n):
            chart[k, b] = 0.0
            for j in range(i):
                chart[k, b] += A[i, j] * stages[j, k, b]
            square += chart[k, b] * chart[k, b]
        chart[k, n] = math.sqrt(square)
        for a in range(d):
            coordinate = x[k, a]
            for b in range(n):
                coordinate += work.frames[k, a, b] * chart[k, b]
            place[a, k] = coordinate / chart[k, n]


@inner
def _forgiven(error, velocity, square, lag):
    """The squared error of a step, `square` = |error|^2, of a point for which the time is free up to a few `lag`.

    The part of the error along the velocity v is a delay by error/|v|: it is divided by 1 + lag |v|, which is at most `MOST_FORGIVEN`.
    The part across it counts in full.
    """
    speed, along = 0.0, 0.0
    for b in range(len(velocity)):
        speed += velocity[b] * velocity[b]
    speed = math.sqrt(speed)
    if not lag * speed > 1e-3:
        return square
    for b in range(len(velocity)):
        along += error[b] * (velocity[b] / speed)
    share = 1.0 / (1.0 + min(lag * speed, MOST_FORGIVEN))
    return square - (1.0 - share * share) * along * along


@inner
def take_step(surroundings, work, h, lag):
    """All stages of a step of size h; returns the largest error estimate and the largest chart coordinate at its end.

    A point that falls may be late by `lag`, a time: see `_forgiven`.
    """
    stages, slope, jacobian = work.stages, work.slope, work.jacobian
    m, n = work.velocity.shape
    last = 0
    while last < m * n:
        first, size = last, _size_of_block(work, last)
        last = first + size
        _copy_block(work, first, size)
        factor(work.block, 1.0 / (h * GAMMA), size, work.factors[first:last], work.pivots[first:last])
    for i in range(STAGES):
        if i > 0:
            _place_stage(work, i)
        for k in range(m):
            part = slope[k * n : (k + 1) * n]
            if i == 0 or not work.alone[k]:
                for b in range(n):
                    part[b] = work.velocity[k, b]
            else:
                attend(surroundings, work, k)
                to_chart(work, k, work.chart[k, n], part)
            for b in range(n):
                earlier = 0.0
                for j in range(i):
                    earlier += C[i, j] * stages[j, k, b]
                part[b] += earlier / h
        last = 0
        while last < m * n:
            first, size = last, _size_of_block(work, last)
            last = first + size
            for row in range(first, last):
                slope[row] += _product(jacobian[row], slope, first)
            solve_factored(work.factors[first:last], work.pivots[first:last], size, slope[first:last])
        for k in range(m):
            for b in range(n):
                stages[i, k, b] = slope[k * n + b]
    error, extent = 0.0, 0.0
    for k in range(m):
        last_stage, end = 0.0, 0.0
        for b in range(n):
            change = 0.0
            for i in range(STAGES):
                change += WEIGHTS[i] * stages[i, k, b]
            last_stage += stages[STAGES - 1, k, b] ** 2
            end += change * change
        if lag > 0.0:
            last_stage = _forgiven(stages[STAGES - 1, k], work.velocity[k], last_stage, lag)
        if not last_stage <= error:
            error = last_stage
        if not end <= extent:
            extent = end
    return math.sqrt(error), math.sqrt(extent)


@inner
def attempt(surroundings, work, control, until, tolerance, rate, lag):
    """Try the step that the control proposes: its length, and its error over the tolerance, above one where it was refused.

    The length is not positive where the control has lost the thread. `lag`: see `take_step`.
    """
    h = propose(control, until)
    if not h > 0.0:
        return h, REFUSED
    if rate * h > CAP * OVERSHOOT:
        break_cap(control, rate)
        return h, REFUSED
    error, extent = take_step(surroundings, work, h, lag)
    error /= tolerance
    if not (error <= 1.0 and extent < 1.0):
        refuse(control, h, error, extent, rate)
        return h, REFUSED
    return h, error


@inner
def keep(control, until, h, error, rate, first):
    """Go on from the end of a step that was taken; `first`: of all."""
    accept(control, h, error, rate, first)
    if until - control[0] <= 1e-15 * until:
        control[0] = until


@inner
def write_piece(work, piece):
    """The polynomial of a step, (5, m, d), that of its owner for a leader that has left; the leaders move to its end."""
    m, d = work.x.shape
    for k in range(m):
        own = work.owner[k]
        for a in range(d):
            piece[0, k, a] = work.x[own, a]
            for power in range(4):
                piece[power + 1, k, a] = 0.0
        for power in range(4):
            for b in range(d - 1):
                y = 0.0
                for i in range(STAGES):
                    y += POLYNOMIAL[power, i] * work.stages[i, own, b]
                for a in range(d):
                    piece[power + 1, k, a] += work.frames[own, a, b] * y
    for k in range(m):
        square = 0.0
        for a in range(d):
            work.x[k, a] = piece[0, k, a] + piece[1, k, a] + piece[2, k, a] + piece[3, k, a] + piece[4, k, a]
            square += work.x[k, a] ** 2
        for a in range(d):
            work.x[k, a] /= math.sqrt(square)


@allocating
def grown(array):
    """A copy with room for twice as many steps."""
    larger = np.zeros((2 * len(array), *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger
