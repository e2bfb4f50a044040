"""Matrices of a model are arrays of the store of a run, not text; stores of before open."""

from __future__ import annotations

import json

import numpy as np
import pytest

import metastable as ms
from metastable import dataset
from metastable.errors import IncompleteStoreError
from tests import variants

OPTIONS = {"until": 0.1, "method": "tsit5", "engine": "reference", "progress": False}


def wide(dim: int = 24, rank: int = 6) -> ms.Attention:
    """Grouped heads (two share key and value), a feed-forward layer, a bias and a mask as matrices."""
    rng = np.random.default_rng(0)
    key, value = rng.normal(size=(rank, dim)), rng.normal(size=(rank, dim))
    heads = tuple(
        ms.Head(rng.normal(size=(rank, dim)), key, value, 0.3, output=rng.normal(size=(dim, rank)), rotary=ms.Rotary())
        for _ in range(2)
    )
    layer = ms.FeedForward(rng.normal(size=(9, dim)), np.zeros(9), rng.normal(size=(dim, 9)), rng.normal(size=dim))
    bias, mask = ms.LogitBias(rng.normal(size=(10, 10))), ms.Mask(np.tri(10, dtype=bool))
    return ms.Attention(dim=dim, heads=heads, feedforward=layer, bias=bias, mask=mask)


def start(dim: int = 24) -> np.ndarray:
    return variants.tokens(np.random.default_rng(1), 10, dim)


def test_matrices_are_arrays_of_the_store(tmp_path):
    run = ms.simulate(wide(), start(), **OPTIONS)
    assert run.model == wide()
    assert len(run.dataset.attrs["model"]) < 2000
    arrays = [name for name in run.dataset.variables if str(name).startswith("model_array")]
    # Two queries and outputs, one key and one value, two of the layer, bias, mask.
    assert len(arrays) == 10
    run.save(tmp_path / "run.zarr")
    kept = ms.load(tmp_path / "run.zarr")
    assert kept.model == wide()
    np.testing.assert_array_equal(kept.final, run.final)
    again = ms.simulate(kept.model, start(), **OPTIONS)
    np.testing.assert_array_equal(again.final, run.final)


def test_several_models_share_their_arrays(tmp_path):
    other = wide().replace(norm=ms.NGPT(0.5))
    run = ms.simulate(ms.Schedule([(0.0, wide()), (0.05, other)]), start(), **OPTIONS)
    assert len([name for name in run.dataset.variables if str(name).startswith("model_array")]) == 10
    run.save(tmp_path / "run.zarr")
    assert ms.load(tmp_path / "run.zarr").models == (wide(), other)


def test_small_models_are_text_as_before():
    model = ms.Attention(dim=3, beta=2.0, value=np.diag([1.0, 2.0, 3.0]))
    run = ms.simulate(model, start(3), **OPTIONS)
    assert json.loads(run.dataset.attrs["model"]) == model.to_dict()
    assert not any(str(name).startswith("model_array") for name in run.dataset.variables)


def test_stores_with_all_arrays_in_the_text_open(tmp_path):
    """As version 0.2 wrote them."""
    run = ms.simulate(wide(), start(), **OPTIONS)
    arrays = [name for name in run.dataset.variables if str(name).startswith("model_array")]
    old = run.dataset.drop_vars(arrays).assign_attrs(model=wide().to_json())
    dataset.save(old, tmp_path / "old.zarr")
    assert ms.load(tmp_path / "old.zarr").model == wide()


def test_a_store_without_one_of_them_is_refused(tmp_path):
    run = ms.simulate(wide(), start(), **OPTIONS)
    dataset.save(run.dataset.drop_vars("model_array3"), tmp_path / "run.zarr")
    with pytest.raises(IncompleteStoreError, match="model_array3"):
        ms.load(tmp_path / "run.zarr")
