"""Theorem 4.1: V = I, any Q, K, beta: from almost every start every token converges to x_1(0).

Provenance: arXiv:2411.04990, Theorem 4.1. The theorem is about t -> infinity; with Gaussian Q and K the last tokens need up to
t = 1e50. `python -m benchmarks.bench_rodas --acceptance` repeats it for 20 draws.
"""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable.integrate import rodas
from metastable.integrate.plan import Save


def farthest(x, target):
    """Largest geodesic distance, by the arcsine of the chord (the arccosine is blind below 1e-8)."""
    return float(2 * np.arcsin(np.linalg.norm(x - target, axis=1).max() / 2))


@pytest.mark.parametrize("seed", range(5))
def test_random_gaussian_query_and_key(seed):
    rng = np.random.default_rng(seed)
    query, key = rng.standard_normal((3, 3)), rng.standard_normal((3, 3))
    x = ms.sphere.uniform(32, dim=3, seed=seed)
    model = ms.Attention(dim=3, beta=9.0, query=query, key=key)
    solution = rodas.solve(model, x, Save(1e50))
    assert solution.status == "success"
    assert farthest(solution.states[-1], x[0]) < 1e-10


@pytest.mark.parametrize(("dim", "beta"), [(2, 0.0), (2, 16.0), (3, 16.0), (4, 5.0), (7, 3.0)])
def test_identity_query_and_key(dim, beta):
    x = ms.sphere.uniform(24, dim=dim, seed=1)
    run = ms.simulate(ms.Attention(dim=dim, beta=beta), x, until=1e40, method="rodas")
    assert run.status == "success"
    assert farthest(run.final, x[0]) < 1e-10


def test_several_heads_with_value_identity():
    """With V = I in every head the sum of heads is again attention towards the earlier tokens."""
    rng = np.random.default_rng(4)
    heads = tuple(ms.Head(rng.standard_normal((3, 3)), rng.standard_normal((3, 3)), None, 3.0) for _ in range(3))
    x = ms.sphere.uniform(16, dim=3, seed=4)
    solution = rodas.solve(ms.Attention(dim=3, heads=heads), x, Save(1e50))
    assert farthest(solution.states[-1], x[0]) < 1e-10


def test_a_window_forgets_the_first_token_but_not_its_place():
    """Each token follows its predecessor, so the whole chain still ends at x_1(0)."""
    x = ms.sphere.uniform(12, dim=3, seed=0)
    run = ms.simulate(ms.Attention(dim=3, beta=4.0, mask=ms.Window(2)), x, until=1e30, method="rodas")
    assert farthest(run.final, x[0]) < 1e-10


def test_almost_every_start_is_needed():
    """The exact antipode of x_1(0) is one of the starts of measure zero: it stays."""
    x = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    run = ms.simulate(ms.Attention(dim=3, beta=2.0), x, until=1e30, method="rodas")
    np.testing.assert_array_equal(run.final, x)


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_explicit_runs_classify_as_row_one(dim):
    generator = np.random.default_rng(dim)
    for scale in (1.0, 2.0):
        query, key = generator.standard_normal((2, dim, dim)) / dim**0.5
        model = ms.Attention(dim=dim, beta=0.7, query=query, key=key, value=scale * np.eye(dim))
        start = ms.sphere.uniform(10, dim, generator)
        run = ms.simulate(model, start, times=[400.0], method="tsit5", engine="reference")
        assert farthest(run.final, start[0]) < 1e-3
        result = ms.classify(run)
        assert (result.row, result.as_predicted, result.prediction.basis) == (1, True, "theorem")
