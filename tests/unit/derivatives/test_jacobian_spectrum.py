"""`ms.jacobian_spectrum` against the whole derivative made of gradients, against laws, and what it refuses."""

import mpmath
import numpy as np
import pytest

import metastable as ms
from metastable.derivatives.products import decomposed
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
    found = decomposed(list(factors)).logarithms
    with mpmath.workdps(60 + 3 * count):
        product = mpmath.eye(6)
        for factor in factors:
            product = mpmath.matrix(factor.tolist()) * product
        squares = mpmath.eigsy(product.T * product, eigvals_only=True)
        true = sorted((float(mpmath.log(value) / 2) for value in squares), reverse=True)
    assert np.abs(found - true).max() < 1e-9


@pytest.mark.parametrize("count", [1, 7])
def test_leading_vectors_of_products_are_those_of_the_product(count):
    """Values as close as 1e-4 of one another, and far ones: each vector against the decomposition of the whole, up to its sign."""
    rng = np.random.default_rng(count)
    factors = [np.eye(7) + 0.2 * np.triu(rng.normal(size=(7, 7)), 1) for _ in range(count - 1)]
    logarithms = np.array([0.0, -1e-4, -0.05, -3.0, -20.0, -21.0, -50.0])
    turned = [np.linalg.qr(rng.normal(size=(7, 7)))[0] for _ in range(2)]
    whole = turned[0] @ np.diag(np.exp(logarithms)) @ turned[1]
    for factor in factors:  # so that the product of all is `whole` up to an orthogonal matrix from the left
        whole = whole @ np.linalg.inv(factor)
    rotation, upper = np.linalg.qr(whole)
    found = decomposed([*factors, upper])
    assert np.abs(found.logarithms - logarithms)[:4].max() < 1e-10
    assert found.residual < 1e-11
    right, left = found.right[:, :3], rotation @ found.left[:, :3]
    signs = np.sign(np.sum(right.T * turned[1][:3], axis=1))
    assert np.abs(right * signs - turned[1][:3].T).max() < 1e-9
    assert np.abs(left * signs - turned[0][:, :3]).max() < 1e-9


def test_values_that_a_larger_one_stands_between_are_coupled():
    """The larger one is coupled to nobody, so no sweep moves it; the two others are 0.005 apart in their logarithms, not equal."""
    factor = np.array([[1.0, 0.0, 0.01], [0.0, np.exp(10.0), 0.0], [0.0, 0.0, 1.0]])
    true = np.log(np.linalg.svd(factor[::2, ::2])[1])
    found = decomposed([factor])
    assert np.abs(found.logarithms - [10.0, *true]).max() < 1e-12
    assert np.abs(np.abs(found.right[:, 0]) - [0.0, 1.0, 0.0]).max() < 1e-12


@pytest.mark.parametrize("until", [1e-3, 0.03])
def test_the_unstable_token_of_a_short_time(until):
    """All singular values are near one, 1e-4 apart: token 5, where an iteration that had not converged named token 2."""
    model, start = ms.Attention(dim=2, beta=9.0), ms.sphere.uniform(6, dim=2, seed=0)
    run = ms.simulate(model, start, until, method="tsit5", rtol=RTOL)
    spectrum = ms.jacobian_spectrum(run)
    _, sizes, right = np.linalg.svd(derivative(model, start, run.final, until, "cpu"))
    assert np.abs(np.log(sizes) / until - spectrum.exponents).max() < 1e-6
    assert np.abs(spectrum.shares - right[0] ** 2).max() < 1e-6
    assert (spectrum.token, spectrum.multiplicity) == (5, 1)
    assert spectrum.doubt < 1e-6


def test_directions_that_grow_alike_are_not_one_direction():
    """One token that rests: both directions of its tangent plane stay as they are. It is the unstable token, and no direction is."""
    run = ms.simulate(ms.Attention(dim=3, beta=2.0), [[0.6, 0.0, 0.8]], 1.0, method="tsit5")
    spectrum = ms.jacobian_spectrum(run)
    assert (spectrum.multiplicity, spectrum.token, spectrum.responding) == (2, 0, 0)
    assert np.isnan(spectrum.direction).all()
    assert np.isnan(spectrum.image).all()
    assert np.abs(spectrum.shares - 1.0).max() < 1e-12
    assert "the first 2 alike" in repr(spectrum)


def test_tokens_that_are_alike_are_not_told_apart():
    """A pair under full attention is its own mirror image: the direction in which it opens is known, and belongs to both."""
    pair = ms.sphere.from_angle([0.4, 1.4])
    run = ms.simulate(ms.Attention(dim=2, beta=4.0, mask=ms.Full()), pair, 1.0, method="tsit5")
    spectrum = ms.jacobian_spectrum(run)
    assert spectrum.multiplicity == 1
    assert (spectrum.token, spectrum.responding) == (None, None)
    assert np.abs(spectrum.shares - 0.5).max() < 1e-6
    assert "no single token" in repr(spectrum)


def test_numbers_that_are_too_coarse_name_nothing():
    """Tokens 4 and 5 sit between two others each, alike to 1e-6: whose change grows most a loose run does not know."""
    start = ms.sphere.from_angle([0.0, np.pi, 1.2, np.pi + 1.2, 0.6, np.pi + 0.6 + 1e-6])
    model = ms.Attention(dim=2, beta=9.0)
    loose, tight = (
        ms.jacobian_spectrum(ms.simulate(model, start, 3.0, method="tsit5", rtol=rtol)) for rtol in (1e-3, 1e-9)
    )
    assert (loose.multiplicity, loose.token) == (2, None)
    assert np.isnan(loose.direction).all()
    assert (tight.multiplicity, tight.token) == (1, 4)
    assert (tight.exponents[0] - tight.exponents[1]) * 3.0 > 10.0 * tight.doubt
    assert abs(loose.growth - tight.growth) < 3.0 * loose.doubt


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
    spectrum = ms.jacobian_spectrum(run)
    assert len(spectrum.exponents) == 8
    # Together they are of length one: the tangent part alone is 0.897 here.
    for vectors, radii in ((spectrum.direction, spectrum.radii), (spectrum.image, spectrum.image_radii)):
        assert abs(np.sum(vectors**2) + np.sum(radii**2) - 1.0) < 1e-12
        assert np.linalg.norm(radii) > 0.1
    assert np.abs(spectrum.shares - np.sum(spectrum.direction**2, axis=1) - spectrum.radii**2).max() < 1e-12
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
    with pytest.raises(TimeError, match="so early"):
        ms.jacobian_spectrum(run, 1e-300)
    with pytest.raises(InvalidInputError, match="Run"):
        ms.jacobian_spectrum(start)
    with pytest.raises(UnsupportedError, match="layers"):
        ms.jacobian_spectrum(ms.simulate(model, start, 2.0, method="layers", step=0.5))
    with pytest.raises(UnsupportedError, match="earlier t"):
        ms.jacobian_spectrum(ms.simulate(model, start, 2000.0, method="tsit5"))
