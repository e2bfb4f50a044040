"""Gnomonic charts: x_k(y) = (x_k0 + E_k y)/r, r = sqrt(1 + |y|^2), E_k a basis of the tangent space (see `sphere_system`);
and small dense matrices inside compiled loops."""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate.rodas.tableau import POLYNOMIAL, STAGES, WEIGHTS, A
from metastable.kernels.cpu.compiled import allocating, inner

Charts = namedtuple("Charts", ["origin", "mirror", "scale"])
"""x_k0 (n, d), the Householder vector v of the reflector I - scale v v^T whose columns 2..d are E_k (n, d), 2 / |v|^2 (n,)."""


def charts_at(x: FloatArray) -> Charts:
    """Charts at tokens x (n, d), whose frames are not set yet."""
    return Charts(np.array(x, dtype=float), np.zeros(x.shape), np.zeros(len(x)))


def bases(charts: Charts) -> FloatArray:
    """E_k of the rows, shape (rows, d, d - 1)."""
    mirror = charts.mirror
    reflector = np.eye(mirror.shape[1]) - charts.scale[:, None, None] * mirror[:, :, None] * mirror[:, None, :]
    return reflector[:, :, 1:]


@inner
def set_frames(charts):
    """Householder vectors of all charts at the current tokens."""
    for k in range(charts.scale.size):
        square = 0.0
        for a in range(charts.origin.shape[1]):
            value = charts.origin[k, a]
            if a == 0:
                value += 1.0 if value >= 0.0 else -1.0
            charts.mirror[k, a] = value
            square += value * value
        charts.scale[k] = 2.0 / square


@inner
def to_chart(charts, k, vector, out):
    """E_k^T vector."""
    mirror = charts.mirror[k]
    dot = 0.0
    for a in range(mirror.size):
        dot += mirror[a] * vector[a]
    dot *= charts.scale[k]
    for b in range(1, mirror.size):
        out[b - 1] = vector[b] - dot * mirror[b]


@inner
def sizes_in_chart(charts, k, vector, out):
    """`to_chart` where every term counts with its absolute value: what rounding errors are relative to. (`out` may be `vector`.)"""
    mirror = charts.mirror[k]
    dot = 0.0
    for a in range(mirror.size):
        dot += abs(mirror[a] * vector[a])
    dot *= charts.scale[k]
    for b in range(1, mirror.size):
        out[b - 1] = abs(vector[b]) + dot * abs(mirror[b])


@inner
def from_chart(charts, k, y, out):
    """E_k y."""
    mirror = charts.mirror[k]
    dot = 0.0
    for b in range(1, mirror.size):
        dot += mirror[b] * y[b - 1]
    dot *= charts.scale[k]
    out[0] = -dot * mirror[0]
    for b in range(1, mirror.size):
        out[b] = y[b - 1] - dot * mirror[b]


@inner
def combine(increments, k, coefficients, count, y, square):
    """y = sum of the first `count` increments of row k times their coefficients; returns `square` + |y|^2."""
    for b in range(y.size):
        y[b] = 0.0
        for j in range(count):
            y[b] += coefficients[j] * increments[j, k, b]
        square += y[b] * y[b]
    return square


@inner
def stage_place(charts, increments, k, i, y, place):
    """Chart point and position of row k at stage i; returns r = sqrt(1 + |y|^2)."""
    r = math.sqrt(combine(increments, k, A[i], i, y, 1.0))
    from_chart(charts, k, y, place)
    for a in range(y.size + 1):
        place[a] = (charts.origin[k, a] + place[a]) / r
    return r


@inner
def radial(charts, k, force):
    """<x_k0, G_k>."""
    dot = 0.0
    for a in range(charts.origin.shape[1]):
        dot += charts.origin[k, a] * force[a]
    return dot


@inner
def chart_velocity(charts, k, force, y, r, out):
    """dy/dt = r (E_k^T G_k - y <x_k0, G_k>), the velocity at the chart point y of row k."""
    dot = radial(charts, k, force)
    to_chart(charts, k, force, out)
    for b in range(y.size):
        out[b] = r * (out[b] - y[b] * dot)


