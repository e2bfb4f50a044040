"""Long horizons: Rodas5P, implicit, with the triangular Jacobian that causality gives (t = 1e30 and beyond).

Under a causal mask token k depends on tokens 1..k only. The Jacobian is block lower triangular, its diagonal blocks show all
eigenvalues, linear systems are solved by substitution, and no rounding error of a fast token reaches a slow one: the whole
cascade of merges down to one cluster is a matter of some hundred steps. Three systems stand behind `solve`:

- the circle with Q = K = V = I, in angles (`circle_system`);
- any dimension, heads, Q, K, V, in gnomonic charts (`sphere_system`);
- a dense leading block for full attention and prefix masks (`dense`), honest to `DENSE_HORIZON` only; unnormalised weights are one
  such block at another pace (`unnormalized`). Beyond, tokens under full attention (or of a prefix) that have met are one point with a
  mass (`clusters`, `full_attention`).

The tolerance is `atol + rtol`, absolute in angle, the worst token of every step (`control`). Range: differences of
logits must stay above -700, i.e. beta below 350 when Q = K = I; beyond, forces between antipodes underflow to zero.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import NumericalRangeError
from metastable.integrate.plan import DEFAULT, Accuracy, Save
from metastable.integrate.rodas import prepare as systems
from metastable.integrate.rodas.prepare import (
    dense_horizon,
    dense_system,
    dense_tokens,
    on_circle,
    one_sided,
    renewal,
    rotation,
    sphere_system,
    value_sum,
)
from metastable.integrate.solution import Resume, Solution, Statistics
from metastable.model import Attention, Rule, Support, require, why_not

if TYPE_CHECKING:
    from metastable.integrate.rodas.control import Goal

SETTLED = 1e-12
"""`settled`: how far (radians) any token may still have to go."""
POINTS_FROM = 1e13
"""Horizon beyond which tokens that have met are one point wherever that is possible: steps of a dense block that are 1 / epsilon times
longer than its fast times leave nothing of 1 / (gamma h) - J, and none may be short enough (two tokens at t = 1e16)."""
DENSE_SIZE = 6000
"""Largest dense block, tokens times (dim - 1)."""
POINTS_SIZE = 2000
"""Tokens times (dim - 1) up to which those behind a prefix are points of their own: one matrix holds what moves them all."""
LOGIT_SPREAD = 700.0
"""Largest difference of logits whose exponential double precision holds with relative accuracy."""


# ------------------------------------------------------------------------------------------------------ questions


def _size_rule(model: Attention, tokens: int | None) -> str | None:
    """A dense leading block is factored as a whole."""
    size = 0 if tokens is None else dense_tokens(model, tokens) * (model.dim - 1)
    if size <= DENSE_SIZE:
        return None
    cause = "unnormalized weights" if model.weighting.kind == "unnormalized" else "this mask"
    return f"factors a dense matrix of order {size} for {cause}, more than {DENSE_SIZE}"


def _pace_rule(model: Attention, tokens: int | None) -> str | None:
    """Every head has a sum of weights of its own, so only a single one is softmax at another pace."""
    if model.weighting.kind == "softmax" or (len(model.all_heads) == 1 and model.bias is None):
        return None
    return "has unnormalized weights for a single head without a bias only"


SUPPORT = Support(
    "method='rodas'",
    norms=frozenset({"post_ln"}),
    masks=frozenset({"causal", "full", "window", "sink", "prefix", "matrix"}),
    weights=frozenset({"softmax", "unnormalized"}),
    biases=frozenset({"alibi"}),
    parts=frozenset({"heads", "bilinear", "value", "frozen", "blind"}),
    use="use method='tsit5'",
    rules=(Rule("pace", _pace_rule), Rule("size", _size_rule, "use softmax under a causal mask, or method='tsit5'")),
)


def _behind_rule(model: Attention, tokens: int | None) -> str | None:
    """Tokens behind a prefix are never joined."""
    if tokens is None or dense_tokens(model, tokens) == tokens or tokens * (model.dim - 1) <= POINTS_SIZE:
        return None
    return f"moves the tokens behind a prefix one by one, {POINTS_SIZE} coordinates in all (there are {tokens * (model.dim - 1)})"


RESTING = Support(
    "full attention beyond that",
    norms=frozenset({"post_ln"}),
    masks=frozenset({"full", "prefix"}),
    weights=frozenset({"softmax"}),
    parts=frozenset({"bilinear", "blind"}),
    rules=(Rule("behind", _behind_rule),),
)
"""Models whose tokens become points with masses once they have met, and rest when one is left (with those behind a prefix at its
place): V = I."""


def _contraction_rule(model: Attention, tokens: int | None) -> str | None:
    """Tokens that have met fall back to one another at the rate of the leading eigenvalue."""
    values = np.linalg.eigvals(value_sum(model))
    top = values[np.argmax(values.real)]
    if rotation(model) is not None:
        return f"has no end of its motion: the leading eigenvalue of V is complex ({top:.3g}), so that tokens turn for ever"
    if top.real > 0:
        return None
    return f"joins tokens that fall back to one another, but the leading eigenvalue of V is {top.real:.3g}"


def _jordan_rule(model: Attention, tokens: int | None) -> str | None:
    """Points are solved together, which carries them over rests that attract from one side only."""
    if one_sided(model) == 0.0:
        return None
    return "cannot tell on which side of a rest tokens are that attracts from one side only, as those of the Jordan blocks of V do"


JOINED = replace(
    RESTING,
    parts=RESTING.parts | {"heads", "value"},
    rules=(Rule("contraction", _contraction_rule), Rule("jordan", _jordan_rule), Rule("behind", _behind_rule)),
)
"""Models whose tokens become points with masses: under full attention, and in a prefix, those at one place stay together, whatever V
is."""


def refusal(model: Attention, tokens: int | None = None) -> str | None:
    """Why Rodas cannot do this model (with the fix), or None."""
    return why_not(model, SUPPORT, tokens)


def check_range(model: Attention) -> None:
    """Raise `NumericalRangeError` when logits differ by more than double precision can exponentiate."""
    for head in model.all_heads:
        strength = head.bilinear_size
        if 2.0 * head.beta * strength > LOGIT_SPREAD:
            limit = LOGIT_SPREAD / (2.0 * strength)
            form = "" if head.bilinear is None else f" (Q^T K has norm {strength:.4g})"
            raise NumericalRangeError(
                f"beta = {head.beta:g} is beyond the underflow limit of method='rodas', beta <= {limit:.4g}{form}: "
                f"the force between antipodes, exp(-2 beta), leaves double precision; lower beta, or use method='tsit5' "
                "for short horizons"
            )


def horizon_refusal(model: Attention, tokens: int, until: float, settled: bool) -> str | None:
    """Why Rodas cannot take this model to `until` (or until all tokens have settled), or None."""
    reason = refusal(model, tokens)
    if reason is not None:
        return reason
    try:
        check_range(model)
    except NumericalRangeError as error:
        return str(error)
    if not settled and dense_tokens(model, tokens) and until > dense_horizon(model):
        obstacle = why_not(model, JOINED, tokens)
        if obstacle is not None:
            return (
                "a mask with a dense block (and unnormalized weights) has no implicit method beyond "
                f"t = {dense_horizon(model):.4g}: {obstacle}"
            )
    return None


def chart_jacobian(model: Attention, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Tangent bases E (tokens, dim, dim - 1) and the Jacobian (tokens, dim - 1, tokens, dim - 1) of the velocity in them.

    It is what the steps at x linearise with; a token moves by E_k y to first order.
    """
    require(model, SUPPORT, len(x))
    dense = dense_system(model, sphere_system(model, x, len(x)))
    dense.begin(1.0)
    return dense.frames, dense.jacobian()


