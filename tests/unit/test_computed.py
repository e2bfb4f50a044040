"""What was computed stays what it was: a run does not follow changes of its dataset, nor does a store; additions are kept."""

import contextlib
import copy
import pickle

import numpy as np
import pytest
import xarray as xr

import metastable as ms
from metastable.errors import InvalidInputError


def made() -> ms.Run:
    model = ms.Attention(dim=2, beta=4.0)
    return ms.simulate(model, ms.sphere.uniform(6, dim=2, seed=0), until=5.0, progress=False)


def zeros_by_values(data):
    data["x"].values = np.zeros(data["x"].shape)


def zeros_by_data(data):
    data.x.data = np.zeros(data["x"].shape)


def zeros_by_name(data):
    data["x"] = data["x"] * 0


def holes(data):
    data["x"] = data["x"].where(data["time"] > 2)


def single(data):
    data["x"] = data["x"].astype(np.float32)


def another_model(data):
    data.attrs["model"] = made().dataset.attrs["model"].replace("4.0", "99.0")


def status(data):
    data.attrs["status"] = "checked by me"


def tolerance(data):
    data.attrs["rtol"] = 1.0


def gone(data):
    del data["x"]


def times(data):
    data["time"] = data["time"] + 1.0


CHANGES = [zeros_by_values, zeros_by_data, zeros_by_name, holes, single, another_model, status, tolerance, gone, times]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("loaded", [False, True])
def test_a_changed_dataset_changes_no_run_and_is_not_saved(change, loaded, tmp_path):
    run = made()
    truth = run.states.copy(), run.times.copy(), repr(run), run.model, run.final.copy()
    run.save(tmp_path / "good.zarr")
    if loaded:
        run = ms.load(tmp_path / "good.zarr")
    change(run.dataset)
    assert np.array_equal(run.states, truth[0])
    assert np.array_equal(run.times, truth[1])
    assert repr(run) == truth[2]
    assert run.model == truth[3]
    assert np.array_equal(run.final, truth[4])
    for place, overwrite in (("good.zarr", True), ("new.zarr", False)):
        with pytest.raises(InvalidInputError, match="not what was computed any more"):
            run.save(tmp_path / place, overwrite=overwrite)
    assert np.array_equal(ms.load(tmp_path / "good.zarr").states, truth[0])
    assert not (tmp_path / "new.zarr").exists()


def annotated() -> ms.Run:
    run = made()
    run.dataset.attrs["remark"] = "mine"
    run.dataset["label"] = ("token", [f"t{i}" for i in range(6)])
    run.dataset["weight"] = (("token", "coord"), np.arange(12.0).reshape(6, 2))
    return run


def test_additions_are_saved_and_carried_on(tmp_path):
    run = annotated()
    run.save(tmp_path / "a.zarr")
    for longer in (
        run.extend(until=8.0, progress=False),
        ms.load(tmp_path / "a.zarr").extend(until=8.0, progress=False),
    ):
        assert longer.end == 8.0
        for kept in (longer, _again(longer, tmp_path / "b.zarr")):
            assert kept.dataset.attrs["remark"] == "mine"
            assert list(kept.dataset["label"].values) == [f"t{i}" for i in range(6)]
            assert np.array_equal(kept.dataset["weight"], np.arange(12.0).reshape(6, 2))
    # And they can be taken away again.
    run = ms.load(tmp_path / "a.zarr")
    del run.dataset["label"], run.dataset.attrs["remark"]
    run.save(tmp_path / "a.zarr", overwrite=True)
    assert "label" not in ms.load(tmp_path / "a.zarr").dataset


def _again(run: ms.Run, path) -> ms.Run:
    run.save(path, overwrite=path.exists())
    return ms.load(path)


def test_additions_that_would_not_fit_are_refused_before_any_work():
    run = annotated()
    run.dataset["energy"] = ("time", np.zeros(len(run.times)))
    with pytest.raises(InvalidInputError, match=r"'energy'.* is over time"):
        run.extend(until=8.0)
    del run.dataset["energy"]
    with pytest.raises(InvalidInputError, match=r"'label'.* is over token"):
        run.append([[1.0, 0.0]])
    del run.dataset["label"], run.dataset["weight"]
    assert run.append([[1.0, 0.0]], progress=False).dataset.attrs["remark"] == "mine"


