"""One experiment of Figure 3 of arXiv:2411.04990: n = 200, d = 2, beta = 64, to t = 200, 50 outputs (the paper runs 5000)."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import rivals
from benchmarks.timing import Contender, race
from metastable import sphere
from metastable.integrate import fused
from metastable.integrate.plan import Accuracy, Plan, Save
from metastable.kernels import select
from metastable.model import Attention

TOKENS, BETA, HORIZON, OUTPUTS = 200, 64.0, 200.0, 50
RTOL, ATOL = 1e-6, 1e-9
CHECKED = 20.0
"""Time at which errors are measured."""
EULER_STEP = 0.05
MANY, SOME, FEW = 64, 8, 4
"""Members for us, for batched rivals, and for those that take one at a time. Errors are the worst of SOME members where there are
as many; Euler, timed on one, is checked on all of them."""


def output_times() -> np.ndarray:
    """50 times, 0 to 200, logarithmic, among them 20; all multiples of Euler's step."""
    times = np.concatenate([[0.0], np.geomspace(EULER_STEP, HORIZON, OUTPUTS - 1)])
    times[np.argmin(np.abs(times - CHECKED))] = CHECKED
    return np.unique(np.rint(times / EULER_STEP)) * EULER_STEP


def angles_of(states: np.ndarray) -> np.ndarray:
    return np.arctan2(states[..., 1], states[..., 0])


def worst_error(angles: np.ndarray, expected: np.ndarray) -> float:
    """Largest distance on the circle."""
    return float(np.abs((angles - expected + np.pi) % (2 * np.pi) - np.pi).max())


def contenders(starts: np.ndarray, times: np.ndarray) -> list[Contender]:
    """Each returns angles (members, times, tokens) of the first members."""
    model = Attention(dim=2, beta=BETA)
    theta = angles_of(starts)

    def ours(interaction: Any) -> Any:
        def run() -> np.ndarray:
            backend = select.Backend("cpu", interaction, threads=1)
            plan = Plan((model,), "tsit5", Save(times[-1], times), Accuracy(RTOL, ATOL), backend)
            return angles_of(fused.solve_members(plan, starts).states)

        return run

    def each(solve: Any, count: int) -> Any:
        return lambda: np.array([solve(theta[i], times) for i in range(count)])

    def batch(make: Any) -> Any:
        solver: list[Any] = []

        def run() -> np.ndarray:
            if not solver:
                solver.append(make(BETA, times, RTOL, ATOL))
            return solver[0](theta[:SOME])

        return run

    def euler(start: np.ndarray, at: np.ndarray) -> np.ndarray:
        return rivals.euler(start, at, BETA, EULER_STEP)

    list_of = [
        Contender("metastable, direct", ours("direct"), MANY),
        Contender("metastable, series", ours("series"), MANY),
        Contender("NumPy Euler, step 0.05", each(euler, 1), 1, rounds=3),
    ]
    for method in ("RK45", "DOP853", "LSODA"):
        solve = rivals.scipy_solver(method, BETA, RTOL, ATOL)
        list_of.append(Contender(f"SciPy {method}", each(solve, FEW), FEW, rounds=4))
    list_of.append(Contender("diffrax Tsit5", batch(rivals.diffrax_solver), SOME, rounds=2))
    list_of.append(Contender("torchdiffeq dopri5", batch(rivals.torchdiffeq_solver), SOME, rounds=2))
    return list_of


def run(quick: bool = False) -> dict[str, Any]:
    """Milliseconds per experiment, ratios and errors."""
    times = output_times()
    starts = np.stack([sphere.uniform(TOKENS, dim=2, seed=seed) for seed in range(MANY)])
    exact = rivals.scipy_solver("DOP853", BETA, 1e-12, 1e-13)
    place = int(np.flatnonzero(times == CHECKED)[0])
    expected = np.array([exact(angles_of(starts[i]), times[: place + 1])[place] for i in range(SOME)])
    field = contenders(starts, times)
    if quick:
        field = [item for item in field if "diffrax" not in item.name and "torch" not in item.name]
    finished = race(field, rounds=2 if quick else 6)
    rows = []
    for item in finished:
        result = item.result
        if "Euler" in item.name:
            result = np.array([rivals.euler(angles_of(x), times[: place + 1], BETA, EULER_STEP) for x in starts[:SOME]])
        shared = min(SOME, len(result))
        error = worst_error(result[:shared, place], expected[:shared])
        rows.append({"name": item.name, "milliseconds": 1e3 * item.best, "error": error})
    by_name = {row["name"]: row for row in rows}
    script = by_name["NumPy Euler, step 0.05"]["milliseconds"]
    scipy = min(row["milliseconds"] for row in rows if row["name"].startswith("SciPy"))
    for row in rows:
        row["times_faster_than_euler"] = script / row["milliseconds"]
        row["times_faster_than_best_scipy"] = scipy / row["milliseconds"]
    return {"workload": {"tokens": TOKENS, "beta": BETA, "horizon": HORIZON, "rtol": RTOL, "atol": ATOL}, "rows": rows}
