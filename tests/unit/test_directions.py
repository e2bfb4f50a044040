"""Sums that are zero to rounding have no direction: norms that divide by them, and layers that carry tokens there, say so."""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable.errors import NumericalRangeError, StoppedEarlyWarning
from metastable.integrate import layers
from metastable.kernels import directions
from metastable.kernels.directions import require_directions

BY_LENGTH = [ms.NGPT(1.0), ms.PeriLN()]


def balanced(mask, norm, **changes):
    """A model with beta = 0, and tokens whose mean is zero but for rounding."""
    model = ms.Attention(dim=2, beta=0.0, mask=mask, norm=norm, **changes)
    if isinstance(mask, ms.Full):
        return model, ms.starts.equally_spaced(6, 2)
    return model, ms.sphere.from_angle([0.3, 0.3 + np.pi])


@pytest.mark.parametrize("norm", BY_LENGTH)
@pytest.mark.parametrize("mask", [ms.Full(), ms.Causal()])
@pytest.mark.parametrize("changes", [{}, {"weights": "unnormalized"}], ids=["softmax", "unnormalized"])
def test_a_balance_is_refused_by_norms_that_divide_by_its_length(norm, mask, changes):
    model, start = balanced(mask, norm, **changes)
    for call in (
        lambda: ms.simulate(model, start, until=1.0),
        lambda: ms.simulate(model, start, until=1.0, method="layers", step=0.1),
        lambda: ms.simulate(ms.Schedule(((0.0, model), (0.5, model))), start, until=1.0),
        lambda: ms.velocity(model, start),
    ):
        with pytest.raises(NumericalRangeError, match="zero to rounding"):
            call()


@pytest.mark.parametrize("norm", [ms.PostLN(), ms.PreLN(), ms.SqrtScaling()])
def test_other_norms_stand_in_a_balance(norm):
    model, start = balanced(ms.Full(), norm)
    np.testing.assert_allclose(ms.simulate(model, start, until=1.0, progress=False).final, start, atol=1e-14)


def test_out_of_the_balance_engines_agree():
    model, start = balanced(ms.Full(), ms.NGPT(1.0))
    start = ms.sphere.retract(start + 1e-3 * np.random.default_rng(0).normal(size=start.shape))
    runs = [ms.simulate(model, start, until=0.5, engine=engine, rtol=1e-9) for engine in ("cpu", "reference")]
    assert np.abs(runs[0].final - start).max() > 0.1
    np.testing.assert_allclose(runs[0].final, runs[1].final, atol=1e-6)


def test_who_sees_nobody_is_in_no_balance():
    """Its sum has no parts. What values take away has, and rounding is left of it."""
    blind = ms.Attention(dim=2, beta=1.0, mask=ms.Causal(include_self=False), norm=ms.NGPT(1.0))
    start = ms.sphere.uniform(5, dim=2, seed=0)
    run = ms.simulate(blind, start, until=1.0, progress=False)
    assert run.status == "success"
    np.testing.assert_allclose(run.final[0], start[0], atol=1e-15)
    flat = ms.Attention(dim=2, beta=1.0, value=np.diag([1.0, 0.0]), norm=ms.NGPT(1.0))
    with pytest.raises(NumericalRangeError, match="zero to rounding"):
        ms.simulate(flat, [[0.0, 1.0], [0.0, -1.0]], until=1.0)


@pytest.mark.parametrize("weights", ["softmax", "hardmax"])
def test_large_beta_makes_no_balance(weights):
    """Its errors are those of weights between others; where one has all, there is none."""
    model = ms.Attention(dim=3, beta=1e15, weights=weights, norm=ms.NGPT(1.0), key=2.0 * np.eye(3))
    require_directions(model, ms.sphere.uniform(20, dim=3, seed=0))


def test_noise_leaves_a_balance():
    model, start = balanced(ms.Full(), ms.NGPT(1.0))
    assert ms.simulate(model.replace(noise=0.3), start, until=0.5, seed=0, progress=False).status == "success"


