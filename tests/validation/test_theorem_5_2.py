"""Theorem 5.2: with frozen tokens further apart than c beta^(-1/2), every free token ends near one (d = 2, Q = K = V = I)."""

from __future__ import annotations

import math

import numpy as np

import metastable as ms
from metastable import sphere


def test_every_free_token_ends_near_a_frozen_one() -> None:
    beta, c = 16.0, 3.0
    reach = c / math.sqrt(beta)
    for seed in range(100):
        generator = np.random.default_rng(seed)
        sequence = sphere.uniform(400, 2, generator)
        anchors = sequence[ms.renyi_centers(sequence, reach)]  # as many as fit
        apart = sphere.pairwise_distance(anchors) + 10 * np.eye(len(anchors))
        assert apart.min() > reach
        model = ms.Attention(dim=2, beta=beta, frozen=ms.Frozen(anchors, generator.uniform(0.5, 2.0, len(anchors))))
        start = sphere.uniform(8, 2, generator)
        run = ms.simulate(model, start, times=[600.0], method="tsit5", engine="reference")
        away = sphere.pairwise_distance(run.final, anchors).min(axis=1)
        assert away.max() < 0.25 / math.sqrt(beta)


def test_without_frozen_tokens_they_end_elsewhere() -> None:
    """The same free tokens alone gather at the first one, so it is the frozen tokens that hold them."""
    start = sphere.uniform(8, 2, seed=0)
    run = ms.simulate(ms.Attention(dim=2, beta=1.0), start, times=[200.0], method="tsit5", engine="reference")
    assert sphere.distance(run.final, start[0]).max() < 1e-3
