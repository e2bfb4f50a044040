"""What moves points with masses: attention of several heads, with its Jacobian in charts.

Points move as

    dx_k/dt = P_{x_k} G_k,    G_k = sum_h V_h D_kh + R x_k,    D_kh = sum_j p_kjh (x_j - x_k),
    p_kjh = m_kj exp(beta_h x_k^T M_h (x_j - x_k)) / Z_kh,

with M_h = Q_h^T K_h, m_kj the mass that point k sees at point j (m_kk at its own place), and R = V_sum - lambda I: lambda x_k has no
tangent part, so it may be taken off, which leaves nothing but differences where V_sum = lambda I. With Delta = x_j - x_k and
g_h = beta_h M_h^T x_k the derivatives of G_k are, before they are put into charts,

    by x_j:   sum_h p_kjh (V_h + V_h (Delta - D_kh) g_h^T),
    by x_k:   R - sum_h (1 - p_kkh) V_h + sum_{h, j != k} p_kjh V_h (Delta - D_kh) (beta_h M_h Delta - g_h)^T.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate.rodas.charts import chart_velocity, radial, reflect_block, set_frames
from metastable.kernels.cpu.compiled import inner, summing
from metastable.kernels.cpu.fastmath import exp2
from metastable.kernels.jacobian_sphere import apply
from metastable.kernels.minimax import LOG2E


class Surroundings(NamedTuple):
    """What moves points: `masses` (m, m); for each head `forms` M (h, d, d), `betas` (h,) and `values` V (h, d, d); `rest` R (d, d).

    `together`: leading coordinates that are solved at once, those of points who see each other (all, or those of a prefix, or the first
    one's d - 1); later points see earlier ones only. `reach`: the distance (a chord) at which two are one.
    """

    masses: FloatArray
    forms: FloatArray
    betas: FloatArray
    values: FloatArray
    rest: FloatArray
    together: int
    reach: float


def plain_surroundings(masses: FloatArray, form: FloatArray, beta: float, together: int, reach: float) -> Surroundings:
    """One head with V = I."""
    identity = np.eye(len(form))
    return Surroundings(
        masses, np.array(form[None]), np.array([beta]), identity[None], np.zeros_like(identity), together, reach
    )


@summing
def _weighted(weights, places, k, count):
    """Sum over the first `count` points of weights_j (places_j - places_k), of one coordinate."""
    here, total = places[k], 0.0
    for j in range(count):
        total += weights[j] * (places[j] - here)
    return total


@inner
def attend(surroundings, work, k):
    """Attention of point k at its place: weights p_kjh (h, m), beta M^T x_k to `queries`, D_kh to `spreads`, their weight to
    `others`, and G_k to `force`."""
    masses, x, force = surroundings.masses, work.place, work.force
    d, m = x.shape
    # Behind those who lead nobody sees a later one.
    count = max(k + 1, surroundings.together // (d - 1))
    force[:] = 0.0
    apply(surroundings.rest, x[:, k], force)
    for h in range(len(surroundings.betas)):
        form, beta, weights = surroundings.forms[h], surroundings.betas[h], work.weights[h]
        query, spread = work.queries[h], work.spreads[h]
        for j in range(m):
            weights[j] = 0.0
        for b in range(d):
            query[b] = 0.0
            for a in range(d):
                query[b] += beta * x[a, k] * form[a, b]
            here = x[b, k]
            for j in range(count):
                weights[j] += query[b] * (x[b, j] - here)
        largest = 0.0
        for j in range(count):
            if masses[k, j] > 0.0:
                largest = max(largest, weights[j])
        for j in range(count):
            weights[j] = masses[k, j] * exp2(LOG2E * min(weights[j] - largest, 0.0))
        total = 0.0
        for j in range(count):
            total += weights[j]
        others = 0.0
        for j in range(count):
            weights[j] /= total
            if j != k:
                others += weights[j]
        weights[k] = 0.0
        work.others[h] = others
        for b in range(d):
            spread[b] = _weighted(weights, x[b], k, count)
        apply(surroundings.values[h], spread, force)


@inner
def _pull_of(surroundings, work, k, j):
    """The derivative of G_k by the place of point j, to `pair`; and what j adds to that by its own place, to `own`."""
    x, pair, own, gap, lever = work.charts.origin, work.pair, work.own, work.gap, work.lever
    d = gap.size
    pair[:] = 0.0
    for h in range(len(surroundings.betas)):
        form, beta, value = surroundings.forms[h], surroundings.betas[h], surroundings.values[h]
        weight, query, spread = work.weights[h, j], work.queries[h], work.spreads[h]
        for a in range(d):
            gap[a] = x[j, a] - x[k, a] - spread[a]
            lever[a] = 0.0
        apply(value, gap, lever)
        for b in range(d):
            turn = -query[b]
            for c in range(d):
                turn += beta * form[b, c] * (x[j, c] - x[k, c])
            for a in range(d):
                pair[a, b] += weight * (value[a, b] + lever[a] * query[b])
                own[a, b] += weight * lever[a] * turn


@inner
def _put(work, k, j, block):
    """E_k^T block E_j to its place in the Jacobian."""
    n = work.velocity.shape[1]
    reflect_block(work.charts, k, j, block)
    for a in range(n):
        for b in range(n):
            work.jacobian[k * n + a, j * n + b] = block[a, b]


@inner
def linearise(surroundings, work):
    """New charts, and velocities and Jacobian in them at the start of a step."""
    charts, own = work.charts, work.own
    m, n = work.velocity.shape
    heads = len(surroundings.betas)
    set_frames(charts)
    work.jacobian[:] = 0.0
    work.velocity[:] = 0.0
    work.y[:] = 0.0
    for k in range(m):
        for a in range(n + 1):
            work.place[a, k] = charts.origin[k, a]
    for k in range(m):
        if not work.alone[k]:
            continue
        attend(surroundings, work, k)
        chart_velocity(charts, k, work.force, work.y[k], 1.0, work.velocity[k])
        for a in range(n + 1):
            for b in range(n + 1):
                own[a, b] = surroundings.rest[a, b]
                for h in range(heads):
                    own[a, b] -= work.others[h] * surroundings.values[h, a, b]
        for j in range(m):
            seen = 0.0
            for h in range(heads):
                seen += work.weights[h, j]
            if j != k and seen != 0.0:
                _pull_of(surroundings, work, k, j)
                _put(work, k, j, work.pair)
        _put(work, k, k, own)
        along = radial(charts, k, work.force)
        for b in range(n):
            work.jacobian[k * n + b, k * n + b] -= along