def test_all_parts_of_a_sum_count():
    """Heads, feed-forward and frozen tokens, each of them made to cancel the rest."""
    start = ms.sphere.uniform(6, dim=3, seed=0)
    opposite = tuple(ms.Head(value=sign * np.eye(3), beta=2.0) for sign in (1.0, -1.0))
    held = ms.FeedForward(np.eye(3), np.zeros(3), -np.eye(3), np.zeros(3), "identity")
    against = ms.Frozen(-start[:1], [1.0])
    for fields in (
        {"heads": opposite},
        {"beta": 0.0, "mask": ms.Window(1), "feedforward": held},
        {"beta": 0.0, "mask": ms.Window(1), "frozen": against},
    ):
        model = ms.Attention(dim=3, norm=ms.NGPT(1.0), **fields)
        with pytest.raises(NumericalRangeError, match="token 0 is zero to rounding"):
            require_directions(model, start)


def test_of_many_tokens_some_are_looked_at(monkeypatch):
    monkeypatch.setattr(directions, "MOST_PAIRS", 10_000)
    model, _ = balanced(ms.Full(), ms.NGPT(1.0))
    with pytest.raises(NumericalRangeError, match="zero to rounding"):
        require_directions(model, ms.starts.equally_spaced(600, 2))


def test_tokens_that_are_appended_into_a_balance_are_refused():
    model = ms.Attention(dim=2, beta=0.0, norm=ms.NGPT(1.0))
    run = ms.simulate(model, ms.sphere.from_angle([0.3]), until=1.0, progress=False)
    with pytest.raises(NumericalRangeError, match="token 1 is zero to rounding"):
        run.append(ms.sphere.from_angle([0.3 + np.pi]))
    assert run.append(ms.sphere.from_angle([1.3])).status == "success"


def test_gradients_in_a_balance_are_refused():
    model, start = balanced(ms.Full(), ms.NGPT(1.0))
    with pytest.raises(NumericalRangeError, match="zero to rounding"):
        ms.gradient(model, start, ms.observe.mean_cosine(), until=1.0)


def test_layers_leave_a_standing_token_of_tiny_radius_where_it_is():
    model = ms.Attention(dim=2, beta=1.0, value=np.zeros((2, 2)), norm=ms.PreLN())
    state = np.array([[0.6, 0.8, 1e-14]])
    np.testing.assert_allclose(layers.layer(model, state, 0.0, 1.0), state, rtol=1e-14)


def test_members_in_a_balance_fail_alone():
    model, _ = balanced(ms.Full(), ms.NGPT(1.0))

    def start(generator, tokens, dim):
        return (
            ms.starts.equally_spaced(tokens, dim)
            if generator.random() < 0.5
            else ms.sphere.uniform(tokens, dim, generator)
        )

    with pytest.warns(StoppedEarlyWarning, match="zero to rounding"):
        stats = ms.ensemble(model, tokens=6, members=12, times=[0.0, 1.0], seed=0, start=start)
    assert set(stats.status.values.tolist()) == {"success", "failed"}


@pytest.mark.parametrize("step", [0.5, 0.25, 0.2, 0.1])
def test_layers_that_carry_a_token_to_zero_end_for_every_start(step):
    """y - step x, 1/step times: zero, to rounding."""
    model = ms.Attention(dim=3, beta=2.0, value=-np.eye(3), norm=ms.PreLN())
    with pytest.warns(StoppedEarlyWarning):
        stats = ms.ensemble(model, tokens=1, members=40, times=[0.0, 2.0], seed=0, method="layers", step=step)
    assert set(stats.status.values.tolist()) == {"diverged"}
    with pytest.warns(StoppedEarlyWarning, match="to zero"):
        run = ms.simulate(model, ms.sphere.uniform(1, dim=3, seed=3), until=2.0, method="layers", step=step)
    assert run.end == pytest.approx(1.0 - step)
