"""`method="auto"`: where it switches, that it says so, and that the joined run is seamless."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import metastable as ms
from metastable.errors import UnsupportedError
from metastable.integrate import auto, work
from metastable.integrate.solution import in_chart
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


def rotating(d: int = 3) -> ms.Attention:
    """V with a leading complex pair: tokens turn for ever, accuracy decides about every step, and implicit ones cost more."""
    value = np.eye(d)
    value[:2, :2] = [[3.0, -3.0], [3.0, 3.0]]
    return ms.Attention(dim=d, beta=2.0, value=value)


@pytest.mark.parametrize("every", [True, False], ids=["every step", "times"])
def test_it_goes_back_where_implicit_steps_lose(every):
    """Trials are part of the run: nothing is lost at the seams, and the work is that of explicit steps plus a fourth at the most."""
    model, until = rotating(), 300.0
    x = ms.sphere.uniform(12, dim=3, seed=5)
    times = None if every else np.append(np.linspace(0.0, until, 83)[:-1], until)
    save = {"until": until} if every else {"times": times}
    run = ms.simulate(model, x, progress=False, **save)
    plain = ms.simulate(model, x, method="tsit5", progress=False, **save)
    methods = [segment["method"] for segment in run.notes["segments"]]
    assert methods[:3] == ["tsit5", "rodas", "tsit5"]
    assert methods[-1] == "tsit5"
    assert run.method == "tsit5+rodas"
    for before, after in itertools.pairwise(run.notes["segments"]):
        assert before["to"] == after["from"]
    assert (run.status, run.end) == ("success", until)
    price = work.price(model, 12)
    spent = {name: sum(s["steps"] for s in run.notes["segments"] if s["method"] == name) for name in ("tsit5", "rodas")}
    assert sum(spent.values()) == run.stats.accepted + run.stats.rejected
    steps = plain.stats.accepted + plain.stats.rejected
    assert spent["tsit5"] + price * spent["rodas"] < 1.5 * steps
    exact = ms.simulate(
        model, x, method="tsit5", rtol=1e-11, atol=1e-13, times=np.linspace(0.0, until, 83), progress=False
    )
    assert (np.diff(run.times) > 0).all()
    found = run.at(exact.times) if every else run.states
    assert (
        np.abs(found - exact.states).max()
        < 20.0 * np.abs((plain.at(exact.times) if every else plain.states) - exact.states).max() + 1e-4
    )


def test_the_choice_is_the_same_every_time():
    """Work is counted, not timed."""
    x = ms.sphere.uniform(12, dim=3, seed=5)
    one, two = (ms.simulate(rotating(), x, until=300.0, progress=False) for _ in range(2))
    assert one.notes["segments"] == two.notes["segments"]
    np.testing.assert_array_equal(one.states, two.states)


def test_a_run_that_went_back_is_extended_explicitly():
    x = ms.sphere.uniform(12, dim=3, seed=5)
    run = ms.simulate(rotating(), x, until=300.0, progress=False).extend(320.0)
    assert run.notes["segments"][-1]["method"] == "tsit5"
    assert (run.status, run.end) == ("success", 320.0)
    whole = ms.simulate(rotating(), x, until=320.0, method="tsit5", rtol=1e-10, progress=False)
    np.testing.assert_allclose(run.final, whole.final, atol=1e-2)
    assert run.stats.accepted + run.stats.rejected == sum(entry["steps"] for entry in run.notes["segments"])


@pytest.mark.parametrize("until", [1e6, 1e12])
@pytest.mark.parametrize(
    "fields",
    [{"dim": 2}, {"dim": 3}, {"dim": 4, "value": np.diag([1.0, 0.5, -0.5, -1.0])}],
    ids=["circle", "sphere", "value"],
)
def test_what_explicit_steps_cannot_reach_stays_implicit(fields, until):
    model = ms.Attention(beta=9.0, **fields)
    run = ms.simulate(model, ms.sphere.uniform(15, dim=model.dim, seed=2), until=until, progress=False)
    assert [segment["method"] for segment in run.notes["segments"]] == ["tsit5", "rodas"]
    assert run.status == "success"
    assert run.stats.accepted < 600


def test_wide_models_never_pay_for_implicit_steps():
    """Dimension 64: an implicit step costs hundreds of explicit ones, more than the whole of this run."""
    rng = np.random.default_rng(0)
    heads = [rng.normal(size=(3, 64, 8)) @ rng.normal(size=(3, 8, 64)) / 22.0 for _ in range(8)]
    model = ms.Attention(dim=64, heads=tuple(ms.Head(*matrices, 1.0) for matrices in heads))
    run = ms.simulate(model, ms.sphere.uniform(8, dim=64, seed=0), until=50.0, method="auto", progress=False)
    assert run.method == "tsit5"
    assert run.notes["segments"][0]["to"] == 50.0
    assert work.price(model, 8) > 50.0


def test_steps_run_out_in_a_trial():
    x = ms.sphere.uniform(12, dim=3, seed=5)
    full = ms.simulate(rotating(), x, until=300.0, progress=False)
    before = full.notes["segments"][0]["steps"] + 3
    run = ms.simulate(rotating(), x, until=300.0, progress=False, max_steps=before)
    assert run.status == "max_steps"
    assert run.stats.accepted + run.stats.rejected == before
    assert f"stopped after {before} steps" in run.message


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_conversion_of_dense_output_between_charts(engine):
    x = ms.sphere.uniform(9, dim=2, seed=0)
    run = ms.simulate(ms.Attention(dim=2, beta=9.0), x, until=20.0, method="tsit5", engine=engine)
    for chart in ("angle", "ambient"):
        converted = in_chart(run.dense, chart)
        assert converted.chart == chart
        for t in np.linspace(0.0, 20.0, 77):
            assert np.abs(converted(t) - run.at(t)).max() < 1e-6
