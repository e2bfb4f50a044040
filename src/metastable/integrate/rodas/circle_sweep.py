"""One attempted step on the circle: a sweep over the rows, by blocks or one by one (see `circle`)."""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from metastable.integrate.rodas.control import CAP, OVERSHOOT
from metastable.integrate.rodas.tableau import GAMMA, STAGES, A, C
from metastable.kernels.cpu.compiled import aligned_array, inlined
from metastable.kernels.cpu.compiled import inner as kernel
from metastable.kernels.cpu.fastmath import LOG2E, sincos
from metastable.kernels.cpu.vector import LANES, fill, load, store
from metastable.kernels.cpu.vector import sincos as sincos_vector
from metastable.kernels.jacobian_circle import (
    FORCE,
    LARGE_ROWS,
    PRODUCT,
    ROWS,
    WEIGHTS,
    Columns,
    finish_row,
    keep_block,
    padded,
    pull_and_keep,
    pull_and_product,
    pull_block,
    pull_large_block,
)

# Lines of `rows` of the system.
SIZE, OWN, VELOCITY, DIAGONAL, PIVOT = range(5)
# Lines of one stage.
COSINE, SINE, INCREMENT = range(3)
LARGE_LIMIT = 512
"""Columns up to which large blocks stay in the first cache."""

Sweep = namedtuple(
    "Sweep",
    [
        "stages",  # (8, 3, width): cosines, sines and increments of all columns at each stage
        "biases",  # (LARGE_ROWS + 1, width): those that the rows of a block see, and the row behind them
        "jacobian",  # (LARGE_ROWS, width): rows of the Jacobian of a block
        "masses",  # (width,)
        "sums",  # (LARGE_ROWS, 3): force, weights and product of each row of a block
        "angles",  # (whole vectors of LARGE_ROWS,): where the rows of a block were at the start of the step
        "carried",  # (the same,): what earlier stages add to the right-hand side of their solve
    ],
)


