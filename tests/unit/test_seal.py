"""A run is made of what was computed: a dataset whose numbers or attributes may have been changed makes none."""

import copy
import json
import pickle

import numpy as np
import pytest
import xarray as xr

import metastable as ms
from metastable.errors import InvalidInputError

MODEL, START = ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(5, dim=2, seed=0)
RUNS = {
    "every step": {"until": 5.0},
    "chosen times": {"times": [0.0, 1.0, 5.0]},
    "layers": {"until": 3.0, "method": "layers", "step": 1.0},
}


@pytest.fixture(params=RUNS, scope="module")
def run(request):
    return ms.simulate(MODEL, START, **RUNS[request.param])


def moved(data: xr.Dataset) -> xr.Dataset:
    """The tokens at the end somewhere else, in the copy's own memory."""
    data["x"].values[-1] = START
    return data


CHANGES = {
    "states in place": lambda run: moved(run.dataset.copy(deep=True)),
    "states assigned": lambda run: run.dataset.assign(x=1.0 * run.dataset.x),
    "states not numbers": lambda run: run.dataset.assign(x=np.nan * run.dataset.x),
    "single precision": lambda run: run.dataset.astype("float32"),
    "times": lambda run: run.dataset.assign_coords(time=2 * run.dataset.time.values),
    "start": lambda run: run.dataset.assign(start=-run.dataset.start),
    "model": lambda run: run.dataset.assign_attrs(model=json.dumps({"dim": 2, "beta": 9.0})),
    "status": lambda run: run.dataset.assign_attrs(status="max_steps"),
    "no status": lambda run: run.dataset.drop_attrs(deep=False).assign_attrs(computed=run.dataset.attrs["computed"]),
    "tolerance": lambda run: run.dataset.assign_attrs(rtol=1e-12),
    "a variable less": lambda run: run.dataset.drop_vars("start"),
    "a copy": lambda run: run.dataset.copy(deep=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_may_have_been_changed_makes_no_run(run, change):
    with pytest.raises(InvalidInputError, match="not as it was computed any more, or a copy of it"):
        ms.Run(CHANGES[change](run))


@pytest.mark.parametrize("data", [xr.Dataset(), xr.Dataset({"x": ("time", [1.0])}, attrs={"computed": 3})], ids=str)
def test_other_datasets_make_no_run(data):
    with pytest.raises(InvalidInputError, match="not that of a run"):
        ms.Run(data)


def test_an_ensemble_makes_no_run():
    """It was said to lack an attribute that it has."""
    stats = ms.ensemble(MODEL, tokens=4, members=2, times=[1.0], seed=0, engine="reference")
    with pytest.raises(InvalidInputError, match="its attribute 'computed' is not that of a run"):
        ms.Run(stats)
    with pytest.raises(InvalidInputError, match="it lacks the attribute 'computed'"):
        ms.Run(xr.Dataset())


def test_times_go_forward():
    run = ms.simulate(MODEL, START, times=[0.0, 1.0, 5.0])
    with pytest.raises(InvalidInputError, match="times of a run increase"):
        ms.Run(run.dataset.isel(time=slice(None, None, -1)))


def test_the_dataset_of_a_run_makes_the_run(run, tmp_path):
    run.save(tmp_path / "run.zarr")
    same = [run, copy.deepcopy(run), pickle.loads(pickle.dumps(run)), ms.load(tmp_path / "run.zarr")]
    for held in same:
        for data in (held.dataset, held.dataset.copy()):
            again = ms.Run(data)
            np.testing.assert_array_equal(again.states, run.states)
            assert again.model == run.model


def test_what_was_added_stays_added(tmp_path):
    """Before, a remark became part of what was computed as soon as another run was made of the dataset."""
    run = ms.simulate(MODEL, START, times=[0.0, 1.0, 5.0])
    run.dataset.attrs["remark"] = "the good one"
    run.dataset["weight"] = ("token", np.arange(5.0))
    again = ms.Run(run.dataset)
    del again.dataset["weight"]
    again.dataset.attrs["remark"] = "another"
    again.save(tmp_path / "run.zarr")
    assert ms.load(tmp_path / "run.zarr").dataset.attrs["remark"] == "another"
    part = ms.Run(run.dataset.isel(time=slice(0, 2)))
    assert part.end == 1.0
    assert part._added() == {"variables": ["weight"], "attributes": ["remark"]}
    assert ms.Run(run.extend(until=7.0).dataset).dataset.attrs["remark"] == "the good one"


def test_stores_from_before_the_seal_open(tmp_path):
    """They lack the attribute; what they were saved with tells what was added."""
    from metastable import dataset

    run = ms.simulate(MODEL, START, times=[0.0, 1.0, 5.0])
    run.dataset.attrs["remark"] = "mine"
    old = run._kept()
    del old.attrs["computed"]
    found = ms.load(dataset.save(old, tmp_path / "old.zarr"))
    np.testing.assert_array_equal(found.states, run.states)
    found.dataset.attrs["remark"] = "changed"
    found.save(tmp_path / "new.zarr")
    assert ms.Run(ms.load(tmp_path / "new.zarr").dataset).dataset.attrs["remark"] == "changed"


def test_flow_runs_alike():
    states = np.random.default_rng(0).normal(size=(3, 4, 8))
    run = ms.checkpoints.from_states(states, text=list("abcd"))
    assert type(run)(run.dataset).text == ("a", "b", "c", "d")
    less = run.drop_first(1)
    assert type(run)(less.dataset).text == ("b", "c", "d")
    changed = run.dataset.copy(deep=True)
    changed["hidden"].values[-1] = 0.0
    for data in (changed, run.dataset.assign_coords(text=("token", list("efgh")))):
        with pytest.raises(InvalidInputError, match="not as it was computed any more"):
            type(run)(data)


def test_trees_and_verdicts_are_read_only():
    """Also in copies; before, `tree.time[0] = 0` changed what `tree.count` and the picture say."""
    run = ms.simulate(ms.Attention(dim=2, beta=16.0), ms.sphere.uniform(12, dim=2, seed=0), until=100.0)
    found = [ms.merge_tree(run), run.predict_merges(), ms.predict(run.model), ms.classify(run).features]
    found += [ms.classify(run).groups]
    for item in found:
        for held in (item, copy.deepcopy(item), pickle.loads(pickle.dumps(item))):
            arrays = {name: value for name, value in vars(held).items() if isinstance(value, np.ndarray)}
            assert arrays
            for array in arrays.values():
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 0
                with pytest.raises(ValueError, match="WRITEABLE"):
                    array.setflags(write=True)
