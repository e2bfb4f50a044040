"""Table 1: runs end in the row that the spectrum of V predicts (small systems, temperatures at which they do so soon)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import block_diag

import metastable as ms
from metastable import sphere

CASES = {
    "one point in a plane": (np.diag([1.0, 1.0, -0.5]), 1.0, 400.0, 2),
    "two points": (np.diag([1.0, 0.2, -0.5]), 4.0, 400.0, 3),
    "cloud around a plane": (np.diag([-1.0, -1.0, -2.0]), 9.0, 1500.0, 4),
    "two clouds": (np.diag([-1.0, -2.0, -2.5]), 9.0, 1500.0, 5),
}


@pytest.mark.parametrize("name", CASES)
def test_runs_end_where_the_spectrum_says(name: str) -> None:
    value, beta, until, row = CASES[name]
    rotation = np.linalg.qr(np.random.default_rng(2).standard_normal((3, 3)))[0]
    model = ms.Attention(dim=3, beta=beta, value=rotation @ value @ rotation.T)
    assert ms.predict(model).row == row
    for seed in range(3):
        run = ms.simulate(
            model, sphere.uniform(16, 3, seed), times=[until], method="tsit5", engine="reference", rtol=1e-5
        )
        result = ms.classify(run)
        assert (result.row, result.as_predicted) == (row, True)


def test_a_complex_pair_rotates_for_ever() -> None:
    value = block_diag([[1.0, -0.5], [0.5, 1.0]], [[0.1]])
    model = ms.Attention(dim=3, beta=1.0, value=value)
    run = ms.simulate(model, sphere.uniform(8, 3, 0), times=[60.0, 61.0], method="tsit5", engine="reference")
    result = ms.classify(run)
    assert (result.configuration, result.as_predicted) == ("one point rotating in L", True)
    turned = sphere.distance(run.states[0, 0], run.states[1, 0])
    assert turned == pytest.approx(0.5, abs=1e-3)


def test_early_states_are_unsettled() -> None:
    run = ms.simulate(
        ms.Attention(dim=3, beta=9.0), sphere.uniform(16, 3, 0), times=[3.0], method="tsit5", engine="reference"
    )
    result = ms.classify(run)
    assert (result.row, result.configuration) == (None, "unsettled")
    assert result.speed > 1e-3
