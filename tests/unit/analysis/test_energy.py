"""Energies: values by explicit sums, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

import metastable as ms
from metastable import sphere
from metastable.analysis import energy_gradients, global_energy, token_energies
from metastable.errors import UnsupportedError


def test_token_energies_are_the_explicit_sums() -> None:
    x, anchors, weights = sphere.uniform(9, 3, 0), sphere.uniform(2, 3, 1), np.array([0.5, 2.0])
    beta = 3.0
    model = ms.Attention(dim=3, beta=beta, frozen=ms.Frozen(anchors, weights))
    expected = []
    for k in range(9):
        total = sum(math.exp(beta * (x[k] @ x[j] - 1)) for j in range(k))
        total += sum(a * math.exp(beta * (x[k] @ y - 1)) for a, y in zip(weights, anchors))
        expected.append(-total / beta)
    np.testing.assert_allclose(token_energies(model, x), expected, rtol=1e-13)


def test_gradients_by_finite_differences() -> None:
    model = ms.Attention(dim=4, beta=2.0, mask=ms.Full())
    x = sphere.uniform(6, 4, 2)
    gradient = energy_gradients(model, x)
    direction = sphere.project(x, np.random.default_rng(0).standard_normal(x.shape))
    for k in range(6):
        step = np.zeros_like(x)
        step[k] = 1e-6 * direction[k]
        up, down = (token_energies(model, sphere.normalize(x + s * step))[k] for s in (1, -1))
        assert gradient[k] @ direction[k] == pytest.approx((up - down) / 2e-6, abs=1e-8)


def test_global_energy() -> None:
    x = sphere.uniform(50, 3, 0)
    assert global_energy(x, 2.0) == pytest.approx(np.exp(2.0 * (x @ x.T - 1)).sum() / (4.0 * 2500))
    assert global_energy(np.repeat(x[:1], 7, axis=0), 5.0) == pytest.approx(0.1)
    run = ms.simulate(
        ms.Attention(dim=3, beta=4.0, mask=ms.Full()),
        x[:20],
        times=np.linspace(0, 8, 9),
        method="tsit5",
        engine="reference",
    )
    assert (np.diff([global_energy(state, 4.0) for state in run.states]) > 0).all()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"value": -np.eye(3)}, "V is not"),
        ({"query": 2 * np.eye(3)}, "Q"),
        ({"weights": "hardmax"}, "weights"),
        ({"norm": ms.PeriLN()}, "norm"),
        ({"noise": 0.1}, "noise"),
        ({"bias": ms.ALiBi(1.0)}, "bias"),
        ({"beta": 0.0}, "beta"),
    ],
)
def test_models_without_energies_are_refused(change: dict, word: str) -> None:
    model = ms.Attention(dim=3, beta=2.0).replace(**change)
    with pytest.raises(UnsupportedError, match=word):
        token_energies(model, np.eye(3))
