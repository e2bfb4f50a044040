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
from functools import cache

import numpy as np

from metastable.integrate.rodas import charts as chart
from metastable.integrate.rodas import control
from metastable.integrate.rodas.control import CAP, ENOUGH, OVERSHOOT
from metastable.integrate.rodas.tableau import GAMMA, STAGES, C
from metastable.kernels.cpu.chunks import chunk_tag, padded_dimension
from metastable.kernels.cpu.compiled import address_of, aligned_array, call_address, inlined, inner
from metastable.kernels.jacobian_sphere import (
    Columns,
    Model,
    Row,
    Vectors,
    drive,
    linearise,
    other_rows,
    padded_columns,
)
from metastable.kernels.minimax import LOG2E

LOOK = 0.05
"""Eigenvalues of a diagonal block are computed when a bound on h * Re lambda exceeds this, or on h * Im lambda where one may grow."""
ROUNDING = 1e-15
"""Rounding errors of a short sum, relative to the sum of the absolute values."""
BLUR = 1e-9
"""Radians by which rounding errors may move a token that is called at rest."""

Rows = namedtuple("Rows", ["own", "rate", "inverse", "terms", "allowed"])
"""For each row (n,): 1 where a token sees itself; rate of the unstable modes of J_kk; largest entry of (1/(h gamma) - J_kk)^(-1);
sum of the absolute values of the terms of its velocity; part of its way that a step may err by."""
Local = namedtuple("Local", ["y", "slope", "factors", "pivots", "rate"])
"""Memory of a row in its chart: the chart point and the right-hand side (m,), LU factors (m, m), their pivots (m,), a rate (1,)."""

SphereSystem = namedtuple(
    "SphereSystem",
    [
        "charts",  # `charts.Charts` at the tokens at the start of the step
        "increments",  # (8, n, d - 1): u_1 .. u_8
        "velocity",  # (n, d - 1), at the start of the step
        "rows",  # `Rows`
        "ranges",  # (n, r, 2) visible columns of each row without itself, frozen tokens apart
        "model",  # `jacobian_sphere.Model`
        "columns",  # `jacobian_sphere.Columns`
        "vectors",  # `jacobian_sphere.Vectors`
        "local",  # `Local`
        "tag",  # array whose number of axes is that of components per chunk, see kernels.cpu.chunks
        "frozen",  # number of frozen tokens, the first columns
        "defective",  # 1 when the leading eigenvalue of V_sum has Jordan blocks: rests may be stable from one side only
        "first",  # rows below are handled elsewhere (a dense leading block)
        "step",  # (1,) size of the attempted step
        "result",  # see `control`; the error that matters is the tolerance
        "eigenvalue_address",  # of the compiled `rate_of_modes`
        "calls",  # addresses of its compiled functions
    ],
)


CURVED = 0.1
"""A step is curved when the velocity at its end differs from the linear prediction by this part of that at its start."""
RELATIVE = 1e-4
"""Part of its way that a curved step may err by where rests are stable from one side only (see `_curved`)."""


def _memory(dim: int, heads: int) -> tuple[Vectors, Local]:
    """Memory that the sweep over a row works in."""
    padded, m = padded_dimension(dim), dim - 1
    lines, squares = [np.zeros(padded) for _ in range(9)], [np.zeros((padded, padded)) for _ in range(2)]
    vectors = Vectors(*[*lines, np.zeros((heads, padded)), *squares])
    return vectors, Local(np.zeros(m), np.zeros(m), np.zeros((m, m)), np.zeros(m, dtype=np.int64), np.zeros(1))


def _columns(anchors, tokens: int, slopes) -> Columns:
    """Columns with the frozen tokens in the first places of every stage."""
    frozen_tokens, frozen_weights = anchors
    frozen, dim = frozen_tokens.shape
    width, padded, heads = padded_columns(frozen + tokens), padded_dimension(dim), len(slopes)
    shapes = [(STAGES, padded, width)] * 2 + [(heads, width)] * 2 + [(width,)] * 2
    columns = Columns(*(aligned_array(*shape) for shape in shapes))
    columns.position[:, :dim, :frozen] = frozen_tokens.T
    columns.bias[:, :frozen] = np.log2(frozen_weights)
    columns.bias[:, frozen : frozen + tokens] = slopes[:, None] * np.arange(tokens)
    return columns