def sweep_memory(columns: int) -> Sweep:
    """Memory for a sweep over so many columns (frozen tokens and tokens), all zero.

    A block may begin at the last column and is written in whole vectors, so `width` leaves room behind the columns. All
    lines begin at a whole number of vectors: none straddles two cache lines.
    """
    width = padded(columns)
    block = -(-LARGE_ROWS // LANES) * LANES
    shapes = Sweep(
        stages=(STAGES, 3, width),
        biases=(LARGE_ROWS + 1, width),
        jacobian=(LARGE_ROWS, width),
        masses=(width,),
        sums=(LARGE_ROWS, 3),
        angles=(block,),
        carried=(block,),
    )
    return Sweep(*(aligned_array(math.prod(shape)).reshape(shape) for shape in shapes))


def put_frozen(memory: Sweep, angles: np.ndarray) -> None:
    """Write frozen tokens, which never move, into the first columns of every stage."""
    memory.stages[:, COSINE, : len(angles)] = np.cos(angles)
    memory.stages[:, SINE, : len(angles)] = np.sin(angles)


@inlined
def _stage(stages, i):
    """The columns at stage i."""
    return Columns(stages[i, COSINE], stages[i, SINE], stages[i, INCREMENT])


# --------------------------------------------------------------------------------------------------------- row by row


@kernel
def _jacobian_row(memory, ranges, plain, r, column, own, c, s, beta):
    """Velocity, J_kk and `sum_j J_kj u_j` for stage 1; the row itself is left in the first line of `jacobian`."""
    columns, row = _stage(memory.stages, 0), memory.jacobian[0]
    force, weights = 0.0, own
    for q in range(ranges.shape[1]):
        start, stop = (0, column) if plain else (ranges[r, q, 0], ranges[r, q, 1])
        part, weight = pull_and_keep(columns, memory.biases[0], row, start, stop, c, s, beta * LOG2E)
        force += part
        weights += weight
    inverse = 1.0 / weights
    velocity = force * inverse
    diagonal = 0.0
    product = 0.0
    for q in range(ranges.shape[1]):
        start, stop = (0, column) if plain else (ranges[r, q, 0], ranges[r, q, 1])
        sums, inner = finish_row(columns, row, start, stop, c, s, beta, inverse, velocity)
        diagonal -= sums
        product += inner
    return velocity, diagonal, product


@kernel
def _sweep_row(memory, ranges, plain, rows, r, column, angle, beta, h):
    """All eight stages of row r; returns J_kk if the row moves, else 0."""
    stages = memory.stages
    s, c = sincos(angle)
    own = rows[OWN, r]
    velocity, diagonal, product = _jacobian_row(memory, ranges, plain, r, column, own, c, s, beta)
    rows[VELOCITY, r] = velocity
    rows[DIAGONAL, r] = diagonal
    inverse = 1.0 / (1.0 / (h * GAMMA) - diagonal)
    moves = False
    for i in range(STAGES):
        if i > 0:
            place = angle
            carried = 0.0
            for j in range(i):
                increment = stages[j, INCREMENT, column]
                place += A[i, j] * increment
                carried += C[i, j] * increment
            s, c = sincos(place)
            force, weights, product = 0.0, own, carried / h
            for q in range(ranges.shape[1]):
                start, stop = (0, column) if plain else (ranges[r, q, 0], ranges[r, q, 1])
                part, weight, inner = pull_and_product(
                    _stage(stages, i), memory.biases[0], memory.jacobian[0], start, stop, c, s, beta * LOG2E
                )
                force += part
                weights += weight
                product += inner
            velocity = force / weights
        increment = (velocity + product) * inverse
        stages[i, COSINE, column] = c
        stages[i, SINE, column] = s
        stages[i, INCREMENT, column] = increment
        moves |= increment != 0.0
    return diagonal if moves else 0.0


@kernel
def _attempt_rows(system, h):
    """Row by row, for masks and positional bias."""
    memory, frozen = system.memory, system.frozen_mass.size
    bias = memory.biases[0]
    rate = 0.0
    error = 0.0
    for k in range(system.angles.size):
        if system.slope != 0.0:
            for j in range(frozen, frozen + k):
                bias[j] -= system.slope
        found = _sweep_row(
            memory, system.ranges, system.plain, system.rows, k, frozen + k, system.angles[k], system.beta, h
        )
        rate = max(rate, found)
        if rate * h > CAP * OVERSHOOT:
            break
        bias[frozen + k] = -system.beta * LOG2E
        error = _worst(memory, frozen + k, 1, error)
    system.result[0] = error
    system.result[2] = rate


# ------------------------------------------------------------------------------------------------------ block by block


@kernel
def _positions(memory, i, first, count, inverse_step):
    """Cosines and sines of the rows of a block at stage i, into their columns, and what earlier stages carry over to their solve.

    Whole vectors are written; the columns behind the block belong to later rows, which write them when their turn comes.
    """
    stages = memory.stages
    for r in range(0, count, LANES):
        place = load(memory.angles, r)
        carried = fill(0.0)
        for j in range(i):
            increment = load(stages[j, INCREMENT], first + r)
            place += increment * A[i, j]
            carried += increment * C[i, j]
        sine, cosine = sincos_vector(place)
        store(stages[i, COSINE], first + r, cosine)
        store(stages[i, SINE], first + r, sine)
        store(memory.carried, r, carried * inverse_step)


@kernel
def _linearise_block(memory, rows, row, first, count, beta, h):
    """Velocities, J_kk and rows of the Jacobian of a block.

    `sums` gets the product with the increments of stage 1, `rows[PIVOT]` the inverse of 1/(h gamma) - J_kk.
    """
    columns, sums = _stage(memory.stages, 0), memory.sums
    for line in range(0, count, ROWS):
        keep_block(columns, memory.biases, memory.jacobian, line, first, beta * LOG2E, sums)
    for r in range(count):
        c = columns.cosine[first + r]
        s = columns.sine[first + r]
        inverse = 1.0 / (1.0 + sums[r, WEIGHTS])
        velocity = sums[r, FORCE] * inverse
        entries, product = finish_row(columns, memory.jacobian[r], 0, first + r, c, s, beta, inverse, velocity)
        rows[VELOCITY, row + r] = velocity
        rows[DIAGONAL, row + r] = -entries
        rows[PIVOT, row + r] = 1.0 / (1.0 / (h * GAMMA) + entries)
        sums[r, PRODUCT] = product


@kernel
def _sweep_block(memory, rows, angles, leader, row, first, count, large, beta, h):
    """All eight stages of the rows `row .. row + count - 1`, columns from `first` on; returns the largest J_kk that moves.

    Positions of a stage depend on earlier stages only, so the rows of a block are evaluated together; the triangular solve
    then passes through the block row by row.
    """
    sums, jacobian, carried = memory.sums, memory.jacobian, memory.carried
    scale = beta * LOG2E
    inverse_step = 1.0 / h
    rate = 0.0
    for r in range(memory.angles.size):
        memory.angles[r] = angles[leader[row + r]] if r < count else 0.0
    for i in range(STAGES):
        columns = _stage(memory.stages, i)
        _positions(memory, i, first, count, inverse_step)
        if i == 0:
            _linearise_block(memory, rows, row, first, count, beta, h)
        elif large:
            pull_large_block(columns, memory.biases, jacobian, first, scale, sums)
        else:
            pull_block(columns, memory.biases, jacobian, first, scale, sums)
        for r in range(count):
            value = sums[r, FORCE] / (1.0 + sums[r, WEIGHTS]) + sums[r, PRODUCT] + carried[r]
            for q in range(r):
                value += jacobian[r, first + q] * columns.vector[first + q]
            value *= rows[PIVOT, row + r]
            columns.vector[first + r] = value
            if value != 0.0:
                rate = max(rate, rows[DIAGONAL, row + r])
    return rate


@kernel
def _copy_bias(biases, source, target, columns):
    """Biases for the next row of a block (or for the next block) start as those of the one before."""
    before, after = biases[source], biases[target]
    for j in range(0, columns, LANES):
        store(after, j, load(before, j))


@kernel
def _attempt_blocks(system, h):
    """Blocks of rows under the plain causal mask; slaved tokens add to the mass of their leader as the sweep passes them."""
    memory, frozen = system.memory, system.frozen_mass.size
    biases, masses = memory.biases, memory.masses
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
        column = frozen + r
        masses[column] += 1.0
        if system.leader[r] != k:
            biases[count, column] = system.logarithms[int(masses[column])] - scale
        else:
            _copy_bias(biases, count, count + 1, column)
            count += 1
            biases[count, column] = -scale
        if count == most or (k == n - 1 and count > 0):
            first = frozen + row
            found = _sweep_block(
                memory, system.rows, system.angles, system.leader, row, first, count, large, system.beta, h
            )
            rate = max(rate, found)
            error = _worst(memory, first, count, error)
            if rate * h > CAP * OVERSHOOT or error > system.result[3]:
                break
            _copy_bias(biases, count, 0, first + count)
            row += count
            count = 0
    system.result[0] = error
    system.result[2] = rate


# ------------------------------------------------------------------------------------------------------------- attempt


@kernel
def _clear(memory, frozen_mass, scale):
    """Empty columns: stale entries are masked by zero weights, which does not help against what is not finite."""
    frozen = frozen_mass.size
    memory.stages[:, COSINE, frozen:] = 0.0
    memory.stages[:, SINE, frozen:] = 0.0
    memory.stages[:, INCREMENT] = 0.0
    memory.biases[:] = 0.0
    memory.jacobian[:] = 0.0
    memory.masses[:] = 0.0
    for j in range(frozen):
        memory.biases[0, j] = math.log2(frozen_mass[j]) - scale


@kernel
def _worst(memory, first, count, error):
    """The largest of `error` and the error estimates of some columns; not a number wins."""
    last = memory.stages[STAGES - 1, INCREMENT]
    for column in range(first, first + count):
        estimate = abs(last[column])
        if not estimate <= error:
            error = estimate
    return error


@kernel
def attempt(system, h):
    """One step of all rows; `result`: largest error estimate, nothing, rate of the fastest unstable mode."""
    _clear(system.memory, system.frozen_mass, system.beta * LOG2E)
    if system.plain and system.slope == 0.0:
        _attempt_blocks(system, h)
    else:
        _attempt_rows(system, h)
