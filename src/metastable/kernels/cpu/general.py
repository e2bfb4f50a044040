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
from metastable.kernels.cpu.compiled import inlined, inner, vectors
from metastable.kernels.cpu.problem import Problem
from metastable.kernels.cpu.rules import biased, divisor, member_logit, norm_factor, row_logits, visible_range
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
    for q in range(4):
        start, stop = visible_range(problem, k, q, k + 1)
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
    for q in range(4):
        start, stop = visible_range(problem, k, q, k + 1)
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
    """Memory of a row: its token, its query, its drift and the sum of differences (`wide` numbers each), and that sum in lanes (dim
    vectors)."""

    own: FloatArray
    query: FloatArray
    drift: FloatArray
    difference: FloatArray
    sums: FloatArray


def make_row(problem: Problem, lines: int) -> Row:
    """So many lines of memory."""
    wide = problem.wide // LANES
    return Row(*(vectors(size, lines) for size in (wide, wide, wide, wide, problem.dim)))


@inlined
def _row_logit(x, stride, j, query, dim):
    """q . x_j for the tokens of one vector, from j on."""
    result = load(x, j) * spread(query, 0)
    for a in range(1, dim):
        result = result + load(x, a * stride + j) * spread(query, a)
    return result


@inlined
def _row_top(problem, head, k, x, stride, query):
    """Largest logit of row k."""
    if problem.unnormalized or problem.bounded[head]:
        return 0.0 if problem.unnormalized else problem.beta[head]
    dim = problem.dim
    top = fill(LOWEST)
    for q in range(4):
        start, stop = visible_range(problem, k, q, k + 1)
        for j in range(start, stop, LANES):
            logit = row_logits(problem, head, k, j, _row_logit(x, stride, j, query, dim))
            top = maximum(top, where(keep(fill(1.0), stop - j), logit, LOWEST))
    width = problem.mass.size
    for j in range(0, width, LANES):
        logit = _row_logit(problem.frozen, width, j, query, dim)
        top = maximum(top, where(load(problem.mass, j), logit, LOWEST))
    return largest(top)


@inlined
def _sphere_run(x, stride, start, stop, top, memory):
    """Add whole vectors of tokens start..stop to the sums (and the weight that is returned) in dimension 3, in registers.

    Returns the weight and the first token that was left over.
    """
    query, own, sums = memory.query, memory.own, memory.sums
    q0, q1, q2 = query[0], query[1], query[2]
    x0, x1, x2 = own[0], own[1], own[2]
    s0, s1, s2 = load(sums, 0), load(sums, LANES), load(sums, 2 * LANES)
    weight_sum = fill(0.0)
    j = start
    while j + LANES <= stop:
        a, b, c = load(x, j), load(x, stride + j), load(x, 2 * stride + j)
        weight = exp2(a * q0 + (b * q1 + (c * q2 - top)))
        weight_sum = weight_sum + weight
        s0 = s0 + weight * (a - x0)
        s1 = s1 + weight * (b - x1)
        s2 = s2 + weight * (c - x2)
        j += LANES
    store(sums, 0, s0)
    store(sums, LANES, s1)
    store(sums, 2 * LANES, s2)
    return weight_sum, j


@inlined
def _pull(x, stride, j, weight, dim, memory):
    """Add the tokens of one vector, from j on, to the sums of differences."""
    for a in range(dim):
        pull = weight * (load(x, a * stride + j) - spread(memory.own, a))
        store(memory.sums, a * LANES, load(memory.sums, a * LANES) + pull)


@inlined
def _row_sums(problem, head, k, x, stride, memory):
    """W (returned) and D (into `difference`) of row k."""
    dim, query, own, sums = problem.dim, memory.query, memory.own, memory.sums
    top = _row_top(problem, head, k, x, stride, query)
    plain = not biased(problem, head)
    weight_sum = fill(0.0)
    for a in range(dim):
        store(sums, a * LANES, fill(0.0))
    for q in range(4):
        j, stop = visible_range(problem, k, q, k + 1)
        if plain and dim == 3:
            run, j = _sphere_run(x, stride, j, stop, top, memory)
            weight_sum = weight_sum + run
        elif plain:
            # Two vectors at a time fraction the accumulators.
            while j + 2 * LANES <= stop:
                weight = exp2(_row_logit(x, stride, j, query, dim) - top)
                other = exp2(_row_logit(x, stride, j + LANES, query, dim) - top)
                weight_sum = weight_sum + weight + other
                for a in range(dim):
                    place = a * stride + j
                    pull = weight * (load(x, place) - spread(own, a))
                    pull = pull + other * (load(x, place + LANES) - spread(own, a))
                    store(sums, a * LANES, load(sums, a * LANES) + pull)
                j += 2 * LANES
        while j < stop:
            logit = row_logits(problem, head, k, j, _row_logit(x, stride, j, query, dim))
            weight = keep(exp2(logit - top), stop - j)
            weight_sum = weight_sum + weight
            _pull(x, stride, j, weight, dim, memory)
            j += LANES
    width = problem.mass.size
    for j in range(0, width, LANES):
        weight = exp2(_row_logit(problem.frozen, width, j, query, dim) - top) * load(problem.mass, j)
        weight_sum = weight_sum + weight
        _pull(problem.frozen, width, j, weight, dim, memory)
    for a in range(dim):
        memory.difference[a] = total(load(sums, a * LANES))
    return total(weight_sum)


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
        weight_sum = _row_sums(problem, head, k, x, stride, memory)
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
