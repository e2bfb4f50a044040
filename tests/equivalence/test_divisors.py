"""Unnormalised weights beside a bias: divided by the sum of mass and exp(bias) over visible tokens, so that beta = 0 is softmax."""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable.errors import UnsupportedError
from metastable.kernels import reference
from metastable.kernels.select import velocity

MASKS = [ms.Causal(), ms.Full(), ms.Window(4), ms.Sink(2, 3), ms.Prefix(5), ms.Causal(include_self=False)]


def slow(model: ms.Attention, x: np.ndarray) -> np.ndarray:
    """The velocity, one pair after the other."""
    n, masses = len(x), np.ones(len(x)) if model.masses is None else model.masses
    visible, out = model.mask.matrix(n), np.zeros_like(x)
    for number, head in enumerate(model.all_heads):
        for k in range(n):
            total, drift = 0.0, np.zeros(model.dim)
            for j in range(n):
                if visible[k, j]:
                    bias = model.bias.logits(number, len(model.all_heads), np.array([k]), np.array([j]))[0, 0]
                    total += masses[j] * np.exp(bias)
                    drift += masses[j] * np.exp(head.beta * x[k] @ x[j] + bias) * x[j]
            if model.frozen is not None:
                for place, weight in zip(model.frozen.tokens, model.frozen.weights):
                    total += weight
                    drift += weight * np.exp(head.beta * x[k] @ place) * place
            out[k] += drift / (total or 1.0)
    return out - np.einsum("ij,ij->i", out, x)[:, None] * x


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("engine", ["reference", "cpu", "torch"])
def test_every_engine_divides_by_the_sum_of_the_biases(mask, engine):
    rng = np.random.default_rng(3)
    n, dim = 14, 3
    x = ms.sphere.uniform(n, dim, seed=1)
    for masses in (None, rng.uniform(0.3, 2.0, n)):
        for frozen in (None, ms.Frozen(ms.sphere.uniform(2, dim, seed=2), (0.5, 1.5))):
            heads = (ms.Head(beta=2.0), ms.Head(beta=0.7))
            bias = ms.ALiBi((0.4, 1.3))
            model = ms.Attention(
                dim=dim, heads=heads, mask=mask, weights="unnormalized", bias=bias, masses=masses, frozen=frozen
            )
            if engine == "cpu" and not getattr(mask, "include_self", True):
                with pytest.raises(UnsupportedError, match="see themselves"):
                    velocity(model, x, engine)
                continue
            np.testing.assert_allclose(velocity(model, x, engine), slow(model, x), atol=1e-13)
            own = model.replace(bias=ms.LogitBias(rng.normal(size=(2, n, n))))
            if engine != "cpu":
                np.testing.assert_allclose(velocity(own, x, engine), slow(own, x), atol=1e-13)


def test_without_a_temperature_it_is_softmax():
    x = ms.sphere.uniform(20, 3, seed=0)
    model = ms.Attention(dim=3, beta=0.0, bias=ms.ALiBi(0.3))
    other = model.replace(weights="unnormalized")
    np.testing.assert_allclose(velocity(other, x, "cpu"), velocity(model, x, "cpu"), atol=1e-15)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("slope", [0.0, 1e-9, 0.2, 3.0, 40.0])
def test_closed_sums_are_those_of_all_pairs(mask, slope):
    n = 23
    model = ms.Attention(dim=2, beta=1.0, mask=mask, weights="unnormalized", bias=ms.ALiBi(slope))
    place = np.arange(n, dtype=float)
    pairs = reference.log_visible(mask.matrix(n), model.bias.logits(0, 1, place, place), 0.0)[:, 0]
    np.testing.assert_allclose(reference.log_divisors(model, n)[0], pairs, rtol=1e-13, atol=1e-13)


def test_biases_that_double_precision_cannot_exponentiate():
    x = ms.sphere.uniform(6, 3, seed=4)
    plain = ms.Attention(dim=3, beta=1.5, weights="unnormalized")
    for shift in (-2000.0, 2000.0):  # the same for all pairs: no change
        shifted = plain.replace(bias=ms.LogitBias(np.full((6, 6), shift)))
        for engine in ("reference", "torch"):
            np.testing.assert_allclose(velocity(shifted, x, engine), velocity(plain, x, engine), atol=1e-12)


def test_masses_of_the_divisor_have_their_slopes():
    n = 6
    x, masses = ms.sphere.uniform(n, 3, seed=5), np.linspace(0.5, 1.5, n)
    model = ms.Attention(dim=3, beta=1.2, weights="unnormalized", bias=ms.ALiBi(0.5), masses=masses)
    target = ms.sphere.uniform(n, 3, seed=6)
    found = ms.gradient(model, x, lambda y: ((y * target).sum(), target), until=1.0, wrt=("masses",), rtol=1e-10)

    def value(m):
        run = ms.simulate(model.replace(masses=m), x, until=1.0, rtol=1e-11, progress=False)
        return float((run.final * target).sum())

    for j in range(n):
        step = np.zeros(n)
        step[j] = 1e-5
        assert (value(masses + step) - value(masses - step)) / 2e-5 == pytest.approx(found["masses"][j], abs=1e-7)
