"""The right-hand side against the number of tokens: direct sums and series, on the circle and on the sphere, one thread."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.timing import Contender, race, repeat
from metastable import sphere
from metastable.kernels import cpu
from metastable.model import Attention

CASES: tuple[dict[str, Any], ...] = (
    {"dim": 2, "beta": 64.0, "interaction": "series", "tokens": (10**2, 10**3, 10**4, 10**5, 10**6)},
    {"dim": 2, "beta": 64.0, "interaction": "direct", "tokens": (10**2, 10**3, 10**4, 10**5)},
    {"dim": 3, "beta": 9.0, "interaction": "series", "tokens": (10**3, 10**4, 10**5)},
    {"dim": 3, "beta": 9.0, "interaction": "direct", "tokens": (10**3, 10**4, 10**5)},
)
FIT_FROM = 10**4
"""Exponents are fitted from here on."""


def contender(case: dict[str, Any], tokens: int) -> Contender:
    model = Attention(dim=case["dim"], beta=case["beta"])
    x = sphere.uniform(tokens, dim=case["dim"], seed=0)
    out = np.zeros_like(x)
    velocity = cpu.right_hand_side(model, tokens, interaction=case["interaction"], threads=1)
    work = tokens * tokens if case["interaction"] == "direct" else 200 * tokens
    times = max(1, int(2e7 / work))
    name = f"dim {case['dim']}, {case['interaction']}, n = {tokens}"
    return Contender(name, repeat(lambda: velocity(0.0, x, out), times), times, rounds=1 if work > 1e9 else 10**9)


def exponent(tokens: np.ndarray, seconds: np.ndarray) -> float:
    """Slope in a double logarithmic plot, from `FIT_FROM` tokens on."""
    chosen = tokens >= FIT_FROM
    return float(np.polyfit(np.log(tokens[chosen]), np.log(seconds[chosen]), 1)[0])


def run(quick: bool = False) -> dict[str, Any]:
    """Seconds per right-hand side, fitted exponents, ratios of direct to series (direct extrapolated by n^2 where missing)."""
    limit = 10**5 if quick else 10**6
    pairs = []
    for case in CASES:
        for tokens in case["tokens"]:
            if tokens <= limit and not (quick and case["interaction"] == "direct" and tokens > 10**4):
                pairs.append((case, tokens, contender(case, tokens)))
    race([item for _, _, item in pairs], rounds=2 if quick else 4)
    curves = []
    for case in CASES:
        mine = [(tokens, item.best) for other, tokens, item in pairs if other is case]
        tokens, seconds = (np.array(values, dtype=float) for values in zip(*mine))
        curve = {**case, "tokens": tokens.astype(int).tolist(), "seconds": seconds.tolist()}
        curve["exponent"] = exponent(tokens, seconds) if (tokens >= FIT_FROM).sum() > 1 else None
        curves.append(curve)
    return {"curves": curves, "ratios": [_ratio(curves, dim) for dim in (2, 3)]}


def _ratio(curves: list[dict[str, Any]], dim: int) -> dict[str, Any]:
    """Direct over series at the largest number of tokens of the series."""
    series, direct = (
        next(curve for curve in curves if curve["dim"] == dim and curve["interaction"] == kind)
        for kind in ("series", "direct")
    )
    tokens = series["tokens"][-1]
    scale = (tokens / direct["tokens"][-1]) ** 2
    return {
        "dim": dim,
        "tokens": tokens,
        "direct_over_series": scale * direct["seconds"][-1] / series["seconds"][-1],
        "direct_extrapolated_from": direct["tokens"][-1] if scale > 1 else None,
    }
