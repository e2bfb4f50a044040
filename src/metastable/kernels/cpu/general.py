"""Direct sums in any dimension: heads, general Q, K, V, unnormalised weights, positional bias, frozen tokens.

Head by head, with q = beta M^T x_k (M = Q^T K) and logits q . x_j - slope |k - j| in base 2,

    D = sum_j w_kj (x_j - x_k),   W = sum_j w_kj,   A_k = V (W x_k + D) / Z,   Z = W (softmax) or what `problem.visible` says.

Only the part of A_k across x_k moves the token, and P V x_k = P (V - axial I) x_k for any number `axial`. So the drift is
assembled as `(V D + W (V - axial I) x_k) / Z`, which for V = I is just D: a force far below the rounding of x_k is kept.
`axial W / Z`, the part along x_k, is carried beside it for norms that need |A_k|.

The maximum of a row's logits is subtracted first. For Q^T K = I it is beta, reached by the token itself; else it takes a pass.
"""

from __future__ import annotations

from typing import NamedTuple

from metastable._checks import FloatArray
from metastable.kernels.cpu.chunks import add_totals, columns_of, dot, no_four, numbers_of, with_gaps
from metastable.kernels.cpu.compiled import inlined, inner, vectors
from metastable.kernels.cpu.problem import Problem
from metastable.kernels.cpu.rules import biased, divisor, member_logit, norm_factor, row_logits, seen_range
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, largest, load, maximum, spread, store, total, where

LOWEST = -1e300
"""Stands for minus infinity in a maximum."""


# --------------------------------------------------------------------------------------- members, one per lane


@inlined
def _logit(x, place, query, dim):
    """q . x_j in each lane; x_j starts at `place`."""
    result = load(query, 0) * load(x, place)
    for a in range(1, dim):
        result = result + load(query, a * LANES) * load(x, place + a * LANES)
    return result


@inlined
def _frozen_logit(problem, j, query):
    """q . y_j of a frozen token, the same in all members."""
    width = problem.mass.size
    result = load(query, 0) * problem.frozen[j]
    for a in range(1, problem.dim):
        result = result + load(query, a * LANES) * problem.frozen[a * width + j]
    return result


@inlined
def _members_top(problem, head, k, x, query):
    """Largest logit of row k, in each lane."""
    if problem.unnormalized or problem.bounded[head]:
        return fill(0.0 if problem.unnormalized else problem.beta[head])
    top = fill(LOWEST)
    for q in range(2):
        start, stop = seen_range(problem, k, q)
        for j in range(start, stop):
            logit = _logit(x, j * problem.dim * LANES, query, problem.dim)
            top = maximum(top, member_logit(problem, head, k, j, logit))
    for j in range(problem.frozen_count):
        top = maximum(top, _frozen_logit(problem, j, query))
    return top


@inlined
def _members_sums(problem, head, k, x, memory):
    """W (returned) and D (into `difference`) of row k, in each lane."""
    dim, query, difference = problem.dim, memory.query, memory.difference
    top = _members_top(problem, head, k, x, query)
    own = k * dim * LANES
    weight_sum = fill(0.0)
    for a in range(dim):
        store(difference, a * LANES, fill(0.0))
    for q in range(2):
        start, stop = seen_range(problem, k, q)
        for j in range(start, stop):
            place = j * dim * LANES
            weight = exp2(member_logit(problem, head, k, j, _logit(x, place, query, dim)) - top)
            weight_sum = weight_sum + weight
            for a in range(dim):
                gap = load(x, place + a * LANES) - load(x, own + a * LANES)
                store(difference, a * LANES, load(difference, a * LANES) + weight * gap)
    width = problem.mass.size
    for j in range(problem.frozen_count):
        weight = exp2(_frozen_logit(problem, j, query) - top) * problem.mass[j]
        weight_sum = weight_sum + weight
        for a in range(dim):
            gap = problem.frozen[a * width + j] - load(x, own + a * LANES)
            store(difference, a * LANES, load(difference, a * LANES) + weight * gap)
    return weight_sum


