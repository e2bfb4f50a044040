"""Theorem 4.1: V = I, any Q, K: from almost every start every token converges to x_1(0)."""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable import sphere


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_all_tokens_reach_the_first(dim: int) -> None:
    generator = np.random.default_rng(dim)
    for scale in (1.0, 2.0):
        query, key = generator.standard_normal((2, dim, dim)) / dim**0.5
        model = ms.Attention(dim=dim, beta=0.7, query=query, key=key, value=scale * np.eye(dim))
        start = sphere.uniform(10, dim, generator)
        run = ms.simulate(model, start, times=[400.0], method="tsit5", engine="reference")
        assert sphere.distance(run.final, start[0]).max() < 1e-3
        result = ms.classify(run)
        assert (result.row, result.as_predicted, result.prediction.basis) == (1, True, "theorem")
