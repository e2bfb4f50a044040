"""Relative accuracy of forces far below rounding: what metastable clusters live on. Exact values by mpmath."""

import mpmath
import numpy as np
import pytest

from metastable.kernels import cpu
from metastable.model import Attention, Frozen


def velocity(model, x):
    out = np.zeros_like(x)
    cpu.right_hand_side(model, len(x), threads=1)(0.0, x, out)
    return out


def exact_velocity(x, beta, k):
    """Velocity of token k for Q = K = V = I under the causal mask in 80 digits, from tokens normalised exactly."""
    with mpmath.workdps(80):
        rows = [mpmath.matrix([mpmath.mpf(float(v)) for v in row]) for row in x]
        rows = [row / mpmath.norm(row) for row in rows]
        dot = [mpmath.fdot(rows[k], rows[j]) for j in range(k + 1)]
        weight = [mpmath.exp(beta * (value - 1)) for value in dot]
        total = mpmath.fsum(weight)
        result = []
        for a in range(x.shape[1]):
            result.append(
                mpmath.fsum(w * (rows[j][a] - d * rows[k][a]) for j, (w, d) in enumerate(zip(weight, dot))) / total
            )
        return np.array([float(value) for value in result])


@pytest.mark.parametrize("dim", [2, 3, 5, 20])
@pytest.mark.parametrize("gap", [1e-6, 0.1, 0.5, 1.0, 1.5, 2.0, 2.8])
def test_pair_force_is_relatively_exact(dim, gap):
    """exp(-2 beta) is 1e-55 at beta = 64; the force of an almost antipodal pair is that small."""
    x = np.zeros((2, dim))
    x[0, :2] = np.cos(0.7), np.sin(0.7)
    x[1, :2] = np.cos(0.7 + gap), np.sin(0.7 + gap)
    actual = velocity(Attention(dim=dim, beta=64.0), x)[1]
    expected = exact_velocity(x, 64, 1)
    # The gap itself is known to 2e-16 only, and the exponent beta (cos - 1) to beta times that.
    assert np.linalg.norm(actual - expected) <= (2e-13 + 1e-15 / gap) * np.linalg.norm(expected)


@pytest.mark.parametrize("dim", [2, 3, 12])
def test_force_of_a_few_parked_clusters_is_relatively_exact(dim):
    angles = [0.3, 1.9, 3.4, 5.0, 1.9 + 1e-9, 5.0 - 1e-7]
    x = np.zeros((len(angles), dim))
    x[:, 0], x[:, 1] = np.cos(angles), np.sin(angles)
    actual = velocity(Attention(dim=dim, beta=64.0), x)
    for k in range(1, 4):
        expected = exact_velocity(x, 64, k)
        assert np.linalg.norm(expected) < 1e-25
        assert np.linalg.norm(actual[k] - expected) <= 1e-12 * np.linalg.norm(expected)


def test_a_token_alone_stands_still_exactly():
    for dim in (2, 3, 12):
        x = np.random.default_rng(0).normal(size=(1, dim))
        assert not velocity(Attention(dim=dim, beta=64.0), x).any()
        scaled = velocity(Attention(dim=dim, beta=64.0, value=-1.7 * np.eye(dim)), x)
        assert not scaled.any()


def test_frozen_tokens_pull_with_relative_accuracy():
    anchor = np.array([[np.cos(2.9), np.sin(2.9)]])
    x = np.array([[1.0, 0.0]])
    actual = velocity(Attention(dim=2, beta=50.0, frozen=Frozen(anchor)), x)[0]
    expected = exact_velocity(np.concatenate([anchor, x]), 50, 1)
    assert np.linalg.norm(expected) < 1e-40
    assert np.linalg.norm(actual - expected) <= 1e-12 * np.linalg.norm(expected)
