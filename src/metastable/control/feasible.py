"""Goals that cannot be reached, refused before any work with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable

from metastable import sphere, theory
from metastable.control.counting import speed
from metastable.control.knobs import Knob, narrowed, turns_beta
from metastable.errors import GoalError
from metastable.integrate.rodas import LOGIT_SPREAD
from metastable.model import Attention, Causal, Full

LAW_DOUBT = 1.5
"""Factor within which the law of the number of clusters is trusted when a goal is refused."""


def has_law(model: Attention) -> bool:
    """True for the models that the law N(t) is about: Q = K = I, V = I, softmax, and nothing else that moves or weighs tokens."""
    plain = model.is_identity and model.norm.kind == "post_ln" and model.weights == "softmax"
    alone = model.frozen is None and model.bias is None and model.masses is None and model.feedforward is None
    return plain and alone and model.noise == 0 and isinstance(model.mask, (Causal, Full))


def check_count(model: Attention, knob: Knob, tokens: int, goal: float, until: float) -> None:
    """Refuse a number of clusters that no value of the knob gives."""
    if not goal > 1.0:
        raise GoalError(
            f"clusters={goal:g}: a mean of one cluster or less has no single value of {knob.name}: one cluster is what is left for "
            f"every beta below about ln(until)/2 = {0.5 * math.log(until):.3g}; ask for more than 1, for example 1.5"
        )
    if knob.set is not None and goal > tokens:
        raise GoalError(f"clusters={goal:g}: {tokens} tokens make at most {tokens} clusters; give more tokens")
    if knob.set is not None and goal > 0.95 * tokens:
        raise GoalError(
            f"clusters={goal:g} of {tokens} tokens: nearly every token would have to be a cluster, from the start on; give more tokens"
        )
    # Only of the number of tokens is it known that it changes nothing of who reaches whom.
    if knob.set is not None or not has_law(model):
        return
    assert model.beta is not None
    most = most_clusters(until, model.beta, model.dim)
    if goal > most:
        raise GoalError(
            f"clusters={goal:g}: at beta={model.beta:g} two clusters nearer than {reach(until, model.beta):.3g} rad have met by t = "
            f"{until:g}, "
            f"so the sphere of R^{model.dim} holds at most {most:.4g} of them, however many tokens there are; raise beta "
            "(metastable.control.temperature says to which), or ask for an earlier time"
        )


def reach(until: float, beta: float) -> float:
    """Radians within which two single tokens have met by the time `until` (`theory.cluster_reach`)."""
    return float(theory.cluster_reach(until, beta))


def most_clusters(until: float, beta: float, dim: int) -> float:
    """How many points fit on the sphere that are pairwise further apart than the reach: balls of half of it are disjoint."""
    return 1.0 / float(sphere.cap_measure(0.5 * reach(until, beta), dim))


def limited(knob: Knob, model: Attention, until: float, law: Callable[[float], float] | None) -> Knob:
    """The knob with the bounds that numbers and the law set: beta no further than implicit steps go, where they are needed."""
    if not turns_beta(knob):
        return knob
    if until * speed(model) > 2e3 and model.noise == 0:
        knob = narrowed(knob, knob.low, 0.5 * LOGIT_SPREAD)
    if law is not None:
        # Below ln(t)/2 one cluster is left, and the law is flat.
        knob = narrowed(knob, 0.55 * math.log(until), knob.high)
    return knob


def law_root(law: Callable[[float], float], goal: float, low: float, high: float) -> float:
    """The value at which the law has `goal` clusters; `GoalError` where even `LAW_DOUBT` times as many, or as few, are out of
    bounds.
    """
    from scipy.optimize import brentq

    wanted = math.log(goal)
    ends = law(math.log(low)), law(math.log(high))
    if wanted > ends[1] + math.log(LAW_DOUBT):
        raise GoalError(
            f"clusters={goal:g} are more than the sphere holds: the law expects {math.exp(ends[1]):.4g} at beta = {high:.4g}, the "
            f"largest allowed; ask for fewer, for an earlier time, or give more tokens"
        )
    if wanted < ends[0] - math.log(LAW_DOUBT):
        raise GoalError(
            f"clusters={goal:g} are fewer than the {math.exp(ends[0]):.4g} that the law expects at beta = {low:.4g}, the smallest "
            f"allowed"
        )
    if wanted >= ends[1] or wanted <= ends[0]:
        return high if wanted >= ends[1] else low
    found: float = brentq(lambda x: law(x) - wanted, math.log(low), math.log(high))  # pyright: ignore[reportAssignmentType]
    return math.exp(float(found))