# ------------------------------------------------------------------------------------------------------ the end of a step


@inner
def end_of_step(increments, k, y):
    """Chart point y of row k at the end of the step; returns the squares of the error estimate and of |y|."""
    error = 0.0
    for b in range(y.size):
        error += increments[STAGES - 1, k, b] * increments[STAGES - 1, k, b]
    return error, combine(increments, k, WEIGHTS, STAGES, y, 0.0)


@inner
def write_polynomial(charts, increments, k, y, piece, token):
    """Dense output of row k in R^d, x_k0 + E_k y(u), to be normalised: that of a token in `piece` (5, tokens, d)."""
    for a in range(y.size + 1):
        piece[0, token, a] = charts.origin[k, a]
    for power in range(4):
        combine(increments, k, POLYNOMIAL[power], STAGES, y, 0.0)
        from_chart(charts, k, y, piece[power + 1, token])


@inner
def move(charts, increments, k, y, change):
    """Row k to the end of the step; y (d - 1,) and `change` (d,) are memory to work in."""
    if combine(increments, k, WEIGHTS, STAGES, y, 0.0) == 0.0:
        return
    from_chart(charts, k, y, change)
    length = 0.0
    for a in range(y.size + 1):
        charts.origin[k, a] += change[a]
        length += charts.origin[k, a] * charts.origin[k, a]
    for a in range(y.size + 1):
        charts.origin[k, a] /= math.sqrt(length)


# ---------------------------------------------------------------- the (d-1) x (d-1) diagonal blocks of the Jacobian in them


@inner
def reflect_block(charts, k, block):
    """`E_k^T block E_k` into the leading (d-1) x (d-1) part."""
    mirror, scale = charts.mirror[k], charts.scale[k]
    d = mirror.size
    for a in range(d):
        dot = 0.0
        for b in range(d):
            dot += block[a, b] * mirror[b]
        for b in range(d):
            block[a, b] -= scale * dot * mirror[b]
    for b in range(d):
        dot = 0.0
        for a in range(d):
            dot += mirror[a] * block[a, b]
        for a in range(d):
            block[a, b] -= scale * dot * mirror[a]
    for a in range(d - 1):
        for b in range(d - 1):
            block[a, b] = block[a + 1, b + 1]


@inner
def bound_of_real_parts(block, m):
    """Gershgorin's bound for the symmetric part of the leading m x m part: no eigenvalue has a larger real part."""
    bound = -1e300
    for a in range(m):
        reach = block[a, a]
        for b in range(m):
            if b != a:
                reach += 0.5 * abs(block[a, b] + block[b, a])
        bound = max(bound, reach)
    return bound


@inner
def bound_of_turning(block, m):
    """The same for the antisymmetric part: no eigenvalue has a larger imaginary part."""
    bound = 0.0
    for a in range(m):
        reach = 0.0
        for b in range(m):
            reach += 0.5 * abs(block[a, b] - block[b, a])
        bound = max(bound, reach)
    return bound


SPIRAL = 1e-8
"""Growth of a spiral, against the size of its matrix, that can be told from none: eigenvalues of defective matrices err by so much."""


@inner
def rate_of_pair(block):
    """`rate_of_modes` of the leading 2 x 2 part."""
    half = 0.5 * (block[0, 0] + block[1, 1])
    gap = 0.5 * (block[0, 0] - block[1, 1])
    # Entries of 1e-170 are no rarity, and their squares are zero.
    size = max(abs(gap), max(abs(block[0, 1]), abs(block[1, 0])))
    if not size > 0.0:
        return half
    square = (gap / size) * (gap / size) + (block[0, 1] / size) * (block[1, 0] / size)
    if square >= 0.0:
        return half + size * math.sqrt(square)
    return math.hypot(half, size * math.sqrt(-square)) if half > SPIRAL * size else half


NOTHING = 1e-18
"""Entry, against the largest one, that its rounding hides."""
SYMMETRIC = 1e-13
"""Difference of a matrix and its transpose, against its largest entry, that is rounding."""