@inner
def members(problem, pace, x, memory, out):
    """Velocities of several systems at once, one per lane.

    `x` holds unit tokens, vector (k dim + a); `out` as many vectors per token as `problem.components` (one: angular velocity on the
    circle); `pace` the norm's pace in each lane; `memory` has `query`, `difference` and `drift`, dim vectors each.
    """
    dim, wide, query, difference, drift = problem.dim, problem.wide, memory.query, memory.difference, memory.drift
    for k in range(problem.tokens):
        own = k * dim * LANES
        along = fill(0.0)
        for a in range(dim):
            store(drift, a * LANES, fill(0.0))
        for head in range(problem.beta.size):
            for a in range(dim):
                component = fill(0.0)
                for b in range(dim):
                    factor = problem.beta[head] * problem.bilinear[(head * dim + b) * wide + a]
                    component = component + load(x, own + b * LANES) * factor
                store(query, a * LANES, component)
            weight_sum = _members_sums(problem, head, k, x, memory)
            z = divisor(fill(problem.visible[head, k]) if problem.unnormalized else weight_sum)
            fraction = weight_sum / z
            along = along + problem.axial[head] * fraction
            for a in range(dim):
                moved = fill(0.0)
                own_part = fill(0.0)
                for b in range(dim):
                    place = (head * dim + b) * wide + a
                    moved = moved + problem.value[place] * load(difference, b * LANES)
                    own_part = own_part + problem.rest[place] * load(x, own + b * LANES)
                store(drift, a * LANES, load(drift, a * LANES) + moved / z + fraction * own_part)
        _members_emit(problem, pace, x, k, drift, along, out)


@inlined
def _members_emit(problem, pace, x, k, drift, along, out):
    """Project the drift of token k, scale it as the norm says, and write the velocity."""
    dim = problem.dim
    own = k * dim * LANES
    radial = fill(0.0)
    square = fill(0.0)
    for a in range(dim):
        radial = radial + load(drift, a * LANES) * load(x, own + a * LANES)
        full = load(drift, a * LANES) + along * load(x, own + a * LANES)
        square = square + full * full
    scale = norm_factor(problem, pace, square)
    if problem.components == 1:
        spin = load(drift, LANES) * load(x, own) - load(drift, 0) * load(x, own + LANES)
        store(out, k * LANES, scale * spin)
        return
    for a in range(dim):
        store(out, own + a * LANES, scale * (load(drift, a * LANES) - radial * load(x, own + a * LANES)))


# ----------------------------------------------------------------------------------------- one system, row by row


class Row(NamedTuple):
    """Memory of a row: its token, its query, its drift and the sum of differences (`wide` numbers each)."""

    own: FloatArray
    query: FloatArray
    drift: FloatArray
    difference: FloatArray