def make(x, model: Model, frozen, seen, *, defective: bool, first: int) -> SphereSystem:
    """A `SphereSystem` at rest at the tokens `x` (n, d), for a model whose slopes are plain.

    `frozen`: frozen tokens (m, d) and their weights. `seen`: the columns that each row sees without itself, and who sees itself.
    """
    n, dim = x.shape
    ranges, own = seen
    model = model._replace(slopes=model.slopes * LOG2E)
    vectors, local = _memory(dim, len(model.betas))
    system = SphereSystem(
        charts=chart.charts_at(x),
        increments=np.zeros((STAGES, n, dim - 1)),
        velocity=np.zeros((n, dim - 1)),
        rows=Rows(np.array(own, dtype=float), *np.zeros((4, n))),
        ranges=np.ascontiguousarray(ranges),
        model=model,
        columns=_columns(frozen, n, model.slopes),
        vectors=vectors,
        local=local,
        tag=chunk_tag(dim),
        frozen=len(frozen[0]),
        defective=int(defective),
        first=first,
        step=np.zeros(1),
        result=np.zeros(control.RESULT_SIZE),
        eigenvalue_address=_eigenvalue_address() if dim > 3 else 0,
        calls=control.Calls(0, 0, 0, 0),
    )
    system.result[ENOUGH] = np.inf
    return control.with_calls(system, _attempt, _move, _polynomial, _settled, piece=np.zeros((5, n, dim)))


@inlined
def _row_of(system, k):
    """Row k."""
    return Row(system.tag, k, system.ranges[k], system.frozen, system.rows.own[k])


@cache
def _eigenvalue_address() -> int:
    """Where the compiled `rate_of_modes` is."""
    return address_of(chart.rate_of_modes, np.zeros((1, 1)), 1, np.zeros(1))


@inlined
def _rate(system, m, enough):
    """Rate of the fastest unstable mode of the block (0 when none grows), or a bound on it that is below `enough`."""
    block = system.vectors.block
    if m == 1:
        return max(0.0, block[0, 0])
    bound = chart.bound_of_real_parts(block, m)
    if bound <= 0.0 or (bound <= enough and chart.bound_of_turning(block, m) <= enough):
        return max(0.0, bound)
    if m == 2:
        return max(0.0, chart.rate_of_pair(block))
    # By its address: it allocates, which a kernel does not.
    call_address(system.eigenvalue_address, block, m, system.local.rate)
    return max(0.0, system.local.rate[0])


@inlined
def _curved(system, k):
    """True when the velocity at the chart point y of the last stage is far from f + J y.

    A Jordan block of the leading eigenvalue has rests that are stable from one side only: with a the angle to it, da/dt = -a^2.
    An error below the tolerance can carry the token to the other side, and from there it leaves for the antipode. Near such
    a rest velocity and Jacobian vanish together, so that steps are curved however small they are; at a stable rest they
    are not, and an L-stable step may jump there with any relative error. What rounding makes of a component of the velocity, and of
    the place that it is asked for, has no shape.
    """
    velocity, vectors, y, slope = system.velocity[k], system.vectors, system.local.y, system.local.slope
    terms, place = vectors.terms, vectors.part
    chart.sizes_in_chart(system.charts, k, terms, terms)
    chart.sizes_in_chart(system.charts, k, vectors.start, place)
    speed, bend = 0.0, 0.0
    for b in range(y.size):
        expected, size = velocity[b], terms[b]
        for c in range(y.size):
            expected += vectors.block[b, c] * y[c]
            size += abs(vectors.block[b, c]) * place[c]
        if abs(velocity[b]) > ROUNDING * size:
            speed = max(speed, abs(velocity[b]))
        if abs(slope[b] - expected) > ROUNDING * size:
            bend = max(bend, abs(slope[b] - expected))
    return speed > 0.0 and bend > CURVED * speed


@inlined
def linearise_at(system, k):
    """`linearise` for row k."""
    vectors = system.vectors
    for a in range(system.charts.origin.shape[1]):
        vectors.start[a] = system.charts.origin[k, a]
        vectors.place[a] = vectors.start[a]
    system.rows.terms[k] = linearise(_row_of(system, k), system.model, system.columns, vectors)


@inlined
def _linearise_row(system, k, h):
    """Velocity of row k at the start of the step, J_kk, the rate of its modes, and the LU factors of 1/(h gamma) - J_kk."""
    charts, vectors, local, rows = system.charts, system.vectors, system.local, system.rows
    m = local.y.size
    linearise_at(system, k)
    chart.reflect_block(charts, k, vectors.block)
    dot = chart.radial(charts, k, vectors.force)
    for b in range(m):
        vectors.block[b, b] -= dot
    rows.rate[k] = _rate(system, m, LOOK / h)
    chart.factor(vectors.block, 1.0 / (h * GAMMA), m, local.factors, local.pivots)
    rows.inverse[k] = chart.norm_of_inverse(local.factors, local.pivots, m, local.slope)
    chart.to_chart(charts, k, vectors.force, local.slope)
    for b in range(m):
        system.velocity[k, b] = local.slope[b]


@inlined
def stage_velocity(system, k, i, slope):
    """Velocity of row k at stage i in its chart."""
    charts, vectors, y = system.charts, system.vectors, system.local.y
    r = chart.stage_place(charts, system.increments, k, i, y, vectors.place)
    drive(_row_of(system, k), system.model, system.columns, i, vectors)
    chart.chart_velocity(charts, k, vectors.force, y, r, slope)


