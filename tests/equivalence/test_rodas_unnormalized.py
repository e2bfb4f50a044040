"""Unnormalised attention implicitly: its Jacobian, agreement with explicit steps, and horizons that explicit steps do not reach."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import metastable as ms
from metastable.errors import UnsupportedError
from metastable.integrate import plan, rodas


def variants():
    rng = np.random.default_rng(0)
    q, v = rng.normal(size=(2, 3, 3))
    anchors = ms.Frozen(ms.sphere.uniform(2, 3, 9), [0.5, 2.0])
    return [
        ms.Attention(dim=2, beta=2.0, weights="unnormalized", mask=ms.Full()),
        ms.Attention(dim=2, beta=2.0, weights="unnormalized"),
        ms.Attention(dim=3, beta=1.0, weights="unnormalized", mask=ms.Full(), query=q, value=v),
        ms.Attention(dim=3, beta=2.0, weights="unnormalized", mask=ms.Window(3), frozen=anchors),
        ms.Attention(dim=3, beta=2.0, weights="unnormalized", mask=ms.Causal(include_self=False), frozen=anchors),
    ]


@pytest.mark.parametrize("model", variants())
def test_the_jacobian_against_differences_and_a_run_against_explicit_steps(model):
    tokens, dim = 6, model.dim
    x = ms.sphere.uniform(tokens, dim, 3)
    bases, jacobian = rodas.chart_jacobian(model, x)
    h = 1e-6
    for j in range(tokens):
        for b in range(dim - 1):
            step = np.zeros_like(x)
            step[j] = h * bases[j, :, b]
            ahead, behind = (ms.velocity(model, ms.sphere.normalize(x + s * step), engine="reference") for s in (1, -1))
            known = np.einsum("kda,kd->ka", bases, (ahead - behind) / (2 * h))
            assert np.abs(known - jacobian[:, :, j, b]).max() < 1e-8
    implicit = ms.simulate(model, x, until=1.0, method="rodas", rtol=1e-8, atol=1e-10)
    explicit = ms.simulate(model, x, until=1.0, method="tsit5", rtol=1e-10, atol=1e-12)
    assert np.abs(implicit.final - explicit.final).max() < 1e-7
    assert np.abs(implicit.at(0.4) - explicit.at(0.4)).max() < 1e-5


def test_a_horizon_of_many_times_its_own_scale():
    """beta = 9: tokens move at the speed e^9, and t = 300 is 2.4 million of their times. Against Radau on angles."""
    model = ms.Attention(dim=2, beta=9.0, weights="unnormalized", mask=ms.Full())
    x = ms.sphere.uniform(10, 2, 0)
    run = ms.simulate(model, x, until=300.0, rtol=1e-7)
    assert run.status == "success"
    assert run.method == "tsit5+rodas"
    assert run.stats.accepted < 1000

    def speed(t, angles):
        gap = angles[None, :] - angles[:, None]
        return (np.exp(9.0 * np.cos(gap)) * np.sin(gap)).mean(axis=1)

    known = solve_ivp(speed, (0, 300.0), ms.sphere.to_angle(x), method="Radau", rtol=1e-9, atol=1e-11).y[:, -1]
    assert np.abs(ms.sphere.from_angle(known) - run.final).max() < 1e-5
    energy = run.observe(ms.observe.energy()).values
    assert np.diff(energy).min() > -1e-9


def test_auto_knows_the_time_scale():
    model = ms.Attention(dim=2, beta=9.0, weights="unnormalized")
    assert plan.size_of_value(model) == pytest.approx(np.exp(9.0))
    assert plan.short(model, 1.0)
    assert not plan.short(model, 10.0)
    assert ms.simulate(model, ms.sphere.uniform(4, 2, 0), until=0.01).method == "tsit5"


def test_several_heads_and_biases_are_refused():
    heads = ms.Attention(dim=2, heads=(ms.Head(beta=1.0), ms.Head(beta=2.0)), weights="unnormalized")
    biased = ms.Attention(dim=2, beta=1.0, weights="unnormalized", bias=ms.ALiBi(0.1))
    for model in (heads, biased):
        with pytest.raises(UnsupportedError, match="single head"):
            ms.simulate(model, ms.sphere.uniform(4, 2, 0), until=1.0, method="rodas")
    wide = ms.Attention(dim=2, beta=1.0, weights="unnormalized")
    assert "unnormalized weights" in str(rodas.refusal(wide, 7000))
