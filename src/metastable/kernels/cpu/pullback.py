"""The right-hand side of one system read backwards, compiled: `kernels.pullback` for direct sums.

Row by row, in two passes over the columns that token k sees. The first makes the weights w_kj, which are kept for the row, with
their sum W and D = sum_j w_kj (x_j - x_k), and so the attention sum A_k (`general`). With A* (what the norm sends back), T = V^T A* and
q = beta M^T x_k the second makes

    l_j = p_kj (<T, x_j> - mean),      x*_j += p_kj T + l_j q,      c = sum_j l_j x_j,

where p = w/Z and `mean` is sum_j p_kj <T, x_j> for softmax, zero for unnormalised weights. Then x*_k += beta M c, and what is left is
work for each token: G += x_k c^T (from which Q and K get theirs), V* += A* (sum_j p_kj x_j)^T. Masses get sum_k l_j / m_j.

Tokens are coordinates first in lines of `stride`, as for `general`. Components come in chunks of `tag.ndim` = 2, 3 or 4, a constant of
the compiled code; dimensions above four are padded with zero components to a multiple of four and looped over, for `TILE` columns at a
time, which stay in the cache meanwhile.

Rows are dealt to pieces that depend on the number of tokens only, each with memory of its own: results do not depend on threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cpu import general
from metastable.kernels.cpu.compiled import compiled, inlined, inner, vectors
from metastable.kernels.cpu.fastmath import LOG2E
from metastable.kernels.cpu.memory import Reference
from metastable.kernels.cpu.problem import Problem, prepare
from metastable.kernels.cpu.rules import biased, divisor, inverse_length, norm_factor, row_logits
from metastable.kernels.cpu.threads import thread_count
from metastable.kernels.cpu.vector import (
    LANES,
    exp2,
    fill,
    keep,
    largest,
    load,
    maximum,
    sincos,
    store,
    total,
    where,
)
from metastable.kernels.jacobian_circle import store_first
from metastable.kernels.jacobian_sphere import chunk_tag, padded_dimension
from metastable.kernels.pullback import Parameters, betas_from_forms, heads_from_forms, with_some_weight
from metastable.model import Attention

PIECE, PIECES_LIMIT = 256, 8
"""Rows of a piece aimed at, and pieces at the most: each has a copy of what is sent back to the tokens."""
TILE = 96
"""Columns that are handled together in large dimensions."""
CACHE_LINE = max(8, LANES)
"""Numbers of a cache line (of a vector, where that is longer)."""
LN2 = 1.0 / LOG2E


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


def _allocate(problem: Problem) -> Memory:
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


@inlined
def _line(lines, i):
    """The memory of piece i."""
    return Line(
        lines.weights[i],
        lines.fixed[i],
        lines.query[i],
        lines.difference[i],
        lines.weight_sum[i],
        lines.logits[i],
        lines.own[i],
        lines.covector[i],
        lines.drift[i],
        lines.gain[i],
        lines.target[i],
        lines.keyed[i],
        lines.sums[i],
        lines.back[i],
        lines.frozen[i],
        lines.frozen_weights[i],
        lines.masses[i],
        lines.losses[i],
        lines.forms[i],
        lines.values[i],
    )


# ----------------------------------------------------------------------------------------------------- sums over columns


@inlined
def _range(problem, k, q):
    """The q-th of the two ranges of tokens that token k sees."""
    return problem.intervals[k, q, 0], problem.intervals[k, q, 1]


@inlined
def _chunk(tag, vector, a):
    """Four components of a vector from a on, those beyond the chunk zero."""
    return vector[a], vector[a + 1], vector[a + 2] if tag.ndim > 2 else 0.0, vector[a + 3] if tag.ndim > 3 else 0.0


@inlined
def _dot(tag, points, stride, j, v, value):
    """`value` + <v, x_j> of one chunk of components, for the tokens of one vector; `points` begins with the chunk."""
    value = value + load(points, j) * v[0]
    value = value + load(points, stride + j) * v[1]
    if tag.ndim > 2:
        value = value + load(points, 2 * stride + j) * v[2]
    if tag.ndim > 3:
        value = value + load(points, 3 * stride + j) * v[3]
    return value


@inlined
def _logit(memory, head, k, j, query, plain):
    """Logits of the tokens j, j + 1, ... of row k."""
    problem, tag, stride = memory.problem, memory.tag, memory.stride
    logit = fill(0.0)
    for a in range(0, memory.padded, tag.ndim):
        logit = _dot(tag, memory.x, stride, a * stride + j, _chunk(tag, query, a), logit)
    return logit if plain else row_logits(problem, head, k, j, logit)


@inlined
def _weigh(memory, head, k, start, stop, top, line):
    """Weights of the tokens start..stop; D of the first chunk of components is added to `sums`. Returns the sum of the weights."""
    tag, x, stride, own, sums = memory.tag, memory.x, memory.stride, line.own, line.sums
    plain, small, weights = not biased(memory.problem, head), memory.padded == tag.ndim, line.weights[head]
    s0, s1, s2, s3 = load(sums, 0), load(sums, LANES), load(sums, 2 * LANES), load(sums, 3 * LANES)
    o0, o1, o2, o3 = _chunk(tag, own, 0)
    query = _chunk(tag, line.query[head], 0)
    weight_sum = fill(0.0)
    for j in range(start, stop, LANES):
        # In small dimensions logits are made again: that takes less time than to read them.
        if small:
            logit = _dot(tag, x, stride, j, query, fill(-top))
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
def _moments(points, stride, start, stop, weights, origin, a, sums):
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


@inlined
def _scatter(tag, points, stride, start, stop, weights, inverse, mean, query, line, back, masses):
    """Small dimensions: l, what is sent to the columns (`back`, `masses`), and c in lanes (`sums`), all in registers. Returns sum l."""
    sums, t, q = line.sums, _chunk(tag, line.target, 0), _chunk(tag, query, 0)
    s0, s1, s2, s3 = load(sums, 0), load(sums, LANES), load(sums, 2 * LANES), load(sums, 3 * LANES)
    gained = fill(0.0)
    for j in range(start, stop, LANES):
        share = keep(load(weights, j), stop - j) * inverse
        logit = share * _dot(tag, points, stride, j, t, fill(-mean))
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
def _scatter_logits(tag, points, stride, padded, start, stop, weights, inverse, mean, line, masses):
    """Large dimensions: l into `logits`, and to the masses. Returns sum l."""
    gained = fill(0.0)
    for j in range(start, stop, LANES):
        u = fill(-mean)
        for a in range(0, padded, 4):
            u = _dot(tag, points, stride, a * stride + j, _chunk(tag, line.target, a), u)
        logit = keep(load(weights, j), stop - j) * inverse * u
        gained = gained + logit
        store(line.logits, j, logit)
        store(masses, j, load(masses, j) + logit)
    return total(gained)


@inlined
def _scatter_chunk(points, stride, start, stop, weights, inverse, query, line, back, a):
    """Large dimensions: what is sent to the columns, and c in lanes (`sums`), for the components a..a + 3."""
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
def _clear(memory, sums):
    """No sums."""
    for a in range(max(4, memory.padded)):
        store(sums, a * LANES, fill(0.0))


# --------------------------------------------------------------------------------------------------------- one row


@inlined
def _top(memory, head, k, line):
    """Largest logit of row k, and whether it was known. Where it was not, in large dimensions, the logits are left in `weights`."""
    problem, tag, width = memory.problem, memory.tag, memory.problem.mass.size
    query, weights, plain = line.query[head], line.weights[head], not biased(problem, head)
    known, small = problem.unnormalized or problem.bounded[head], memory.padded == tag.ndim
    top = fill(general.LOWEST)
    for j in range(0, width, LANES):
        logit = fill(0.0)
        for a in range(0, memory.padded, tag.ndim):
            logit = _dot(tag, memory.frozen, width, a * width + j, _chunk(tag, query, a), logit)
        store(line.fixed[head], j, logit)
        top = maximum(top, where(load(problem.mass, j), logit, general.LOWEST))
    for q in range(2):
        start, stop = _range(problem, k, q)
        if known:
            continue
        for j in range(start, stop, LANES):
            logit = _logit(memory, head, k, j, query, plain)
            if not small:
                store(weights, j, logit)
            top = maximum(top, where(keep(fill(1.0), stop - j), logit, general.LOWEST))
    if known:
        return (0.0 if problem.unnormalized else problem.beta[head]), True
    return largest(top), False


@inlined
def _attend(memory, head, k, line):
    """Weights of head `head` in row k, their sum and D; the head's part of the drift. Returns its part along x_k."""
    problem, tag, x, stride, width = memory.problem, memory.tag, memory.x, memory.stride, memory.problem.mass.size
    weights, fixed, own, difference = line.weights[head], line.fixed[head], line.own, line.difference[head]
    general.set_query(problem, head, own, line.query[head])
    top, known = _top(memory, head, k, line)
    _clear(memory, line.sums)
    plain, small = not biased(problem, head), memory.padded == tag.ndim
    weight_sum = fill(0.0)
    for q in range(2):
        start, stop = _range(problem, k, q)
        for first in range(start, stop, max(1, stop) if small else TILE):
            last = stop if small else min(first + TILE, stop)
            if known and not small:
                for j in range(first, last, LANES):
                    store_first(weights, j, _logit(memory, head, k, j, line.query[head], plain), last - j)
            weight_sum = weight_sum + _weigh(memory, head, k, first, last, top, line)
            for a in range(tag.ndim, memory.padded, 4):
                _moments(x, stride, first, last, weights, own, a, line.sums)
    for j in range(0, width, LANES):
        weight = exp2(load(fixed, j) - top) * load(problem.mass, j)
        store(fixed, j, weight)
        weight_sum = weight_sum + weight
        for a in range(memory.padded):
            gap = load(memory.frozen, a * width + j) - own[a]
            store(line.sums, a * LANES, load(line.sums, a * LANES) + weight * gap)
    for a in range(memory.padded):
        difference[a] = total(load(line.sums, a * LANES))
    line.weight_sum[head] = total(weight_sum)
    return general.add_head(problem, head, k, line.weight_sum[head], own, difference, line.drift)


