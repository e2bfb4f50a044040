"""Full attention by series on the GPU: `python -m benchmarks.gpu.totals`.

Times one right-hand side on the circle (beta = 64, float64 and float32) under full attention, with a prefix and under a causal mask in
the same run, and compares the first with the series and (at n = 10^4) with the direct sums of the CPU engine.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from benchmarks.gpu import common

GOAL = 6e-3
"""Seconds for ten million tokens."""


def timings() -> dict[str, Any]:
    """Seconds of one right-hand side, by mask, number of tokens and precision."""
    from numba import cuda

    from metastable.kernels.cuda import engine
    from metastable.model import Attention, Causal, Full, Prefix

    result: dict[str, Any] = {}
    for tokens in (10**5, 10**6, 10**7):
        y = cuda.to_device(common.unit_tokens(tokens, 2))
        out = cuda.device_array_like(y)
        for dtype in ("float64", "float32"):
            for mask in (Full(), Prefix(tokens // 2), Causal()):
                sums = engine.SeriesSums(Attention(dim=2, beta=common.BETA, mask=mask), tokens, 0, dtype)
                found = common.seconds(lambda sums=sums, y=y, out=out: sums.evaluate(0.0, y, out), 9, 3)
                name = f"n={tokens} {dtype} {type(mask).__name__.lower()}"
                result[name] = found
                print(name, found, flush=True)
    return result


def errors() -> dict[str, float]:
    """Largest difference of a velocity from the CPU engine over the largest velocity."""
    from metastable.kernels import cpu, cuda
    from metastable.model import NGPT, Attention, Frozen, Full, PeriLN, Prefix

    anchors = Frozen(common.unit_tokens(5, 2, seed=1), np.arange(5.0))
    result = {}
    for name, model, tokens, interaction in (
        ("full, direct", Attention(dim=2, beta=common.BETA, mask=Full()), 10**4, "direct"),
        ("full, series", Attention(dim=2, beta=common.BETA, mask=Full()), 10**6, "series"),
        ("prefix", Attention(dim=2, beta=common.BETA, mask=Prefix(12_345)), 10**5, "series"),
        ("ngpt, frozen", Attention(dim=2, beta=9.0, mask=Full(), norm=NGPT(0.5), frozen=anchors), 10**4, "direct"),
        ("usa", Attention(dim=2, beta=5.0, mask=Full(), weights="unnormalized", frozen=anchors), 10**4, "direct"),
    ):
        y = common.unit_tokens(tokens, 2)
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
