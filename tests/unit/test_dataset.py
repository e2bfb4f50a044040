"""Stores of runs: whole after any interruption, and refused by name when a byte of them was changed."""

import contextlib
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import metastable as ms
from metastable import dataset
from metastable.cli import main
from metastable.errors import (
    IncompleteStoreError,
    InvalidInputError,
    MetastableError,
    StoreError,
    StoreLockedError,
    VariantError,
)
from metastable.model import Law, Norm
from metastable.model.declare import REGISTRY, parameter
from metastable.stores import folders

ROOT = Path(__file__).parents[2]
OLD_RUNS = Path(__file__).parent / "data" / "runs-0.1.zip"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    start = ms.sphere.uniform(4, dim=2, seed=0)
    ms.simulate(ms.Attention(dim=2, beta=4.0), start, until=1.0, engine="reference").save(folder / "run.zarr")
    return folder / "run.zarr"


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy.zarr"))


def edit(store: Path, change, array: str = "") -> None:
    """Change the metadata of a store, or of one of its arrays, by hand."""
    path = store / array / "zarr.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def put(**attributes):
    return lambda content: content["attributes"].update(attributes)


def drop(name):
    return lambda content: content["attributes"].pop(name)


# ----------------------------------------------------------------------------------------------------- interruptions


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process is copied for every kill")
def test_killed_while_saving(tmp_path):
    subprocess.run([sys.executable, "-m", "tests.unit.stores.saving", str(tmp_path)], check=True, cwd=ROOT)
    places = sorted((p for p in tmp_path.iterdir() if p.name.isdigit() and p.name != "0"), key=lambda p: int(p.name))
    assert len(places) > 15
    assert any(not (place / "run.zarr").exists() for place in places)  # one died between the two moves
    found = []
    for place in places:
        found.append(ms.load(place / "run.zarr").model.beta)
        assert [p.name for p in place.iterdir() if not p.name.endswith(".lock")] == ["run.zarr"]
    assert found == sorted(found)  # the old one up to some call, the new one from there on
    assert set(found) == {1.0, 2.0}


def test_ctrl_c_between_the_two_moves(saved, tmp_path, monkeypatch):
    """The old store is away, the new one not yet there: it comes back, and nothing else stays."""
    path = Path(shutil.copytree(saved, tmp_path / "run.zarr"))
    run = ms.load(path)
    rename = os.rename

    def interrupted(source, target, **options):
        if Path(target) == path:
            raise KeyboardInterrupt
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", interrupted)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run.save(path, overwrite=True)
        assert ms.load(path).model == run.model
        assert os.listdir(tmp_path) == ["run.zarr"]


# ------------------------------------------------------------------------------------------- readers beside writers


@pytest.fixture
def other():
    """A run of as many tokens as the stored one, of another model."""
    start = ms.sphere.uniform(4, dim=2, seed=1)
    return ms.simulate(ms.Attention(dim=2, beta=9.0), start, until=2.0, engine="reference")


def before_each_call(monkeypatch, place, name, act, times):
    """Let `act` happen before each of the first `times` calls of the function `name` of `place`, but not within `act`."""
    work, left = getattr(place, name), times

    def disturbed(*given, **named):
        nonlocal left
        if left > 0:
            rest, left = left - 1, 0
            act()
            left = rest
        return work(*given, **named)

    monkeypatch.setattr(place, name, disturbed)


def test_a_store_that_is_replaced_while_it_is_read_is_read_again(copy, other, monkeypatch):
    """Names of one store and numbers of the other: that was "damaged"."""
    before_each_call(monkeypatch, xr.Dataset, "load", lambda: other.save(copy, overwrite=True), 2)
    assert ms.load(copy).model.beta == 9.0


@pytest.mark.parametrize("name", ["_format", "_read"])
def test_a_store_that_is_away_for_a_moment_is_waited_for(copy, monkeypatch, name):
    """Its writer is between the two moves while the reader is at it, and gives up then."""
    work = getattr(dataset, name)

    def disturbed(place, *given):
        monkeypatch.undo()
        with folders.scratch(copy) as folder:
            (folder / "store").mkdir()
            copy.rename(folder / "old")
            return work(place, *given)

    monkeypatch.setattr(dataset, name, disturbed)
    assert ms.load(copy).model.beta == 4.0


def test_a_store_that_is_replaced_all_the_time_is_not_called_damaged(copy, other, monkeypatch):
    runs = itertools.cycle([other, ms.load(copy)])  # neither continues the other
    before_each_call(monkeypatch, xr.Dataset, "load", lambda: next(runs).save(copy, overwrite=True), 1000)
    with pytest.raises(StoreLockedError, match="replaced by other processes all the time"):
        ms.load(copy)


