"""Direct sums in large dimension: tiles of four rows against blocks of columns; two matrix products with the weights between.

Four rows by two vectors: eight sums run at once, which hides the latency of the multiply-add unit.
Logits come from strips of L = LANES tokens, `strips[(j // L) dim L + a L + j % L]`, mean positions from strips of L coordinates,
`points[(a // L) n L + j L + a % L]`: both are read straight through. Twelve tiles share a block of columns while it is cached.
The token itself stays out of the sum of positions (see `general`), so small forces keep their relative accuracy; the running
maximum of a row is raised block by block, as in arXiv:2205.14135.
"""

from __future__ import annotations

from typing import NamedTuple

from metastable._checks import FloatArray
from metastable.kernels.cpu.chunks import get_four, no_four, put_four
from metastable.kernels.cpu.compiled import inlined, inner, vectors
from metastable.kernels.cpu.fastmath import LOWEST_EXPONENT
from metastable.kernels.cpu.general import LOWEST, add_head, emit, set_query
from metastable.kernels.cpu.problem import Problem
from metastable.kernels.cpu.rules import biased, row_logits
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, largest, load, maximum, spread, store, total, where

ROWS = 4
COLUMNS = 128
SMALLEST = 2.0**LOWEST_EXPONENT
STACK = 12
"""Tiles that share a block of columns."""


class Tile(NamedTuple):
    """Memory of a stack of tiles: for each of its rows the query (dim numbers, those of a tile's four rows side by side), the sum of
    positions and the drift (`wide` numbers), and a number each: the largest logit, the weight of the `others` and of the token
    `itself`, and the part of the drift `along` it. For one tile: `logits` or weights of a block, a token and a query."""

    logits: FloatArray
    query: FloatArray
    sums: FloatArray
    drift: FloatArray
    tops: FloatArray
    others: FloatArray
    itself: FloatArray
    along: FloatArray
    own: FloatArray
    own_query: FloatArray