@inlined
def put_stage(system, k, i, place, tangent):
    """Position and tangent of row k at stage i, into its column."""
    for a in range(system.charts.origin.shape[1]):
        system.columns.position[i, a, system.frozen + k] = place[a]
        system.columns.tangent[i, a, system.frozen + k] = tangent[a]


@inlined
def _sweep_row(system, k, h):
    """All stages of row k; returns the rate of its unstable modes, 0 when nothing moves."""
    vectors, local, increments = system.vectors, system.local, system.increments
    y, slope = local.y, local.slope
    _linearise_row(system, k, h)
    moves = False
    for i in range(STAGES):
        if i > 0:
            stage_velocity(system, k, i, slope)
        if system.defective and i == STAGES - 1:
            system.rows.allowed[k] = RELATIVE if _curved(system, k) else 0.0
        other_rows(_row_of(system, k), system.model, system.columns, i, vectors)
        chart.to_chart(system.charts, k, vectors.other, y)
        for b in range(y.size):
            slope[b] += y[b]
            for j in range(i):
                slope[b] += C[i, j] / h * increments[j, k, b]
        chart.solve_factored(local.factors, local.pivots, y.size, slope)
        for b in range(y.size):
            increments[i, k, b] = slope[b]
            moves |= slope[b] != 0.0
        chart.from_chart(system.charts, k, slope, vectors.part)
        put_stage(system, k, i, vectors.place, vectors.part)
    return system.rows.rate[k] if moves else 0.0


@inlined
def _judge(system):
    """Largest error estimate and largest chart coordinate of the new state.

    Where a token may err by a part of its way only, its estimate is scaled so that this is what the tolerance asks for.
    """
    y, tolerance = system.local.y, system.result[ENOUGH]
    error, extent = 0.0, 0.0
    for k in range(system.velocity.shape[0]):
        square, end = chart.end_of_step(system.increments, k, y)
        way = 0.0
        for b in range(y.size):
            way = max(way, abs(y[b]))
        last = math.sqrt(square)
        allowed = system.rows.allowed[k] * way
        if 0.0 < allowed < tolerance:
            last *= tolerance / allowed
        if not last <= error:
            error = last
        if not end <= extent:
            extent = end
    system.result[control.ERROR], system.result[control.EXTENT] = error, math.sqrt(extent)


@inlined
def prepare(system, h):
    """New charts, and no memory of earlier columns: what is not finite would survive a zero weight."""
    system.step[0] = h
    chart.set_frames(system.charts)
    system.columns.position[:, :, system.frozen :] = 0.0
    system.columns.tangent[:, :, system.frozen :] = 0.0


@inner
def _attempt(system, h):
    """All rows; with a dense block those behind it, after the block was prepared and its stages are in their columns."""
    if system.first == 0:
        prepare(system, h)
    rate = 0.0
    for k in range(system.first, system.velocity.shape[0]):
        rate = max(rate, _sweep_row(system, k, h))
        if rate * h > CAP * OVERSHOOT:
            break
    if rate * h <= CAP * OVERSHOOT:
        _judge(system)
    system.result[control.FASTEST] = rate


@inner
def _polynomial(system, piece):
    """Dense output of all tokens."""
    for k in range(system.velocity.shape[0]):
        chart.write_polynomial(system.charts, system.increments, k, system.local.y, piece, k)


@inner
def _move(system, tolerance):
    """Tokens at the end of the step."""
    for k in range(system.velocity.shape[0]):
        chart.move(system.charts, system.increments, k, system.local.y, system.vectors.part)


@inner
def _settled(system, threshold):
    """Look for rest, judged at the start of the attempted step.

    A token is at rest when it feels exactly nothing, or when it is stable, the step was so long against all its relaxation times
    (`|(1/(h gamma) - J_kk)^(-1)| <= h gamma / 10`) that the first increment is the Newton correction -J^(-1) f, that correction
    is at most `threshold`, and rounding errors of the velocity could not change it by more than `BLUR`. It is hidden when its
    velocity is no larger than these rounding errors and yet it is not at rest. Norms are largest entries: speeds of 1e-170
    have no squares. Rows of a dense block have no inverse of their own; there the correction stands for it.
    """
    h, rows, state = system.step[0], system.rows, control.AT_REST
    for k in range(system.velocity.shape[0]):
        speed, correction = 0.0, 0.0
        for b in range(system.velocity.shape[1]):
            speed = max(speed, abs(system.velocity[k, b]))
            correction = max(correction, abs(system.increments[0, k, b]))
        if speed == 0.0 and correction <= threshold:
            continue
        floor = ROUNDING * rows.terms[k]
        inverse = rows.inverse[k] if k >= system.first else correction / max(speed, 1e-300)
        relaxed = inverse <= 0.1 * h * GAMMA and inverse * floor <= BLUR
        if relaxed and rows.rate[k] == 0.0 and correction <= threshold:
            continue
        if speed > floor:
            state = control.MOVING
            break
        state = control.HIDDEN
    system.result[control.STATE] = state
