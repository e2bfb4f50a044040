"""One attempted step on the circle: a sweep over the rows, by blocks (see `circle_system`)."""

from __future__ import annotations

import math
from collections import namedtuple

from metastable.integrate.rodas.control import CAP, ENOUGH, ERROR, FASTEST, OVERSHOOT
from metastable.integrate.rodas.tableau import GAMMA, STAGES, A, C
from metastable.kernels.cpu.compiled import aligned_array, inlined, inner
from metastable.kernels.cpu.vector import LANES, fill, load, sincos, store
from metastable.kernels.jacobian_circle import (
    ROWS,
    Block,
    Columns,
    Sums,
    at_stage,
    finish_row,
    keep_weights,
    line,
    padded,
    pull_block,
    pull_row,
)
from metastable.kernels.minimax import LOG2E

Rows = namedtuple("Rows", ["size", "own", "velocity", "diagonal", "pivot"])
"""For each row (n,): tokens it stands for, its own weight, velocity, J_kk, inverse of 1/(h gamma) - J_kk."""

Sweep = namedtuple(
    "Sweep",
    [
        "stages",  # `Columns` of all stages: (8, width) each, the vector being the increments
        "block",  # `Block` of ROWS rows (biases: and the row behind them)
        "masses",  # (width,)
        "angles",  # (whole vectors of ROWS,): where the rows of a block were at the start of the step
        "carried",  # (the same,): what earlier stages add to the right-hand side of their solve
    ],
)


