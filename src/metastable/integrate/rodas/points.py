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
    Charts,
    bound_of_real_parts,
    chart_velocity,
    charts_at,
    end_of_step,
    factor,
    move,
    rate_of_modes,
    rate_of_pair,
    solve_factored,
    stage_place,
    write_polynomial,
)
from metastable.integrate.rodas.control import (
    CAP,
    EXHAUSTED,
    LOST,
    OVERSHOOT,
    T,
    accept,
    break_cap,
    propose,
    refuse,
)
from metastable.integrate.rodas.forces import attend, linearise
from metastable.integrate.rodas.tableau import GAMMA, STAGES, C
from metastable.kernels.cpu.compiled import allocating, inner, summing

# What became of a step, or of many, besides what `control` knows: it was taken, nothing moves any more, points have met.
TAKEN, STILL, MET = range(10, 13)
MOST_FORGIVEN = 1000.0
"""Tolerances by which a point that falls may be off along its way."""


class Work(NamedTuple):
    """Memory of a march of m leaders in dimension d = n + 1."""

    charts: Charts  # at the leaders at the start of a step
    place: FloatArray  # (d, m) where they are at a stage, one coordinate after the other: sums over leaders are loops over vectors
    velocity: FloatArray  # (m, n) in the charts, at the start of a step
    jacobian: FloatArray  # (m n, m n) of it
    increments: FloatArray  # (8, m, n) of the stages of a step
    y: FloatArray  # (m, n) chart points of a stage
    r: FloatArray  # (m,) and sqrt(1 + |y|^2)
    slope: FloatArray  # (m n,) right-hand sides of the linear systems
    factors: FloatArray  # (m n, together) LU factors of the diagonal blocks
    pivots: np.ndarray  # (m n,)
    edges: np.ndarray  # rows at which the diagonal blocks begin, and where the last one ends
    block: FloatArray  # (together, together) the leading block; single points use its corner
    weights: FloatArray  # (heads, m) p_kj of one leader
    queries: FloatArray  # (heads, d) beta M^T x_k of it
    spreads: FloatArray  # (heads, d) D_k of it
    others: FloatArray  # (heads,) the weight of the others
    force: FloatArray  # (d,) G_k of it
    frames: FloatArray  # (m, d, n) tangent bases E of all
    rest: FloatArray  # (n, d) E_k^T R
    values: FloatArray  # (heads, n, d) E_k^T V
    forms: FloatArray  # (heads, n, d) E_k^T M
    vectors: FloatArray  # (3, d) to work with
    result: FloatArray  # (1,)
    owner: np.ndarray  # (m,) the leader that each one is one with
    alone: np.ndarray  # (m,) 1 while a leader is its own owner


def make_work(x: FloatArray, together: int, heads: int = 1) -> Work:
    m, d = x.shape
    n = d - 1
    return Work(
        charts=charts_at(x),
        place=np.zeros((d, m)),
        velocity=np.zeros((m, n)),
        jacobian=np.zeros((m * n, m * n)),
        increments=np.zeros((STAGES, m, n)),
        y=np.zeros((m, n)),
        r=np.ones(m),
        slope=np.zeros(m * n),
        factors=np.zeros((m * n, together)),
        pivots=np.zeros(m * n, dtype=np.int64),
        edges=np.array([0, *range(together, m * n + 1, n)]),
        block=np.zeros((together, together)),
        weights=np.zeros((heads, m)),
        queries=np.zeros((heads, d)),
        spreads=np.zeros((heads, d)),
        others=np.zeros(heads),
        force=np.zeros(d),
        frames=np.zeros((m, d, n)),
        rest=np.zeros((n, d)),
        values=np.zeros((heads, n, d)),
        forms=np.zeros((heads, n, d)),
        vectors=np.zeros((3, d)),
        result=np.zeros(1),
        owner=np.arange(m),
        alone=np.ones(m, dtype=np.int64),
    )


@summing
def _product(row, column, count):
    """Sum over the first `count` entries of row_j column_j."""
    total = 0.0
    for j in range(count):
        total += row[j] * column[j]
    return total


