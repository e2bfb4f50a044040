"""Tsit5 for many members in compiled code: one per lane of the vectors, each with its own step size.

A worker keeps members in the lanes of its vectors. All lanes take a step together, each of its own length; then each
accepts or rejects for itself, writes what is due, and a lane that has arrived takes the next member from a common queue. A
lane's arithmetic never sees its neighbours, so the numbers of a member do not depend on threads, batches or company.

A new member needs its velocity and a first step size (Hairer, Norsett, Wanner I, II.4). It gets them while its neighbours take an
ordinary step: with step size zero the second stage is the velocity, then the third stage serves as the probe.
"""

from __future__ import annotations

import math

import numpy as np

from metastable.integrate.control import (
    ERROR_FLOOR,
    FIRST_ERROR,
    GROW,
    INTEGRAL,
    ORDER,
    PROPORTIONAL,
    SAFETY,
    SHRINK,
)
from metastable.integrate.fused.stages import (
    A32,
    NODES,
    accept_members,
    dense_weights,
    retract_members,
    square_error,
    square_norm,
    stage_state,
)
from metastable.kernels.cpu.compiled import aligned, call_members, compiled, fetch_add, inner
from metastable.kernels.cpu.fastmath import sincos
from metastable.kernels.cpu.members import work_size
from metastable.kernels.cpu.vector import LANES, store

SUCCESS, MAX_STEPS, DIVERGED, UNFINISHED = range(4)
"""Status of a member."""

NEXT, FINISHED, STOP = range(3)
"""Places in the queue: next member to start, members finished, and non-zero to ask workers to stop."""

TIME, WANTED, PREVIOUS, TRIAL = range(4)
"""Rows of `clock`: time reached, step size wanted, previous error, trial step of a new member."""

MEMBER, OUTPUT, ACCEPTED, REJECTED, NEW, AFTER_REJECTION, LANDS = range(7)
"""Rows of `ledger`: member in the lane (-1: none), next output, steps, and flags."""


@inner
def accepted_factor(error, previous, after_rejection):
    """`control.accepted_factor`."""
    error = max(error, ERROR_FLOOR)
    factor = SAFETY * error**-PROPORTIONAL * max(previous, ERROR_FLOOR) ** INTEGRAL
    factor = min(GROW, max(SHRINK, factor))
    return min(factor, 1.0) if after_rejection else factor


@inner
def rejected_factor(error):
    """`control.rejected_factor`."""
    return max(SHRINK, SAFETY * error ** (-1.0 / ORDER)) if math.isfinite(error) else SHRINK


@inner
def trial_step(speed, tolerance, horizon):
    """Length of the probe of a start with that scaled speed: tokens move by about a hundredth."""
    return min(0.01 / (tolerance * speed), horizon) if tolerance * speed > 1e-10 else min(1e-6, horizon)


@inner
def first_step(speed, curvature, trial, horizon):
    """First step size from scaled speed and curvature."""
    largest = max(speed, curvature)
    wanted = max(1e-6, 1e-3 * trial) if largest <= 1e-15 else (0.01 / largest) ** (1.0 / ORDER)
    return min(100.0 * trial, wanted, horizon)


@inner
def _write(problem, lane, y, k, size, h, u, exact, row, scratch, weights):
    """The state of a lane at the fraction u of its step into `row` (tokens x dim); `exact`: y itself."""
    components = problem.components
    dim = problem.dim
    dense_weights(u, weights)
    for i in range(problem.tokens * components):
        place = i * LANES + lane
        change = 0.0
        if not exact:
            for stage in range(7):
                change += weights[stage] * k[stage * size + place]
        scratch[i] = y[place] + h * change
    for token in range(problem.tokens):
        if components == 1:
            s, c = sincos(scratch[token])
            row[token, 0] = c
            row[token, 1] = s
        else:
            square = 0.0
            for a in range(dim):
                square += scratch[token * dim + a] ** 2
            inverse = 1.0 / math.sqrt(square)
            for a in range(dim):
                row[token, a] = scratch[token * dim + a] * inverse


