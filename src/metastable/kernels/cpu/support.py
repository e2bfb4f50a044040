"""What the CPU engine can do, and when its series beat its direct sums. No Numba here: asking costs nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from metastable.kernels.expansion import EPSILON, expected_modes, frozen_share, too_much, whole
from metastable.model import Attention, Full, Head, Rule, Support, why_not
from metastable.model.refusals import PROBE

LOG_MAX = 700.0
"""Unnormalised weights beyond exp of this are left to the reference engine, which says what overflowed."""

CIRCLE_CROSSOVER = 1.6
"""On the circle a series wins from this many tokens per mode (measured; see docs/performance.md)."""

SPHERE_CROSSOVER = 1.5
"""On the sphere a series wins from this many tokens per harmonic."""

LARGEST_SERIES = {2: 50_000.0, 3: 1200.0}
"""Dimension -> modes (degrees) that "auto" goes up to: safely below what `fourier` and `harmonics` refuse."""


def _unnormalized_rule(model: Attention, tokens: int | None) -> str | None:
    """Weights that are not divided by their sum must stay within double precision."""
    if model.weighting.kind != "unnormalized":
        return None
    if model.bias is not None and not getattr(model.mask, "include_self", True):
        return "keeps unnormalized weights that a bias makes small only for tokens that see themselves"
    size, what = max(logit_scale(head) for head in model.all_heads), "beta |Q^T K|"
    if model.masses is not None:
        size, what = size + float(np.abs(np.log(model.masses)).max()), f"{what} and the logarithm of a mass together"
    if size <= LOG_MAX:
        return None
    return f"keeps unnormalized weights below exp({LOG_MAX:.0f}), but {what} is {size:.4g}"


def logit_scale(head: Head) -> float:
    """|beta| |Q^T K|, the largest logit of a head."""
    return abs(head.beta) * head.bilinear_size


DIRECT = Support(
    "engine='cpu'",
    norms=frozenset({"post_ln", "ngpt", "sqrt_scaling"}),
    masks=frozenset({"causal", "full", "window", "sink", "prefix"}),
    weights=frozenset({"softmax", "unnormalized"}),
    biases=frozenset({"alibi"}),
    parts=frozenset(
        {"heads", "repulsion", "bilinear", "value", "frozen", "masses", "noise", "depth", "blind", "lonely"}
    ),
    use="use engine='reference'",
    rules=(Rule("range", _unnormalized_rule, "use engine='reference' or lower beta"),),
)
"""Direct sums."""


def _divisor_rule(model: Attention, tokens: int | None) -> str | None:
    """A mass counts in the divisor of unnormalised weights by exp(bias), another number for each pair."""
    if model.weighting.kind == "unnormalized" and model.bias is not None:
        return "has no biases beside unnormalized weights"
    return None


DERIVATIVE = replace(
    DIRECT,
    who="the derivative of engine='cpu'",
    parts=DIRECT.parts - {"noise"},
    rules=(*DIRECT.rules, Rule("divisor", _divisor_rule, "use engine='reference'")),
)
"""Pullbacks (`pullback`) of direct sums."""


def refusal(model: Attention, tokens: int) -> str | None:
    """Why the CPU engine cannot do the model, with the engine that can; None if it can."""
    return why_not(model, DIRECT, tokens)


def misalignment(bilinear: np.ndarray) -> float:
    """Largest `|M^T x| - x^T M x` over unit x of the plane: how far a token's own logit lies below its largest possible one."""
    angle = np.linspace(0.0, math.pi, 2049)
    x = np.stack([np.cos(angle), np.sin(angle)])
    query = bilinear.T @ x
    return float((np.sqrt((query * query).sum(axis=0)) - (query * x).sum(axis=0)).max())


def prefix_loss(model: Attention, tokens: int) -> float:
    """Prefix sums: how much smaller than the terms of the series the weights of a token can be. That is what its own logit lies below
    the largest possible one, times what frozen tokens outweigh the others."""
    head, loss = model.all_heads[0], frozen_share(model, tokens)
    if head.bilinear is None or model.dim != 2:
        return loss
    return loss * math.exp(min(LOG_MAX, head.beta * misalignment(head.bilinear)))


def _accuracy_rule(model: Attention, tokens: int | None) -> str | None:
    """Prefix sums lose that much, for each token."""
    loss = prefix_loss(model, tokens or PROBE)
    return too_much(loss, (tokens or 1) * EPSILON * loss)


SERIES_MASKS = frozenset({"causal", "full", "prefix"})
"""Full attention never comes to the lists of prefix sums; it stands there for the sentence that says which masks there are."""

