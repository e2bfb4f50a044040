"""The step loop of Rodas5P and its step control, for any system that can attempt a step.

Step control, all in absolute angle:

- The error of a step is the largest |u_8| over the tokens, divided by the tolerance. No root mean square: on long horizons one
  leader moves while everybody else stands still.
- After an accepted step the factor is `0.9 err^(-1/5)`, and at most what Gustafsson's predictive controller allows
  (K. Gustafsson, ACM Trans. Math. Softw. 20, 1994): merges accelerate, h must shrink by tens of decades, the trend is known.
- Instability cap: `h * max_k Re lambda(J_kk) <= CAP`. An L-stable step damps unstable modes too, and tokens on a saddle would
  never leave it. The Jacobian is triangular, so its diagonal blocks show every eigenvalue. A token whose stages vanish
  exactly is at rest and sets no cap.
- Close to the cap the error depends on h * lambda alone and far more steeply than h^5, so there the largest product that passes
  (`REACH`) is learned instead, and the next lambda is extrapolated from the growth law d(1/lambda)/dt = -GROWTH, with which
  lambda blows up when two clusters fall into each other.

`t + h == t` late in a merge is harmless, since the system does not depend on t: there is no smallest step.

A system is a named tuple of arrays (compiled) or an object (dense blocks) for which the functions `attempt`, `commit`,
`polynomial` and `settled` below are implemented.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numba.extending import overload

from metastable.kernels.cpu.compiled import compiled, generate_call
from metastable.kernels.cpu.fastmath import intrinsic

CAP = 0.5
"""Largest h * Re lambda of an unstable mode."""
OVERSHOOT = 1.1
"""A step planned with an extrapolated lambda may pass the cap by this factor before it is repeated."""
UNSTABLE = 0.2
"""From this h * Re lambda on, steps are controlled through h * lambda."""
STEEPNESS = 8.0
"""There the error grows about like the eighth power of h * lambda."""
SAFETY = 0.9
UNSTABLE_SAFETY = 0.93
SHRINK = 0.05
GROW = 10.0
REJECT = 0.1
ERROR_FLOOR = 1e-2
"""Smallest error that the predictive controller believes in."""

# Entries of `control`.
T, H, H_OLD, ERROR_OLD, RATE, GROWTH, REACH, LAST_WIDTH, AFTER_REJECTION = range(9)
MEMORY = ("t", "h", "h_old", "error_old", "rate", "growth", "reach", "last_width", "after_rejection")
"""Names of these entries, in order."""
# Whether the step in hand was cut (or stretched) to end at the end; if so, the entries above as they were before it.
LANDS, BEFORE = 9, 10
CONTROL_SIZE = 19
# Entries of `counters`.
ACCEPTED, REJECTED, EVALUATIONS, JACOBIANS, OUTPUTS, PIECES = range(6)
COUNTER_SIZE = 6
# What `march` returns.
REACHED, FULL, EXHAUSTED, SETTLED, LOST, UNRESOLVED = range(6)
# What `settled` returns.
MOVING, AT_REST, HIDDEN = range(3)


def first_control(t: float, h: float) -> np.ndarray:
    """Control of a march that starts at time t with step h."""
    control = np.zeros(CONTROL_SIZE)
    control[[T, H, H_OLD, ERROR_OLD, GROWTH, REACH]] = t, h, h, ERROR_FLOOR, 1.0, CAP
    return control


def attempt(system, h):
    """Try a step of size h: `(largest |u_8|, largest chart coordinate, largest Re lambda of a moving unstable mode)`.

    Returns early, with the last entry above `CAP * OVERSHOOT / h`, as soon as the cap is broken.
    """
    return system.attempt(h)


def commit(system, tolerance):
    """Move the state to the end of the attempted step."""
    system.commit(tolerance)


def polynomial(system, piece):
    """Write the dense output of the attempted step, (5, tokens, components) in powers of u; call it before `commit`."""
    system.polynomial(piece)


def settled(system, threshold):
    """`AT_REST` when no token will move by more than `threshold` any more, `HIDDEN` when rounding errors hide whether one does,
    else `MOVING`; judged at the start of the attempted step."""
    return system.settled(threshold)


@intrinsic
def call_attempt(typing_context, address, system, h):
    """Call the compiled function `attempt(system, h)` at an address: compiled once, not again inside every caller."""
    return types.none(types.int64, system, types.float64), generate_call


def register(kind, commit_of, polynomial_of, settled_of):
    """Make the compiled functions of one kind of system (a named tuple class) known to `march`.

    The attempt itself is called through `system.address` and leaves what it returns in `system.result`.
    """

    def is_kind(system):
        return isinstance(system, types.NamedTuple) and system.instance_class is kind

    @overload(attempt)
    def _attempt(system, h):
        def through_address(system, h):
            call_attempt(system.address, system, h)
            return system.result[0], system.result[1], system.result[2]

        return through_address if is_kind(system) else None

    @overload(commit)
    def _commit(system, tolerance):
        return (lambda system, tolerance: commit_of(system, tolerance)) if is_kind(system) else None

    @overload(polynomial)
    def _polynomial(system, piece):
        return (lambda system, piece: polynomial_of(system, piece)) if is_kind(system) else None

    @overload(settled)
    def _settled(system, threshold):
        return (lambda system, threshold: settled_of(system, threshold)) if is_kind(system) else None


@compiled
def propose(control, until):
    """Size of the next step: the planned one, inside the cap that the extrapolated lambda sets, not beyond `until`."""
    h = control[H]
    rate = control[RATE]
    if rate > 0.0:
        expected = rate / (1.0 - min(control[GROWTH] * control[LAST_WIDTH] * rate, 0.9))
        if h * expected > control[REACH]:
            h = control[REACH] / expected
    control[H] = h
    remaining = until - control[T]
    if 1.0001 * h < remaining:
        control[LANDS] = 0.0
        return h
    control[LANDS] = 1.0
    for entry in range(LANDS):
        control[BEFORE + entry] = control[entry]
    return remaining


@compiled
def break_cap(control, rate):
    """Plan the repetition of a step that broke the cap."""
    control[H] = 0.8 * CAP / rate
    control[RATE] = rate
    control[LAST_WIDTH] = 0.0
    control[REACH] = CAP


@compiled
def refuse(control, h, error, extent, rate):
    """Plan the repetition of a step whose error (in tolerances) was too large or which left its chart."""
    control[AFTER_REJECTION] = 1.0
    control[LAST_WIDTH] = 0.0
    if not error < 1e300:
        control[H] = REJECT * h
    elif error <= 1.0:
        control[H] = 0.5 * h / max(extent, 1.0)
    elif rate * h > UNSTABLE:
        reach = min(CAP, rate * h * error ** (-1.0 / STEEPNESS) * UNSTABLE_SAFETY)
        control[H] = reach / rate
        control[RATE] = rate
        control[REACH] = max(UNSTABLE, reach)
    else:
        control[H] = h * max(REJECT, SAFETY * error**-0.2)


@compiled
def accept(control, h, error, rate, first):
    """Advance the time and plan the next step."""
    factor = SAFETY * max(error, 1e-12) ** -0.2
    if not first:
        trend = (h / control[H_OLD]) * (control[ERROR_OLD] / max(error, ERROR_FLOOR) ** 2) ** 0.2
        factor = min(factor, SAFETY * trend)
    factor = min(GROW, max(SHRINK, factor))
    if control[AFTER_REJECTION] != 0.0:
        factor = min(factor, 1.0)
    if rate * h > UNSTABLE:
        reach = rate * h * max(error, 1e-4) ** (-1.0 / STEEPNESS) * UNSTABLE_SAFETY
        control[REACH] = max(UNSTABLE, min(CAP, reach))
        factor = GROW
    else:
        control[REACH] = min(CAP, 1.5 * control[REACH])
    before = control[RATE]
    if before > 0.0 and rate > 0.0 and control[LAST_WIDTH] > 0.0:
        growth = (rate - before) / (control[LAST_WIDTH] * rate * before)
        control[GROWTH] = min(1.5, max(0.0, growth))
    else:
        control[GROWTH] = 1.0
    control[T] += h
    control[H_OLD] = h
    control[ERROR_OLD] = max(error, ERROR_FLOOR)
    control[RATE] = rate
    control[LAST_WIDTH] = h
    control[AFTER_REJECTION] = 0.0
    control[H] = h * factor


@compiled
def evaluate(piece, u, out):
    """Value of a dense output polynomial (5, tokens, components) at the fraction u."""
    for k in range(out.shape[0]):
        for a in range(out.shape[1]):
            value = piece[4, k, a]
            for power in range(3, -1, -1):
                value = piece[power, k, a] + u * value
            out[k, a] = value


@compiled
def record(control, counters, h, until, piece, times, saved):
    """Save the output times that the step from t to t + h covers."""
    t = control[T]
    end = t + h
    while counters[OUTPUTS] < times.size and (times[counters[OUTPUTS]] <= end or end >= until):
        u = (times[counters[OUTPUTS]] - t) / h
        evaluate(piece, min(1.0, max(0.0, u)), saved[counters[OUTPUTS]])
        counters[OUTPUTS] += 1


def _march(
    system, control, counters, until, tolerance, settle, max_steps, times, saved, starts, widths, pieces, keep_pieces
):
    """Step until something happens: REACHED, FULL (no room for pieces), EXHAUSTED (max_steps), SETTLED, LOST or UNRESOLVED.

    `settle` > 0 is the threshold of `settled`, 0 switches it off. Every accepted step writes its polynomial to the next of
    `pieces` (to the first, again and again, when they are not kept) and its start and width beside it.
    """
    while True:
        if control[T] >= until:
            return REACHED
        if counters[ACCEPTED] + counters[REJECTED] >= max_steps:
            return EXHAUSTED
        if counters[PIECES] == starts.size:
            return FULL
        h = propose(control, until)
        if not h > 0.0:
            return LOST
        error, extent, rate = attempt(system, h)
        counters[JACOBIANS] += 1
        counters[EVALUATIONS] += 8
        if rate * h > CAP * OVERSHOOT:
            counters[REJECTED] += 1
            break_cap(control, rate)
            continue
        if settle > 0.0:
            state = settled(system, settle)
            if state != MOVING:
                return SETTLED if state == AT_REST else UNRESOLVED
        error /= tolerance
        if not (error <= 1.0 and extent < 1.0):
            counters[REJECTED] += 1
            refuse(control, h, error, extent, rate)
            continue
        number = counters[PIECES]
        due = counters[OUTPUTS] < times.size and (times[counters[OUTPUTS]] <= control[T] + h)
        if keep_pieces or due or control[T] + h >= until:
            piece = pieces[number if keep_pieces else 0]
            polynomial(system, piece)
            record(control, counters, h, until, piece, times, saved)
        commit(system, tolerance)
        starts[number] = control[T]
        widths[number] = h
        counters[PIECES] += 1
        accept(control, h, error, rate, counters[ACCEPTED] == 0)
        if control[T] + 0.0 >= until or until - control[T] <= 1e-15 * until:
            control[T] = until
        counters[ACCEPTED] += 1


march_compiled = compiled(_march)
march_plain = _march


def describe(t: float) -> str:
    """A time for a message."""
    return f"t = {t:.6g}" if math.isfinite(t) else "t = infinity"