def sweep_memory(columns: int) -> Sweep:
    """Memory for a sweep over so many columns (frozen tokens and tokens), all zero.

    A block may begin at the last column and is written in whole vectors, so `width` leaves room behind the columns. All
    lines begin at a whole number of vectors: none straddles two cache lines.
    """
    width, zeros = padded(columns), aligned_array
    vectors = -(-ROWS // LANES) * LANES
    return Sweep(
        stages=Columns(*(zeros(STAGES, width) for _ in Columns._fields)),
        block=Block(zeros(ROWS + 1, width), zeros(ROWS, width), Sums(*(zeros(vectors) for _ in range(3)))),
        masses=zeros(width),
        angles=zeros(vectors),
        carried=zeros(vectors),
    )


@inlined
def _span(system, row, q):
    """Columns of the q-th range that a row sees: everything before it under the plain mask."""
    if system.plain:
        return 0, system.frozen_mass.size + row
    return system.ranges[row, q, 0], system.ranges[row, q, 1]


@inlined
def _positions(memory, i, first, count, inverse_step):
    """Cosines and sines of the rows of a block at stage i, into their columns, and what earlier stages carry over to their solve.

    Whole vectors are written; the columns behind the block belong to later rows, which write them when their turn comes.
    """
    stages = memory.stages
    for r in range(0, count, LANES):
        place = load(memory.angles, r)
        carried = fill(0.0)
        for j in range(i):
            increment = load(stages.vector[j], first + r)
            place += increment * A[i, j]
            carried += increment * C[i, j]
        sine, cosine = sincos(place)
        store(stages.cosine[i], first + r, cosine)
        store(stages.sine[i], first + r, sine)
        store(memory.carried, r, carried * inverse_step)


@inlined
def _linearise(system, row, count, h):
    """Velocities, J_kk, pivots and rows of the Jacobian of a block; its sums get the product with the increments of stage 1."""
    rows, block, first = system.rows, system.memory.block, system.frozen_mass.size + row
    columns, sums = at_stage(system.memory.stages, 0), block.sums
    # Two loops: what one row waits for does not hold up the next.
    for r in range(count):
        force, weights = 0.0, 0.0
        for q in range(system.ranges.shape[1]):
            start, stop = _span(system, row + r, q)
            pull, weight = keep_weights(columns, line(columns, block, r, first), start, stop, system.beta * LOG2E)
            force += pull
            weights += weight
        sums.force[r], sums.weights[r] = force, weights
    for r in range(count):
        inverse = 1.0 / (rows.own[row + r] + sums.weights[r])
        velocity = sums.force[r] * inverse
        diagonal, product = 0.0, 0.0
        for q in range(system.ranges.shape[1]):
            start, stop = _span(system, row + r, q)
            one = line(columns, block, r, first)
            entries, dot = finish_row(columns, one, start, stop, system.beta, inverse, velocity)
            diagonal -= entries
            product += dot
        rows.velocity[row + r], rows.diagonal[row + r] = velocity, diagonal
        rows.pivot[row + r] = 1.0 / (1.0 / (h * GAMMA) - diagonal)
        sums.product[r] = product


@inlined
def _pull(system, i, row):
    """Sums of the rows of a block at stage i. A block has one row unless the mask is plain."""
    stages, block = system.memory.stages, system.memory.block
    first, scale = system.frozen_mass.size + row, system.beta * LOG2E
    if system.plain:
        pull_block(stages, i, block, first, scale)
    else:
        columns = at_stage(stages, i)
        force, weights, product = 0.0, 0.0, 0.0
        for q in range(system.ranges.shape[1]):
            start, stop = _span(system, row, q)
            found = pull_row(columns, line(columns, block, 0, first), start, stop, scale)
            force += found.force
            weights += found.weights
            product += found.product
        block.sums.force[0], block.sums.weights[0], block.sums.product[0] = force, weights, product


@inlined
def _sweep_block(system, row, count, h):
    """All eight stages of the rows `row .. row + count - 1`; returns the largest J_kk that moves.

    Positions of a stage depend on earlier stages only, so the rows of a block are evaluated together; the triangular solve
    then passes through the block row by row.
    """
    memory, rows, first = system.memory, system.rows, system.frozen_mass.size + row
    sums, jacobian = memory.block.sums, memory.block.jacobian
    rate = 0.0
    for r in range(memory.angles.size):
        memory.angles[r] = system.angles[system.leader[row + r]] if r < count else 0.0
    for i in range(STAGES):
        increments = memory.stages.vector[i]
        _positions(memory, i, first, count, 1.0 / h)
        if i == 0:
            _linearise(system, row, count, h)
        else:
            _pull(system, i, row)
        for r in range(count):
            value = sums.force[r] / (rows.own[row + r] + sums.weights[r]) + sums.product[r] + memory.carried[r]
            for q in range(r):
                value += jacobian[r, first + q] * increments[first + q]
            value *= rows.pivot[row + r]
            increments[first + r] = value
            if value != 0.0:
                rate = max(rate, rows.diagonal[row + r])
    return rate


@inner
def _copy_bias(biases, source, target, columns):
    """Biases for the next row of a block (or for the next block) start as those of the one before."""
    before, after = biases[source], biases[target]
    for j in range(0, columns, LANES):
        store(after, j, load(before, j))


@inlined
def _clear(memory, frozen_mass, scale):
    """Empty columns: stale entries are masked by zero weights, which does not help against what is not finite."""
    frozen = frozen_mass.size
    memory.stages.cosine[:, frozen:] = 0.0
    memory.stages.sine[:, frozen:] = 0.0
    memory.stages.vector[:] = 0.0
    memory.block.biases[:] = 0.0
    memory.block.jacobian[:] = 0.0
    memory.masses[:] = 0.0
    for j in range(frozen):
        memory.block.biases[0, j] = math.log2(frozen_mass[j]) - scale


@inlined
def _worst(last, first, count, error):
    """The largest of `error` and the error estimates of some columns; not a number wins."""
    for column in range(first, first + count):
        estimate = abs(last[column])
        if not estimate <= error:
            error = estimate
    return error


@inner
def attempt(system, h):
    """One step of all rows, block by block; `result` gets the largest error estimate and the rate of the fastest unstable mode.

    Slaved tokens add to the mass of their leader as the sweep passes them. Masks and positional bias have blocks of one row.
    """
    memory, frozen, scale = system.memory, system.frozen_mass.size, system.beta * LOG2E
    biases, masses = memory.block.biases, memory.masses
    _clear(memory, system.frozen_mass, scale)
    rate, error = 0.0, 0.0
    row, count = 0, 0
    n = system.angles.size
    most = ROWS if system.plain else 1
    for k in range(n):
        r = system.owner[k]
        column = frozen + r
        masses[column] += 1.0
        if system.slope != 0.0:
            for j in range(frozen, column):
                biases[0, j] -= system.slope
        if system.leader[r] != k:
            biases[count, column] = system.logarithms[int(masses[column])] - scale
        else:
            count += 1
            if system.plain:
                _copy_bias(biases, count - 1, count, column)
            biases[count if system.plain else 0, column] = -scale
        if count == most or (k == n - 1 and count > 0):
            rate = max(rate, _sweep_block(system, row, count, h))
            error = _worst(memory.stages.vector[STAGES - 1], frozen + row, count, error)
            if rate * h > CAP * OVERSHOOT or error > system.result[ENOUGH]:
                break
            row += count
            if system.plain:
                _copy_bias(biases, count, 0, frozen + row)
            count = 0
    system.result[ERROR] = error
    system.result[FASTEST] = rate
