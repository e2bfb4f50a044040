"""What moves points with masses: attention of several heads, with its Jacobian in charts.

Points move as

    dx_k/dt = P_{x_k} G_k,    G_k = sum_h V_h D_kh + R x_k,    D_kh = sum_j p_kjh (x_j - x_k),
    p_kjh = m_kj exp(beta_h x_k^T M_h (x_j - x_k)) / Z_kh,

with M_h = Q_h^T K_h, m_kj the mass that point k sees at point j (m_kk at its own place), and R = V_sum - lambda I: lambda x_k has no
tangent part, so it may be taken off, which leaves nothing but differences where V_sum = lambda I. With Delta = x_j - x_k and
g_h = beta_h M_h^T x_k the derivatives of G_k are, before E_k^T and E_j put them into charts,

    by x_j:   sum_h p_kjh (V_h + V_h (Delta - D_kh) g_h^T),
    by x_k:   R - sum_h (1 - p_kkh) V_h + sum_{h, j != k} p_kjh V_h (Delta - D_kh) (beta_h M_h Delta - g_h)^T.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate.rodas.charts import radial, set_frames, to_chart
from metastable.kernels.cpu.compiled import inner, summing
from metastable.kernels.cpu.fastmath import exp2
from metastable.kernels.jacobian_sphere import apply
from metastable.kernels.minimax import LOG2E


class Surroundings(NamedTuple):
    """What moves points: `masses` (m, m); for each head `forms` M (h, d, d), `betas` (h,) and `values` V (h, d, d); `rest` R (d, d),
    and 1 where it is anything (`drifting`).

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


def plain_surroundings(masses: FloatArray, form: FloatArray, beta: float, together: int, reach: float) -> Surroundings:
    """One head with V = I."""
    identity = np.eye(len(form))
    rest = np.zeros_like(identity)
    return Surroundings(masses, np.array(form[None]), np.array([beta]), identity[None], rest, 0, together, reach)


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
    if surroundings.drifting:
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
def _product(rows, frame, a, b):
    """rows E at (a, b), for rows (n, d)."""
    result = 0.0
    for c in range(frame.shape[0]):
        result += rows[a, c] * frame[c, b]
    return result


@inner
def _face(work, k, matrix, rows, factor):
    """E_k^T matrix to `rows` (n, d); `factor` times E_k^T matrix E_k is added to the derivative of the velocity of point k by its own
    place."""
    frame = work.frames[k]
    d, n = frame.shape
    for a in range(n):
        for c in range(d):
            rows[a, c] = 0.0
            for b in range(d):
                rows[a, c] += frame[b, a] * matrix[b, c]
        for b in range(n):
            work.jacobian[k * n + a, k * n + b] += factor * _product(rows, frame, a, b)


@inner
def _pull_of(surroundings, work, k, j, h):
    """One head's part of the derivative of the velocity of point k by its own place and by that of point j."""
    x, jacobian, values, forms, frames = work.charts.origin, work.jacobian, work.values[h], work.forms[h], work.frames
    beta, weight, query, spread = surroundings.betas[h], work.weights[h, j], work.queries[h], work.spreads[h]
    lever, turn, grip = work.vectors[0], work.vectors[1], work.vectors[2]
    d = x.shape[1]
    n = d - 1
    for a in range(n):
        lever[a], turn[a], grip[a] = 0.0, 0.0, 0.0
        for c in range(d):
            gap = x[j, c] - x[k, c]
            lever[a] += values[a, c] * (gap - spread[c])
            turn[a] += beta * forms[a, c] * gap - frames[k, c, a] * query[c]
            grip[a] += frames[j, c, a] * query[c]
    for a in range(n):
        for b in range(n):
            side = _product(values, frames[j], a, b)
            jacobian[k * n + a, k * n + b] += weight * lever[a] * turn[b]
            jacobian[k * n + a, j * n + b] += weight * (side + lever[a] * grip[b])


@inner
def linearise(surroundings, work):
    """New charts, and velocities and Jacobian in them at the start of a step."""
    charts, jacobian, heads = work.charts, work.jacobian, len(surroundings.betas)
    m, d, n = work.frames.shape
    set_frames(charts)
    jacobian[:] = 0.0
    work.velocity[:] = 0.0
    for k in range(m):
        for a in range(d):
            work.place[a, k] = charts.origin[k, a]
            for b in range(n):
                reflected = charts.scale[k] * charts.mirror[k, a] * charts.mirror[k, b + 1]
                work.frames[k, a, b] = (1.0 if a == b + 1 else 0.0) - reflected
    for k in range(m):
        if not work.alone[k]:
            continue
        attend(surroundings, work, k)
        to_chart(charts, k, work.force, work.velocity[k])
        along = radial(charts, k, work.force)
        if surroundings.drifting:
            _face(work, k, surroundings.rest, work.rest, 1.0)
        for h in range(heads):
            _face(work, k, surroundings.forms[h], work.forms[h], 0.0)
            _face(work, k, surroundings.values[h], work.values[h], -work.others[h])
        for b in range(n):
            jacobian[k * n + b, k * n + b] -= along
        for j in range(m):
            for h in range(heads):
                if j != k and work.weights[h, j] != 0.0:
                    _pull_of(surroundings, work, k, j, h)
