"""Clusters: connected components of the graph of pairs of tokens closer than a radius."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastable import _checks, sphere
from metastable.analysis import _balls
from metastable.errors import InvalidInputError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def cluster_labels(x: ArrayLike, radius: float) -> IntArray:
    """Cluster of each token: 0, 1, ..., numbered by the first token of each cluster.

    Clusters are the connected components of the graph that links tokens closer than `radius` (single linkage). Exact, in
    about n log n time and O(n) memory also for dense clusters: a breadth-first search that takes tokens out of a k-d tree.

    Args:
        x: unit tokens, shape (n, d).
        radius: geodesic distance > 0 below which two tokens are linked.

    Returns:
        Labels, shape (n,), int64. Token 0 has label 0.
    """
    return labels_of_unit_tokens(_checks.tokens(x, "x"), link_bound(radius))


def link_bound(radius: float) -> float:
    """Largest squared chord of a link, from a checked radius."""
    return _balls.closer_than(_checks.number(radius, "radius", 0.0, strict=True))


def labels_of_unit_tokens(tokens: FloatArray, bound: float) -> IntArray:
    """`cluster_labels` without checks, for loops over many states."""
    from metastable.analysis import _kernels

    if tokens.shape[1] == 2:
        return _kernels.labels_circle(tokens, bound)
    return (_kernels.labels_few if len(tokens) <= _kernels.FEW else _kernels.labels_many)(tokens, bound)


def _labels(labels: ArrayLike, tokens: int | None = None) -> IntArray:
    try:
        array = np.asarray(labels)
    except (ValueError, TypeError, RuntimeError) as reason:
        raise InvalidInputError(f"labels is not an array of numbers: {reason}") from None
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array.min() < 0:
        raise InvalidInputError("labels must be what cluster_labels returns: one whole number >= 0 per token")
    if tokens is not None and array.size != tokens:
        raise InvalidInputError(f"there are {array.size} labels for {tokens} tokens")
    if array.max() >= array.size or not np.bincount(array).all():
        raise InvalidInputError("labels must count clusters from 0 with no number left out, as cluster_labels does")
    return array.astype(np.int64)


def cluster_count(x: ArrayLike, radius: float) -> int:
    """Number of clusters of a state (see `cluster_labels`; `metastable.theory.cluster_count` is how many a law expects)."""
    return int(cluster_labels(x, radius).max()) + 1


def cluster_sizes(labels: ArrayLike) -> IntArray:
    """Tokens per cluster, shape (clusters,)."""
    return np.bincount(_labels(labels))


def cluster_leaders(labels: ArrayLike) -> IntArray:
    """Index of the first token of each cluster, shape (clusters,).

    Under the causal mask the leader is the token that the rest of its cluster follows.
    """
    return leaders_of_labels(_labels(labels))


def leaders_of_labels(labels: IntArray) -> IntArray:
    """`cluster_leaders` without checks, for loops."""
    from metastable.analysis import _kernels

    return _kernels.first_of_each(labels)


def cluster_means(x: ArrayLike, labels: ArrayLike) -> FloatArray:
    """Mean direction of each cluster: the normalised sum of its tokens, shape (clusters, d).

    A cluster whose tokens cancel exactly has no mean direction; its row is that of its first token.
    """
    tokens = _checks.tokens(x, "x")
    return weighted_means(tokens, _labels(labels, len(tokens)), np.ones(len(tokens)))


def weighted_means(tokens: FloatArray, labels: IntArray, weights: FloatArray) -> FloatArray:
    """`cluster_means` of tokens that count `weights` (n,) times, without checks."""
    total = np.zeros((labels.max() + 1, tokens.shape[1]))
    np.add.at(total, labels, (weights / weights.max())[:, None] * tokens)
    length = np.linalg.norm(total, axis=1, keepdims=True)
    return np.where(length > 0, total / np.where(length > 0, length, 1.0), tokens[leaders_of_labels(labels)])


def cluster_spread(x: ArrayLike, labels: ArrayLike) -> FloatArray:
    """Inner spread of each cluster: the largest geodesic distance of a token from its cluster's mean, shape (clusters,).

    The diameter of a cluster is between its spread and twice its spread.
    """
    tokens = _checks.tokens(x, "x")
    array = _labels(labels, len(tokens))
    away = sphere.distance(tokens, cluster_means(tokens, array)[array])
    spread = np.zeros(array.max() + 1)
    np.maximum.at(spread, array, away)
    return spread
