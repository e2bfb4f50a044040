"""Direct sums in large dimension: tiles of six rows against blocks of columns, two small matrix products and the weights between.

Six rows by one vector keep all accumulators in registers on processors with 16 (AVX) as well as 32 (AVX-512) of them.
Logits come from coordinates-first tokens `x[a stride + j]`, mean positions from tokens-first rows `points[j wide + a]`.
The token itself stays out of the sum of positions (see `general`), so small forces keep their relative accuracy; the running
maximum of a row is raised block by block, as in arXiv:2205.14135.
"""

from __future__ import annotations

from metastable.kernels.cpu.compiled import compiled, inner
from metastable.kernels.cpu.fastmath import exp2 as exp2_scalar
from metastable.kernels.cpu.general import LOWEST, add_head, emit, set_query
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, lanes, largest, load, maximum, store, total, where

ROWS = 6
COLUMNS = 128


@compiled
def work_size(dim):
    """Numbers of scratch memory that `tile` needs."""
    wide = (dim + LANES - 1) // LANES * LANES
    return ROWS * (COLUMNS + 3 * dim + 2 * wide + 4) + 8 * LANES


@inner
def _logits(query, dim, x, stride, start, stop, logits):
    """logits[r COLUMNS + (j - start)] = q_r . x_j for six rows and the columns start..stop."""
    for j in range(start, stop, LANES):
        s0 = fill(0.0)
        s1 = fill(0.0)
        s2 = fill(0.0)
        s3 = fill(0.0)
        s4 = fill(0.0)
        s5 = fill(0.0)
        for a in range(dim):
            column = load(x, a * stride + j)
            place = ROWS * a
            s0 = s0 + column * query[place]
            s1 = s1 + column * query[place + 1]
            s2 = s2 + column * query[place + 2]
            s3 = s3 + column * query[place + 3]
            s4 = s4 + column * query[place + 4]
            s5 = s5 + column * query[place + 5]
        at = j - start
        store(logits, at, s0)
        store(logits, COLUMNS + at, s1)
        store(logits, 2 * COLUMNS + at, s2)
        store(logits, 3 * COLUMNS + at, s3)
        store(logits, 4 * COLUMNS + at, s4)
        store(logits, 5 * COLUMNS + at, s5)


@inner
def _positions(weights, points, wide, start, stop, sums):
    """sums[r wide + a] += sum_j weights[r, j - start] points[j, a] for six rows."""
    for a in range(0, wide, LANES):
        s0 = load(sums, a)
        s1 = load(sums, wide + a)
        s2 = load(sums, 2 * wide + a)
        s3 = load(sums, 3 * wide + a)
        s4 = load(sums, 4 * wide + a)
        s5 = load(sums, 5 * wide + a)
        for j in range(start, stop):
            point = load(points, j * wide + a)
            at = j - start
            s0 = s0 + point * weights[at]
            s1 = s1 + point * weights[COLUMNS + at]
            s2 = s2 + point * weights[2 * COLUMNS + at]
            s3 = s3 + point * weights[3 * COLUMNS + at]
            s4 = s4 + point * weights[4 * COLUMNS + at]
            s5 = s5 + point * weights[5 * COLUMNS + at]
        store(sums, a, s0)
        store(sums, wide + a, s1)
        store(sums, 2 * wide + a, s2)
        store(sums, 3 * wide + a, s3)
        store(sums, 4 * wide + a, s4)
        store(sums, 5 * wide + a, s5)


@inner
def _bias(logits, r, k, start, stop, slope):
    """Subtract slope |k - j| from row r of the block."""
    for j in range(start, stop, LANES):
        at = r * COLUMNS + j - start
        distance = lanes() + (1.0 * (j - k))
        store(logits, at, load(logits, at) - slope * maximum(distance, 0.0 - distance))


@inner
def _inside(j, low, high):
    """One in the lanes of the eight columns from j on that lie in [low, high), else zero."""
    return keep(fill(1.0), high - j) - keep(fill(1.0), min(high, low) - j)