@inner
def _load_member(problem, lane, member, starts, times, y, k, size, clock, ledger, states):
    """Put a member into a lane."""
    components = problem.components
    for i in range(problem.tokens * components):
        y[i * LANES + lane] = starts[member, i]
        k[i * LANES + lane] = 0.0
    clock[TIME, lane] = 0.0
    clock[WANTED, lane] = 0.0
    clock[PREVIOUS, lane] = FIRST_ERROR
    ledger[MEMBER, lane] = member
    ledger[OUTPUT, lane] = 0
    ledger[ACCEPTED, lane] = 0
    ledger[REJECTED, lane] = 0
    ledger[NEW, lane] = 1
    ledger[AFTER_REJECTION, lane] = 0


@inner
def _refill(problem, starts, times, queue, y, k, size, clock, ledger, states):
    """Give members to idle lanes; returns the number of busy lanes."""
    busy = 0
    for lane in range(LANES):
        if ledger[MEMBER, lane] < 0 and queue[NEXT] < starts.shape[0]:
            member = fetch_add(queue, NEXT, 1)
            if member < starts.shape[0]:
                _load_member(problem, lane, member, starts, times, y, k, size, clock, ledger, states)
        if ledger[MEMBER, lane] >= 0:
            busy += 1
    return busy


@inner
def _set_steps(until, clock, ledger, h):
    """The step of each lane: zero for idle and new ones; a step that would leave a sliver before the end is stretched onto it."""
    for lane in range(LANES):
        if ledger[MEMBER, lane] < 0 or ledger[NEW, lane] == 1:
            h[lane] = 0.0
            ledger[LANDS, lane] = 0
            continue
        t = clock[TIME, lane]
        wanted = clock[WANTED, lane]
        lands = t + 1.0001 * wanted >= until
        ledger[LANDS, lane] = 1 if lands else 0
        h[lane] = until - t if lands else wanted


@inner
def _probe(problem, stage, tolerance, until, k, size, clock, ledger, h, sums):
    """New members, after stage 1: speed and trial step; after stage 2: curvature and first step."""
    fresh = False
    for lane in range(LANES):
        fresh = fresh or ledger[NEW, lane] == 1
    if not fresh:
        return
    store(sums, 0, square_norm(k, size, -1, 0, size))
    if stage == 2:
        store(sums, LANES, square_norm(k, 2 * size, size, 0, size))
    for lane in range(LANES):
        if ledger[NEW, lane] == 0:
            continue
        speed = math.sqrt(sums[lane] / problem.tokens) / tolerance
        if stage == 1:
            trial = trial_step(speed, tolerance, until)
            clock[TRIAL, lane] = trial
            # The first stage is still zero, so the third is evaluated at y + h A32 k_2 = y + trial * velocity.
            h[lane] = trial / A32
        else:
            trial = clock[TRIAL, lane]
            curvature = math.sqrt(sums[LANES + lane] / problem.tokens) / tolerance / trial
            clock[WANTED, lane] = first_step(speed, curvature, trial, until)
            h[lane] = 0.0


@inner
def _step(kernel, problem, tolerance, until, y, k, size, new, h, time, clock, ledger, work, sums):
    """Stages 1 to 6 of all lanes."""
    for stage in range(1, 7):
        stage_state(stage, y, k, size, h, new, 0, size)
        for lane in range(LANES):
            time[lane] = min(clock[TIME, lane] + NODES[stage] * h[lane], until)
            if stage == 2 and ledger[NEW, lane] == 1:
                time[lane] = clock[TRIAL, lane]
        call_members(kernel, problem, time, new, work, k[stage * size : (stage + 1) * size])
        if stage <= 2:
            _probe(problem, stage, tolerance, until, k, size, clock, ledger, h, sums)


@inner
def _due(problem, lane, times, until, y, k, size, new, h, clock, ledger, states, scratch, weights):
    """Write the outputs that an accepted step of a lane has passed."""
    t = clock[TIME, lane]
    end = until if ledger[LANDS, lane] == 1 else t + h[lane]
    member = ledger[MEMBER, lane]
    while ledger[OUTPUT, lane] < times.size and times[ledger[OUTPUT, lane]] <= end:
        output = ledger[OUTPUT, lane]
        row = states[member, output]
        if times[output] == end:
            _write(problem, lane, new, k, size, 0.0, 0.0, True, row, scratch, weights)
        else:
            u = (times[output] - t) / h[lane]
            _write(problem, lane, y, k, size, h[lane], u, False, row, scratch, weights)
        ledger[OUTPUT, lane] += 1
    clock[TIME, lane] = end


