"""Direct sums in any dimension: heads, general Q, K, V, unnormalised weights, positional bias, frozen tokens.

Head by head, with q = beta M^T x_k (M = Q^T K) and logits q . x_j - slope |k - j| in base 2,

    D = sum_j w_kj (x_j - x_k),   W = sum_j w_kj,   A_k = V (W x_k + D) / Z,   Z = W (softmax) or the number of visible tokens.

Only the part of A_k across x_k moves the token, and P V x_k = P (V - axial I) x_k for any number `axial`. So the drift is
assembled as `(V D + W (V - axial I) x_k) / Z`, which for V = I is just D: a force far below the rounding of x_k is kept.
`axial W / Z`, the part along x_k, is carried beside it for norms that need |A_k|.

The maximum of a row's logits is subtracted first. For Q^T K = I it is beta, reached by the token itself; else it takes a pass.
"""

from __future__ import annotations

from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.rules import biased, divisor, member_logit, norm_factor, row_logits, segment
from metastable.kernels.cpu.vector import (
    LANES,
    exp2,
    fill,
    first,
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
def _members_top(problem, head, x, k, query):
    """Largest logit of row k, in each lane."""
    top = fill(LOWEST)
    for part in range(4):
        start, stop = segment(problem, k, part, k + 1)
        for j in range(start, stop):
            logit = _logit(x, j * problem.dim * LANES, query, problem.dim)
            top = maximum(top, member_logit(problem, head, k, j, logit))
    for j in range(problem.frozen_count):
        top = maximum(top, _frozen_logit(problem, j, query))
    return top


@inlined
def _members_sums(problem, head, x, k, query, top, difference):
    """W (returned) and D (into `difference`) of row k, in each lane."""
    dim = problem.dim
    own = k * dim * LANES
    weight_sum = fill(0.0)
    for a in range(dim):
        store(difference, a * LANES, fill(0.0))
    for part in range(4):
        start, stop = segment(problem, k, part, k + 1)
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
def members(problem, pace, x, work, out):
    """Velocities of several systems at once, one per lane.

    `x` holds unit tokens, vector (k dim + a); `out` as many vectors per token as
    `problem.components` (one: angular velocity on the circle); `pace` the norm's pace in each lane; `work` 3 dim vectors."""
    dim = problem.dim
    query = work[: dim * LANES]
    difference = work[dim * LANES : 2 * dim * LANES]
    drift = work[2 * dim * LANES : 3 * dim * LANES]
    for k in range(problem.tokens):
        own = k * dim * LANES
        along = fill(0.0)
        for a in range(dim):
            store(drift, a * LANES, fill(0.0))
        for head in range(problem.beta.size):
            for a in range(dim):
                component = fill(0.0)
                for b in range(dim):
                    factor = problem.beta[head] * problem.bilinear[(head * dim + b) * problem.wide + a]
                    component = component + load(x, own + b * LANES) * factor
                store(query, a * LANES, component)
            if problem.unnormalized:
                top = fill(0.0)
            elif problem.bounded[head]:
                top = fill(problem.beta[head])
            else:
                top = _members_top(problem, head, x, k, query)
            weight_sum = _members_sums(problem, head, x, k, query, top, difference)
            z = divisor(fill(problem.visible[k]) if problem.unnormalized else weight_sum)
            share = weight_sum / z
            along = along + problem.axial[head] * share
            for a in range(dim):
                moved = fill(0.0)
                own_part = fill(0.0)
                for b in range(dim):
                    place = (head * dim + b) * problem.wide + a
                    moved = moved + problem.value[place] * load(difference, b * LANES)
                    own_part = own_part + problem.rest[place] * load(x, own + b * LANES)
                store(drift, a * LANES, load(drift, a * LANES) + moved / z + share * own_part)
        _members_emit(problem, pace, x, own, drift, along, out, k)


@inlined
def _members_emit(problem, pace, x, own, drift, along, out, k):
    """Project the drift of token k, scale it as the norm says, and write the velocity."""
    dim = problem.dim
    radial = fill(0.0)
    for a in range(dim):
        radial = radial + load(drift, a * LANES) * load(x, own + a * LANES)
    square = fill(0.0)
    for a in range(dim):
        full = load(drift, a * LANES) + along * load(x, own + a * LANES)
        square = square + full * full
    scale = norm_factor(problem, load(pace, 0), square)
    if problem.components == 1:
        spin = load(drift, LANES) * load(x, own) - load(drift, 0) * load(x, own + LANES)
        store(out, k * LANES, scale * spin)
        return
    for a in range(dim):
        store(out, own + a * LANES, scale * (load(drift, a * LANES) - radial * load(x, own + a * LANES)))


# ----------------------------------------------------------------------------------------- one system, row by row


@inlined
def _row_logit(x, stride, j, query, dim):
    """q . x_j for the tokens of one vector, from j on."""
    result = load(x, j) * spread(query, 0)
    for a in range(1, dim):
        result = result + load(x, a * stride + j) * spread(query, a)
    return result


@inlined
def _row_top(problem, head, x, stride, k, query):
    """Largest logit of row k."""
    dim = problem.dim
    top = fill(LOWEST)
    for part in range(4):
        start, stop = segment(problem, k, part, k + 1)
        for j in range(start, stop, LANES):
            logit = row_logits(problem, head, k, j, _row_logit(x, stride, j, query, dim))
            inside = keep(fill(1.0), stop - j)
            top = maximum(top, where(inside, logit, fill(LOWEST)))
    width = problem.mass.size
    for j in range(0, width, LANES):
        logit = _row_logit(problem.frozen, width, j, query, dim)
        top = maximum(top, where(load(problem.mass, j), logit, fill(LOWEST)))
    return largest(top)


@inlined
def _sphere_run(x, stride, start, stop, query, top, own, scratch):
    """Add whole vectors of tokens start..stop to the sums (`scratch`, returned weight) in dimension 3, in registers.

    Returns the weight and the first token that was left over.
    """
    q0 = query[0]
    q1 = query[1]
    q2 = query[2]
    x0 = own[0]
    x1 = own[1]
    x2 = own[2]
    s0 = load(scratch, 0)
    s1 = load(scratch, LANES)
    s2 = load(scratch, 2 * LANES)
    weight_sum = fill(0.0)
    j = start
    while j + LANES <= stop:
        a = load(x, j)
        b = load(x, stride + j)
        c = load(x, 2 * stride + j)
        weight = exp2(a * q0 + (b * q1 + (c * q2 - top)))
        weight_sum = weight_sum + weight
        s0 = s0 + weight * (a - x0)
        s1 = s1 + weight * (b - x1)
        s2 = s2 + weight * (c - x2)
        j += LANES
    store(scratch, 0, s0)
    store(scratch, LANES, s1)
    store(scratch, 2 * LANES, s2)
    return weight_sum, j


@inlined
def _row_sums(problem, head, x, stride, k, query, top, own, difference):
    """W (returned) and D (into `difference`, wide numbers; what lies behind is scratch of dim vectors) of row k."""
    dim = problem.dim
    plain = not biased(problem, head)
    scratch = difference[problem.wide :]
    weight_sum = fill(0.0)
    for a in range(dim):
        store(scratch, a * LANES, fill(0.0))
    for part in range(4):
        start, stop = segment(problem, k, part, k + 1)
        j = start
        if plain and dim == 3:
            run, j = _sphere_run(x, stride, start, stop, query, top, own, scratch)
            weight_sum = weight_sum + run
        elif plain:
            # Two vectors at a time share the accumulators.
            while j + 2 * LANES <= stop:
                weight = exp2(_row_logit(x, stride, j, query, dim) - top)
                other = exp2(_row_logit(x, stride, j + LANES, query, dim) - top)
                weight_sum = weight_sum + weight + other
                for a in range(dim):
                    place = a * stride + j
                    pull = weight * (load(x, place) - spread(own, a)) + other * (
                        load(x, place + LANES) - spread(own, a)
                    )
                    store(scratch, a * LANES, load(scratch, a * LANES) + pull)
                j += 2 * LANES
        while j < stop:
            logit = row_logits(problem, head, k, j, _row_logit(x, stride, j, query, dim))
            weight = keep(exp2(logit - top), stop - j)
            weight_sum = weight_sum + weight
            for a in range(dim):
                pull = weight * (load(x, a * stride + j) - spread(own, a))
                store(scratch, a * LANES, load(scratch, a * LANES) + pull)
            j += LANES
    width = problem.mass.size
    for j in range(0, width, LANES):
        weight = exp2(_row_logit(problem.frozen, width, j, query, dim) - top) * load(problem.mass, j)
        weight_sum = weight_sum + weight
        for a in range(dim):
            pull = weight * (load(problem.frozen, a * width + j) - spread(own, a))
            store(scratch, a * LANES, load(scratch, a * LANES) + pull)
    for a in range(dim):
        difference[a] = total(load(scratch, a * LANES))
    return total(weight_sum)


@inlined
def row(problem, pace, x, stride, k, work, out):
    """Velocity of token k of one system into row k of `out` (components numbers per token).

    `x[a stride + j]` is coordinate a of unit token j, padded by a vector; `work` needs 4 `wide` + LANES dim numbers.
    """
    dim = problem.dim
    wide = problem.wide
    own = work[:wide]
    query = work[wide : 2 * wide]
    drift = work[2 * wide : 3 * wide]
    difference = work[3 * wide :]
    for a in range(dim):
        own[a] = x[a * stride + k]
    for a in range(wide):
        drift[a] = 0.0
    along = 0.0
    for head in range(problem.beta.size):
        set_query(problem, head, own, query)
        if problem.unnormalized:
            top = 0.0
        elif problem.bounded[head]:
            top = problem.beta[head]
        else:
            top = _row_top(problem, head, x, stride, k, query)
        weight_sum = _row_sums(problem, head, x, stride, k, query, top, own, difference)
        along += add_head(problem, head, k, weight_sum, own, difference, drift)
    emit(problem, pace, own, drift, along, out, k)


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
    z = first(divisor(fill(problem.visible[k] if problem.unnormalized else weight_sum)))
    share = weight_sum / z
    inverse = 1.0 / z
    for a in range(0, problem.wide, LANES):
        moved = fill(0.0)
        own_part = fill(0.0)
        for b in range(problem.dim):
            place = (head * problem.dim + b) * problem.wide + a
            moved = moved + load(problem.value, place) * spread(difference, b)
            own_part = own_part + load(problem.rest, place) * spread(own, b)
        store(drift, a, load(drift, a) + (moved * inverse + own_part * share))
    return problem.axial[head] * share


@inlined
def emit(problem, pace, own, drift, along, out, k):
    """Project the drift of token k, scale it as the norm says, and write the velocity."""
    dim = problem.dim
    square = 0.0
    for a in range(dim):
        full = drift[a] + along * own[a]
        square += full * full
    scale = first(norm_factor(problem, fill(pace), fill(square)))
    if problem.components == 1:
        out[k] = scale * (drift[1] * own[0] - drift[0] * own[1])
        return
    radial = 0.0
    for a in range(dim):
        radial += drift[a] * own[a]
    for a in range(dim):
        out[k * dim + a] = scale * (drift[a] - radial * own[a])
