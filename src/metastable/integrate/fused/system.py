"""Tsit5 for one system in compiled code, with outputs at chosen times or the polynomial of every step.

`advance` runs until it arrives, or until its caller has something to do: more room for polynomials, or an interruption. All it
knows is in its arguments, so it goes on where it stopped. Long arrays are cut into pieces of a fixed number, shared among
threads: the numbers do not depend on how many.
"""

from __future__ import annotations

import math

from numba import prange

from metastable.integrate.control import FIRST_ERROR
from metastable.integrate.fused.members import accepted_factor, first_step, rejected_factor, trial_step
from metastable.integrate.fused.stages import DENSE, NODES, dense_weights, square_error, square_norm, stage_state
from metastable.kernels.cpu.compiled import compiled, inner, parallel
from metastable.kernels.cpu.fastmath import sincos
from metastable.kernels.cpu.system import evaluate
from metastable.kernels.cpu.vector import LANES, fill, load, store, total

ARRIVED, MAX_STEPS, DIVERGED, FULL, STOPPED = range(5)
"""Why `advance` returned."""

TIME, WANTED, PREVIOUS = range(3)
"""Places in `clock`: time reached, step size wanted, previous error."""

STARTED, ACCEPTED, REJECTED, EVALUATIONS, OUTPUT, PIECES_KEPT, AFTER_REJECTION, STOP = range(8)
"""Places in `ledger`: flags and counts; a non-zero STOP asks to return."""

CHUNKS = 64
"""Pieces of long arrays."""

LONG = 65536
"""Entries from which threads pay for sums of arrays."""


@inner
def _chunk(size, chunk):
    """First and last entry of a piece, in whole vectors."""
    vectors = size // LANES
    return vectors * chunk // CHUNKS * LANES, vectors * (chunk + 1) // CHUNKS * LANES


@parallel
def _state_parallel(stage, y, k, size, h, new):
    for chunk in prange(CHUNKS):
        first, last = _chunk(size, chunk)
        stage_state(stage, y, k, size, h, new, first, last)


@parallel
def _error_parallel(k, size, h, partial):
    for chunk in prange(CHUNKS):
        first, last = _chunk(size, chunk)
        store(partial, chunk * LANES, square_error(k, size, h, first, last))


@inner
def _state(stage, y, k, size, h, new, threads):
    if threads is not None and size > LONG:
        _state_parallel(stage, y, k, size, h, new)
    else:
        stage_state(stage, y, k, size, h, new, 0, size)


@inner
def _error(k, size, h, partial, threads):
    """Sum of the squared error estimate, piece by piece in a fixed order."""
    if threads is not None and size > LONG:
        _error_parallel(k, size, h, partial)
    else:
        for chunk in range(CHUNKS):
            first, last = _chunk(size, chunk)
            store(partial, chunk * LANES, square_error(k, size, h, first, last))
    result = fill(0.0)
    for chunk in range(CHUNKS):
        result = result + load(partial, chunk * LANES)
    return total(result)


@inner
def _evaluate(kernel, problem, time, y, buffers, k, size, stage, ledger, threads):
    evaluate(kernel, problem, time, y, buffers, k[stage * size : (stage + 1) * size], threads)
    ledger[EVALUATIONS] += 1


@inner
def _begin(kernel, problem, until, tolerance, y, k, size, new, h, buffers, clock, ledger, threads):
    """Velocity at the start and the first step size (Hairer, Norsett, Wanner I, II.4)."""
    _evaluate(kernel, problem, 0.0, y, buffers, k, size, 0, ledger, threads)
    speed = math.sqrt(total(square_norm(k, 0, -1, 0, size)) / problem.tokens) / tolerance
    trial = trial_step(speed, tolerance, until)
    for i in range(size):
        new[i] = y[i] + trial * k[i]
    _evaluate(kernel, problem, trial, new, buffers, k, size, 1, ledger, threads)
    curvature = math.sqrt(total(square_norm(k, size, 0, 0, size)) / problem.tokens) / tolerance / trial
    clock[WANTED] = first_step(speed, curvature, trial, until)
    clock[PREVIOUS] = FIRST_ERROR
    ledger[STARTED] = 1


@inner
def _retract(problem, y):
    """Unit rows (nothing to do for angles)."""
    dim = problem.dim
    if problem.components == 1:
        return
    for token in range(problem.tokens):
        square = 0.0
        for a in range(dim):
            square += y[token * dim + a] ** 2
        inverse = 1.0 / math.sqrt(square)
        for a in range(dim):
            y[token * dim + a] *= inverse


@inner
def _put(problem, value, token, row):
    """Token `token` of a state in its chart, as a unit vector."""
    dim = problem.dim
    if problem.components == 1:
        s, c = sincos(value[token])
        row[token, 0] = c
        row[token, 1] = s
        return
    square = 0.0
    for a in range(dim):
        square += value[token * dim + a] ** 2
    inverse = 1.0 / math.sqrt(square)
    for a in range(dim):
        row[token, a] = value[token * dim + a] * inverse


