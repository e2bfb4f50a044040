"""Sums that are zero to rounding have no direction: norms that divide by them, and layers that carry tokens there, say so."""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable.errors import NumericalRangeError, StoppedEarlyWarning

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
    assert ms.simulate(blind, start, until=1.0, progress=False).status == "success"
    flat = ms.Attention(dim=2, beta=1.0, value=np.diag([1.0, 0.0]), norm=ms.NGPT(1.0))
    with pytest.raises(NumericalRangeError, match="zero to rounding"):
        ms.simulate(flat, [[0.0, 1.0], [0.0, -1.0]], until=1.0)


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
