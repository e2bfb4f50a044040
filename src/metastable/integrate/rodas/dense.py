"""Rodas5P with a dense leading block: full attention, and the prefix of a prefix mask.

Tokens below `system.first` see each other in any direction, so their stages are solved together by LU factors of one dense
matrix; the tokens behind them see only earlier ones and are swept row by row as in `sphere_system`.

A dense factorisation mixes fast and slow modes and leaves errors of 1e-16 in eigenvalues that the triangular sweep gets exactly,
which is why a dense block limits the horizon (see `rodas.DENSE_HORIZON`).
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
from scipy.linalg import get_lapack_funcs, lu_solve

from metastable._checks import FloatArray
from metastable.integrate.rodas import control
from metastable.integrate.rodas.charts import SPIRAL, bases, stage_place, to_chart
from metastable.integrate.rodas.control import CAP, ERROR, EXTENT, FASTEST, OVERSHOOT
from metastable.integrate.rodas.sphere_system import (
    CURVED,
    RELATIVE,
    ROUNDING,
    SphereSystem,
    linearise_at,
    prepare,
    put_stage,
    stage_velocity,
)
from metastable.integrate.rodas.tableau import GAMMA, STAGES, A, C
from metastable.kernels.cpu.memory import Reference, by_reference

EXACT_SIZE = 128
"""Up to this size all eigenvalues are computed; above, Ritz values of a Krylov space stand for the rightmost ones."""
KRYLOV_SIZE = 40
BREAKDOWN = 1e-12
"""What is left of a vector, over the largest one, that is rounding: the space is closed, and more of it would have made-up values."""
RELATIVE_NOISE = 1e-13
"""Real parts below this times the largest entry cannot be told from rounding."""
FACTORIZE: Any = get_lapack_funcs("getrf", dtype=np.float64)
"""LU factors, and a number that says whether a pivot is zero (`scipy.linalg.lu_factor` warns of that)."""

Linearised = namedtuple("Linearised", ["forces", "blocks", "spreads", "weights"])
"""Of the leading rows: G_k (first, d), the matrices in braces of J_kk (first, d, d), D_k (first, heads, d) and the weights p_kj
(heads, first, width)."""


_prepare = by_reference(prepare.py_func)


@by_reference
def _linearise_block(system, found):
    """`linearise` for the leading rows."""
    vectors, dim = system.vectors, system.charts.origin.shape[1]
    for k in range(system.first):
        linearise_at(system, k)
        found.forces[k] = vectors.force[:dim]
        found.blocks[k] = vectors.block[:dim, :dim]
        found.spreads[k] = vectors.spreads[:, :dim]
        to_chart(system.charts, k, vectors.force, system.velocity[k])
        for q in range(system.ranges.shape[1]):
            start, stop = system.ranges[k, q, 0], system.ranges[k, q, 1]
            found.weights[:, k, start:stop] = system.columns.weights[:, start:stop]


@by_reference
def _velocity_block(system, i, out):
    """Chart velocities of the leading rows at stage i, all of which are put into their columns first."""
    for k in range(system.first):
        stage_place(system.charts, system.increments, k, i, system.local.y, system.vectors.place)
        put_stage(system, k, i, system.vectors.place, system.vectors.nothing)
    for k in range(system.first):
        stage_velocity(system, k, i, out[k])


def rate_of_block(matrix: FloatArray) -> float:
    """`rate_of_modes` of a block of rows, 0 when it cannot be told from zero. Ritz values stand for eigenvalues in large matrices."""
    if not np.isfinite(matrix).all():
        return 0.0
    small = matrix
    if len(matrix) > EXACT_SIZE:
        basis = np.zeros((KRYLOV_SIZE + 1, len(matrix)))
        small = np.zeros((KRYLOV_SIZE, KRYLOV_SIZE))
        # Deterministic and in general position, so that no mode is left out.
        basis[0] = np.random.default_rng(0).standard_normal(len(matrix))
        basis[0] /= np.linalg.norm(basis[0])
        reach = 0.0
        for column in range(KRYLOV_SIZE):
            vector = matrix @ basis[column]
            reach = max(reach, float(np.linalg.norm(vector)))
            for _ in range(2):
                overlap = basis[: column + 1] @ vector
                vector -= overlap @ basis[: column + 1]
                small[: column + 1, column] += overlap
            length = np.linalg.norm(vector)
            if column + 1 < KRYLOV_SIZE:
                small[column + 1, column] = length
            if length <= BREAKDOWN * reach:
                small = small[: column + 1, : column + 1]
                break
            basis[column + 1] = vector / length
    values, size = np.linalg.eigvals(small), np.abs(matrix).max()
    rates = np.where((values.imag != 0.0) & (values.real > SPIRAL * size), np.abs(values), values.real)
    rate = float(rates.max())
    return rate if rate > RELATIVE_NOISE * size else 0.0


class DenseSystem:
    """A `SphereSystem` whose rows below `first` are solved together."""

    def __init__(self, system: SphereSystem) -> None:
        self.system, self.result = system, system.result
        self.place = Reference(system)
        own = slice(None), slice(system.charts.origin.shape[1]), slice(system.frozen, system.frozen + system.first)
        self.positions, self.tangents = system.columns.position[own], system.columns.tangent[own]
        """Of the leading rows, in their columns: (8, d, first)."""
        self.frames = np.empty(0)
        """Tangent bases E of the leading rows at the start of the step, (first, d, d - 1)."""

    def jacobian(self) -> FloatArray:
        """Chart Jacobian of the leading block, shape (first, d - 1, first, d - 1), at the current tokens."""
        system, model, first = self.system, self.system.model, self.system.first
        heads, dim, _ = model.values.shape
        found = Linearised(
            np.zeros((first, dim)),
            np.zeros((first, dim, dim)),
            np.zeros((first, heads, dim)),
            np.zeros((heads, first, system.columns.zeros.size)),
        )
        _linearise_block(self.place, found)
        x, frames = system.charts.origin[:first], self.frames
        result = np.zeros((first, dim - 1, first, dim - 1))
        apart = x[None, :, :] - x[:, None, :]
        for h in range(heads):
            p = found.weights[h, :, system.frozen : system.frozen + first]
            left = np.einsum("kdb,de->kbe", frames, model.values[h])
            lever = p[:, :, None] * np.einsum("kbe,kje->kjb", left, apart - found.spreads[:, None, h])
            grip = model.betas[h] * np.einsum("kd,jdb->kjb", x @ model.forms[h], frames)
            result += np.einsum("kj,kae,jeb->kajb", p, left, frames, optimize=True)
            result += lever.transpose(0, 2, 1)[:, :, :, None] * grip[:, None, :, :]
        diagonal = np.arange(first)
        own = np.einsum("kda,kde,keb->kab", frames, found.blocks, frames)
        own -= np.einsum("kd,kd->k", x, found.forces)[:, None, None] * np.eye(dim - 1)
        result[diagonal, :, diagonal, :] = own
        return result

    def stage_slopes(self, i: int, slope: FloatArray) -> None:
        """Chart velocities of the leading rows at stage i, into `slope` (first, d - 1)."""
        _velocity_block(self.place, i, slope)

    def begin(self, h: float) -> None:
        """Charts at the current tokens for a step of size h, and the leading rows in the columns of stage 1."""
        _prepare(self.place, h)
        self.frames = bases(self.system.charts)[: self.system.first]
        self.positions[0] = self.system.charts.origin[: self.system.first].T

    def _curved(self, matrix: FloatArray, slope: FloatArray) -> FloatArray:
        """`sphere_system._curved` of the leading rows, all of which the linear prediction moves; `slope` at the last stage."""
        system, first = self.system, self.system.first
        origin, velocity = system.charts.origin[:first], system.velocity[:first]
        y = np.einsum("j,jkb->kb", A[STAGES - 1, : STAGES - 1], system.increments[: STAGES - 1, :first])
        bend = np.abs(slope - velocity - (matrix @ y.reshape(-1)).reshape(y.shape))
        place = np.einsum("kab,ka->kb", np.abs(self.frames), np.abs(origin))
        noise = ROUNDING * (system.rows.terms[:first, None] + (np.abs(matrix) @ place.reshape(-1)).reshape(y.shape))
        speed = np.where(np.abs(velocity) > noise, np.abs(velocity), 0.0).max(axis=1)
        return (speed > 0.0) & (np.where(bend > noise, bend, 0.0).max(axis=1) > CURVED * speed)

    def attempt(self, h: float) -> None:
        """Try a step: the leading block as a whole, then the rows behind it."""
        system, first = self.system, self.system.first
        size = first * system.velocity.shape[1]
        self.begin(h)
        matrix = self.jacobian().reshape(size, size)
        rate = rate_of_block(matrix)
        system.rows.rate[:first] = rate
        self.result[FASTEST] = rate
        if rate * h > CAP * OVERSHOOT:
            return
        if not np.isfinite(matrix).all():
            self.result[[ERROR, EXTENT, FASTEST]] = np.nan, 0.0, 0.0
            return
        *factors, singular = FACTORIZE(np.eye(size) / (h * GAMMA) - matrix, overwrite_a=True)
        if singular:  # a step too long for its own numbers
            self.result[[ERROR, EXTENT, FASTEST]] = np.nan, 0.0, 0.0
            return
        slope = np.array(system.velocity[:first])
        for i in range(STAGES):
            if i > 0:
                self.stage_slopes(i, slope)
                if system.defective and i == STAGES - 1:
                    system.rows.allowed[:first] = np.where(self._curved(matrix, slope), RELATIVE, 0.0)
                slope += np.einsum("j,jkb->kb", C[i, :i] / h, system.increments[:i, :first])
            solved = lu_solve(tuple(factors), slope.reshape(-1), check_finite=False)
            system.increments[i, :first] = solved.reshape(slope.shape)
            self.tangents[i] = np.einsum("kdb,kb->dk", self.frames, system.increments[i, :first])
        control.run(self.place, "attempt", h)
        self.result[FASTEST] = max(rate, self.result[FASTEST])
