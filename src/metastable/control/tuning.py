"""How many clusters, until when: `temperature` and, for any knob, `tune`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable import _checks, theory
from metastable._progress import progress_bar
from metastable.control import feasible
from metastable.control.asking import ensemble_options, own_radius
from metastable.control.counting import Counter
from metastable.control.knobs import Knob, applied, knob_of, narrowed, own_value, rounded, turns_beta
from metastable.control.measuring import ENOUGH
from metastable.control.search import find
from metastable.control.tries import Problem, Record, Root, Try, nearest, pooled
from metastable.errors import ConvergenceError, InvalidInputError, TimeError
from metastable.model import Attention
from metastable.model.describe import table

MEMBERS = 20_000
ACCURACY = 0.0035
"""Standard error of the mean at the value found, over the square root of the goal: less than a quarter of that of 500 members."""
CHECKED = 32
"""Members that are simulated to the end, beside the flow of their leaders."""
QUANTILE = 1.959963984540054
"""Half width of an interval of 95 %, in standard errors."""


@dataclass(frozen=True, repr=False)
class Setting:
    """What `tune` and `temperature` found.

    Fields
    ------
    knob, value, interval : the knob, its value, and 95 % for the value at which the mean is the goal.
    clusters, until, tokens : the goal, and for how many tokens.
    mean, error : mean number of clusters at `value`, fitted to the tries beside it (of a whole number: those there), with its standard
        error.
    status : "success"; "nearest" where the knob is a whole number and none has this mean: `value` is the one whose mean is nearest to
        the goal, `mean` what it has, and `interval` holds both neighbours.
    members : member-runs that were spent in all.
    tries : every ensemble that was run, in order.
    law : the value that the law of `metastable.theory.cluster_count` starts from; None where there is none.
    counted : how clusters were counted.
    checked, differing, difference : members that were counted both by leaders and by full simulation at `value`, how many of them
        differ, and the mean difference; zeros where all were simulated.
    model : the model with the knob at `value`.
    """

    knob: str
    value: float
    interval: tuple[float, float]
    clusters: float
    until: float
    tokens: int
    mean: float
    error: float
    status: str
    members: int
    tries: tuple[Try, ...]
    law: float | None
    counted: str
    checked: int
    differing: int
    difference: float
    model: Attention

    @property
    def facts(self) -> dict[str, str]:
        """What was found, in words, by name."""
        low, high = self.interval
        between = ""
        if self.status != "success":
            beside = [item for item in pooled(self.tries) if low <= item.value <= high]
            between = "no whole number has this mean: " + ", ".join(
                f"{item.value:g} has {item.mean:.4f} +- {item.error:.4f}" for item in beside
            )
        checked = f"{self.differing} of {self.checked} members differ from full simulation" if self.checked else ""
        return {
            self.knob: f"{self.value:.6g} (95 %: {low:.6g} to {high:.6g})",
            "goal": f"{self.clusters:g} clusters of {self.tokens} tokens at t = {self.until:g}",
            "mean there": f"{self.mean:.4f} +- {self.error:.4f}",
            "nearest": between,
            "the law alone": "" if self.law is None else f"{self.law:.6g}",
            "spent": f"{self.members} members in {len(self.tries)} tries",
            "counted": self.counted,
            "checked": checked,
        }

    def __repr__(self) -> str:
        low, high = self.interval
        missed = "" if self.status == "success" else f", where there are {self.mean:.4g}"
        return (
            f"<Setting: {self.knob} = {self.value:.6g} ({low:.6g} to {high:.6g}) for {self.clusters:g} clusters of {self.tokens} "
            f"tokens at t = {self.until:g}{missed}; {self.members} members>"
        )

    def _repr_html_(self) -> str:
        tried = "; ".join(
            f"{item.value:.5g}: {item.mean:.3f} +- {item.error:.3f} ({item.members})" for item in self.tries
        )
        return table("Setting", {**self.facts, "tried": tried})

    def plot(self, **options: Any) -> Any:
        """The tries with their errors, the goal and the interval; see `metastable.figures.draw_setting`."""
        from metastable import figures

        return figures.draw_setting(self, **options)


def temperature(model: Attention, tokens: int, clusters: float, until: float, **search: Any) -> Setting:
    """The inverse temperature beta at which `tokens` uniform tokens are in `clusters` clusters, on average, at depth `until`.

    The search starts from the law N(t) = 1/sigma(B_d(t)), cos d(t) = 1 - ln t/beta (on the circle pi/arccos(1 - ln t/beta), see
    `metastable.theory.cluster_count`), which is right to 20 %, and corrects it by ensembles: a line over the law, fitted to tries
    on both sides of the root (`metastable.control.search`). Where that ends, the answer is measured with members of its own
    (`metastable.control.measuring`), so that it owes nothing to the luck of the search.

    Args:
        model: any `Attention`; its own beta does not matter.
        tokens: per member. The law is that of many tokens; from 30 per cluster on more of them change little.
        clusters: the goal, a mean: 5.0 or 4.5, more than 1.
        until: the depth, any number of decades.
        search: the further arguments of `tune`: seed, accuracy, members, between, radius, exact, progress, and options of
            `metastable.ensemble`.

    Returns:
        A `Setting`: value, interval, members spent, the curve of what was tried, the model.

    Raises:
        GoalError: before any work, with the reason: more clusters than tokens, or than a sphere holds; fewer than are ever left; a beta
            beyond double precision.

    >>> import metastable as ms
    >>> found = ms.control.temperature(ms.Attention(dim=2, beta=1.0), tokens=60, clusters=3, until=100.0, accuracy=0.1)
    >>> 6 < found.value < 14
    True
    """
    if "knob" in search:
        raise InvalidInputError(
            "temperature turns beta; for another knob use metastable.control.tune(model, knob, ...)"
        )
    return tune(model, "beta", tokens=tokens, clusters=clusters, until=until, **search)


def tune(
    model: Attention,
    knob: str | Knob,
    *,
    tokens: int,
    clusters: float,
    until: float,
    seed: int = 0,
    accuracy: float | None = None,
    members: int = MEMBERS,
    between: tuple[float, float] | None = None,
    radius: float | None = None,
    exact: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> Setting:
    """The value of any scalar knob at which there are `clusters` clusters, on average, at depth `until`: see `temperature`.

    Args:
        knob: "beta", "noise", "tokens", "window" (the width that the mask has), "norm" (the number that the norm has), "sink" (the
            total weight of frozen tokens), "gap" (of V), or a `metastable.control.Knob` of your own. The mean must be monotone in
            it between the bounds. Only "beta" has a law; for the others give `between`, which saves tries.
        tokens: per member; where it is the knob itself, the first number to try.
        clusters: the goal, a mean: 5.0 or 4.5, more than 1.
        until: the depth, any number of decades. Under causal and full softmax attention with V = c I and Q = K = I members are
            simulated to t = 100/|V| and go on as the flow of their leaders (`exact=True`: always simulated to the end).
        seed: of all tries together.
        accuracy: standard error of the mean at the value found, in clusters. None: 0.0035 sqrt(clusters), less than a quarter of the
            standard error that 500 members have, which takes some 13,000; twice the error takes a quarter of them.
        members: the most member-runs to spend. Where they do not suffice the interval is wider, up to five times; beyond that, and
            as soon as the variance shows it, `ConvergenceError` says how many it takes.
        between: bounds of the knob. radius: of a cluster, from 1e-4 to pi (None: 0.5 beta^(-1/2), as everywhere).
        options: of `metastable.ensemble` (engine, threads, rtol, ...).

    A whole-numbered knob gets the number whose mean is nearest to the goal; `mean` says what it is, and `status` is "nearest" where
    that is further from the goal than two standard errors and `accuracy`.
    """
    _checks.instance(model, Attention, "model")
    turned = knob_of(model, knob)
    count = _checks.count(tokens, "tokens")
    goal = _checks.number(clusters, "clusters")
    until = _checks.number(until, "until", 1.0, strict=True, error=TimeError)
    most = _checks.count(members, "members", 100)
    accuracy = _accuracy(accuracy, goal, most)
    counter = Counter(
        until, _checks.seed(seed), own_radius(radius), ensemble_options(options), _checks.flag(exact, "exact")
    )
    _checks.progress(progress)
    if between is not None:
        turned = narrowed(turned, *_bounds(between))
    feasible.check_count(model, turned, count, goal, until)
    law = _law(model, turned, count, until)
    turned = feasible.limited(turned, model, until, law)
    first = _first(model, turned, goal, until, count, law)
    problem = Problem(
        goal,
        accuracy,
        most - (0 if exact else CHECKED),
        math.log(turned.low),
        math.log(turned.high),
        math.log(first),
        law,
        lambda x: math.log(rounded(turned, math.exp(x))),
        turned.whole,
    )

    def measure(value: float, number: int, members: int) -> Any:
        changed, size = _changed(model, turned, value, count)
        return counter.counts(changed, size, members, number)

    with progress_bar("control", 1.0, progress) as report:
        root = find(problem, Record(problem, measure, report))
    return _setting(model, turned, counter, root, problem, count, first if law is not None else None)


def _accuracy(accuracy: Any, goal: float, members: int) -> float:
    """The standard error to end with: below the goal itself, and not below what so many members could tell if all were alike."""
    if accuracy is None:
        return ACCURACY * math.sqrt(max(goal, 1.0))
    accuracy = _checks.number(accuracy, "accuracy", 0.0, max(goal, 1.0), strict=True)
    if accuracy * ENOUGH * members < 1.0:
        raise InvalidInputError(
            f"accuracy={accuracy:g} is more than {members} members tell, even if all but one were alike; ask for at least "
            f"{1.0 / ENOUGH / members:.2g}, or give more (members=)"
        )
    return accuracy


def _bounds(between: Any) -> tuple[float, float]:
    if not isinstance(between, (tuple, list)) or len(between) != 2:
        raise InvalidInputError(f"between must be two numbers (low, high), not {between!r}")
    low = _checks.number(between[0], "between[0]", 0.0, strict=True)
    return low, _checks.number(between[1], "between[1]", low, strict=True)


def _changed(model: Attention, knob: Knob, value: float, tokens: int) -> tuple[Attention, int]:
    """The model and the number of tokens with the knob at `value`."""
    value = rounded(knob, value)
    return applied(knob, model, value), int(value) if knob.set is None else tokens


def _law(model: Attention, knob: Knob, tokens: int, until: float) -> Callable[[float], float] | None:
    """log of the expected count as a function of log(beta), for `tokens` tokens; None for other knobs and other forces."""
    if not turns_beta(knob) or not feasible.has_law(model):
        return None

    def law(x: float) -> float:
        reach = theory.cluster_reach(until, math.exp(x))
        return math.log(theory.strong_centers(reach, model.dim, tokens))

    return law


def _first(
    model: Attention, knob: Knob, goal: float, until: float, tokens: int, law: Callable[[float], float] | None
) -> float:
    """Where to begin: the root of the law, what the model has, or the middle of the bounds."""
    if law is not None:
        return rounded(knob, feasible.law_root(law, goal, knob.low, knob.high))
    if knob.set is None:
        return rounded(knob, tokens)
    own = own_value(knob, model)
    if knob.low <= own <= knob.high:
        return rounded(knob, own)
    return rounded(knob, math.sqrt(knob.low * knob.high))


def _setting(
    model: Attention, knob: Knob, counter: Counter, root: Root, problem: Problem, tokens: int, law: float | None
) -> Setting:
    """The answer, with members counted in both ways at the value found."""
    value, mean, error, interval = _found(knob, root, problem)
    missed = knob.whole and abs(mean - problem.goal) > problem.accuracy + 2.0 * error
    changed, size = _changed(model, knob, value, tokens)
    spent = sum(item.asked for item in root.tries)
    reduced = counter.reduced(changed, size)
    differences = counter.paired(changed, size, CHECKED, len(root.tries)) if reduced else np.zeros(0)
    differences = differences[np.isfinite(differences)]
    return Setting(
        knob.name,
        int(value) if knob.whole else value,
        interval,
        problem.goal,
        counter.until,
        size,
        mean,
        error,
        "nearest" if missed else "success",
        spent + (CHECKED if reduced else 0),
        root.tries,
        law,
        counter.said(changed, size),
        differences.size,
        int((differences != 0).sum()),
        float(differences.mean()) if differences.size else 0.0,
        changed,
    )


def _found(knob: Knob, root: Root, problem: Problem) -> tuple[float, float, float, tuple[float, float]]:
    """The value, the mean there with its error, and the interval of the value."""
    if knob.whole:
        best = nearest(root.tries, problem.goal)
        around = math.exp(root.x)
        return (
            best.value,
            best.mean,
            best.error,
            (
                float(min(best.value, math.floor(around))),
                float(max(best.value, math.ceil(around))),
            ),
        )
    error = root.error * abs(root.slope) * problem.goal
    if not math.isfinite(error):
        raise ConvergenceError("the tries do not say where the root is; give narrower bounds: between=(low, high)")
    value = rounded(knob, math.exp(root.x))
    width = QUANTILE * min(root.error, problem.high - problem.low)
    interval = (max(knob.low, math.exp(root.x - width)), min(knob.high, math.exp(root.x + width)))
    return value, problem.goal * math.exp(root.slope * (math.log(value) - root.x)), error, interval
