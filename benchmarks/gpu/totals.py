"""Full attention by series on the GPU: `python -m benchmarks.gpu.totals`.

Times one right-hand side on the circle (beta = 64) and on the sphere (beta = 9 and 64), float64 and float32, under full attention, with
a prefix and under a causal mask in the same run; on the sphere also the direct sums, up to where they take a second, which says
where the series begins to win. Compares velocities with the series and (at n = 10^4) with the direct sums of the CPU engine.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from benchmarks.gpu import common

GOAL = 6e-3
"""Seconds for ten million tokens."""

DIRECT_UP_TO = 10**6
"""Tokens up to which direct sums are timed beside the series on the sphere (about 2 s there)."""


def measure(kind: str, dim: int, beta: float, tokens: int, mask: Any, dtype: str) -> dict[str, float]:
    """Seconds of one right-hand side, by series or by direct sums."""
    from numba import cuda

    from metastable.kernels.cuda import engine
    from metastable.model import Attention

    y = cuda.to_device(common.unit_tokens(tokens, dim))
    out = cuda.device_array_like(y)
    sums = (engine.SeriesSums if kind == "series" else engine.DirectSums)(
        Attention(dim=dim, beta=beta, mask=mask), tokens, 0, dtype
    )
    found = common.seconds(lambda: sums.evaluate(0.0, y, out), 9, 3)
    print(f"d={dim} beta={beta:g} n={tokens} {dtype} {type(mask).__name__.lower()} {kind}", found, flush=True)
    return found


def timings() -> dict[str, Any]:
    """Seconds of one right-hand side, by dimension, beta, number of tokens, precision, mask and interaction."""
    from metastable.model import Causal, Full, Prefix

    result: dict[str, Any] = {}
    for tokens in (10**5, 10**6, 10**7):
        for dtype in ("float64", "float32"):
            for mask in (Full(), Prefix(tokens // 2), Causal()):
                name = f"n={tokens} {dtype} {type(mask).__name__.lower()}"
                result[name] = measure("series", 2, common.BETA, tokens, mask, dtype)
    for beta in (9.0, common.BETA):
        for tokens in (3000, 10**4, 3 * 10**4, 10**5, 10**6, 10**7):
            for dtype in ("float64", "float32"):
                for mask in (Full(), Causal()):
                    for kind in ("series", "direct") if tokens <= DIRECT_UP_TO else ("series",):
                        name = f"sphere beta={beta:g} n={tokens} {dtype} {type(mask).__name__.lower()} {kind}"
                        result[name] = measure(kind, 3, beta, tokens, mask, dtype)
    return result


def errors() -> dict[str, float]:
    """Largest difference of a velocity from the CPU engine over the largest velocity."""
    from metastable.kernels import cpu, cuda
    from metastable.model import NGPT, Attention, Frozen, Full, PeriLN, Prefix

    anchors = Frozen(common.unit_tokens(5, 2, seed=1), np.arange(5.0))
    points = Frozen(common.unit_tokens(5, 3, seed=1), np.arange(5.0))
    result = {}
    for name, model, tokens, interaction in (
        ("full, direct", Attention(dim=2, beta=common.BETA, mask=Full()), 10**4, "direct"),
        ("full, series", Attention(dim=2, beta=common.BETA, mask=Full()), 10**6, "series"),
        ("prefix", Attention(dim=2, beta=common.BETA, mask=Prefix(12_345)), 10**5, "series"),
        ("ngpt, frozen", Attention(dim=2, beta=9.0, mask=Full(), norm=NGPT(0.5), frozen=anchors), 10**4, "direct"),
        ("usa", Attention(dim=2, beta=5.0, mask=Full(), weights="unnormalized", frozen=anchors), 10**4, "direct"),
        ("sphere, direct", Attention(dim=3, beta=9.0, mask=Full()), 10**4, "direct"),
        ("sphere, series", Attention(dim=3, beta=common.BETA, mask=Full()), 10**5, "series"),
        ("sphere, causal", Attention(dim=3, beta=common.BETA), 10**5, "series"),
        ("sphere, prefix", Attention(dim=3, beta=9.0, mask=Prefix(12_345)), 10**5, "series"),
        (
            "sphere, ngpt, frozen",
            Attention(dim=3, beta=9.0, mask=Full(), norm=NGPT(0.5), frozen=points),
            10**4,
            "direct",
        ),
    ):
        y = common.unit_tokens(tokens, model.dim)
        expected, found = np.zeros_like(y), np.zeros_like(y)
        cpu.right_hand_side(model, tokens, interaction=interaction)(0.0, y, expected)  # type: ignore[arg-type]
        cuda.right_hand_side(model, tokens, interaction="series")(0.0, y, found)
        result[name] = float(np.abs(found - expected).max() / np.abs(expected).max())
        print(name, result[name], flush=True)
    peri = Attention(dim=2, beta=9.0, norm=PeriLN())
    y = np.concatenate([common.unit_tokens(2000, 2), np.full((2000, 1), 1.5)], axis=1)
    series, direct = np.zeros_like(y), np.zeros_like(y)
    cuda.right_hand_side(peri, 2000, interaction="series")(0.0, y, series)
    cuda.right_hand_side(peri, 2000, interaction="direct")(0.0, y, direct)
    result["causal, peri"] = float(np.abs(series - direct).max())
    return result


def main() -> int:
    found = {"errors": errors(), "right_hand_sides": timings()}
    goal = found["right_hand_sides"]["n=10000000 float64 full"]["median"]
    print(json.dumps(found, indent=1))
    print(f"n = 10^7, full attention, float64: {1e3 * goal:.2f} ms (goal {1e3 * GOAL:g} ms)")
    return 0 if goal <= GOAL and max(found["errors"].values()) <= 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
