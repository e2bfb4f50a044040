"""Where the tokens of a cluster meet under full attention: when nobody else pulls (`gathering_places`), and by how much the pull of
other clusters on tokens that are not there yet is another one than on the place itself (`outside_pull`)."""

from __future__ import annotations

import numpy as np

from metastable._checks import FloatArray
from metastable.analysis.clusters import IntArray, weighted_means

NODES = 6
"""Nodes of the Gauss-Legendre rule along the way; more change nothing for spreads within the linking radius."""
PULL_NODES = 16
"""The same for the pull of others, which grows exponentially along the way."""


def gathering_places(
    tokens: FloatArray, labels: IntArray, masses: FloatArray, form: FloatArray, beta: float
) -> tuple[FloatArray, FloatArray]:
    """The place at which each cluster gathers (clusters, d), and its error in radians (clusters,).

    Let y be the mean direction of a cluster and a_j the vector from y to token j along the sphere. All tokens see the others with
    nearly the weights that y would give them, so they approach one point: a_j(t) = a_j exp(-t), and the mean drifts by

        integral over u in 0..1 of sum_j p_j(u) a_j,   p_j(u) ~ m_j exp(beta <y, form x_j(u)>),   x_j(u) = exp_y(u a_j).

    To lowest order that is (beta/2) S form^T y with the covariance S of the a_j, and for form = I, where this has no part along the
    sphere, -(beta - 1)/6 times their third moment. What is left out is how weights differ between tokens, a part of
    beta |form| s^2 at the spread s (the largest |a_j|): with the third moment mu_3 of |a_j| the error is at most about
    (1 + beta |form|) s^2 (drift + mu_3).
    """
    means = weighted_means(tokens, labels, masses)
    count, center = len(means), means[labels]
    away = _vectors(center, tokens)
    reach = np.linalg.norm(away, axis=1)
    seen = (beta * means @ form)[labels]  # <y, form x> = <form^T y, x>
    drift = np.zeros_like(means)
    for node, weight in zip(*np.polynomial.legendre.leggauss(NODES)):
        logits = np.einsum("ja,ja->j", seen, _points(center, 0.5 * (1.0 + node) * away))
        largest = np.full(count, -np.inf)
        np.maximum.at(largest, labels, logits)
        share = masses * np.exp(logits - largest[labels])
        drift += 0.5 * weight * _sums(share[:, None] * away, labels, count) / _sums(share, labels, count)[:, None]
    spread = np.zeros(count)
    np.maximum.at(spread, labels, reach)
    third = _sums(masses * reach**3, labels, count) / _sums(masses, labels, count)
    strength = abs(beta) * float(np.linalg.norm(form, 2))
    error = (1.0 + strength) * spread**2 * (np.linalg.norm(drift, axis=1) + third)
    return _points(means, drift), np.minimum(spread, error)


def outside_pull(
    tokens: FloatArray, labels: IntArray, masses: FloatArray, places: FloatArray, form: FloatArray, beta: float
) -> tuple[FloatArray, FloatArray]:
    """By how much the other clusters displace each `place` while its tokens gather there, beyond what they do to a point at the place
    (clusters, d); and for each token (n,) which part of the force that holds it in its cluster they pull it by, beyond that.

    A token at the distance a from its place sees another cluster with a weight that is exp(beta <form^T a, gap>) times as large: a wide
    cluster is pulled as its nearest token is, and goes sooner than a point. With the force F(x) of the places other than
    its own on a token at x, and x_j(u) = exp_y(u a_j) at u = exp(-t), the displacement is

        integral over u in 0..1 of [sum_j m_j F(x_j(u)) / sum_j m_j - F(y)] / u,

    and the part |F(x_j) - F(y)| / |a_j|: where it is small tokens gather as if nobody else were there.
    """
    count = len(places)
    center, total = places[labels], _sums(masses, labels, len(places))
    away = _vectors(center, tokens)
    distance = np.linalg.norm(away, axis=1)
    point = _force(places, places, np.arange(count), total, form, beta)
    drift = np.zeros_like(places)
    for node, weight in zip(*np.polynomial.legendre.leggauss(PULL_NODES)):
        u = 0.5 * (1.0 + node)
        force = _force(_points(center, u * away), places, labels, total, form, beta)
        drift += 0.5 * weight / u * (_sums(masses[:, None] * force, labels, count) / total[:, None] - point)
    beyond = np.linalg.norm(_force(tokens, places, labels, total, form, beta) - point[labels], axis=1)
    # A single token is its place, but for rounding.
    several = np.bincount(labels, minlength=count)[labels] > 1
    part = np.where(several, beyond, 0.0) / np.where(distance > 0, distance, 1.0)
    drift[np.bincount(labels, minlength=count) == 1] = 0.0
    return drift, part


def _force(
    x: FloatArray, places: FloatArray, own: IntArray, total: FloatArray, form: FloatArray, beta: float
) -> FloatArray:
    """How other clusters than its `own` one move a token at x (n, d): the part of the attention sum that is theirs."""
    logits = beta * (x @ form) @ places.T
    rows = np.arange(len(x))
    logits -= logits[rows, own][:, None]
    shift = np.maximum(logits.max(axis=1, keepdims=True), 0.0)
    weights = total * np.exp(logits - shift)
    share = weights / weights.sum(axis=1, keepdims=True)
    share[rows, own] = 0.0
    pull = share @ places - share.sum(axis=1, keepdims=True) * x
    return pull - np.einsum("ka,ka->k", x, pull)[:, None] * x


def _sums(values: FloatArray, labels: IntArray, count: int) -> FloatArray:
    """Sums over the tokens of each cluster."""
    total = np.zeros((count, *values.shape[1:]))
    np.add.at(total, labels, values)
    return total


def _vectors(center: FloatArray, points: FloatArray) -> FloatArray:
    """Tangent vectors (n, d) that lead from centers to points along great circles (zero to the antipode)."""
    along = np.einsum("ja,ja->j", center, points)[:, None]
    across = points - along * center
    length = np.linalg.norm(across, axis=1, keepdims=True)
    return across * np.where(length > 0, np.arctan2(length, along) / np.where(length > 0, length, 1.0), 1.0)


def _points(center: FloatArray, vectors: FloatArray) -> FloatArray:
    """Where tangent vectors lead from their centers (n, d)."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.cos(length) * center + np.sinc(length / np.pi) * vectors
