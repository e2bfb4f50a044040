"""Where numbers end: small and large beta, densities that touch zero, laws that change fast, noise out of range, functions that are not
zonal; each against mpmath, against tokens, or refused by name."""

import mpmath
import numpy as np
import pytest
from scipy.special import iv

import metastable as ms
from metastable.errors import InvalidInputError, NumericalRangeError, ResolutionError, StoppedEarlyWarning
from metastable.meanfield import (
    CausalDensity,
    Density,
    branch,
    critical_kappa,
    evolve,
    growth_rates,
    onset,
    stationary,
    uniform_branch,
)


def full(**changes):
    return ms.Attention(**{"dim": 2, "beta": 5.0, "mask": ms.Full(), **changes})


def around(x):
    return np.arctan2(x[:, 1], x[:, 0])


def exact(l, dim, beta):
    """c_l of |beta|, in many digits."""
    with mpmath.workdps(40):
        size, half = mpmath.mpf(abs(beta)), mpmath.mpf(dim) / 2
        return mpmath.gamma(half) * (2 / size) ** (half - 1) * mpmath.besseli(l + half - 1, size)


@pytest.mark.parametrize("dim", [2, 3, 50, 5000])
@pytest.mark.parametrize("beta", [5e-324, 1e-300, 1e-12, 9.99e-9, -3e-9, 1e-8, 1e-3, -0.7, 15.9, 16.1, 300.0])
def test_growth_rates_have_no_smallest_beta(dim, beta):
    """Every mode to 1e-11, SA and USA; once there was nothing but mode 1 below 1e-8, and that off by |beta|."""
    for weights in ("softmax", "unnormalized"):
        found = growth_rates(full(dim=dim, beta=beta, weights=weights), 3)
        for l in (1, 2, 3):
            with mpmath.workdps(40):
                size = mpmath.mpf(abs(beta))
                pull = exact(l, dim, beta) / size / (exact(0, dim, beta) if weights == "softmax" else 1)
                known = float(l * (l + dim - 2) * pull) * (-1 if beta < 0 and l % 2 == 0 else 1)
            assert found[l - 1] == pytest.approx(known, rel=1e-11, abs=1e-300)


def test_the_critical_kappa_is_smooth_at_beta_zero():
    for dim in (2, 3, 1000):
        for beta in (0.0, 1e-300, 1e-9, -1e-9):
            assert critical_kappa(full(dim=dim, beta=beta)) == pytest.approx(dim, rel=1e-14)


def test_dimensions_in_which_the_mean_weight_is_no_number():
    """Rates are ratios, which exist; a density would have to divide by it."""
    model = full(dim=10_000, beta=2000.0)
    with mpmath.workdps(40):
        known = float(9999 * exact(1, 10_000, 2000.0) / exact(0, 10_000, 2000.0) / 2000)
    assert growth_rates(model, 1)[0] == pytest.approx(known, rel=1e-11)
    start = Density.uniform(10_000, degree=4, axis=np.eye(10_000)[0])
    for call in (lambda: evolve(model, start, [1.0]), lambda: stationary(model.replace(noise=0.1), start)):
        with pytest.raises(NumericalRangeError, match="lower beta"):
            call()


@pytest.mark.parametrize("rtol", [1e-3, 1e-6, 1e-8])
@pytest.mark.parametrize("beta", [2.0, 5.0])
def test_a_density_that_touches_zero_stays_a_density(rtol, beta):
    """1 + cos theta is zero at one point; series of a tolerance go below it, results do not."""
    evolution = evolve(full(beta=beta), Density.perturbed(2, {1: 1.0}), np.linspace(0, 2, 5), rtol=rtol)
    assert evolution.status == "success"
    known = modes_of_nodes(full(beta=beta), Density.perturbed(2, {1: 1.0}).with_degree(64), evolution.times)
    for law, modes in zip(evolution.densities, known):
        assert law.mass == 1.0
        assert law.values.min() >= 0.0
        assert np.abs(law.fourier(5) - modes).max() < 20 * rtol


