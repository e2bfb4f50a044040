"""The whole cascade of merges down to one cluster: collapse times, an independent oracle, and the law N(t).

Provenance: the paper says that the final cluster arrives at exponentially long times (section 5); the numbers are ours.
`python -m benchmarks.bench_rodas --acceptance` runs 30 draws for each beta with n = 200; here a few draws with fewer tokens.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import metastable as ms
from benchmarks.bench_rodas import by_lsoda, by_rodas, collapse_time, distance, points, start
from metastable.integrate import rodas
from metastable.integrate.plan import Accuracy, Save
from metastable.theory import cluster_count, pair_collapse_time
from tests import implicit


@pytest.mark.parametrize("beta", [16.0, 32.0, 64.0])
def test_every_token_reaches_the_first(beta):
    """All tokens end within 1e-10 of x_1(0); log10 of the collapse time is stable to three decimals."""
    angles = start(100, seed=7)
    loose, end = collapse_time(angles, beta, 1e-5)
    tight, _ = collapse_time(angles, beta, 1e-7)
    assert end < 1e-10
    assert loose == pytest.approx(tight, abs=5e-4)
    until = 10.0 ** (2 * beta / math.log(10) + 12)
    final = rodas.solve(ms.Attention(dim=2, beta=beta), points(angles), Save(until)).states[-1]
    assert np.abs(final - points(angles)[0]).max() < 1e-10


@pytest.mark.parametrize("beta", [4.0, 16.0, 64.0])
@pytest.mark.parametrize("exponent", [0, 2, 6, 12])
def test_two_tokens_against_exact_quadrature(beta, exponent):
    """Start at pi - 10^-exponent: the time to come within one radian, against the integral of 1/speed."""
    angle = math.pi - 10.0**-exponent
    # pi - angle to the last digit: pi itself is 1.2e-16 above its nearest double.
    gap = (math.pi - angle) + 1.2246467991473532e-16
    x = np.array([[1.0, 0.0], [-math.cos(gap), math.sin(gap)]])
    until = 10.0 ** (2 * beta / math.log(10) + 6)
    solution = rodas.solve(ms.Attention(dim=2, beta=beta), x, Save(until), Accuracy(1e-6, 0.0))
    dense = solution.dense
    ends = np.abs(dense.coefficients.sum(axis=1)[:, 1, 0])
    step = int(np.flatnonzero(ends < 1.0)[0])
    polynomial = dense.coefficients[step][:, 1, 0]
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if abs(np.polyval(polynomial[::-1], middle)) > 1.0 else (low, middle)
    found = dense.start[step] + low * dense.width[step]
    assert found == pytest.approx(pair_collapse_time(1.0, beta, gap=gap), rel=1e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_agreement_with_lsoda(seed):
    """LSODA with the analytic Jacobian, agrees to 1e-8 up to t = 1e50."""
    angles = start(60, seed)
    times = np.array([1e6, 1e20, 1e50])
    for ours, theirs in zip(by_rodas(angles, times, 1e-10), by_lsoda(angles, times, 1e-11)):
        assert distance(ours, theirs) < 1e-8


def test_cluster_counts_follow_the_law():
    """N(t) ~ pi / arccos(1 - ln t / beta) on the circle (ours, empirical), clusters split at gaps > beta^(-1/2) / 2."""
    beta, members = 64.0, 30
    times = np.array([1e2, 1e4, 1e8, 1e20, 1e40])
    starts = np.stack([points(start(200, seed)) for seed in range(members)])
    states, _ = implicit.solve_members(ms.Attention(dim=2, beta=beta), starts, times, rtol=1e-4)
    angles = np.sort(np.arctan2(states[..., 1], states[..., 0]), axis=-1)
    gaps = np.diff(angles, axis=-1, append=angles[..., :1] + 2 * np.pi)
    counts = np.maximum(1, (gaps > 0.5 / math.sqrt(beta)).sum(axis=-1)).mean(axis=0)
    measured = np.array([7.5, 5.7, 4.1, 2.7, 1.7])
    # Provenance of `measured`: 100 draws with an independent prototype; standard errors of 30 draws are below 0.25.
    assert np.abs(counts - measured).max() < 0.6
    assert np.abs(counts / cluster_count(times, beta, 2) - 1).max() < 0.25


@pytest.mark.parametrize("dim", [4, 5])
def test_tiny_rates_in_high_dimension(dim):
    """A pair near antipodes moves at rates of 1e-170; eigenvalues of blocks that small once forbade every longer step."""
    x = np.zeros((2, dim))
    x[0, 0] = 1.0
    x[1, :2] = -np.cos(0.1), np.sin(0.1)
    ends = [
        ms.simulate(ms.Attention(dim=d, beta=200.0), x[:, :d], until="settled", method="rodas", max_steps=5000)
        for d in (2, dim)
    ]
    assert [run.status for run in ends] == ["success", "success"]
    assert np.log10(ends[1].notes["settled"]) == pytest.approx(np.log10(ends[0].notes["settled"]), abs=1e-3)
