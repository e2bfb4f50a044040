"""Full attention to one cluster: `python -m benchmarks.full_collapse [--draws 10] [--tokens 100] [--beta 30]`.

Collapse times at two tolerances, steps and seconds; the last merge, of two masses, as an integral; and LSODA with the analytic
Jacobian: the merges that it saw, and its end.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
from scipy.integrate import LSODA, quad

import metastable as ms


def lsoda(angles: np.ndarray, beta: float, radius: float, until: float, rtol: float) -> tuple[list[float], float]:
    """Times at which the number of clusters fell, and the last time."""

    def parts(angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        apart = angle[None, :] - angle[:, None]
        weights = np.exp(beta * (np.cos(apart) - 1.0))
        return apart, weights / weights.sum(axis=1, keepdims=True)

    def velocity(t: float, angle: np.ndarray) -> np.ndarray:
        apart, p = parts(angle)
        return (p * np.sin(apart)).sum(axis=1)

    def jacobian(t: float, angle: np.ndarray) -> np.ndarray:
        apart, p = parts(angle)
        speed = (p * np.sin(apart)).sum(axis=1, keepdims=True)
        matrix = p * (np.cos(apart) - beta * np.sin(apart) ** 2 + beta * speed * np.sin(apart))
        np.fill_diagonal(matrix, 0.0)
        np.fill_diagonal(matrix, -matrix.sum(axis=1))
        return matrix

    def count(angle: np.ndarray) -> int:
        places = np.sort(np.mod(angle, 2 * np.pi))
        return max(1, int((np.diff(places, append=places[0] + 2 * np.pi) > radius).sum()))

    solver, merges = LSODA(velocity, 0.0, angles, until, rtol=rtol, atol=rtol, jac=jacobian), []
    left = count(solver.y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while solver.status == "running":
            solver.step()
            merges += [float(solver.t)] * max(0, left - count(solver.y))
            left = count(solver.y)
    return merges, float(solver.t)


def last_merge(run: Any, time: float, beta: float, radius: float) -> float:
    """When two clusters, as they are at `time`, come within `radius` of each other: two masses among themselves."""
    x = run.at(time)
    labels = ms.cluster_labels(x, radius=radius)
    if labels.max() != 1:
        return np.nan
    first, second = (ms.sphere.normalize(x[labels == label].mean(axis=0, keepdims=True))[0] for label in (0, 1))
    heavy, light = float((labels == 0).sum()), float((labels == 1).sum())

    def slowness(gap: float) -> float:
        pull = np.exp(beta * (np.cos(gap) - 1.0))
        shares = light * pull / (heavy + light * pull) + heavy * pull / (light + heavy * pull)
        return 1.0 / (shares * np.sin(gap))

    gap = float(np.arccos(np.clip(first @ second, -1.0, 1.0)))
    return time + quad(slowness, radius, gap, epsrel=1e-11, limit=2000)[0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.full_collapse", description=__doc__)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--beta", type=float, default=30.0)
    given = parser.parse_args()
    model = ms.Attention(dim=2, beta=given.beta, mask=ms.Full())
    radius = ms.analysis.cluster_radius(model)
    for draw in range(given.draws):
        x, times = ms.sphere.uniform(given.tokens, dim=2, seed=draw), []
        for rtol in (1e-6, 1e-8):
            begin = time.perf_counter()
            run: Any = ms.simulate(model, x, until="settled", rtol=rtol, atol=0.0, progress=False)
            seconds = time.perf_counter() - begin
            tree = ms.merge_tree(run)
            times.append(run.notes.get("settled", np.nan))
            last = ", ".join(f"{t:.6g}" for t in tree.time[-4:])
            steps = run.stats.accepted + run.stats.rejected
            print(
                f"draw {draw}, tolerance {rtol:g}: {run.status}, one cluster at {times[-1]:.6g}, {steps} steps, {seconds:.1f} s; {last}"
            )
        known = last_merge(run, 30.0 * tree.time[-2], given.beta, radius)
        print(f"    the last merge at {tree.time[-1]:.9g}, as an integral {known:.9g}")
        merges, end = lsoda(np.arctan2(x[:, 1], x[:, 0]), given.beta, radius, 1e30, 1e-9)
        print(
            f"    between tolerances {abs(times[0] / times[1] - 1):.1e}; LSODA to {end:.2g}: {merges[-4:]}", flush=True
        )


if __name__ == "__main__":
    main()
