"""Hold and release: the least change of beta over depth that makes a merge happen at a chosen time, or none before it."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metastable import _checks
from metastable.analysis.merging import MergeTree
from metastable.analysis.standing import Clusters
from metastable.control.asking import radius_of
from metastable.control.counting import gathered
from metastable.control.reduced import clusters_of, events_of, fall_of, tree_of, with_sink
from metastable.control.steered import Steering, fall_time, first_time
from metastable.errors import GoalError, InvalidInputError, StoppedEarlyWarning, TimeError, UnsupportedError
from metastable.integrate.rodas import LOGIT_SPREAD
from metastable.model import Causal, Schedule
from metastable.run import Run, merge_tree, simulate
from metastable.run.trees import with_picture

AFTER = 1.02, 10.0
"""A change begins behind an earlier merge at time s, at 1.02 s + 10/|V|: what has merged stays so."""
BEYOND = 2.0, 10.0
"""It ends behind the merge that it is for, at 2 T + 10/|V|."""
WATCHED = 1.5, 20.0
"""And is simulated for so long behind it, 1.5 T + 20/|V|."""
LATEST_GOAL = 1e300
"""T up to which all of that is a number of double precision."""
MARGIN = 0.02
"""Decades behind T at which the first merge is aimed for when none is allowed before it."""
CLOSE = 1e-4
"""Decades to which the time of a merge is solved for."""
SAME_TIME = 0.05
"""Decades by which merges that are to stay may move (early ones: the time of a fall)."""
LOWEST_BETA = 1e-3
CORRECTIONS = 2
"""Times that a simulation may correct what the flow of clusters said."""


def schedule(
    run: Run,
    event: tuple[int, int] | None = None,
    *,
    at: float,
    since: float | None = None,
    radius: float | None = None,
    verify: bool = True,
    progress: bool | None = None,
) -> Steering:
    """The least change of beta over depth that makes a merge happen at depth `at`; without `event`: that keeps all clusters apart
    until then.

    A wait is exp(beta (1 - cos D))/(m beta sin^2 D) long, so beta moves it by decades. Among all schedules that leave beta as it
    is up to the
    last earlier merge, the one whose largest change is least is constant: delaying (or hastening) works at every depth in the same
    sense, so a smaller change at one depth needs a larger one at another. The constant is solved for with the flow of clusters
    (milliseconds a cascade), the change ends behind the merge, and a simulation checks the whole. Where the merge is off by more than
    0.5 % of log10 T (of one decade for T below 10) in it, beta is corrected, up to two times, and the simulation that is least off is
    the answer: at T = 1e20 a tenth of a decade is left as it is, a factor of 1.26. `Steering.off` says how far it is off, in decades,
    `Steering.tolerance` how far it may be, `Steering.met` whether the goal is met.

    Args:
        run: a run of one causal or full softmax model with V = c I and Q = K = I, at least until its clusters have gathered.
        event: (cluster, into): a token of the cluster that is to fall and one of that into which; clusters are those at `since`.
            Under the causal mask a cluster falls into one with an earlier first token.
        at: the time T of the merge, met to 0.5 % of log10 T.
        since: depth from which on beta may change (None: 100/|V|, or the end of the run if that is earlier).
        radius: of a cluster, below pi, as in `merge_tree` (None: that of the model).
        verify: simulate the schedule.

    Returns:
        A `Steering`, whose `schedule` goes to `simulate`.

    Raises:
        GoalError: the merge is against the order of tokens, never happens, or comes too late in the cascade for this time; with
            what happens instead.

    >>> import metastable as ms
    >>> run = ms.simulate(ms.Attention(dim=2, beta=16.0), ms.sphere.uniform(40, dim=2, seed=0), until=100.0)
    >>> first = run.predict_merges().time[0]
    >>> held = ms.control.schedule(run, at=100 * first, verify=False)
    >>> held.tree.time[0] > 100 * first
    np.True_
    """
    verify, progress = _checks.flag(verify, "verify"), _checks.progress(progress)
    goal = _checked(run, event, at, since, radius)
    natural = tree_of(goal.clusters)
    steering = _hold(goal, natural) if goal.event is None else _release(goal, natural)
    return _verified(goal, steering, progress) if verify else steering


@dataclass(frozen=True)
class _Goal:
    """A checked call: run, clusters, event by first tokens, time, and from when on beta may change."""

    run: Run
    clusters: Clusters
    event: tuple[int, int] | None
    at: float
    since: float

    @property
    def beta(self) -> float:
        return float(self.clusters.model.all_heads[0].beta)

    @property
    def sink(self) -> bool:
        """True when token 0 of the clusters is a frozen token."""
        return self.run.model.frozen is not None

    @property
    def highest(self) -> float:
        return 0.5 * LOGIT_SPREAD

    def behind(self, time: float, rule: tuple[float, float]) -> float:
        """A time behind another one: a factor of it, and as many time scales of V."""
        return rule[0] * time + rule[1] / self.clusters.pace


def _checked(run: Run, event: Any, at: float, since: float | None, radius: float | None) -> _Goal:
    _checks.instance(run, Run, "run")
    if len(run.models) != 1:
        raise InvalidInputError("run must be of one model: beta is changed from what it is everywhere")
    model = run.model
    if event is not None and model.frozen is not None:
        raise UnsupportedError(
            "single merges are scheduled in models without frozen tokens, and this one has some; without an event all clusters are "
            "held apart there, too: schedule(run, at=...)"
        )
    moment = min(run.end, gathered(model)) if since is None else since
    moment = _checks.number(moment, "since", 0.0, run.end, error=TimeError)
    radius = radius_of(radius, model)
    at = _checks.number(at, "at", moment, strict=True, error=TimeError)
    at = _checks.number(at, "at", maximum=LATEST_GOAL, error=TimeError)
    tokens = None if event is None else _pair(event, len(run.start))
    if model.all_heads[0].beta <= 0:
        raise GoalError("beta must be positive: at or below 0 nothing is metastable")
    state = run.final if moment == run.end else run.at(moment)
    clusters = clusters_of(state, model, moment, radius)
    return _Goal(run, clusters, None if tokens is None else _leaders(clusters, tokens), at, moment)


def _pair(event: Any, count: int) -> tuple[int, int]:
    """The event as two tokens out of `count`."""
    if not isinstance(event, (tuple, list)) or len(event) != 2:
        raise InvalidInputError(f"event must be two tokens, (cluster, into), not {event!r}")
    child, into = (
        _checks.count(token, name, 0, count - 1)
        for token, name in zip(event, ("the cluster of event", "the target of event"))
    )
    return child, into


def _leaders(clusters: Clusters, tokens: tuple[int, int]) -> tuple[int, int]:
    """The event by the first tokens of its clusters; refused where no beta can make it happen."""
    child, parent = (int(clusters.leaders[clusters.labels[token]]) for token in tokens)
    if child == parent:
        raise GoalError(f"tokens {tokens[0]} and {tokens[1]} are in one cluster (that of token {child}) already")
    if isinstance(clusters.model.mask, Causal) and child < parent:
        raise GoalError(
            f"the cluster of token {child} cannot be absorbed by that of token {parent}: under the causal mask a token sees earlier "
            f"ones only, so the later leader falls into the earlier one; ask for event=({parent}, {child})"
        )
    return (child, parent) if child > parent else (parent, child)


def _pieces(goal: _Goal, value: float, begin: float, end: float = math.inf) -> list[tuple[float, float]]:
    """Inverse temperatures: that of the model, `value` between two depths, that of the model."""
    pieces = [(0.0, goal.beta), (begin, value)]
    return [*pieces, (end, goal.beta)] if math.isfinite(end) else pieces


def _release(goal: _Goal, natural: MergeTree) -> Steering:
    """One merge at a time of its own."""
    assert goal.event is not None
    child, into = goal.event
    own = fall_of(natural, child)
    own_time = math.inf if own is None else own.time
    limit = min(goal.at, own_time)
    earlier = [item for item in events_of(natural) if item.child != child and item.time < own_time]
    late = [item for item in earlier if item.time >= goal.at]
    if late:
        raise GoalError(
            f"{late[0]} comes before the fall of {child}"
            + (f" (at t = {own_time:.4g})" if own else "")
            + f", so {child} cannot fall at "
            f"t = {goal.at:.4g} and leave it as it is: beta is the same for all clusters; ask for a time behind "
            f"{late[-1].time:.4g}, or first for the other merge"
        )
    previous = max((item.time for item in earlier if item.time < limit), default=goal.since)
    begin = goal.since if previous == goal.since else goal.behind(previous, AFTER)
    if begin >= goal.at:
        raise GoalError(
            f"t = {goal.at:.4g} is too near the merge before it, at {previous:.4g}: a change of beta takes hold behind that; ask "
            f"for a later time"
        )

    def time_of(value: float) -> float:
        fall = fall_of(tree_of(goal.clusters, _pieces(goal, value, begin)), child, into)
        return math.inf if fall is None else fall.time

    value = _solve(goal, time_of, goal.at, natural, begin)
    return _steering(goal, natural, value, begin, goal.behind(goal.at, BEYOND))


def _solve(goal: _Goal, time_of: Any, at: float, natural: MergeTree, begin: float) -> float:
    """The inverse temperature at which `time_of` is `at`: bracketed from that of the model, then by regula falsi in log time."""
    from scipy.optimize import brentq

    def miss(logarithm: float) -> float:
        found = time_of(math.exp(logarithm))
        return 400.0 if not math.isfinite(found) else math.log10(found) - math.log10(at)

    start = math.log(goal.beta)
    here = miss(start)
    if abs(here) <= CLOSE:
        return goal.beta
    edge = math.log(goal.highest) if here < 0 else math.log(LOWEST_BETA)
    step, near = 0.05, start
    while True:
        far = near + math.copysign(step, edge - start)
        far = min(far, edge) if here < 0 else max(far, edge)
        there = miss(far)
        if there == 0.0 or (there < 0) != (here < 0):
            break
        if far == edge or (here > 0 and there > here + 1.0):
            _refuse_time(goal, natural, far, here < 0)
        near, step = far, 1.6 * step
    found: float = brentq(miss, near, far, xtol=1e-9, maxiter=80)  # pyright: ignore[reportAssignmentType]
    value = math.exp(float(found))
    if abs(miss(float(found))) > 0.01 * max(1.0, abs(math.log10(at))):
        # The time jumps there: the cluster falls elsewhere on one side.
        _refuse_time(goal, natural, float(found), here < 0)
    return value


def _refuse_time(goal: _Goal, natural: MergeTree, logarithm: float, delay: bool) -> None:
    assert goal.event is not None or delay
    who = "the first merge" if goal.event is None else f"the fall of {goal.event[0]} into {goal.event[1]}"
    if goal.event is not None:
        own = fall_of(natural, goal.event[0])
        known = f"{goal.event[0]} never falls" if own is None else f"{goal.event[0]} falls as {own}"
    else:
        known = f"the first merge is {events_of(natural)[0].said(goal.sink)}"
    raise GoalError(
        f"no beta up to {goal.highest:g} puts {who} at t = {goal.at:.4g} (tried {'up' if delay else 'down'} to "
        f"{math.exp(logarithm):.4g}); without a change {known}; ask for another time, or place a token instead: "
        "metastable.control.place"
    )


def _hold(goal: _Goal, natural: MergeTree) -> Steering:
    """No merge before T."""
    if not len(natural) or natural.time[0] > goal.at:
        return _steering(goal, natural, goal.beta, goal.since, goal.at)

    def first(value: float) -> float:
        return first_time(tree_of(goal.clusters, _pieces(goal, value, goal.since)))

    value = _solve(goal, first, goal.at * 10.0**MARGIN, natural, goal.since)
    return _steering(goal, natural, value, goal.since, goal.at)


def _steering(goal: _Goal, natural: MergeTree, value: float, begin: float, end: float) -> Steering:
    """The answer of the flow of clusters; refused where it moves what was to stay."""
    pieces = _pieces(goal, value, begin, end)
    tree = tree_of(goal.clusters, pieces)
    model = goal.run.model
    if value == goal.beta:
        found = Schedule(((0.0, model),))
    else:
        other = (
            model.replace(beta=value)
            if model.heads is None
            else model.replace(heads=(replace(model.all_heads[0], beta=value),))
        )
        found = Schedule(((0.0, model), (begin, other), (end, model)))
    steering = Steering(
        found,
        goal.beta,
        value,
        (begin, end),
        goal.event,
        goal.at,
        with_picture(natural),
        with_picture(tree),
        None,
        None,
        True,
    )
    moved = _moved(natural, tree, goal)
    if moved is not None:
        raise GoalError(
            f"beta = {value:.4g} from t = {begin:.4g} on puts the merge at t = {goal.at:.4g}, but {moved}: beta acts on all "
            f"clusters, and "
            "another one is as near to its fall; ask for another time, or place a token instead: metastable.control.place"
        )
    return steering


def _moved(natural: MergeTree, tree: MergeTree, goal: _Goal) -> str | None:
    """Which merge before the chosen one is not as without the change, in words; None: all are."""
    if goal.event is None:
        return None if first_time(tree) >= goal.at else f"{events_of(tree)[0].said(goal.sink)} comes before"
    child = goal.event[0]
    wanted = [
        item
        for item in events_of(natural)
        if item.time < min(goal.at, fall_time(natural, child)) and item.child != child
    ]
    found = [item for item in events_of(tree) if item.time < fall_time(tree, child) and item.child != child]
    for item in wanted:
        match = next((other for other in found if other.child == item.child and other.parent == item.parent), None)
        if match is None or abs(math.log10(match.time / item.time)) > SAME_TIME:
            return f"{item} does not happen as without it"
    extra = [item for item in found if all(item.child != other.child for other in wanted)]
    return f"{extra[0]} comes before it" if extra else None


def _verified(goal: _Goal, steering: Steering, progress: bool | None) -> Steering:
    """The steering with its simulation; where the merge is off, beta is corrected by what the simulation says. What is returned was
    simulated: of all tries, the one that is least off.
    """
    aim, best, least = goal.at, None, math.inf
    for _ in range(CORRECTIONS + 1):
        steering = _simulated(goal, steering, progress)
        off = steering.off
        assert steering.run is not None
        assert off is not None
        if best is None or abs(off) < least:
            best, least = steering, abs(off)
        sure = goal.event is None or not math.isfinite(off) or steering.run.status != "success"
        if sure or abs(off) <= steering.tolerance:
            break
        aim = aim * 10.0**-off
        try:
            steering = replace(_release(replace(goal, at=aim), steering.natural), at=goal.at)
        except GoalError:
            break
    assert best is not None
    return best


def _simulated(goal: _Goal, steering: Steering, progress: bool | None) -> Steering:
    """The steering with what a simulation of its schedule says, until all of the change is over."""
    end = max(goal.behind(goal.at, WATCHED), 1.01 * steering.window[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoppedEarlyWarning)  # the run's status says it
        seen = simulate(steering.schedule, goal.run.start, until=end, progress=progress)
        whole = seen
        if goal.sink:
            # The tree of the run does not know the frozen token: as a first one, which rests, it is part of it.
            pieces = [(begin, with_sink(goal.run.start, model)[1]) for begin, model in steering.schedule.pieces]
            tokens = with_sink(goal.run.start, goal.run.model)[0]
            whole = simulate(Schedule(tuple(pieces)), tokens, until=end, progress=progress)
    tree = merge_tree(whole, goal.clusters.radius)
    later = tree.time > goal.since
    first = float(tree.time[later].min()) if later.any() else math.inf
    achieved = first if goal.event is None else fall_time(tree, *goal.event)
    return replace(steering, run=seen, achieved=achieved, undisturbed=_moved_in(steering.natural, tree, goal) is None)


def _moved_in(natural: MergeTree, tree: MergeTree, goal: _Goal) -> str | None:
    """As `_moved`, in the tree of a simulation, where tokens that were apart early are more than the clusters at `since`."""
    later = tree.time > goal.since
    part: Any = replace(
        tree,
        time=tree.time[later],
        before=tree.before[later],
        child=tree.child[later],
        parent=tree.parent[later],
        child_size=tree.child_size[later],
        parent_size=tree.parent_size[later],
    )
    known = set(np.asarray(natural.child).tolist())
    keep = np.isin(part.child, list(known))
    part = replace(
        part, time=part.time[keep], child=part.child[keep], parent=part.parent[keep], before=part.before[keep]
    )
    return _moved(natural, part, goal)