@inlined
def _through_norm(problem, pace, k, along, line):
    """A* of row k into `gain`; what the norm and the projection send to x_k into `keyed` (formulas in `kernels.pullback`)."""
    dim, own, covector, drift, gain = problem.dim, line.own, line.covector, line.drift, line.gain
    square, radial, aligned = 0.0, 0.0, 0.0
    for a in range(dim):
        full = drift[a] + along * own[a]
        square += full * full
        radial += full * own[a]
        aligned += covector[a] * own[a]
    scale = norm_factor(problem, pace, square)
    pull = 0.0
    for a in range(dim):
        pull += (covector[a] - aligned * own[a]) * drift[a]
    inward = pull / divisor(square) if problem.by_length else 0.0
    for a in range(dim):
        full, across = drift[a] + along * own[a], covector[a] - aligned * own[a]
        gain[a] = scale * (across - inward * full)
        line.keyed[a] = -scale * (radial * across + aligned * (full - radial * own[a]))


@inlined
def _through_head(memory, head, k, line):
    """What a head of row k sends back."""
    problem, tag, x, stride, width = memory.problem, memory.tag, memory.x, memory.stride, memory.problem.mass.size
    dim, wide, own, target, keyed = problem.dim, problem.wide, line.own, line.target, line.keyed
    weights, fixed, query, difference = line.weights[head], line.fixed[head], line.query[head], line.difference[head]
    weight_sum = line.weight_sum[head]
    z = divisor(problem.visible[k] if problem.unnormalized else weight_sum)
    inverse = 1.0 / z
    mean = 0.0
    for b in range(dim):
        value = 0.0
        for a in range(dim):
            value += problem.value[(head * dim + b) * wide + a] * line.gain[a]
        target[b] = value
        mean += value * (own[b] * weight_sum + difference[b]) * inverse
    if problem.unnormalized:
        mean = 0.0
    for a in range(memory.padded):
        query[a] *= LN2
    _clear(memory, line.sums)
    gained = 0.0
    small = memory.padded == tag.ndim
    for q in range(2):
        start, stop = _range(problem, k, q)
        if small:
            gained += _scatter(tag, x, stride, start, stop, weights, inverse, mean, query, line, line.back, line.masses)
        else:
            for first in range(start, stop, TILE):
                last = min(first + TILE, stop)
                gained += _scatter_logits(
                    tag, x, stride, memory.padded, first, last, weights, inverse, mean, line, line.masses
                )
                for a in range(0, memory.padded, 4):
                    _scatter_chunk(x, stride, first, last, weights, inverse, query, line, line.back, a)
    if width:
        points = memory.frozen
        if small:
            gained += _scatter(
                tag, points, width, 0, width, fixed, inverse, mean, query, line, line.frozen, line.frozen_weights
            )
        else:
            gained += _scatter_logits(
                tag, points, width, memory.padded, 0, width, fixed, inverse, mean, line, line.frozen_weights
            )
            for a in range(0, memory.padded, 4):
                _scatter_chunk(points, width, 0, width, fixed, inverse, query, line, line.frozen, a)
    for a in range(memory.padded):
        keyed[a] = total(load(line.sums, a * LANES))
    if problem.unnormalized:
        # What a mass adds to the divisor: the same for all that k sees, written at the ends of its ranges.
        for q in range(2):
            line.losses[problem.intervals[k, q, 0]] -= gained * inverse
            line.losses[problem.intervals[k, q, 1]] += gained * inverse
        line.losses[problem.tokens + 1] += gained * inverse
    beta = problem.beta[head] * LN2
    for b in range(dim):
        pulled = 0.0
        for a in range(dim):
            pulled += problem.bilinear[(head * dim + b) * wide + a] * keyed[a]
            line.forms[head, b, a] += own[b] * keyed[a]
            line.values[head, b, a] += line.gain[b] * (own[a] * weight_sum + difference[a]) * inverse
        line.back[b * stride + k] += beta * pulled


