"""Starts of ensembles drawn by compiled code are those that NumPy draws, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable.ensembles import problem
from metastable.kernels.cpu import starts

SEEDS = (0, 1, 2**32 - 1, 2**40 + 3, 2**130 + 5, 123456789012345678901234567890123456789012345678901234567890)


def by_numpy(seed: int, first: int, members: int, tokens: int, dim: int) -> np.ndarray:
    """The documented stream, written down again."""
    drawn = []
    for member in range(first, first + members):
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(member,)))
        drawn.append(ms.sphere.uniform(tokens, dim=dim, seed=generator))
    return np.stack(drawn)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dim", [2, 3, 7, 8, 17])
def test_bit_for_bit(seed, dim):
    found = starts.uniform(seed, 5, 12, 33, dim, threads=1)
    np.testing.assert_array_equal(found, by_numpy(seed, 5, 12, 33, dim))


def test_a_million_tokens_and_the_tail():
    """Every branch of the ziggurat: a layer in 150 numbers is left, the tail is met in one of 4000."""
    found = starts.uniform(3, 2**31, 500, 1000, 2, threads=1)
    np.testing.assert_array_equal(found, by_numpy(3, 2**31, 500, 1000, 2))


def test_threads_and_batches_do_not_matter():
    one = starts.uniform(9, 0, 50, 20, 3, threads=1)
    np.testing.assert_array_equal(starts.uniform(9, 0, 50, 20, 3), one)
    np.testing.assert_array_equal(starts.uniform(9, 20, 7, 20, 3), one[20:27])


def test_members_beyond_one_word_are_drawn_by_numpy():
    found = starts.uniform(0, 2**32 - 1, 2, 4, 2)
    np.testing.assert_array_equal(found, by_numpy(0, 2**32 - 1, 2, 4, 2))


def test_where_numpy_draws_otherwise_it_is_asked(monkeypatch):
    """Tables that are not NumPy's are noticed, and the numbers stay right."""
    assert starts.agrees()
    assert starts.TABLES is not None
    other = starts.TABLES[1].copy()
    other[200] *= 1.5
    monkeypatch.setattr(starts, "TABLES", (starts.TABLES[0], other, starts.TABLES[2]))
    starts.agrees.cache_clear()
    try:
        assert not starts.agrees()
        np.testing.assert_array_equal(starts.uniform(1, 0, 3, 100, 2), by_numpy(1, 0, 3, 100, 2))
    finally:
        monkeypatch.undo()
        starts.agrees.cache_clear()


def test_ensembles_draw_what_they_drew(monkeypatch):
    """Many or few, the start of a member is a function of the seed and its number."""
    options = {"tokens": 6, "members": 9, "times": [0.0, 0.1], "seed": 4, "progress": False, "method": "tsit5"}
    model = ms.Attention(dim=3, beta=2.0)
    monkeypatch.setattr(problem, "COMPILED_DRAWS", 0)
    compiled = ms.ensemble(model, **options)["x"].values[:, 0]
    monkeypatch.setattr(problem, "COMPILED_DRAWS", 10**9)
    np.testing.assert_array_equal(ms.ensemble(model, **options)["x"].values[:, 0], compiled)
    np.testing.assert_allclose(compiled, by_numpy(4, 0, 9, 6, 3), rtol=0, atol=1e-15)
