"""The laws of `metastable.starts`: against SciPy's distributions and closed formulas, over many draws."""

import math

import numpy as np
import pytest
from scipy import special, stats

import metastable as ms
from metastable.errors import InvalidInputError, TokenError

MANY = 20_000
UNLIKELY = 1e-4
"""P-values below this do not happen to a right law (the seeds are fixed, so they happen or not for ever)."""
PITHY = {
    "von_mises_fisher": {"concentration": 3.0},
    "mixture": {"centers": 3, "concentration": 30.0},
    "correlated": {"correlation": 0.4},
    "chain": {"correlation": 0.8},
    "equally_spaced": {},
    "subspace": {"basis": 2},
}


def mean_cosine(rho, dim):
    """E <x, y>/(|x||y|) of Gaussian vectors whose entries are correlated by rho."""
    factor = (2.0 / dim) * (special.gamma(0.5 * (dim + 1)) / special.gamma(0.5 * dim)) ** 2
    return factor * rho * special.hyp2f1(0.5, 0.5, 0.5 * dim + 1.0, rho**2)


@pytest.mark.parametrize("name", ms.starts.__all__)
@pytest.mark.parametrize("dim", [2, 3])
def test_unit_rows_that_depend_on_the_seed_alone(name, dim):
    draw = getattr(ms.starts, name)
    x = draw(50, dim, 7, **PITHY[name])
    assert x.shape == (50, dim)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, atol=1e-14)
    assert np.array_equal(x, draw(50, dim, np.random.default_rng(7), **PITHY[name]))
    assert not np.array_equal(x, draw(50, dim, 8, **PITHY[name]))
    with pytest.raises(InvalidInputError, match="seed"):
        draw(50, dim, "seven", **PITHY[name])
    with pytest.raises(InvalidInputError, match="tokens"):
        draw(0, dim, 7, **PITHY[name])


@pytest.mark.parametrize("dim", [2, 3, 8])
@pytest.mark.parametrize("kappa", [0.0, 0.5, 8.0, 300.0])
def test_von_mises_fisher_is_that_of_scipy(dim, kappa):
    """Heights <x, center> and directions around the center, in two samples of the same size; and the exact mean height."""
    center = ms.sphere.uniform(1, dim, seed=1)[0]
    x = ms.starts.von_mises_fisher(MANY, dim, 2, concentration=kappa, center=center)
    height = x @ center
    if kappa > 0:
        other = stats.vonmises_fisher(center, kappa).rvs(MANY, random_state=np.random.default_rng(3)) @ center
        assert stats.ks_2samp(height, other).pvalue > UNLIKELY
    exact = special.ive(0.5 * dim, kappa) / special.ive(0.5 * dim - 1.0, kappa) if kappa else 0.0
    assert abs(height.mean() - exact) < 4.5 * height.std() / math.sqrt(MANY)
    across = x - height[:, None] * center
    assert np.abs(across.mean(axis=0)).max() < 4.5 / math.sqrt(MANY)


def test_von_mises_fisher_far_out():
    """At kappa = 1e12 points are Gaussian around the center, with standard deviation kappa^(-1/2) and all their digits."""
    x = ms.starts.von_mises_fisher(MANY, 3, 5, concentration=1e12)
    assert stats.kstest(x[:, 1] * 1e6, "norm").pvalue > UNLIKELY
    assert np.unique(x[:, 1]).size == MANY


def test_mixtures_have_their_weights_and_concentrations():
    centers = np.eye(3)
    x = ms.starts.mixture(MANY, 3, 4, centers=centers, concentration=200.0, weights=[1, 2, 5])
    nearest = (x @ centers).argmax(axis=1)
    shares = np.bincount(nearest) / MANY
    np.testing.assert_allclose(shares, [1 / 8, 2 / 8, 5 / 8], atol=4.5 * 0.5 / math.sqrt(MANY))
    for k in range(3):
        here = x[nearest == k] @ centers[k]
        exact = 1 / math.tanh(200.0) - 1 / 200.0
        assert abs(here.mean() - exact) < 4.5 * here.std() / math.sqrt(len(here))
    # In random order: neighbours know nothing of each other.
    same = (nearest[1:] == nearest[:-1]).mean()
    assert abs(same - (1 + 4 + 25) / 64) < 4.5 * 0.5 / math.sqrt(MANY)