@allocating
def _found_eigenvalues(matrix, values):
    """Eigenvalues of a matrix, to `values`; False where LAPACK's iteration does not converge."""
    try:
        values[:] = np.linalg.eigvals(matrix)
        found = True
    except Exception:
        found = False
    return found


@allocating
def rate_of_modes(block, m, result):
    """Rate of the fastest unstable mode of the leading m x m part, to `result[0]`: the largest |lambda| over the eigenvalues that grow,
    the largest real part where none does.

    For real eigenvalues the two are the same. A spiral counts with its turning too: a step that covers many turns damps it however
    fast it grows, and a token would stay for ever at a rest that it leaves in truth.
    """
    result[0] = 0.0
    size = 0.0
    for a in range(m):
        for b in range(m):
            # LAPACK gives up on what is not finite; the error estimate will reject the step.
            if not math.isfinite(block[a, b]):
                return
            size = max(size, abs(block[a, b]))
    if not size > 0.0:
        return
    skew = 0.0
    for a in range(m):
        for b in range(a):
            skew = max(skew, abs(block[a, b] - block[b, a]))
    # LAPACK's own scaling has been seen to fail for entries of 1e-139 and below; and its iteration for general matrices not to converge
    # for symmetric ones (to rounding) with an eigenvalue of multiplicity five, which leaders of V = I in dimension 8 have.
    if skew <= SYMMETRIC * size:
        result[0] = size * np.linalg.eigvalsh(block[:m, :m] / size)[m - 1]
        return
    matrix, values = (block[:m, :m] / size).astype(np.complex128), np.empty(m, dtype=np.complex128)
    slow = -np.inf
    if not _found_eigenvalues(matrix, values):
        # Nor where a block of 1e-23 stands beside one of 1, as full attention has them before its last merges: entries below the
        # rounding of the largest say nothing, and for rows of nothing else there is a bound.
        for a in range(m):
            whole = 0.0
            for b in range(m):
                whole += abs(block[a, b])
                if abs(matrix[a, b]) < NOTHING:
                    matrix[a, b] = 0.0
            if whole < NOTHING * size:
                slow = max(slow, whole)
        if not _found_eigenvalues(matrix, values):
            result[0] = bound_of_real_parts(block, m)
            return
    largest = -np.inf
    for value in values:
        largest = max(largest, abs(value) if value.imag != 0.0 and value.real > SPIRAL else value.real)
    result[0] = max(size * largest, slow)


@inner
def factor(block, shift, m, factors, pivots):
    """LU factors with row pivots of `shift I - block` (leading m x m)."""
    for a in range(m):
        for b in range(m):
            factors[a, b] = (shift if a == b else 0.0) - block[a, b]
    for c in range(m):
        best = c
        for a in range(c + 1, m):
            if abs(factors[a, c]) > abs(factors[best, c]):
                best = a
        pivots[c] = best
        if best != c:
            for b in range(m):
                factors[c, b], factors[best, b] = factors[best, b], factors[c, b]
        for a in range(c + 1, m):
            factors[a, c] /= factors[c, c]
            for b in range(c + 1, m):
                factors[a, b] -= factors[a, c] * factors[c, b]


@inner
def solve_factored(factors, pivots, m, vector):
    """Solve with the result of `factor`, in place."""
    for c in range(m):
        best = pivots[c]
        if best != c:
            vector[c], vector[best] = vector[best], vector[c]
    for c in range(m):
        for a in range(c + 1, m):
            vector[a] -= factors[a, c] * vector[c]
    for c in range(m - 1, -1, -1):
        for b in range(c + 1, m):
            vector[c] -= factors[c, b] * vector[b]
        vector[c] /= factors[c, c]


@inner
def norm_of_inverse(factors, pivots, m, vector):
    """Largest entry of the inverse of what `factor` was given, `vector` (m,) is memory to work in."""
    result = 0.0
    for c in range(m):
        for a in range(m):
            vector[a] = 1.0 if a == c else 0.0
        solve_factored(factors, pivots, m, vector)
        for a in range(m):
            result = max(result, abs(vector[a]))
    return result
