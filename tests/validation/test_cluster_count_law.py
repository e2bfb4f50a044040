"""The cluster-count law N(t) = 1/sigma(B_{d(t)}), cos d(t) = 1 - ln t/beta: an empirical law of ours, not a theorem."""

from __future__ import annotations

import math

import numpy as np
import pytest

import metastable as ms
from metastable import sphere, theory


def test_mean_number_of_clusters_on_the_circle() -> None:
    """beta = 32, tokens on the circle: within 25 % at two times, clusters split at gaps above beta^(-1/2)/2."""
    beta, times = 32.0, [30.0, 300.0]
    model = ms.Attention(dim=2, beta=beta)
    counts = []
    for seed in range(12):
        run = ms.simulate(
            model, sphere.uniform(60, 2, seed), times=times, method="tsit5", engine="reference", rtol=1e-4
        )
        counts.append([ms.analysis.cluster_count(x, 0.5 / math.sqrt(beta)) for x in run.states])
    for measured, time in zip(np.mean(counts, axis=0), times):
        assert measured == pytest.approx(theory.cluster_count(time, beta, 2), rel=0.25)