@pytest.mark.parametrize("dim", [2, 3, 8])
@pytest.mark.parametrize("rho", [0.0, 0.3, 0.9])
def test_correlated_pairs_and_chains(dim, rho):
    draws = 4000
    pairs = np.array([ms.starts.correlated(3, dim, seed, correlation=rho) for seed in range(draws)])
    chains = np.array([ms.starts.chain(3, dim, seed, correlation=rho) for seed in range(draws)])
    for sample, i, j, expected in (
        (pairs, 0, 1, rho),
        (pairs, 0, 2, rho),
        (chains, 0, 1, rho),
        (chains, 1, 2, rho),
        (chains, 0, 2, rho**2),
    ):
        cosine = np.einsum("kd,kd->k", sample[:, i], sample[:, j])
        assert abs(cosine.mean() - mean_cosine(expected, dim)) < 4.5 * cosine.std() / math.sqrt(draws)
    # Each token is uniform: its first coordinate squared has the law Beta(1/2, (d - 1)/2).
    for sample in (pairs, chains):
        assert stats.kstest(sample[:, 2, 0] ** 2, stats.beta(0.5, 0.5 * (dim - 1)).cdf).pvalue > UNLIKELY


@pytest.mark.parametrize(("dim", "cosine"), [(2, 0.41), (3, 0.44), (8, 0.48)])
def test_the_cosines_that_the_docstring_names(dim, cosine):
    assert mean_cosine(0.5, dim) == pytest.approx(cosine, abs=0.005)
    assert mean_cosine(1.0, dim) == pytest.approx(1.0, rel=1e-12)
    assert mean_cosine(0.5, 150) == pytest.approx(0.5, abs=0.002)


@pytest.mark.parametrize("dim", [2, 8])
def test_mixtures_in_other_dimensions(dim):
    """Mean of all points: the weighted centers, each shortened by the mean resultant length I_(d/2)/I_(d/2-1) of kappa."""
    centers = np.stack([np.eye(dim)[0], -np.eye(dim)[0], np.eye(dim)[1]])
    weights, kappa = np.array([0.5, 0.2, 0.3]), 6.0
    x = ms.starts.mixture(MANY, dim, 11, centers=centers, concentration=kappa, weights=weights)
    length = special.ive(0.5 * dim, kappa) / special.ive(0.5 * dim - 1.0, kappa)
    np.testing.assert_allclose(x.mean(axis=0), length * weights @ centers, atol=4.5 / math.sqrt(MANY))


def test_drawn_centers_of_mixtures_are_uniform():
    """At a huge concentration every token is at a center, and a center is anywhere alike: Archimedes in R^3."""
    heights = [ms.starts.mixture(1, 3, seed, centers=4, concentration=1e200)[0, 2] for seed in range(3000)]
    assert stats.kstest(heights, stats.uniform(-1, 2).cdf).pvalue > UNLIKELY


def test_correlation_one_is_one_point():
    x = ms.starts.correlated(5, 3, 0, correlation=1.0)
    np.testing.assert_allclose(x, x[[0]].repeat(5, axis=0), atol=1e-15)


def test_equally_spaced():
    polygon = ms.starts.equally_spaced(12, 2)
    np.testing.assert_allclose(polygon, ms.sphere.from_angle(2 * np.pi * np.arange(12) / 12), atol=1e-15)
    turned = ms.starts.equally_spaced(12, 2, seed=3)
    np.testing.assert_allclose(np.sort(turned @ turned.T, axis=1), np.sort(polygon @ polygon.T, axis=1), atol=1e-14)
    assert np.abs(turned @ turned.T - polygon @ polygon.T).max() > 0.1  # in another order
    spiral = ms.starts.equally_spaced(500, 3, seed=3)
    distance = ms.sphere.pairwise_distance(spiral) + 9 * np.eye(500)
    nearest = distance.min(axis=1) * math.sqrt(500 / (4 * math.pi))
    assert 0.7 < nearest.min() < nearest.max() < 1.1
    with pytest.raises(InvalidInputError, match="dim 2 and 3"):
        ms.starts.equally_spaced(12, 4)


