"""Memory of the compiled pullback, and its sums over the columns of a row (`pullback` says what they are for).

Components come in chunks of `tag.ndim` = 2, 3 or 4, a constant of the compiled code; dimensions above four are padded with zero
components to a multiple of four and looped over, for `TILE` columns at a time, which stay in the cache meanwhile.
"""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cpu.compiled import inlined, vectors
from metastable.kernels.cpu.problem import Problem
from metastable.kernels.cpu.rules import biased, row_logits
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, load, store, total
from metastable.kernels.jacobian_circle import store_first
from metastable.kernels.jacobian_sphere import chunk_tag, padded_dimension

PIECE, PIECES_LIMIT = 256, 8
"""Rows of a piece aimed at, and pieces at the most: each has a copy of what is sent back to the tokens."""
TILE = 96
"""Columns that are handled together in large dimensions."""
CACHE_LINE = max(8, LANES)
"""Numbers of a cache line (of a vector, where that is longer)."""


class Line(NamedTuple):
    """Memory of a piece. (heads, ...): `weights` of a row on the tokens, `fixed` on the frozen ones, `query`, `difference` (D);
    `logits` (l) of a row; vectors of a token; `sums` in lanes, a vector for each component; and what is sent back to the tokens
    (`back`), frozen tokens, masses and matrices."""

    weights: FloatArray
    fixed: FloatArray
    query: FloatArray
    difference: FloatArray
    weight_sum: FloatArray
    logits: FloatArray
    own: FloatArray
    covector: FloatArray
    drift: FloatArray
    gain: FloatArray
    target: FloatArray
    keyed: FloatArray
    sums: FloatArray
    back: FloatArray
    frozen: FloatArray
    frozen_weights: FloatArray
    masses: FloatArray
    losses: FloatArray
    forms: FloatArray
    values: FloatArray


class Memory(NamedTuple):
    """A problem with its memory: unit tokens `x` and frozen tokens, coordinates first; a `Line` for each of the `pieces`."""

    problem: Problem
    pieces: int
    stride: int
    padded: int
    tag: FloatArray
    x: FloatArray
    frozen: FloatArray
    inverse: FloatArray
    lines: Line


