"""Rodas5P in any dimension with any heads: gnomonic charts and a sweep over the rows.

At the start of a step every token gets the chart x_k(y) = (x_k0 + E_k y)/r, r = sqrt(1 + |y|^2), with E_k an orthonormal basis
of the tangent space (columns 2..d of the Householder reflector that maps x_k0 to a multiple of e_1). With A_k the attention sum

    dy_k/dt = r (E_k^T A_k - y <x_k0, A_k>)                                        (exact),

which does not change when a multiple of x_k is added to A_k. So A_k is replaced by

    G_k = sum_heads V D_k + (V_sum - lambda I) x_k,       lambda = max Re eig(V_sum),  V_sum = sum of the heads' V,

in which nothing cancels (see `kernels.jacobian_sphere` for D, q, C). At y = 0 the diagonal block of the Jacobian is

    J_kk = E_k^T { V_sum - lambda I + sum_heads V [ -q I + beta ((C - D D^T) M^T - (1 - q) D g^T) ] } E_k - <x_k, G_k> I.

The rows are swept as on the circle: all eight stages of token k follow from the stages of the earlier tokens.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np
from numba import types

from metastable.integrate.rodas.charts import (
    drive,
    from_chart,
    linearise,
    other_rows,
    put_stage,
    radial,
    set_frames,
    stage_place,
    to_chart,
)
from metastable.integrate.rodas.control import AT_REST, CAP, HIDDEN, MOVING, OVERSHOOT, register
from metastable.integrate.rodas.small import (
    bound_of_real_parts,
    factor,
    largest_real_part,
    norm_of_inverse,
    real_part_of_pair,
    reflect_block,
    solve_factored,
)
from metastable.integrate.rodas.tableau import GAMMA, POLYNOMIAL, STAGES, WEIGHTS, C
from metastable.kernels.cpu.compiled import address_of, aligned_array, compiled, generate_call
from metastable.kernels.cpu.compiled import allocating as helper
from metastable.kernels.cpu.compiled import inner as kernel
from metastable.kernels.cpu.fastmath import LOG2E, intrinsic
from metastable.kernels.jacobian_sphere import (
    chunk_tag,
    padded_columns,
    padded_dimension,
)

LOOK = 0.05
"""Eigenvalues of a diagonal block are computed when a bound on h * Re lambda exceeds this."""
ROUNDING = 1e-15
"""Rounding errors of a short sum, relative to the sum of the absolute values."""
BLUR = 1e-9
"""Radians by which rounding errors may move a token that is called at rest."""

SphereSystem = namedtuple(
    "SphereSystem",
    [
        "tokens",  # (n, 2 d + 1): x at the start of the step, Householder vector of its chart, 2 / |that vector|^2
        "increments",  # (9, n, d - 1): u_1 .. u_8, and the velocity at the start of the step
        "rows",  # (5, n): see the names of its lines below
        "ranges",  # (n, r, 2) visible columns of each row without itself, frozen tokens apart
        "matrices",  # (2 heads + 1, d, d): V and M of each head, V_sum - lambda I
        "scalars",  # (2, heads): beta, and log2(e) times the slope of the positional bias
        "work",  # flat columns: position and tangent of each stage; bias and weights of each head; scratch, zeros
        "tag",  # tuple: components per chunk, see kernels.jacobian_sphere
        "width",
        "frozen",  # number of frozen tokens, the first columns
        "defective",  # True when the leading eigenvalue of V_sum has Jordan blocks: rests may be stable from one side only
        "first",  # rows below are handled elsewhere (a dense leading block)
        "step",  # (1,) size of the attempted step
        "result",  # (4,) what the last attempt returned, and the tolerance
        "eigenvalue_address",  # of the compiled `largest_real_part`
        "row_address",  # of the compiled sweep over one row
        "address",  # of the compiled attempt
    ],
)


VELOCITY = STAGES


# Lines of `rows`: 1 where a token sees itself; rate of the unstable modes of J_kk; largest entry of (1/(h gamma) - J_kk)^(-1);
# sum of the absolute values of the terms of its velocity; part of its way that a step may err by.
OWN, RATE, INVERSE, TERMS, ALLOWED = range(5)
CURVED = 0.1
"""A step is curved when the velocity at its end differs from the linear prediction by this part of that at its start."""
RELATIVE = 1e-4
"""Part of its way that a curved step may err by where rests are stable from one side only (see `_curved`)."""


def make(x, values, bilinear, betas, slopes, drift, *, defective, frozen_tokens, frozen_weights, ranges, own, first=0):
    """A `SphereSystem` at rest at the tokens `x` (n, d). Values and bilinear forms: None or (d, d) for each head.

    `drift` (d, d) is V_sum less the multiple of the identity that is left out.
    """
    n, dim = x.shape
    heads, frozen, padded = len(betas), len(frozen_tokens), padded_dimension(dim)
    width = padded_columns(frozen + n)
    identity = np.eye(dim)
    all_values = np.array([identity if value is None else value for value in values])
    forms = np.array([identity if form is None else form for form in bilinear])
    slopes = np.array(slopes, dtype=float) * LOG2E
    parts = STAGES * 2 * padded + 2 * heads + 2
    work = aligned_array(parts * width).reshape(parts, width)
    for i in range(STAGES):
        work[i * 2 * padded : i * 2 * padded + dim, :frozen] = np.asarray(frozen_tokens).reshape(frozen, dim).T
    bias = work[STAGES * 2 * padded : STAGES * 2 * padded + heads]
    bias[:, :frozen] = np.log2(frozen_weights)
    bias[:, frozen : frozen + n] = slopes[:, None] * np.arange(n)
    system = SphereSystem(
        tokens=np.concatenate([x, np.zeros((n, dim + 1))], axis=1),
        increments=np.zeros((STAGES + 1, n, dim - 1)),
        rows=np.array([own, *np.zeros((4, n))], dtype=float),
        ranges=np.ascontiguousarray(ranges),
        matrices=np.concatenate([all_values, forms, drift[None]]),
        scalars=np.array([betas, slopes], dtype=float),
        work=work.ravel(),
        tag=chunk_tag(dim),
        width=width,
        frozen=frozen,
        defective=bool(defective),
        first=first,
        step=np.zeros(1),
        result=np.array([0.0, 0.0, 0.0, np.inf]),
        eigenvalue_address=0,
        row_address=0,
        address=0,
    )
    memory = scratch(system)
    eigenvalues = address_of(largest_real_part, memory.squares[0], dim, system.result) if dim > 3 else 0
    system = system._replace(eigenvalue_address=eigenvalues)
    system = system._replace(row_address=address_of(_sweep_row, system, 0, 1.0, memory))
    return system._replace(address=address_of(_attempt, system, 1.0))


Scratch = namedtuple("Scratch", ["vectors", "spreads", "squares", "pivots"])


@compiled
def scratch(system):
    """Memory that the sweep over a row works in."""
    dim = system.increments.shape[2] + 1
    padded = padded_dimension(dim)
    return Scratch(
        np.zeros((10, padded)),
        np.zeros((system.scalars.shape[1], padded)),
        np.zeros((3, padded, padded)),
        np.zeros(dim, dtype=np.int64),
    )


@intrinsic
def _call_row(typing_context, address, system, k, h, memory):
    """Call `_sweep_row` at an address: it is large, and would be compiled again inside every caller."""
    return types.none(types.int64, system, types.int64, types.float64, memory), generate_call


@intrinsic
def _call_eigenvalues(typing_context, address, block, m, result):
    """Call `largest_real_part` at an address: it allocates, which a kernel does not."""
    return types.none(types.int64, block, types.int64, result), generate_call


@kernel
def _rate(system, block, m, enough):
    """Largest real part of the eigenvalues of the block (0 when negative), or a bound on it that is below `enough`."""
    if m == 1:
        return max(0.0, block[0, 0])
    bound = bound_of_real_parts(block, m)
    if bound <= enough:
        return max(0.0, bound)
    if m == 2:
        return max(0.0, real_part_of_pair(block))
    _call_eigenvalues(system.eigenvalue_address, block, m, system.result)
    return max(0.0, system.result[2])


@kernel
def _curved(system, k, block, slope, y):
    """True when the velocity `slope` at the chart point y is far from f + J y.

    A Jordan block of the leading eigenvalue has rests that are stable from one side only: with a the angle to it, da/dt = -a^2.
    An error below the tolerance can carry the token to the other side, and from there it leaves for the antipode. Near such
    a rest velocity and Jacobian vanish together, so that steps are curved however small they are; at a stable rest they
    are not, and an L-stable step may jump there with any relative error.
    """
    velocity = system.increments[VELOCITY, k]
    speed, bend = 0.0, 0.0
    for b in range(y.size):
        expected = velocity[b]
        for c in range(y.size):
            expected += block[b, c] * y[c]
        speed = max(speed, abs(velocity[b]))
        bend = max(bend, abs(slope[b] - expected))
    return speed > ROUNDING * system.rows[TERMS, k] and bend > CURVED * speed


@kernel
def _sweep_row(system, k, h, memory):
    """All stages of row k; `result[2]`: the rate of its unstable modes, 0 when nothing moves."""
    tag, work, width, frozen = system.tag, system.work, system.width, system.frozen
    tokens, increments, rows, ranges = system.tokens, system.increments, system.rows, system.ranges
    matrices, scalars = system.matrices, system.scalars
    vectors, spreads, squares, pivots = memory
    m = increments.shape[2]
    dim = m + 1
    start, place, query, spread = vectors[0], vectors[1], vectors[2], vectors[3]
    force, other, part = vectors[4], vectors[5], vectors[6]
    y, slope = vectors[7][:m], vectors[8][:m]
    block, factors, moment = squares[0][:dim, :dim], squares[1], squares[2]
    padded, own = place.size, rows[OWN, k]
    target = (STAGES * 2 * padded + 2 * scalars.shape[1]) * width
    for a in range(dim):
        start[a] = tokens[k, a]
        place[a] = start[a]
    rows[TERMS, k] = linearise(
        tag, work, width, matrices, scalars, ranges, k, frozen, own, dim, start, query, spreads, force, block, moment
    )
    reflect_block(block, tokens[k, dim : 2 * dim], tokens[k, 2 * dim])
    inner = radial(tokens, k, force, dim)
    for b in range(m):
        block[b, b] -= inner
    rate = _rate(system, squares[0], m, LOOK / h)
    rows[RATE, k] = rate
    factor(block, 1.0 / (h * GAMMA), m, factors, pivots)
    rows[INVERSE, k] = norm_of_inverse(factors, pivots, m, slope)
    to_chart(tokens, k, force, slope)
    for b in range(m):
        increments[VELOCITY, k, b] = slope[b]
    moves = False
    for i in range(STAGES):
        if i > 0:
            r = stage_place(tokens, increments, k, i, y, place)
            base = 2 * i * padded * width
            drive(
                tag,
                work,
                width,
                base,
                target,
                matrices,
                scalars,
                ranges,
                k,
                frozen,
                own,
                dim,
                place,
                query,
                spread,
                force,
            )
            inner = radial(tokens, k, force, dim)
            to_chart(tokens, k, force, slope)
            for b in range(m):
                slope[b] = r * (slope[b] - y[b] * inner)
        if system.defective and i == STAGES - 1:
            rows[ALLOWED, k] = RELATIVE if _curved(system, k, block, slope, y) else 0.0
        other_rows(
            tag, work, width, matrices, scalars, ranges, k, i, dim, start, spreads, query, vectors[9], part, other
        )
        to_chart(tokens, k, other, y)
        for b in range(m):
            slope[b] += y[b]
            for j in range(i):
                slope[b] += C[i, j] / h * increments[j, k, b]
        solve_factored(factors, pivots, m, slope)
        for b in range(m):
            increments[i, k, b] = slope[b]
            moves |= slope[b] != 0.0
        from_chart(tokens, k, slope, part)
        put_stage(work, width, padded, frozen + k, i, place, part, dim)
    system.result[2] = rate if moves else 0.0


@compiled
def sweep(system, h):
    """All rows from `system.first` on; returns the largest rate, early when it breaks the cap."""
    memory = scratch(system)
    rate = 0.0
    for k in range(system.first, system.increments.shape[1]):
        _call_row(system.row_address, system, k, h, memory)
        if system.result[2] > rate:
            rate = system.result[2]
            if rate * h > CAP * OVERSHOOT:
                break
    return rate


@compiled
def judge(system):
    """Largest error estimate and largest chart coordinate of the new state.

    Where a token may err by a part of its way only, its estimate is scaled so that this is what the tolerance asks for.
    """
    increments = system.increments
    n, m = increments.shape[1:]
    error, extent = 0.0, 0.0
    for k in range(n):
        last, end, way = 0.0, 0.0, 0.0
        for b in range(m):
            step = 0.0
            for i in range(STAGES):
                step += WEIGHTS[i] * increments[i, k, b]
            last += increments[STAGES - 1, k, b] ** 2
            end += step * step
            way = max(way, abs(step))
        last = math.sqrt(last)
        allowed = system.rows[ALLOWED, k] * way
        if 0.0 < allowed < system.result[3]:
            last *= system.result[3] / allowed
        if not last <= error:
            error = last
        if not end <= extent:
            extent = end
    return error, math.sqrt(extent)


@compiled
def prepare(system, h):
    """New charts, and no memory of earlier columns: what is not finite would survive a zero weight."""
    dim = system.increments.shape[2] + 1
    padded = padded_dimension(dim)
    system.step[0] = h
    set_frames(system.tokens, dim)
    for part in range(STAGES * 2 * padded):
        system.work[part * system.width + system.frozen : (part + 1) * system.width] = 0.0


@helper
def _attempt(system, h):
    prepare(system, h)
    rate = sweep(system, h)
    if rate * h <= CAP * OVERSHOOT:
        system.result[0], system.result[1] = judge(system)
    system.result[2] = rate


@compiled
def write_polynomial(system, piece):
    """Dense output in R^d: x_k0 + E_k y(u), to be normalised."""
    increments, tokens = system.increments, system.tokens
    n, m = increments.shape[1:]
    y = np.zeros(m)
    change = np.zeros(m + 1)
    for k in range(n):
        for a in range(m + 1):
            piece[0, k, a] = tokens[k, a]
        for power in range(4):
            for b in range(m):
                y[b] = 0.0
                for i in range(STAGES):
                    y[b] += POLYNOMIAL[power, i] * increments[i, k, b]
            from_chart(tokens, k, y, change)
            for a in range(m + 1):
                piece[power + 1, k, a] = change[a]


@compiled
def move(system, tolerance):
    """Tokens at the end of the step."""
    increments, tokens = system.increments, system.tokens
    n, m = increments.shape[1:]
    y = np.zeros(m)
    change = np.zeros(m + 1)
    for k in range(n):
        square = 0.0
        for b in range(m):
            y[b] = 0.0
            for i in range(STAGES):
                y[b] += WEIGHTS[i] * increments[i, k, b]
            square += y[b] ** 2
        if square == 0.0:
            continue
        from_chart(tokens, k, y, change)
        length = 0.0
        for a in range(m + 1):
            tokens[k, a] += change[a]
            length += tokens[k, a] ** 2
        for a in range(m + 1):
            tokens[k, a] /= math.sqrt(length)


@compiled
def settled_state(system, threshold):
    """`MOVING`, `AT_REST` or `HIDDEN`, judged at the start of the attempted step.

    A token is at rest when it feels exactly nothing, or when it is stable, the step was so long against all its relaxation times
    (`|(1/(h gamma) - J_kk)^(-1)| <= h gamma / 10`) that the first increment is the Newton correction -J^(-1) f, that correction
    is at most `threshold`, and rounding errors of the velocity could not change it by more than `BLUR`. It is hidden when its
    velocity is no larger than these rounding errors and yet it is not at rest. Norms are largest entries: speeds of 1e-170
    have no squares. Rows of a dense block have no inverse of their own; there the correction stands for it.
    """
    h = system.step[0]
    increments = system.increments
    hidden = False
    for k in range(increments.shape[1]):
        speed, correction = 0.0, 0.0
        for b in range(increments.shape[2]):
            speed = max(speed, abs(increments[VELOCITY, k, b]))
            correction = max(correction, abs(increments[0, k, b]))
        if speed == 0.0 and correction <= threshold:
            continue
        floor = ROUNDING * system.rows[TERMS, k]
        inverse = system.rows[INVERSE, k] if k >= system.first else correction / max(speed, 1e-300)
        relaxed = inverse <= 0.1 * h * GAMMA and inverse * floor <= BLUR
        if relaxed and system.rows[RATE, k] == 0.0 and correction <= threshold:
            continue
        if speed > floor:
            return MOVING
        hidden = True
    return HIDDEN if hidden else AT_REST


register(SphereSystem, move, write_polynomial, settled_state)
