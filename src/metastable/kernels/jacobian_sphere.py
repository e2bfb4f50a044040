"""Attention of one token in any dimension, and what its Jacobian row needs: sums over columns, free of cancellation.

Softmax weights p_kj of one head, M = Q^T K, and Delta_j = x_j - x_k. Since the weights of a row add up to one, the attention
sum is V x_k + V D_k with

    D_k = sum_{j != k} p_kj Delta_j,        q_k = sum_{j != k} p_kj,        C_k = sum_{j != k} p_kj Delta_j Delta_j^T.

Writing forces with D_k keeps those of 1e-50 relatively exact; the plain sum has a floor of 1e-17 and is wrong at t = 1e20.
For tangent vectors v_j of the other tokens the derivative of A_k along them is

    sum_j (dA_k/dx_j) v_j = V [ sum_j p_kj v_j + beta sum_j p_kj <g, v_j> (Delta_j - D_k) ],       g = M^T x_k,

which costs as much as the attention sum itself: Jacobian blocks are never formed off the diagonal. With respect to x_k itself

    dA_k/dx_k = V [ (1 - q_k) I + beta ((C_k - D_k D_k^T) M^T - (1 - q_k) D_k g^T) ].

Columns (frozen tokens first, then the tokens) are lines of `Columns`, one for each component, padded so that whole vectors can be
read from any column on (`padded_columns`). Components come in `chunks`, of which `tag` is the `chunk_tag`.
"""

from __future__ import annotations

import math
from collections import namedtuple

from metastable.kernels.cpu.chunks import add_totals, dot, no_four, numbers_of, store_first, with_gaps
from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.fastmath import exp2 as exp2_scalar
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, largest, load, maximum, store, total
from metastable.kernels.minimax import LOG2E

NOTHING = -1e300
"""Smaller than any logit."""

Model = namedtuple("Model", ["values", "forms", "betas", "slopes", "drift"])
"""V and M of each head (heads, d, d), beta and log2(e) times the slope of the bias (heads,), and V_sum - lambda I (d, d)."""
Columns = namedtuple("Columns", ["position", "tangent", "bias", "weights", "scratch", "zeros"])
"""(stages, components, width): position and tangent; (heads, width): bias, and p_kj of the row at hand; (width,): two to work with."""
Head = namedtuple("Head", ["value", "form", "beta", "slope", "bias", "weights"])
"""One head of `Model`, with its lines of `Columns`."""
Row = namedtuple("Row", ["tag", "number", "ranges", "frozen", "own"])
"""A token k, the ranges of columns that it sees without itself (r, 2), the number of frozen tokens, 1 if it sees itself."""
Shift = namedtuple("Shift", ["bias", "sign", "offset"])
"""What is added to the logit of column j: `sign bias_j + offset`."""
Vectors = namedtuple(
    "Vectors",
    ["start", "place", "query", "spread", "force", "terms", "other", "part", "nothing", "spreads", "moment", "block"],
)
"""Memory of a row (components,): x_k at the start of the step and at a stage, g or the query, D_k, G_k and the absolute values of its
terms, the sum over the other rows and a part of it, zeros; D_k of each head; (components, components): C_k, and the matrix in braces of
J_kk."""