CIRCLE_SERIES = Support(
    "interaction='series'",
    norms=DIRECT.norms,
    masks=SERIES_MASKS,
    weights=frozenset({"softmax"}),
    parts=frozenset({"bilinear", "value", "frozen", "noise", "depth"}),
    dims=frozenset({2, 3}),
    use="use interaction='direct'",
    rules=(Rule("accuracy", _accuracy_rule),),
)
"""Fourier series on the circle, by prefix sums."""

SPHERE_SERIES = replace(
    CIRCLE_SERIES,
    who="interaction='series' in dimension 3",
    norms=frozenset({"post_ln", "sqrt_scaling"}),
    parts=frozenset({"frozen", "noise", "depth"}),
)
"""Spherical harmonics, by prefix sums."""


def total_error(model: Attention, tokens: int) -> tuple[float, float]:
    """Full attention: how much smaller than the terms of the series the weights of a token can be, and the relative error
    which that leaves.

    Errors are one rounding for each token (times its mass). The weights of a token add up to no less than its own, where
    it sees itself, and to no less than those of all tokens at the far end; unnormalised ones are not divided by their sum.
    """
    head = model.all_heads[0]
    if model.weighting.kind == "unnormalized":
        return 1.0, tokens * EPSILON
    if head.bilinear is None:
        below = 0.0 if head.beta >= 0 else 2.0
    else:
        below = misalignment(math.copysign(1.0, head.beta) * head.bilinear)
    masses = np.ones(tokens) if model.masses is None else np.asarray(model.masses) / np.mean(model.masses)
    alone, everybody = math.exp(min(LOG_MAX, abs(head.beta) * below)), math.exp(min(LOG_MAX, 2.0 * logit_scale(head)))
    alone *= frozen_share(model, tokens)
    if model.mask.sees_self(tokens):
        least = float(masses.min())  # 0 where masses differ by more than double precision holds
        alone = alone / least if least > 0.0 else math.inf
    else:
        alone, everybody = math.inf, everybody * tokens / max(EPSILON, float(tokens - masses.max()))
    return min(alone, everybody), EPSILON * min(tokens * alone, everybody)


def _total_accuracy_rule(model: Attention, tokens: int | None) -> str | None:
    """A total loses what the weights that a token sees lie below the largest possible ones."""
    return too_much(*total_error(model, tokens or PROBE))


def _plain_rule(model: Attention, tokens: int | None) -> str | None:
    """Where the weights of each token have coefficients of their own only plain sums are made."""
    if model.dim == 3 or (model.is_identity and model.norm.law(0.0).length_power == 0.0):
        return None
    if model.weighting.kind == "softmax" and model.mask.sees_self(tokens or PROBE):
        return None
    return (
        "has no unnormalized weights, and no mask under which a token does not see itself, for general Q, K, V or norms that "
        "divide by the length of the attention"
    )


CIRCLE_TOTAL = replace(
    CIRCLE_SERIES,
    masks=frozenset({"full"}),
    weights=frozenset({"softmax", "unnormalized"}),
    parts=CIRCLE_SERIES.parts | {"repulsion", "masses", "blind"},
    rules=(Rule("plain", _plain_rule), Rule("accuracy", _total_accuracy_rule)),
)
"""Fourier series on the circle, full attention: one total."""

SPHERE_TOTAL = replace(
    CIRCLE_TOTAL,
    who=SPHERE_SERIES.who,
    norms=SPHERE_SERIES.norms,
    parts=SPHERE_SERIES.parts | {"repulsion", "masses", "blind"},
)
"""Spherical harmonics, full attention."""

SERIES = {
    (2, False): CIRCLE_SERIES,
    (2, True): CIRCLE_TOTAL,
    (3, False): SPHERE_SERIES,
    (3, True): SPHERE_TOTAL,
}
"""(Dimension, full attention) -> what a series can do."""


def series_refusal(model: Attention, tokens: int) -> str | None:
    """Why the interaction cannot be summed as a series, with the fix; None if it can."""
    return why_not(model, SERIES[3 if model.dim == 3 else 2, isinstance(model.mask, Full)], tokens)


def series_wins(model: Attention, tokens: int) -> bool:
    """True when a series is possible and, by the cost model, faster than direct sums."""
    if series_refusal(model, tokens) is not None:
        return False
    head = model.all_heads[0]
    modes = expected_modes(head.beta)
    if modes > LARGEST_SERIES[model.dim]:
        return False
    # Pairs that direct sums make, in terms of those under a causal mask.
    share = whole(model, tokens) / tokens
    effective = tokens * (1.0 + share * share)
    if model.dim == 3:
        return effective > SPHERE_CROSSOVER * 0.5 * modes * modes
    if head.bilinear is None:
        return effective > CIRCLE_CROSSOVER * modes
    return effective > 2.0 * CIRCLE_CROSSOVER * expected_modes(logit_scale(head))
