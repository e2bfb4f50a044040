"""Lemma 5.3: each token descends its own energy, dphi_k/dt = -(1/Z_k) dE_k/dphi_k."""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable import sphere
from metastable.analysis import gradient_flow_defect, token_energies


@pytest.mark.parametrize("dim", [2, 3, 7])
def test_the_identity(dim: int) -> None:
    generator = np.random.default_rng(dim)
    for beta in (0.3, 1.0, 9.0, 64.0, 500.0):
        x = sphere.uniform(30, dim, generator)
        frozen = ms.Frozen(sphere.uniform(4, dim, generator), generator.uniform(0, 2, 4))
        for model in (
            ms.Attention(dim=dim, beta=beta),
            ms.Attention(dim=dim, beta=beta, frozen=frozen),
            ms.Attention(dim=dim, beta=beta, mask=ms.Window(5)),
            ms.Attention(dim=dim, beta=beta, mask=ms.Full()),
        ):
            assert gradient_flow_defect(model, x).max() < 1e-10


def test_token_two_descends_and_there_is_no_common_energy() -> None:
    """Token 1 rests, so token 2's energy falls monotonically; later tokens' may rise when earlier ones move away."""
    model = ms.Attention(dim=2, beta=9.0)
    rising = 0
    for seed in range(6):
        start = sphere.uniform(12, 2, seed)
        run = ms.simulate(model, start, times=np.linspace(0, 30, 61), method="tsit5", engine="reference", rtol=1e-9)
        energy = np.array([token_energies(model, x) for x in run.states])
        assert (np.diff(energy[:, 1]) <= 1e-12).all()
        rising += int((np.diff(energy, axis=0) > 1e-6).any())
    assert rising > 0
