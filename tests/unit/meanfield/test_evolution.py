"""Densities move as very many tokens do: full, causal, with frozen tokens, SA and USA; and they say when they cannot be followed."""

import numpy as np
import pytest

import metastable as ms
from metastable.errors import InvalidInputError, NumericalRangeError, StoppedEarlyWarning, UnsupportedError
from metastable.meanfield import CausalDensity, Density, evolve


def modes_of(x, count=6):
    """Means of e^(-i k theta)."""
    return np.mean((x @ [1, -1j])[:, None] ** np.arange(1, count + 1), axis=0)


@pytest.mark.parametrize("weights", ["softmax", "unnormalized"])
@pytest.mark.parametrize("frozen", [None, ms.Frozen([[0.6, 0.8], [-1.0, 0.0]], [0.3, 0.1])])
def test_the_circle_against_tokens(weights, frozen):
    """400 quantiles of a smooth density are a rule of spectral accuracy; frozen tokens count n times as much among n."""
    tokens, until = 400, 0.8 if weights == "softmax" else 0.2
    model = ms.Attention(dim=2, beta=3.0, mask=ms.Full(), weights=weights, frozen=frozen)
    density = Density.from_function(lambda x: np.exp(0.5 * np.sin(2 * np.arctan2(x[:, 1], x[:, 0])) + 0.3 * x[:, 0]), 2)
    evolution = evolve(model, density, [0.0, until / 2, until], rtol=1e-10)
    crowd = model if frozen is None else model.replace(frozen=ms.Frozen(frozen.tokens, tokens * frozen.weights))
    run = ms.simulate(crowd, density.quantiles(tokens), times=[until / 2, until], rtol=1e-10, atol=1e-12)
    for law, x in zip(evolution.densities[1:], run.states):
        assert np.abs(law.fourier(6) - modes_of(x)).max() < 5e-7
        assert law.mass == pytest.approx(1.0, abs=1e-12)
        assert law.values.min() > 0


@pytest.mark.parametrize("weights", ["softmax", "unnormalized"])
def test_the_sphere_and_zonal_densities_against_tokens_with_masses(weights):
    """Nodes of a quadrature rule as tokens, their weights as masses."""
    pole = np.array([0.48, 0.6, 0.64])
    anchor = ms.Frozen([pole], [0.2])
    model = ms.Attention(dim=3, beta=2.0, mask=ms.Full(), weights=weights, frozen=anchor)

    def start(x):
        return np.exp(x @ pole)

    density, until = Density.from_function(start, 3, degree=16), 0.5 if weights == "softmax" else 0.1
    evolution = evolve(model, density, [until], rtol=1e-8)
    zonal = evolve(model, Density.from_function(start, 3, axis=pole), [until], rtol=1e-10)
    masses = density.weights * density.values
    crowd = model.replace(masses=masses / masses.max(), frozen=ms.Frozen([pole], [0.2 / masses.max()]))
    run = ms.simulate(crowd, density.nodes, times=[until], rtol=1e-9, atol=1e-11, interaction="direct")
    assert np.abs(masses @ run.final - evolution.final.mean).max() < 2e-8
    squares = np.einsum("k,kd,ke->de", masses, run.final, run.final)
    law = evolution.final
    assert np.abs(np.einsum("q,qd,qe->de", law.weights * law.values, law.nodes, law.nodes) - squares).max() < 2e-8
    x = ms.sphere.uniform(8, 3, 0)
    assert np.abs(zonal.final(x) - law(x)).max() < 1e-6


def test_mass_stays_and_noise_spreads_in_dimension_five():
    model = ms.Attention(dim=5, beta=0.0, mask=ms.Full(), noise=1.0)
    start = Density.perturbed(5, {1: 0.3, 3: 0.2}, axis=[1, 0, 0, 0, 0])
    found = evolve(model, start, [0.2, 1.0], rtol=1e-10)
    # beta = 0 pulls to the mean alone; of degree 3 nothing is left but its decay to first order, and degree 1 has rate 4 (1/5 - 1/2).
    small = evolve(model, Density.perturbed(5, {1: 1e-6}, axis=[1, 0, 0, 0, 0]), [1.0], rtol=1e-12)
    assert small.final.amplitudes(1)[0] == pytest.approx(2e-7 * np.exp(4 * (0.2 - 0.5)), rel=1e-6)
    assert all(abs(law.mass - 1) < 1e-12 for law in found.densities)
    assert found.order_parameter[1] < found.order_parameter[0] < start.order_parameter


