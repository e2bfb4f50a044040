"""Lemma A.1: the interaction function is odd, peaks once at tau*, and is the force of a run."""

from __future__ import annotations

import math

import numpy as np
import pytest

import metastable as ms
from metastable import sphere, theory


@pytest.mark.parametrize("beta", [0.5, 1.0, 10.0, 64.0, 1000.0])
def test_one_peak(beta: float) -> None:
    x = np.linspace(0.0, math.pi, 20_001)
    force = theory.interaction(x, beta)
    rising = np.diff(force) > 0
    peak = theory.interaction_peak(beta)
    resolved = force[1:] > 1e-290  # beyond, sharp forces underflow and are equal
    assert (rising == (x[1:] <= peak))[resolved & (np.abs(x[1:] - peak) > 3e-4)].all()
    np.testing.assert_allclose(theory.interaction(-x, beta), -force)


def test_peak_scales_like_the_inverse_root() -> None:
    beta = np.array([1e2, 1e4, 1e6])
    scaled = [theory.interaction_peak(b) * math.sqrt(b) for b in beta]
    assert (np.abs(np.array(scaled) - 1.0) < 0.5 / beta).all()


def test_it_is_the_force_between_two_tokens() -> None:
    for beta in (1.0, 10.0, 64.0):
        for angle in np.linspace(0.05, 3.1, 23):
            x = sphere.from_angle([0.0, angle])
            speed = ms.velocity(ms.Attention(dim=2, beta=beta), x, engine="reference")
            turning = speed[1] @ [-math.sin(angle), math.cos(angle)]
            total = 1.0 + math.exp(beta * (math.cos(angle) - 1.0))
            assert turning == pytest.approx(-theory.interaction(angle, beta) / total, rel=1e-9, abs=1e-16)
