"""Direct sums in large dimension: tiles of four rows against blocks of columns; two matrix products with the weights between.

Four rows by two vectors: eight sums run at once, which hides the latency of the multiply-add unit.
Logits come from panels of L = LANES tokens, `panels[(j // L) dim L + a L + j % L]`, mean positions from panels of L coordinates,
`points[(a // L) n L + j L + a % L]`: both are read straight through. Twelve tiles share a block of columns while it is cached.
The token itself stays out of the sum of positions (see `general`), so small forces keep their relative accuracy; the running
maximum of a row is raised block by block, as in arXiv:2205.14135.
"""

from __future__ import annotations

from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.fastmath import LOWEST_EXPONENT
from metastable.kernels.cpu.fastmath import exp2 as exp2_scalar
from metastable.kernels.cpu.general import LOWEST, add_head, emit, set_query
from metastable.kernels.cpu.rules import biased, row_logits
from metastable.kernels.cpu.vector import (
    LANES,
    exp2,
    fill,
    keep,
    largest,
    load,
    maximum,
    spread,
    store,
    total,
    where,
)

ROWS = 4
COLUMNS = 128
SMALLEST = 2.0**LOWEST_EXPONENT
STACK = 12
"""Tiles that share a block of columns."""


def work_size(dim: int, wide: int) -> int:
    """Numbers of scratch memory that `rows` needs."""
    return ROWS * COLUMNS + STACK * ROWS * (dim + 2 * wide + 4) + 2 * wide


@inner
def _logits(query, dim, panels, start, stop, logits):
    """logits[r COLUMNS + (j - start)] = q_r . x_j for four rows and the columns start..stop (start in whole vectors)."""
    for j in range(start, stop, 2 * LANES):
        s0 = fill(0.0)
        s1 = fill(0.0)
        s2 = fill(0.0)
        s3 = fill(0.0)
        t0 = fill(0.0)
        t1 = fill(0.0)
        t2 = fill(0.0)
        t3 = fill(0.0)
        panel = j * dim
        other = panel + dim * LANES
        for a in range(dim):
            x = load(panels, panel + a * LANES)
            y = load(panels, other + a * LANES)
            q = spread(query, ROWS * a)
            s0 = s0 + x * q
            t0 = t0 + y * q
            q = spread(query, ROWS * a + 1)
            s1 = s1 + x * q
            t1 = t1 + y * q
            q = spread(query, ROWS * a + 2)
            s2 = s2 + x * q
            t2 = t2 + y * q
            q = spread(query, ROWS * a + 3)
            s3 = s3 + x * q
            t3 = t3 + y * q
        at = j - start
        store(logits, at, s0)
        store(logits, at + LANES, t0)
        store(logits, COLUMNS + at, s1)
        store(logits, COLUMNS + at + LANES, t1)
        store(logits, 2 * COLUMNS + at, s2)
        store(logits, 2 * COLUMNS + at + LANES, t2)
        store(logits, 3 * COLUMNS + at, s3)
        store(logits, 3 * COLUMNS + at + LANES, t3)


@inner
def _positions(weights, points, tokens, wide, start, stop, sums):
    """sums[r wide + a] += sum_j weights[r, j - start] points[j, a] for four rows."""
    for a in range(0, wide, 2 * LANES):
        s0 = load(sums, a)
        s1 = load(sums, wide + a)
        s2 = load(sums, 2 * wide + a)
        s3 = load(sums, 3 * wide + a)
        t0 = load(sums, a + LANES)
        t1 = load(sums, wide + a + LANES)
        t2 = load(sums, 2 * wide + a + LANES)
        t3 = load(sums, 3 * wide + a + LANES)
        panel = a * tokens
        other = panel + LANES * tokens
        for j in range(start, stop):
            x = load(points, panel + j * LANES)
            y = load(points, other + j * LANES)
            at = j - start
            w = spread(weights, at)
            s0 = s0 + x * w
            t0 = t0 + y * w
            w = spread(weights, COLUMNS + at)
            s1 = s1 + x * w
            t1 = t1 + y * w
            w = spread(weights, 2 * COLUMNS + at)
            s2 = s2 + x * w
            t2 = t2 + y * w
            w = spread(weights, 3 * COLUMNS + at)
            s3 = s3 + x * w
            t3 = t3 + y * w
        store(sums, a, s0)
        store(sums, wide + a, s1)
        store(sums, 2 * wide + a, s2)
        store(sums, 3 * wide + a, s3)
        store(sums, a + LANES, t0)
        store(sums, wide + a + LANES, t1)
        store(sums, 2 * wide + a + LANES, t2)
        store(sums, 3 * wide + a + LANES, t3)


