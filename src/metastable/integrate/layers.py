"""Discrete depth: x <- N(x + step A(x)), a transformer's own layers, and what the field's Euler scripts do.

For the norms that keep a radius the residual stream is r theta and is not normalised (`PreLN`: y <- y + step A(theta);
`PeriLN`: y <- y + step A/|A|). Every rule is consistent with the continuous dynamics: order one in `step`.
Each layer may have a model of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import fixed
from metastable.integrate.solution import Solution
from metastable.kernels import reference
from metastable.kernels.directions import ROUNDING
from metastable.model import EVERY_PART, Attention, Rule, Support, require

LAYERS = 4.0
"""Rounding errors of a sum, over those of one layer: those of the layers before it add up."""
SAME_DEPTH = 1e-12
"""Relative difference of two depths that are one but for the rounding of multiples of a step."""


def _law_rule(model: Attention, tokens: int | None) -> str | None:
    """A layer either leaves the residual stream as it is (PreLN) or normalises it (PostLN); other laws of the radius are flows only."""
    fits = all((law.radius_power, law.radial) in ((0.0, 0.0), (1.0, 1.0)) for law in model.norm.laws)
    return None if fits else f"does not know what a layer of {model.norm!r} does with the radius"


SUPPORT = Support(
    "method='layers'",
    norms=None,
    masks=None,
    weights=None,
    biases=None,
    parts=EVERY_PART - {"noise"},
    use="use method='tsit5'",
    rules=(Rule("radius", _law_rule),),
)
"""Everything that the reference engine does, step by step."""


def _directions(before: FloatArray, change: FloatArray) -> tuple[FloatArray, FloatArray]:
    """`before` + `change` as unit rows, and their lengths (n, 1); a sum that is zero to rounding has no direction and is a zero row."""
    moved = before + change
    length = reference.lengths(moved)
    parts = reference.lengths(before) + reference.lengths(change)
    return np.where(length > LAYERS * ROUNDING * parts, moved / reference.positive(length), 0.0), length


def layer(model: Attention, y: FloatArray, t: float, step: float) -> FloatArray:
    """One layer on a packed state (tokens, width): the packed state after it."""
    dim = model.dim
    x = y[:, :dim]
    # 100 steps of 0.57 are less than 57 by rounding: a layer that begins at a breakpoint is behind it.
    law, A = model.norm.law(t * (1.0 + SAME_DEPTH)), reference.attention_sum(model, x)
    update = law.amplitude * A / reference.divisor(law, A, t)
    if law.radial == 0:
        new = y.copy()
        new[:, :dim] = _directions(x, step * update)[0]
        return new
    return np.concatenate(_directions(y[:, dim:] * x, step * update), axis=1)


def solve(
    models: Sequence[Attention],
    start: FloatArray,
    step: float,
    *,
    times: FloatArray | None = None,
    progress: Report | None = None,
    first: int = 0,
) -> Solution:
    """Apply one layer per entry of `models` (all of one dimension and norm) to the packed state `start` (tokens, width).

    Layer i takes depth i step to (i + 1) step, and `start` has passed the layers below `first`. `times` None saves after every layer;
    else the depths nearest to `times` (which the caller has checked to be multiples of the step) are saved.
    """
    for model in {id(model): model for model in models}.values():
        require(model, SUPPORT, len(start))
    dim = models[0].dim

    def advance(number: int, y: FloatArray) -> tuple[FloatArray, str]:
        new = layer(models[number], y, number * step, step)
        if not np.isfinite(new).all():
            return new, f"layer {number} left the range of double precision"
        lost = np.flatnonzero(~new[:, :dim].any(axis=1))
        return new, f"layer {number} carried token {lost[0]} to zero, which has no direction" if lost.size else ""

    return fixed.solve(fixed.Steps("layers", step, len(models), 1), advance, start, times, progress, first)
