"""Lemma C.1: the expected number of strong Renyi centers, and Renyi's parking limit for the plain ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

import metastable as ms
from metastable import sphere, theory


def counts(dim: int, delta: float, tokens: int, draws: int, strong: bool, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.array(
        [len(ms.renyi_centers(sphere.uniform(tokens, dim, generator), delta, strong)) for _ in range(draws)]
    )


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(values.size))


@pytest.mark.parametrize(
    ("dim", "delta", "tokens"),
    [(2, 0.5, 200), (2, 0.5, 8), (3, 0.5, 200), (3, 1.2, 30), (5, 0.8, 100), (5, 1.5, 20)],
)
def test_strong_centers_of_uniform_tokens(dim: int, delta: float, tokens: int) -> None:
    mean, error = mean_and_error(counts(dim, delta, tokens, 3000, strong=True))
    assert abs(mean - theory.strong_centers(delta, dim, tokens)) < 4 * error


def test_the_printed_formula_for_d_3_is_a_misprint() -> None:
    """An appendix of the paper prints (3 sin^2(delta/2))^(-1); the cap measure gives 1/sin^2(delta/2), and so do tokens."""
    delta, tokens = 0.5, 2000
    right, printed = 1 / math.sin(delta / 2) ** 2, 1 / (3 * math.sin(delta / 2) ** 2)
    assert theory.strong_centers(delta, 3) == pytest.approx(right, rel=1e-12)
    mean, error = mean_and_error(counts(3, delta, tokens, 1000, strong=True))
    assert abs(mean - right) < 4 * error
    assert abs(mean - printed) > 50 * error
    assert (round(right, 2), round(printed, 2)) == (16.34, 5.45)


def test_any_law_by_its_samples() -> None:
    """Tokens from a mixture of two caps: the estimate from samples predicts counts of fresh sequences."""
    generator = np.random.default_rng(5)

    def draw(tokens: int) -> np.ndarray:
        wide = sphere.cap(tokens, [0.0, 0.0, 1.0], 1.5, generator)
        narrow = sphere.cap(tokens, [1.0, 0.0, 0.0], 0.4, generator)
        return np.where(generator.random((tokens, 1)) < 0.3, narrow, wide)

    fresh = np.array([len(ms.renyi_centers(draw(60), 0.5, strong=True)) for _ in range(1500)])
    mean, error = mean_and_error(fresh)
    expected = theory.strong_centers_from_samples(draw(6000), 0.5, tokens=60)
    assert abs(mean - expected) < 4 * error + 0.02 * expected
    assert abs(mean - theory.strong_centers(0.5, 3, 60)) > 10 * error


def test_strong_centers_scale_with_the_exponent() -> None:
    """delta = 4 beta^(-1/2): counts grow like beta^((d-1)/2)."""
    for dim in (2, 3):
        few, many = (counts(dim, 4 / math.sqrt(b), 4000, 60, strong=True).mean() for b in (64.0, 256.0))
        assert math.log(many / few, 4) == pytest.approx(theory.center_exponent(dim), rel=0.1)


def test_parking_limit_on_the_circle() -> None:
    values = counts(2, 0.05, 60_000, 100, strong=False)
    assert values.mean() == pytest.approx(theory.renyi_centers_limit(0.05), rel=0.01)


def test_finite_sequences_have_fewer_renyi_centers_than_the_limit() -> None:
    mean, error = mean_and_error(counts(2, 0.5, 200, 4000, strong=False))
    assert abs(mean - 9.151) < 4 * error + 0.01
    assert mean < theory.renyi_centers_limit(0.5)


def test_consumed_at_the_start_of_figure_3() -> None:
    """n = 200, beta = 64, delta = 1/2: tokens within delta/10 of a center before anything has moved."""
    expected = {False: 0.18, True: 0.13}
    for strong, share in expected.items():
        values = []
        for seed in range(200):
            x = sphere.uniform(200, 2, seed)
            values.append(ms.consumed(x, ms.renyi_centers(x, 0.5, strong), 0.05))
        assert np.mean(values) == pytest.approx(share, abs=0.01)
