"""Mean-field statements: growth rates and fastest modes (arXiv:2410.23228), phase transitions (arXiv:2606.05140, 2510.20094)."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import iv

import metastable as ms
from metastable.meanfield import (
    CausalDensity,
    Density,
    branch,
    critical_kappa,
    evolve,
    fastest_mode,
    growth_rates,
    onset,
    stationary,
    tricritical_beta,
    uniform_branch,
)


def full(beta, dim=2, **more):
    return ms.Attention(dim=dim, beta=beta, mask=ms.Full(), **more)


@pytest.mark.parametrize("beta", [1.0, 5.0, 16.0])
def test_growth_of_tokens_and_of_the_density_on_the_circle(beta):
    """k^2 I_k(beta)/(beta I_0(beta)), k = 1..6, six digits."""
    model, k = full(beta), np.arange(1, 7)
    known = k**2 * iv(k, beta) / (beta * iv(0, beta))
    assert growth_rates(model, 6) == pytest.approx(known, rel=1e-12)
    until = 0.5 / known.max()
    even = 2 * np.pi * np.arange(128) / 128
    for mode, rate in zip(k, known):
        start = Density.perturbed(2, {int(mode): 1e-6})
        later = evolve(model, start, [until], rtol=1e-12).final
        grown = np.log(later.amplitudes(6)[mode - 1] / start.amplitudes(6)[mode - 1]) / until
        assert grown == pytest.approx(rate, rel=1e-6)
        angles = even - 1e-6 / mode * np.sin(mode * even)
        run = ms.simulate(
            model, ms.sphere.from_angle(angles), times=[until], rtol=1e-12, atol=1e-14, engine="reference"
        )
        sizes = [abs(np.mean(np.exp(1j * mode * a))) for a in (angles, ms.sphere.to_angle(run.final))]
        assert np.log(sizes[1] / sizes[0]) / until == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("beta", [1.0, 5.0, 16.0])
def test_growth_of_tokens_and_of_the_density_on_the_sphere(beta):
    """l (l + 1) c_l/(beta c_0), c_l ~ I_(l + 1/2), l = 1..6; tokens are nodes of a quadrature rule with their weights as masses."""
    l = np.arange(1, 7)
    known = l * (l + 1) * iv(l + 0.5, beta) / (beta * iv(0.5, beta))
    until = 0.5 / known.max()
    even = Density.uniform(3, degree=20)
    x = even.nodes
    model = full(beta, 3)
    assert growth_rates(model, 6) == pytest.approx(known, rel=1e-12)
    for degree, rate in zip(l, known):
        start = Density.perturbed(3, {int(degree): 1e-6}, degree=20)
        later = evolve(model, start, [until], rtol=1e-12).final
        grown = np.log(later.amplitudes(6)[degree - 1] / start.amplitudes(6)[degree - 1]) / until
        assert grown == pytest.approx(rate, rel=1e-6)
    # Tokens, moved by +-1e-5: how the odd part of their amplitude changes along their velocity.
    masses = even.weights
    crowd = model.replace(masses=masses / masses.max())
    basis = even.basis
    for degree, known_rate in zip(l, known):
        place = degree * degree + degree  # zonal, in x_3
        shape = np.eye(1, basis.size, place)[0]
        slopes = np.einsum("cq,cqd->qd", basis.gradient(shape), basis.frames) / (degree * (degree + 1))
        sizes, changes = [], []
        for sign in (1, -1):
            moved = ms.sphere.normalize(x + sign * 1e-5 * slopes)
            velocity = ms.velocity(crowd, moved, engine="reference")
            places = [ms.sphere.normalize(moved + step * velocity) for step in (0, 1, -1)]
            here, ahead, behind = (masses @ basis.functions(points)[:, place] for points in places)
            sizes.append(here)
            changes.append((ahead - behind) / 2)
        assert (changes[0] - changes[1]) / (sizes[0] - sizes[1]) == pytest.approx(known_rate, rel=1e-6)


def test_the_fastest_mode_sets_the_number_of_clusters():
    known = {1: 1, 2: 2, 4: 3, 5: 3, 7: 4, 16: 6, 64: 11, 100: 14, 256: 23}
    assert {beta: fastest_mode(full(float(beta))) for beta in known} == known
    assert fastest_mode(full(5.0, noise=10.0)) == 0


def test_tokens_come_near_the_density_like_one_over_the_square_root():
    """Independent starts: n^(-1/2); quantiles: far below, to the error of the integration."""
    model = full(3.0)
    density = Density.perturbed(2, {1: 0.3, 2: 0.3})
    known = evolve(model, density, [1.0], rtol=1e-10).final.fourier(3)

    def error(x):
        final = ms.simulate(model, x, times=[1.0], rtol=1e-7).final @ [1, -1j]
        return np.abs(np.mean(final[:, None] ** np.arange(1, 4), axis=0) - known).max()

    sizes = (40, 160, 640)
    drawn = [np.sqrt(np.mean([error(density.sample(n, seed)) ** 2 for seed in range(10)])) for n in sizes]
    order = -np.polyfit(np.log(sizes), np.log(drawn), 1)[0]
    assert 0.35 < order < 0.65
    assert error(density.quantiles(160)) < 1e-5 < 1e-2 < drawn[1]


def test_causal_tokens_come_near_the_laws_of_their_positions():
    """Laws that turn along the sequence, before u = 0.25 and in all; independent tokens: n^(-1/2); spread evenly: far below, and nearly
    like 1/n up to 10^5."""
    model = ms.Attention(dim=2, beta=3.0)
    start = CausalDensity.from_function(lambda u, x: 1 + 0.7 * np.cos(np.arctan2(x[:, 1], x[:, 0]) - 2 * u), 2)
    laws = evolve(model, start, [0.5]).final
    known = {u: laws.mean(u).fourier(3) for u in (0.25, 1.0)}

    def error(n, seed=None):
        x = ms.simulate(model, start.sequence(n, seed), times=[0.5], interaction="series", threads=1).final @ [1, -1j]
        return [np.abs(np.mean(x[: int(n * u), None] ** np.arange(1, 4), axis=0) - known[u]).max() for u in known]

    sizes = (250, 1000, 4000)
    drawn = [np.sqrt(np.mean([np.square(error(n, seed)) for seed in range(10)], axis=0)) for n in sizes]
    for place in (0, 1):
        order = -np.polyfit(np.log(sizes), np.log([size[place] for size in drawn]), 1)[0]
        assert 0.35 < order < 0.65
    even = [max(error(n)) for n in (1000, 100_000)]
    assert even[0] < max(drawn[1]) / 5
    assert even[1] < even[0] / 20
    assert even[1] < 5e-4


def test_fokker_planck_against_an_ensemble_with_noise():
    """Means over 16 members of 10^4 tokens, at five times, within three standard errors."""
    model = full(2.0, noise=0.6)
    density = Density.perturbed(2, {1: 0.5, 2: 0.3})
    times = [0.2, 0.4, 0.6, 0.8, 1.0]
    laws = evolve(model, density, times, rtol=1e-9).densities
    known = np.array([law.fourier(2).real for law in laws])

    def modes(seed):
        x = density.sample(10_000, 100 + seed)
        run = ms.simulate(model, x, times=times, seed=seed, step=0.01, threads=1)
        assert run.interaction == "series"
        z = run.states @ np.array([1, 1j])
        return np.stack([z.mean(axis=1).real, (z**2).mean(axis=1).real], axis=-1)

    found = [modes(seed) for seed in range(16)]
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(16)
    assert np.abs((mean - known) / error).max() < 3.0


# ------------------------------------------------------------------------------------------------------ phase transitions


def usa(dim, beta, kappa=1.0):
    return ms.Attention(dim=dim, beta=beta, mask=ms.Full(), weights="unnormalized", noise=np.sqrt(2 / kappa))


@pytest.mark.parametrize(("dim", "beta", "known"), [(2, 1.0, 1.769413), (2, 2.0, 1.257358), (3, 1.0, np.e)])
def test_the_uniform_state_loses_its_stability_where_the_formula_says(dim, beta, known):
    """kappa_# = 2 (beta/2)^(d/2)/(Gamma(d/2) I_(d/2)(beta)), found by following the uniform state: quadrature and eigenvalues."""
    found = uniform_branch(usa(dim, beta), limits=(0.5, 5.0), points=9)
    assert found.bifurcations[0] == pytest.approx(known, abs=1e-6)
    assert found.bifurcations[0] == pytest.approx(critical_kappa(usa(dim, beta)), rel=1e-12)
    stable = found.growth < 0
    assert (stable == (found.values < found.bifurcations[0] - 1e-9)).all()


