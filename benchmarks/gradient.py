"""What a gradient costs, in forward runs: CPU seconds of one process, both sides in turn, the best of several rounds.

    python -m benchmarks.gradient                           # n = 1000, d = 2, 3, 8, causal, Q = K = V = I
    python -m benchmarks.gradient --tokens 200 --rounds 9

The forward run is `simulate(method="tsit5", engine="cpu", interaction="direct")` with one output time, whose accepted steps the
gradient walks back; the gradient is that of the order parameter in everything (start, beta, Q, K, V, masses). Also shown: a pullback in
evaluations of the velocity, and the states that are held. The bound is 6 forward runs. (A run that sums by series is not what is
differentiated; on the circle it is several times faster at these sizes, and the ratio against it is shown as well.)
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import metastable as ms
from metastable.environment import processor_name
from metastable.integrate import adjoint
from metastable.integrate.plan import Save, Wishes
from metastable.integrate.planning import make
from metastable.kernels import select

BOUND = 6.0
SIZES = {2: 64.0, 3: 9.0, 8: 9.0}
"""Dimension -> beta."""


def seconds(work: list[Callable[[], object]], rounds: int) -> list[float]:
    """The least CPU seconds of each, taken in turns."""
    for item in work:
        item()  # compile
    best = [np.inf] * len(work)
    for _ in range(rounds):
        for i, item in enumerate(work):
            begin = time.process_time()
            item()
            best[i] = min(best[i], time.process_time() - begin)
    return best


def measure(tokens: int, dim: int, until: float, rounds: int) -> dict[str, float]:
    """One row of the table."""
    model, start = ms.Attention(dim=dim, beta=SIZES[dim]), ms.sphere.uniform(tokens, dim=dim, seed=0)
    goal = ms.derivatives.order_parameter()
    options = {"times": [until], "method": "tsit5", "engine": "cpu", "threads": 1}
    forward, whole, fastest = seconds(
        [
            lambda: ms.simulate(model, start, interaction="direct", **options),
            lambda: ms.gradient(model, start, goal, until, engine="cpu", threads=1),
            lambda: ms.simulate(model, start, **options),
        ],
        rounds,
    )
    choice = select.Backend("cpu", "direct", 1)
    velocity, pull = select.right_hand_side(model, tokens, choice), select.pullback(model, tokens, choice)
    out, covector = np.empty_like(start), np.random.default_rng(0).standard_normal(start.shape)
    one, back = seconds(
        [lambda: velocity(0.0, start, out), lambda: pull(0.0, start, covector, out)],
        20 * rounds,
    )
    plan = make((model,), tokens, Save(until, np.array([until])), Wishes("tsit5", "cpu", "direct", threads=1))
    trail = adjoint.walk(plan, start).trail
    return {
        "dim": dim,
        "steps": trail.steps,
        "states_held": trail.states_held,
        "forward_ms": 1e3 * forward,
        "gradient_ms": 1e3 * whole,
        "ratio": whole / forward,
        "pullback_ratio": back / one,
        "ratio_to_auto": whole / fastest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--until", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    asked = parser.parse_args()
    rows = [measure(asked.tokens, dim, asked.until, asked.rounds) for dim in SIZES]
    print(f"{processor_name()}, one thread, n = {asked.tokens}, until {asked.until:g}")
    print("  d  steps  states held  forward ms  gradient ms  gradient/forward  pullback/velocity  gradient/auto")
    for row in rows:
        print(
            f"{row['dim']:>3}{row['steps']:>7}{row['states_held']:>13}{row['forward_ms']:>12.1f}{row['gradient_ms']:>13.1f}"
            f"{row['ratio']:>18.2f}{row['pullback_ratio']:>19.2f}{row['ratio_to_auto']:>15.2f}"
        )
    print(f"bound {BOUND:g} forward runs: {'held' if all(row['ratio'] <= BOUND for row in rows) else 'BROKEN'}")
    if asked.json is not None:
        asked.json.write_text(
            json.dumps({"tokens": asked.tokens, "processor": processor_name(), "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
