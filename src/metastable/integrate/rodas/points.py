"""Rodas5P for few points with masses: the flow of clusters, whose tokens sit in one place. What moves them is in `forces`.

The method is that of the other systems (gnomonic charts), written for few points with a matrix of masses, who fill the vectors. Linear
systems are solved block by block: the leading points, who see each other, at once; those behind them, who see earlier ones only, one
after the other (no rounding error of a fast one reaches a slow one). `clusters` follows tokens under full attention (all points lead)
and prefix masks with it, `analysis.leaders` predicts merges (of causal leaders the first one leads).
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
from metastable.integrate.rodas.forces import attend, chart_velocity, linearise, lines_of, product, width_for
from metastable.integrate.rodas.tableau import GAMMA, POLYNOMIAL, STAGES, WEIGHTS, A, C
from metastable.kernels.cpu.compiled import allocating, inlined, inner
from metastable.kernels.cpu.vector import LANES, fill, load, maximum, root, store, where

# What became of a step, or of many, besides what `control` knows: it was taken, nothing moves any more, points have met.
TAKEN, STILL, MET = range(10, 13)
MOST_FORGIVEN = 1000.0
"""Tolerances by which a point that falls may be off along its way."""


class Work(NamedTuple):
    """Memory of a march of m points in dimension d = n + 1: lines for points that fill vectors, as in `forces`."""

    origin: FloatArray  # (d, width) the points at the start of a step
    mirror: FloatArray  # (d, width) and the Householder vectors of their charts
    scale: FloatArray  # (width,) 2 / |mirror|^2
    place: FloatArray  # (d, width) where they are at a stage
    y: FloatArray  # (n, width) their chart points
    r: FloatArray  # (width,) and sqrt(1 + |y|^2)
    force: FloatArray  # (d, width) G_k
    weights: FloatArray  # (heads, m, LANES) what the points of one vector give to each, times 1/`scales`
    scales: FloatArray  # (heads, width)
    others: FloatArray  # (heads, width) the attention that is not their own
    queries: FloatArray  # (heads, d, width) beta M^T x_k
    means: FloatArray  # (heads, d, width) D_k
    velocity: FloatArray  # (n, width) in the charts, at the start of a step
    own: FloatArray  # (n, n, width) derivative of it by the point's own place, at [a, b, k]
    jacobian: FloatArray  # (m, n, n, width) and by that of point j, at [j, b, a, k]
    values: FloatArray  # (n, d, width) E_k^T V
    forms: FloatArray  # (n, d, width) E_k^T M
    turns: FloatArray  # (n, width) -E_k^T beta M^T x_k
    lines: FloatArray  # (n, LANES) to work with
    increments: FloatArray  # (8, n, width) of the stages of a step
    slope: FloatArray  # (n, width) right-hand sides of the linear systems
    error: FloatArray  # (width,) squares of the error estimates
    extent: FloatArray  # (width,) and of the chart points at the end of a step
    curve: FloatArray  # (5, d, width) polynomials of a step
    edges: np.ndarray  # of the m n coordinates, point after point: where diagonal blocks begin, and the last one ends
    blocks: FloatArray  # (m n, together) the diagonal blocks: that of those who lead, and one for each other point
    factors: FloatArray  # (m n, together) their LU factors
    pivots: np.ndarray  # (m n,)
    right: FloatArray  # (together,) a right-hand side of one of them
    result: FloatArray  # (1,)
    owner: np.ndarray  # (m,) the point that each one is one with
    alone: FloatArray  # (width,) 1 while a point is its own owner


def make_work(x: FloatArray, together: int, heads: int = 1) -> Work:
    m, d = x.shape
    n, width = d - 1, width_for(m)
    work = Work(
        origin=lines_of(x),
        mirror=np.zeros((d, width)),
        scale=np.zeros(width),
        place=np.zeros((d, width)),
        y=np.zeros((n, width)),
        r=np.ones(width),
        force=np.zeros((d, width)),
        weights=np.zeros((heads, m, LANES)),
        scales=np.zeros((heads, width)),
        others=np.zeros((heads, width)),
        queries=np.zeros((heads, d, width)),
        means=np.zeros((heads, d, width)),
        velocity=np.zeros((n, width)),
        own=np.zeros((n, n, width)),
        jacobian=np.zeros((m, n, n, width)),
        values=np.zeros((n, d, width)),
        forms=np.zeros((n, d, width)),
        turns=np.zeros((n, width)),
        lines=np.zeros((n, LANES)),
        increments=np.zeros((STAGES, n, width)),
        slope=np.zeros((n, width)),
        error=np.zeros(width),
        extent=np.zeros(width),
        curve=np.zeros((5, d, width)),
        edges=np.array([0, *range(together, m * n + 1, n)]),
        blocks=np.zeros((m * n, together)),
        factors=np.zeros((m * n, together)),
        pivots=np.zeros(m * n, dtype=np.int64),
        right=np.zeros(together),
        result=np.zeros(1),
        owner=np.arange(m),
        alone=np.zeros(width),
    )
    work.origin[0, m:] = 1.0  # behind the last point there is nobody, at a place that has a chart
    work.alone[:m] = 1.0
    return work


def places_of(work: Work) -> FloatArray:
    """Where the points are, (m, d)."""
    return np.ascontiguousarray(work.origin[:, : len(work.owner)].T)


# ------------------------------------------------------------------------------------------------------ linear systems


@inner
def _fill_blocks(work):
    """The diagonal blocks of the Jacobian. What is within the leading one is taken out of `jacobian`, whose products with the points
    behind it are taken by whole vectors."""
    n = len(work.y)
    leading = work.edges[1] // n
    for k in range(len(work.owner)):
        for j in range(leading if k < leading else 0):
            for a in range(n):
                for b in range(n):
                    work.blocks[k * n + a, j * n + b] = work.jacobian[j, b, a, k] if work.alone[j] else 0.0
                    work.jacobian[j, b, a, k] = 0.0
        first = k * n if k < leading else 0
        for a in range(n):
            for b in range(n):
                work.blocks[k * n + a, first + b] = work.own[a, b, k]


@inlined
def _left(work, first, last):
    """Whether a diagonal block is that of a point which is one with another."""
    return last - first == len(work.y) and work.alone[first // len(work.y)] == 0.0


@allocating
def _fastest(work):
    """Rate of the fastest unstable mode of the diagonal blocks whose points move; 0 when none grows."""
    rate = 0.0
    n = len(work.y)
    for number in range(work.edges.size - 1):
        first, last = work.edges[number], work.edges[number + 1]
        size, block = last - first, work.blocks[first:last]
        moves = False
        for row in range(first, last):
            moves |= work.velocity[row % n, row // n] != 0.0
        if not moves:
            continue
        if size == 1:
            rate = max(rate, block[0, 0])
        elif bound_of_real_parts(block, size) > 0.0:
            if size == 2:
                rate = max(rate, rate_of_pair(block))
            else:
                rate_of_modes(block, size, work.result)
                rate = max(rate, work.result[0])
    return rate


@inner
def _solve_stage(work, increments):
    """The linear systems of a stage, `slope` on their right: block by block, and what is found pulls on those behind."""
    n, slope, right = len(work.y), work.slope, work.right
    for number in range(work.edges.size - 1):
        first, last = work.edges[number], work.edges[number + 1]
        if _left(work, first, last):
            for a in range(n):
                increments[a, first // n] = 0.0
            continue
        for row in range(first, last):
            right[row - first] = slope[row % n, row // n]
        solve_factored(work.factors[first:last], work.pivots[first:last], last - first, right)
        for row in range(first, last):
            increments[row % n, row // n] = right[row - first]
        # (Vectors of points may begin before the first one behind. Nothing of these pulls on the earlier ones.)
        behind = last // n // LANES * LANES
        for row in range(first, last):
            if work.alone[row // n] == 0.0:
                continue
            pull = work.jacobian[row // n, row % n]
            for a in range(n):
                for g in range(behind, len(work.alone), LANES):
                    store(slope[a], g, load(slope[a], g) + load(pull[a], g) * right[row - first])


# ---------------------------------------------------------------------------------------------------------------- steps


@inlined
def _combine(increments, b, coefficients, count, g):
    """Sum of the first `count` increments, component b, times their coefficients."""
    value = fill(0.0)
    for j in range(count):
        value += load(increments[j, b], g) * coefficients[j]
    return value


@inlined
def _from_chart(work, y, g):
    """Of E y with y (n, width): 2 <mirror, y> / |mirror|^2, which times the mirror is taken from (0, y)."""
    dot = fill(0.0)
    for b in range(len(y)):
        dot += load(work.mirror[b + 1], g) * load(y[b], g)
    return dot * load(work.scale, g)


@inlined
def _place_stage(work, i, g):
    """Where points are at stage i."""
    origin, mirror, y = work.origin, work.mirror, work.y
    square = fill(1.0)
    for b in range(len(y)):
        value = _combine(work.increments, b, A[i], i, g)
        store(y[b], g, value)
        square += value * value
    r = root(square)
    store(work.r, g, r)
    dot = _from_chart(work, y, g)
    store(work.place[0], g, (load(origin[0], g) - dot * load(mirror[0], g)) / r)
    for b in range(len(y)):
        change = load(y[b], g) - dot * load(mirror[b + 1], g)
        store(work.place[b + 1], g, (load(origin[b + 1], g) + change) / r)


@inlined
def _forgiven(work, g, square, lag):
    """The squared error of a step, `square` = |error|^2, of points for which the time is free up to a few `lag`.

    The part of the error along the velocity v is a delay by error/|v|: it is divided by 1 + lag |v|, which is at most `MOST_FORGIVEN`.
    The part across it counts in full.
    """
    error, velocity = work.increments[STAGES - 1], work.velocity
    speed = root(product(velocity, velocity, g))
    late = lag * speed
    along = product(error, velocity, g) / speed
    share = 1.0 / (1.0 + where(maximum(late - MOST_FORGIVEN, 0.0), MOST_FORGIVEN, late))
    return where(maximum(late - 1e-3, 0.0), square - (1.0 - share * share) * along * along, square)


@inner
def _end_of_step(work, lag):
    """The largest error estimate of a step and the largest chart coordinate at its end."""
    last, y = work.increments[STAGES - 1], work.y
    for g in range(0, len(work.alone), LANES):
        error = product(last, last, g)
        store(work.error, g, _forgiven(work, g, error, lag) if lag > 0.0 else error)
        for b in range(len(y)):
            store(y[b], g, _combine(work.increments, b, WEIGHTS, STAGES, g))
        store(work.extent, g, product(y, y, g))
    error, extent = 0.0, 0.0
    for k in range(len(work.owner)):
        # (What is no number is the largest.)
        if not work.error[k] <= error:
            error = work.error[k]
        if not work.extent[k] <= extent:
            extent = work.extent[k]
    return math.sqrt(error), math.sqrt(extent)


@inner
def _take_step(surroundings, work, h, lag):
    """All stages of a step of size h; returns what `_end_of_step` does. A point that falls may be late by `lag`, a time."""
    increments, slope = work.increments, work.slope
    n, width = slope.shape
    for number in range(work.edges.size - 1):
        first, last = work.edges[number], work.edges[number + 1]
        if not _left(work, first, last):
            block = work.blocks[first:last]
            factor(block, 1.0 / (h * GAMMA), last - first, work.factors[first:last], work.pivots[first:last])
    for i in range(STAGES):
        if i > 0:
            for g in range(0, width, LANES):
                _place_stage(work, i, g)
        for g in range(0, width, LANES):
            if i > 0:
                attend(surroundings, work, g)
                chart_velocity(work, g, slope)
            for b in range(n):
                begin = load(slope[b], g) if i > 0 else load(work.velocity[b], g)
                store(slope[b], g, begin + _combine(increments, b, C[i], i, g) * (1.0 / h))
        _solve_stage(work, increments[i])
    return _end_of_step(work, lag)


@inlined
def _write_curve(work, g):
    """Dense output of points in R^d, x_k0 + E_k y(u), to be normalised."""
    curve, origin, mirror, y = work.curve, work.origin, work.mirror, work.y
    for a in range(len(origin)):
        store(curve[0, a], g, load(origin[a], g))
    for power in range(4):
        for b in range(len(y)):
            store(y[b], g, _combine(work.increments, b, POLYNOMIAL[power], STAGES, g))
        dot = _from_chart(work, y, g)
        store(curve[power + 1, 0], g, fill(0.0) - dot * load(mirror[0], g))
        for b in range(len(y)):
            store(curve[power + 1, b + 1], g, load(y[b], g) - dot * load(mirror[b + 1], g))


@inlined
def _move(work, g):
    """Points to the end of the step; who does not move at all stays where it is to the last bit."""
    origin, mirror, y = work.origin, work.mirror, work.y
    for b in range(len(y)):
        store(y[b], g, _combine(work.increments, b, WEIGHTS, STAGES, g))
    moved, dot = product(y, y, g), _from_chart(work, y, g)
    square = fill(0.0)
    for a in range(len(origin)):
        change = fill(0.0) - dot * load(mirror[a], g)
        if a > 0:
            change += load(y[a - 1], g)
        value = load(origin[a], g) + change
        store(work.place[a], g, value)
        square += value * value
    length = root(square)
    for a in range(len(origin)):
        store(origin[a], g, where(moved, load(work.place[a], g) / length, load(origin[a], g)))


@inner
def _write_piece(work, piece):
    """The polynomial of a step, (5, m, d), that of its owner for a point that has left; the points move to its end."""
    d, width = work.origin.shape
    for g in range(0, width, LANES):
        _write_curve(work, g)
        _move(work, g)
    for power in range(5):
        for k in range(len(work.owner)):
            for a in range(d):
                piece[power, k, a] = work.curve[power, a, work.owner[k]]
    for k in range(len(work.owner)):
        if work.alone[k] == 0.0:
            for a in range(d):
                work.origin[a, k] = work.origin[a, work.owner[k]]


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
    _fill_blocks(work)
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
