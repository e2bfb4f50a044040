"""What moves points with masses: attention of several heads, with its Jacobian in charts.

Points move as

    dx_k/dt = P_{x_k} G_k,    G_k = sum_h V_h D_kh + R x_k,    D_kh = sum_j p_kjh (x_j - x_k),
    p_kjh = m_kj exp(beta_h x_k^T M_h (x_j - x_k)) / Z_kh,

with M_h = Q_h^T K_h, m_kj the mass that point k sees at point j (m_kk at its own place), and R = V_sum - lambda I: lambda x_k has no
tangent part, so it may be taken off, which leaves nothing but differences where V_sum = lambda I. With Delta = x_j - x_k and
g_h = beta_h M_h^T x_k the derivatives of G_k are, before E_k^T and E_j put them into charts,

    by x_j:   sum_h p_kjh (V_h + V_h (Delta - D_kh) g_h^T),
    by x_k:   R - sum_h (1 - p_kkh) V_h + sum_{h, j != k} p_kjh V_h (Delta - D_kh) (beta_h M_h Delta - g_h)^T.

Points that are moved fill the vectors, a *lane* each, and those that they see come one after the other: no sum is over lanes. Arrays
have a line for each component, as wide as whole vectors (`width`); lanes behind the last point have no mass and stand still.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.vector import LANES, exp2, fill, lanes, load, maximum, spread, store, where
from metastable.kernels.minimax import LOG2E


class Surroundings(NamedTuple):
    """What moves points: `masses` (m, width), that of point j as point k sees it at [j, k]; for each head `forms` M (h, d, d), `betas`
    (h,) and `values` V (h, d, d); `rest` R (d, d), and 1 where it is anything (`drifting`).

    `together`: leading coordinates that are solved at once, those of points who see each other (all, or those of a prefix, or the first
    one's d - 1); later points see earlier ones only. `reach`: the distance (a chord) at which two are one.
    """

    masses: FloatArray
    forms: FloatArray
    betas: FloatArray
    values: FloatArray
    rest: FloatArray
    drifting: int
    together: int
    reach: float


def width_for(points: int) -> int:
    """Numbers in a line of whole vectors for so many points."""
    return -(-points // LANES) * LANES


def lines_of(array: FloatArray) -> FloatArray:
    """(m, c), a row for each point, as c lines (c, width)."""
    lines = np.zeros((array.shape[1], width_for(len(array))))
    lines[:, : len(array)] = array.T
    return lines


def plain_surroundings(masses: FloatArray, form: FloatArray, beta: float, together: int, reach: float) -> Surroundings:
    """One head with V = I; masses (m, m) at [k, j], as point k sees them."""
    identity = np.eye(len(form))
    rest, forms = np.zeros_like(identity), np.array(form[None])
    return Surroundings(lines_of(masses), forms, np.array([beta]), identity[None], rest, 0, together, reach)


# ------------------------------------------------------------------------------------------------------------ charts


@inlined
def product(left, right, g):
    """sum_a left_a right_a of lines (c, width), for the points of one vector."""
    value = load(left[0], g) * load(right[0], g)
    for a in range(1, len(left)):
        value += load(left[a], g) * load(right[a], g)
    return value


@inlined
def _set_frames(work, g):
    """Householder vectors of the charts at the points, which are also the places that forces are asked for."""
    for a in range(len(work.origin)):
        value = load(work.origin[a], g)
        store(work.place[a], g, value)
        if a == 0:
            value += where(maximum(value, 0.0), 1.0, where(value, -1.0, 1.0))
        store(work.mirror[a], g, value)
    store(work.scale, g, 2.0 / product(work.mirror, work.mirror, g))


@inlined
def chart_velocity(work, g, out):
    """dy/dt = r (E^T G - y <x_0, G>), the velocity at the chart points y of one vector of points; none of those that are not alone."""
    along = product(work.origin, work.force, g)
    dot = product(work.mirror, work.force, g) * load(work.scale, g)
    moves = load(work.r, g) * load(work.alone, g)
    for b in range(len(out)):
        tangent = load(work.force[b + 1], g) - dot * load(work.mirror[b + 1], g)
        store(out[b], g, moves * (tangent - load(work.y[b], g) * along))


# --------------------------------------------------------------------------------------------------------- attention


@inlined
def _seen_by(surroundings, work, g):
    """How many points, from the first one on, those of a vector may see: behind those who lead nobody sees a later one."""
    return min(len(work.owner), max(g + LANES, surroundings.together // len(work.y)))


@inlined
def _weigh(surroundings, work, h, g, stop):
    """Of one head: m_kj exp(beta x_k^T M (x_j - x_k)) to `weights`, but for a factor of each k; 1/Z_k with that factor to `scales`,
    and 1 - p_kk to `others`."""
    x, weights, query, masses = work.place, work.weights[h], work.queries[h], surroundings.masses
    top = fill(0.0)
    for j in range(stop):
        if work.alone[j] == 0.0:
            continue
        logit = fill(0.0)
        for b in range(len(x)):
            logit += load(query[b], g) * (spread(x[b], j) - load(x[b], g))
        logit = logit * LOG2E
        store(weights[j], 0, logit)
        top = maximum(top, where(load(masses[j], g), logit, 0.0))
    whole, others = fill(0.0), fill(0.0)
    for j in range(stop):
        if work.alone[j] == 0.0:
            continue
        # (Who is not seen may have a larger logit than all others, and its power may be no number.)
        weight = load(masses[j], g) * exp2(fill(0.0) - maximum(top - load(weights[j], 0), 0.0))
        store(weights[j], 0, weight)
        whole += weight
        others += where(lanes() + float(g - j), weight, 0.0)
    scale = where(others, 1.0 / whole, 0.0)
    store(work.scales[h], g, scale)
    store(work.others[h], g, others * scale)


@inner
def attend(surroundings, work, g):
    """Attention of the points of one vector at their places: `weights`, `scales` and `others` as `_weigh` says, beta M^T x_k to
    `queries`, D_kh to `means` and G_k to `force`."""
    x, force = work.place, work.force
    d, stop = len(x), _seen_by(surroundings, work, g)
    for a in range(d):
        drift = fill(0.0)
        if surroundings.drifting:
            for b in range(d):
                drift += surroundings.rest[a, b] * load(x[b], g)
        store(force[a], g, drift)
    for h in range(len(surroundings.betas)):
        form, beta, value = surroundings.forms[h], surroundings.betas[h], surroundings.values[h]
        mean, weights = work.means[h], work.weights[h]
        for b in range(d):
            query = fill(0.0)
            for a in range(d):
                query += load(x[a], g) * (beta * form[a, b])
            store(work.queries[h, b], g, query)
        _weigh(surroundings, work, h, g, stop)
        for b in range(d):
            sums, here = fill(0.0), load(x[b], g)
            for j in range(stop):
                if work.alone[j] != 0.0:
                    sums += load(weights[j], 0) * (spread(x[b], j) - here)
            store(mean[b], g, sums * load(work.scales[h], g))
        for a in range(d):
            pull = load(force[a], g)
            for b in range(d):
                pull += value[a, b] * load(mean[b], g)
            store(force[a], g, pull)


# ---------------------------------------------------------------------------------------------------------- Jacobian


@inlined
def _face(work, g, matrix, rows):
    """E_k^T matrix to `rows` (n, d, width)."""
    mirror = work.mirror
    d = len(mirror)
    for c in range(d):
        dot = fill(0.0)
        for b in range(d):
            dot += load(mirror[b], g) * matrix[b, c]
        dot = dot * load(work.scale, g)
        for a in range(d - 1):
            store(rows[a, c], g, matrix[a + 1, c] - load(mirror[a + 1], g) * dot)


@inlined
def _add_own(work, g, rows, factor):
    """`factor` times `rows` E_k, rows (n, d, width), is added to the derivative of the velocities by the points' own places."""
    for a in range(len(rows)):
        dot = product(rows[a], work.mirror, g) * load(work.scale, g)
        for b in range(len(rows)):
            side = load(rows[a, b + 1], g) - dot * load(work.mirror[b + 1], g)
            store(work.own[a, b], g, load(work.own[a, b], g) + factor * side)


@inlined
def _add_pull(surroundings, work, h, g, j):
    """One head's part of the derivative of the velocities by the place of point j, and what the gap to it adds to `own`."""
    x, mirror, query, mean, values = work.place, work.mirror, work.queries[h], work.means[h], work.values
    d, beta = len(x), surroundings.betas[h]
    weight = load(work.weights[h, j], 0) * load(work.scales[h], g) * load(work.alone, g)
    weight = where(lanes() + float(g - j), weight, 0.0)
    reflected = fill(0.0)
    for c in range(d):
        reflected += spread(mirror[c], j) * load(query[c], g)
    for a in range(d - 1):
        turn = load(work.turns[a], g)
        for c in range(d):
            turn += load(work.forms[a, c], g) * (beta * (spread(x[c], j) - load(x[c], g)))
        store(work.lines[a], 0, turn)
    for a in range(d - 1):
        lever, dot = fill(0.0), fill(0.0)
        for c in range(d):
            value = load(values[a, c], g)
            lever += value * (spread(x[c], j) - load(x[c], g) - load(mean[c], g))
            dot += value * spread(mirror[c], j)
        for b in range(d - 1):
            share = spread(mirror[b + 1], j) * spread(work.scale, j)
            side = load(values[a, b + 1], g) - dot * share
            grip = load(query[b + 1], g) - reflected * share
            pull = weight * (side + lever * grip)
            if h > 0:
                pull += load(work.jacobian[j, b, a], g)
            store(work.jacobian[j, b, a], g, pull)
            store(work.own[a, b], g, load(work.own[a, b], g) + weight * lever * load(work.lines[b], 0))


@inlined
def _linearise_some(surroundings, work, g):
    """`linearise` for the points of one vector."""
    n = len(work.y)
    attend(surroundings, work, g)
    chart_velocity(work, g, work.velocity)
    alone = load(work.alone, g)
    along = product(work.origin, work.force, g)
    for a in range(n):
        for b in range(n):
            store(work.own[a, b], g, fill(0.0) - alone * along if a == b else fill(0.0))
    if surroundings.drifting:
        _face(work, g, surroundings.rest, work.values)
        _add_own(work, g, work.values, alone)
    for h in range(len(surroundings.betas)):
        _face(work, g, surroundings.forms[h], work.forms)
        _face(work, g, surroundings.values[h], work.values)
        _add_own(work, g, work.values, fill(0.0) - alone * load(work.others[h], g))
        query = work.queries[h]
        dot = product(work.mirror, query, g) * load(work.scale, g)
        for a in range(n):
            store(work.turns[a], g, dot * load(work.mirror[a + 1], g) - load(query[a + 1], g))
        for j in range(_seen_by(surroundings, work, g)):
            if work.alone[j] != 0.0:
                _add_pull(surroundings, work, h, g, j)


@inner
def linearise(surroundings, work):
    """New charts, and velocities and Jacobian in them at the start of a step."""
    width = len(work.alone)
    for g in range(0, width, LANES):
        _set_frames(work, g)
        store(work.r, g, fill(1.0))
        for b in range(len(work.y)):
            store(work.y[b], g, fill(0.0))
    for g in range(0, width, LANES):
        _linearise_some(surroundings, work, g)