def modes_of_nodes(model, start, times):
    """Modes 1..5 of tokens that stand for a density to rounding: its nodes with their masses (those of no mass left out)."""
    mass = start.weights * start.values
    kept = mass > 1e-15 * mass.max()
    run = ms.simulate(model.replace(masses=mass[kept]), start.nodes[kept], times=times, rtol=1e-11, atol=1e-13)
    return [mass[kept] @ (y @ [1, -1j])[:, None] ** np.arange(1, 6) / mass[kept].sum() for y in run.states]


@pytest.mark.parametrize("beta", [100.0, 1000.0])
def test_far_from_all_tokens_rounding_errors_move_nobody(beta):
    """The weight of the density is below rounding there, and so is its force: their ratio was anything, or infinite."""
    start = Density.from_function(lambda x: np.exp(20 * (x[:, 0] - 1)), 2)
    model = full(beta=beta)
    evolution = evolve(model, start, [0.3], max_steps=200)
    assert evolution.status == "success"
    assert np.abs(evolution.final.fourier(5) - modes_of_nodes(model, start, [0.3])[0]).max() < 1e-7


def test_unnormalised_attention_has_its_own_clock_up_to_the_end_of_numbers():
    for beta in (300.0, 690.0):
        model = full(beta=beta, weights="unnormalized")
        short = 2.0 / growth_rates(model, 40).max()
        sizes = evolve(model, Density.perturbed(2, {3: 1e-6}), [0.0, short]).amplitudes(3)[:, 2]
        assert np.log(sizes[1] / sizes[0]) == pytest.approx(growth_rates(model, 3)[2] * short, rel=1e-5)


def test_laws_between_positions_are_known_or_refused():
    """Twelve positions were taken for a law that needs 48: off by 3e-3 between them, without a word."""

    def law(u, x):
        return np.exp(1.5 * np.cos(around(x) - 4 * u))

    density = CausalDensity.from_function(law, 2)
    x = ms.sphere.uniform(50, 2, 0)
    for u in (0.05, 0.3, 0.77, 1.0):
        known = law(u, x) / np.i0(1.5)
        assert np.abs(density.at(u)(x) - known).max() < 1e-11
    with pytest.raises(ResolutionError, match="positions"):
        CausalDensity.from_function(lambda u, x: 1 + 0.9 * np.sign(u - 0.5) * x[:, 0], 2)
    coarse = CausalDensity.from_function(lambda u, x: np.exp(3 * np.cos(around(x) - 40 * u)), 2, positions=12)
    with pytest.raises(ResolutionError, match="more positions"):
        coarse.at(0.97)
    with pytest.warns(StoppedEarlyWarning, match="sequence"):
        evolve(ms.Attention(dim=2, beta=20.0), density, [50.0], modes=64, rtol=1e-4)


def test_a_function_with_an_axis_must_be_zonal():
    """On the one meridian that was looked at, 1 + x_2^2 is 2 - x_1^2."""
    for dim, axis in ((3, [1.0, 0, 0]), (5, [1.0, 0, 0, 0, 0])):
        with pytest.raises(InvalidInputError, match="alone"):
            Density.from_function(lambda x: 1 + x[:, 1] ** 2, dim, axis=axis)
    with pytest.raises(InvalidInputError, match="alone"):
        CausalDensity.from_function(lambda u, x: 1 + 0.5 * u * x[:, 1], 2, axis=[1.0, 0.0])
    tilted = ms.sphere.normalize([[1.0, 2.0, -1.0]])[0]
    assert Density.from_function(lambda x: np.exp(30 * x @ tilted), 3, axis=tilted).order_parameter > 0.9


def test_tokens_of_any_mass_and_bandwidth():
    for scale in (1e-320, 1e308):
        found = Density.from_tokens(np.eye(2), masses=[scale, scale / 2])
        known = Density.from_tokens(np.eye(2), masses=[2.0, 1.0])
        assert np.abs(found.coefficients - known.coefficients).max() < 1e-3  # 1e-320 has four digits
    assert Density.from_tokens(np.eye(2), bandwidth=1e200).order_parameter == 0.0


