"""The step loop of Rodas5P and its step control, for any system that can attempt a step.

Step control, all in absolute angle:

- The error of a step is the largest |u_8| over the tokens, divided by the tolerance. No root mean square: on long horizons one
  leader moves while everybody else stands still.
- After an accepted step the factor is `0.9 err^(-1/5)`, and at most what Gustafsson's predictive controller allows
  (K. Gustafsson, ACM Trans. Math. Softw. 20, 1994): merges accelerate, h must shrink by tens of decades, the trend is known.
- Instability cap: `h * max_k |lambda(J_kk)| <= CAP` over the eigenvalues that grow. An L-stable step damps unstable modes too, and
  tokens on a saddle or in the middle of a spiral would never leave it. The Jacobian is triangular, so its diagonal blocks show
  every eigenvalue. A token whose stages vanish exactly is at rest and sets no cap.
- Close to the cap the error depends on h * lambda alone and far more steeply than h^5, so there the largest product that passes
  (`REACH`) is learned instead, and the next lambda is extrapolated from the growth law d(1/lambda)/dt = -GROWTH, with which
  lambda blows up when two clusters fall into each other.

`t + h == t` late in a merge is harmless, since the system does not depend on t: there is no smallest step.

A system is a named tuple of arrays. What it does (`attempt`, `commit`, `polynomial` and `settled` below) is compiled on its own, and
its `calls` holds the addresses: the march, which knows no more of a system than these and its `result`, is compiled once for all of
them. An object around such a system, its `place`, may attempt steps in another way (dense blocks).
"""

from __future__ import annotations

from collections import namedtuple
from types import FunctionType
from typing import Any

import numpy as np

from metastable.kernels.cpu.compiled import address_of, call_address, compiled, inner
from metastable.kernels.cpu.memory import Reference, reference_type

CAP = 0.5
"""Largest h * |lambda| of an unstable mode."""
OVERSHOOT = 1.1
"""A step planned with an extrapolated lambda may pass the cap by this factor before it is repeated."""
UNSTABLE = 0.2
"""From this h * |lambda| on, steps are controlled through h * lambda."""
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
MEMORY: tuple[str, ...] = ("t", "h", "h_old", "error_old", "rate", "growth", "reach", "last_width", "after_rejection")
"""Names of these entries, in order."""
# Whether the step in hand was cut (or stretched) to end at the end; if so, the entries above as they were before it.
LANDS, BEFORE = 9, 10
CONTROL_SIZE = 19
# Entries of `counters`, `Statistics` first.
ACCEPTED, REJECTED, EVALUATIONS, JACOBIANS, OUTPUTS, PIECES = range(6)
COUNTER_SIZE = 6
# Entries of `result` of a system: largest |u_8| and largest chart coordinate of the attempted step, largest |lambda| of a moving
# unstable mode, what `settled` found; and the error estimate that matters (see the systems).
ERROR, EXTENT, FASTEST, STATE, ENOUGH = range(5)
RESULT_SIZE = 5
# What `march` returns.
REACHED, FULL, EXHAUSTED, SETTLED, LOST, UNRESOLVED = range(6)
# What `settled` finds.
MOVING, AT_REST, HIDDEN = range(3)


Journal = namedtuple(
    "Journal",
    [
        "control",  # (CONTROL_SIZE,)
        "counters",  # (COUNTER_SIZE,)
        "times",  # (m,) output times
        "saved",  # (m, tokens, components) states at them
        "starts",  # (steps,) where the accepted steps begin,
        "widths",  # (steps,) their widths
        "pieces",  # (steps or 1, 5, tokens, components) and their dense output
    ],
)
"""What a march writes."""
Goal = namedtuple("Goal", ["until", "tolerance", "settle", "max_steps", "keep_pieces"])
"""What a march is asked for. `settle` > 0 is the threshold of `settled`, 0 switches it off."""
Calls = namedtuple("Calls", ["attempt", "commit", "polynomial", "settled"])
"""Addresses of the compiled functions of a system."""
Marched = namedtuple("Marched", ["result", "calls", "place"])
"""What a march knows of a system: its `result`, its `calls`, and where it stands in memory."""


