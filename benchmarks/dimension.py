"""The right-hand side with general Q, K, V against dimension: ours, NumPy, torch and KeOps, float64, one thread."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import rivals
from benchmarks.timing import Contender, race
from metastable import sphere
from metastable.kernels import cpu
from metastable.model import Attention

TOKENS, BETA = 4000, 9.0
DIMENSIONS = (3, 8, 64)


def contenders(dim: int, tokens: int) -> list[Contender]:
    """Each returns the velocities of the same tokens."""
    generator = np.random.default_rng(dim)
    x = sphere.uniform(tokens, dim=dim, seed=0)
    q, k, v = (np.eye(dim) + 0.1 * generator.normal(size=(dim, dim)) for _ in range(3))
    velocity = cpu.right_hand_side(Attention(dim=dim, beta=BETA, query=q, key=k, value=v), tokens, threads=1)
    out = np.zeros_like(x)

    def ours() -> np.ndarray:
        velocity(0.0, x, out)
        return out.copy()

    def later(make: Any) -> Any:
        made: list[Any] = []

        def run() -> np.ndarray:
            if not made:
                made.append(make(x, q, k, v, BETA))
            return made[0]()

        return run

    return [
        Contender("metastable", ours),
        Contender("NumPy", lambda: rivals.numpy_attention(x, q, k, v, BETA)),
        Contender("torch SDPA", later(rivals.torch_attention)),
        Contender("KeOps", later(rivals.keops_attention)),
    ]


def run(quick: bool = False) -> dict[str, Any]:
    """Milliseconds per right-hand side, by dimension; all must agree to 1e-11."""
    tokens = 1000 if quick else TOKENS
    rows = []
    for dim in DIMENSIONS:
        finished = race(contenders(dim, tokens), rounds=3 if quick else 7)
        expected = next(item.result for item in finished if item.name == "NumPy")
        for item in finished:
            difference = float(np.abs(item.result - expected).max())
            if difference > 1e-11:
                raise AssertionError(f"{item.name} differs from NumPy by {difference:.1e} in dimension {dim}")
            rows.append({"dim": dim, "name": item.name, "milliseconds": 1e3 * item.best, "difference": difference})
    return {"workload": {"tokens": tokens, "beta": BETA}, "rows": rows}
