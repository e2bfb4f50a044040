"""Has the attention sum a direction? Norms that divide by its length (`NGPT`, `PeriLN`) make a unit vector of it, and where it is zero
one of its rounding errors: where tokens go then is nobody's law, and another engine moves them elsewhere."""

from __future__ import annotations

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import NumericalRangeError
from metastable.kernels.reference import HeadSums, feed_forward, head_sums, lengths
from metastable.model import Attention

ROUNDING = 16.0 * np.finfo(float).eps
"""Length of a sum, over that of its parts, which may be that of their rounding errors."""
MOST_PAIRS = 25_000_000
"""Pairs of tokens that are looked at; where there are more, some of the tokens."""


def require_directions(model: Attention, x: FloatArray, t: float = 0.0, first: int = 0) -> None:
    """Refuse tokens (n, d), at depth t, whose norm divides by the length of a sum that is zero to rounding; those from `first` on.

    Who sees nobody at all has a sum without parts, and stands; noise moves tokens out of every balance. Of more than `MOST_PAIRS` pairs
    some blocks of rows are looked at: whoever is balanced by design is not alone in that.
    """
    if not model.norm.law(t).length_power or model.noise > 0.0:
        return
    count = len(x) - first
    total, looked = feed_forward(model, x[first:]), np.zeros(count, dtype=bool)
    parts = lengths(total)[:, 0]
    for part in head_sums(model, x, first, every=max(1, count * len(x) // MOST_PAIRS)):
        own = slice(part.rows.start - first, part.rows.stop - first)
        total[own] += part.sums
        parts[own] += part.head.value_size * _weights_and_errors(model, part)
        looked[own] = True
    length = lengths(total)[:, 0]
    lost = np.flatnonzero(looked & (length <= ROUNDING * parts) & (parts > 0.0))
    if lost.size:
        token, smallest = first + lost[0], length[lost[0]]
        raise NumericalRangeError(
            f"the attention sum A of token {token} is zero to rounding (|A| = {smallest:.1g}), and norm={model.norm!r} divides by |A|: "
            "rounding errors would say where the token goes. Move the tokens out of their balance, for example by start = "
            "metastable.sphere.retract(start + 1e-6 * noise), or use a norm that does not divide by |A|, as PostLN() and PreLN()"
        )


def _weights_and_errors(model: Attention, part: HeadSums) -> FloatArray:
    """sum_j p_kj (1 + dp_kj/p_kj) of some rows, in units of the relative rounding error of a logit's terms.

    A logit of size b errs by b of these. So does an exponential, relative to itself, and in softmax that of p_j is (1 - p_j) b; who
    attends to the largest logits alone makes no such error.
    """
    logit, law = abs(part.head.beta) * part.head.bilinear_size, model.weighting.law
    weights = np.concatenate([part.moving, part.fixed], axis=1)
    if law is None or law.score == "largest":
        return weights.sum(axis=1)
    errors = weights * (1.0 - weights) if law.total == "weights" else weights
    return weights.sum(axis=1) + logit * np.abs(errors).sum(axis=1)