@inner
def _judge(problem, lane, error, until, times, y, k, size, new, h, clock, ledger, states, scratch, weights):
    """Accept (True) or reject the step of a busy lane, and set its next step size."""
    if ledger[NEW, lane] == 1:
        ledger[NEW, lane] = 0
        while ledger[OUTPUT, lane] < times.size and times[ledger[OUTPUT, lane]] <= 0.0:
            row = states[ledger[MEMBER, lane], ledger[OUTPUT, lane]]
            _write(problem, lane, y, k, size, 0.0, 0.0, True, row, scratch, weights)
            ledger[OUTPUT, lane] += 1
        return True
    if not error <= 1.0:
        ledger[REJECTED, lane] += 1
        ledger[AFTER_REJECTION, lane] = 1
        clock[WANTED, lane] = h[lane] * rejected_factor(error)
        return False
    _due(problem, lane, times, until, y, k, size, new, h, clock, ledger, states, scratch, weights)
    ledger[ACCEPTED, lane] += 1
    clock[WANTED, lane] = h[lane] * accepted_factor(error, clock[PREVIOUS, lane], ledger[AFTER_REJECTION, lane] == 1)
    clock[PREVIOUS, lane] = error
    ledger[AFTER_REJECTION, lane] = 0
    return True


@inner
def _settle(lane, until, times, max_steps, clock, ledger, queue, states, statistics, status):
    """Release a lane whose member has arrived or cannot go on."""
    member = ledger[MEMBER, lane]
    t = clock[TIME, lane]
    if t >= until or ledger[OUTPUT, lane] == times.size:
        verdict = SUCCESS
    elif ledger[ACCEPTED, lane] + ledger[REJECTED, lane] >= max_steps:
        verdict = MAX_STEPS
    elif not t + clock[WANTED, lane] > t:
        verdict = DIVERGED
    else:
        return
    for output in range(ledger[OUTPUT, lane], times.size):
        states[member, output] = np.nan
    statistics[member, 0] = ledger[ACCEPTED, lane]
    statistics[member, 1] = ledger[REJECTED, lane]
    statistics[member, 2] = 2 + 6 * (ledger[ACCEPTED, lane] + ledger[REJECTED, lane])
    status[member] = verdict
    ledger[MEMBER, lane] = -1
    fetch_add(queue, FINISHED, 1)


@compiled
def work(kernel, problem, starts, times, until, tolerance, max_steps, queue, states, statistics, status):
    """Integrate members from the queue until it is empty: what each thread of an ensemble does.

    `starts` (members, tokens * components). `states` (members, times, tokens, dim), `statistics` (members, 3: accepted, rejected,
    evaluations) and `status` (members,) are filled in, states that a member did not reach with NaN; members that were not
    finished keep what was in them. `queue` holds three zeros at the start.
    """
    size = problem.tokens * problem.components * LANES
    y = aligned(size)
    new = aligned(size)
    k = aligned(7 * size)
    work = aligned(work_size(problem))
    h = aligned(LANES)
    time = aligned(LANES)
    accepted = aligned(LANES)
    sums = aligned(2 * LANES)
    scratch = np.zeros(problem.tokens * problem.components)
    weights = np.zeros(7)
    clock = np.zeros((4, LANES))
    ledger = np.zeros((7, LANES), dtype=np.int64)
    ledger[MEMBER, :] = -1
    # Idle lanes need a state that the kernel can digest.
    for i in range(problem.tokens * problem.components):
        for lane in range(LANES):
            y[i * LANES + lane] = starts[0, i]
    while _refill(problem, starts, times, queue, y, k, size, clock, ledger, states) > 0 and queue[STOP] == 0:
        _set_steps(until, clock, ledger, h)
        _step(kernel, problem, tolerance, until, y, k, size, new, h, time, clock, ledger, work, sums)
        store(sums, 0, square_error(k, size, h, 0, size))
        if problem.components > 1:
            retract_members(new, problem.tokens, problem.dim)
        for lane in range(LANES):
            accepted[lane] = 0.0
            if ledger[MEMBER, lane] >= 0:
                error = math.sqrt(sums[lane] / problem.tokens) / tolerance
                if _judge(
                    problem, lane, error, until, times, y, k, size, new, h, clock, ledger, states, scratch, weights
                ):
                    accepted[lane] = 1.0
                _settle(lane, until, times, max_steps, clock, ledger, queue, states, statistics, status)
        accept_members(y, k, size, new, accepted)
