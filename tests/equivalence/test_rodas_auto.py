"""`method="auto"`: where it switches, that it says so, and that the joined run is seamless."""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable.errors import UnsupportedError
from metastable.integrate import auto
from tests import variants


def test_short_horizons_are_explicit():
    run = ms.simulate(ms.Attention(dim=2, beta=9.0), ms.sphere.uniform(12, dim=2, seed=0), until=50.0)
    assert run.method == "tsit5"
    assert run.stats.jacobians == 0


@pytest.mark.parametrize("dim", [2, 3])
def test_long_horizons_switch_once_and_join_without_seam(dim):
    model = ms.Attention(dim=dim, beta=9.0)
    x = ms.sphere.uniform(20, dim=dim, seed=1)
    run = ms.simulate(model, x, until=1e30)
    first, second = run.notes["segments"]
    assert (first["method"], second["method"]) == ("tsit5", "rodas")
    assert first["from"] == 0.0
    assert first["to"] == second["from"] <= auto.LAST_STRETCH
    assert second["to"] == run.end == 1e30
    assert (np.diff(run.times) > 0).all()
    assert np.abs(run.final - x[0]).max() < 1e-10
    switch = first["to"]
    before, after = run.at(switch * (1 - 1e-9)), run.at(switch * (1 + 1e-9))
    assert np.abs(before - after).max() < 1e-6
    exact = ms.simulate(model, x, until=3 * switch, method="tsit5", rtol=1e-11, atol=1e-13)
    for t in np.linspace(0.0, 3 * switch, 40):
        assert np.abs(run.at(t) - exact.at(t)).max() < 2e-4


def test_output_times_on_both_sides_of_the_switch():
    model = ms.Attention(dim=2, beta=16.0)
    x = ms.sphere.uniform(16, dim=2, seed=2)
    times = np.array([0.0, 0.5, 8.0, 16.0, 40.0, 64.0, 1e4, 1e18])
    run = ms.simulate(model, x, times=times)
    np.testing.assert_array_equal(run.times, times)
    np.testing.assert_allclose(run.states[0], run.start, atol=1e-15)
    exact = ms.simulate(model, x, times=times[:6], method="tsit5", rtol=1e-11, atol=1e-13)
    assert np.abs(run.states[:6] - exact.states).max() < 1e-4
    implicit = ms.simulate(model, x, times=times, method="rodas", rtol=1e-9)
    assert np.abs(run.final - implicit.final).max() < 1e-9
    assert run.dense is None


def test_settled_is_the_default_way_to_the_end():
    x = ms.sphere.uniform(10, dim=3, seed=0)
    run = ms.simulate(ms.Attention(dim=3, beta=4.0), x, until="settled")
    assert run.status == "success"
    assert run.notes["settled"] == run.notes["segments"][-1]["to"]
    assert np.abs(run.final - x[0]).max() < 1e-11
    with pytest.raises(UnsupportedError, match="PostLN"):
        ms.simulate(ms.Attention(dim=3, beta=4.0, norm=ms.PreLN()), x, until="settled")


def test_what_the_implicit_method_refuses_stays_explicit_and_says_why():
    x = ms.sphere.uniform(5, dim=2, seed=0)
    model = ms.Attention(dim=2, beta=1.0, norm=ms.SqrtScaling())
    run = ms.simulate(model, x, until=2e3)
    assert run.method == "tsit5"
    assert "PostLN" in run.notes["explicit because"]


def test_max_steps_is_shared_by_both_methods():
    x = ms.sphere.uniform(12, dim=2, seed=0)
    run = ms.simulate(ms.Attention(dim=2, beta=32.0), x, until=1e30, max_steps=90)
    assert run.status == "max_steps"
    assert run.stats.accepted + run.stats.rejected == 90
    few = ms.simulate(ms.Attention(dim=2, beta=32.0), x, until=1e30, max_steps=5)
    assert few.status == "max_steps"
    assert few.method == "tsit5"


def test_a_fast_value_matrix_shortens_the_explicit_part():
    rng = np.random.default_rng(0)
    model = ms.Attention(dim=3, beta=1.0, value=50.0 * np.eye(3))
    run = ms.simulate(model, variants.tokens(rng, 6, 3), until=1e6)
    assert run.notes["segments"][0]["to"] <= auto.LAST_STRETCH / 50.0


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_conversion_of_dense_output_between_charts(engine):
    x = ms.sphere.uniform(9, dim=2, seed=0)
    run = ms.simulate(ms.Attention(dim=2, beta=9.0), x, until=20.0, method="tsit5", engine=engine)
    for chart in ("angle", "ambient"):
        converted = auto.in_chart(run.dense, chart)
        assert converted.chart == chart
        for t in np.linspace(0.0, 20.0, 77):
            assert np.abs(converted(t) - run.at(t)).max() < 1e-6
