"""Densities: from functions, tokens and perturbations; what they answer, and what they refuse."""

import numpy as np
import pytest
from scipy import integrate, special

import metastable as ms
from metastable.errors import InvalidInputError, ResolutionError, TokenError, UnsupportedError
from metastable.meanfield.positions import smoothing

Density, CausalDensity = ms.meanfield.Density, ms.meanfield.CausalDensity


def bump(axis):
    """A density that is highest at `axis`."""
    return lambda x: np.exp(2.0 * (x @ np.asarray(axis)))


@pytest.mark.parametrize(
    ("dim", "axis", "pole"),
    [
        (2, None, [0.6, 0.8]),
        (3, None, [0.48, 0.6, 0.64]),
        (3, [0.48, 0.6, 0.64], [0.48, 0.6, 0.64]),
        (6, [0, 0, 1, 0, 0, 0], None),
    ],
)
def test_a_density_from_a_function(dim, axis, pole):
    pole = np.array(axis if pole is None else pole, dtype=float)
    density = Density.from_function(bump(pole), dim, axis=axis)
    x = ms.sphere.uniform(20, dim, 0)
    # von Mises and Fisher: the constant and the mean are ratios of Bessel functions.
    norm = special.gamma(dim / 2) * special.iv(dim / 2 - 1, 2.0)
    assert np.abs(density(x) - np.exp(2.0 * x @ pole) / norm).max() < 1e-11
    assert np.abs(density.mean - pole * special.iv(dim / 2, 2.0) / special.iv(dim / 2 - 1, 2.0)).max() < 1e-13
    assert density.mass == pytest.approx(1.0, abs=1e-14)
    assert density.values.min() > 0
    assert density.weights @ density.values == pytest.approx(1.0, abs=1e-13)


def test_tokens_smeared_out_by_the_heat_kernel():
    """Fourier modes of tokens times exp(-k^2 h^2/2), a positive density; the mean of harmonics on S^2."""
    angles = np.array([0.1, 2.0, 2.1, -1.0])
    masses = [1.0, 2.0, 1.0, 4.0]
    density = Density.from_tokens(ms.sphere.from_angle(angles), bandwidth=0.2, masses=masses)
    k = np.arange(1, 9)
    known = np.average(np.exp(-1j * np.outer(angles, k)), axis=0, weights=masses) * np.exp(-0.02 * k**2)
    assert np.abs(density.fourier(8) - known).max() < 1e-14
    # Wrapped Gaussians around the tokens.
    grid = np.linspace(-3, 3, 50)
    shifted = grid[:, None, None] - angles[:, None] + 2 * np.pi * np.arange(-3, 4)
    known = (
        np.average(np.exp(-0.5 * (shifted / 0.2) ** 2).sum(axis=-1), axis=1, weights=masses) / np.sqrt(2 * np.pi) / 0.2
    )
    assert np.abs(density.at_angle(grid) / (2 * np.pi) - known).max() < 1e-10
    x = ms.sphere.uniform(50, 3, 0)
    round_one = Density.from_tokens(x)
    width = 0.5 * 50 ** (-1 / 6)
    assert np.abs(round_one.mean - x.mean(axis=0) * np.exp(-(width**2))).max() < 1e-13
    along = Density.from_tokens(x, axis=[0, 0, 1.0])
    assert along.mean[2] == pytest.approx(round_one.mean[2], abs=1e-13)


def test_perturbations_amplitudes_and_zonal_means():
    density = Density.perturbed(3, {1: 0.2, 4: -0.1})
    x = ms.sphere.uniform(9, 3, 0)
    assert np.abs(density(x) - 1 - 0.2 * x[:, 2] + 0.1 * special.eval_legendre(4, x[:, 2])).max() < 1e-13
    assert density.amplitudes(5) == pytest.approx([0.2 / 3, 0, 0, 0.1 / 9, 0], abs=1e-14)
    same = density.as_zonal()
    assert np.abs(same(x) - density(x)).max() < 1e-13
    turned = Density.from_function(bump([0.0, 0.6, 0.8]), 3).as_zonal()
    assert np.abs(turned(x) - Density.from_function(bump([0.0, 0.6, 0.8]), 3)(x)).max() < 1e-11
    assert Density.from_tokens(ms.sphere.from_angle([1.0]), bandwidth=0.01).amplitudes(2) == pytest.approx(
        1.0, abs=2e-4
    )


def test_tokens_drawn_from_a_density():
    density = Density.from_function(bump([1.0, 0.0]), 2)
    even = density.quantiles(500)
    assert np.abs(np.mean((even @ [1, -1j])[:, None] ** np.arange(1, 5), axis=0) - density.fourier(4)).max() < 1e-4
    mass = integrate.quad(lambda t: density.at_angle(t)[0] / (2 * np.pi), 0, ms.sphere.to_angle(even[7]))[0]
    assert mass == pytest.approx(7.5 / 500, abs=1e-12)
    for law in (
        density,
        Density.from_function(bump([0, 0, 1.0]), 3),
        Density.perturbed(5, {1: 0.9}, axis=[0, 1, 0, 0, 0]),
    ):
        x = law.sample(4000, seed=0)
        assert np.abs(x.mean(axis=0) - law.mean).max() < 4 / np.sqrt(4000)


