"""Prefix masks over any horizon: the prefix as points with masses, the tokens behind it one by one; against causal attention, full
attention, the dense block, and themselves at another tolerance."""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable.errors import NumericalRangeError
from metastable.integrate import rodas
from metastable.integrate.rodas import dense, solver


def follow(model, x, times, rtol=1e-8):
    run = ms.simulate(model, x, times=times, method="rodas", rtol=rtol, atol=0.0, progress=False)
    assert run.status == "success"
    np.testing.assert_array_equal(run.times, times)
    return run.states


@pytest.mark.parametrize(("dim", "beta", "seed"), [(2, 30.0, 0), (2, 16.0, 1), (3, 9.0, 0)])
def test_a_prefix_at_one_place_is_causal(dim, beta, seed):
    """Two tokens at one place rest there, whether the first sees the second or not: the whole cascade to t = 1e60 is the one that the
    triangular systems have."""
    x = ms.sphere.uniform(30, dim, seed)
    x[1] = x[0]
    times = np.geomspace(1, 1e60, 40)
    found, known = (
        follow(ms.Attention(dim=dim, beta=beta, mask=mask), x, times) for mask in (ms.Prefix(2), ms.Causal())
    )
    np.testing.assert_allclose(found, known, atol=2e-7)


@pytest.mark.parametrize("dim", [2, 3])
def test_a_heavy_prefix_at_one_place_is_a_frozen_token(dim):
    x = ms.sphere.uniform(20, dim, 2)
    x[:5] = x[0]
    times, beta = np.geomspace(1, 1e40, 30), 24.0 if dim == 2 else 8.0
    found = follow(ms.Attention(dim=dim, beta=beta, mask=ms.Prefix(5)), x, times)
    anchor = ms.Frozen(x[:1], [5.0])
    known = follow(ms.Attention(dim=dim, beta=beta, frozen=anchor), x[5:], times)
    np.testing.assert_allclose(found[:, 5:], known, atol=2e-7)


@pytest.mark.parametrize(
    ("dim", "tokens", "prefix", "beta", "fields"),
    [
        (2, 30, 10, 30.0, {}),
        (2, 40, 39, 24.0, {}),
        (3, 24, 8, 9.0, {}),
        (3, 16, 6, 6.0, {"value": np.diag([1.0, 0.6, 0.3])}),
    ],
)
def test_the_prefix_is_full_attention_and_the_others_are_those_of_the_dense_block(
    dim, tokens, prefix, beta, fields, monkeypatch
):
    """To 1e50 the prefix moves as its tokens do alone; as far as the dense block is honest (here 1e12) all agree with it; and a hundred
    times the tolerance changes little."""
    x, times = ms.sphere.uniform(tokens, dim, 0), np.geomspace(1, 1e50, 51)
    model = ms.Attention(dim=dim, beta=beta, mask=ms.Prefix(prefix), **fields)
    found = follow(model, x, times)
    alone = follow(model.replace(mask=ms.Full()), x[:prefix], times)
    np.testing.assert_allclose(found[:, :prefix], alone, atol=1e-6)
    coarse = np.abs(follow(model, x, times, rtol=1e-6) - found).max(axis=(1, 2))
    assert np.median(coarse) < 1e-5
    assert coarse.max() < 1e-2  # while tokens fall over, they are ahead or behind
    monkeypatch.setattr(solver, "POINTS_FROM", np.inf)
    early = times[times <= 1e12]
    np.testing.assert_allclose(found[: early.size], follow(model, x, early), atol=1e-6)


def test_all_tokens_in_the_prefix_are_full_attention_to_the_last_bit():
    x, times = ms.sphere.uniform(20, 2, 0), np.geomspace(1, 1e40, 20)
    full, prefix = (follow(ms.Attention(dim=2, beta=20.0, mask=mask), x, times) for mask in (ms.Full(), ms.Prefix(20)))
    np.testing.assert_array_equal(full, prefix)


def test_the_tree_of_a_prefix_and_its_extension():
    """n = 30, a prefix of ten, beta = 30, to one cluster at t = 3e25, with `method="auto"`; in one go and in two."""
    model, x = ms.Attention(dim=2, beta=30.0, mask=ms.Prefix(10)), ms.sphere.uniform(30, 2, 0)
    run = ms.simulate(model, x, until=1e50, progress=False)
    assert run.status == "success"
    assert np.ptp(run.final, axis=0).max() < 1e-12
    tree = ms.merge_tree(run)
    finer = ms.merge_tree(ms.simulate(model, x, until=1e50, rtol=1e-8, atol=0.0, progress=False))
    np.testing.assert_allclose(tree.time, finer.time, rtol=2e-4)
    assert tree.time[-1] == pytest.approx(2.967e25, rel=1e-3)
    parts = ms.merge_tree(ms.simulate(model, x, until=1e22, progress=False).extend(until=1e50))
    np.testing.assert_allclose(parts.time, tree.time, rtol=1e-4)