def test_the_error_falls_with_the_tolerance():
    model = ms.Attention(dim=2, beta=4.0, mask=ms.Full(), noise=0.3)
    start = Density.perturbed(2, {1: 0.4, 2: 0.3})
    exact = evolve(model, start, [2.0], rtol=1e-12).final.fourier(5)
    errors = [
        np.abs(evolve(model, start, [2.0], rtol=rtol).final.fourier(5) - exact).max() for rtol in (1e-4, 1e-6, 1e-8)
    ]
    assert errors[2] < 1e-7
    assert errors[2] < errors[1] / 10 < errors[0] / 100


def test_a_density_that_becomes_a_point_mass_is_refused_with_the_time():
    model = ms.Attention(dim=2, beta=5.0, mask=ms.Full())
    start = Density.perturbed(2, {1: 0.9})
    with pytest.warns(StoppedEarlyWarning, match="sharper than 128 modes"):
        evolution = evolve(model, start, [1.0, 2.0, 50.0], modes=128)
    assert evolution.status == "unresolved"
    assert f"t = {evolution.reached:.6g}" in evolution.message
    assert len(evolution.times) == len(evolution.densities) < 3
    with pytest.warns(StoppedEarlyWarning):
        further = evolve(model, start, [50.0], modes=512)
    assert further.reached > evolution.reached
    with pytest.raises(InvalidInputError, match="none of the times"):
        _ = further.final
    with pytest.warns(StoppedEarlyWarning, match="max_steps"):
        assert evolve(model, start, [1.0], max_steps=2).status == "max_steps"
    # Noise spreads what attraction gathers: the same goes on for ever.
    assert evolve(model.replace(noise=0.5), start, [20.0], modes=128).status == "success"


def test_causal_laws_against_causal_tokens():
    """Laws that turn along the sequence; 8000 tokens, spread evenly in position and angle, and drawn at random."""
    model = ms.Attention(dim=2, beta=3.0)

    def law(u, x):
        return 1 + 0.7 * np.cos(np.arctan2(x[:, 1], x[:, 0]) - 2 * u)

    start = CausalDensity.from_function(law, 2)
    evolution = evolve(model, start, [0.5], rtol=1e-8)

    def error(seed):
        x = ms.simulate(model, start.sequence(8000, seed), times=[0.5], interaction="series").final
        return [np.abs(evolution.final.mean(u).fourier(3) - modes_of(x[: int(8000 * u)], 3)).max() for u in (0.25, 1.0)]

    assert max(error(None)) < 3e-3
    assert max(error(0)) < 5e-2
    assert error(0)[1] > 4 * error(None)[1]
    # It is not full attention: that is off by more.
    full = evolve(model.replace(mask=ms.Full()), start, [0.5], rtol=1e-8)
    assert np.abs(full.final.mean().fourier(3) - evolution.final.mean().fourier(3)).max() > 1e-2


def test_one_law_for_all_positions_moves_as_under_full_attention():
    start = Density.perturbed(2, {2: 0.3})
    causal = ms.Attention(dim=2, beta=3.0)
    full = evolve(causal.replace(mask=ms.Full()), start, [1.0]).final
    assert np.abs(evolve(causal, start, [1.0]).final.coefficients - full.coefficients).max() == 0
    alike = evolve(causal, CausalDensity.alike(start), [1.0]).final
    assert np.abs(alike.at(0.3).fourier(4) - full.fourier(4)).max() < 1e-9


@pytest.mark.parametrize(("weights", "until"), [("softmax", 0.5), ("unnormalized", 0.1)])
def test_frozen_tokens_weigh_more_for_early_tokens_of_a_sequence(weights, until):
    """Among n causal tokens a frozen one of weight w n stands against the k before token k: w to u, and w to 1 at the end only."""
    frozen, tokens = ms.Frozen([[0.0, 1.0]], [0.5]), 4000
    model = ms.Attention(dim=2, beta=2.0, weights=weights, frozen=frozen)
    start = CausalDensity.from_function(lambda u, x: np.exp(0.8 * np.cos(np.arctan2(x[:, 1], x[:, 0]) - 2 * u)), 2)
    law = evolve(model, start, [until]).final
    crowd = model.replace(frozen=ms.Frozen(frozen.tokens, tokens * frozen.weights))
    x = ms.simulate(crowd, start.sequence(tokens), times=[until]).final
    for u in (0.1, 0.25, 0.5, 1.0):
        seen = int(tokens * u)  # spread evenly: the error falls nearly like 1/seen
        assert np.abs(law.mean(u).fourier(2) - modes_of(x[:seen], 2)).max() < 3 / seen
    if weights == "softmax":
        assert law.mean(0.25).fourier(1)[0] == pytest.approx(0.34747 - 0.26433j, abs=1e-4)