@inner
def _row(memory, pace, k, covector, line):
    """Row k: its covector pulled back, added to the line."""
    problem, stride = memory.problem, memory.stride
    for a in range(problem.dim):
        line.own[a] = memory.x[a * stride + k]
    if problem.components == 1:
        line.covector[0], line.covector[1] = -covector[k] * line.own[1], covector[k] * line.own[0]
    else:
        for a in range(problem.dim):
            line.covector[a] = covector[k * problem.dim + a]
    for a in range(problem.wide):
        line.drift[a] = 0.0
    along = 0.0
    for head in range(problem.beta.size):
        along += _attend(memory, head, k, line)
    _through_norm(problem, pace, k, along, line)
    for a in range(problem.dim):
        line.back[a * stride + k] += line.keyed[a]
    for head in range(problem.beta.size):
        _through_head(memory, head, k, line)


@inner
def _piece(memory, piece, pace, covector):
    """Rows of a piece: an early block and the late one that makes up for it (under a causal mask)."""
    line, tokens, blocks = _line(memory.lines, piece), memory.problem.tokens, 2 * memory.pieces
    for i in range(line.back.size):
        line.back[i] = 0.0
    for half in range(2):
        block = piece if half == 0 else blocks - 1 - piece
        for k in range(tokens * block // blocks, tokens * (block + 1) // blocks):
            _row(memory, pace, k, covector, line)


# -------------------------------------------------------------------------------------------------------- evaluation


@compiled
def begin(memory, y):
    """Unit tokens from the flat state y."""
    problem, x, stride = memory.problem, memory.x, memory.stride
    for k in range(problem.tokens):
        if problem.components == 1:
            x[stride + k], x[k] = sincos(y[k])
            memory.inverse[k] = 1.0
            continue
        memory.inverse[k] = inverse_length(y, k * problem.dim, problem.dim)
        for a in range(problem.dim):
            x[a * stride + k] = y[k * problem.dim + a] * memory.inverse[k]


@compiled
def walk(memory, piece, pace, covector):
    """The rows of one piece, their covectors flat."""
    _piece(memory, piece, pace, covector)


@compiled
def finish(memory, out):
    """What all pieces sent to the tokens, projected and divided by the length of the state; in angles, along (-sin, cos)."""
    problem, x, stride, back = memory.problem, memory.x, memory.stride, memory.lines.back
    dim = problem.dim
    for a in range(dim):
        for piece in range(1, memory.pieces):
            for k in range(a * stride, a * stride + problem.tokens):
                back[0, k] += back[piece, k]
    for k in range(problem.tokens):
        if problem.components == 1:
            out[k] = x[k] * back[0, stride + k] - x[stride + k] * back[0, k]
            continue
        along = 0.0
        for a in range(dim):
            along += back[0, a * stride + k] * x[a * stride + k]
        for a in range(dim):
            out[k * dim + a] = (back[0, a * stride + k] - along * x[a * stride + k]) * memory.inverse[k]


class Compiled:
    """The pullback of one system; a `kernels.pullback.Pullback`."""

    def __init__(self, model: Attention, tokens: int, chart: str, threads: int | None) -> None:
        self.model = model = with_some_weight(model)
        problem = prepare(model, tokens, chart="angle" if chart == "angle" else "ambient")
        self.memory = _allocate(problem)
        self.reference = Reference(self.memory)
        count = min(thread_count(threads), self.memory.pieces)
        self.pool = ThreadPoolExecutor(count, "metastable-pullback") if count > 1 else None

    def __call__(self, t: float, y: FloatArray, covector: FloatArray, out: FloatArray) -> None:
        law = self.model.norm.law(t)
        pace = law.amplitude / law.depth(t)
        flat = np.ascontiguousarray(covector, dtype=float).reshape(-1)
        begin(self.reference, np.ascontiguousarray(y, dtype=float).reshape(-1))
        if self.pool is None:
            for piece in range(self.memory.pieces):
                walk(self.reference, piece, pace, flat)
        else:
            list(self.pool.map(lambda piece: walk(self.reference, piece, pace, flat), range(self.memory.pieces)))
        result = np.empty(flat.size)
        finish(self.reference, result)
        out[...] = result.reshape(out.shape)

    def parameters(self) -> Parameters:
        model, problem, lines = self.model, self.memory.problem, self.memory.lines
        tokens, width = problem.tokens, problem.mass.size
        forms, values = lines.forms.sum(axis=0), lines.values.sum(axis=0)
        masses = np.ones(tokens) if model.masses is None else model.masses
        sent = lines.masses.sum(axis=0)[:tokens] / masses
        losses = lines.losses.sum(axis=0)
        # Ranges were written as their ends.
        sent = sent + np.cumsum(losses[:tokens])
        frozen, weights = np.zeros((0, model.dim)), np.zeros(0)
        if model.frozen is not None:
            given = np.asarray(model.frozen.weights)
            frozen = lines.frozen.sum(axis=0)[: model.dim * width].reshape(model.dim, width)[:, : len(given)].T
            weights = lines.frozen_weights.sum(axis=0)[: len(given)] / given - losses[tokens + 1]
        return Parameters(
            tuple(betas_from_forms(model, forms)), tuple(heads_from_forms(model, forms, values)), frozen, weights, sent
        )
