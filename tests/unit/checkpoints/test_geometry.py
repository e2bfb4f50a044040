"""Geometry of token clouds: identities by brute force, agreement with `metastable.analysis`, calibration of the test."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from metastable import checkpoints, sphere
from metastable.analysis.centers import renyi_centers
from metastable.analysis.clusters import cluster_count
from metastable.checkpoints import geometry
from metastable.checkpoints.linear import cloud_distances
from metastable.errors import InvalidInputError, TokenError


@pytest.fixture(scope="module")
def cloud() -> np.ndarray:
    """Sixty tokens in dimension 20, in five loose groups, two of them equal."""
    generator = np.random.default_rng(0)
    groups = generator.normal(size=(5, 20))[generator.integers(0, 5, 60)]
    x = sphere.normalize(groups + 0.4 * generator.normal(size=(60, 20)))
    x[17] = x[3]
    return x


def test_exchangeable_count_is_the_mean_over_all_orders() -> None:
    x = sphere.uniform(6, dim=3, seed=4)
    distances = sphere.pairwise_distance(x)
    orders = [list(order) for order in permutations(range(6))]
    for delta in (0.3, 0.8, 1.2, 1.7):
        counts = [len(renyi_centers(x[order], delta, strong=True)) for order in orders]
        assert geometry.exchangeable_strong_count(distances, delta) == pytest.approx(np.mean(counts), abs=1e-12)
    sums = [geometry.strong_gaps(distances[np.ix_(order, order)])[1:].sum() for order in orders]
    assert geometry.exchangeable_gap_sum(distances) == pytest.approx(np.mean(sums), abs=1e-12)


def test_gap_sum_is_the_integral_of_the_strong_count(cloud: np.ndarray) -> None:
    distances = sphere.pairwise_distance(cloud)
    gaps = geometry.strong_gaps(distances)
    grid = np.linspace(0, np.pi, 4001)
    integral = np.trapezoid([(gaps[1:] > delta).sum() for delta in grid], grid)
    assert gaps[1:].sum() == pytest.approx(integral, rel=1e-3)


def test_counts_are_those_of_analysis(cloud: np.ndarray) -> None:
    deltas = (0.2, 0.5, 0.8, 1.1, 1.4)
    result = checkpoints.token_geometry(cloud, deltas)
    for place, delta in enumerate(deltas):
        row = result.isel(layer=0, delta=place)
        assert row["renyi"] == len(renyi_centers(cloud, delta))
        assert row["strong"] == len(renyi_centers(cloud, delta, strong=True))
        assert row["clusters"] == cluster_count(cloud, delta)
    assert result["mean_cosine"].values[0] == pytest.approx(
        (cloud @ cloud.T)[~np.eye(60, dtype=bool)].mean(), abs=1e-12
    )


def test_fast_distances_are_the_exact_ones(cloud: np.ndarray) -> None:
    close = np.concatenate([cloud, sphere.normalize(cloud + 1e-9), -cloud, sphere.normalize(-cloud + 1e-5)])
    np.testing.assert_allclose(cloud_distances(close), sphere.pairwise_distance(close), atol=2e-13)
    np.testing.assert_allclose(cloud_distances(cloud, close), sphere.pairwise_distance(cloud, close), atol=2e-13)


def test_effective_rank_at_its_ends() -> None:
    assert checkpoints.effective_rank(np.eye(7)) == pytest.approx(7)
    assert checkpoints.effective_rank(np.tile([1.0, 0.0], (5, 1))) == pytest.approx(1)


def test_permuted_sums_are_those_of_permuted_matrices(cloud: np.ndarray) -> None:
    distances = sphere.pairwise_distance(cloud)
    ours = geometry.permuted_gap_sums(distances, 20, np.random.default_rng(9))
    generator = np.random.default_rng(9)
    for value in ours:
        order = np.argsort(generator.permutation(60))
        assert value == pytest.approx(geometry.strong_gaps(distances[np.ix_(order, order)])[1:].sum(), abs=1e-10)
    many = geometry.permuted_gap_sums(distances, 4000, np.random.default_rng(1))
    error = many.std() / np.sqrt(4000)
    assert abs(many.mean() - geometry.exchangeable_gap_sum(distances)) < 4 * error


def test_exchangeability_is_calibrated_and_has_power() -> None:
    generator = np.random.default_rng(2)
    independent = sphere.normalize(generator.normal(size=(40, 50, 8)))
    result = checkpoints.exchangeability_test(independent, permutations=99, seed=1)
    assert abs(result["z"].mean()) < 4 / np.sqrt(40)
    assert 0.5 < result["z"].std() < 1.6
    assert (result["p"] <= 0.05).sum() <= 8
    # A run of blocks of near duplicates followed by scattered tokens: gaps shrink less than in a random order would.
    walk = np.cumsum(0.3 * generator.normal(size=(200, 8)), axis=0) + 1
    ordered = checkpoints.exchangeability_test(sphere.normalize(walk), permutations=99, seed=1)
    assert abs(float(ordered["z"].values[0])) > 5
    assert ordered["p"].values[0] == pytest.approx(0.01)


def test_capture_of_clusters_and_its_null() -> None:
    generator = np.random.default_rng(3)
    corners = np.eye(12)[generator.integers(0, 12, 90)]
    loose = sphere.normalize(corners + 0.1 * generator.normal(size=(90, 12)))
    tight = sphere.normalize(corners + 1e-4 * generator.normal(size=(90, 12)))
    states = np.stack([loose, tight])
    curves = checkpoints.capture_curves(states, delta=0.9, null_samples=40, seed=2)
    assert curves.sizes["center"] == 12
    assert curves["consumed"].values[1] == 1.0
    assert curves["null_mean"].values[1] < 0.95
    assert curves["consumed"].values[0] >= 12 / 90
    still = checkpoints.capture_curves(states, delta=0.9, moving=False, radius=0.3)
    assert still["consumed"].values[0] > 0.1


@pytest.fixture
def states():
    import xarray as xr

    generator = np.random.default_rng(0)
    x = generator.normal(size=(2, 9, 10)).astype(np.float32)
    x[:, :, 4] += 8.0
    return xr.Dataset({"x": (("layer", "token", "feature"), x)}, coords={"layer": [0, 1], "token": np.arange(9)})


def test_every_choice_is_applied_and_recorded(states) -> None:
    result = checkpoints.to_sphere(states, drop_first=2, drop_dims=1, center="tokens")
    assert result.attrs["drop_dims"] == [4]
    assert result.attrs["center"] == "tokens"
    assert result.attrs["drop_first"] == 2
    assert list(result["token"].values) == list(range(2, 9))
    assert 4 not in result["feature"].values
    raw = np.delete(states["x"].values[:, 2:].astype(np.float64), 4, axis=-1)
    raw -= raw.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(result["x"].values, raw / np.linalg.norm(raw, axis=-1, keepdims=True), atol=1e-12)
    gain = np.arange(1.0, 11.0)
    gained = checkpoints.to_sphere(states, gain=gain, center="features")["x"].values
    raw = states["x"].values.astype(np.float64)
    raw = (raw - raw.mean(axis=-1, keepdims=True)) * gain
    np.testing.assert_allclose(gained, raw / np.linalg.norm(raw, axis=-1, keepdims=True), atol=1e-12)
    named = checkpoints.to_sphere(states, drop_dims=[0, 4])
    assert named.sizes["feature"] == 8
    plain = checkpoints.to_sphere(states)
    assert plain.attrs["gain"] == "none"
    assert checkpoints.energy_shares(states["x"].values)[0].argmax() == 4


def test_bad_choices_say_the_fix(states) -> None:
    with pytest.raises(InvalidInputError, match="center"):
        checkpoints.to_sphere(states, center="rows")
    with pytest.raises(InvalidInputError, match="gain must have shape"):
        checkpoints.to_sphere(states, gain=np.ones(3))
    with pytest.raises(InvalidInputError, match="drop_first"):
        checkpoints.to_sphere(states, drop_first=9)
    with pytest.raises(InvalidInputError, match="fewer than two"):
        checkpoints.to_sphere(states, drop_dims=range(9))
    states["x"][0, 3] = 0.0
    with pytest.raises(TokenError, match="token 3 of layer 0 is zero"):
        checkpoints.to_sphere(states)
    with pytest.raises(TokenError, match="not 1"):
        checkpoints.token_geometry(2 * np.ones((5, 4)))
    unit = sphere.uniform(5, dim=3, seed=0)
    with pytest.raises(InvalidInputError, match="between 0 and pi"):
        checkpoints.token_geometry(unit, deltas=[0.0])
    with pytest.raises(InvalidInputError, match="at least 3 tokens"):
        checkpoints.exchangeability_test(unit[:2])
