"""The right-hand side of one system read backwards, compiled: `kernels.pullback` for direct sums.

Row by row, in two passes over the columns that token k sees. The first makes the weights w_kj, which are kept for the row, with
their sum W and D = sum_j w_kj (x_j - x_k), and so the attention sum A_k (`general`). With A* (what the norm sends back), T = V^T A* and
q = beta M^T x_k the second makes

    l_j = p_kj (<T, x_j> - mean),      x*_j += p_kj T + l_j q,      c = sum_j l_j x_j,

where p = w/Z and `mean` is sum_j p_kj <T, x_j> for softmax, zero for unnormalised weights. Then x*_k += beta M c, and what is left is
work for each token: G += x_k c^T (from which Q and K get theirs), V* += A* (sum_j p_kj x_j)^T. Masses get sum_k l_j / m_j.

Tokens are coordinates first in lines of `stride`, as for `general`; the sums over columns are in `scatter`.

Rows are dealt to pieces that depend on the number of tokens only, each with memory of its own: results do not depend on threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cpu import general
from metastable.kernels.cpu.chunks import store_first
from metastable.kernels.cpu.compiled import compiled, inlined, inner
from metastable.kernels.cpu.memory import Reference, line_of
from metastable.kernels.cpu.problem import prepare
from metastable.kernels.cpu.rules import biased, divisor, inverse_length, norm_factor, seen_range
from metastable.kernels.cpu.scatter import (
    TILE,
    Sending,
    allocate,
    clear,
    dots,
    moments,
    scatter,
    token_logits,
    weigh,
)
from metastable.kernels.cpu.threads import thread_count
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, largest, load, maximum, sincos, store, total, where
from metastable.kernels.minimax import LOG2E
from metastable.kernels.pullback import Parameters, from_form, with_some_weight
from metastable.model import Attention

LN2 = 1.0 / LOG2E


# --------------------------------------------------------------------------------------------------------- one row


@inlined
def _top(memory, head, k, line):
    """Largest logit of row k, and whether it was known. Where it was not, in large dimensions, the logits are left in `weights`."""
    problem, query, weights = memory.problem, line.query[head], line.weights[head]
    plain, small = not biased(problem, head), memory.padded == memory.tag.ndim
    top = fill(general.LOWEST)
    for j in range(0, problem.mass.size, LANES):
        logit = dots(memory, memory.frozen, problem.mass.size, j, query, fill(0.0))
        store(line.fixed[head], j, logit)
        top = maximum(top, where(load(problem.mass, j), logit, general.LOWEST))
    if problem.unnormalized or problem.bounded[head]:
        return (0.0 if problem.unnormalized else problem.beta[head]), True
    for q in range(2):
        start, stop = seen_range(problem, k, q)
        for j in range(start, stop, LANES):
            logit = token_logits(memory, head, k, j, query, plain)
            if not small:
                store(weights, j, logit)
            top = maximum(top, where(keep(fill(1.0), stop - j), logit, general.LOWEST))
    return largest(top), False


@inlined
def _attend(memory, head, k, line):
    """Weights of head `head` in row k, their sum and D; the head's part of the drift. Returns its part along x_k."""
    problem, size, width = memory.problem, memory.tag.ndim, memory.problem.mass.size
    weights, fixed, own, difference = line.weights[head], line.fixed[head], line.own, line.difference[head]
    general.set_query(problem, head, own, line.query[head])
    top, known = _top(memory, head, k, line)
    clear(memory, line.sums)
    plain, small = not biased(problem, head), memory.padded == size
    weight_sum = fill(0.0)
    for q in range(2):
        start, stop = seen_range(problem, k, q)
        for first in range(start, stop, max(1, stop) if small else TILE):
            last = stop if small else min(first + TILE, stop)
            if known and not small:
                for j in range(first, last, LANES):
                    store_first(weights, j, token_logits(memory, head, k, j, line.query[head], plain), last - j)
            weight_sum = weight_sum + weigh(memory, head, k, first, last, top, line)
            for a in range(size, memory.padded, 4):
                moments(memory, first, last, weights, a, line)
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
    problem, x, stride, width = memory.problem, memory.x, memory.stride, memory.problem.mass.size
    dim, wide, own, target, keyed = problem.dim, problem.wide, line.own, line.target, line.keyed
    weights, fixed, query, difference = line.weights[head], line.fixed[head], line.query[head], line.difference[head]
    weight_sum = line.weight_sum[head]
    z = divisor(problem.visible[head, k] if problem.unnormalized else weight_sum)
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
    clear(memory, line.sums)
    gained = 0.0
    sending = Sending(x, stride, weights, inverse, mean, query, line.back, line.masses)
    for q in range(2):
        start, stop = seen_range(problem, k, q)
        gained += scatter(memory, sending, start, stop, line)
    if width:
        anchored = Sending(memory.frozen, width, fixed, inverse, mean, query, line.frozen, line.frozen_weights)
        gained += scatter(memory, anchored, 0, width, line)
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
    line, tokens, blocks = line_of(memory.lines, piece), memory.problem.tokens, 2 * memory.pieces
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
        self.memory = allocate(problem)
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
        betas, queries, keys = zip(*(from_form(head, form) for head, form in zip(model.all_heads, forms)))
        heads = tuple({"query": q, "key": k, "value": v} for q, k, v in zip(queries, keys, values))
        return Parameters(betas, heads, frozen, weights, sent)
