"""The sphere: distances at both ends, sampling laws, the measure of caps, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from metastable import sphere
from metastable.errors import InvalidInputError, TokenError


def great_circle(dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A random pair of orthonormal vectors."""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, 2)))
    return basis[:, 0], basis[:, 1]


@given(dim=st.integers(2, 12), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_projection_is_tangent_and_idempotent(dim: int, seed: int) -> None:
    x = sphere.uniform(7, dim, seed)
    v = np.random.default_rng(seed).standard_normal((7, dim))
    p = sphere.project(x, v)
    assert np.abs(np.sum(p * x, axis=1)).max() < 1e-14
    np.testing.assert_allclose(sphere.project(x, p), p, atol=1e-14)


@pytest.mark.parametrize("gap", [1e-300, 1e-15, 1e-12, 1e-8, 1e-3, 1.0, math.pi / 2, 3.0])
def test_distance_is_accurate_near_zero(gap: float) -> None:
    # On an axis the coordinates of both points are exact to rounding, so the distance must be as well.
    x = np.array([1.0, 0.0])
    y = np.array([math.cos(gap), math.sin(gap)])
    assert abs(sphere.distance(x, y) - gap) <= 1e-15 * max(gap, 1e-15) + 4e-16 * (gap > 1e-3)


@pytest.mark.parametrize("gap", [1e-15, 1e-12, 1e-8, 1e-3, 0.5])
def test_distance_is_accurate_near_antipodes(gap: float) -> None:
    x = np.array([1.0, 0.0])
    y = np.array([-math.cos(gap), math.sin(gap)])
    assert abs((math.pi - sphere.distance(x, y)) - gap) < 1e-15


def test_distance_random_directions_and_broadcast() -> None:
    for seed in range(20):
        u, w = great_circle(5, seed)
        angle = np.linspace(0, math.pi, 41)
        y = np.cos(angle)[:, None] * u + np.sin(angle)[:, None] * w
        np.testing.assert_allclose(sphere.distance(u, y), angle, atol=2e-15)
    assert sphere.distance(y[:, None], y[None]).shape == (41, 41)
    np.testing.assert_array_equal(sphere.pairwise_distance(y), sphere.distance(y[:, None], y[None]))
    np.testing.assert_array_equal(sphere.pairwise_distance(y, y[:3]), sphere.distance(y[:, None], y[None, :3]))


@pytest.mark.parametrize(
    ("x", "y", "word"),
    [
        ([1.0, 0.0], [[0.0, 1.0], [3.0, 4.0]], r"y .* index \(1,\) is off by 4"),
        ([1.0, 0.0], [1.0, 0.0, 0.0], "dimension 2 and 3"),
        ([1.0, np.nan], [1.0, 0.0], "x"),
        ([1.0], [1.0], "dim >= 2"),
    ],
)
def test_distance_refuses_what_is_not_on_the_sphere(x, y, word) -> None:
    with pytest.raises(TokenError, match=word):
        sphere.distance(x, y)


def test_pairwise_distance_in_blocks() -> None:
    x = sphere.uniform(1500, 3, 0)
    full = sphere.pairwise_distance(x)
    assert full.shape == (1500, 1500)
    np.testing.assert_array_equal(full, full.T)
    np.testing.assert_array_equal(full[700], sphere.distance(x[700], x))


def test_normalize_scales_without_overflow() -> None:
    x = np.array([[3e300, 4e300], [3e-310, 4e-310], [0.6, 0.8]])
    np.testing.assert_allclose(sphere.normalize(x), np.tile([0.6, 0.8], (3, 1)), rtol=1e-12)
    unit = sphere.uniform(1000, 4, 3)
    np.testing.assert_allclose(sphere.normalize(unit), unit, rtol=0, atol=3e-16)


@pytest.mark.parametrize(
    "bad",
    [[[0.0, 0.0]], [[1.0, math.nan]], [[math.inf, 0.0]], [[1.0]], 3.0, [["a", "b"]], [[1.0, 2.0], [0.0, 0.0]]],
)
def test_normalize_refuses(bad: object) -> None:
    with pytest.raises(TokenError):
        sphere.normalize(bad)  # pyright: ignore[reportArgumentType]


def test_uniform_is_reproducible_and_unit() -> None:
    x = sphere.uniform(200, dim=2, seed=0)
    assert x.shape == (200, 2)
    np.testing.assert_array_equal(x, sphere.uniform(200, dim=2, seed=0))
    assert not np.array_equal(x, sphere.uniform(200, dim=2, seed=1))
    assert np.abs(np.linalg.norm(x, axis=1) - 1).max() < 1e-15
    generator = np.random.default_rng(0)
    np.testing.assert_array_equal(x, sphere.uniform(200, 2, generator))


@pytest.mark.parametrize("dim", [2, 3, 5, 9])
def test_uniform_law(dim: int) -> None:
    """The distance to a fixed point has the cap measure as its distribution function."""
    x = sphere.uniform(20_000, dim, seed=1)
    away = sphere.distance(x, np.eye(dim)[0])
    assert stats.kstest(sphere.cap_measure(away, dim), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("dim", [2, 3, 6])
@pytest.mark.parametrize("angle", [1e-6, 0.3, 2.0, math.pi])
def test_cap_law(dim: int, angle: float) -> None:
    center = sphere.uniform(1, dim, 5)[0]
    x = sphere.cap(5000, center, angle, seed=2)
    away = sphere.distance(x, center)
    assert away.max() <= angle * (1 + 1e-9) + 1e-15
    relative = sphere.cap_measure(away, dim) / sphere.cap_measure(angle, dim)
    assert stats.kstest(relative, "uniform").pvalue > 1e-3
    assert np.abs(np.linalg.norm(x, axis=1) - 1).max() < 1e-15
    # No preferred direction around the center.
    tangent = sphere.project(center, x) / max(math.sin(min(angle, 1.5)), 1e-300)
    assert np.abs(tangent.mean(axis=0)).max() < 0.06


@pytest.mark.parametrize("dim", [2, 3, 4, 5, 8, 33])
@pytest.mark.parametrize("delta", [1e-9, 1e-3, 0.3, 1.2, math.pi / 2, 2.5, 3.1, math.pi])
def test_cap_measure_against_quadrature(dim: int, delta: float) -> None:
    node, weight = np.polynomial.legendre.leggauss(80)

    def integral(b: float) -> float:
        return 0.5 * b * float(weight @ np.sin(0.5 * b * (node + 1)) ** (dim - 2))

    assert sphere.cap_measure(delta, dim) == pytest.approx(integral(delta) / integral(math.pi), rel=2e-13)


def test_cap_measure_closed_forms_and_shapes() -> None:
    delta = np.linspace(0, 4, 50)
    clipped = np.minimum(delta, math.pi)
    np.testing.assert_allclose(sphere.cap_measure(delta, 2), clipped / math.pi, rtol=1e-15)
    np.testing.assert_allclose(sphere.cap_measure(delta, 3), np.sin(clipped / 2) ** 2, rtol=1e-13)
    assert isinstance(sphere.cap_measure(0.5, 3), float)
    assert sphere.cap_measure(4.0, 7) == 1.0
    assert sphere.cap_measure(0.0, 7) == 0.0


def test_angles_round_trip() -> None:
    theta = np.linspace(-3.14, math.pi, 101)
    np.testing.assert_allclose(sphere.to_angle(sphere.from_angle(theta)), theta, atol=1e-15)
    assert sphere.from_angle(0.3).shape == (2,)
    assert sphere.to_angle(np.array([-1.0, -0.0])) == math.pi


@pytest.mark.parametrize(
    "call",
    [
        lambda: sphere.uniform(0, 3, 0),
        lambda: sphere.uniform(3, 1, 0),
        lambda: sphere.uniform(3, 2, -1),
        lambda: sphere.uniform(3, 2, 0.5),  # pyright: ignore[reportArgumentType]
        lambda: sphere.cap(3, [1.0, 0.0], 0.0, 0),
        lambda: sphere.cap(3, [1.0, 0.0], 4.0, 0),
        lambda: sphere.cap(3, [2.0, 0.0], 1.0, 0),
        lambda: sphere.cap(3, [math.nan, 0.0], 1.0, 0),
        lambda: sphere.cap_measure(-0.1, 3),
        lambda: sphere.cap_measure(0.1, 1),
        lambda: sphere.to_angle(np.eye(3)),
        lambda: sphere.pairwise_distance(np.eye(3), np.eye(2)),
        lambda: sphere.pairwise_distance(np.zeros((2, 2, 2))),
    ],
)
def test_bad_arguments_are_refused(call: object) -> None:
    with pytest.raises(InvalidInputError):
        call()  # pyright: ignore[reportCallIssue]