def _stride(tokens: int) -> int:
    """Length of a line of tokens, padded by a vector: an odd number of cache lines, so that lines do not compete for the same places
    of the cache (powers of two would)."""
    lines = -(-(tokens + 2 * LANES) // CACHE_LINE)
    return (lines + 1 - lines % 2) * CACHE_LINE


def allocate(problem: Problem) -> Memory:
    tokens, dim, heads = problem.tokens, problem.dim, problem.beta.size
    pieces = int(np.clip(tokens // PIECE, 1, PIECES_LIMIT))
    stride = _stride(tokens)
    padded, width = padded_dimension(dim), problem.mass.size
    wide = max(problem.wide, -(-padded // LANES) * LANES)

    def lines(count: int) -> FloatArray:
        """So many numbers, in whole vectors, for every piece."""
        return vectors(-(-count // LANES), pieces)

    vector = {name: lines(wide) for name in ("own", "covector", "drift", "gain", "target", "keyed")}
    frozen = np.zeros((padded, width))
    frozen[:dim] = problem.frozen.reshape(dim, width)
    return Memory(
        problem,
        pieces,
        stride,
        padded,
        chunk_tag(dim),
        vectors(padded * stride // LANES),
        np.concatenate([frozen.ravel(), np.zeros(LANES)]),
        np.zeros(tokens),
        Line(
            weights=lines(heads * stride).reshape(pieces, heads, -1),
            fixed=np.zeros((pieces, heads, width + LANES)),
            query=lines(heads * wide).reshape(pieces, heads, -1),
            difference=lines(heads * wide).reshape(pieces, heads, -1),
            weight_sum=lines(heads),
            logits=lines(max(stride, width + LANES)),
            sums=lines(max(4, padded) * LANES),
            back=lines(padded * stride),
            frozen=lines(padded * width + LANES),
            frozen_weights=lines(width + LANES),
            masses=lines(stride),
            losses=lines(tokens + 2),
            forms=np.zeros((pieces, heads, dim, dim)),
            values=np.zeros((pieces, heads, dim, dim)),
            **vector,
        ),
    )


# ----------------------------------------------------------------------------------------------------- sums over columns


@inlined
def seen_range(problem, k, q):
    """The q-th of the two ranges of tokens that token k sees."""
    return problem.intervals[k, q, 0], problem.intervals[k, q, 1]


@inlined
def chunk_of(tag, vector, a):
    """Four components of a vector from a on, those beyond the chunk zero."""
    return vector[a], vector[a + 1], vector[a + 2] if tag.ndim > 2 else 0.0, vector[a + 3] if tag.ndim > 3 else 0.0


@inlined
def dot(tag, points, stride, j, v, value):
    """`value` + <v, x_j> of one chunk of components, for the tokens of one vector; `points` begins with the chunk."""
    value = value + load(points, j) * v[0]
    value = value + load(points, stride + j) * v[1]
    if tag.ndim > 2:
        value = value + load(points, 2 * stride + j) * v[2]
    if tag.ndim > 3:
        value = value + load(points, 3 * stride + j) * v[3]
    return value


@inlined
def logit_of(memory, head, k, j, query, plain):
    """Logits of the tokens j, j + 1, ... of row k."""
    problem, tag, stride = memory.problem, memory.tag, memory.stride
    logit = fill(0.0)
    for a in range(0, memory.padded, tag.ndim):
        logit = dot(tag, memory.x, stride, a * stride + j, chunk_of(tag, query, a), logit)
    return logit if plain else row_logits(problem, head, k, j, logit)


@inlined
def weigh(memory, head, k, start, stop, top, line):
    """Weights of the tokens start..stop; D of the first chunk of components is added to `sums`. Returns the sum of the weights."""
    tag, x, stride, own, sums = memory.tag, memory.x, memory.stride, line.own, line.sums
    plain, small, weights = not biased(memory.problem, head), memory.padded == tag.ndim, line.weights[head]
    s0, s1, s2, s3 = load(sums, 0), load(sums, LANES), load(sums, 2 * LANES), load(sums, 3 * LANES)
    o0, o1, o2, o3 = chunk_of(tag, own, 0)
    query = chunk_of(tag, line.query[head], 0)
    weight_sum = fill(0.0)
    for j in range(start, stop, LANES):
        # In small dimensions logits are made again: that takes less time than to read them.
        if small:
            logit = dot(tag, x, stride, j, query, fill(-top))
            if not plain:
                logit = row_logits(memory.problem, head, k, j, logit)
        else:
            logit = load(weights, j) - top
        weight = keep(exp2(logit), stop - j)
        store_first(weights, j, weight, stop - j)
        weight_sum = weight_sum + weight
        s0 = s0 + weight * (load(x, j) - o0)
        s1 = s1 + weight * (load(x, stride + j) - o1)
        if tag.ndim > 2:
            s2 = s2 + weight * (load(x, 2 * stride + j) - o2)
        if tag.ndim > 3:
            s3 = s3 + weight * (load(x, 3 * stride + j) - o3)
    store(sums, 0, s0)
    store(sums, LANES, s1)
    store(sums, 2 * LANES, s2)
    store(sums, 3 * LANES, s3)
    return weight_sum


@inlined
def moments(points, stride, start, stop, weights, origin, a, sums):
    """Add `sum_j weights_j (x_j - origin)` of the components a..a + 3 to `sums`."""
    place, first, second, third, fourth = a * LANES, a * stride, (a + 1) * stride, (a + 2) * stride, (a + 3) * stride
    s0, s1 = load(sums, place), load(sums, place + LANES)
    s2, s3 = load(sums, place + 2 * LANES), load(sums, place + 3 * LANES)
    o0, o1, o2, o3 = origin[a], origin[a + 1], origin[a + 2], origin[a + 3]
    for j in range(start, stop, LANES):
        weight = keep(load(weights, j), stop - j)
        s0 = s0 + weight * (load(points, first + j) - o0)
        s1 = s1 + weight * (load(points, second + j) - o1)
        s2 = s2 + weight * (load(points, third + j) - o2)
        s3 = s3 + weight * (load(points, fourth + j) - o3)
    store(sums, place, s0)
    store(sums, place + LANES, s1)
    store(sums, place + 2 * LANES, s2)
    store(sums, place + 3 * LANES, s3)


Sending = namedtuple("Sending", ["points", "stride", "weights", "inverse", "mean", "query", "back", "masses"])
"""What a row sends to columns: their coordinates in lines of `stride`, its weights for them, 1/Z, the mean of t . x, its query; and
where it goes, `back` and `masses`."""


@inlined
def scatter(tag, sending, start, stop, line):
    """Small dimensions: l, what is sent to the columns, and c in lanes (`sums`), all in registers. Returns sum l."""
    points, stride, back, masses = sending.points, sending.stride, sending.back, sending.masses
    weights, inverse, mean = sending.weights, sending.inverse, sending.mean
    sums, t, q = line.sums, chunk_of(tag, line.target, 0), chunk_of(tag, sending.query, 0)
    s0, s1, s2, s3 = load(sums, 0), load(sums, LANES), load(sums, 2 * LANES), load(sums, 3 * LANES)
    gained = fill(0.0)
    for j in range(start, stop, LANES):
        share = keep(load(weights, j), stop - j) * inverse
        logit = share * dot(tag, points, stride, j, t, fill(-mean))
        gained = gained + logit
        store(masses, j, load(masses, j) + logit)
        store(back, j, load(back, j) + (share * t[0] + logit * q[0]))
        s0 = s0 + logit * load(points, j)
        store(back, stride + j, load(back, stride + j) + (share * t[1] + logit * q[1]))
        s1 = s1 + logit * load(points, stride + j)
        if tag.ndim > 2:
            store(back, 2 * stride + j, load(back, 2 * stride + j) + (share * t[2] + logit * q[2]))
            s2 = s2 + logit * load(points, 2 * stride + j)
        if tag.ndim > 3:
            store(back, 3 * stride + j, load(back, 3 * stride + j) + (share * t[3] + logit * q[3]))
            s3 = s3 + logit * load(points, 3 * stride + j)
    store(sums, 0, s0)
    store(sums, LANES, s1)
    store(sums, 2 * LANES, s2)
    store(sums, 3 * LANES, s3)
    return total(gained)


@inlined
def scatter_logits(tag, sending, padded, start, stop, line):
    """Large dimensions: l into `logits`, and to the masses. Returns sum l."""
    points, stride, weights, masses = sending.points, sending.stride, sending.weights, sending.masses
    inverse = sending.inverse
    gained = fill(0.0)
    for j in range(start, stop, LANES):
        u = fill(-sending.mean)
        for a in range(0, padded, 4):
            u = dot(tag, points, stride, a * stride + j, chunk_of(tag, line.target, a), u)
        logit = keep(load(weights, j), stop - j) * inverse * u
        gained = gained + logit
        store(line.logits, j, logit)
        store(masses, j, load(masses, j) + logit)
    return total(gained)


@inlined
def scatter_chunk(sending, start, stop, line, a):
    """Large dimensions: what is sent to the columns, and c in lanes (`sums`), for the components a..a + 3."""
    points, stride, weights, back = sending.points, sending.stride, sending.weights, sending.back
    query, inverse = sending.query, sending.inverse
    target, sums, place = line.target, line.sums, a * LANES
    t0, t1 = target[a] * inverse, target[a + 1] * inverse
    t2, t3 = target[a + 2] * inverse, target[a + 3] * inverse
    q0, q1, q2, q3 = query[a], query[a + 1], query[a + 2], query[a + 3]
    s0, s1 = load(sums, place), load(sums, place + LANES)
    s2, s3 = load(sums, place + 2 * LANES), load(sums, place + 3 * LANES)
    first, second, third, fourth = a * stride, (a + 1) * stride, (a + 2) * stride, (a + 3) * stride
    for j in range(start, stop, LANES):
        weight, logit = keep(load(weights, j), stop - j), load(line.logits, j)
        store(back, first + j, load(back, first + j) + (weight * t0 + logit * q0))
        s0 = s0 + logit * load(points, first + j)
        store(back, second + j, load(back, second + j) + (weight * t1 + logit * q1))
        s1 = s1 + logit * load(points, second + j)
        store(back, third + j, load(back, third + j) + (weight * t2 + logit * q2))
        s2 = s2 + logit * load(points, third + j)
        store(back, fourth + j, load(back, fourth + j) + (weight * t3 + logit * q3))
        s3 = s3 + logit * load(points, fourth + j)
    store(sums, place, s0)
    store(sums, place + LANES, s1)
    store(sums, place + 2 * LANES, s2)
    store(sums, place + 3 * LANES, s3)


@inlined
def clear(memory, sums):
    """No sums."""
    for a in range(max(4, memory.padded)):
        store(sums, a * LANES, fill(0.0))