@inlined
def _bias(problem, head, logits, r, k, start, stop):
    """Add to row r of the block what logits have besides the directions."""
    for j in range(start, stop, LANES):
        at = r * COLUMNS + j - start
        store(logits, at, row_logits(problem, head, k, j, load(logits, at)))


@inlined
def _inside(j, low, high):
    """One in the lanes of the columns from j on that lie in [low, high), else zero."""
    return keep(fill(1.0), high - j) - keep(fill(1.0), min(high, low) - j)


@inlined
def _block_top(logits, r, start, stop, low, high):
    """Largest logit of row r within [low, high)."""
    top = fill(LOWEST)
    for j in range(start, stop, LANES):
        logit = load(logits, r * COLUMNS + j - start)
        if j < low or j + LANES > high:
            logit = where(_inside(j, low, high), logit, fill(LOWEST))
        top = maximum(top, logit)
    return largest(top)


@inlined
def _block_weights(logits, r, start, stop, low, high, top):
    """Turn logits of row r into weights (zero outside [low, high)); returns their sum."""
    weight_sum = fill(0.0)
    for j in range(start, stop, LANES):
        at = r * COLUMNS + j - start
        weight = exp2(load(logits, at) - top)
        if j < low or j + LANES > high:
            weight = where(_inside(j, low, high), weight, fill(0.0))
        store(logits, at, weight)
        weight_sum = weight_sum + weight
    return total(weight_sum)


@inner
def _frozen(problem, query, r, top, sums, wide):
    """Add the frozen tokens to row r; returns their weight."""
    dim = problem.dim
    width = problem.mass.size
    weight_sum = 0.0
    for j in range(problem.frozen_count):
        logit = 0.0
        for a in range(dim):
            logit += query[ROWS * a + r] * problem.frozen[a * width + j]
        weight = exp2_scalar(logit - top) * problem.mass[j]
        weight_sum += weight
        for a in range(dim):
            sums[r * wide + a] += weight * problem.frozen[a * width + j]
    return weight_sum


@inner
def _frozen_top(problem, query, r):
    """Largest logit of a frozen token for row r."""
    top = LOWEST
    width = problem.mass.size
    for j in range(problem.frozen_count):
        logit = 0.0
        for a in range(problem.dim):
            logit += query[ROWS * a + r] * problem.frozen[a * width + j]
        top = max(top, logit)
    return top


@inlined
def _reset(problem, head, count, query, tops, weight_sums, sums, wide):
    """Empty sums for one tile; returns whether the maximum of its logits is known beforehand."""
    fixed = problem.unnormalized or problem.bounded[head]
    for r in range(ROWS):
        weight_sums[r] = 0.0
        weight_sums[ROWS + r] = 0.0
        if fixed:
            tops[r] = 0.0 if problem.unnormalized else problem.beta[head]
        else:
            tops[r] = _frozen_top(problem, query, r)
    for i in range(ROWS * wide):
        sums[i] = 0.0
    return fixed


@inlined
def _range(problem, first, count, part):
    """Columns that any of the rows first..first + count sees in one part: first (rounded down to a vector) and last."""
    begin = problem.intervals[first, part, 0]
    end = problem.intervals[first, part, 1]
    for r in range(1, count):
        begin = min(begin, problem.intervals[first + r, part, 0])
        end = max(end, problem.intervals[first + r, part, 1])
    return begin // LANES * LANES, end


@inner
def _stack_sums(problem, head, panels, points, wide, first, last, query, logits, tops, weight_sums, sums):
    """For the rows first..last, at most STACK tiles: sums of weights and of weight times position, both without the token itself,
    whose weight goes to the second ROWS entries of a tile's `weight_sums`. Arrays hold one part per tile."""
    dim = problem.dim
    fixed = True
    for first_row in range(first, last, ROWS):
        tile = (first_row - first) // ROWS
        fixed = _reset(
            problem,
            head,
            min(ROWS, last - first_row),
            query[tile * ROWS * dim :],
            tops[tile * ROWS :],
            weight_sums[2 * tile * ROWS :],
            sums[tile * ROWS * wide :],
            wide,
        )
    for part in range(2):
        begin, end = _range(problem, first, last - first, part)
        for start in range(begin, end, COLUMNS):
            for first_row in range(first, last, ROWS):
                tile = (first_row - first) // ROWS
                count = min(ROWS, last - first_row)
                low, high = _range(problem, first_row, count, part)
                stop = min(start + COLUMNS, high)
                if stop <= low or stop <= start:
                    continue
                own_sums = sums[tile * ROWS * wide : (tile + 1) * ROWS * wide]
                own_tops = tops[tile * ROWS : (tile + 1) * ROWS]
                own_weights = weight_sums[2 * tile * ROWS : 2 * (tile + 1) * ROWS]
                _logits(query[tile * ROWS * dim : (tile + 1) * ROWS * dim], dim, panels, start, stop, logits)
                for r in range(count):
                    k = first_row + r
                    _block_row(
                        problem, head, logits, r, k, part, start, stop, fixed, own_tops, own_weights, own_sums, wide
                    )
                for r in range(count, ROWS):
                    for i in range(stop - start):
                        logits[r * COLUMNS + i] = 0.0
                _positions(logits, points, problem.tokens, wide, start, stop, own_sums)