@pytest.mark.parametrize(("dim", "known"), [(2, 2.446918), (3, 1.816155), (4, 1.575257), (8, 1.266553), (64, 1.031494)])
def test_the_transition_becomes_a_jump_at_the_tricritical_beta(dim, known):
    """Where the branch that leaves the uniform state changes the side to which it bends, by continuation."""
    found = brentq(lambda beta: onset(usa(dim, beta)).curvature, 1.0, 3.0, xtol=1e-9)
    assert found == pytest.approx(known, abs=1e-6)
    assert tricritical_beta(dim) == pytest.approx(found, abs=1e-6)


def test_a_ramp_of_two_thousand_tokens_shows_hysteresis():
    """kappa up and down through the fold (0.387) and kappa_# (0.410), beta = 4, by series: order on the way down where there was none
    on the way up, and everything as at first at the end. The values are those of the branches."""
    kappas, ordered = (0.37, 0.391, 0.44), Density.from_function(lambda x: np.exp(3 * x[:, 0]), 2)
    x, found = ms.sphere.uniform(2000, 2, 3), []
    for number, kappa in enumerate((*kappas, *kappas[-2::-1])):
        # Near the onset, and below the fold, the way is long.
        until = 8.0 if kappa == 0.391 else 24.0
        times = until * np.array([0.8, 0.9, 1.0])
        run = ms.simulate(usa(2, 4.0, kappa), x, times=times, seed=number, step=0.016, threads=1, progress=False)
        assert run.interaction == "series"
        x = run.final
        found.append(float(run.observe(ms.observe.order_parameter()).mean()))
    assert max(found[0], found[1], found[4]) < 0.3
    for place, kappa in ((2, 0.44), (3, 0.391)):
        assert found[place] == pytest.approx(stationary(usa(2, 4.0, kappa), ordered).order_parameter, abs=0.15)