@inner
def _save(problem, y, k, size, h, u, exact, scratch, weights, row):
    """The state at the fraction u of a step into `row` (tokens x dim); `exact`: y itself."""
    dense_weights(u, weights)
    for i in range(problem.tokens * problem.components):
        change = 0.0
        if not exact:
            for stage in range(7):
                change += weights[stage] * k[stage * size + i]
        scratch[i] = y[i] + h * change
    for token in range(problem.tokens):
        _put(problem, scratch, token, row)


@inner
def _keep_polynomial(problem, y, k, size, h, piece):
    """Coefficients of the dense output of one step into `piece` (5, tokens * components)."""
    for i in range(problem.tokens * problem.components):
        piece[0, i] = y[i]
        for power in range(4):
            change = 0.0
            for stage in range(7):
                change += DENSE[stage][power] * k[stage * size + i]
            piece[power + 1, i] = h * change


@inner
def _record(problem, t, step, end, y, new, k, size, times, states, kept, ledger, scratch, weights):
    """Keep what an accepted step from t to `end` leaves: outputs that are due, or its polynomial."""
    starts, widths, pieces = kept
    if pieces.shape[0] > 0:
        place = ledger[PIECES_KEPT]
        starts[place] = t
        widths[place] = step
        _keep_polynomial(problem, y, k, size, step, pieces[place])
        ledger[PIECES_KEPT] += 1
        return
    while ledger[OUTPUT] < times.size and times[ledger[OUTPUT]] <= end:
        row = states[ledger[OUTPUT]]
        if times[ledger[OUTPUT]] == end:
            _save(problem, new, k, size, 0.0, 0.0, True, scratch, weights, row)
        else:
            _save(problem, y, k, size, step, (times[ledger[OUTPUT]] - t) / step, False, scratch, weights, row)
        ledger[OUTPUT] += 1


@inner
def _attempt(
    kernel, problem, until, tolerance, times, y, k, size, new, h, buffers, states, kept, clock, ledger, rest, threads
):
    """Try one step."""
    partial, scratch, weights = rest
    t = clock[TIME]
    lands = t + 1.0001 * clock[WANTED] >= until
    step = until - t if lands else clock[WANTED]
    for lane in range(LANES):
        h[lane] = step
    for stage in range(1, 7):
        _state(stage, y, k, size, h, new, threads)
        _evaluate(kernel, problem, min(t + NODES[stage] * step, until), new, buffers, k, size, stage, ledger, threads)
    error = math.sqrt(_error(k, size, h, partial, threads) / problem.tokens) / tolerance
    if not error <= 1.0:
        ledger[REJECTED] += 1
        ledger[AFTER_REJECTION] = 1
        clock[WANTED] = step * rejected_factor(error)
        return
    _retract(problem, new)
    end = until if lands else t + step
    _record(problem, t, step, end, y, new, k, size, times, states, kept, ledger, scratch, weights)
    for i in range(size):
        y[i] = new[i]
        k[i] = k[6 * size + i]
    clock[TIME] = end
    ledger[ACCEPTED] += 1
    clock[WANTED] = step * accepted_factor(error, clock[PREVIOUS], ledger[AFTER_REJECTION] == 1)
    clock[PREVIOUS] = error
    ledger[AFTER_REJECTION] = 0


@compiled
def advance(
    kernel,
    problem,
    until,
    tolerance,
    max_steps,
    times,
    y,
    k,
    new,
    h,
    buffers,
    states,
    kept,
    clock,
    ledger,
    rest,
    threads,
):
    """Integrate `y` (padded to whole vectors; the seven stages in `k`) on towards `until`; returns why it stopped.

    `states` (times, tokens, dim) takes outputs at `times`; or `kept`, which is (starts, widths, polynomials (room, 5,
    tokens * components)), takes every step, if there is room for any. `rest` is scratch: CHUNKS vectors, tokens * components
    numbers and 7 numbers. `threads`: as in `kernels.cpu.system.evaluate`.
    """
    size = y.size
    if ledger[STARTED] == 0:
        _begin(kernel, problem, until, tolerance, y, k, size, new, h, buffers, clock, ledger, threads)
        if kept[2].shape[0] == 0 and times.size > 0 and times[0] <= 0.0:
            _save(problem, y, k, size, 0.0, 0.0, True, rest[1], rest[2], states[0])
            ledger[OUTPUT] = 1
    while clock[TIME] < until:
        if ledger[STOP] != 0:
            return STOPPED
        if ledger[ACCEPTED] + ledger[REJECTED] >= max_steps:
            return MAX_STEPS
        if not clock[TIME] + clock[WANTED] > clock[TIME]:
            return DIVERGED
        if kept[2].shape[0] > 0 and ledger[PIECES_KEPT] == kept[2].shape[0]:
            return FULL
        _attempt(
            kernel,
            problem,
            until,
            tolerance,
            times,
            y,
            k,
            size,
            new,
            h,
            buffers,
            states,
            kept,
            clock,
            ledger,
            rest,
            threads,
        )
    return ARRIVED
