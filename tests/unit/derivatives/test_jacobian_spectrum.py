"""`ms.jacobian_spectrum` against the whole derivative made of gradients, against laws, and what it refuses."""

import mpmath
import numpy as np
import pytest

import metastable as ms
from metastable.derivatives.lyapunov import _log_singular_values
from metastable.errors import InvalidInputError, TimeError, UnsupportedError
from metastable.integrate import resolved
from metastable.integrate.tangent import tangent_frame

RTOL = 1e-8
MODELS = {
    "circle": (ms.Attention(dim=2, beta=4.0), "cpu"),
    "value": (ms.Attention(dim=3, beta=4.0, value=np.diag([1.0, 0.5, -0.5])), "cpu"),
    "ngpt": (ms.Attention(dim=3, beta=4.0, norm=ms.NGPT(0.5)), "cpu"),
    "full": (ms.Attention(dim=3, beta=2.0, mask=ms.Full(), masses=[1.0, 2.0, 0.5, 1.0, 1.0]), "reference"),
    "unnormalized": (ms.Attention(dim=2, beta=1.0, weights="unnormalized"), "reference"),
}


def derivative(model, start, final, until, engine):
    """The derivative of the final state in the start, in orthonormal tangent frames: a gradient for every row."""
    first, last = tangent_frame(start), tangent_frame(final)
    rows = []
    for k in range(len(start)):
        for vector in last[k]:
            slope = np.zeros_like(start)
            slope[k] = vector
            found = ms.gradient(
                model, start, lambda x, s=slope: (float(np.sum(s * x)), s), until, "start", engine=engine, rtol=RTOL
            )
            rows.append(np.einsum("kad,kd->ka", first, found["start"]).ravel())
    return np.array(rows)


@pytest.mark.parametrize("name", MODELS)
def test_exponents_are_the_singular_values_of_the_whole_derivative(name, monkeypatch):
    """Exactly, with the steps of the run; and with the shorter ones of tangent vectors to what is said of them."""
    model, engine = MODELS[name]
    start, until = ms.sphere.uniform(5, dim=model.dim, seed=3), 3.0
    run = ms.simulate(model, start, until, method="tsit5", engine=engine, interaction="direct", rtol=RTOL)
    shorter = ms.jacobian_spectrum(run, engine=engine).exponents
    monkeypatch.setattr(resolved, "RESOLVED", np.inf)
    spectrum = ms.jacobian_spectrum(run, engine=engine)
    assert np.abs(shorter - spectrum.exponents).max() < 1e-4
    _, sizes, right = np.linalg.svd(derivative(model, start, run.final, until, engine))
    assert np.abs(np.log(sizes) / until - spectrum.exponents).max() < 1e-9
    leading = np.einsum("ka,kad->kd", right[0].reshape(5, -1), tangent_frame(start))
    assert abs(abs(np.sum(leading * spectrum.direction)) - 1.0) < 1e-9
    assert spectrum.token == np.einsum("kd,kd->k", leading, leading).argmax()
    assert abs(np.linalg.norm(spectrum.image) - 1.0) < 1e-12
    assert abs(np.sum(spectrum.shares) - 1.0) < 1e-12


@pytest.mark.parametrize("count", [1, 2, 20, 400])
def test_singular_values_of_products_are_those_of_the_product(count):
    """Factors in the order in which they act; the product of 400 spans more than double precision holds, exp(-1000)."""
    rng = np.random.default_rng(0)
    factors = [np.triu(rng.normal(size=(6, 6)), 1) * 0.3 + np.diag(np.exp(-0.5 * np.arange(6.0))) for _ in range(count)]
    found = _log_singular_values(list(factors))
    with mpmath.workdps(60 + 3 * count):
        product = mpmath.eye(6)
        for factor in factors:
            product = mpmath.matrix(factor.tolist()) * product
        squares = mpmath.eigsy(product.T * product, eigvals_only=True)
        true = sorted((float(mpmath.log(value) / 2) for value in squares), reverse=True)
    assert np.abs(found - true).max() < 1e-9


def test_small_changes_grow_as_said():
    model, start = ms.Attention(dim=3, beta=9.0), ms.sphere.uniform(12, dim=3, seed=4)
    care = {"rtol": 1e-11, "atol": 1e-12, "method": "tsit5"}
    run = ms.simulate(model, start, 6.0, **care)
    spectrum = ms.jacobian_spectrum(run)
    moved = ms.simulate(model, ms.sphere.normalize(start + 1e-6 * spectrum.direction), 6.0, **care)
    change = (moved.final - run.final) / 1e-6
    assert abs(np.log(np.linalg.norm(change)) - spectrum.growth) < 1e-4
    assert np.abs(change / np.exp(spectrum.growth) - spectrum.image).max() < 1e-4


def test_exponents_of_one_token_are_known():
    """dx/dt = P V x has the derivative exp(tV) over the length: near the leading eigenvector exponents are gaps of the spectrum."""
    model = ms.Attention(dim=3, beta=1.0, value=np.diag([2.0, 1.0, -1.0]))
    run = ms.simulate(model, [[1.0, 0.0, 0.0]], 5.0, method="tsit5", rtol=1e-10)
    assert np.abs(ms.jacobian_spectrum(run).exponents - [-1.0, -3.0]).max() < 1e-3


