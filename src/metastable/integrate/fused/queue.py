"""An explicit method for many members in compiled code: one per lane of the vectors, each with its own step size.

A worker keeps members in the lanes of its vectors. All lanes take a step together, each of its own length; then each
accepts or rejects for itself, writes what is due, and a lane that has arrived takes the next member from a common queue. A
lane's arithmetic never sees its neighbours, so the numbers of a member do not depend on threads, batches or company.

A new member needs its velocity and a first step size (Hairer, Norsett, Wanner I, II.4). It gets them while its neighbours take an
ordinary step: with step size zero the second stage is the velocity, then the third stage serves as the probe.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate import control
from metastable.integrate.fused.stages import Method, Step, make_step, method_of, square_sum, stage_state
from metastable.integrate.plan import Accuracy
from metastable.integrate.solution import STATUSES, UNFINISHED
from metastable.integrate.tableau import Tableau
from metastable.kernels.cpu.compiled import aligned_array, call_address, compiled, fetch_add, inner
from metastable.kernels.cpu.fastmath import sincos
from metastable.kernels.cpu.members import Scratch, make_scratch
from metastable.kernels.cpu.problem import Problem
from metastable.kernels.cpu.rules import inverse_length, pace
from metastable.kernels.cpu.series import unit_tokens
from metastable.kernels.cpu.vector import LANES, fill, load, store, where

SUCCESS, MAX_STEPS, DIVERGED = (STATUSES.index(name) for name in ("success", "max_steps", "diverged"))
"""Status of a member."""

NEXT, FINISHED, STOP = range(3)
"""Places in the queue: next member to start, members finished, and non-zero to ask workers to stop."""


class Batch(NamedTuple):
    """What the workers of an ensemble share.

    `starts` (members, tokens * components). `states` (members, times, tokens, dim), `statistics` (members, 3: accepted, rejected,
    evaluations) and `status` (members,) are filled in, states that a member did not reach with NaN; members that were not
    finished keep what was in them. `queue` holds three zeros at the start. `speed` and `bend` are the weights of the stages whose
    sizes a new member is judged by.
    """

    problem: Problem
    method: Method
    tolerance: float
    max_steps: int
    starts: FloatArray
    times: FloatArray
    queue: np.ndarray
    states: FloatArray
    statistics: np.ndarray
    status: np.ndarray
    speed: FloatArray
    bend: FloatArray


class Clock(NamedTuple):
    """A number per lane: time reached, step size wanted, previous error, trial step of a new member."""

    time: FloatArray
    wanted: FloatArray
    previous: FloatArray
    trial: FloatArray


class Ledger(NamedTuple):
    """A count or flag per lane: member in the lane (-1: none), next output, steps, and flags."""

    member: np.ndarray
    output: np.ndarray
    accepted: np.ndarray
    rejected: np.ndarray
    new: np.ndarray
    after_rejection: np.ndarray
    lands: np.ndarray


class Lanes(NamedTuple):
    """Memory of one worker."""

    step: Step
    scratch: Scratch
    clock: Clock
    ledger: Ledger
    pace: FloatArray
    square: FloatArray
    change: FloatArray
    accepted: FloatArray
    state: FloatArray
    """One member, tokens * components."""
    weights: FloatArray
    """One number per stage."""


def make_batch(problem: Problem, tableau: Tableau, accuracy: Accuracy, starts: FloatArray, times: FloatArray) -> Batch:
    """Nothing done yet. (States are left empty: the workers touch this memory first, each its own part.)"""
    count = len(starts)
    return Batch(
        problem=problem,
        method=method_of(tableau),
        tolerance=accuracy.tolerance,
        max_steps=accuracy.max_steps,
        starts=starts,
        times=np.ascontiguousarray(times, dtype=float),
        queue=np.zeros(3, dtype=np.int64),
        states=np.empty((count, len(times), problem.tokens, problem.dim)),
        statistics=np.zeros((count, 3), dtype=np.int64),
        status=np.full(count, UNFINISHED, dtype=np.int64),
        speed=np.array([0.0, 1.0]),
        bend=np.array([0.0, -1.0, 1.0]),
    )


def make_lanes(batch: Batch) -> Lanes:
    """Empty lanes. Idle ones need a state that the kernel can digest: the first start."""
    entries = batch.problem.tokens * batch.problem.components
    step = make_step(batch.method.c.size, entries * LANES)
    step.y[:] = np.repeat(batch.starts[0], LANES)
    clock = Clock(*(np.zeros(LANES) for _ in Clock._fields))
    ledger = Ledger(*(np.zeros(LANES, dtype=np.int64) for _ in Ledger._fields))
    ledger.member[:] = -1
    return Lanes(
        step=step,
        scratch=make_scratch(batch.problem),
        clock=clock,
        ledger=ledger,
        pace=aligned_array(LANES),
        square=aligned_array(LANES),
        change=aligned_array(LANES),
        accepted=aligned_array(LANES),
        state=np.zeros(entries),
        weights=np.zeros(batch.method.c.size),
    )


accepted_factor, rejected_factor = inner(control.accepted_factor), inner(control.rejected_factor)
trial_step, first_step = inner(control.trial_step), inner(control.first_step)


@inner
def _write(problem, state, row):
    """A state in its chart as unit tokens into `row` (tokens x dim)."""
    dim = problem.dim
    for token in range(problem.tokens):
        if problem.components == 1:
            row[token, 1], row[token, 0] = sincos(state[token])
        else:
            inverse = inverse_length(state, token * dim, dim)
            for a in range(dim):
                row[token, a] = state[token * dim + a] * inverse


@inner
def _copy(lanes, lane, source):
    """One lane of `source` into `lanes.state`."""
    for i in range(lanes.state.size):
        lanes.state[i] = source[i * LANES + lane]


@inner
def _interpolate(method, lanes, lane, u):
    """The state of a lane at the fraction u of its step into `lanes.state`."""
    for j in range(method.c.size):
        d = method.dense[j]
        lanes.weights[j] = u * (d[0] + u * (d[1] + u * (d[2] + u * d[3])))
    for i in range(lanes.state.size):
        place = i * LANES + lane
        change = 0.0
        for j in range(method.c.size):
            change += lanes.weights[j] * lanes.step.k[j, place]
        lanes.state[i] = lanes.step.y[place] + lanes.step.h[lane] * change


@inner
def _load_member(batch, lanes, lane, member):
    """Put a member into a lane."""
    clock, ledger = lanes.clock, lanes.ledger
    for i in range(lanes.state.size):
        lanes.step.y[i * LANES + lane] = batch.starts[member, i]
        lanes.step.k[0, i * LANES + lane] = 0.0
    clock.time[lane] = 0.0
    clock.wanted[lane] = 0.0
    clock.previous[lane] = control.FIRST_ERROR
    ledger.member[lane] = member
    ledger.output[lane] = 0
    ledger.accepted[lane] = 0
    ledger.rejected[lane] = 0
    ledger.new[lane] = 1
    ledger.after_rejection[lane] = 0


@inner
def _refill(batch, lanes):
    """Give members to idle lanes; returns the number of busy lanes."""
    busy = 0
    members = batch.starts.shape[0]
    for lane in range(LANES):
        if lanes.ledger.member[lane] < 0 and batch.queue[NEXT] < members:
            member = fetch_add(batch.queue, NEXT, 1)
            if member < members:
                _load_member(batch, lanes, lane, member)
        if lanes.ledger.member[lane] >= 0:
            busy += 1
    return busy


@inner
def _set_steps(until, lanes):
    """The step of each lane: zero for idle and new ones; a step that would leave a sliver before the end is stretched onto it."""
    clock, ledger, h = lanes.clock, lanes.ledger, lanes.step.h
    for lane in range(LANES):
        if ledger.member[lane] < 0 or ledger.new[lane] == 1:
            h[lane] = 0.0
            ledger.lands[lane] = 0
            continue
        t = clock.time[lane]
        wanted = clock.wanted[lane]
        lands = t + 1.0001 * wanted >= until
        ledger.lands[lane] = 1 if lands else 0
        h[lane] = until - t if lands else wanted


@inner
def _probe(batch, lanes, stage, until):
    """New members, after stage 1: speed and trial step; after stage 2: curvature and first step."""
    step, clock, ledger = lanes.step, lanes.clock, lanes.ledger
    fresh = False
    for lane in range(LANES):
        fresh = fresh or ledger.new[lane] == 1
    if not fresh:
        return
    size = step.y.size
    store(lanes.square, 0, square_sum(step, batch.speed, fill(1.0), 0, size))
    if stage == 2:
        store(lanes.change, 0, square_sum(step, batch.bend, fill(1.0), 0, size))
    for lane in range(LANES):
        if ledger.new[lane] == 0:
            continue
        speed = math.sqrt(lanes.square[lane] / batch.problem.tokens) / batch.tolerance
        if stage == 1:
            trial = trial_step(speed, batch.tolerance, until)
            clock.trial[lane] = trial
            # The first stage is still zero, so the third is evaluated at y + h a_32 k_2 = y + trial * velocity.
            step.h[lane] = trial / batch.method.a[2, 1]
        else:
            trial = clock.trial[lane]
            curvature = math.sqrt(lanes.change[lane] / batch.problem.tokens) / batch.tolerance / trial
            clock.wanted[lane] = first_step(speed, curvature, trial, until)
            step.h[lane] = 0.0


@inner
def _take_step(kernel, batch, lanes, until):
    """All stages but the first, in all lanes."""
    step, method = lanes.step, batch.method
    for stage in range(1, method.c.size):
        stage_state(step, method.a[stage], stage, 0, step.y.size)
        for lane in range(LANES):
            time = min(lanes.clock.time[lane] + method.c[stage] * step.h[lane], until)
            if stage == 2 and lanes.ledger.new[lane] == 1:
                time = lanes.clock.trial[lane]
            lanes.pace[lane] = pace(batch.problem, time)
        call_address(kernel, batch.problem, lanes.pace, step.new, lanes.scratch, step.k[stage])
        if stage <= 2:
            _probe(batch, lanes, stage, until)


@inner
def _output(batch, lanes, lane, end):
    """Write the outputs of a lane that are due by `end`, where its step ends (its start, for a new member)."""
    clock, ledger, step, times = lanes.clock, lanes.ledger, lanes.step, batch.times
    member = ledger.member[lane]
    while ledger.output[lane] < times.size and times[ledger.output[lane]] <= end:
        time = times[ledger.output[lane]]
        if time >= end or ledger.new[lane] == 1:
            _copy(lanes, lane, step.y if ledger.new[lane] == 1 else step.new)
        else:
            _interpolate(batch.method, lanes, lane, (time - clock.time[lane]) / step.h[lane])
        _write(batch.problem, lanes.state, batch.states[member, ledger.output[lane]])
        ledger.output[lane] += 1


@inner
def _judge(batch, lanes, lane, error, until):
    """Accept (True) or reject the step of a busy lane, and set its next step size."""
    clock, ledger, h = lanes.clock, lanes.ledger, lanes.step.h[lane]
    new = ledger.new[lane] == 1
    if not new and not error <= 1.0:
        ledger.rejected[lane] += 1
        ledger.after_rejection[lane] = 1
        clock.wanted[lane] = h * rejected_factor(error)
        return False
    end = until if ledger.lands[lane] == 1 else clock.time[lane] + h
    _output(batch, lanes, lane, end)
    if new:
        ledger.new[lane] = 0
        return True
    clock.time[lane] = end
    ledger.accepted[lane] += 1
    clock.wanted[lane] = h * accepted_factor(error, clock.previous[lane], ledger.after_rejection[lane] == 1)
    clock.previous[lane] = error
    ledger.after_rejection[lane] = 0
    return True


@inner
def _settle(batch, lanes, lane, until):
    """Release a lane whose member has arrived or cannot go on."""
    ledger, t = lanes.ledger, lanes.clock.time[lane]
    member, steps = ledger.member[lane], ledger.accepted[lane] + ledger.rejected[lane]
    if t >= until or ledger.output[lane] == batch.times.size:
        verdict = SUCCESS
    elif steps >= batch.max_steps:
        verdict = MAX_STEPS
    elif not t + lanes.clock.wanted[lane] > t:
        verdict = DIVERGED
    else:
        return
    for output in range(ledger.output[lane], batch.times.size):
        batch.states[member, output] = np.nan
    batch.statistics[member, 0] = ledger.accepted[lane]
    batch.statistics[member, 1] = ledger.rejected[lane]
    batch.statistics[member, 2] = 2 + (batch.method.c.size - 1) * steps
    batch.status[member] = verdict
    ledger.member[lane] = -1
    fetch_add(batch.queue, FINISHED, 1)


@inner
def _accept(step, accepted):
    """In the lanes where `accepted` is not zero: the new state, and the last stage as the first of the next step."""
    mask = load(accepted, 0)
    last = step.k.shape[0] - 1
    for i in range(0, step.y.size, LANES):
        store(step.y, i, where(mask, load(step.new, i), load(step.y, i)))
        store(step.k[0], i, where(mask, load(step.k[last], i), load(step.k[0], i)))


@compiled
def work(kernel, batch, lanes):
    """Integrate members from the queue until it is empty: what each thread of an ensemble does."""
    step = lanes.step
    until = batch.times[batch.times.size - 1]
    while _refill(batch, lanes) > 0 and batch.queue[STOP] == 0:
        _set_steps(until, lanes)
        _take_step(kernel, batch, lanes, until)
        store(lanes.square, 0, square_sum(step, batch.method.error, load(step.h, 0), 0, step.y.size))
        if batch.problem.components > 1:
            unit_tokens(batch.problem, batch.problem.tokens, step.new, False, step.new)
        for lane in range(LANES):
            lanes.accepted[lane] = 0.0
            if lanes.ledger.member[lane] >= 0:
                error = math.sqrt(lanes.square[lane] / batch.problem.tokens) / batch.tolerance
                if _judge(batch, lanes, lane, error, until):
                    lanes.accepted[lane] = 1.0
                _settle(batch, lanes, lane, until)
        _accept(step, lanes.accepted)