def padded_columns(columns: int) -> int:
    """Entries for so many columns: whole vectors, so that none straddles two cache lines, with one behind the last column."""
    return -(-(columns + LANES) // LANES) * LANES


# ------------------------------------------------------------------------------- sums over the columns that a row sees


@inlined
def _columns_at(size, columns, a, j):
    """A chunk of the columns of one vector, from component a on."""
    third = load(columns[a + 2], j) if size > 2 else fill(0.0)
    fourth = load(columns[a + 3], j) if size > 3 else fill(0.0)
    return load(columns[a], j), load(columns[a + 1], j), third, fourth


@inner
def dots(row, q, columns, vector, shift, target):
    """Write `<vector, column_j> + sign bias_j + offset` to `target` for the columns of range q; returns the largest."""
    size, start, stop = row.tag.ndim, row.ranges[q, 0], row.ranges[q, 1]
    top = fill(NOTHING)
    whole = start + (stop - start) // LANES * LANES
    for j in range(start, stop, LANES):
        value = load(shift.bias, j) * shift.sign + shift.offset
        for a in range(0, vector.size, size):
            value = dot(size, _columns_at(size, columns, a, j), numbers_of(size, vector, a), value)
        store(target, j, value)
        if j < whole:
            top = maximum(top, value)
    result = largest(top)
    for j in range(whole, stop):
        result = max(result, target[j])
    return result


@inner
def exponentials(row, target, top):
    """Replace logits by `2^(logit - top)` and return their sum."""
    others = 0.0
    for q in range(row.ranges.shape[0]):
        sums, stop = fill(0.0), row.ranges[q, 1]
        for j in range(row.ranges[q, 0], stop, LANES):
            weight = keep(exp2(load(target, j) - top), stop - j)
            store_first(target, j, weight, stop - j)
            sums += weight
        others += total(sums)
    return others


@inner
def moments(row, columns, weights, origin, out):
    """Add `sum_j weight_j (column_j - origin)` to `out`."""
    size = row.tag.ndim
    for q in range(row.ranges.shape[0]):
        start, stop = row.ranges[q, 0], row.ranges[q, 1]
        for a in range(0, out.size, size):
            own, sums = numbers_of(size, origin, a), no_four()
            for j in range(start, stop, LANES):
                weight = keep(load(weights, j), stop - j)
                sums = with_gaps(size, sums, weight, _columns_at(size, columns, a, j), own)
            add_totals(size, sums, out, a)


@inner
def multiply(row, left, right, origin, target):
    """Write `left_j (right_j - origin)` to `target` and return the sum."""
    result = 0.0
    for q in range(row.ranges.shape[0]):
        sums, stop = fill(0.0), row.ranges[q, 1]
        for j in range(row.ranges[q, 0], stop, LANES):
            value = keep(load(left, j), stop - j) * (load(right, j) - origin)
            store_first(target, j, value, stop - j)
            sums += value
        result += total(sums)
    return result


@inner
def scale(row, line, factor):
    """Multiply the columns of a line that the row sees by a factor."""
    for q in range(row.ranges.shape[0]):
        stop = row.ranges[q, 1]
        for j in range(row.ranges[q, 0], stop, LANES):
            store_first(line, j, load(line, j) * factor, stop - j)


# ---------------------------------------------------------------------------------------------- one head of one row


@inlined
def head_of(model, columns, h):
    """Head h."""
    return Head(model.values[h], model.forms[h], model.betas[h], model.slopes[h], columns.bias[h], columns.weights[h])


@inner
def apply(matrix, vector, out):
    """out += matrix vector."""
    for a in range(matrix.shape[0]):
        total = 0.0
        for b in range(matrix.shape[0]):
            total += matrix[a, b] * vector[b]
        out[a] += total


@inner
def apply_transposed(matrix, vector, factor, out):
    """out = factor matrix^T vector (padding untouched)."""
    for a in range(matrix.shape[0]):
        total = 0.0
        for b in range(matrix.shape[0]):
            total += matrix[b, a] * vector[b]
        out[a] = factor * total


@inner
def shift_of(row, head, start):
    """(sign, offset) that turn the bias into `-slope |k - j|`; frozen tokens keep theirs, the logarithm of a weight."""
    if start < row.frozen or head.slope == 0.0:
        return 1.0, 0.0
    return (1.0, -head.slope * row.number) if start - row.frozen < row.number else (-1.0, head.slope * row.number)


@inner
def attend(row, head, positions, target, query, place, spread):
    """One head of one row at `place`: weights (not normalised) to `target`, D_k to `spread`; returns q_k and 1/Z_k."""
    apply_transposed(head.form, place, head.beta * LOG2E, query)
    self_logit = 0.0
    for a in range(place.size):
        self_logit += query[a] * place[a]
        spread[a] = 0.0
    top = self_logit if row.own > 0.0 else NOTHING
    for q in range(row.ranges.shape[0]):
        sign, offset = shift_of(row, head, row.ranges[q, 0])
        top = max(top, dots(row, q, positions, query, Shift(head.bias, sign, offset), target))
    others = exponentials(row, target, top)
    moments(row, positions, target, place, spread)
    inverse = 1.0 / (others + (row.own * exp2_scalar(self_logit - top) if row.own > 0.0 else 0.0))
    for a in range(place.size):
        spread[a] *= inverse
    return others * inverse, inverse


@inlined
def second_moments(row, head, columns, inverse, vectors):
    """C_k at the start of the step from the weights left by `attend`, which are normalised on the way."""
    positions, place = columns.position[0], vectors.start
    scale(row, head.weights, inverse)
    for a in range(place.size):
        vectors.moment[a, :] = 0.0
        multiply(row, head.weights, positions[a], place[a], columns.scratch)
        moments(row, positions, columns.scratch, place, vectors.moment[a])


@inlined
def derivative(row, head, columns, i, vectors, spread):
    """`sum_j p_kj v_j + beta sum_j p_kj <g, v_j> (Delta_j - D_k)` to `part`, without V; v the tangents of stage i."""
    tangents, scratch, out = columns.tangent[i], columns.scratch, vectors.part
    apply_transposed(head.form, vectors.start, 1.0, vectors.query)
    nothing = Shift(columns.zeros, 0.0, 0.0)
    out[:] = 0.0
    for q in range(row.ranges.shape[0]):
        dots(row, q, tangents, vectors.query, nothing, scratch)
    dot = multiply(row, head.weights, scratch, 0.0, scratch)
    moments(row, columns.position[0], scratch, vectors.start, out)
    for a in range(out.size):
        out[a] = head.beta * (out[a] - dot * spread[a])
    moments(row, tangents, head.weights, vectors.nothing, out)


@inlined
def add_head(head, others, vectors, spread):
    """Add `V [-q I + beta ((C - D D^T) M^T - (1 - q) D g^T)]` to the block."""
    moment, dim = vectors.moment, head.form.shape[0]
    for b in range(dim):
        key = 0.0
        for c in range(dim):
            key += head.form[c, b] * vectors.start[c]
        for a in range(dim):
            total = 0.0
            for c in range(dim):
                total += (moment[a, c] - spread[a] * spread[c]) * head.form[b, c]
            entry = head.beta * (total - (1.0 - others) * spread[a] * key)
            if a == b:
                entry -= others
            for c in range(dim):
                vectors.block[c, b] += head.value[c, a] * entry


# ------------------------------------------------------------------------------------------------- all heads of one row


@inlined
def drive(row, model, columns, i, vectors):
    """G_k = sum_heads V D_k + drift x_k at `place` and the positions of stage i, to `force`."""
    vectors.force[:] = 0.0
    apply(model.drift, vectors.place, vectors.force)
    for h in range(model.betas.size):
        head = head_of(model, columns, h)
        attend(row, head, columns.position[i], columns.scratch, vectors.query, vectors.place, vectors.spread)
        apply(head.value, vectors.spread, vectors.force)


@inlined
def linearise(row, model, columns, vectors):
    """At the start of the step: G_k to `force`, the matrix in braces of J_kk to `block`, D_k of each head to `spreads`.

    Normalised weights of the heads stay in the columns for the stages of this row. Returns a bound on the sum of the absolute
    values of all terms of G_k, which is what its rounding errors are relative to (by Cauchy and Schwarz (sum p |Delta|)^2 is
    at most q trace C; the roots are multiplied, since 1e-170 has no square). `terms` has such bounds component by component: near a
    rest within a Jordan block a component of 1e-20 decides, beside others of one.
    """
    place, dim = vectors.start, model.drift.shape[0]
    vectors.force[:] = 0.0
    apply(model.drift, place, vectors.force)
    total = 0.0
    for a in range(dim):
        vectors.terms[a] = 0.0
        for b in range(dim):
            vectors.block[a, b] = model.drift[a, b]
            vectors.terms[a] += abs(vectors.block[a, b] * place[b])
        total += vectors.terms[a]
    for h in range(model.betas.size):
        head, spread = head_of(model, columns, h), vectors.spreads[h]
        others, inverse = attend(row, head, columns.position[0], head.weights, vectors.query, place, spread)
        second_moments(row, head, columns, inverse, vectors)
        apply(head.value, spread, vectors.force)
        add_head(head, others, vectors, spread)
        trace, size = 0.0, 0.0
        for b in range(dim):
            trace += vectors.moment[b, b]
            reach = math.sqrt(others) * math.sqrt(vectors.moment[b, b])
            for a in range(dim):
                size = max(size, abs(head.value[a, b]))
                vectors.terms[a] += abs(head.value[a, b]) * reach
        total += size * math.sqrt(others) * math.sqrt(trace)
    return total


@inlined
def other_rows(row, model, columns, i, vectors):
    """`sum_j (dG_k/dx_j) v_j` over the other columns to `other`, v the tangents of stage i; with the weights left by `linearise`."""
    vectors.other[:] = 0.0
    for h in range(model.betas.size):
        head = head_of(model, columns, h)
        derivative(row, head, columns, i, vectors, vectors.spreads[h])
        apply(head.value, vectors.part, vectors.other)
