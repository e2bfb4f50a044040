"""Rodas5P with a dense leading block: full attention, and the prefix of a prefix mask.

Tokens below `system.first` see each other in any direction, so their stages are solved together by LU factors of one dense
matrix; the tokens behind them see only earlier ones and are swept row by row as in `sphere`.

A dense factorisation mixes fast and slow modes and leaves errors of 1e-16 in eigenvalues that the triangular sweep gets exactly,
which is why a dense block limits the horizon (see `rodas.DENSE_HORIZON`).
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import lu_factor, lu_solve

from metastable._checks import FloatArray
from metastable.integrate.rodas.control import CAP, OVERSHOOT
from metastable.integrate.rodas.sphere import (
    OWN,
    RATE,
    TERMS,
    VELOCITY,
    SphereSystem,
    drive,
    from_chart,
    judge,
    linearise,
    move,
    prepare,
    put_stage,
    radial,
    settled_state,
    stage_place,
    sweep,
    to_chart,
    write_polynomial,
)
from metastable.integrate.rodas.tableau import GAMMA, STAGES, C
from metastable.kernels.cpu.compiled import compiled
from metastable.kernels.jacobian_sphere import padded_dimension

EXACT_SIZE = 128
"""Up to this size all eigenvalues are computed; above, Ritz values of a Krylov space stand for the rightmost ones."""
KRYLOV_SIZE = 40
RELATIVE_NOISE = 1e-13
"""Real parts below this times the largest entry cannot be told from rounding."""


@compiled
def _linearise_block(system, forces, blocks, spreads, weights):
    """`linearise` for the leading rows; copies of their normalised weights go to `weights` (heads, first, columns)."""
    dim = system.increments.shape[2] + 1
    heads = system.scalars.shape[1]
    padded = spreads.shape[2]
    vectors = np.zeros((3, padded))
    moment = np.zeros((padded, padded))
    kept = (STAGES * 2 * padded + heads) * system.width
    for k in range(system.first):
        vectors[0, :dim] = system.tokens[k, :dim]
        system.rows[TERMS, k] = linearise(
            system.tag,
            system.work,
            system.width,
            system.matrices,
            system.scalars,
            system.ranges,
            k,
            system.frozen,
            system.rows[OWN, k],
            dim,
            vectors[0],
            vectors[1],
            spreads[k],
            vectors[2],
            blocks[k],
            moment,
        )
        forces[k] = vectors[2, :dim]
        to_chart(system.tokens, k, vectors[2], system.increments[VELOCITY, k])
        for h in range(heads):
            for q in range(system.ranges.shape[1]):
                for j in range(system.ranges[k, q, 0], system.ranges[k, q, 1]):
                    weights[h, k, j] = system.work[kept + h * system.width + j]


@compiled
def _place_block(system, i):
    """Positions of the leading rows at stage i, into the columns; their tangents are set to zero."""
    dim = system.increments.shape[2] + 1
    padded = padded_dimension(dim)
    y = np.zeros(dim - 1)
    place = np.zeros(padded)
    nothing = np.zeros(padded)
    for k in range(system.first):
        stage_place(system.tokens, system.increments, k, i, y, place)
        put_stage(system.work, system.width, padded, system.frozen + k, i, place, nothing, dim)


@compiled
def _velocity_block(system, i, out):
    """Chart velocities of the leading rows at stage i."""
    dim = system.increments.shape[2] + 1
    padded = padded_dimension(dim)
    vectors = np.zeros((4, padded))
    y = np.zeros(dim - 1)
    scratch = (STAGES * 2 * padded + 2 * system.scalars.shape[1]) * system.width
    for k in range(system.first):
        r = stage_place(system.tokens, system.increments, k, i, y, vectors[0])
        drive(
            system.tag,
            system.work,
            system.width,
            2 * i * padded * system.width,
            scratch,
            system.matrices,
            system.scalars,
            system.ranges,
            k,
            system.frozen,
            system.rows[OWN, k],
            dim,
            vectors[0],
            vectors[1],
            vectors[2],
            vectors[3],
        )
        inner = radial(system.tokens, k, vectors[3], dim)
        to_chart(system.tokens, k, vectors[3], out[k])
        for b in range(dim - 1):
            out[k, b] = r * (out[k, b] - y[b] * inner)


@compiled
def _tangents_block(system, i):
    """Tangents of the leading rows at stage i, into the columns."""
    dim = system.increments.shape[2] + 1
    padded = padded_dimension(dim)
    tangent = np.zeros(padded)
    for k in range(system.first):
        from_chart(system.tokens, k, system.increments[i, k], tangent)
        base = (2 * i + 1) * padded * system.width + system.frozen + k
        for a in range(dim):
            system.work[base + a * system.width] = tangent[a]


def bases(tokens: FloatArray, dim: int) -> FloatArray:
    """E_k of the rows, shape (rows, d, d - 1)."""
    frame, scale = tokens[:, dim : 2 * dim], tokens[:, 2 * dim]
    reflector = np.eye(dim) - scale[:, None, None] * frame[:, :, None] * frame[:, None, :]
    return reflector[:, :, 1:]


def rightmost(matrix: FloatArray) -> float:
    """Largest real part of the eigenvalues, 0 when it cannot be told from zero. Ritz values stand for them in large matrices."""
    if not np.isfinite(matrix).all():
        return 0.0
    small = matrix
    if len(matrix) > EXACT_SIZE:
        basis = np.zeros((KRYLOV_SIZE + 1, len(matrix)))
        small = np.zeros((KRYLOV_SIZE, KRYLOV_SIZE))
        # Deterministic and in general position, so that no mode is left out.
        basis[0] = np.random.default_rng(0).standard_normal(len(matrix))
        basis[0] /= np.linalg.norm(basis[0])
        for column in range(KRYLOV_SIZE):
            vector = matrix @ basis[column]
            for _ in range(2):
                overlap = basis[: column + 1] @ vector
                vector -= overlap @ basis[: column + 1]
                small[: column + 1, column] += overlap
            length = np.linalg.norm(vector)
            if column + 1 < KRYLOV_SIZE:
                small[column + 1, column] = length
            if length == 0.0:
                small = small[: column + 1, : column + 1]
                break
            basis[column + 1] = vector / length
    rate = float(np.linalg.eigvals(small).real.max())
    return rate if rate > RELATIVE_NOISE * np.abs(matrix).max() else 0.0


class DenseSystem:
    """A `SphereSystem` whose rows below `first` are solved together."""

    def __init__(self, system: SphereSystem) -> None:
        self.system = system
        self.dim = system.increments.shape[2] + 1

    def jacobian(self) -> FloatArray:
        """Chart Jacobian of the leading block, shape (first, d - 1, first, d - 1), at the current tokens."""
        system, dim, first = self.system, self.dim, self.system.first
        heads = system.scalars.shape[1]
        padded = padded_dimension(dim)
        forces = np.zeros((first, dim))
        blocks = np.zeros((first, dim, dim))
        spreads = np.zeros((first, heads, padded))
        weights = np.zeros((heads, first, system.width))
        _linearise_block(system, forces, blocks, spreads, weights)
        x = system.tokens[:first, :dim]
        frames = bases(system.tokens[:first], dim)
        result = np.zeros((first, dim - 1, first, dim - 1))
        apart = x[None, :, :] - x[:, None, :]
        for h in range(heads):
            value, form, beta = system.matrices[h], system.matrices[heads + h], system.scalars[0, h]
            p = weights[h, :, system.frozen : system.frozen + first]
            left = np.einsum("kdb,de->kbe", frames, value)
            lever = p[:, :, None] * np.einsum("kbe,kje->kjb", left, apart - spreads[:, None, h, :dim])
            grip = beta * np.einsum("kd,jdb->kjb", x @ form, frames)
            result += np.einsum("kj,kae,jeb->kajb", p, left, frames, optimize=True)
            result += lever.transpose(0, 2, 1)[:, :, :, None] * grip[:, None, :, :]
        diagonal = np.arange(first)
        own = np.einsum("kda,kde,keb->kab", frames, blocks, frames)
        own -= np.einsum("kd,kd->k", x, forces)[:, None, None] * np.eye(dim - 1)
        result[diagonal, :, diagonal, :] = own
        return result

    def begin(self, h: float) -> None:
        """Charts at the current tokens for a step of size h."""
        prepare(self.system, h)
        _place_block(self.system, 0)

    def attempt(self, h: float) -> tuple[float, float, float]:
        system, m, first = self.system, self.dim - 1, self.system.first
        self.begin(h)
        matrix = self.jacobian().reshape(first * m, first * m)
        rate = rightmost(matrix)
        system.rows[RATE, :first] = rate
        if rate * h > CAP * OVERSHOOT:
            return 0.0, 0.0, rate
        if not np.isfinite(matrix).all():
            return np.nan, 0.0, 0.0
        factors = lu_factor(np.eye(first * m) / (h * GAMMA) - matrix, overwrite_a=True, check_finite=False)
        slope = np.array(system.increments[VELOCITY, :first])
        for i in range(STAGES):
            if i > 0:
                _place_block(system, i)
                _velocity_block(system, i, slope)
                slope += np.einsum("j,jkb->kb", C[i, :i] / h, system.increments[:i, :first])
            solved = lu_solve(factors, slope.reshape(-1), check_finite=False)
            system.increments[i, :first] = solved.reshape(first, m)
            _tangents_block(system, i)
        rate = max(rate, sweep(system, h))
        if rate * h > CAP * OVERSHOOT:
            return 0.0, 0.0, rate
        error, extent = judge(system)
        return error, extent, rate

    def commit(self, tolerance: float) -> None:
        move(self.system, tolerance)

    def polynomial(self, piece: FloatArray) -> None:
        write_polynomial(self.system, piece)

    def settled(self, threshold: float) -> int:
        return settled_state(self.system, threshold)