def make_tile(problem: Problem, lines: int) -> Tile:
    """So many lines of memory."""
    rows, wide = STACK * ROWS, problem.wide
    sizes = (ROWS * COLUMNS, rows * problem.dim, rows * wide, rows * wide, rows, rows, rows, rows, wide, wide)
    return Tile(*(vectors(-(-size // LANES), lines) for size in sizes))


@inlined
def set_token(problem, buffers, k, a, value):
    """Coordinate a of token k into both layouts."""
    buffers.x[(k // LANES * problem.dim + a) * LANES + k % LANES] = value
    buffers.points[(a // LANES * problem.tokens + k) * LANES + a % LANES] = value


@inlined
def _add(rows, x, factors, place, stride):
    """Add a vector to each of the four rows, times a number each."""
    return (
        rows[0] + x * spread(factors, place),
        rows[1] + x * spread(factors, place + stride),
        rows[2] + x * spread(factors, place + 2 * stride),
        rows[3] + x * spread(factors, place + 3 * stride),
    )


@inner
def _logits(query, dim, strips, start, stop, logits):
    """logits[r COLUMNS + (j - start)] = q_r . x_j for four rows and the columns start..stop (start in whole vectors)."""
    for j in range(start, stop, 2 * LANES):
        left = right = no_four()
        strip = j * dim
        for a in range(dim):
            left = _add(left, load(strips, strip + a * LANES), query, ROWS * a, 1)
            right = _add(right, load(strips, strip + (dim + a) * LANES), query, ROWS * a, 1)
        put_four(logits, j - start, COLUMNS, left)
        put_four(logits, j - start + LANES, COLUMNS, right)


@inner
def _positions(weights, points, tokens, wide, start, stop, sums):
    """sums[r wide + a] += sum_j weights[r, j - start] points[j, a] for four rows."""
    for a in range(0, wide, 2 * LANES):
        left, right = get_four(sums, a, wide), get_four(sums, a + LANES, wide)
        for j in range(start, stop):
            left = _add(left, load(points, a * tokens + j * LANES), weights, j - start, COLUMNS)
            right = _add(right, load(points, (a + LANES) * tokens + j * LANES), weights, j - start, COLUMNS)
        put_four(sums, a, wide, left)
        put_four(sums, a + LANES, wide, right)


@inlined
def _inside(j, low, high):
    """One in the lanes of the columns from j on that lie in [low, high), else zero."""
    return keep(fill(1.0), high - j) - keep(fill(1.0), min(high, low) - j)


@inlined
def _block_top(logits, columns, seen):
    """Largest logit of a row of a block within the tokens that are `seen` (first, last)."""
    start, stop = columns
    low, high = seen
    top = fill(LOWEST)
    for j in range(start, stop, LANES):
        logit = load(logits, j - start)
        if j < low or j + LANES > high:
            logit = where(_inside(j, low, high), logit, LOWEST)
        top = maximum(top, logit)
    return largest(top)


@inlined
def _block_weights(logits, columns, seen, top):
    """Turn the logits of a row of a block into weights (zero outside of what is `seen`); returns their sum."""
    start, stop = columns
    low, high = seen
    weight_sum = fill(0.0)
    for j in range(start, stop, LANES):
        weight = exp2(load(logits, j - start) - top)
        if j < low or j + LANES > high:
            weight = where(_inside(j, low, high), weight, 0.0)
        store(logits, j - start, weight)
        weight_sum = weight_sum + weight
    return total(weight_sum)


@inlined
def _block_row(problem, head, k, q, columns, i, memory):
    """Weights of token k, row i of the stack, in one block; raises its largest logit and rescales what was summed before, where
    needed."""
    start, stop = columns
    low = problem.intervals[k, q, 0]
    high = problem.intervals[k, q, 1]
    row = i % ROWS * COLUMNS
    logits = memory.logits[row : row + COLUMNS]
    if biased(problem, head):
        for j in range(start, stop, LANES):
            store(logits, j - start, row_logits(problem, head, k, j, load(logits, j - start)))
    if not (problem.unnormalized or problem.bounded[head]):
        top = _block_top(logits, columns, (low, high))
        if top > memory.tops[i]:
            factor = exp2(max(memory.tops[i] - top, -2000.0))
            memory.others[i] *= factor
            memory.itself[i] *= factor
            for a in range(i * problem.wide, (i + 1) * problem.wide):
                memory.sums[a] *= factor
            memory.tops[i] = top
    own = start <= k < stop and low <= k < high
    if own:
        memory.itself[i] = exp2(logits[k - start] - memory.tops[i])
        logits[k - start] = LOWEST
    memory.others[i] += _block_weights(logits, columns, (low, high), memory.tops[i])
    if own:
        # exp2 never returns zero: take out what stands for the token itself.
        memory.others[i] -= SMALLEST
        logits[k - start] = 0.0


@inner
def _frozen_logit(problem, j, query, r):
    """q . y_j of a frozen token for row r of a tile."""
    logit = 0.0
    for a in range(problem.dim):
        logit += query[ROWS * a + r] * problem.frozen[a * problem.mass.size + j]
    return logit


@inner
def _start_row(problem, head, i, query, memory):
    """Nothing summed yet for row i of the stack, whose tile has the queries `query`; the largest logit where it is known, else that of
    the frozen tokens."""
    top = LOWEST
    if problem.unnormalized or problem.bounded[head]:
        top = 0.0 if problem.unnormalized else problem.beta[head]
    else:
        for j in range(problem.frozen_count):
            top = max(top, _frozen_logit(problem, j, query, i % ROWS))
    memory.tops[i] = top
    memory.others[i] = 0.0
    memory.itself[i] = 0.0
    for a in range(i * problem.wide, (i + 1) * problem.wide):
        memory.sums[a] = 0.0


@inlined
def _range(problem, first, count, q):
    """Columns that any of the rows first..first + count sees in the q-th range: first (rounded down to a vector) and last."""
    begin = problem.intervals[first, q, 0]
    end = problem.intervals[first, q, 1]
    for r in range(1, count):
        begin = min(begin, problem.intervals[first + r, q, 0])
        end = max(end, problem.intervals[first + r, q, 1])
    return begin // LANES * LANES, end


@inner
def _stack_sums(problem, head, buffers, first, last, memory):
    """For the rows first..last, at most STACK tiles: sums of weights and of weight times position, both without the token itself."""
    tile_query, tile_sums = ROWS * problem.dim, ROWS * problem.wide
    for q in range(2):
        begin, end = _range(problem, first, last - first, q)
        for start in range(begin, end, COLUMNS):
            for first_row in range(first, last, ROWS):
                tile = (first_row - first) // ROWS
                count = min(ROWS, last - first_row)
                low, high = _range(problem, first_row, count, q)
                stop = min(start + COLUMNS, high)
                if stop <= low or stop <= start:
                    continue
                query = memory.query[tile * tile_query : (tile + 1) * tile_query]
                _logits(query, problem.dim, buffers.x, start, stop, memory.logits)
                for r in range(count):
                    _block_row(problem, head, first_row + r, q, (start, stop), tile * ROWS + r, memory)
                for r in range(count, ROWS):
                    for i in range(stop - start):
                        memory.logits[r * COLUMNS + i] = 0.0
                sums = memory.sums[tile * tile_sums : (tile + 1) * tile_sums]
                _positions(memory.logits, buffers.points, problem.tokens, problem.wide, start, stop, sums)


@inlined
def _token(problem, points, k, own):
    """Token k, its coordinates together."""
    for a in range(problem.dim):
        own[a] = points[(a // LANES * problem.tokens + k) * LANES + a % LANES]


@inlined
def _finish_row(problem, head, k, i, query, memory):
    """Add the frozen tokens to row i of the stack, and the head to its drift."""
    wide, own = problem.wide, memory.own
    sums = memory.sums[i * wide : (i + 1) * wide]
    weight_sum = memory.others[i]
    frozen = 0.0
    for j in range(problem.frozen_count):
        weight = exp2(_frozen_logit(problem, j, query, i % ROWS) - memory.tops[i]) * problem.mass[j]
        frozen += weight
        for a in range(problem.dim):
            sums[a] += weight * problem.frozen[a * problem.mass.size + j]
    weight_sum += frozen
    for a in range(problem.dim):
        sums[a] -= weight_sum * own[a]
    drift = memory.drift[i * wide : (i + 1) * wide]
    memory.along[i] += add_head(problem, head, k, weight_sum + memory.itself[i], own, sums, drift)


@inner
def rows(problem, pace, buffers, memory, first, last, out):
    """Velocities of the tokens first..last of one system into `out`."""
    dim, wide, own = problem.dim, problem.wide, memory.own
    for base in range(first, last, STACK * ROWS):
        end = min(base + STACK * ROWS, last)
        for i in range(STACK * ROWS):
            memory.along[i] = 0.0
        for i in range(STACK * ROWS * dim):
            memory.query[i] = 0.0
        for i in range(STACK * ROWS * wide):
            memory.drift[i] = 0.0
        for head in range(problem.beta.size):
            for k in range(base, end):
                tile, r = divmod(k - base, ROWS)
                _token(problem, buffers.points, k, own)
                set_query(problem, head, own, memory.own_query)
                query = memory.query[tile * ROWS * dim :]
                for a in range(dim):
                    query[ROWS * a + r] = memory.own_query[a]
                _start_row(problem, head, k - base, query, memory)
            _stack_sums(problem, head, buffers, base, end, memory)
            for k in range(base, end):
                _token(problem, buffers.points, k, own)
                _finish_row(problem, head, k, k - base, memory.query[(k - base) // ROWS * ROWS * dim :], memory)
        for k in range(base, end):
            i = k - base
            _token(problem, buffers.points, k, own)
            emit(problem, pace, own, memory.drift[i * wide : (i + 1) * wide], memory.along[i], out, k)
