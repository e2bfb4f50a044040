"""Compiled code on aarch64, as small as it gets: each kind of kernel once against the readable engine or an exact formula.

Emulation makes compiling slow (a minute or two in all the first time; the code is kept). Run by `make test-arm`, and with
the other tests wherever they run.
"""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms

MODELS = {
    "circle": ms.Attention(dim=2, beta=16.0),
    "sphere": ms.Attention(dim=3, beta=4.0),
    "matrices": ms.Attention(dim=3, beta=2.0, value=np.diag([2.0, 1.0, -1.0]), mask=ms.Window(5)),
}


@pytest.mark.parametrize("name", MODELS)
def test_velocity_equals_the_reference(name):
    model = MODELS[name]
    x = ms.sphere.uniform(21, dim=model.dim, seed=1)
    fast = ms.velocity(model, x, engine="cpu")
    np.testing.assert_allclose(fast, ms.velocity(model, x, engine="reference"), atol=1e-13)


@pytest.mark.parametrize("name", ["circle", "sphere"])
def test_series_equals_the_reference(name):
    model = MODELS[name]
    x = ms.sphere.uniform(21, dim=model.dim, seed=2)
    fast = ms.velocity(model, x, engine="cpu", interaction="series")
    np.testing.assert_allclose(fast, ms.velocity(model, x, engine="reference"), atol=1e-11)


def test_explicit_runs_equal_the_reference():
    model = MODELS["circle"]
    x = ms.sphere.uniform(21, dim=2, seed=3)
    tight = {"until": 5.0, "method": "tsit5", "rtol": 1e-10, "atol": 1e-12}
    fast, slow = ms.simulate(model, x, engine="cpu", **tight), ms.simulate(model, x, engine="reference", **tight)
    assert fast.status == "success"
    np.testing.assert_allclose(fast.final, slow.final, atol=1e-7)


@pytest.mark.parametrize("name", ["circle", "sphere"])
def test_implicit_runs_equal_explicit_ones(name):
    """40 tokens to t = 100: on four lanes the implicit method once stood still after t = 0.006 without an error."""
    model = MODELS[name]
    x = ms.sphere.uniform(40, dim=model.dim, seed=4)
    implicit = ms.simulate(model, x, times=[100.0], method="rodas", rtol=1e-8, atol=1e-11)
    explicit = ms.simulate(model, x, times=[100.0], method="tsit5", rtol=1e-9, atol=1e-12)
    assert implicit.status == "success"
    assert implicit.stats.accepted < 5000
    np.testing.assert_allclose(implicit.final, explicit.final, atol=1e-5)


@pytest.mark.parametrize("beta", [4.0, 16.0])
def test_two_tokens_collapse_when_theory_says(beta):
    """The angle between two tokens falls below 0.5 within a thousandth of the time that quadrature gives (5e12 for beta = 16)."""
    x = ms.sphere.from_angle([0.0, 2.5])
    time = ms.theory.pair_collapse_time(0.5, beta, start=2.5)
    model = ms.Attention(dim=2, beta=beta)
    run = ms.simulate(model, x, times=[0.999 * time, 1.001 * time], method="rodas", rtol=1e-8, atol=1e-11)
    assert run.status == "success"
    before, after = (float(ms.sphere.distance(*state)) for state in run.states)
    assert after < 0.5 < before


def test_ensembles_and_centers_equal_the_reference():
    model = MODELS["circle"]
    call = {"tokens": 12, "members": 9, "times": [0.0, 2.0], "seed": 5, "method": "tsit5", "rtol": 1e-9, "atol": 1e-12}
    call["observe"] = {"renyi": ms.observe.consumed(delta=1.0), "cosine": ms.observe.mean_cosine()}
    fast, slow = ms.ensemble(model, engine="cpu", **call), ms.ensemble(model, engine="reference", **call)
    np.testing.assert_allclose(fast["cosine"], slow["cosine"], atol=1e-6)
    np.testing.assert_array_equal(fast["renyi"], slow["renyi"])