def make_row(problem: Problem, lines: int) -> Row:
    """So many lines of memory."""
    return Row(*(vectors(problem.wide // LANES, lines) for _ in Row._fields))


@inlined
def _row_top(size, problem, head, k, x, stride, query):
    """Largest logit of row k."""
    if problem.unnormalized or problem.bounded[head]:
        return 0.0 if problem.unnormalized else problem.beta[head]
    width = problem.mass.size
    top = fill(LOWEST)
    for q in range(2):
        start, stop = seen_range(problem, k, q)
        for j in range(start, stop, LANES):
            logit = dot(size, columns_of(size, x, j, stride), query, fill(0.0))
            logit = row_logits(problem, head, k, j, logit)
            top = maximum(top, where(keep(fill(1.0), stop - j), logit, LOWEST))
    for j in range(0, width, LANES):
        logit = dot(size, columns_of(size, problem.frozen, j, width), query, fill(0.0))
        top = maximum(top, where(load(problem.mass, j), logit, LOWEST))
    return largest(top)


@inlined
def _row_sums(size, problem, head, k, x, stride, memory):
    """W (returned) and D (into `difference`) of row k; `size` is the dimension."""
    width, plain = problem.mass.size, not biased(problem, head)
    query, own = numbers_of(size, memory.query, 0), numbers_of(size, memory.own, 0)
    top = _row_top(size, problem, head, k, x, stride, query)
    weight_sum, sums = fill(0.0), no_four()
    for q in range(2):
        start, stop = seen_range(problem, k, q)
        for j in range(start, stop, LANES):
            columns = columns_of(size, x, j, stride)
            logit = dot(size, columns, query, fill(-top))
            if not plain:
                logit = row_logits(problem, head, k, j, logit)
            weight = exp2(logit)
            if j + LANES > stop:
                weight = keep(weight, stop - j)
            weight_sum = weight_sum + weight
            sums = with_gaps(size, sums, weight, columns, own)
    for j in range(0, width, LANES):
        columns = columns_of(size, problem.frozen, j, width)
        weight = exp2(dot(size, columns, query, fill(-top))) * load(problem.mass, j)
        weight_sum = weight_sum + weight
        sums = with_gaps(size, sums, weight, columns, own)
    for a in range(size):
        memory.difference[a] = 0.0
    add_totals(size, sums, memory.difference, 0)
    return total(weight_sum)


@inlined
def _sums_of_row(problem, head, k, x, stride, memory):
    """The same, in code of its own for each dimension."""
    if problem.dim == 2:
        return _row_sums(2, problem, head, k, x, stride, memory)
    if problem.dim == 3:
        return _row_sums(3, problem, head, k, x, stride, memory)
    return _row_sums(4, problem, head, k, x, stride, memory)


@inlined
def row(problem, pace, x, stride, k, memory, out):
    """Velocity of token k of one system into row k of `out` (components numbers per token).

    `x[a stride + j]` is coordinate a of unit token j, padded by a vector.
    """
    for a in range(problem.dim):
        memory.own[a] = x[a * stride + k]
    for a in range(problem.wide):
        memory.drift[a] = 0.0
    along = 0.0
    for head in range(problem.beta.size):
        set_query(problem, head, memory.own, memory.query)
        weight_sum = _sums_of_row(problem, head, k, x, stride, memory)
        along += add_head(problem, head, k, weight_sum, memory.own, memory.difference, memory.drift)
    emit(problem, pace, memory.own, memory.drift, along, out, k)


@inlined
def set_query(problem, head, own, query):
    """q = beta M^T x_k (padded to whole vectors)."""
    for a in range(0, problem.wide, LANES):
        result = fill(0.0)
        for b in range(problem.dim):
            result = result + load(problem.bilinear, (head * problem.dim + b) * problem.wide + a) * spread(own, b)
        store(query, a, result * problem.beta[head])


@inlined
def add_head(problem, head, k, weight_sum, own, difference, drift):
    """Add one head's drift `(V D + W (V - axial I) x_k) / Z` (padded); returns its part along x_k."""
    z = divisor(problem.visible[head, k] if problem.unnormalized else weight_sum)
    fraction = weight_sum / z
    inverse = 1.0 / z
    for a in range(0, problem.wide, LANES):
        moved = fill(0.0)
        own_part = fill(0.0)
        for b in range(problem.dim):
            place = (head * problem.dim + b) * problem.wide + a
            moved = moved + load(problem.value, place) * spread(difference, b)
            own_part = own_part + load(problem.rest, place) * spread(own, b)
        store(drift, a, load(drift, a) + (moved * inverse + own_part * fraction))
    return problem.axial[head] * fraction


@inlined
def emit(problem, pace, own, drift, along, out, k):
    """Project the drift of token k, scale it as the norm says, and write the velocity."""
    dim = problem.dim
    square = 0.0
    for a in range(dim):
        full = drift[a] + along * own[a]
        square += full * full
    scale = norm_factor(problem, pace, square)
    if problem.components == 1:
        out[k] = scale * (drift[1] * own[0] - drift[0] * own[1])
        return
    radial = 0.0
    for a in range(dim):
        radial += drift[a] * own[a]
    for a in range(dim):
        out[k * dim + a] = scale * (drift[a] - radial * own[a])
