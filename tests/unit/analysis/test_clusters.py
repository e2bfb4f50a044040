"""Clusters against SciPy's connected components of the explicit graph."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.sparse import csgraph

from metastable import sphere
from metastable.analysis import (
    cluster_count,
    cluster_labels,
    cluster_leaders,
    cluster_means,
    cluster_sizes,
    cluster_spread,
)
from metastable.errors import InvalidInputError


def by_first_token(labels: np.ndarray) -> np.ndarray:
    """Renumber labels by first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def naive(away: np.ndarray, radius: float) -> np.ndarray:
    _, labels = csgraph.connected_components(away < radius, directed=False)
    return by_first_token(labels)


@pytest.mark.parametrize("dim", [2, 3, 6])
@pytest.mark.parametrize("tokens", [1, 2, 60, 1100])
def test_equal_to_components_of_the_explicit_graph(dim: int, tokens: int) -> None:
    generator = np.random.default_rng(dim * tokens)
    for trial in range(20 if tokens < 1000 else 4):
        x = sphere.uniform(tokens, dim, generator)
        if trial % 2:  # tight clusters of very different sizes
            middle = x[generator.integers(0, max(1, tokens // 10), tokens)]
            x = sphere.normalize(middle + 10.0 ** generator.uniform(-9, -1) * generator.standard_normal((tokens, dim)))
        away = sphere.pairwise_distance(x)
        for radius in (1e-12, 1e-4, 0.01, 0.1, 0.5, 1.5, math.pi, 4.0) if tokens < 1000 else (1e-4, 0.02, 0.3):
            np.testing.assert_array_equal(cluster_labels(x, radius), naive(away, radius))


def test_ties_are_not_links() -> None:
    """Links are strict: a ring with spacing exactly `radius` falls apart, a hair closer it holds together."""
    for corners in (4, 7, 12, 360, 1000):
        ring = sphere.from_angle(2 * math.pi * np.arange(corners) / corners)
        assert cluster_count(ring, 2 * math.pi / corners) == corners
        assert cluster_count(ring, 2 * math.pi / corners * (1 + 1e-9)) == 1
    assert cluster_labels(np.repeat(sphere.from_angle([0.3]), 5, axis=0), 1e-15).max() == 0


def test_numbered_by_first_token() -> None:
    x = sphere.from_angle([2.0, 0.0, 2.01, 4.0, 0.01, 1.99])
    labels = cluster_labels(x, 0.1)
    assert labels.tolist() == [0, 1, 0, 2, 1, 0]
    assert cluster_sizes(labels).tolist() == [3, 2, 1]
    assert cluster_leaders(labels).tolist() == [0, 1, 3]
    np.testing.assert_allclose(sphere.to_angle(cluster_means(x, labels)), [2.0, 0.005, 4.0 - 2 * math.pi], atol=1e-12)
    np.testing.assert_allclose(cluster_spread(x, labels), [0.01, 0.005, 0.0], atol=1e-12)


def test_dense_clusters_are_not_quadratic() -> None:
    """Sixty thousand tokens on three points: all pairs would be 10^9 links."""
    x = np.repeat(sphere.uniform(3, 4, seed=0), 20_000, axis=0)
    labels = cluster_labels(x, 1e-3)
    assert cluster_sizes(labels).tolist() == [20_000] * 3


def test_mean_of_antipodes_is_the_leader() -> None:
    x = np.array([[1.0, 0.0], [-1.0, 0.0]])
    np.testing.assert_array_equal(cluster_means(x, [0, 0]), [[1.0, 0.0]])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: cluster_labels(x, 0.0),
        lambda x: cluster_labels(x, math.inf),
        lambda x: cluster_sizes([]),
        lambda x: cluster_sizes([0.5, 1.0]),
        lambda x: cluster_sizes([-1, 0]),
        lambda x: cluster_means(x, [0, 0, 0]),
    ],
)
def test_bad_arguments_are_refused(call: object) -> None:
    with pytest.raises(InvalidInputError):
        call(sphere.from_angle([0.0, 1.0]))  # type: ignore[operator]