def first_control(t: float, h: float) -> np.ndarray:
    """The entries of `control` of a march that starts at time t with step h."""
    control = np.zeros(CONTROL_SIZE)
    control[[T, H, H_OLD, ERROR_OLD, GROWTH, REACH]] = t, h, h, ERROR_FLOOR, 1.0, CAP
    return control


def new_journal(times, saved, pieces, steps: int, t: float, h: float) -> Journal:
    """A journal with room for so many steps, of a march that starts at time t with step h."""
    counters = np.zeros(COUNTER_SIZE, dtype=np.int64)
    counters[OUTPUTS] = np.searchsorted(times, t, side="right")
    return Journal(first_control(t, h), counters, times, saved, np.zeros(steps), np.zeros(steps), pieces)


# ------------------------------------------------------------------------------------------------ what a system does


_known: dict[Any, Calls] = {}
_settled: dict[Any, Any] = {}
"""Types of systems -> addresses of their functions; and their `settled`, which is compiled when somebody asks for rest."""


def with_calls(system: Any, attempt: Any, commit: Any, polynomial: Any, settled: Any, *, piece: np.ndarray) -> Any:
    """The system with the addresses of its compiled functions; `piece` is like those of its journal."""
    kind = reference_type(system)
    if kind not in _known:
        address = address_of(polynomial, kind, piece)
        _known[kind] = Calls(address_of(attempt, kind, 1.0), address_of(commit, kind, 1.0), address, 0)
        _settled[kind] = settled
    return system._replace(calls=_known[kind])


def _with_settled(system: Reference) -> Calls:
    """The addresses of a system's functions, that of its `settled` included."""
    return system.memory.calls._replace(settled=address_of(_settled[system.kind], system.kind, 1.0))


def placed(system: Any) -> Reference:
    """A reference to a system; systems may be given as one to whoever calls them more than once."""
    return system if isinstance(system, Reference) else Reference(system)


@inner
def attempt(system, h):
    """Try a step of size h: `ERROR`, `EXTENT` and `FASTEST` of `system.result`.

    Returns early, with the last entry above `CAP * OVERSHOOT / h`, as soon as the cap is broken.
    """
    call_address(system.calls.attempt, system.place, h)


@inner
def commit(system, tolerance):
    """Move the state to the end of the attempted step."""
    call_address(system.calls.commit, system.place, tolerance)


@inner
def polynomial(system, piece):
    """Write the dense output of the attempted step, (5, tokens, components) in powers of u; call it before `commit`."""
    call_address(system.calls.polynomial, system.place, piece)


@inner
def settled(system, threshold):
    """`STATE` of `system.result`: `AT_REST` when no token will move by more than `threshold` any more, `HIDDEN` when rounding
    errors hide whether one does, else `MOVING`; judged at the start of the attempted step."""
    call_address(system.calls.settled, system.place, threshold)


_run = compiled(lambda address, place, x: call_address(address, place, x))


def run(system: Any, name: str, x: Any) -> None:
    """Call one of the four functions of a named tuple (or of a reference to one) from Python."""
    place = placed(system)  # kept until the call is over
    calls = _with_settled(place) if name == "settled" else place.memory.calls
    _run(getattr(calls, name), place.address, x)


# ------------------------------------------------------------------------------------------------------- step control


@inner
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


@inner
def break_cap(control, rate):
    """Plan the repetition of a step that broke the cap."""
    control[H] = 0.8 * CAP / rate
    control[RATE] = rate
    control[LAST_WIDTH] = 0.0
    control[REACH] = CAP


@inner
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


@inner
def accept(control, h, error, rate, first):
    """Advance the time and plan the next step."""
    factor = SAFETY * max(error, 1e-12) ** -0.2
    if not first:
        believed = max(error, ERROR_FLOOR)
        trend = (h / control[H_OLD]) * (control[ERROR_OLD] / (believed * believed)) ** 0.2
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