# ---------------------------------------------------------------------------------------------------------- solve


def begun(t: float, state: FloatArray, step: float, statistics: Statistics) -> Resume:
    """What another method leaves to this one: the time, the packed state, the next step, and the work done."""
    return Resume("rodas", t, state, statistics, {"t": t, "h": step, "h_old": step})


def solve(
    model: Attention,
    start: FloatArray,
    save: Save,
    accuracy: Accuracy = DEFAULT,
    *,
    progress: Report | None = None,
    resume: Resume | None = None,
) -> Solution:
    """Integrate the tokens `start` (tokens, dim) as far as `save` says, from time 0, or on from where they were left (`resume`; for
    tokens that another method moved `begun`). `accuracy.max_steps` counts accepted and rejected steps.

    `save.settled`: stop as soon as all tokens have stopped for good. That means that every token either feels exactly no force, or is
    stable (all eigenvalues of its diagonal block of the Jacobian have negative real part) and within `SETTLED` radians of
    the rest that a Newton step predicts. Where rounding errors are larger than what would tell, the status is "unresolved".
    `notes["settled"]` then holds the time, and later output times hold the state at rest.
    """
    require(model, SUPPORT, len(start))
    check_range(model)
    goal, prepare = _goal(save, accuracy), systems.prepare
    if dense_tokens(model, len(start)):
        latest = dense_horizon(model)
        obstacle = why_not(model, RESTING if save.settled else JOINED, len(start))
        if obstacle is None and (save.settled or goal.until > POINTS_FROM):
            from metastable.integrate.rodas.full_attention import prepare
        elif not save.settled and goal.until > latest:
            raise NumericalRangeError(
                f"until = {goal.until:g} is beyond what a mask with a dense block (or unnormalized weights) allows, "
                f"t = {latest:.4g}: rounding errors would decide where clusters go ({obstacle}); "
                f"use until <= {latest:.4g}, or softmax under a causal mask"
            )
        else:
            goal = goal._replace(until=min(goal.until, latest))
    from metastable.integrate.rodas.output import Integration

    output, begin = np.empty(0) if save.times is None else save.times, 0.0 if resume is None else float(resume.t)
    integration = Integration(prepare(model, start), start, output, begin, goal)
    if resume is not None:
        integration.take_up(resume)
    return integration.solution(model, integration.run(progress))


def _goal(save: Save, accuracy: Accuracy) -> Goal:
    """What a march is asked for."""
    from metastable.integrate.rodas.control import Goal

    settle = SETTLED if save.settled else 0.0
    return Goal(float(save.until), float(accuracy.tolerance), settle, int(accuracy.max_steps), save.times is None)


def member_solver(model: Attention, save: Save, accuracy: Accuracy) -> Callable[[FloatArray], Solution]:
    """`solve` for one start after the other, on any thread; `save` has times.

    On the circle a member takes a few milliseconds, and Python, which one thread at a time can run, must not take long to set it up:
    what a thread prepared for one member serves its next ones.
    """
    from metastable.integrate.rodas.output import Integration

    own, goal, times = threading.local(), _goal(save, accuracy), save.times
    assert times is not None

    def solve_one(start: FloatArray) -> Solution:
        if not on_circle(model, len(start)):
            return solve(model, start, save, accuracy)
        if getattr(own, "tokens", None) != len(start):
            require(model, SUPPORT, len(start))
            check_range(model)
            own.prepared, own.tokens = systems.prepare(model, start), len(start)
            own.renew = renewal(own.prepared.system)
        else:
            own.renew(start)
        integration = Integration(own.prepared, start, times, 0.0, goal)
        return integration.solution(model, integration.run(None))

    return solve_one
