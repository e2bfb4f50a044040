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
    onset,
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


def test_frozen_tokens_before_a_sequence_have_no_one_stationary_law():
    pole = np.array([0.0, 1.0])
    full = model(2, 1.0, 1.0, frozen=ms.Frozen([pole], [0.5]))
    causal, start = full.replace(mask=ms.Causal()), Density.uniform(2, axis=pole)
    for call in (
        lambda: stationary(causal, start),
        lambda: branch(causal, start=start),
        lambda: branch(causal, start=stationary(full, start)),
    ):
        with pytest.raises(UnsupportedError, match=r"mask=Full\(\)"):
            call()
    # Without them the law is that of full attention, and stays at rest.
    state = stationary(model(2, 1.0, 3.0).replace(mask=ms.Causal()), rising(2))
    assert state.order_parameter == pytest.approx(stationary(model(2, 1.0, 3.0), rising(2)).order_parameter, abs=1e-12)


# ----------------------------------------------------------------------------------------------------------------- onsets


@pytest.mark.parametrize("beta", [1.0, 2.0, 3.0, 6.0])
def test_an_onset_is_continuous_whatever_is_varied(beta):
    """SA, d = 2: for kappa = kappa_#(beta) the same onset in beta; where the uniform state is unstable below it, the branch that bends
    to smaller beta is the continuous one."""
    first = onset(model(2, beta, weights="softmax"))
    other = onset(model(2, 1.0, first.value, "softmax"), "beta", (0.5 * beta, 2.0 * beta))
    assert other.value == pytest.approx(beta, rel=1e-6)
    assert (first.grows, other.grows) == ("above", "below")
    assert first.continuous == other.continuous == (first.curvature > 0)
    # On the side to which it bends there are states near the onset, on the other there are none.
    inside = first.value + np.sign(first.curvature) * 0.004 * first.value
    near = stationary(
        model(2, beta, inside, "softmax"),
        Density.perturbed(2, {1: 2 * np.sqrt(0.004 * first.value / abs(first.curvature))}),
    )
    assert 0.01 < near.order_parameter < 0.5
    assert near.stable == first.continuous


def test_the_onset_that_was_called_a_jump():
    found = onset(model(2, 1.0, 3.0, "softmax"), "beta", (1e-3, 30.0))
    assert found.value == pytest.approx(2.172476, abs=1e-6)
    assert found.continuous
    assert found.kind == "pitchfork"


@pytest.mark.parametrize(("dim", "mode"), [(3, 2), (4, 2), (3, 4)])
def test_even_modes_of_spheres_cross_the_uniform_state(dim, mode):
    """P_2 and -P_2 are different perturbations: the branch leaves at a slope, to both sides, and is followed to both."""
    here = model(dim, 2.0, weights="softmax")
    found = onset(here, mode=mode)
    assert found.kind == "transcritical"
    assert not found.continuous
    whole = branch(here, mode=mode, limits=(0.9 * found.value, 1.1 * found.value))
    top = whole.states[0].density.basis.functions(np.eye(1, dim))[0][mode]
    sizes = np.array([state.density.coefficients[mode] for state in whole.states]) / top
    place = int(np.argmin(np.abs(sizes)))
    assert sizes[place] == 0.0
    assert whole.values[place] == pytest.approx(found.value, abs=1e-10)
    assert (np.sign(sizes[:place]) == -1).all()
    assert (np.sign(sizes[place + 1 :]) == 1).all()
    for index in (place - 2, place - 1, place + 1, place + 2):
        known = found.value + found.slope * sizes[index] + found.curvature * sizes[index] ** 2
        # What is left is the third power.
        assert abs(whole.values[index] - known) < 0.1 * abs(found.slope * sizes[index])
    assert abs(found.slope) > 0.1


def test_odd_modes_and_the_circle_bend():
    for dim, mode in ((2, 1), (2, 2), (2, 4), (3, 1), (3, 3), (5, 1)):
        found = onset(model(dim, 2.0), mode=mode)
        assert (found.kind, found.slope) == ("pitchfork", 0.0)


def test_a_branch_starts_from_a_state_of_its_own_model():
    """It took beta from the state, whatever the model's."""
    state = stationary(model(2, 1.0, 2.5), rising(2))
    for other, parameter, word in (
        (model(2, 2.0, 2.5), "kappa", "beta"),
        (model(2, 1.0, 2.5, "softmax"), "kappa", "weights"),
        (model(2, 1.0, 2.0), "beta", "noise"),
    ):
        with pytest.raises(InvalidInputError, match=f"other {word}"):
            branch(other, parameter, start=state)
    along = branch(model(2, 1.0, 9.0), limits=(2.0, 3.0), start=state)
    assert {item.model.beta for item in along.states} == {1.0}
    assert along.values[0] == 2.0
    across = branch(model(2, 7.0, 2.5), "beta", (0.8, 1.3), start=state)
    assert across.values[[0, -1]].tolist() == [0.8, 1.3]


def test_axes_where_none_is_given_are_those_of_perturbations():
    """P_2 around e_3 was averaged around e_1, which leaves -1/2 of it: another state."""
    assert Density.uniform(3).as_zonal().axis.tolist() == [0, 0, 1]
    for law in (
        Density.perturbed(3, {2: 0.5}),
        Density.perturbed(3, {4: 0.5, 2: -0.1}),
        Density.perturbed(2, {3: 0.4}),
    ):
        assert law.as_zonal().amplitudes(5) == pytest.approx(law.amplitudes(5), abs=1e-14)
        assert law.as_zonal().axis.tolist() == np.eye(law.dim)[2 if law.dim == 3 else 0].tolist()
    assert branch(model(3, 2.0), limits=(1.2, 2.5)).states[-1].density.axis.tolist() == [0, 0, 1]
    # Any other axis is found.
    from scipy.special import eval_legendre

    pole = ms.sphere.uniform(1, 3, 4)[0]
    tilted = Density.from_function(lambda x: 1 + 0.3 * eval_legendre(4, x @ pole) - 0.2 * eval_legendre(6, x @ pole), 3)
    assert tilted.as_zonal().amplitudes(6) == pytest.approx(tilted.amplitudes(6), abs=1e-12)
    turned = Density.from_function(lambda x: 1 + 0.5 * np.sin(2 * np.arctan2(x[:, 1], x[:, 0])), 2)
    assert turned.as_zonal().amplitudes(2)[1] == pytest.approx(0.25, abs=1e-13)


def test_what_has_no_stationary_density_is_refused():
    with pytest.raises(UnsupportedError, match="noise"):
        stationary(ms.Attention(dim=2, beta=1.0, mask=ms.Full()), Density.uniform(2))
    with pytest.raises(InvalidInputError, match="nowhere"):
        branch(model(2, 1.0), limits=(0.1, 0.2))
    with pytest.raises(InvalidInputError, match="limits"):
        branch(model(2, 1.0), limits=(2.0, 1.0))
    assert issubclass(ConvergenceError, ArithmeticError)
