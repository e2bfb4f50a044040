"""Stationary laws with noise, their stability and their branches, against evolution, fixed points and closed forms."""

import numpy as np
import pytest

import metastable as ms
from metastable.errors import ConvergenceError, InvalidInputError, UnsupportedError
from metastable.meanfield import (
    Density,
    balance,
    branch,
    critical_kappa,
    evolve,
    growth_rates,
    stationary,
    uniform_branch,
)


def model(dim=2, beta=1.0, kappa=2.0, weights="unnormalized", **more):
    return ms.Attention(dim=dim, beta=beta, mask=ms.Full(), weights=weights, noise=np.sqrt(2 / kappa), **more)


def rising(dim, strength=1.5):
    """Somewhat aligned."""
    axis = np.eye(dim)[0]
    return Density.from_function(lambda x: np.exp(strength * x @ axis), dim, axis=axis)


@pytest.mark.parametrize(("dim", "beta", "kappa", "weights"), [(2, 1.0, 2.0, "unnormalized"), (3, 2.0, 7.0, "softmax")])
def test_a_stationary_law_is_a_fixed_point_on_a_grid_and_at_rest(dim, beta, kappa, weights):
    here = model(dim, beta, kappa, weights)
    state = stationary(here, rising(dim))
    assert state.stable
    assert state.order_parameter > 0.3
    # mu = exp(kappa psi)/Z by sums over pairs of nodes; no series, no formula.
    law = Density.from_function(lambda x: state.density(x), dim, degree=24)
    x, mass = law.nodes, law.weights * law.values
    pull = np.exp(beta * (x @ x.T)) @ mass
    psi = pull / beta if weights == "unnormalized" else np.log(pull) / beta
    known = np.exp(kappa * (psi - psi.max()))
    assert np.abs(law.values - known / (law.weights @ known)).max() < 1e-8
    # And the Fokker-Planck equation, which knows nothing of this module, leaves it where it is.
    later = evolve(here, state.density, [1.0], rtol=1e-9).final
    assert np.abs(later.with_degree(24).coefficients - state.density.with_degree(24).coefficients).max() < 1e-7


def test_beta_zero_is_the_noisy_kuramoto_model():
    """mu = exp(kappa <m, x>)/Z: the order parameter solves r = I_1(kappa r)/I_0(kappa r)."""
    from scipy.optimize import brentq
    from scipy.special import ive

    for weights in ("softmax", "unnormalized"):
        state = stationary(model(2, 0.0, 3.0, weights), rising(2))
        known = brentq(lambda r: r - ive(1, 3 * r) / ive(0, 3 * r), 0.1, 1)
        assert state.order_parameter == pytest.approx(known, abs=1e-12)


def test_the_growth_of_perturbations_is_the_one_that_evolution_shows():
    """The leading rate of an unstable state (between the folds) in the zonal class, and of the uniform one."""
    here = model(2, 4.0, 0.4)
    unstable = branch(here, limits=(0.38, 0.42))
    index = int(np.argmin(np.abs(unstable.values - 0.4) + unstable.stable))
    state = unstable.states[index]
    assert not state.stable
    nudged = 1e-6 * balance_mode(state)
    started = Density(2, state.density.coefficients + nudged, state.density.axis)
    times = np.array([0.0, 0.2])
    laws = evolve(state.model, started, times, rtol=1e-12).densities
    away = [
        np.linalg.norm(law.with_degree(24).coefficients - state.density.with_degree(24).coefficients) for law in laws
    ]
    assert np.log(away[1] / away[0]) / 0.2 == pytest.approx(state.growth, rel=1e-3)
    flat = stationary(model(3, 2.0, 3.0), Density.uniform(3))
    assert flat.growth == pytest.approx(growth_rates(flat.model).max(), rel=1e-9)


def balance_mode(state):
    """The fastest zonal perturbation of a state, of size one."""
    density = state.density
    system = balance.make_system(state.model, density.axis, density.basis.degree, state.kappa, state.model.beta)
    values, vectors = np.linalg.eig(balance.sector_matrix(system, density.coefficients, 0))
    mode = vectors[:, np.argmax(values.real)].real
    found = np.zeros_like(density.coefficients)
    found[1 : 1 + mode.size] = mode
    return found


@pytest.mark.parametrize(("dim", "beta"), [(2, 1.0), (3, 2.5)])
def test_turning_a_state_costs_nothing(dim, beta):
    """The rotation is a neutral mode of symmetry m = 1: an eigenvalue that must be zero, and that growth leaves out."""
    state = stationary(model(dim, beta, 1.6 * critical_kappa(model(dim, beta))), rising(dim, 4.0))
    density = state.density
    system = balance.make_system(state.model, density.axis, density.basis.degree, state.kappa, beta)
    values = np.linalg.eigvals(balance.sector_matrix(system, density.coefficients, 1))
    assert np.abs(values).min() < 1e-9
    assert state.growth < -1e-3


def test_a_branch_with_a_fold():
    here = model(2, 4.0)
    found = branch(here, limits=(0.37, 0.45))
    assert found.mode == 1
    assert found.values[0] == pytest.approx(critical_kappa(here), abs=1e-12)
    assert found.values[-1] == 0.45
    assert len(found.folds) == 1
    fold = int(np.argmin(found.values))
    assert not found.stable[1:fold].any()
    assert found.stable[fold + 1 :].all()
    assert found.folds[0] <= found.values.min()
    # The same fold from a state on the upper part, in both directions.
    upper = branch(here, limits=(0.37, 0.45), start=stationary(model(2, 4.0, 0.42), rising(2, 4.0)))
    assert upper.folds == pytest.approx(found.folds, abs=1e-9)
    assert upper.values[-1] == 0.45


def test_a_branch_in_beta_meets_the_one_in_kappa():
    found = branch(model(2, 1.0, 1.5), "beta", limits=(0.05, 2.2))
    assert found.values[0] < 2.0 < found.values[-1]
    nearest = found.states[int(np.argmin(np.abs(found.values - 2.0)))]
    again = stationary(nearest.model, rising(2))
    assert again.order_parameter == pytest.approx(nearest.order_parameter, abs=1e-10)
    flat = uniform_branch(model(2, 1.0, 1.5), "beta", limits=(0.05, 2.2))
    assert flat.bifurcations[0] == pytest.approx(found.values[0], abs=1e-12)
    assert flat.stable[flat.values < flat.bifurcations[0]].all()


def test_frozen_tokens_hold_a_law():
    pole = np.array([0.0, 1.0])
    here = model(2, 1.0, 1.0, frozen=ms.Frozen([pole], [0.5]))
    state = stationary(here, Density.uniform(2, axis=pole))
    assert state.stable
    later = evolve(here, state.density, [1.0], rtol=1e-9).final
    assert later.order_parameter == pytest.approx(state.order_parameter, abs=1e-9)
    with pytest.raises(UnsupportedError, match="axis"):
        stationary(here, Density.uniform(2, axis=[1.0, 0.0]))
    with pytest.raises(InvalidInputError, match="frozen"):
        branch(here)


def test_what_has_no_stationary_density_is_refused():
    with pytest.raises(UnsupportedError, match="noise"):
        stationary(ms.Attention(dim=2, beta=1.0, mask=ms.Full()), Density.uniform(2))
    with pytest.raises(InvalidInputError, match="nowhere"):
        branch(model(2, 1.0), limits=(0.1, 0.2))
    with pytest.raises(InvalidInputError, match="limits"):
        branch(model(2, 1.0), limits=(2.0, 1.0))
    assert issubclass(ConvergenceError, ArithmeticError)