def test_attributes_that_no_store_takes(tmp_path):
    run = made()
    run.dataset.attrs["thing"] = object()
    with pytest.raises(InvalidInputError, match="an attribute cannot be stored"):
        run.save(tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()
    for name in (5, "checksums"):
        run = made()
        run.dataset.attrs[name] = "x"
        with pytest.raises(InvalidInputError, match="attribute"):
            run.save(tmp_path / "a.zarr")
        assert not (tmp_path / "a.zarr").exists()


def test_additions_that_take_a_name_of_the_schema_are_refused(tmp_path):
    run = made()
    run.dataset.attrs["schedule"] = "[0.0, 1.0]"
    with pytest.raises(InvalidInputError, match="schedule"):
        run.save(tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()


MEANINGS = [
    {"units": "days since 2000-01-01"},
    {"scale_factor": 2.0},
    {"_FillValue": 1.0},
    {"missing_value": 1.0},
    {"coordinates": "x"},
]


def weights() -> xr.Dataset:
    data = ms.ensemble(
        ms.Attention(dim=2, beta=4.0),
        tokens=6,
        members=3,
        times=[1.0],
        seed=0,
        observe={"c": ms.observe.clusters()},
        progress=False,
    )
    data["w"] = ("member", np.arange(3.0))
    return data


@pytest.mark.parametrize("attributes", MEANINGS, ids=str)
def test_what_would_be_read_otherwise_than_it_was_is_not_saved(attributes, tmp_path):
    """xarray takes these attributes for instructions."""
    run = made()
    run.save(tmp_path / "run.zarr")
    run.dataset["w"] = ("token", np.arange(6.0), attributes)
    stats = weights()
    ms.save_ensemble(stats, tmp_path / "stats.zarr")
    stats["w"].attrs.update(attributes)
    with contextlib.suppress(InvalidInputError):
        run.save(tmp_path / "run.zarr", overwrite=True)
    with contextlib.suppress(InvalidInputError):
        ms.save_ensemble(stats, tmp_path / "stats.zarr", overwrite=True)
    again = ms.load(tmp_path / "run.zarr").dataset
    assert "w" not in again or np.array_equal(again["w"], np.arange(6.0))
    assert np.array_equal(ms.load_ensemble(tmp_path / "stats.zarr")["w"], np.arange(3.0))


def test_a_name_that_zarr_takes_for_a_folder(tmp_path):
    run = made()
    run.save(tmp_path / "run.zarr")
    run.dataset["a/b"] = ("token", np.arange(6.0))
    with pytest.raises(InvalidInputError):
        run.save(tmp_path / "run.zarr", overwrite=True)
    assert ms.load(tmp_path / "run.zarr").status == "success"


def test_encodings_and_byte_orders_change_no_number(tmp_path):
    run = made()
    run.dataset["w"] = ("token", np.arange(6.0) + 0.1)
    run.dataset["big"] = ("token", (np.arange(6.0) + 0.1).astype(">f8"))
    run.dataset["w"].encoding.update(dtype="int16", _FillValue=-1)
    run.dataset["x"].encoding["dtype"] = "float32"
    try:
        run.save(tmp_path / "run.zarr")
    except InvalidInputError:
        del run.dataset["big"]
        run.save(tmp_path / "run.zarr")
    again = ms.load(tmp_path / "run.zarr")
    assert np.array_equal(again.states, run.states)
    assert np.array_equal(again.dataset["w"], np.arange(6.0) + 0.1)


def arrays_of(value):
    """Every array that a model or density holds, however deep."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, (tuple, list)):
        return [found for item in value for found in arrays_of(item)]
    return [found for item in vars(value).values() for found in arrays_of(item)] if hasattr(value, "__dict__") else []


@pytest.mark.parametrize("copied", [lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy, copy.copy])
def test_copies_of_models_and_densities_cannot_be_written_to(copied):
    """Arrays of a model came writable out of a pickle."""
    eye = 2.0 * np.eye(2)
    head = ms.Head(beta=3.0, query=eye, key=eye, value=eye, query_bias=np.ones(2))
    made = [
        ms.Attention(dim=2, beta=4.0, query=eye, value=3.0 * eye, masses=np.arange(1.0, 5.0)),
        ms.Attention(dim=2, heads=(head, head), mask=ms.Mask(np.tril(np.ones((4, 4), dtype=bool)))),
        ms.Attention(dim=2, beta=4.0, frozen=ms.Frozen(eye / 2.0, [1.0, 2.0]), bias=ms.LogitBias(np.zeros((4, 4)))),
        ms.meanfield.Density.uniform(2),
        ms.meanfield.CausalDensity.alike(ms.meanfield.Density.uniform(2)),
    ]
    for original in made:
        assert arrays_of(original)
        for array in arrays_of(copied(original)):
            assert not array.flags.writeable
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.setflags(write=True)
    assert copied(made[0]) == made[0]
    assert copied(made[1]).mask == made[1].mask


@pytest.mark.parametrize("value", [np.float64(1.5), np.int64(3), np.bool_(True), np.arange(3), np.str_("hi")])
def test_attributes_of_a_run_may_be_numbers_of_numpy(tmp_path, value):
    run = made()
    run.dataset.attrs["mine"] = value
    run.save(tmp_path / "run.zarr")
    again = ms.load(tmp_path / "run.zarr")
    assert np.array_equal(again.dataset.attrs["mine"], value)
    assert np.array_equal(again.extend(until=again.end + 1.0, progress=False).dataset.attrs["mine"], value)


@pytest.mark.parametrize("copied", [lambda run: pickle.loads(pickle.dumps(run)), copy.deepcopy, copy.copy])
def test_copies_are_as_closed_as_what_they_copy(copied):
    run = annotated()
    for again in (copied(run), copied(copied(run))):
        for array in (again.final, again.states, again.times, again.start):
            with pytest.raises(ValueError, match="read-only"):
                array *= 2
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.setflags(write=True)
        assert np.array_equal(again.final, run.final)
        assert again.model == run.model
        assert again.dataset.attrs["remark"] == "mine"
        assert again.extend(until=6.0, progress=False).dataset.attrs["remark"] == "mine"
