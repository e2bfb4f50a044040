"""Renyi centers against the definition, written as a naive double loop, and consumed tokens."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metastable import sphere
from metastable.analysis import consumed, renyi_centers
from metastable.errors import InvalidInputError, TokenError


def naive(away: np.ndarray, delta: float, strong: bool) -> list[int]:
    """The definition, from a matrix of distances."""
    found: list[int] = []
    for s in range(len(away)):
        if all(away[s, i] > delta for i in (range(s) if strong else found)):
            found.append(s)
    return found


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize("dim", [2, 3, 5, 9])
def test_equal_to_the_naive_loop_on_random_inputs(dim: int, strong: bool) -> None:
    generator = np.random.default_rng(dim)
    for _ in range(300):
        tokens = int(generator.integers(1, 40))
        x = sphere.uniform(tokens, dim, generator)
        if generator.random() < 0.5:  # duplicates and near duplicates
            x = x[generator.integers(0, tokens, tokens)]
        delta = float(generator.choice([0.0, 1e-9, 0.05, 0.5, 1.0, 2.0, 3.1, math.pi, 4.0]))
        assert renyi_centers(x, delta, strong).tolist() == naive(sphere.pairwise_distance(x), delta, strong)


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize(("dim", "tokens"), [(2, 2500), (3, 2000), (8, 1500)])
def test_many_tokens_equal_the_naive_loop(dim: int, tokens: int, strong: bool) -> None:
    x = sphere.uniform(tokens, dim, seed=dim)
    x[100:200] = x[:100]
    away = sphere.pairwise_distance(x)
    for delta in (0.0, 0.003, 0.1, 0.6, 2.5, math.pi):
        assert renyi_centers(x, delta, strong).tolist() == naive(away, delta, strong)


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize("tokens", [30, 1200])
def test_ties_at_exactly_delta_on_the_circle(tokens: int, strong: bool) -> None:
    """Tokens on a regular grid and delta a multiple of its spacing: distances are known as whole numbers."""
    generator = np.random.default_rng(7)
    for _ in range(60 if tokens < 100 else 6):
        grid = int(generator.integers(2, 400))
        place = generator.integers(0, grid, tokens)
        apart = np.abs(place[:, None] - place[None, :])
        apart = np.minimum(apart, grid - apart)
        x = sphere.from_angle(2 * math.pi * place / grid + float(generator.uniform(0, 6)))
        steps = int(generator.integers(0, grid // 2 + 1))
        delta = 2 * math.pi * steps / grid
        assert renyi_centers(x, delta, strong).tolist() == naive(apart, steps, strong)


@pytest.mark.parametrize("strong", [False, True])
def test_ties_at_exactly_delta_in_space(strong: bool) -> None:
    """Vertices of a rotated cube: distances arccos(1/3), arccos(-1/3) and pi, compared as numbers of differing signs."""
    generator = np.random.default_rng(11)
    corners = np.array(list(itertools.product([-1.0, 1.0], repeat=3)))
    apart_of = {0: 0.0, 1: math.acos(1 / 3), 2: math.acos(-1 / 3), 3: math.pi}
    for _ in range(200):
        rotation, _ = np.linalg.qr(generator.standard_normal((3, 3)))
        place = generator.integers(0, 8, 20)
        differing = (corners[place][:, None] != corners[place][None]).sum(axis=2)
        x = sphere.normalize(corners[place]) @ rotation.T
        for limit in (0, 1, 2, 3):
            assert renyi_centers(x, apart_of[limit], strong).tolist() == naive(differing, limit, strong)
    axes = np.concatenate([np.eye(4), -np.eye(4)])
    assert renyi_centers(axes, math.pi / 2, strong).tolist() == ([0, 4] if not strong else [0])


@given(dim=st.integers(2, 6), tokens=st.integers(1, 600), seed=st.integers(0, 10**6), delta=st.floats(0, 4))
@settings(max_examples=60, deadline=None)
def test_properties(dim: int, tokens: int, seed: int, delta: float) -> None:
    x = sphere.uniform(tokens, dim, seed)
    plain, strong = renyi_centers(x, delta), renyi_centers(x, delta, strong=True)
    assert plain[0] == strong[0] == 0
    assert set(strong) <= set(plain)
    assert (np.diff(plain) > 0).all()
    assert (np.diff(strong) > 0).all()
    if delta >= math.pi:
        assert plain.tolist() == [0]
    # Causal: a longer sequence only adds centers at its end.
    half = (tokens + 1) // 2
    np.testing.assert_array_equal(renyi_centers(x[:half], delta), plain[plain < half])
    # Rotations and the tree change nothing.
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))
    np.testing.assert_array_equal(renyi_centers(x @ rotation.T, delta), plain)


def test_general_metric() -> None:
    generator = np.random.default_rng(3)
    for _ in range(100):
        x = sphere.uniform(25, 3, generator)
        form = generator.standard_normal((3, 3))
        delta = float(generator.uniform(0.1, 2.0))
        short = 2 * np.array([[a @ form @ a - a @ form @ b for b in x] for a in x])
        limit = (2 * math.sin(delta / 2)) ** 2
        for strong in (False, True):
            assert renyi_centers(x, delta, strong, metric=form).tolist() == naive(short, limit, strong)
            np.testing.assert_array_equal(
                renyi_centers(x, delta, strong, metric=np.eye(3)), renyi_centers(x, delta, strong)
            )
    # Scaling the form is the same as lowering the temperature: distances grow by its square root.
    few = renyi_centers(x, 0.02, metric=np.eye(3))
    assert len(renyi_centers(x, 0.2, metric=100.0 * np.eye(3))) == pytest.approx(len(few), abs=1)


def test_consumed_counts_tokens_in_balls() -> None:
    x = sphere.from_angle([0.0, 0.1, 0.2, 1.0, 1.05, 3.0])
    assert consumed(x, [0], 0.1) == pytest.approx(2 / 6)  # the tie at 0.1 is inside
    assert consumed(x, [0, 3], 0.1) == pytest.approx(4 / 6)
    assert consumed(x, np.array([0, 3]), 4.0) == 1.0
    assert consumed(x, sphere.from_angle([2.99]), 0.02) == pytest.approx(1 / 6)
    assert consumed(x, [], 0.5) == 0.0


def test_consumed_with_many_centers() -> None:
    x = sphere.uniform(3000, 3, seed=0)
    centers = np.arange(900)
    near = sphere.pairwise_distance(x, x[centers]).min(axis=1) <= 0.03
    assert consumed(x, centers, 0.03) == near.mean()
    assert consumed(x, centers[:300], 0.03) == (sphere.pairwise_distance(x, x[:300]).min(axis=1) <= 0.03).mean()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: renyi_centers(x, -0.1),
        lambda x: renyi_centers(x, math.nan),
        lambda x: renyi_centers(x, 0.1, metric=np.eye(3)),
        lambda x: consumed(x, [0.5], 0.1),
        lambda x: consumed(x, [7], 0.1),
        lambda x: consumed(x, [-1], 0.1),
        lambda x: consumed(x, [0], -0.1),
    ],
)
def test_bad_arguments_are_refused(call: object) -> None:
    with pytest.raises(InvalidInputError):
        call(sphere.from_angle([0.0, 1.0]))  # type: ignore[operator]


@pytest.mark.parametrize("bad", [[[2.0, 0.0]], [[0.0, 0.0]], [[math.nan, 1.0]], [1.0, 0.0], np.empty((0, 2))])
def test_bad_tokens_are_refused(bad: object) -> None:
    with pytest.raises(TokenError):
        renyi_centers(bad, 0.5)  # type: ignore[arg-type]