def test_laws_by_position():
    """Averages below u, against the integral over positions."""

    def law(u, x):
        return 1 + 0.8 * np.cos(np.arctan2(x[:, 1], x[:, 0]) - 2 * u)

    density = CausalDensity.from_function(law, 2)
    assert density.at(0.4).fourier(1)[0] == pytest.approx(0.4 * np.exp(-0.8j), abs=1e-11)
    for u in (0.3, 1.0):
        known = 0.4 * (1 - np.exp(-2j * u)) / (2j * u)
        assert density.mean(u).fourier(1)[0] == pytest.approx(known, abs=1e-11)
    assert density.mean(0.0).fourier(1)[0] == pytest.approx(0.4, abs=1e-9)
    x = density.sequence(2000)
    modes = x @ [1, -1j]
    assert abs(modes.mean() - density.mean().fourier(1)[0]) < 2e-3
    assert abs(modes[:500].mean() - density.mean(0.25).fourier(1)[0]) < 6e-3
    assert abs(density.sequence(2000, seed=1).mean() - density.mean().mean.mean()) < 0.1


@pytest.mark.parametrize("count", [1, 2, 3, 12, 95, 96])
def test_laws_of_tokens_are_smoothed_by_a_positive_kernel(count):
    """At every two positions, up to rounding; narrower with more of them."""
    factors, t = smoothing(count), np.polynomial.legendre.legvander(np.linspace(-1, 1, 201), count - 1)
    kernel = (t * (factors * (2 * np.arange(count) + 1))) @ t.T
    assert kernel.min() > -1e-13 * kernel.max()
    assert factors[0] == 1.0
    if count > 2:
        assert 1 - factors[1] < 12 / (count + 1) ** 2


@pytest.mark.parametrize("dim", [2, 3])
def test_laws_of_tokens_by_position(dim):
    """The average of all laws is that of all tokens; there is a law everywhere; and it is near that which the tokens are of."""
    x = ms.sphere.uniform(300, dim, 0)
    density = CausalDensity.from_tokens(x, positions=9, bandwidth=0.4)
    whole = Density.from_tokens(x, bandwidth=0.4)
    np.testing.assert_allclose(density.mean().coefficients, whole.coefficients, atol=1e-12)
    for u in np.linspace(0, 1, 7):
        assert density.at(float(u)).mass == density.mean(float(u)).mass == 1.0
    zonal = CausalDensity.from_tokens(x, positions=3, axis=np.eye(dim)[0])
    assert zonal.axis is not None


def test_laws_of_tokens_come_near_those_that_they_are_drawn_from():
    known = CausalDensity.from_function(lambda u, x: np.exp(np.cos(np.arctan2(x[:, 1], x[:, 0]) - 3 * u)), 2)
    errors = []
    for tokens, positions in ((300, 6), (20_000, 24)):
        found = CausalDensity.from_tokens(known.sequence(tokens), positions)
        errors.append(max(np.abs(found.at(u).fourier(2) - known.at(u).fourier(2)).max() for u in (0.1, 0.5, 0.9)))
    assert errors[1] < 0.03 < errors[0]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Density.uniform(4), UnsupportedError, "axis"),
        (lambda: Density.perturbed(2, {1: 3.0}), InvalidInputError, "not negative"),
        (lambda: Density.from_function(lambda x: -x[:, 0], 2), InvalidInputError, "not negative"),
        (lambda: Density.from_function(lambda x: 1.0, 2), InvalidInputError, "one number for each"),
        (lambda: Density.from_function(lambda x: 1 / 0, 2), InvalidInputError, "ZeroDivisionError"),
        (lambda: Density.from_function(lambda x: (x[:, 0] > 0.5) * 1.0, 2), ResolutionError, "more detail"),
        (lambda: Density.from_tokens([[1.0, 0.0]], bandwidth=1e-6), ResolutionError, "bandwidth"),
        (lambda: Density.from_tokens([[1.0, 0.0]], bandwidth=0.01, degree=16), InvalidInputError, "bandwidth"),
        (lambda: Density.from_tokens([[1.0, 1.0]]), TokenError, "length"),
        (lambda: CausalDensity.from_tokens([[1.0, 0.0]] * 5, positions=6), InvalidInputError, "positions=5 or less"),
        (lambda: CausalDensity.from_tokens([[1.0, 0.0]] * 5, 2, bandwidth=1e-6), ResolutionError, "bandwidth"),
        (lambda: Density(2, [1.0, 0.0]), InvalidInputError, "full set"),
        (lambda: Density(2, [2.0, 0.0, 0.0]), InvalidInputError, "mass"),
        (lambda: Density.uniform(3).at_angle(0.0), UnsupportedError, "circle"),
        (lambda: Density.uniform(3).quantiles(5), UnsupportedError, "circle"),
    ],
)
def test_what_is_no_density_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