@inner
def evaluate(piece, u, out):
    """Value of a dense output polynomial (5, tokens, components) at the fraction u."""
    for k in range(out.shape[0]):
        for a in range(out.shape[1]):
            value = piece[4, k, a]
            for power in range(3, -1, -1):
                value = piece[power, k, a] + u * value
            out[k, a] = value


@inner
def record(counters, times, saved, t, h, until, piece):
    """Save the output times that the step from t to t + h covers."""
    end = t + h
    # t + (until - t) may be less than until, by rounding: whoever asked for the end would get nothing.
    if until - end <= 1e-15 * until:
        end = until
    while counters[OUTPUTS] < times.size and (times[counters[OUTPUTS]] <= end or end >= until):
        u = (times[counters[OUTPUTS]] - t) / h
        evaluate(piece, min(1.0, max(0.0, u)), saved[counters[OUTPUTS]])
        counters[OUTPUTS] += 1


def march(system, journal, goal):
    """Step until something happens: REACHED, FULL (no room for steps), EXHAUSTED (max_steps), SETTLED, LOST or UNRESOLVED.

    Every accepted step writes its polynomial to the next of the pieces (to the first, again and again, when they are not
    kept) and its start and width beside it.
    """
    control, counters, times, until = journal.control, journal.counters, journal.times, goal.until
    while True:
        if control[T] >= until:
            return REACHED
        if counters[ACCEPTED] + counters[REJECTED] >= goal.max_steps:
            return EXHAUSTED
        if counters[PIECES] == journal.starts.size:
            return FULL
        h = propose(control, until)
        if not h > 0.0:
            return LOST
        attempt(system, h)
        rate = system.result[FASTEST]
        counters[JACOBIANS] += 1
        counters[EVALUATIONS] += 8
        if rate * h > CAP * OVERSHOOT:
            counters[REJECTED] += 1
            break_cap(control, rate)
            continue
        if goal.settle > 0.0:
            settled(system, goal.settle)
            if system.result[STATE] != MOVING:
                return SETTLED if system.result[STATE] == AT_REST else UNRESOLVED
        error = system.result[ERROR] / goal.tolerance
        if not (error <= 1.0 and system.result[EXTENT] < 1.0):
            counters[REJECTED] += 1
            refuse(control, h, error, system.result[EXTENT], rate)
            continue
        number = counters[PIECES]
        due = counters[OUTPUTS] < times.size and (times[counters[OUTPUTS]] <= control[T] + h)
        if goal.keep_pieces or due or control[LANDS] != 0.0:
            piece = journal.pieces[number if goal.keep_pieces else 0]
            polynomial(system, piece)
            record(counters, times, journal.saved, control[T], h, until, piece)
        commit(system, goal.tolerance)
        journal.starts[number] = control[T]
        journal.widths[number] = h
        counters[PIECES] += 1
        accept(control, h, error, rate, counters[ACCEPTED] == 0)
        if control[T] + 0.0 >= until or until - control[T] <= 1e-15 * until:
            control[T] = until
        counters[ACCEPTED] += 1


_march = compiled(march)


def march_compiled(system: Any, journal: Journal, goal: Goal) -> int:
    """`march` for named tuples."""
    place = placed(system)
    calls = _with_settled(place) if goal.settle > 0.0 else place.memory.calls
    marched = Marched(place.memory.result, calls, place.address)
    wanted = goal._replace(keep_pieces=int(goal.keep_pieces))
    return _march(Reference(marched), Reference(journal), Reference(wanted))


record_plain = compiled(record.py_func)
march_plain = FunctionType(
    march.__code__,
    {
        **globals(),
        "attempt": lambda system, h: system.attempt(h),
        **{name: lambda system, x, name=name: run(system.place, name, x) for name in Calls._fields[1:]},
        **{part.__name__: compiled(part.py_func) for part in (propose, break_cap, refuse, accept)},
        "record": record_plain,
    },
)
"""For objects: the same loop in Python, with the same compiled step control."""