@inner
def _block_top(logits, r, start, stop, low, high):
    """Largest logit of row r within [low, high)."""
    top = fill(LOWEST)
    for j in range(start, stop, LANES):
        top = maximum(top, where(_inside(j, low, high), load(logits, r * COLUMNS + j - start), fill(LOWEST)))
    return largest(top)


@inner
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
def _frozen(problem, k, query, r, top, sums, wide):
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


@inner
def _head_sums(problem, head, x, stride, points, wide, first, count, query, logits, tops, weight_sums, sums):
    """For six rows from `first` on (those beyond `count` are ignored): sums of weights and of weight times position, both without
    the token itself, whose weight goes to `weight_sums[ROWS + r]`."""
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
    for part in range(2):
        begin = problem.intervals[first, part, 0]
        end = problem.intervals[first, part, 1]
        for r in range(1, count):
            begin = min(begin, problem.intervals[first + r, part, 0])
            end = max(end, problem.intervals[first + r, part, 1])
        for start in range(begin, end, COLUMNS):
            stop = min(start + COLUMNS, end)
            _logits(query, problem.dim, x, stride, start, stop, logits)
            for r in range(count):
                _block_row(problem, head, logits, r, first + r, part, start, stop, fixed, tops, weight_sums, sums, wide)
            _positions(logits, points, wide, start, stop, sums)
    for r in range(count):
        weight_sums[r] += _frozen(problem, first + r, query, r, tops[r], sums, wide)


@inner
def _block_row(problem, head, logits, r, k, part, start, stop, fixed, tops, weight_sums, sums, wide):
    """Weights of one row in one block; raises the row's maximum and rescales what was summed before, where needed."""
    low = problem.intervals[k, part, 0]
    high = problem.intervals[k, part, 1]
    if problem.slope[head] != 0.0:
        _bias(logits, r, k, start, stop, problem.slope[head])
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
        logits[at] = 0.0


@inner
def tile(problem, time, x, stride, points, wide, first, last, work, out):
    """Velocities of the tokens first..last of one system into `out`."""
    dim = problem.dim
    at = 0
    logits = work[at : at + ROWS * COLUMNS]
    at += ROWS * COLUMNS
    query = work[at : at + ROWS * dim]
    at += ROWS * dim
    drift = work[at : at + ROWS * dim]
    at += ROWS * dim
    sums = work[at : at + ROWS * wide]
    at += ROWS * wide
    tops = work[at : at + ROWS]
    at += ROWS
    weight_sums = work[at : at + 2 * ROWS]
    at += 2 * ROWS
    along = work[at : at + ROWS]
    at += ROWS
    own_query = work[at : at + dim]
    for r0 in range(first, last, ROWS):
        count = min(ROWS, last - r0)
        for i in range(ROWS * dim):
            drift[i] = 0.0
            query[i] = 0.0
        for r in range(ROWS):
            along[r] = 0.0
        for head in range(problem.beta.size):
            for r in range(count):
                set_query(problem, head, points[(r0 + r) * wide : (r0 + r) * wide + dim], own_query)
                for a in range(dim):
                    query[ROWS * a + r] = own_query[a]
            _head_sums(problem, head, x, stride, points, wide, r0, count, query, logits, tops, weight_sums, sums)
            for r in range(count):
                own = points[(r0 + r) * wide : (r0 + r) * wide + dim]
                difference = sums[r * wide : r * wide + dim]
                for a in range(dim):
                    difference[a] -= weight_sums[r] * own[a]
                everyone = weight_sums[r] + weight_sums[ROWS + r]
                along[r] += add_head(problem, head, r0 + r, everyone, own, difference, drift[r * dim : (r + 1) * dim])
        for r in range(count):
            own = points[(r0 + r) * wide : (r0 + r) * wide + dim]
            emit(problem, time, own, drift[r * dim : (r + 1) * dim], along[r], out, r0 + r)
