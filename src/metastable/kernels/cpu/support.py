"""What the CPU engine can do, and when its series beat its direct sums. No Numba here: asking costs nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from metastable.model import Attention, Head, Rule, Support, why_not

EPSILON = 2.0**-52
LOG_MAX = 700.0
"""Unnormalised weights beyond exp of this are left to the reference engine, which says what overflowed."""

SERIES_TOLERANCE = 1e-12
"""Error of the velocity that a series with a general Q^T K must be able to reach."""

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
    size, what = max(logit_scale(head) for head in model.all_heads), "beta |Q^T K|"
    if model.masses is not None:
        size, what = size + float(np.abs(np.log(model.masses)).max()), f"{what} and the logarithm of a mass together"
    if size <= LOG_MAX:
        return None
    return f"keeps unnormalized weights below exp({LOG_MAX:.0f}), but {what} is {size:.4g}"


def logit_scale(head: Head) -> float:
    """|beta| |Q^T K|, the largest logit of a head."""
    return abs(head.beta) * (1.0 if head.bilinear is None else float(np.linalg.norm(head.bilinear, 2)))


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

FUSED = replace(DIRECT, who="the compiled integration")
"""Whole integrations in compiled code: a list of its own, the same today."""


def refusal(model: Attention, tokens: int) -> str | None:
    """Why the CPU engine cannot do the model, with the engine that can; None if it can."""
    return why_not(model, DIRECT, tokens)


def misalignment(bilinear: np.ndarray) -> float:
    """Largest `|M^T x| - x^T M x` over unit x of the plane: how far a token's own logit lies below its largest possible one."""
    angle = np.linspace(0.0, math.pi, 2049)
    x = np.stack([np.cos(angle), np.sin(angle)])
    query = bilinear.T @ x
    return float((np.sqrt((query * query).sum(axis=0)) - (query * x).sum(axis=0)).max())


def _accuracy_rule(model: Attention, tokens: int | None) -> str | None:
    """A series with a general Q^T K loses what a token's own logit lies below the largest possible one."""
    head = model.all_heads[0]
    if head.bilinear is None or model.dim != 2:
        return None
    loss = math.exp(min(LOG_MAX, head.beta * misalignment(head.bilinear)))
    error = (tokens or 1) * EPSILON * loss
    if loss <= 4.0 or error <= SERIES_TOLERANCE:
        return None
    return (
        f"would lose accuracy: with this Q^T K the weights of a token can be {loss:.1e} times smaller than the terms of the "
        f"series, which leaves an error of {error:.1e}"
    )


CIRCLE_SERIES = Support(
    "interaction='series'",
    norms=DIRECT.norms,
    masks=frozenset({"causal"}),
    weights=frozenset({"softmax"}),
    parts=frozenset({"bilinear", "value", "frozen", "noise", "depth"}),
    dims=frozenset({2, 3}),
    use="use interaction='direct'",
    rules=(Rule("accuracy", _accuracy_rule),),
)
"""Fourier series on the circle."""

SPHERE_SERIES = replace(
    CIRCLE_SERIES,
    who="interaction='series' in dimension 3",
    norms=frozenset({"post_ln", "sqrt_scaling"}),
    parts=frozenset({"noise", "depth"}),
)
"""Spherical harmonics."""


def series_refusal(model: Attention, tokens: int) -> str | None:
    """Why the interaction cannot be summed as a series, with the fix; None if it can."""
    return why_not(model, SPHERE_SERIES if model.dim == 3 else CIRCLE_SERIES, tokens)


def expected_modes(beta: float) -> float:
    """Modes that a series needs on the circle (degrees, on the sphere) for the default tolerance, to about ten percent."""
    return 8.0 + 7.4 * math.sqrt(beta)


def series_wins(model: Attention, tokens: int) -> bool:
    """True when a series is possible and, by the cost model, faster than direct sums."""
    if series_refusal(model, tokens) is not None:
        return False
    head = model.all_heads[0]
    if expected_modes(head.beta) > LARGEST_SERIES[model.dim]:
        return False
    if model.dim == 3:
        degree = expected_modes(head.beta)
        return tokens > SPHERE_CROSSOVER * 0.5 * degree * degree
    if head.bilinear is None:
        return tokens > CIRCLE_CROSSOVER * expected_modes(head.beta)
    scale = float(np.linalg.norm(head.bilinear, 2))
    return tokens > 2.0 * CIRCLE_CROSSOVER * expected_modes(head.beta * scale)
