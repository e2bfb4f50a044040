"""Attention of one token in any dimension, and what its Jacobian row needs: sums over columns, free of cancellation.

Softmax weights p_kj of one head, M = Q^T K, and Delta_j = x_j - x_k. Since the weights of a row add up to one, the attention
sum is V x_k + V D_k with

    D_k = sum_{j != k} p_kj Delta_j,        q_k = sum_{j != k} p_kj,        C_k = sum_{j != k} p_kj Delta_j Delta_j^T.

Writing forces with D_k keeps those of 1e-50 relatively exact; the plain sum has a floor of 1e-17 and is wrong at t = 1e20.
For tangent vectors v_j of the other tokens the derivative of A_k along them is

    sum_j (dA_k/dx_j) v_j = V [ sum_j p_kj v_j + beta sum_j p_kj <g, v_j> (Delta_j - D_k) ],       g = M^T x_k,

which costs as much as the attention sum itself: Jacobian blocks are never formed off the diagonal. With respect to x_k itself

    dA_k/dx_k = V [ (1 - q_k) I + beta ((C_k - D_k D_k^T) M^T - (1 - q_k) D_k g^T) ].

Columns (frozen tokens first, then the tokens) live in one flat array `work`, one part of `width` entries per component, padded so
that whole vectors can be read from any column on (`padded_columns`). Components come in chunks of `len(tag)` = 2, 3 or 4, which
is a constant of the compiled code; dimensions above four are padded with zero components to a multiple of four and looped over.
"""

from __future__ import annotations

from numba.extending import register_jitable

from metastable.kernels.cpu.compiled import inlined
from metastable.kernels.cpu.compiled import inner as kernel
from metastable.kernels.cpu.fastmath import exp2 as exp2_scalar
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, largest, load, maximum, store, total

NOTHING = -1e300
"""Smaller than any logit."""


