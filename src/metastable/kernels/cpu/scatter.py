"""Memory of the compiled pullback, and its sums over the columns of a row (`pullback` says what they are for).

Components come in `chunks`. Dimensions above four are looped over for `TILE` columns at a time, which stay in the cache meanwhile.
"""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cpu.chunks import (
    chunk_tag,
    columns_of,
    dot,
    get_four,
    numbers_of,
    padded_dimension,
    put_four,
    store_first,
    with_gaps,
)
from metastable.kernels.cpu.compiled import inlined, vectors
from metastable.kernels.cpu.problem import Problem
from metastable.kernels.cpu.rules import biased, row_logits
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, load, store, total

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
def dots(memory, points, stride, j, vector, value):
    """`value` + <vector, x_j> for the points of one vector, from j on, whose coordinates are lines of `stride`."""
    size = memory.tag.ndim
    for a in range(0, memory.padded, size):
        value = dot(size, columns_of(size, points, a * stride + j, stride), numbers_of(size, vector, a), value)
    return value


@inlined
def token_logits(memory, head, k, j, query, plain):
    """Logits of the tokens j, j + 1, ... of row k."""
    logit = dots(memory, memory.x, memory.stride, j, query, fill(0.0))
    return logit if plain else row_logits(memory.problem, head, k, j, logit)


@inlined
def weigh(memory, head, k, start, stop, top, line):
    """Weights of the tokens start..stop; D of the first chunk of components is added to `sums`. Returns the sum of the weights."""
    size, weights = memory.tag.ndim, line.weights[head]
    plain, small = not biased(memory.problem, head), memory.padded == size
    own, query = numbers_of(size, line.own, 0), numbers_of(size, line.query[head], 0)
    weight_sum, sums = fill(0.0), get_four(line.sums, 0, LANES)
    for j in range(start, stop, LANES):
        columns = columns_of(size, memory.x, j, memory.stride)
        # In small dimensions logits are made again: that takes less time than to read them.
        if small:
            logit = dot(size, columns, query, fill(-top))
            if not plain:
                logit = row_logits(memory.problem, head, k, j, logit)
        else:
            logit = load(weights, j) - top
        weight = keep(exp2(logit), stop - j)
        weight_sum = weight_sum + weight
        sums = with_gaps(size, sums, weight, columns, own)
        store_first(weights, j, weight, stop - j)
    put_four(line.sums, 0, LANES, sums)
    return weight_sum


@inlined
def moments(memory, start, stop, weights, a, line):
    """Add `sum_j weights_j (x_j - x_k)` of the components a..a + 3 to `sums`."""
    stride, own, sums = memory.stride, numbers_of(4, line.own, a), get_four(line.sums, a * LANES, LANES)
    for j in range(start, stop, LANES):
        weight = keep(load(weights, j), stop - j)
        sums = with_gaps(4, sums, weight, columns_of(4, memory.x, a * stride + j, stride), own)
    put_four(line.sums, a * LANES, LANES, sums)


Sending = namedtuple("Sending", ["points", "stride", "weights", "inverse", "mean", "query", "back", "masses"])
"""What a row sends to columns: their coordinates in lines of `stride`, its weights for them, 1/Z, the mean of t . x, its query; and
where it goes, `back` and `masses`."""


@inlined
def _exchange(sending, place, share, target, logit, query, gathered):
    """One component of the columns of a vector: `share target + logit query` goes back to them, and `logit x_j` is gathered."""
    store(sending.back, place, load(sending.back, place) + (share * target + logit * query))
    return gathered + logit * load(sending.points, place)


@inlined
def _exchange_chunk(size, sending, place, share, target, logit, query, sums):
    """The same for a chunk of components, the first of which is at `place`; returns the sums with what is gathered."""
    stride = sending.stride
    s0, s1, s2, s3 = sums
    s0 = _exchange(sending, place, share, target[0], logit, query[0], s0)
    s1 = _exchange(sending, place + stride, share, target[1], logit, query[1], s1)
    if size > 2:
        s2 = _exchange(sending, place + 2 * stride, share, target[2], logit, query[2], s2)
    if size > 3:
        s3 = _exchange(sending, place + 3 * stride, share, target[3], logit, query[3], s3)
    return s0, s1, s2, s3


@inlined
def _scatter_small(size, sending, start, stop, line):
    """Small dimensions: l, what is sent to the columns, and c in lanes (`sums`), all in registers. Returns sum l."""
    weights, masses, inverse, mean = sending.weights, sending.masses, sending.inverse, sending.mean
    target, query = numbers_of(size, line.target, 0), numbers_of(size, sending.query, 0)
    gained, sums = fill(0.0), get_four(line.sums, 0, LANES)
    for j in range(start, stop, LANES):
        share = keep(load(weights, j), stop - j) * inverse
        columns = columns_of(size, sending.points, j, sending.stride)
        logit = share * dot(size, columns, target, fill(-mean))
        gained = gained + logit
        store(masses, j, load(masses, j) + logit)
        sums = _exchange_chunk(size, sending, j, share, target, logit, query, sums)
    put_four(line.sums, 0, LANES, sums)
    return total(gained)


@inlined
def _scatter_logits(memory, sending, start, stop, line):
    """Large dimensions: l into `logits`, and to the masses. Returns sum l."""
    masses, gained = sending.masses, fill(0.0)
    for j in range(start, stop, LANES):
        u = dots(memory, sending.points, sending.stride, j, line.target, fill(-sending.mean))
        logit = keep(load(sending.weights, j), stop - j) * sending.inverse * u
        gained = gained + logit
        store(line.logits, j, logit)
        store(masses, j, load(masses, j) + logit)
    return total(gained)


@inlined
def _scatter_chunk(sending, start, stop, line, a):
    """Large dimensions: what is sent to the columns, and c in lanes (`sums`), for the components a..a + 3."""
    stride, inverse = sending.stride, sending.inverse
    t0, t1, t2, t3 = numbers_of(4, line.target, a)
    target, query = (t0 * inverse, t1 * inverse, t2 * inverse, t3 * inverse), numbers_of(4, sending.query, a)
    sums = get_four(line.sums, a * LANES, LANES)
    for j in range(start, stop, LANES):
        weight, logit = keep(load(sending.weights, j), stop - j), load(line.logits, j)
        sums = _exchange_chunk(4, sending, a * stride + j, weight, target, logit, query, sums)
    put_four(line.sums, a * LANES, LANES, sums)


@inlined
def scatter(memory, sending, start, stop, line):
    """What a row sends to the columns start..stop-1: l to the masses, p t + l q to the columns, c to `sums`. Returns sum l."""
    size, padded = memory.tag.ndim, memory.padded
    if padded == size:
        return _scatter_small(size, sending, start, stop, line)
    gained = 0.0
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        gained += _scatter_logits(memory, sending, first, last, line)
        for a in range(0, padded, 4):
            _scatter_chunk(sending, first, last, line, a)
    return gained


@inlined
def clear(memory, sums):
    """No sums."""
    for a in range(max(4, memory.padded)):
        store(sums, a * LANES, fill(0.0))
