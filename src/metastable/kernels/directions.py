"""Has the attention sum a direction? Norms that divide by its length (`NGPT`, `PeriLN`) make a unit vector of it, and where it is zero
one of its rounding errors: where tokens go then is nobody's law, and another engine moves them elsewhere."""

from __future__ import annotations

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import NumericalRangeError
from metastable.kernels.reference import activate, apply, blocks, sides, weights_of_rows
from metastable.model import Attention

ROUNDING = 16.0 * np.finfo(float).eps
"""Length of a sum, over that of its parts, which may be that of their rounding errors. (Weights err by as much as their logits.)"""
MOST_PAIRS = 25_000_000
"""Pairs of tokens that are looked at; where there are more, some of the tokens."""


def require_directions(model: Attention, x: FloatArray, t: float = 0.0) -> None:
    """Refuse tokens (n, d), at depth t, whose norm divides by the length of a sum that is zero to rounding.

    (Who sees nobody at all has a sum without parts, and stands.)
    """
    if not model.norm.law(t).length_power:
        return
    total, parts, looked = np.zeros(x.shape), np.zeros(len(x)), np.zeros(len(x), dtype=bool)
    some = blocks(model.mask, len(x))
    some = some[:: max(1, len(x) ** 2 // MOST_PAIRS)]
    for number, head in enumerate(model.all_heads):
        side = sides(model, head, x)
        size = (1.0 + abs(head.beta) * head.bilinear_size) * head.value_size
        for rows in some:
            own = slice(rows.start, rows.stop)
            moving, fixed = weights_of_rows(model, number, side, rows)
            total[own] += apply(head.output, moving @ side.values[rows.columns] + fixed @ side.fixed_values)
            parts[own] += size * (moving.sum(axis=1) + fixed.sum(axis=1))
            looked[own] = True
    if model.feedforward is not None:
        layer = model.feedforward
        pushed = activate(layer.activation, x @ layer.w1.T + layer.b1) @ layer.w2.T + layer.b2
        total += pushed
        parts += np.linalg.norm(pushed, axis=1)
    length = np.linalg.norm(total, axis=1)
    lost = np.flatnonzero(looked & (length <= ROUNDING * parts) & (parts > 0.0))
    if lost.size:
        token = lost[0]
        raise NumericalRangeError(
            f"the attention sum A of token {token} is zero to rounding (|A| = {length[token]:.1g}), and norm={model.norm!r} divides "
            "by |A|: rounding errors would say where the token goes. Move the tokens out of their balance, for example by start = "
            "metastable.sphere.retract(start + 1e-6 * noise), or use a norm that does not divide by |A|, as PostLN() and PreLN()"
        )