def test_writers_do_not_disturb_one_another(copy, other, monkeypatch):
    """The store that is to be overwritten is away while its files are looked at: another writer is between its moves."""
    away = copy.with_name("away")

    def look(store):
        monkeypatch.undo()
        copy.rename(away)
        try:
            return dataset._foreign(store)
        finally:
            ms.load(away).save(copy)

    monkeypatch.setattr(dataset, "_foreign", look)
    other.save(copy, overwrite=True)
    assert ms.load(copy).model.beta == 9.0


# ------------------------------------------------------------------------------------------------------------ edits


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (put(model='{"dim": 2, "beta": 6.0}'), IncompleteStoreError, "damaged, not as written: model"),
        (put(status=7), IncompleteStoreError, "damaged, not as written: status"),
        (put(status="max_steps"), IncompleteStoreError, "damaged, not as written: status"),
        (put(rtol=1e-3), IncompleteStoreError, "damaged, not as written: rtol"),
        (put(accepted=3), IncompleteStoreError, "damaged, not as written: accepted"),
        (put(note="mine"), IncompleteStoreError, "damaged, not as written: note"),
        (
            put(format="metastable-99"),
            StoreError,
            "has the format 'metastable-99'.*reads metastable-1 and metastable-2",
        ),
        (put(format="metastable-1"), IncompleteStoreError, "damaged, not as written: format"),
        (put(format=3), StoreError, "not a metastable store"),
        (drop("status"), IncompleteStoreError, "damaged, not as written: status"),
        (drop("model"), IncompleteStoreError, "damaged, not as written: model"),
        (drop("format"), StoreError, "not a metastable store"),
        (drop("checksums"), IncompleteStoreError, "not finished.*checksums"),
        (drop("attribute_checksums"), IncompleteStoreError, "not finished.*attribute_checksums"),
        (put(checksums="[1]"), IncompleteStoreError, "checksums is damaged"),
    ],
)
def test_edited_attributes(copy, change, error, match):
    edit(copy, change)
    with pytest.raises(error, match=match):
        ms.load(copy)


@pytest.mark.parametrize(
    ("array", "change", "match"),
    [
        ("x", lambda content: content.update(data_type="int64", fill_value=0), "damaged"),
        ("x", lambda content: content.update(dimension_names=["time", "coord", "token"]), "damaged"),
        ("x", lambda content: content["shape"].reverse(), "damaged"),
        ("dense0_coefficients", put(chart="angle"), r"damaged, not as written: dense0_coefficients \(layout\)"),
        ("dense0_coefficients", put(dim=3), r"damaged, not as written: dense0_coefficients \(layout\)"),
    ],
)
def test_edited_layout(copy, array, change, match):
    """The bytes are the same; what they mean is not."""
    edit(copy, change, array)
    with pytest.raises(IncompleteStoreError, match=match):
        ms.load(copy)


def test_every_attribute_is_guarded(saved, tmp_path):
    """Whichever attribute is changed, dropped or replaced by nonsense, the store is refused, and the message names it."""
    attributes = json.loads((saved / "zarr.json").read_text())["attributes"]
    assert set(dataset.ATTRIBUTES) <= set(attributes)
    for name in attributes:
        for number, change in enumerate((drop(name), put(**{name: None}), put(**{name: [1, {"a": 2}]}))):
            path = Path(shutil.copytree(saved, tmp_path / f"{name}-{number}.zarr"))
            edit(path, change)
            with pytest.raises(StoreError, match="not a metastable store" if name == "format" else name):
                ms.load(path)


@pytest.mark.parametrize("family", ["norm", "mask"])
def test_a_store_whose_model_has_a_variant_that_is_not_imported_is_sound(tmp_path, monkeypatch, family):
    """It was called damaged, and its user told to run it again."""

    @dataclass(frozen=True)
    class Fading(Norm):
        kind = "fading"

        def law(self, t):
            return Law(decay=1.0)

    @dataclass(frozen=True)
    class Fringe(ms.Causal):
        kind = "fringe"

    variant = {"norm": Fading(), "mask": Fringe()}[family]
    run = ms.simulate(
        ms.Attention(dim=2, beta=4.0, **{family: variant}), ms.sphere.uniform(4, dim=2, seed=0), until=1.0
    )
    run.save(tmp_path / "own.zarr")
    assert getattr(ms.load(tmp_path / "own.zarr").model, family) == variant
    monkeypatch.delitem(REGISTRY[family], variant.kind)
    said = rf"own.zarr is sound, .* {family}: unknown kind '{variant.kind}'.* Import the module that defines it"
    with pytest.raises(VariantError, match=said):
        ms.load(tmp_path / "own.zarr")
    monkeypatch.setattr(sys, "argv", ["metastable", "extend", str(tmp_path / "own.zarr"), "--until", "2"])
    with contextlib.redirect_stderr(io.StringIO()) as printed, pytest.raises(SystemExit):
        main()
    assert "own.zarr is sound" in printed.getvalue()


