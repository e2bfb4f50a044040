"""What moves points with masses: attention of several heads, with its Jacobian in tangent bases.

Points move as

    dx_k/dt = P_{x_k} G_k,    G_k = sum_h V_h D_kh + R x_k,    D_kh = sum_j p_kjh (x_j - x_k),
    p_kjh = m_kj exp(beta_h x_k^T M_h (x_j - x_k)) / Z_kh,

with M_h = Q_h^T K_h, m_kj the mass that point k sees at point j (m_kk at its own place), and R = V_sum - lambda I: lambda x_k has no
tangent part, so it may be taken off, which leaves nothing but differences where V_sum = lambda I. V_h = s_h I + T_h; where all T_h
and R are zero (`tilted` False) they cost nothing, and V = I has the bits that it would have without them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cpu.compiled import inner, summing
from metastable.kernels.cpu.fastmath import exp2
from metastable.kernels.minimax import LOG2E


class Surroundings(NamedTuple):
    """What moves points: `masses` (m, m); for each head `forms` M (h, d, d), `betas`, `scales` s (h,) and `tilts` T (h, d, d);
    `rest` R (d, d).

    `together`: leading coordinates that are solved at once, those of points who see each other (all, or those of a prefix, or the first
    one's d - 1); later points see earlier ones only. `reach`: the distance (a chord) at which two are one.
    """

    masses: FloatArray
    forms: FloatArray
    betas: FloatArray
    scales: FloatArray
    tilts: FloatArray
    rest: FloatArray
    tilted: bool
    together: int
    reach: float


def plain_surroundings(masses: FloatArray, form: FloatArray, beta: float, together: int, reach: float) -> Surroundings:
    """One head with V = I."""
    nothing = np.zeros((1, *form.shape))
    return Surroundings(
        masses, np.array(form[None]), np.array([beta]), np.ones(1), nothing, nothing[0].copy(), False, together, reach
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
    for a in range(d):
        force[a] = 0.0
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
        for a in range(d):
            force[a] += surroundings.scales[h] * spread[a]
            if surroundings.tilted:
                for b in range(d):
                    force[a] += surroundings.tilts[h, a, b] * spread[b]
    if surroundings.tilted:
        for a in range(d):
            for b in range(d):
                force[a] += surroundings.rest[a, b] * x[b, k]


@inner
def to_chart(work, k, r, out):
    """Velocity (n,) in the chart of point k at its chart point, from G_k; returns <x_k, G_k>."""
    x, frames, force = work.x, work.frames, work.force
    d = x.shape[1]
    radial = 0.0
    for a in range(d):
        radial += x[k, a] * force[a]
    for b in range(d - 1):
        along = 0.0
        for a in range(d):
            along += frames[k, a, b] * force[a]
        out[b] = r * (along - work.chart[k, b] * radial)
    return radial


@inner
def _between(work, k, j, matrix, a, b):
    """E_k^T matrix E_j at (a, b)."""
    d = work.x.shape[1]
    result = 0.0
    for c in range(d):
        for e in range(d):
            result += work.frames[k, c, a] * matrix[c, e] * work.frames[j, e, b]
    return result


@inner
def _pull_of(surroundings, work, k, j, h):
    """One head's part of the derivative of the velocity of point k by its own place and by that of point j."""
    x, frames, jacobian = work.x, work.frames, work.jacobian
    form, beta, scale, tilt = (
        surroundings.forms[h],
        surroundings.betas[h],
        surroundings.scales[h],
        surroundings.tilts[h],
    )
    weight, query, spread = work.weights[h, j], work.queries[h], work.spreads[h]
    gap, lever, turn, grip = work.vectors[0], work.vectors[1], work.vectors[2], work.vectors[3]
    change = work.vectors[4]
    d = x.shape[1]
    n = d - 1
    for a in range(d):
        gap[a] = scale * (x[j, a] - x[k, a] - spread[a])
        change[a] = -query[a]
        for c in range(d):
            change[a] += beta * form[a, c] * (x[j, c] - x[k, c])
        if surroundings.tilted:
            for c in range(d):
                gap[a] += tilt[a, c] * (x[j, c] - x[k, c] - spread[c])
    for b in range(n):
        lever[b], turn[b], grip[b] = 0.0, 0.0, 0.0
        for a in range(d):
            lever[b] += frames[k, a, b] * gap[a]
            turn[b] += frames[k, a, b] * change[a]
            grip[b] += frames[j, a, b] * query[a]
    for a in range(n):
        for b in range(n):
            side = 0.0
            for c in range(d):
                side += frames[k, c, a] * frames[j, c, b]
            side *= scale
            if surroundings.tilted:
                side += _between(work, k, j, tilt, a, b)
            jacobian[k * n + a, k * n + b] += weight * lever[a] * turn[b]
            jacobian[k * n + a, j * n + b] += weight * (side + lever[a] * grip[b])


@inner
def linearise(surroundings, work):
    """Chart velocities and Jacobian at the start of a step."""
    x, jacobian = work.x, work.jacobian
    m, d = x.shape
    n, heads = d - 1, len(surroundings.betas)
    for row in range(m * n):
        for column in range(m * n):
            jacobian[row, column] = 0.0
    for k in range(m):
        for a in range(d):
            work.place[a, k] = x[k, a]
        for b in range(n):
            work.chart[k, b] = 0.0
            work.velocity[k, b] = 0.0
    for k in range(m):
        if not work.alone[k]:
            continue
        attend(surroundings, work, k)
        radial = to_chart(work, k, 1.0, work.velocity[k])
        back = 0.0
        for h in range(heads):
            back += surroundings.scales[h] * work.others[h]
        for b in range(n):
            jacobian[k * n + b, k * n + b] -= back + radial
        if surroundings.tilted:
            for a in range(n):
                for b in range(n):
                    jacobian[k * n + a, k * n + b] += _between(work, k, k, surroundings.rest, a, b)
                    for h in range(heads):
                        jacobian[k * n + a, k * n + b] -= work.others[h] * _between(
                            work, k, k, surroundings.tilts[h], a, b
                        )
        for j in range(m):
            for h in range(heads):
                if j != k and work.weights[h, j] != 0.0:
                    _pull_of(surroundings, work, k, j, h)