def test_small_values_are_relatively_exact_over_hundreds_of_powers():
    """One token at an eigenvector for a long time: exp(-750) is below double precision, its logarithm is not."""
    model = ms.Attention(dim=3, beta=1.0, value=np.diag([2.0, 1.0, -1.0]))
    run = ms.simulate(model, [[1.0, 0.0, 0.0]], 250.0, method="tsit5")
    spectrum = ms.jacobian_spectrum(run)
    assert np.abs(spectrum.exponents - [-1.0, -3.0]).max() < 1e-3
    assert spectrum.exponents[-1] * 250.0 < -745.0


def divergence_along(angles, beta, until, step=0.05):
    """The integral of the divergence of causal attention on the circle along its own run, by the classical Runge-Kutta method."""
    n = len(angles)
    seen = np.tril(np.ones((n, n)))

    def both(x):
        gap = x[:, None] - x[None, :]
        weights = np.exp(beta * (np.cos(gap) - 1.0)) * seen
        force, whole = (weights * np.sin(gap)).sum(axis=1), weights.sum(axis=1)
        # d/dx_k: the force in the numerator, and the divisor; the own term has no slope.
        bend = (weights * (np.cos(gap) - beta * np.sin(gap) ** 2)).sum(axis=1) - 1.0
        tilt = -beta * (weights * np.sin(gap)).sum(axis=1)
        return -force / whole, np.sum(-bend / whole + force * tilt / whole**2)

    x, total = np.array(angles, dtype=float), 0.0
    for _ in range(round(until / step)):
        a, p = both(x)
        b, q = both(x + 0.5 * step * a)
        c, r = both(x + 0.5 * step * b)
        d, s = both(x + step * c)
        x = x + step / 6.0 * (a + 2.0 * b + 2.0 * c + d)
        total += step / 6.0 * (p + 2.0 * q + 2.0 * r + s)
    return total


@pytest.mark.parametrize(("count", "beta", "until"), [(2, 4.0, 300.0), (5, 9.0, 200.0), (12, 4.0, 120.0)])
def test_exponents_add_up_to_the_divergence(count, beta, until):
    """Liouville: the sum of the exponents times t is the integral of the divergence, also where directions decay for hundreds of time
    scales at different rates (two tokens at the angles 0 and 1: -147.5, of which only -43 was seen).
    """
    angles = [0.0, 1.0] if count == 2 else np.random.default_rng(count).uniform(0.0, 2.0 * np.pi, count)
    run = ms.simulate(ms.Attention(dim=2, beta=beta), ms.sphere.from_angle(angles), until, method="tsit5", rtol=1e-8)
    total = float(ms.jacobian_spectrum(run).exponents.sum() * until)
    true = divergence_along(angles, beta, until)
    assert abs(total - true) < 1e-4 * count * until
    if count == 2:
        assert abs(total + 147.5) < 0.1


def test_the_token_between_two_others_is_the_unstable_one():
    """Two clusters and a token in the middle, which falls one way or the other."""
    start = ms.sphere.from_angle([0.0, 1.2, 0.01, 1.19, 0.6])
    run = ms.simulate(ms.Attention(dim=2, beta=9.0), start, 2.0)
    spectrum = ms.jacobian_spectrum(run)
    assert spectrum.token == 4
    assert spectrum.exponents[0] > 0.1
    assert ms.jacobian_spectrum(run, 1.0).t == 1.0


def test_radii_are_directions_too_and_schedules_follow_their_models():
    start = ms.sphere.uniform(4, dim=2, seed=0)
    run = ms.simulate(ms.Attention(dim=2, beta=2.0, norm=ms.PreLN()), start, 2.0)
    assert len(ms.jacobian_spectrum(run).exponents) == 8
    model = ms.Attention(dim=2, beta=2.0)
    whole = ms.jacobian_spectrum(ms.simulate(model, start, 2.0, rtol=1e-10))
    cut = ms.jacobian_spectrum(ms.simulate(ms.Schedule([(0.0, model), (0.5, model)]), start, 2.0, rtol=1e-10))
    assert np.abs(whole.exponents - cut.exponents).max() < 1e-6


def test_what_cannot_be_followed_is_refused():
    model, start = ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(4, dim=2, seed=0)
    run = ms.simulate(model, start, 2.0)
    with pytest.raises(TimeError, match="beyond"):
        ms.jacobian_spectrum(run, 3.0)
    with pytest.raises(TimeError, match="greater than 0"):
        ms.jacobian_spectrum(run, 0.0)
    with pytest.raises(InvalidInputError, match="Run"):
        ms.jacobian_spectrum(start)
    with pytest.raises(UnsupportedError, match="layers"):
        ms.jacobian_spectrum(ms.simulate(model, start, 2.0, method="layers", step=0.5))
    with pytest.raises(UnsupportedError, match="earlier t"):
        ms.jacobian_spectrum(ms.simulate(model, start, 2000.0, method="tsit5"))