@register_jitable
def padded_dimension(dim: int) -> int:
    """Components after padding: dim up to four, else the next multiple of four."""
    return dim if dim <= 4 else -(-dim // 4) * 4


def padded_columns(columns: int) -> int:
    """Entries for so many columns: whole vectors, so that none straddles two cache lines, with one behind the last column."""
    return -(-(columns + LANES) // LANES) * LANES


def chunk_tag(dim: int) -> tuple[int, ...]:
    """A tuple whose length is the number of components that are handled at once."""
    return (0,) * min(padded_dimension(dim), 4)


@inlined
def store_first(work, index, value, count):
    """Store the first `count` lanes only; the entries behind them belong to another range."""
    if count < LANES:
        before = load(work, index)
        value = keep(value, count) + (before - keep(before, count))
    store(work, index, value)


@kernel
def dots(tag, work, width, base, vector, target, bias, sign, offset, start, stop):
    """Write `<vector, column_j> + sign bias_j + offset` to `target` for the columns `start..stop-1`; returns the largest."""
    top = fill(NOTHING)
    whole = start + (stop - start) // LANES * LANES
    for j in range(start, stop, LANES):
        value = load(work, bias + j) * sign + offset
        for a in range(0, vector.size, len(tag)):
            part = base + a * width + j
            value += load(work, part) * vector[a]
            value += load(work, part + width) * vector[a + 1]
            if len(tag) > 2:
                value += load(work, part + 2 * width) * vector[a + 2]
            if len(tag) > 3:
                value += load(work, part + 3 * width) * vector[a + 3]
        store(work, target + j, value)
        if j < whole:
            top = maximum(top, value)
    result = largest(top)
    for j in range(whole, stop):
        result = max(result, work[target + j])
    return result


@kernel
def exponentials(work, target, top, start, stop):
    """Replace logits by `2^(logit - top)` and return their sum."""
    sums = fill(0.0)
    for j in range(start, stop, LANES):
        weight = keep(exp2(load(work, target + j) - top), stop - j)
        store_first(work, target + j, weight, stop - j)
        sums += weight
    return total(sums)


@kernel
def moments(tag, work, width, base, weight, origin, start, stop, out):
    """Add `sum_j weight_j (column_j - origin)` to `out`."""
    for a in range(0, out.size, len(tag)):
        part = base + a * width
        o0 = origin[a]
        o1 = origin[a + 1]
        o2 = origin[a + 2] if len(tag) > 2 else 0.0
        o3 = origin[a + 3] if len(tag) > 3 else 0.0
        s0 = fill(0.0)
        s1 = fill(0.0)
        s2 = fill(0.0)
        s3 = fill(0.0)
        for j in range(start, stop, LANES):
            w = keep(load(work, weight + j), stop - j)
            s0 += w * (load(work, part + j) - o0)
            s1 += w * (load(work, part + width + j) - o1)
            if len(tag) > 2:
                s2 += w * (load(work, part + 2 * width + j) - o2)
            if len(tag) > 3:
                s3 += w * (load(work, part + 3 * width + j) - o3)
        out[a] += total(s0)
        out[a + 1] += total(s1)
        if len(tag) > 2:
            out[a + 2] += total(s2)
        if len(tag) > 3:
            out[a + 3] += total(s3)


@kernel
def multiply(work, left, right, origin, target, start, stop):
    """Write `left_j (right_j - origin)` to `target` and return the sum."""
    sums = fill(0.0)
    for j in range(start, stop, LANES):
        value = keep(load(work, left + j), stop - j) * (load(work, right + j) - origin)
        store(work, target + j, value)
        sums += value
    return total(sums)


@kernel
def bias_of(ranges, k, q, frozen, slope):
    """(sign, offset) that turn the bias column into `-slope |k - j|`; frozen tokens keep theirs, the logarithm of a weight."""
    start = ranges[k, q, 0]
    if start < frozen or slope == 0.0:
        return 1.0, 0.0
    return (1.0, -slope * k) if start - frozen < k else (-1.0, slope * k)


@kernel
def attend(tag, work, width, base, target, query, bias, slope, ranges, k, frozen, own, place, spread):
    """One head of one row: weights (not normalised) to `target`, D_k to `spread`; returns q_k and 1/Z_k.

    `query` is beta log2(e) M^T x_k, `place` is x_k, `own` is 1 when the token sees itself.
    """
    self_logit = 0.0
    for a in range(place.size):
        self_logit += query[a] * place[a]
        spread[a] = 0.0
    top = self_logit if own > 0.0 else NOTHING
    for q in range(ranges.shape[1]):
        start, stop = ranges[k, q, 0], ranges[k, q, 1]
        if stop > start:
            sign, offset = bias_of(ranges, k, q, frozen, slope)
            top = max(top, dots(tag, work, width, base, query, target, bias, sign, offset, start, stop))
    others = 0.0
    for q in range(ranges.shape[1]):
        start, stop = ranges[k, q, 0], ranges[k, q, 1]
        if stop > start:
            others += exponentials(work, target, top, start, stop)
            moments(tag, work, width, base, target, place, start, stop, spread)
    inverse = 1.0 / (others + (own * exp2_scalar(self_logit - top) if own > 0.0 else 0.0))
    for a in range(place.size):
        spread[a] *= inverse
    return others * inverse, inverse


@kernel
def second_moments(tag, work, width, base, weight, inverse, scratch, ranges, k, place, out):
    """C_k from the weights left by `attend`, which are normalised on the way; `out` (components, components)."""
    for a in range(place.size):
        out[a, :] = 0.0
        for q in range(ranges.shape[1]):
            start, stop = ranges[k, q, 0], ranges[k, q, 1]
            if stop > start:
                if a == 0:
                    scale(work, weight, inverse, start, stop)
                multiply(work, weight, base + a * width, place[a], scratch, start, stop)
                moments(tag, work, width, base, scratch, place, start, stop, out[a])


@kernel
def scale(work, part, factor, start, stop):
    """Multiply the columns `start..stop-1` of a part by a factor."""
    for j in range(start, stop, LANES):
        store_first(work, part + j, load(work, part + j) * factor, stop - j)


@kernel
def derivative(
    tag, work, width, base, tangent, weight, scratch, zero, ranges, k, key, place, spread, beta, nowhere, out
):
    """`sum_j p_kj v_j + beta sum_j p_kj <g, v_j> (Delta_j - D_k)` to `out`, without V; `key` is g, `tangent` the part of v,
    `nowhere` zeros."""
    inner = 0.0
    out[:] = 0.0
    for q in range(ranges.shape[1]):
        start, stop = ranges[k, q, 0], ranges[k, q, 1]
        if stop > start:
            dots(tag, work, width, tangent, key, scratch, zero, 0.0, 0.0, start, stop)
            inner += multiply(work, weight, scratch, 0.0, scratch, start, stop)
            moments(tag, work, width, base, scratch, place, start, stop, out)
    for a in range(out.size):
        out[a] = beta * (out[a] - inner * spread[a])
    for q in range(ranges.shape[1]):
        start, stop = ranges[k, q, 0], ranges[k, q, 1]
        if stop > start:
            moments(tag, work, width, tangent, weight, nowhere, start, stop, out)