@pytest.mark.parametrize("noise", [1e-200, 1e-8, 1e8, 1e200])
def test_noise_out_of_range_is_refused_or_not_looked_at(noise):
    usa = full(beta=1.0, weights="unnormalized", noise=noise)
    for call in (lambda: stationary(usa, Density.uniform(2)), lambda: branch(usa, "beta", (0.5, 2.0))):
        with pytest.raises(InvalidInputError, match="kappa"):
            call()
    assert onset(usa).value == pytest.approx(1.769413, abs=1e-6)


def test_a_branch_does_not_depend_on_the_parameter_of_the_model():
    """With kappa the parameter the noise says nothing, with beta the model's own beta; both once set the unit of the steps."""
    one, other = (
        branch(full(beta=1.0, weights="unnormalized", noise=noise), limits=(1.5, 2.5)) for noise in (1e3, 1e-3)
    )
    assert one.values.tolist() == other.values.tolist()
    assert one.values[-1] == 2.5
    one, other = (
        branch(full(beta=beta, weights="unnormalized", noise=1.2), "beta", (0.5, 3.0)) for beta in (1e-3, 600.0)
    )
    assert one.values.tolist() == other.values.tolist()


@pytest.mark.parametrize(("weights", "kappa"), [("softmax", 10.0), ("softmax", 8.03), ("unnormalized", 2.5)])
def test_all_onsets_of_the_uniform_state(weights, kappa):
    """A mode may grow between two values of beta only: every zero of c_l/beta - 1/kappa in a fine scan, and no other."""
    model = full(weights=weights, noise=np.sqrt(2 / kappa))
    limits = (0.01, 30.0 if weights == "softmax" else 6.0)
    found = uniform_branch(model, "beta", limits, points=5)
    beta, known = np.geomspace(*limits, 40_001), []
    for l in range(1, 9):
        rates = iv(l, beta) / beta / (iv(0, beta) if weights == "softmax" else 1.0) - 1 / kappa
        known += [np.sqrt(beta[k] * beta[k + 1]) for k in np.flatnonzero(rates[1:] * rates[:-1] < 0)]
    assert len(found.bifurcations) == len(known)
    np.testing.assert_allclose(found.bifurcations, np.sort(known), rtol=1e-3)
    if kappa == 10.0:
        assert len(known) == 3  # mode 2 begins to grow and stops again, then mode 1
    for value in found.bifurcations:
        here = found.states[int(np.argmin(np.abs(found.values - value)))]
        assert np.abs(growth_rates(here.model, 8)).min() < 1e-9


def test_a_narrow_window_of_growth_is_not_missed():
    """kappa just above the one at which mode 2 of SA is neutral at a single beta: two onsets, closer than the marks of the scan."""
    beta = np.linspace(2.0, 3.5, 20_001)
    pull = iv(2, beta) / (beta * iv(0, beta))
    top, kappa = int(np.argmax(pull)), 1.0 / (pull.max() * (1 - 1e-5))
    found = uniform_branch(full(noise=np.sqrt(2 / kappa)), "beta", (0.1, 8.0), points=5).bifurcations
    near = [value for value in found if abs(value - beta[top]) < 0.1]
    assert len(near) == 2
    assert near[0] < beta[top] < near[1]


def test_a_ring_breaks_in_the_mode_that_grows_fastest():
    """Around the equator of S^2 that is m = 4 at beta = 20 (growth stopped looking at m = 3); and the density shows it."""
    model = full(dim=3, beta=20.0, noise=np.sqrt(2 / 50))
    ring = stationary(model, Density.from_function(lambda x: np.exp(-8 * x[:, 2] ** 2), 3, axis=[0, 0, 1.0]))
    assert ring.symmetry == 4
    assert not ring.stable

    def nudged(x):
        return ring.density(x) * (1 + 1e-4 * np.cos(4 * around(x)) * (1 - x[:, 2] ** 2) ** 2)

    laws = evolve(model, Density.from_function(nudged, 3, degree=48), [3.0, 5.0], rtol=1e-9).densities
    sizes = [np.linalg.norm(law.coefficients[np.abs(order(law)) == 4]) for law in laws]
    assert np.log(sizes[1] / sizes[0]) / 2.0 == pytest.approx(ring.growth, rel=2e-3)


def order(law):
    """m of each harmonic of S^2."""
    return np.concatenate([np.arange(-l, l + 1) for l in range(law.basis.degree + 1)])