@inner
def _copy_block(work, number):
    """A diagonal block, to `work.block`; returns its size, and the rows first..last of it."""
    first, last = work.edges[number], work.edges[number + 1]
    for a in range(last - first):
        for b in range(last - first):
            work.block[a, b] = work.jacobian[first + a, first + b]
    return last - first, first, last


@allocating
def _fastest(work):
    """Rate of the fastest unstable mode of the diagonal blocks whose leaders move; 0 when none grows."""
    rate = 0.0
    n = work.velocity.shape[1]
    for number in range(work.edges.size - 1):
        size, first, last = _copy_block(work, number)
        moves = False
        for row in range(first, last):
            moves |= work.velocity[row // n, row % n] != 0.0
        if not moves:
            continue
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
    place = work.vectors[0]
    for k in range(work.alone.size):
        if work.alone[k]:
            work.r[k] = stage_place(work.charts, work.increments, k, i, work.y[k], place)
            for a in range(place.size):
                work.place[a, k] = place[a]


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
def _take_step(surroundings, work, h, lag):
    """All stages of a step of size h; returns the largest error estimate and the largest chart coordinate at its end.

    A point that falls may be late by `lag`, a time: see `_forgiven`.
    """
    increments, slope, jacobian = work.increments, work.slope, work.jacobian
    m, n = work.velocity.shape
    for number in range(work.edges.size - 1):
        size, first, last = _copy_block(work, number)
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
                chart_velocity(work.charts, k, work.force, work.y[k], work.r[k], part)
            for b in range(n):
                earlier = 0.0
                for j in range(i):
                    earlier += C[i, j] * increments[j, k, b]
                part[b] += earlier / h
        for number in range(work.edges.size - 1):
            first, last = work.edges[number], work.edges[number + 1]
            for row in range(first, last):
                slope[row] += _product(jacobian[row], slope, first)
            solve_factored(work.factors[first:last], work.pivots[first:last], last - first, slope[first:last])
        for k in range(m):
            for b in range(n):
                increments[i, k, b] = slope[k * n + b]
    error, extent = 0.0, 0.0
    for k in range(m):
        last_stage, end = end_of_step(increments, k, work.y[k])
        if lag > 0.0:
            last_stage = _forgiven(increments[STAGES - 1, k], work.velocity[k], last_stage, lag)
        if not last_stage <= error:
            error = last_stage
        if not end <= extent:
            extent = end
    return math.sqrt(error), math.sqrt(extent)


@inner
def _write_piece(work, piece):
    """The polynomial of a step, (5, m, d), that of its owner for a leader that has left; the leaders move to its end."""
    origin = work.charts.origin
    m, d = origin.shape
    for k in range(m):
        write_polynomial(work.charts, work.increments, work.owner[k], work.y[k], piece, k)
    for k in range(m):
        if work.alone[k]:
            move(work.charts, work.increments, k, work.y[k], work.vectors[0])
        else:
            # Its owner is an earlier one and has moved.
            for a in range(d):
                origin[k, a] = origin[work.owner[k], a]


@allocating
def step(surroundings, work, control, goal, tries, first, piece):
    """One step as the control proposes it, towards `goal`: its length, how many `tries` are left, and what became of it.

    `goal`: until when, the tolerance, and by which part of the time a fall may be late (`_forgiven`). Its polynomial (5, m, d) to
    `piece`. `first`: none was made before.
    """
    if tries <= 0:
        return 0.0, tries, EXHAUSTED
    linearise(surroundings, work)
    if not work.velocity.any():
        return 0.0, tries, STILL
    until, tolerance, late = goal
    rate = _fastest(work)
    while tries > 0:
        h = propose(control, until)
        tries -= 1
        if not h > 0.0:
            return h, tries, LOST
        if rate * h > CAP * OVERSHOOT:
            break_cap(control, rate)
            continue
        error, extent = _take_step(surroundings, work, h, late * control[T])
        error /= tolerance
        if not (error <= 1.0 and extent < 1.0):
            refuse(control, h, error, extent, rate)
            continue
        _write_piece(work, piece)
        accept(control, h, error, rate, first)
        if until - control[T] <= 1e-15 * until:
            control[T] = until
        return h, tries, TAKEN
    return 0.0, tries, EXHAUSTED
