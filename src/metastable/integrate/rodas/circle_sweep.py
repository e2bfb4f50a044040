"""One attempted step on the circle: a sweep over the rows, by blocks or one by one (see `circle`)."""

from __future__ import annotations

import math

from metastable.integrate.rodas.control import CAP, OVERSHOOT
from metastable.integrate.rodas.tableau import GAMMA, STAGES, A, C
from metastable.kernels.cpu.compiled import inner as kernel
from metastable.kernels.cpu.fastmath import LOG2E, sincos
from metastable.kernels.cpu.vector import LANES, fill, load, store
from metastable.kernels.cpu.vector import sincos as sincos_vector
from metastable.kernels.jacobian_circle import (
    LARGE_ROWS,
    ROWS,
    finish_row,
    keep_block,
    pull_and_keep,
    pull_and_product,
    pull_block,
    pull_large_block,
)

# Rows of `rows`.
SIZE, OWN, VELOCITY, DIAGONAL, PIVOT = range(5)
# Places in the part of sums, behind three for each row of a block.
ANGLES, CARRIED = 2 * LANES, 3 * LANES
LARGE_LIMIT = 512
"""Columns up to which large blocks stay in the first cache."""
# Parts of `work`: three for each stage; the biases seen by the rows of a block and by the next row; rows; masses; sums.
COSINE, SINE, INCREMENT, PER_STAGE = 0, 1, 2, 3
BIAS = PER_STAGE * STAGES
ROW = BIAS + LARGE_ROWS + 1
MASS = ROW + LARGE_ROWS
SUMS = MASS + 1
PARTS = SUMS + 1


@kernel
def _jacobian_row(work, width, ranges, plain, r, column, own, c, s, beta):
    """Velocity, J_kk and `sum_j J_kj u_j` for stage 1; the row itself is left in `work`."""
    force, weights = 0.0, own
    for q in range(ranges.shape[1]):
        start, stop = (0, column) if plain else (ranges[r, q, 0], ranges[r, q, 1])
        part, weight = pull_and_keep(
            work, COSINE * width, SINE * width, BIAS * width, ROW * width, start, stop, c, s, beta * LOG2E
        )
        force += part
        weights += weight
    inverse = 1.0 / weights
    velocity = force * inverse
    diagonal = 0.0
    product = 0.0
    for q in range(ranges.shape[1]):
        start, stop = (0, column) if plain else (ranges[r, q, 0], ranges[r, q, 1])
        sums, inner = finish_row(
            work,
            COSINE * width,
            SINE * width,
            ROW * width,
            INCREMENT * width,
            start,
            stop,
            c,
            s,
            beta,
            inverse,
            velocity,
        )
        diagonal -= sums
        product += inner
    return velocity, diagonal, product


@kernel
def _sweep_row(work, width, ranges, plain, rows, r, column, angle, beta, h):
    """All eight stages of row r; returns J_kk if the row moves, else 0."""
    s, c = sincos(angle)
    own = rows[OWN, r]
    velocity, diagonal, product = _jacobian_row(work, width, ranges, plain, r, column, own, c, s, beta)
    rows[VELOCITY, r] = velocity
    rows[DIAGONAL, r] = diagonal
    inverse = 1.0 / (1.0 / (h * GAMMA) - diagonal)
    moves = False
    for i in range(STAGES):
        base = PER_STAGE * i * width
        if i > 0:
            place = angle
            carried = 0.0
            for j in range(i):
                increment = work[(PER_STAGE * j + INCREMENT) * width + column]
                place += A[i, j] * increment
                carried += C[i, j] * increment
            s, c = sincos(place)
            force, weights, product = 0.0, own, carried / h
            for q in range(ranges.shape[1]):
                start, stop = (0, column) if plain else (ranges[r, q, 0], ranges[r, q, 1])
                part, weight, inner = pull_and_product(
                    work,
                    base,
                    base + SINE * width,
                    BIAS * width,
                    ROW * width,
                    base + INCREMENT * width,
                    start,
                    stop,
                    c,
                    s,
                    beta * LOG2E,
                )
                force += part
                weights += weight
                product += inner
            velocity = force / weights
        increment = (velocity + product) * inverse
        work[base + column] = c
        work[base + SINE * width + column] = s
        work[base + INCREMENT * width + column] = increment
        moves |= increment != 0.0
    return diagonal if moves else 0.0