def test_hysteresis_above_the_tricritical_beta_and_none_below():
    """1000 tokens with noise, from all over and from one place. beta = 4: both last, over more than two relaxation times of the aligned
    state, where both are stable. beta = 1: one is left, on either side of kappa_#."""

    def ends(beta, kappa, until, step):
        model = usa(2, beta, kappa)
        starts = ms.sphere.uniform(1000, 2, 0), ms.sphere.from_angle(np.full(1000, 0.3))
        times = until * np.array([0.6, 0.7, 0.8, 0.9, 1.0])
        runs = [ms.simulate(model, x, times=times, seed=1, step=step, threads=1) for x in starts]
        return [float(run.observe(ms.observe.order_parameter()).mean()) for run in runs]

    kappa, aligned = 0.391, Density.from_function(lambda x: np.exp(3 * x[:, 0]), 2)
    upper = stationary(usa(2, 4.0, kappa), aligned)
    found = branch(usa(2, 4.0), limits=(0.37, 0.45))
    assert found.folds[0] < kappa < critical_kappa(usa(2, 4.0))
    assert upper.stable
    assert upper.growth < -2 / 8.0
    low, high = ends(4.0, kappa, 8.0, 0.016)
    between = found.order_parameter[~found.stable & (found.values > kappa)].max()
    assert low < between - 0.1
    assert high == pytest.approx(upper.order_parameter, abs=0.1)
    for kappa, until in ((1.2, 12.0), (3.0, 24.0)):
        low, high = ends(1.0, kappa, until, 0.06)
        known = stationary(usa(2, 1.0, kappa), aligned).order_parameter
        assert low == pytest.approx(known, abs=0.15)
        assert high == pytest.approx(known, abs=0.15)
