"""Huge, tiny and impossible arguments: a named exception or a right answer, never a hang, NaN or another exception."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import metastable as ms
from metastable import errors, theory
from metastable.integrate import brownian, planning, sde
from metastable.kernels import harmonics

MODEL = ms.Attention(dim=3, beta=4.0)
NOISY = MODEL.replace(noise=0.3)
START = ms.sphere.uniform(5, dim=3, seed=0)


# --------------------------------------------------------------------------------------------------- fixed steps


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (NOISY, {"until": 1e12, "seed": 0}),
        (NOISY, {"until": 1e300, "seed": 0, "step": 1e-300}),
        (NOISY, {"times": [1.0, 1e30], "seed": 0}),
        (MODEL, {"until": 1e12, "method": "layers", "step": 0.1}),
        (MODEL, {"until": 1.1, "method": "layers", "step": 0.1, "max_steps": 10}),
        (NOISY, {"until": 0.11, "seed": 0, "max_steps": 10}),
    ],
)
def test_too_many_steps_are_refused_before_work(model, options):
    with pytest.raises(errors.TimeError, match="max_steps"):
        ms.simulate(model, START, **options)
    times = options.get("times", [options.get("until")])
    rest = {name: value for name, value in options.items() if name not in ("times", "until", "seed")}
    with pytest.raises(errors.TimeError, match="max_steps"):
        ms.ensemble(model, tokens=5, members=2, times=times, seed=0, **rest)


@pytest.mark.parametrize("options", [{"method": "layers", "step": 0.1}, {"method": "sde", "step": 0.1}])
def test_max_steps_itself_is_allowed(options):
    run = ms.simulate(MODEL, START, 1.0, max_steps=10, engine="reference", **options)
    assert run.stats.accepted == 10
    assert run.end == pytest.approx(1.0)


@pytest.mark.parametrize("options", [{"until": 1e-9}, {"times": [1e-9, 1.0]}, {"times": [0.0, 1e-9]}])
def test_times_shorter_than_a_step(options):
    with pytest.raises(errors.TimeError, match="not one of its multiples"):
        ms.simulate(MODEL, START, method="layers", step=0.1, **options)


def test_two_times_in_one_step():
    """Both were taken for one step, and the ensemble had a NaN at its end with status "success"."""
    times = [1.0, 1.0 + 1e-9]
    with pytest.raises(errors.TimeError, match="same step"):
        ms.simulate(MODEL, START, times=times, method="layers", step=0.1)
    with pytest.raises(errors.TimeError, match="same step"):
        ms.ensemble(NOISY, tokens=5, members=2, times=times, seed=0)


@pytest.mark.parametrize("method", ["auto", "tsit5", "layers"])
def test_huge_counts(method):
    step = 0.1 if method == "layers" else None
    for huge in (10**30, 10**10_000):
        with pytest.raises(errors.InvalidInputError, match="max_steps must be at most"):
            ms.simulate(MODEL, START, 1.0, method=method, step=step, max_steps=huge, engine="reference")
    assert (
        ms.simulate(MODEL, START, 1.0, method=method, step=step, max_steps=2**62, engine="reference").status
        == "success"
    )
    for mask in (lambda n: ms.Window(n), lambda n: ms.Sink(n, 1), lambda n: ms.Sink(1, n), lambda n: ms.Prefix(n)):
        with pytest.raises(errors.ModelError):
            mask(10**30)
        assert mask(2**62).matrix(4).any(axis=1).all()


# ---------------------------------------------------------------------------------------------------------- noise


def test_the_default_step_follows_the_noise():
    """0.01 where noise forgets slowly; halved, so that its multiples stay multiples, until sigma^2 (d - 1) step <= 1."""
    assert sde.default_step(NOISY) == 0.01
    for dim, sigma in ((64, 1.0), (128, 1.0), (1024, 3.0), (3, 40.0)):
        model = ms.Attention(dim=dim, beta=1.0, noise=sigma)
        step = sde.default_step(model)
        assert 0.5 < sigma**2 * (dim - 1) * step <= 1.0
        assert math.log2(0.01 / step) == round(math.log2(0.01 / step))
        assert sde.default_step(model.replace(value=np.zeros((dim, dim)))) == 0.01  # noise alone is exact


def test_a_step_that_forgets_the_drift_is_refused():
    model = ms.Attention(dim=128, beta=1.0, noise=1.0)
    with pytest.raises(errors.InvalidInputError, match=r"use step=0\.0157 or less"):
        planning.step_size(0.02, "sde", model)
    assert planning.step_size(0.0157, "sde", model) == 0.0157
    assert planning.step_size(5.0, "sde", model.replace(value=np.zeros((128, 128)))) == 5.0
    with pytest.raises(errors.NumericalRangeError, match="noise"):
        ms.simulate(NOISY.replace(noise=1e200), START, 1.0, seed=0)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    dim=st.sampled_from([2, 3, 4, 50, 3000, 10**6]),
    logarithm=st.floats(-320, 308),
    size=st.floats(0, 3),
)
def test_a_brownian_step_of_any_length_is_on_the_sphere(dim, logarithm, size):
    variance = 10.0**logarithm
    x = np.zeros((3, dim))
    x[:, 0] = 1.0
    normal = np.random.default_rng(0).standard_normal((3, dim)) if size else np.zeros((3, dim))
    moved = brownian.move(x, size * normal, variance)
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 1.0, atol=1e-12)


# ------------------------------------------------------------------------------------------------------ velocities


@pytest.mark.parametrize("beta", [4.2e4, 1e6, 1e10, 1e300])
def test_a_series_of_too_high_degree_is_refused(beta):
    """At the poles its terms leave double precision: it was NaN, and a run sat at t = 0."""
    model = MODEL.replace(beta=beta)
    with pytest.raises(errors.NumericalRangeError, match="interaction='direct'"):
        ms.velocity(model, START, engine="cpu", interaction="series")
    with pytest.raises(errors.NumericalRangeError, match="interaction='direct'"):
        ms.simulate(model, START, 1.0, engine="cpu", interaction="series")


def test_the_largest_series_holds_at_the_poles():
    near = np.array(
        [[0, 0, 1.0], [0, 0, -1.0], [1e-9, 0, 1], [1e-3, 1e-3, 1], [0.05, 0.1, 1], [0.01, 0.01, -1], [0.3, 0, 1]]
    )
    x = ms.sphere.normalize(np.concatenate([near, ms.sphere.uniform(40, dim=3, seed=1)]))
    model = MODEL.replace(beta=3.4e4)
    degree, _ = harmonics.degree_for(3.4e4, 1e-12 / len(x))
    assert 1400 < degree <= harmonics.DEGREE_LIMIT
    series, direct = (ms.velocity(model, x, engine="cpu", interaction=kind) for kind in ("series", "direct"))
    np.testing.assert_allclose(series, direct, atol=1e-11)


@pytest.mark.parametrize("engine", ["auto", "reference", "cpu"])
def test_logits_beyond_double_precision(engine):
    huge = 1e300 * np.eye(3)
    with pytest.raises(errors.NumericalRangeError, match="logits"):
        ms.velocity(MODEL.replace(query=huge, key=huge), START, engine=engine)


@pytest.mark.parametrize("t", [-2.0, -1e-9, math.nan, math.inf])
@pytest.mark.parametrize("norm", [ms.SqrtScaling(), ms.PostLN()])
def test_depth_starts_at_zero(norm, t):
    with pytest.raises(errors.TimeError, match="t must be"):
        ms.velocity(MODEL.replace(norm=norm), START, t=t)


@pytest.mark.parametrize("size", [1e-200, 1e200])
@pytest.mark.parametrize("norm", [ms.NGPT(0.7), ms.PeriLN()])
def test_norms_that_divide_by_the_attention_do_not_see_its_size(norm, size):
    """Squares of 1e-200 and 1e200 leave double precision; lengths do not."""
    plain = MODEL.replace(norm=norm)
    scaled = plain.replace(value=size * np.eye(3))
    np.testing.assert_allclose(
        ms.velocity(scaled, START, engine="reference"), ms.velocity(plain, START, engine="reference"), atol=1e-14
    )
    runs = [ms.simulate(item, START, 1.0, method="layers", step=0.1).final for item in (scaled, plain)]
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-12)


def test_a_layer_of_huge_values_stays_on_the_sphere():
    """x + step A(x) with |A| = 1e200 was divided by infinity: tokens became zero vectors, with status "success"."""
    run = ms.simulate(MODEL.replace(value=1e200 * np.eye(3)), START, 0.2, method="layers", step=0.1)
    np.testing.assert_allclose(np.linalg.norm(run.final, axis=1), 1.0, atol=1e-14)


# ------------------------------------------------------------------------------------------------------ ensembles


def test_the_reference_engine_is_never_replaced():
    """Beyond t = 1e3 "auto" took compiled Rodas and recorded the reference engine."""
    options = {"tokens": 4, "members": 2, "times": [2e3], "seed": 0, "observe": {"cosine": ms.observe.mean_cosine()}}
    asked = ms.ensemble(MODEL, engine="reference", **options)
    assert (asked.attrs["method"], asked.attrs["engine"]) == ("tsit5", "reference")
    free = ms.ensemble(MODEL, **options)
    assert (free.attrs["method"], free.attrs["engine"]) == ("rodas", "cpu")
    np.testing.assert_allclose(asked.cosine, free.cosine, atol=1e-4)
    with pytest.raises(errors.UnsupportedError, match="engine='cpu'"):
        ms.ensemble(MODEL, engine="reference", method="rodas", **options)


# --------------------------------------------------------------------------------------------------------- theory

BETAS = st.one_of(st.just(0.0), st.floats(-300, 308).map(lambda power: 10.0**power))
ANGLES = st.one_of(
    st.floats(5e-324, math.pi, exclude_max=True), st.floats(-320, 0).map(lambda power: max(5e-324, 10.0**power))
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    beta=BETAS, rho=st.floats(-0.2, 1.0), tokens=st.sampled_from([2, 5, 10**6, 10**18]), time=BETAS, kind=st.booleans()
)
def test_equiangular_flow_of_anything(beta, rho, tokens, time, kind):
    rho = max(rho, -1.0 / (tokens - 1))
    weights = "softmax" if kind else "unnormalized"
    try:
        cosines = theory.equiangular_flow(rho, tokens, beta, [0.0, time] if time else [0.0], weights)
        rate = theory.equiangular_rate(rho, tokens, beta, weights)
    except errors.MetastableError:
        return
    assert np.isfinite(cosines).all()
    assert math.isfinite(rate)
    assert (np.diff(cosines) >= -1e-12).all()
    assert cosines.max() <= 1 + 1e-12


def test_equiangular_flow_at_the_end_of_time():
    """At rho = 0, n = 2: t = exp(beta) v/4 or so, which beta = 712 carries to 1e308 and beta = 800 does not."""
    assert theory.equiangular_flow(0.0, 2, 700.0, [1e308])[0] > 1 - 1e-9
    assert theory.equiangular_flow(0.0, 2, 1e18, [1e308])[0] == 0.0
    assert theory.equiangular_flow(0.0, 2, 800.0, [1e308])[0] == pytest.approx(0.0, abs=1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(beta=BETAS, angle=ANGLES, end=ANGLES, time=BETAS, c=BETAS)
def test_formulas_of_anything(beta, angle, end, time, c):
    """A number that is not NaN, or a named exception."""
    calls = [
        lambda: theory.interaction(angle, beta),
        lambda: theory.interaction_peak(beta),
        lambda: theory.initial_inverse_temperature(beta, 64),
        lambda: theory.pair_collapse_time(end, beta, start=angle),
        lambda: theory.log_pair_collapse_time(end, beta, gap=angle),
        lambda: theory.strong_center_displacement(3, beta, c, time),
        lambda: theory.strong_center_time(3, beta, c, 0.1),
        lambda: theory.strong_center_sufficient_time(3, beta, c, 0.1),
        lambda: theory.strong_centers(angle, 3, 10**15),
        lambda: theory.strong_centers(angle, 500),
        lambda: theory.renyi_centers_limit(angle),
        lambda: theory.cluster_count(1 + time, beta, 3),
        lambda: theory.single_token(np.diag([beta, 1.0, -1.0]), START[0], time).sum(),
        lambda: theory.single_token(beta * np.array([[0.0, -1.0], [1.0, 0.0]]), [0.6, 0.8], time).sum(),
        lambda: theory.single_token(np.array([[1.0, beta], [0.0, 1.0]]), [0.6, 0.8], time).sum(),
        lambda: theory.spectral_gap(np.diag([beta, 1.0])),
        lambda: ms.sphere.cap_measure(angle, 10**6),
        lambda: ms.sphere.cap(2, START[0], angle, 0).sum(),
        lambda: ms.sphere.normalize([[beta, angle], [-angle, 1.0]]).sum(),
    ]
    for call in calls:
        try:
            value = call()
        except errors.MetastableError:
            continue
        assert not np.isnan(value)


# ------------------------------------------------------------------------------------------- the end of time


def test_tokens_that_wait_beyond_double_precision_are_not_told_to_take_more_steps():
    """The run stood at 1e300 after 354 of 100,000 steps, and the advice was to raise max_steps."""
    angle = np.pi - 0.05
    start = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    with pytest.warns(errors.StoppedEarlyWarning, match="double precision ends"):
        run = ms.simulate(ms.Attention(dim=2, beta=349.9), start, until="settled")
    assert run.end == planning.SETTLED_HORIZON
    assert "more steps change nothing" in run.message
    assert "wait for up to exp(2 beta |Q^T K|) = exp(699.8), about 10^304; lower beta, or give a horizon" in run.message
    assert "raise max_steps" not in run.message
    with pytest.raises(errors.UnsupportedError, match="simulate the time before that"):
        run.append(start[:1])
    with pytest.warns(errors.StoppedEarlyWarning, match="had not settled at t = 1e\\+300"):
        run.extend("settled", max_steps=200_000)


def test_why_steps_were_not_enough_is_said_by_every_method():
    """ "auto" left out that tokens turn for ever."""
    model = ms.Attention(dim=2, beta=9.0, value=np.array([[1.0, -1.0], [1.0, 1.0]]))
    with pytest.warns(errors.StoppedEarlyWarning, match="stopped after 500 steps at t = .*: the leading eigenvalues"):
        run = ms.simulate(model, ms.sphere.uniform(4, dim=2, seed=0), until=1e9, max_steps=500)
    assert "rotates for ever" in run.message