@kernel
def _positions(work, width, i, first, inverse_step):
    """Cosines and sines of the rows of a block at stage i, into their columns, and what earlier stages carry over to their solve.

    Eight columns are written; those behind the block belong to later rows, which write them when their turn comes.
    """
    place = load(work, SUMS * width + ANGLES)
    carried = fill(0.0)
    for j in range(i):
        increment = load(work, (PER_STAGE * j + INCREMENT) * width + first)
        place += increment * A[i, j]
        carried += increment * C[i, j]
    sine, cosine = sincos_vector(place)
    store(work, (PER_STAGE * i + COSINE) * width + first, cosine)
    store(work, (PER_STAGE * i + SINE) * width + first, sine)
    store(work, SUMS * width + CARRIED, carried * inverse_step)


@kernel
def _linearise_block(work, width, rows, row, first, count, beta, h, sums):
    """Velocities, J_kk and rows of the Jacobian of a block.

    `work[sums + 3 r + 2]` gets the product with the increments of stage 1, `rows[PIVOT]` the inverse of 1/(h gamma) - J_kk.
    """
    for pair in range(0, count, ROWS):
        keep_block(
            work,
            width,
            COSINE * width,
            SINE * width,
            (BIAS + pair) * width,
            (ROW + pair) * width,
            first + pair,
            beta * LOG2E,
            sums + 3 * pair,
        )
    for r in range(count):
        c = work[COSINE * width + first + r]
        s = work[SINE * width + first + r]
        inverse = 1.0 / (1.0 + work[sums + 3 * r + 1])
        velocity = work[sums + 3 * r] * inverse
        line = (ROW + r) * width
        entries, product = finish_row(
            work, COSINE * width, SINE * width, line, INCREMENT * width, 0, first + r, c, s, beta, inverse, velocity
        )
        rows[VELOCITY, row + r] = velocity
        rows[DIAGONAL, row + r] = -entries
        rows[PIVOT, row + r] = 1.0 / (1.0 / (h * GAMMA) + entries)
        work[sums + 3 * r + 2] = product


@kernel
def _sweep_block(work, width, rows, angles, leader, row, first, count, large, beta, h):
    """All eight stages of the rows `row .. row + count - 1`, columns from `first` on; returns the largest J_kk that moves.

    Positions of a stage depend on earlier stages only, so the rows of a block are evaluated together; the triangular solve
    then passes through the block row by row.
    """
    sums = SUMS * width
    scale = beta * LOG2E
    inverse_step = 1.0 / h
    rate = 0.0
    for r in range(LANES):
        work[sums + ANGLES + r] = angles[leader[row + r]] if r < count else 0.0
    for i in range(STAGES):
        base = PER_STAGE * i * width
        cosine, sine, vector = base + COSINE * width, base + SINE * width, base + INCREMENT * width
        _positions(work, width, i, first, inverse_step)
        if i == 0:
            _linearise_block(work, width, rows, row, first, count, beta, h, sums)
        elif large:
            pull_large_block(work, width, cosine, sine, BIAS * width, ROW * width, vector, first, scale, sums)
        else:
            pull_block(work, width, cosine, sine, BIAS * width, ROW * width, vector, first, scale, sums)
        for r in range(count):
            value = work[sums + 3 * r] / (1.0 + work[sums + 3 * r + 1]) + work[sums + 3 * r + 2]
            value += work[sums + CARRIED + r]
            for q in range(r):
                value += work[(ROW + r) * width + first + q] * work[vector + first + q]
            value *= rows[PIVOT, row + r]
            work[vector + first + r] = value
            if value != 0.0:
                rate = max(rate, rows[DIAGONAL, row + r])
    return rate