def test_what_a_prefix_cannot_do_beyond_the_horizon_of_a_dense_block():
    for tokens, fields, word in (
        (3000, {}, "one by one"),
        (6, {"frozen": ms.Frozen([[1.0, 0.0]])}, "frozen"),
        (6, {"value": -np.eye(2)}, "leading eigenvalue of V is -1"),
        (6, {"weights": "unnormalized"}, "unnormalized"),
    ):
        model, x = ms.Attention(dim=2, beta=1.0, mask=ms.Prefix(3), **fields), ms.sphere.uniform(tokens, 2, 0)
        with pytest.raises(NumericalRangeError, match=word):
            ms.simulate(model, x, until=1e30, method="rodas", progress=False)
        assert word in (rodas.horizon_refusal(model, tokens, 1e30, False) or "")


@pytest.mark.parametrize("dim", [2, 3])
def test_the_last_output_time_is_there_under_causal_attention_too(dim):
    """t + (until - t) was less than until, and the last state was missing from a success."""
    x = ms.sphere.uniform(20, dim, 2)
    for until in (1e37, 1e40):
        states = follow(ms.Attention(dim=dim, beta=24.0 if dim == 2 else 8.0), x[5:], np.geomspace(1, until, 30))
        assert states.shape == (30, 15, dim)
        np.testing.assert_allclose(np.linalg.norm(states[-1], axis=1), 1.0, atol=1e-12)


def settled(model, x, rtol):
    run = ms.simulate(model, x, until="settled", rtol=rtol, atol=0.0, progress=False)
    assert run.status == "success"
    assert ms.sphere.pairwise_distance(run.final).max() < 1e-11
    return run


@pytest.mark.parametrize(("dim", "beta"), [(2, 40.0), (3, 9.0)])
def test_a_prefix_settles_at_one_place_whenever_that_is(dim, beta):
    """It ended at t = 1e20 as not settled. A prefix at one place settles when causal tokens do; any other at times that a hundred times
    the tolerance does not change (but for the step in which it is noticed), and after its last merge."""
    x = ms.sphere.uniform(24, dim, 5)
    model = ms.Attention(dim=dim, beta=beta, mask=ms.Prefix(8))
    fine, coarse = (settled(model, x, rtol) for rtol in (1e-8, 1e-6))
    assert fine.notes["settled"] == pytest.approx(coarse.notes["settled"], rel=3e-2)
    if dim == 2:
        assert fine.notes["settled"] > 1e20
    last = ms.merge_tree(fine).time[-1]
    assert last <= fine.notes["settled"] < 1.05 * last + 100
    x[:8] = x[0]
    both = (settled(model.replace(mask=mask), x, 1e-8).notes["settled"] for mask in (ms.Prefix(8), ms.Causal()))
    assert next(both) == pytest.approx(next(both), rel=3e-2, abs=100.0)


@pytest.mark.parametrize("count", [65, 100, 200])
def test_the_rate_of_a_block_whose_krylov_space_is_closed(count):
    """Tokens at one place: -I + a matrix of rank d - 1. Behind two or three vectors there is rounding, with made-up values (245)."""
    matrix = np.kron(np.ones((count, count)) / count, np.eye(2)) - np.eye(2 * count)
    assert dense.rate_of_block(matrix) == 0.0
    assert dense.rate_of_block(matrix + 0.5 * np.eye(2 * count)) == pytest.approx(0.5, abs=1e-12)
    noisy = matrix + 1e-3 * np.random.default_rng(0).normal(size=matrix.shape)
    assert dense.rate_of_block(noisy) < 0.01


@pytest.mark.parametrize("mask", [ms.Full(), ms.Prefix(80)])
def test_gathered_tokens_reach_far_horizons_in_few_steps(mask):
    """Beyond `EXACT_SIZE` coordinates steps were 0.002 long, for ever."""
    model, start = ms.Attention(dim=3, beta=1.0, mask=mask), ms.sphere.uniform(100, dim=3, seed=1)
    run = ms.simulate(model, start, times=[1e6], max_steps=400, progress=False)
    assert run.status == "success"
    np.testing.assert_allclose(run.final, run.final[:1].repeat(100, axis=0), atol=1e-6)