def test_the_first_tokens_among_frozen_ones_see_nobody_else():
    """At u = 0 a law moves among frozen tokens alone, as single tokens do; SA and USA, on the circle and zonal in d = 4."""
    for dim, axis in ((2, None), (4, np.eye(4)[1])):
        pole = np.eye(dim)[1]
        for weights, until in (("softmax", 0.4), ("unnormalized", 0.1)):
            model = ms.Attention(dim=dim, beta=1.5, weights=weights, frozen=ms.Frozen([pole], [1.0]))
            start = Density.perturbed(dim, {1: 0.3, 2: 0.4}, degree=16, axis=axis)
            law = evolve(model, CausalDensity.alike(start), [until], rtol=1e-9).final.at(0.0)
            x, masses = start.nodes, start.weights * start.values
            # One token, which would count itself, too.
            alone = model.replace(mask=ms.Causal(include_self=False))
            moved = [ms.simulate(alone, one[None], times=[until], rtol=1e-10, atol=1e-12).final[0] for one in x]
            assert masses @ np.array(moved) @ pole == pytest.approx(law.mean @ pole, abs=1e-7)


def test_one_law_for_all_positions_among_frozen_tokens_is_refused():
    model = ms.Attention(dim=2, beta=2.0, frozen=ms.Frozen([[0.0, 1.0]], [0.5]))
    start = Density.perturbed(2, {1: 0.5})
    with pytest.raises(UnsupportedError, match=r"CausalDensity.alike"):
        evolve(model, start, [0.5])
    # One position is as good a start as twelve, and light tokens need many.
    laws = [evolve(model, CausalDensity.alike(start, count), [0.3]).final for count in (1, 3, 12)]
    for law in laws[:2]:
        assert np.abs(law.mean(0.3).fourier(3) - laws[2].mean(0.3).fourier(3)).max() < 1e-7
    light = evolve(model.replace(frozen=ms.Frozen([[0.0, 1.0]], [0.05])), CausalDensity.alike(start), [0.3], rtol=1e-7)
    assert light.status == "success"
    assert len(light.final.positions) > 96
    full = evolve(model.replace(mask=ms.Full()), start, [0.3]).final
    assert np.abs(laws[2].at(1.0).fourier(1) - full.fourier(1)).max() > 5e-4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"value": -np.eye(2)}, "V"),
        ({"norm": ms.PreLN()}, "PreLN"),
        ({"weights": "hardmax"}, "hardmax"),
        ({"mask": ms.Window(3)}, "Window"),
        ({"bias": ms.ALiBi(1.0)}, "bias"),
        ({"masses": [1.0, 2.0]}, "masses"),
    ],
)
def test_models_without_this_limit_are_refused(changes, words):
    model = ms.Attention(dim=2, beta=1.0).replace(**changes)
    with pytest.raises(UnsupportedError, match=words):
        evolve(model, Density.uniform(2), [1.0])


def test_what_does_not_fit_is_refused():
    model = ms.Attention(dim=3, beta=1.0, mask=ms.Full())
    with pytest.raises(InvalidInputError, match="dimension 2"):
        evolve(model, Density.uniform(2), [1.0])
    aside = model.replace(frozen=ms.Frozen([[0.0, 1.0, 0.0]]))
    with pytest.raises(UnsupportedError, match="axis"):
        evolve(aside, Density.uniform(3, axis=[1, 0, 0]), [1.0])
    with pytest.raises(UnsupportedError, match="frozen"):
        ms.meanfield.growth_rates(aside)
    with pytest.raises(NumericalRangeError, match="exp"):
        ms.meanfield.growth_rates(ms.Attention(dim=2, beta=1e3, mask=ms.Full(), weights="unnormalized"))
