"""What the CPU engine can do, and when its series beat its direct sums. No Numba here: asking costs nothing."""

from __future__ import annotations

import math

import numpy as np

from metastable.model import NGPT, Attention, Causal

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


def refusal(model: Attention, tokens: int) -> str | None:
    """Why the CPU engine cannot do the model, with the engine that can; None if it can."""
    use = "use engine='reference'"
    if model.norm.has_radius:
        return f"engine='cpu' has no norm with a radius ({type(model.norm).__name__}); {use}"
    if model.weights == "hardmax":
        return f"engine='cpu' has no hardmax weights; {use}"
    if model.feedforward is not None:
        return f"engine='cpu' has no feed-forward layer; {use}"
    if model.mask.intervals(1) is None:
        return f"engine='cpu' has no arbitrary Mask(matrix), only masks made of ranges; {use}"
    if model.weights == "unnormalized":
        for head in model.all_heads:
            scale = 1.0 if head.bilinear is None else float(np.linalg.norm(head.bilinear, 2))
            if head.beta * scale > LOG_MAX:
                return (
                    f"engine='cpu' keeps unnormalized weights below exp({LOG_MAX:.0f}), but beta |Q^T K| is "
                    f"{head.beta * scale:.4g}; {use} or lower beta"
                )
    return None


def misalignment(bilinear: np.ndarray) -> float:
    """Largest `|M^T x| - x^T M x` over unit x of the plane: how far a token's own logit lies below its largest possible one."""
    angle = np.linspace(0.0, math.pi, 2049)
    x = np.stack([np.cos(angle), np.sin(angle)])
    query = bilinear.T @ x
    return float((np.sqrt((query * query).sum(axis=0)) - (query * x).sum(axis=0)).max())


def series_refusal(model: Attention, tokens: int) -> str | None:
    """Why the interaction cannot be summed as a series, with the fix; None if it can."""
    use = "use interaction='direct'"
    if model.dim not in (2, 3):
        return (
            f"interaction='series' exists on the circle and on the sphere (dim 2 and 3), not for dim={model.dim}; {use}"
        )
    heads = len(model.all_heads)
    if heads > 1:
        return f"interaction='series' handles one head, not {heads}; {use}"
    if not isinstance(model.mask, Causal):
        return f"interaction='series' sums over all earlier tokens, which is Causal(), not {model.mask!r}; {use}"
    if model.weights != "softmax":
        return f"interaction='series' handles softmax weights, not {model.weights!r}; {use}"
    if any(model.slopes):
        return f"interaction='series' has no positional bias; {use}"
    if model.dim == 3:
        return _sphere_refusal(model, use)
    head = model.all_heads[0]
    if head.bilinear is None:
        return None
    loss = math.exp(min(LOG_MAX, head.beta * misalignment(head.bilinear)))
    error = tokens * EPSILON * loss
    if loss > 4.0 and error > SERIES_TOLERANCE:
        return (
            f"interaction='series' would lose accuracy: with this Q^T K the weights of a token can be {loss:.1e} times smaller "
            f"than the terms of the series, which leaves an error of {error:.1e}; {use}"
        )
    return None


def _sphere_refusal(model: Attention, use: str) -> str | None:
    if not model.is_identity:
        return f"interaction='series' in dimension 3 needs Q = K = V = I; {use}"
    if model.frozen is not None:
        return f"interaction='series' in dimension 3 has no frozen tokens; {use}"
    if isinstance(model.norm, NGPT):
        return f"interaction='series' in dimension 3 has no NGPT norm; {use}"
    return None


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