@kernel
def _clear(work, width, frozen, frozen_mass, scale):
    """Empty columns: stale entries are masked by zero weights, which does not help against what is not finite."""
    for part in range(PARTS):
        first = frozen if part < BIAS and part % PER_STAGE != INCREMENT else 0
        for j in range(part * width + first, (part + 1) * width):
            work[j] = 0.0
    for j in range(frozen):
        work[BIAS * width + j] = math.log2(frozen_mass[j]) - scale


@kernel
def _copy_bias(work, width, source, target, columns):
    """Biases for the next row of a block (or for the next block) start as those of the one before."""
    for j in range(0, columns, LANES):
        store(work, (BIAS + target) * width + j, load(work, (BIAS + source) * width + j))


@kernel
def _worst(work, width, first, count, error):
    """The largest of `error` and the error estimates of some columns; not a number wins."""
    last = (PER_STAGE * (STAGES - 1) + INCREMENT) * width
    for column in range(first, first + count):
        estimate = abs(work[last + column])
        if not estimate <= error:
            error = estimate
    return error


@kernel
def attempt(system, h):
    """One step of all rows; `result`: largest error estimate, nothing, rate of the fastest unstable mode."""
    _clear(system.work, system.width, system.frozen_mass.size, system.frozen_mass, system.beta * LOG2E)
    if system.plain and system.slope == 0.0:
        _attempt_blocks(system, h)
    else:
        _attempt_rows(system, h)


@kernel
def _attempt_rows(system, h):
    """Row by row, for masks and positional bias."""
    work, width, frozen = system.work, system.width, system.frozen_mass.size
    bias = BIAS * width
    rate = 0.0
    error = 0.0
    for k in range(system.angles.size):
        if system.slope != 0.0:
            for j in range(bias + frozen, bias + frozen + k):
                work[j] -= system.slope
        found = _sweep_row(
            work, width, system.ranges, system.plain, system.rows, k, frozen + k, system.angles[k], system.beta, h
        )
        rate = max(rate, found)
        if rate * h > CAP * OVERSHOOT:
            break
        work[bias + frozen + k] = -system.beta * LOG2E
        error = _worst(work, width, frozen + k, 1, error)
    system.result[0] = error
    system.result[2] = rate


@kernel
def _attempt_blocks(system, h):
    """Blocks of rows under the plain causal mask; slaved tokens add to the mass of their leader as the sweep passes them."""
    work, width, frozen = system.work, system.width, system.frozen_mass.size
    scale = system.beta * LOG2E
    rate = 0.0
    error = 0.0
    row = 0
    count = 0
    n = system.angles.size
    large = frozen + system.count[0] <= LARGE_LIMIT
    most = LARGE_ROWS if large else ROWS
    for k in range(n):
        r = system.owner[k]
        mass = MASS * width + frozen + r
        work[mass] += 1.0
        if system.leader[r] != k:
            work[(BIAS + count) * width + frozen + r] = system.logarithms[int(work[mass])] - scale
        else:
            _copy_bias(work, width, count, count + 1, frozen + r)
            count += 1
            work[(BIAS + count) * width + frozen + r] = -scale
        if count == most or (k == n - 1 and count > 0):
            first = frozen + row
            found = _sweep_block(
                work, width, system.rows, system.angles, system.leader, row, first, count, large, system.beta, h
            )
            rate = max(rate, found)
            error = _worst(work, width, first, count, error)
            if rate * h > CAP * OVERSHOOT or error > system.result[3]:
                break
            _copy_bias(work, width, count, 0, first + count)
            row += count
            count = 0
    system.result[0] = error
    system.result[2] = rate