def test_a_store_whose_variant_has_other_fields_by_now_is_sound(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Fading(Norm):
        kind = "fading"
        rate: float = parameter("rate", default=1.0)

        def law(self, t):
            return Law(decay=self.rate)

    model = ms.Attention(dim=2, beta=4.0, norm=Fading(2.0))
    ms.simulate(model, ms.sphere.uniform(4, dim=2, seed=0), until=1.0).save(tmp_path / "own.zarr")

    @dataclass(frozen=True)
    class Other(Norm):
        kind = "other"

    monkeypatch.setitem(REGISTRY["norm"], "fading", Other)
    with pytest.raises(VariantError, match=r"is sound, .* has no field 'rate'"):
        ms.load(tmp_path / "own.zarr")


# ------------------------------------------------------------------------------------------- stores of version 0.1


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    """Three runs that version 0.1 stored."""
    folder = tmp_path_factory.mktemp("old")
    with zipfile.ZipFile(OLD_RUNS) as archive:
        archive.extractall(folder)
    return folder


def test_stores_of_version_0_1_open(old, tmp_path):
    plain = ms.load(old / "plain.zarr")
    assert plain.model == ms.Attention(dim=2, beta=4.0)
    assert plain.dataset.attrs["format"] == "metastable-1"
    again = ms.simulate(plain.model, plain.start, until=3.0, engine="reference")
    np.testing.assert_allclose(plain.at(1.3), again.at(1.3), rtol=0, atol=1e-12)
    radius = ms.load(old / "radius.zarr")
    assert radius.radius is not None
    assert radius.radius.shape == (2, 5)
    assert [model.beta for model in ms.load(old / "layers.zarr").models] == [1.0, 2.0]
    plain.save(tmp_path / "new.zarr")
    assert ms.load(tmp_path / "new.zarr").dataset.attrs["format"] == dataset.FORMAT


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (put(status=7), "the attribute status must be one of 'success'"),
        (put(accepted=-1), "the attribute accepted must be at least 0"),
        (put(accepted=2.5), "the attribute accepted must be a whole number"),
        (put(rtol=0.0), "rtol must be greater than 0"),
        (put(atol="small"), "the attribute atol must be a number"),
        (put(until=float("nan")), "the attribute until must be finite"),
        (put(seed=-2), "the attribute seed must be at least -1"),
        (put(max_steps=0), "the attribute max_steps"),
        (put(notes="[]"), "the attribute notes must be a table"),
        (put(notes="{"), "the attribute notes is not JSON"),
        (put(method=1), "the attribute method must be text"),
        (put(start_hash="0123"), "start_hash is not that of the stored start"),
        (put(model="{"), "the attribute model describes no model"),
        (put(model="[]"), "the attribute model describes no model"),
        (put(model='[3, "a"]'), "the attribute model describes no model"),
        (put(model='{"dim": 3, "beta": 4.0}'), "tokens have 2 coordinates, but the model has dim=3"),
        (put(model='{"dim": 2, "beta": 4.0, "norm": {"kind": "pre_ln"}}'), "lacks the variable radius"),
        (drop("engine"), "lacks the attribute engine"),
        (drop("max_steps"), "lacks the attribute max_steps"),
        (put(format="metastable-99"), "has the format 'metastable-99'"),
    ],
)
def test_attributes_without_checksums_are_checked_for_sense(old, tmp_path, change, match):
    """Version 0.1 kept no checksum of attributes, so what can be checked is whether they make sense."""
    path = Path(shutil.copytree(old / "plain.zarr", tmp_path / "edited.zarr"))
    edit(path, change)
    with pytest.raises(StoreError, match=match):
        ms.load(path)


@pytest.mark.parametrize("change", [put(chart="sphere"), put(dim=7), drop("chart"), drop("dim")])
def test_dense_output_of_version_0_1_is_checked(old, tmp_path, change):
    path = Path(shutil.copytree(old / "plain.zarr", tmp_path / "edited.zarr"))
    edit(path, change, "dense0_coefficients")
    with pytest.raises(IncompleteStoreError, match="dense0"):
        ms.load(path)


@pytest.mark.parametrize("path", [None, 3, "", b"run.zarr", ["run.zarr"]])
def test_places_that_are_no_paths(path):
    with pytest.raises(MetastableError):
        ms.load(path)
    with pytest.raises(InvalidInputError, match="path"):
        dataset.check_destination(path)
