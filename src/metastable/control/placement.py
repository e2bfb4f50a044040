"""Where to put one token, with what weight, so that chosen tokens meet in time, or two clusters stay apart: `place`."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable import _checks, sphere
from metastable._checks import FloatArray
from metastable._progress import Report, progress_bar
from metastable.analysis.merging import MergeTree
from metastable.analysis.standing import Clusters
from metastable.control.asking import radius_of
from metastable.control.counting import gathered
from metastable.control.goals import Apart, Goal, Together, score, serves
from metastable.control.reduced import clusters_of, sink_refusal, tree_of
from metastable.errors import GoalError, InvalidInputError, MetastableError, ModelError, StoppedEarlyWarning, TimeError
from metastable.model import Attention, Frozen, Full
from metastable.model.describe import table
from metastable.run import Run, merge_tree, simulate

KINDS = ("frozen", "first", "appended")
LADDER = 5
"""Weights that are tried between the bounds, by equal factors."""
REFINED = 3
"""Best places of the global search that are refined."""
FINEST = 1e-3
"""Radians at which a refinement ends."""
ON_SINK = 0.1
"""Part of the radius within which a token has come to the frozen one."""
NEVER = 400.0
"""log10 of the time of a meeting that does not happen."""


@dataclass(frozen=True, repr=False)
class Placement:
    """What `place` found.

    Fields
    ------
    token, weight, kind : where to put it (d,), how much it counts, and as what.
    goal, until : what was asked for.
    met : True when the goal is met, by full simulation to `until` where `simulated`, else as the flow of clusters says.
    time, without : when the tokens of the goal meet for good with the token and without it, as the flow of clusters says: 100/|V|,
        where it begins, stands for whatever was before; infinite: not by the end of what was computed.
    tried : places that were tried.
    model, start : the system with the token in it: `simulate(found.model, found.start, until=...)`.
    """

    token: FloatArray
    weight: float
    kind: str
    goal: Goal
    until: float
    met: bool
    time: float
    without: float
    tried: int
    simulated: bool
    model: Attention
    start: FloatArray

    @property
    def facts(self) -> dict[str, str]:
        """What was found, in words, by name."""
        place = ", ".join(f"{number:.4f}" for number in self.token[:8]) + (", ..." if self.token.size > 8 else "")
        names = ", ".join(str(token) for token in self.goal.tokens)
        wish = (
            f"tokens {names} {'in one cluster' if isinstance(self.goal, Together) else 'apart'} at t = {self.until:.4g}"
        )
        return {
            "goal": f"{wish}: {'met' if self.met else 'NOT met'}" + (", simulated" if self.simulated else ""),
            "place": f"({place}), {self.kind}, weight {self.weight:.4g}",
            "meeting": f"t = {self.time:.4g}, without it {self.without:.4g}",
            "tried": f"{self.tried} places",
        }

    def __repr__(self) -> str:
        return "<Placement: " + "; ".join(f"{name} {text}" for name, text in self.facts.items()) + ">"

    def _repr_html_(self) -> str:
        return table("Placement", self.facts)


def place(
    source: Run | Attention,
    start: Any = None,
    *,
    goal: Goal,
    until: float | None = None,
    kind: str = "frozen",
    weight: float | tuple[float, float] = 1.0,
    tries: int = 48,
    seed: int = 0,
    radius: float | None = None,
    verify: bool = True,
    progress: bool | None = None,
) -> Placement:
    """Where to put one token so that chosen tokens end in one cluster, or two clusters stay apart until a depth.

    What counts is when the tokens of the goal meet for good: `tries` places all over the sphere (evenly on circle and S^2), the
    best three refined by a compass search along geodesics. Each is a simulation to t = 100/|V|, from there on the flow of clusters;
    models whose clusters are no points are simulated to the end. Of several weights the smallest one that serves is taken; with
    `verify` one that serves in a full simulation, too: a place that does not is passed over for the next best, and for larger weights.

    What such a token can do: with weight w it has at depth t the reach d(t) of a cluster, cos d = 1 - ln(w t)/beta: what is nearer
    falls into it, and what sits on it stays there (Theorem 5.2). Everything beyond moves as if it were not there.

    Args:
        source: a `Run`, or an `Attention` with `start`: unit tokens (n, d).
        goal: `Together((3, 7, 9))` or `Apart(3, 7)`, tokens by position.
        until: the depth at which the goal is looked at (None: the end of the run).
        kind: "frozen" (seen by all, never moves), "first" (in front of the sequence), "appended" (behind it: seen by no earlier
            token under a causal mask, so refused there).
        weight: how much the token counts, or bounds of it.
        tries, seed: of the global search.
        radius: of a cluster, below pi (None: that of the model).
        verify: simulate the answer to the end; `met` is what that says.

    Raises:
        GoalError: before any work, where no place can serve.

    >>> import metastable as ms
    >>> model, start = ms.Attention(dim=2, beta=9.0), ms.sphere.uniform(12, dim=2, seed=0)
    >>> ms.control.place(model, start, goal=ms.control.Together((3, 5)), until=1e4, tries=12, weight=10.0).met
    True
    """
    trial = _checked(source, start, goal, until, kind, radius)
    weights, checked = _weights(weight), _checks.flag(verify, "verify")
    points = _spread(_checks.count(tries, "tries", 4), trial.model.dim, _checks.seed(seed))
    with progress_bar("place", len(weights) * (len(points) + 20 * REFINED), progress) as report:
        without = trial.meeting(None, 0.0)
        best, met = _lightest(trial, points, weights, checked, report)
    model, tokens = trial.system(best.token, best.weight)
    return Placement(
        best.token,
        best.weight,
        kind,
        goal,
        trial.until,
        met,
        _time(best.logarithm),
        _time(without),
        trial.count[0],
        checked,
        model,
        tokens,
    )


def _time(logarithm: float) -> float:
    return math.inf if logarithm >= 300.0 else 10.0**logarithm


@dataclass(frozen=True)
class Trial:
    """A system into which one token is put, and the tokens that are to meet, or not."""

    model: Attention
    start: FloatArray
    goal: Goal
    until: float
    kind: str
    radius: float
    count: list[int]

    def system(self, token: FloatArray, weight: float) -> tuple[Attention, FloatArray]:
        """Model and start with the token in it."""
        if self.kind == "frozen":
            frozen = self.model.frozen
            places, weights = token[None], np.array([weight])
            if frozen is not None:
                assert frozen.weights is not None
                places, weights = np.concatenate([frozen.tokens, places]), np.concatenate([frozen.weights, weights])
            return self.model.replace(frozen=Frozen(places, weights)), self.start
        masses = np.ones(len(self.start)) if self.model.masses is None else np.asarray(self.model.masses)
        parts = (token[None], self.start) if self.kind == "first" else (self.start, token[None])
        heavy = (np.array([weight]), masses) if self.kind == "first" else (masses, np.array([weight]))
        return self.model.replace(masses=np.concatenate(heavy)), np.concatenate(parts)

    def meeting(self, token: FloatArray | None, weight: float) -> float:
        """log10 of the time from which the tokens of the goal are together for good (that of `gathered`, where it was earlier);
        `NEVER`.
        """
        self.count[0] += 1
        model, start = (self.model, self.start) if token is None else self.system(token, weight)
        chosen = np.array(self.goal.tokens) + (1 if token is not None and self.kind == "first" else 0)
        moment = gathered(model)
        if self.until > 2.0 * moment and _reducible(model, start):
            state = simulate(model, start, times=[moment], progress=False).final
            clusters = clusters_of(state, model, moment, self.radius)
            if model.frozen is None or _settled(clusters):
                met = _met(tree_of(clusters), chosen + (1 if model.frozen is not None else 0))
            else:
                met = _met(self._tree(model, start), chosen)
            return max(met, math.log10(moment))
        return _met(self._tree(model, start), chosen)

    def simulated(self, token: FloatArray, weight: float) -> bool:
        """True when a full simulation meets the goal."""
        model, start = self.system(token, weight)
        chosen = np.array(self.goal.tokens) + (1 if self.kind == "first" else 0)
        return serves(self.goal, _met(self._tree(model, start), chosen), self.until)

    def _tree(self, model: Attention, start: FloatArray) -> MergeTree:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoppedEarlyWarning)
            run = simulate(model, start, until=self.until, progress=False)
        if run.status != "success":
            raise MetastableError(f"a trial stopped early: {run.message}")
        return merge_tree(run, self.radius)


def _reducible(model: Attention, start: FloatArray) -> bool:
    return sink_refusal(model, len(start)) is None


def _settled(clusters: Clusters) -> bool:
    """True when the tokens that count as one cluster with the frozen token, the first one, have come to it: then they rest.

    One of little weight takes long to draw them, and something else may be stronger meanwhile.
    """
    near = clusters.tokens[clusters.labels == clusters.labels[0]]
    return float(sphere.distance(near, near[:1]).max()) <= ON_SINK * clusters.radius


def _met(tree: MergeTree, chosen: np.ndarray) -> float:
    """log10 of the first time at which all chosen tokens share a cluster of the tree: -infinity from its start on."""
    labels = tree.start_labels[chosen]
    if (labels == labels[0]).all():
        return -math.inf
    for time in tree.time:
        labels = tree.labels_at(float(time))[chosen]
        if (labels == labels[0]).all():
            return math.log10(float(time)) if time > 0.0 else -math.inf
    return NEVER


def _checked(source: Any, start: Any, goal: Any, until: Any, kind: Any, radius: Any) -> Trial:
    if isinstance(source, Run):
        if start is not None:
            raise InvalidInputError("a run has its start; leave start out")
        if len(source.models) != 1:
            raise InvalidInputError("source must be a run of one model")
        model, tokens = source.model, source.start
        until = source.end if until is None else until
    else:
        model = _checks.instance(source, Attention, "source")
        tokens = model.check_tokens(start)
    until = _checks.number(until, "until", 1.0, error=TimeError)
    _checks.choice(kind, "kind", KINDS)
    if not isinstance(goal, (Together, Apart)):
        raise InvalidInputError(f"goal must be metastable.control.Together((3, 7)) or Apart(3, 7), not {goal!r}")
    for token in goal.tokens:
        _checks.count(token, "each token of the goal", 0, len(tokens) - 1)
    if model.noise > 0:
        raise ModelError("place is for models without noise: where a token goes must depend on the token placed")
    if kind == "appended" and model.mask.fixed_length is None and model.mask.extends(len(tokens), len(tokens) + 1):
        raise GoalError(
            f"an appended token changes nothing: under {model.mask!r} no earlier token sees it; use kind='frozen' or 'first'"
        )
    if kind != "frozen" and model.mask.fixed_length is not None:
        raise ModelError(
            "the mask is a matrix for these tokens, which does not say who sees one more; use kind='frozen'"
        )
    radius = radius_of(radius, model)
    if isinstance(goal, Apart) and _alike(model, tokens[goal.first], tokens[goal.second], goal):
        raise GoalError(
            f"tokens {goal.first} and {goal.second} start in one point, and under full attention they see the same and move alike: "
            "no token parts them"
        )
    return Trial(model, tokens, goal, until, kind, radius, [0])


def _alike(model: Attention, first: FloatArray, second: FloatArray, goal: Apart) -> bool:
    """True when two tokens have the same place and the same velocity for ever: all see all, and nothing depends on positions."""
    if not isinstance(model.mask, Full) or model.bias is not None or not np.array_equal(first, second):
        return False
    if any(head.rotary is not None for head in model.all_heads):
        return False
    # Who does not see itself sees the other one instead.
    same_mass = model.masses is None or model.masses[goal.first] == model.masses[goal.second]
    return model.mask.include_self or bool(same_mass)


def _weights(weight: Any) -> list[float]:
    """The weights to try, the smallest first."""
    if isinstance(weight, (tuple, list)):
        if len(weight) != 2:
            raise InvalidInputError(f"weight must be a number or two bounds, not {weight!r}")
        low = _checks.number(weight[0], "weight[0]", 0.0, strict=True)
        high = _checks.number(weight[1], "weight[1]", low)
        return np.geomspace(low, high, LADDER if high > low else 1).tolist()
    return [_checks.number(weight, "weight", 0.0, strict=True)]


def _spread(count: int, dim: int, seed: int) -> FloatArray:
    """Places all over the sphere: equally spaced on the circle, a spiral on S^2, at random elsewhere; turned at random."""
    generator = np.random.default_rng(seed)
    if dim > 3:
        return sphere.uniform(count, dim=dim, seed=generator)
    if dim == 2:
        angles = generator.uniform(0.0, 2.0 * math.pi) + 2.0 * math.pi * np.arange(count) / count
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    heights = 1.0 - (2.0 * np.arange(count) + 1.0) / count
    turns = math.pi * (3.0 - math.sqrt(5.0)) * np.arange(count)
    across = np.sqrt(1.0 - heights**2)
    points = np.stack([across * np.cos(turns), across * np.sin(turns), heights], axis=1)
    turn = np.linalg.qr(generator.normal(size=(3, 3)))[0]
    return sphere.retract(points @ turn.T)


@dataclass(frozen=True, eq=False)
class _Found:
    """A place at one weight, and log10 of the meeting time that it has in the flow of clusters."""

    logarithm: float
    token: FloatArray
    weight: float


def _lightest(
    trial: Trial, points: FloatArray, weights: list[float], checked: bool, report: Report
) -> tuple[_Found, bool]:
    """The best place at the smallest weight that serves, and whether it does: in a full simulation, where that is asked for.

    What serves in the flow of clusters and not in the simulation is passed over: the next place of this weight is looked at, then the
    next weight. Where none serves, the place with the best meeting time of all.
    """
    best: _Found | None = None
    failed: list[_Found] = []
    for number, weight in enumerate(weights):
        base = number * (len(points) + 20 * REFINED)
        places = _search(trial, points, weight, lambda done, base=base: report(base + done))
        for found in places:
            if not serves(trial.goal, found.logarithm, trial.until):
                break
            if not checked or trial.simulated(found.token, weight):
                return found, True
            failed.append(found)
        if best is None or score(trial.goal, places[0].logarithm) > score(trial.goal, best.logarithm):
            best = places[0]
    assert best is not None
    # The simulation has the last word, also on places that the flow of clusters has given up.
    return best, checked and best not in failed and trial.simulated(best.token, best.weight)


def _search(trial: Trial, points: FloatArray, weight: float, report: Report) -> list[_Found]:
    """The refined places at one weight, the best first."""
    values = np.empty(len(points))
    for number, point in enumerate(points):
        values[number] = trial.meeting(point, weight)
        report(number + 1)
    scores = np.array([score(trial.goal, value) for value in values])
    spacing = math.pi / len(points) ** (1.0 / (trial.model.dim - 1))
    places = []
    for rank, index in enumerate(np.argsort(-scores, kind="stable")[:REFINED]):
        places.append(_Found(*_refined(trial, points[index], float(values[index]), weight, spacing), weight))
        report(len(points) + 20 * (rank + 1))
    return sorted(places, key=lambda found: -score(trial.goal, found.logarithm))


def _refined(trial: Trial, point: FloatArray, value: float, weight: float, step: float) -> tuple[float, FloatArray]:
    """Compass search along geodesics: to the first neighbour that is better, else half the step."""
    while step > FINEST and abs(value) < NEVER:
        basis = np.linalg.svd(point[None])[2][1:]
        directions = [sign * row for row in basis for sign in (1.0, -1.0)]
        for direction in directions:
            other = math.cos(step) * point + math.sin(step) * direction
            there = trial.meeting(other, weight)
            if score(trial.goal, there) > score(trial.goal, value) + 1e-9:
                point, value = other, there
                break
        else:
            step *= 0.4
    return value, point
