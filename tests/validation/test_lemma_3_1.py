"""Lemma 3.1: one token approaches the leading eigenvectors, exponentially, or like C/t inside Jordan blocks.

Also: the first token of every causal run is alone and follows exp(tV) x / |exp(tV) x|.
"""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable import sphere, theory
from metastable.analysis import predict_value
from metastable.analysis.trajectory import distance_to_subspace


def jordan(size: int) -> np.ndarray:
    return np.eye(size) + np.diag(np.ones(size - 1), 1)


def test_exponential_rate_is_the_spectral_gap() -> None:
    value = np.diag([1.0, 0.5, -1.0])
    times = np.linspace(10.0, 20.0, 11)
    for x in sphere.uniform(5, 3, seed=0):
        away = distance_to_subspace(theory.single_token(value, x, times), predict_value(value).subspace)
        rate = -np.polyfit(times, np.log(away), 1)[0]
        assert rate == pytest.approx(0.5, abs=1e-3)
        assert rate == pytest.approx(theory.spectral_gap(value), abs=1e-3)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_jordan_blocks_approach_like_one_over_t(size: int) -> None:
    value = jordan(size)
    for x in sphere.uniform(5, size, seed=size):
        end = theory.single_token(value, x, 3e4)
        away = distance_to_subspace(end, predict_value(value).subspace)
        assert 3e4 * away == pytest.approx(theory.jordan_decay(size), rel=2e-2)


@pytest.mark.parametrize("size", [2, 3])
def test_rotated_jordan_blocks(size: int) -> None:
    """Rounding turns a rotated block into one with eigenvalues eps^(1/size) apart, so only moderate times are meaningful."""
    rotation = np.linalg.qr(np.random.default_rng(1).standard_normal((size, size)))[0]
    turned = rotation @ jordan(size) @ rotation.T
    for x in sphere.uniform(5, size, seed=9):
        end = theory.single_token(turned, rotation @ x, 200.0)
        away = distance_to_subspace(end, predict_value(turned).subspace)
        straight = distance_to_subspace(theory.single_token(jordan(size), x, 200.0), np.eye(size)[:, :1])
        assert away == pytest.approx(straight, rel=1e-3)


@pytest.mark.parametrize("kind", ["random", "symmetric", "rotation", "jordan", "negative"])
def test_token_one_of_a_run_follows_the_exponential(kind: str) -> None:
    generator = np.random.default_rng(3)
    value = generator.standard_normal((4, 4))
    if kind == "symmetric":
        value = value + value.T
    elif kind == "rotation":
        value = value - value.T
    elif kind == "jordan":
        value = jordan(4)
    elif kind == "negative":
        value = -value @ value.T
    query, key = generator.standard_normal((2, 4, 4))
    model = ms.Attention(dim=4, beta=2.0, query=query, key=key, value=value)
    times = [0.5, 2.0, 10.0, 50.0]
    start = sphere.uniform(3, 4, seed=8)
    run = ms.simulate(model, start, times=times, method="tsit5", engine="reference", rtol=1e-8, atol=1e-10)
    exact = theory.single_token(value, start[0], times)
    assert sphere.distance(run.states[:, 0], exact).max() < 2e-6
