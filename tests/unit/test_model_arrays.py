"""Matrices of a model are arrays of the store of a run, not text; stores of before open."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

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


def stored_and_extended(folder: Path, engine: str, every: bool) -> ms.Run:
    """Saved, loaded, extended, saved and loaded: the same model, and the steps of one long run; the run that comes back."""
    options = {"method": "tsit5", "engine": engine, "progress": False}
    until, later, whole = ({"until": 0.1}, {"until": 0.25}, {"until": 0.25})
    if not every:
        until, later, whole = ({"times": [0.05, 0.1]}, {"times": [0.2, 0.25]}, {"times": [0.05, 0.1, 0.2, 0.25]})
    ms.simulate(wide(), start(), **until, **options).save(folder / "run.zarr")
    further = ms.load(folder / "run.zarr").extend(**later, progress=False)
    further.save(folder / "further.zarr")
    kept = ms.load(folder / "further.zarr")
    once = ms.simulate(wide(), start(), **whole, **options)
    assert kept.model == wide()
    assert (kept.engine, kept.end, kept.status) == (engine, 0.25, "success")
    assert kept.stats.accepted == once.stats.accepted
    np.testing.assert_allclose(kept.times, once.times, rtol=1e-9)
    # Where the earlier run ended by a step, one long run interpolates.
    joint = np.isclose(kept.times, 0.1) & (not every)
    np.testing.assert_allclose(kept.states[~joint], once.states[~joint], rtol=0, atol=1e-10)
    np.testing.assert_allclose(kept.states[joint], once.states[joint], rtol=0, atol=1e-6)
    assert len(kept.dataset.attrs["model"]) < 2000
    return kept


@pytest.mark.parametrize("every", [True, False], ids=["every step", "times"])
def test_stored_runs_are_extended_with_their_arrays(tmp_path, every):
    kept = stored_and_extended(tmp_path, "reference", every)
    assert (kept.engine, kept.end) == ("reference", 0.25)


def test_a_layer_as_large_as_smollm2s_is_stored_once(tmp_path):
    """d = 576, nine heads of rank 64 on three keys and values, MLP of 1536: as many numbers as one layer has, each of them once."""
    rng = np.random.default_rng(0)

    def draw(rows: int, columns: int) -> np.ndarray:
        return rng.normal(size=(rows, columns)) / columns**0.5

    keys, values = ([draw(64, 576) for _ in range(3)] for _ in range(2))
    heads = [ms.Head(draw(64, 576), keys[i // 3], values[i // 3], 0.125, draw(576, 64)) for i in range(9)]
    layer = ms.FeedForward(draw(1536, 576), np.zeros(1536), draw(576, 1536), np.zeros(576), "silu")
    model = ms.Attention(dim=576, heads=tuple(heads), feedforward=layer)
    run = ms.simulate(model, start(576), method="layers", step=0.1, until=0.1, progress=False)
    run.save(tmp_path / "run.zarr")
    numbers = 2 * 9 * 64 * 576 + 2 * 3 * 64 * 576 + 2 * 1536 * 576
    size = sum(file.stat().st_size for file in (tmp_path / "run.zarr").rglob("*") if file.is_file())
    # Random numbers cannot be compressed much.
    assert size < 8 * numbers + 10**6
    assert ms.load(tmp_path / "run.zarr").model == model


def test_arrays_of_float32_numbers_take_half_the_room(tmp_path):
    rng = np.random.default_rng(2)
    short, long = (rng.normal(size=(12, 12)).astype(kind).astype(float) for kind in (np.float32, np.float64))
    tiny = np.where(np.eye(12) > 0, 1e-300, short)
    cases = ((short, np.float32), (long, np.float64), (tiny, np.float64), (-0.0 * short, np.float32))
    for number, (value, kind) in enumerate(cases):
        run, path = ms.simulate(ms.Attention(12, 1.0, value=value), start(12), **OPTIONS), tmp_path / f"{number}.zarr"
        run.save(path)
        assert zarr.open_array(path / "model_array0").dtype == kind
        kept = ms.load(path).dataset
        assert kept["model_array0"].dtype == np.float64
        assert kept["model_array0"].values.tobytes() == value.tobytes()
        assert kept.identical(run.dataset)