def test_rotations_are_uniform():
    """The first vertex of the polygon points everywhere alike."""
    angles = [float(ms.sphere.to_angle(ms.starts.equally_spaced(1, 2, seed)[0])) for seed in range(2000)]
    assert stats.kstest(angles, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > UNLIKELY


def test_rotated_spirals_are_uniform():
    """Each token of the turned and shuffled spiral is uniform on the sphere of R^3: all heights alike."""
    for token in (0, 6):
        heights = [ms.starts.equally_spaced(7, 3, seed)[token, 2] for seed in range(2000)]
        assert stats.kstest(heights, stats.uniform(-1, 2).cdf).pvalue > UNLIKELY


@pytest.mark.parametrize("size", [2, 4])
def test_uniform_on_great_spheres(size):
    """Squares of coordinates along the subspace are Beta(1/2, (k - 1)/2), whatever the dimension around it."""
    x = ms.starts.subspace(MANY, 8, 3, basis=size)
    assert stats.kstest(x[:, 0] ** 2, stats.beta(0.5, 0.5 * (size - 1)).cdf).pvalue > UNLIKELY
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=4.5 / math.sqrt(size * MANY))
    assert not x[:, size:].any()


def test_subspaces():
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(6, 3)) @ np.diag([1.0, 100.0, 0.01])  # skew columns: the law depends on their span alone
    x = ms.starts.subspace(MANY, 6, 1, basis=basis)
    frame = np.linalg.qr(basis)[0]
    np.testing.assert_allclose(np.linalg.norm(x @ frame, axis=1), 1.0, atol=1e-12)
    for axis in frame.T:
        assert stats.kstest(x @ axis, stats.uniform(-1, 2).cdf).pvalue > UNLIKELY  # Archimedes, on a sphere of R^3
    line = ms.starts.subspace(100, 3, 1, basis=[0.0, 2.0, 0.0])
    assert set(map(tuple, line)) == {(0.0, 1.0, 0.0), (0.0, -1.0, 0.0)}
    assert not ms.starts.subspace(9, 4, 1, basis=2)[:, 2:].any()


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (lambda: ms.starts.von_mises_fisher(3, 2, 0, concentration=-1), InvalidInputError, "concentration"),
        (lambda: ms.starts.von_mises_fisher(3, 2, 0, concentration=1, center=[1, 0, 0]), TokenError, "dim"),
        (lambda: ms.starts.von_mises_fisher(3, 2, 0, concentration=1, center=[2, 0]), TokenError, "length"),
        (lambda: ms.starts.mixture(3, 2, 0, centers=0, concentration=1), InvalidInputError, "centers"),
        (
            lambda: ms.starts.mixture(3, 2, 0, centers=2, concentration=1, weights=[1, -1]),
            InvalidInputError,
            "negative",
        ),
        (lambda: ms.starts.mixture(3, 2, 0, centers=2, concentration=1, weights=[1]), InvalidInputError, "weights"),
        (lambda: ms.starts.correlated(3, 2, 0, correlation=1.5), InvalidInputError, "correlation"),
        (lambda: ms.starts.chain(3, 2, 0, correlation=1.0), InvalidInputError, "correlation"),
        (lambda: ms.starts.subspace(3, 2, 0, basis=3), InvalidInputError, "basis"),
        (lambda: ms.starts.subspace(3, 2, 0, basis=[[0.0], [0.0]]), InvalidInputError, "zero"),
        (lambda: ms.starts.subspace(3, 2, 0, basis=np.eye(3)), InvalidInputError, "columns"),
    ],
)
def test_bad_parameters_are_refused(call, error, word):
    with pytest.raises(error, match=word):
        call()
