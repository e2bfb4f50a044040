"""Centers, clusters and observables: CPU seconds and peak memory against SciPy's and scikit-learn's nearest way.

    python benchmarks/bench_analysis.py            # n = 10^6 and 10^5, about a minute
    python benchmarks/bench_analysis.py --quick    # a tenth of the tokens

Each case runs in its own process, compiled code warmed up on a small input first; memory is the growth of the peak resident set
over the input. Every rival must give the same answer, or the benchmark fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from metastable import analysis, sphere

CENTER_DELTA = 0.01
CLUSTER_RADIUS = 0.008
REPEATS = 3
"""The best of so many runs is reported."""


def our_centers(x: np.ndarray) -> np.ndarray:
    """metastable: k-d tree out of which every center takes its ball."""
    return analysis.renyi_centers(x, CENTER_DELTA)


def our_strong_centers(x: np.ndarray) -> np.ndarray:
    """metastable: the same, every token takes its ball."""
    return analysis.renyi_centers(x, CENTER_DELTA, strong=True)


def scipy_centers(x: np.ndarray) -> np.ndarray:
    """SciPy: KDTree.query_ball_point around each accepted center, marking what it covers."""
    from scipy.spatial import KDTree

    tree = KDTree(x)
    covered = np.zeros(len(x), bool)
    found = []
    for s in range(len(x)):
        if not covered[s]:
            found.append(s)
            covered[tree.query_ball_point(x[s], 2 * np.sin(CENTER_DELTA / 2))] = True
    return np.array(found)


def our_clusters(x: np.ndarray) -> np.ndarray:
    """metastable: breadth-first search out of a k-d tree."""
    return analysis.cluster_labels(x, CLUSTER_RADIUS)


def scipy_clusters(x: np.ndarray) -> np.ndarray:
    """SciPy: all pairs within the radius, then connected components."""
    from scipy.sparse import coo_matrix, csgraph
    from scipy.spatial import KDTree

    pairs = KDTree(x).query_pairs(2 * np.sin(CLUSTER_RADIUS / 2), output_type="ndarray")
    graph = coo_matrix((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), shape=(len(x), len(x)))
    return csgraph.connected_components(graph, directed=False)[1]


def sklearn_clusters(x: np.ndarray) -> np.ndarray:
    """scikit-learn: DBSCAN with one token per core."""
    from sklearn.cluster import DBSCAN

    return DBSCAN(eps=2 * np.sin(CLUSTER_RADIUS / 2), min_samples=1).fit_predict(x)


def uniform(tokens: int, dim: int) -> np.ndarray:
    return sphere.uniform(tokens, dim, seed=0)


def clumped(tokens: int, dim: int) -> np.ndarray:
    """Half of the tokens in fifty tight clusters, as late in a run."""
    x = sphere.uniform(tokens, dim, seed=0)
    generator = np.random.default_rng(1)
    half = tokens // 2
    x[:half] = sphere.normalize(x[generator.integers(0, 50, half)] + 1e-4 * generator.standard_normal((half, dim)))
    return x


CASES: list[tuple[str, Callable[[int, int], np.ndarray], int, int, list[Callable[[np.ndarray], np.ndarray]]]] = [
    ("centers, uniform", uniform, 10**6, 2, [our_centers, scipy_centers]),
    ("strong centers, uniform", uniform, 10**6, 2, [our_strong_centers]),
    ("centers, uniform", uniform, 10**5, 8, [our_centers]),
    ("clusters, uniform", uniform, 10**5, 3, [our_clusters, scipy_clusters, sklearn_clusters]),
    ("clusters, clumped", clumped, 2 * 10**4, 3, [our_clusters, scipy_clusters, sklearn_clusters]),
]


def _partition(answer: np.ndarray) -> np.ndarray:
    """Labels renumbered by first token, so that answers compare."""
    _, first, inverse = np.unique(answer, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def _measure(way: Callable[[np.ndarray], np.ndarray], make: Any, tokens: int, dim: int, send: Any) -> None:
    way(make(300, dim))
    x = make(tokens, dim)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer, seconds = way(x), np.inf
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    for _ in range(REPEATS):
        begin = time.process_time()
        way(x)
        seconds = min(seconds, time.process_time() - begin)
    send.send((seconds, memory, _partition(answer) if answer.size == tokens else answer))


def measure(
    way: Callable[[np.ndarray], np.ndarray], make: Any, tokens: int, dim: int
) -> tuple[float, float, np.ndarray]:
    """CPU seconds, MiB beyond the input, and the answer, from a fresh process."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(way, make, tokens, dim, send))
    process.start()
    send.close()
    result = receive.recv()
    process.join()
    return result


def observables() -> None:
    """What an ensemble pays per member: 50 states of 200 tokens on the circle."""
    states = np.stack([sphere.uniform(200, 2, seed) for seed in range(50)])
    model = None
    for name, observable in (
        ("consumed", analysis.observe.consumed(delta=0.5)),
        ("consumed, strong", analysis.observe.consumed(delta=0.5, strong=True)),
        ("clusters", analysis.observe.clusters(radius=0.01)),
        ("mean_cosine", analysis.observe.mean_cosine()),
    ):
        options: Any = {"start": states[0], "model": model, "times": np.arange(50.0)}
        observable.measure(states, **options)
        best = np.inf
        for _ in range(20):
            begin = time.process_time()
            observable.measure(states, **options)
            best = min(best, time.process_time() - begin)
        print(f"{'observe.' + name:28s} 50 states x 200 tokens           {best * 1e3:9.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--quick", action="store_true", help="a tenth of the tokens")
    quick = parser.parse_args().quick
    for name, make, tokens, dim, ways in CASES:
        tokens = tokens // 10 if quick else tokens
        reference = None
        for way in ways:
            seconds, memory, answer = measure(way, make, tokens, dim)
            reference = answer if reference is None else reference
            if not np.array_equal(answer, reference):
                raise SystemExit(f"{way.__name__} disagrees with {ways[0].__name__} on {name}")
            print(
                f"{name:28s} n = {tokens:<8d} d = {dim}  {way.__name__:20s} {seconds:9.3f} s {memory:9.0f} MiB",
                flush=True,
            )
    observables()


if __name__ == "__main__":
    main()
