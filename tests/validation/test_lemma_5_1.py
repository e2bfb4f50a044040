"""Lemma 5.1: strong Renyi centers stand still for a time exponential in c^2, divided by their index (d = 2, Q = K = V = I)."""

from __future__ import annotations

import math

import numpy as np
import pytest

import metastable as ms
from metastable import sphere, theory


def worst_ratio(start: np.ndarray, beta: float, c: float, eps: float) -> tuple[float, int]:
    """Largest displacement of a strong center up to its time T_j over eps c beta^(-1/2), and how many were watched."""
    allowed = eps * c / math.sqrt(beta)
    centers = ms.renyi_centers(start, c * (1 + 2 * eps) / math.sqrt(beta), strong=True)
    patience = np.array([theory.strong_center_time(int(s) + 1, beta, c, eps) for s in centers])
    watched = patience > 1e-4
    centers, patience = centers[watched], patience[watched]
    end = float(patience[1:].max(initial=0.1))
    times = np.unique(np.concatenate([np.linspace(0.0, end, 20)[1:], patience[patience <= end]]))
    run = ms.simulate(ms.Attention(dim=2, beta=beta), start, times=times, method="tsit5", engine="reference")
    moved = sphere.distance(run.states[:, centers], start[centers])
    before = times[:, None] <= patience[None, :] * (1 + 1e-12)
    return float(np.where(before, moved, 0.0).max()) / allowed, len(centers)


def test_every_strong_center_in_random_draws() -> None:
    """200 draws; the bound holds for each center, with room to spare."""
    beta, c, eps = 64.0, 3.0, 0.05
    ratios, watched = zip(*(worst_ratio(sphere.uniform(30, 2, seed), beta, c, eps) for seed in range(200)))
    assert sum(watched) > 800
    assert max(ratios) < 1.0
    assert max(ratios) > 1e-3  # the test sees motion, and would see a violation


@pytest.mark.parametrize(("beta", "c", "eps"), [(64.0, 4.0, 0.1), (16.0, 2.0, 0.3), (4.0, 1.5, 0.5)])
def test_other_separations(beta: float, c: float, eps: float) -> None:
    for seed in range(4):
        ratio, _ = worst_ratio(sphere.uniform(15, 2, seed), beta, c, eps)
        assert ratio < 1.0


def test_adversarial_start() -> None:
    """All earlier tokens sit on one side, just outside the ball, and pull together: most of the bound is used up."""
    beta, c, eps = 64.0, 3.0, 0.01
    separation = c * (1 + 2 * eps) / math.sqrt(beta)
    ratios = []
    for crowd in (2, 5, 20):
        start = sphere.from_angle(np.append(np.full(crowd, separation + 1e-9), 0.0))
        assert ms.renyi_centers(start, separation, strong=True).tolist() == [0, crowd]
        ratio, _ = worst_ratio(start, beta, c, eps)
        ratios.append(ratio)
    assert max(ratios) < 1.0
    assert max(ratios) > 0.5


def test_the_sufficient_condition_is_weaker_than_the_bound() -> None:
    for beta in (2.0, 64.0, 1e4):
        for c in (1.1, 2.0, 4.0):
            if c / math.sqrt(beta) < math.pi:
                sufficient = theory.strong_center_sufficient_time(7, beta, c, 0.1)
                assert sufficient <= theory.strong_center_time(7, beta, c, 0.1)