@inlined
def _block_row(problem, head, logits, r, k, part, start, stop, fixed, tops, weight_sums, sums, wide):
    """Weights of one row in one block; raises the row's maximum and rescales what was summed before, where needed."""
    low = problem.intervals[k, part, 0]
    high = problem.intervals[k, part, 1]
    if biased(problem, head):
        _bias(problem, head, logits, r, k, start, stop)
    if not fixed:
        top = _block_top(logits, r, start, stop, low, high)
        if top > tops[r]:
            factor = exp2_scalar(max(tops[r] - top, -2000.0))
            weight_sums[r] *= factor
            weight_sums[ROWS + r] *= factor
            for a in range(wide):
                sums[r * wide + a] *= factor
            tops[r] = top
    own = start <= k < stop and low <= k < high
    at = r * COLUMNS + k - start
    if own:
        weight_sums[ROWS + r] = exp2_scalar(logits[at] - tops[r])
        logits[at] = LOWEST
    weight_sums[r] += _block_weights(logits, r, start, stop, low, high, tops[r])
    if own:
        # exp2 never returns zero: take out what stands for the token itself.
        weight_sums[r] -= SMALLEST
        logits[at] = 0.0


@inlined
def _token(problem, points, k, own):
    """Token k, its coordinates together."""
    for a in range(problem.dim):
        own[a] = points[(a // LANES * problem.tokens + k) * LANES + a % LANES]


@inner
def rows(problem, pace, panels, points, first, last, work, out):
    """Velocities of the tokens first..last of one system into `out`."""
    dim = problem.dim
    wide = problem.wide
    at = 0
    logits = work[at : at + ROWS * COLUMNS]
    at += ROWS * COLUMNS
    query = work[at : at + STACK * ROWS * dim]
    at += STACK * ROWS * dim
    sums = work[at : at + STACK * ROWS * wide]
    at += STACK * ROWS * wide
    drift = work[at : at + STACK * ROWS * wide]
    at += STACK * ROWS * wide
    own_query = work[at : at + wide]
    at += wide
    own = work[at : at + wide]
    at += wide
    tops = work[at : at + STACK * ROWS]
    at += STACK * ROWS
    weight_sums = work[at : at + 2 * STACK * ROWS]
    at += 2 * STACK * ROWS
    along = work[at : at + STACK * ROWS]
    for base in range(first, last, STACK * ROWS):
        end = min(base + STACK * ROWS, last)
        for i in range(STACK * ROWS * dim):
            query[i] = 0.0
        for i in range(STACK * ROWS * wide):
            drift[i] = 0.0
        for i in range(STACK * ROWS):
            along[i] = 0.0
        for head in range(problem.beta.size):
            for k in range(base, end):
                tile, r = divmod(k - base, ROWS)
                _token(problem, points, k, own)
                set_query(problem, head, own, own_query)
                for a in range(dim):
                    query[(tile * dim + a) * ROWS + r] = own_query[a]
            _stack_sums(problem, head, panels, points, wide, base, end, query, logits, tops, weight_sums, sums)
            for k in range(base, end):
                i = k - base
                tile, r = divmod(i, ROWS)
                own_sums = sums[tile * ROWS * wide : (tile + 1) * ROWS * wide]
                others = weight_sums[2 * tile * ROWS + r]
                others += _frozen(problem, query[tile * ROWS * dim :], r, tops[i], own_sums, wide)
                _token(problem, points, k, own)
                difference = own_sums[r * wide : r * wide + dim]
                for a in range(dim):
                    difference[a] -= others * own[a]
                everyone = others + weight_sums[(2 * tile + 1) * ROWS + r]
                along[i] += add_head(problem, head, k, everyone, own, difference, drift[i * wide : (i + 1) * wide])
        for k in range(base, end):
            i = k - base
            _token(problem, points, k, own)
            emit(problem, pace, own, drift[i * wide : (i + 1) * wide], along[i], out, k)
