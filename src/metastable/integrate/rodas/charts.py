"""Gnomonic charts, and attention with its derivative in them, one row at a time (see `sphere`)."""

from __future__ import annotations

import math

from metastable.integrate.rodas.tableau import STAGES, A
from metastable.kernels.cpu.compiled import inner as kernel
from metastable.kernels.cpu.fastmath import LOG2E
from metastable.kernels.jacobian_sphere import (
    attend,
    derivative,
    second_moments,
)


@kernel
def set_frames(tokens, dim):
    """Householder vectors of all charts at the current tokens."""
    for k in range(tokens.shape[0]):
        square = 0.0
        for a in range(dim):
            value = tokens[k, a]
            if a == 0:
                value += 1.0 if value >= 0.0 else -1.0
            tokens[k, dim + a] = value
            square += value * value
        tokens[k, 2 * dim] = 2.0 / square


@kernel
def to_chart(tokens, k, vector, out):
    """E_k^T vector."""
    dim = out.size + 1
    inner = 0.0
    for a in range(dim):
        inner += tokens[k, dim + a] * vector[a]
    inner *= tokens[k, 2 * dim]
    for b in range(1, dim):
        out[b - 1] = vector[b] - inner * tokens[k, dim + b]


@kernel
def from_chart(tokens, k, y, out):
    """E_k y."""
    dim = y.size + 1
    inner = 0.0
    for b in range(1, dim):
        inner += tokens[k, dim + b] * y[b - 1]
    inner *= tokens[k, 2 * dim]
    out[0] = -inner * tokens[k, dim]
    for b in range(1, dim):
        out[b] = y[b - 1] - inner * tokens[k, dim + b]


@kernel
def _apply(matrix, vector, dim, out):
    """out += matrix vector."""
    for a in range(dim):
        total = 0.0
        for b in range(dim):
            total += matrix[a, b] * vector[b]
        out[a] += total


@kernel
def _apply_transposed(matrix, vector, dim, factor, out):
    """out = factor matrix^T vector (padding untouched)."""
    for a in range(dim):
        total = 0.0
        for b in range(dim):
            total += matrix[b, a] * vector[b]
        out[a] = factor * total


@kernel
def drive(tag, work, width, base, target, matrices, scalars, ranges, k, frozen, own, dim, place, query, spread, out):
    """G_k at `place` and the positions in part `base`; `target` is a part to work in."""
    heads = scalars.shape[1]
    bias = STAGES * 2 * place.size * width
    out[:] = 0.0
    _apply(matrices[2 * heads], place, dim, out)
    for h in range(heads):
        _apply_transposed(matrices[heads + h], place, dim, scalars[0, h] * LOG2E, query)
        slope = scalars[1, h]
        attend(tag, work, width, base, target, query, bias + h * width, slope, ranges, k, frozen, own, place, spread)
        _apply(matrices[h], spread, dim, out)


@kernel
def linearise(
    tag, work, width, matrices, scalars, ranges, k, frozen, own, dim, place, query, spreads, out, block, moment
):
    """At the start of the step: G_k to `out`, the matrix in braces of J_kk to `block`, D_k of each head to `spreads`.

    Normalised weights of head h stay in its part of `work` for the stages of this row. Returns a bound on the sum of the absolute
    values of all terms of G_k, which is what its rounding errors are relative to (by Cauchy and Schwarz (sum p |Delta|)^2 is
    at most q trace C; the roots are multiplied, since 1e-170 has no square).
    """
    heads = scalars.shape[1]
    bias = STAGES * 2 * place.size * width
    weights = bias + heads * width
    scratch = weights + heads * width
    out[:] = 0.0
    _apply(matrices[2 * heads], place, dim, out)
    terms = 0.0
    for a in range(dim):
        for b in range(dim):
            block[a, b] = matrices[2 * heads, a, b]
            terms += abs(block[a, b] * place[b])
    for h in range(heads):
        _apply_transposed(matrices[heads + h], place, dim, scalars[0, h] * LOG2E, query)
        part = weights + h * width
        slope = scalars[1, h]
        spread = spreads[h]
        others, inverse = attend(
            tag, work, width, 0, part, query, bias + h * width, slope, ranges, k, frozen, own, place, spread
        )
        second_moments(tag, work, width, 0, part, inverse, scratch, ranges, k, place, moment)
        _apply(matrices[h], spread, dim, out)
        _add_head(matrices[h], matrices[heads + h], scalars[0, h], others, dim, place, spread, moment, block)
        trace, size = 0.0, 0.0
        for a in range(dim):
            trace += moment[a, a]
            for b in range(dim):
                size = max(size, abs(matrices[h, a, b]))
        terms += size * math.sqrt(others) * math.sqrt(trace)
    return terms


@kernel
def _add_head(value, form, beta, others, dim, place, spread, moment, block):
    """Add `V [-q I + beta ((C - D D^T) M^T - (1 - q) D g^T)]` to `block`."""
    for b in range(dim):
        key = 0.0
        for c in range(dim):
            key += form[c, b] * place[c]
        for a in range(dim):
            total = 0.0
            for c in range(dim):
                total += (moment[a, c] - spread[a] * spread[c]) * form[b, c]
            entry = beta * (total - (1.0 - others) * spread[a] * key)
            if a == b:
                entry -= others
            for c in range(dim):
                block[c, b] += value[c, a] * entry


@kernel
def other_rows(tag, work, width, matrices, scalars, ranges, k, i, dim, start, spreads, key, nowhere, part, out):
    """`sum_j (dG_k/dx_j) v_j` over the other columns, v the tangents of stage i; uses the weights left by `linearise`."""
    heads = scalars.shape[1]
    padded = start.size
    weights = (STAGES * 2 * padded + heads) * width
    scratch = weights + heads * width
    tangent = (2 * i + 1) * padded * width
    out[:] = 0.0
    for h in range(heads):
        _apply_transposed(matrices[heads + h], start, dim, 1.0, key)
        derivative(
            tag,
            work,
            width,
            0,
            tangent,
            weights + h * width,
            scratch,
            scratch + width,
            ranges,
            k,
            key,
            start,
            spreads[h],
            scalars[0, h],
            nowhere,
            part,
        )
        _apply(matrices[h], part, dim, out)


@kernel
def stage_place(tokens, increments, k, i, y, place):
    """Chart point and position of row k at stage i; returns r = sqrt(1 + |y|^2)."""
    dim = y.size + 1
    square = 1.0
    for b in range(dim - 1):
        y[b] = 0.0
        for j in range(i):
            y[b] += A[i, j] * increments[j, k, b]
        square += y[b] ** 2
    r = math.sqrt(square)
    from_chart(tokens, k, y, place)
    for a in range(dim):
        place[a] = (tokens[k, a] + place[a]) / r
    return r


@kernel
def radial(tokens, k, force, dim):
    """<x_k0, G_k>."""
    inner = 0.0
    for a in range(dim):
        inner += tokens[k, a] * force[a]
    return inner


@kernel
def put_stage(work, width, padded, column, i, place, tangent, dim):
    """Write the position and the tangent of one token at stage i."""
    base = 2 * i * padded * width + column
    for a in range(dim):
        work[base + a * width] = place[a]
        work[base + (padded + a) * width] = tangent[a]
