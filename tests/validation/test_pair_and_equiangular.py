"""Two exact solutions: the collapse of a pair by quadrature, and the scalar equation of equiangular tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest

import metastable as ms
from metastable import sphere, theory


@pytest.mark.parametrize(
    ("beta", "start", "end"), [(0.0, 3.0, 0.01), (4.0, 2.5, 0.1), (9.0, 1.5, 1e-3), (3.0, 3.1, 1.0)]
)
def test_a_pair_collapses_at_the_time_of_the_quadrature(beta: float, start: float, end: float) -> None:
    time = theory.pair_collapse_time(end, beta, start=start)
    for tokens in (sphere.from_angle([0.4, 0.4 + start]), np.array([[0, 0, 1], [math.sin(start), 0, math.cos(start)]])):
        model = ms.Attention(dim=tokens.shape[1], beta=beta)
        run = ms.simulate(model, tokens, times=[time], method="tsit5", engine="reference", rtol=1e-9, atol=1e-12)
        assert sphere.distance(*run.final) == pytest.approx(end, rel=1e-4)
        np.testing.assert_allclose(run.final[0], tokens[0], atol=1e-12)


@pytest.mark.parametrize("weights", ["softmax", "unnormalized"])
@pytest.mark.parametrize(("beta", "rho"), [(0.0, 0.3), (1.0, -0.2), (3.0, 0.0)])
def test_equiangular_tokens_follow_their_scalar_equation(weights: str, beta: float, rho: float) -> None:
    tokens = 5
    start = sphere.normalize(np.linalg.cholesky(np.full((tokens, tokens), rho) + (1 - rho) * np.eye(tokens)))
    model = ms.Attention(dim=tokens, beta=beta, mask=ms.Full(), weights=weights)  # type: ignore[arg-type]
    times = np.array([0.1, 0.5, 1.0, 2.0])
    run = ms.simulate(model, start, times=times, method="tsit5", engine="reference", rtol=1e-9, atol=1e-12)
    exact = theory.equiangular_flow(rho, tokens, beta, times, weights)  # type: ignore[arg-type]
    pairs = np.triu_indices(tokens, 1)
    for state, cosine in zip(run.states, exact):
        np.testing.assert_allclose((state @ state.T)[pairs], cosine, atol=1e-8)
