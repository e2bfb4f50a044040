"""Ensembles on disk: what comes back is what was saved, and nothing half-written or damaged is read as if it were whole."""

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import metastable as ms
from metastable import dataset
from metastable.errors import (
    IncompleteStoreError,
    InvalidInputError,
    RepeatedMembersWarning,
    StoreError,
    StoreExistsError,
)
from metastable.stores import folders

COSINE = ms.observe.mean_cosine()


@pytest.fixture(scope="module")
def stats():
    return ms.ensemble(
        ms.Attention(dim=2, beta=4.0),
        tokens=5,
        members=3,
        times=[0.0, 1.0],
        seed=0,
        engine="reference",
        observe={"cosine": ms.observe.mean_cosine(), "x": ms.observe.state(), "own": lambda x: x[0]},
    )


def test_variables_come_back_in_their_order(stats, tmp_path):
    reordered = stats[["x", "status", "own", "cosine", "evaluations", "accepted", "rejected"]]
    ms.save_ensemble(reordered, tmp_path / "stats.zarr")
    assert list(ms.load_ensemble(tmp_path / "stats.zarr").data_vars) == list(reordered.data_vars)


@pytest.mark.parametrize("name", ["kind", "variable_order"])
def test_attributes_of_the_store_are_not_overwritten(stats, tmp_path, name):
    with pytest.raises(InvalidInputError, match=f"'{name}' is one of the store's own"):
        ms.save_ensemble(stats.assign_attrs({name: "mine"}), tmp_path / "stats.zarr")
    assert not (tmp_path / "stats.zarr").exists()


def test_round_trip_without_a_warning(stats, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        more = stats.assign(note=("member", np.array(["a", "b", "a"])), good=("member", np.array([True, False, True])))
        ms.save_ensemble(more, tmp_path / "stats.zarr")
        loaded = ms.load_ensemble(tmp_path / "stats.zarr")
    xr.testing.assert_identical(loaded, more)
    assert loaded.status.values.tolist() == ["success"] * 3
    known = ms.summarize(stats)
    xr.testing.assert_allclose(ms.summarize(loaded)[list(known.data_vars)], known)


def test_incomplete_ensembles_keep_their_gaps(tmp_path):
    with pytest.warns(ms.errors.StoppedEarlyWarning):
        early = ms.ensemble(
            ms.Attention(dim=2, beta=4.0),
            tokens=5,
            members=3,
            times=[0.0, 50.0],
            seed=0,
            engine="reference",
            max_steps=3,
        )
    ms.save_ensemble(early, tmp_path / "early.zarr")
    loaded = ms.load_ensemble(tmp_path / "early.zarr")
    xr.testing.assert_identical(loaded, early)
    assert loaded.attrs["status"] == "incomplete"


def test_selected_and_joined_members_are_described_as_they_are(stats, tmp_path):
    """xarray keeps the attributes of the first part: 3 members, seed 0, and the status of members that are gone."""
    options = {"tokens": 5, "members": 2, "times": [0.0, 1.0], "engine": "reference", "observe": {"cosine": COSINE}}
    other = ms.ensemble(ms.Attention(dim=2, beta=4.0), seed=8, **options)
    joined = xr.concat([stats[["cosine", "status"]].isel(member=[2]), other[["cosine", "status"]]], "member")
    assert joined.member_seed.values.tolist() == [0, 8, 8]
    numbers = iter(range(100))

    def fragile(x):
        if next(numbers) == 2:  # the first time of member 1
            raise ValueError("mine")
        return x[0, 0]

    with pytest.warns(ms.errors.StoppedEarlyWarning):
        early = ms.ensemble(
            ms.Attention(dim=2, beta=4.0), seed=0, **(options | {"members": 3, "observe": {"odd": fragile}}), threads=1
        )
    assert early.status.values.tolist() == ["success", "failed", "success"]
    why = early.attrs["failure"]
    assert "mine" in why
    for name, given, wanted in (
        ("one", stats.isel(member=[2]), {"members": 1, "seed": 0, "status": "success"}),
        ("joined", joined, {"members": 3, "seed": [0, 8], "status": "success"}),
        ("early", early, {"members": 3, "status": "incomplete", "failure": why}),
        ("mended", early.isel(member=[0, 2]), {"members": 2, "status": "success", "failure": None}),
    ):
        ms.save_ensemble(given, tmp_path / name)
        loaded = ms.load_ensemble(tmp_path / name)
        assert {key: loaded.attrs.get(key) for key in wanted} == wanted
        assert np.array_equal(loaded.member, given.member)


CHANGES = {
    "one number": lambda data: data.cosine.values.__setitem__((1, 0), 0.5),
    "the last bit": lambda data: data.x.values.__setitem__((1, 1, 0, 0), np.nextafter(data.x.values[1, 1, 0, 0], 2.0)),
    "two exchanged": lambda data: data.own.values.__setitem__(1, data.own.values[1, ::-1]),
    "another variable": lambda data: data.update({"cosine": data.cosine.where(data.member != 1, 2 * data.cosine)}),
    "made empty": lambda data: data.cosine.values.__setitem__((1, 1), np.nan),
    "single precision": lambda data: data.update({"x": data.x.astype("float32").where(data.member == 1, data.x)}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_values_that_were_changed_are_not_saved_as_computed(stats, tmp_path, change):
    """They were stored with the model, the seed and the statistics of a computation that never gave them."""
    edited = stats.copy(deep=True)
    CHANGES[change](edited)
    for data in (edited, edited.isel(member=[2, 1]), xr.concat([edited, stats.isel(member=[0])], "member")):
        with pytest.raises(InvalidInputError, match=r"1 member of stats \(1\) are not what was computed any more"):
            ms.save_ensemble(data, tmp_path / "stats.zarr")
    assert not (tmp_path / "stats.zarr").exists()
    ms.save_ensemble(edited.isel(member=[0, 2]), tmp_path / "stats.zarr")  # nothing was done to those


def with_attribute(name, **said):
    def change(data):
        data[name].attrs.update(said)
        return data

    return change


def without(name):
    def change(data):
        del data.attrs[name]
        return data

    return change


ATTRIBUTES = {
    "the attribute model": lambda data: data.assign_attrs(model=ms.Attention(dim=2, beta=9.0).to_json()),
    "the attribute tokens": lambda data: data.assign_attrs(tokens=500),
    "the attribute method": lambda data: data.assign_attrs(method="rodas"),
    "the attribute status": lambda data: data.assign_attrs(status="interrupted"),
    "the attribute failure": lambda data: data.assign_attrs(failure="member 2, mine"),
    "the attribute rtol": without("rtol"),
    "the radius of many": with_attribute("many", radius=0.2),
    "the observable of cosine": with_attribute("cosine", observable="something else"),
    "the radius of cosine": with_attribute("cosine", radius=0.2),
}


@pytest.mark.parametrize("change", ATTRIBUTES)
def test_attributes_that_were_changed_are_not_saved_as_computed(tmp_path, change):
    """They were stored as if the ensemble had been computed with them."""
    observe = {"cosine": COSINE, "many": ms.observe.clusters(radius=0.1)}
    options = {"tokens": 5, "members": 3, "times": [0.0, 1.0], "engine": "reference", "observe": observe}
    stats = ms.ensemble(ms.Attention(dim=2, beta=4.0), seed=0, **options).assign_attrs(remark="mine")
    stats["many"].attrs["units"] = "1"
    for data in (stats, stats.isel(time=[1]), xr.concat([stats, stats.isel(member=[0])], "member")):
        edited = ATTRIBUTES[change](data.copy(deep=True))
        with pytest.raises(InvalidInputError, match=rf"does not say any more .*\({change}\)"):
            ms.save_ensemble(edited, tmp_path / "stats.zarr")
    assert not (tmp_path / "stats.zarr").exists()
    ms.save_ensemble(stats, tmp_path / "stats.zarr")
    loaded = ms.load_ensemble(tmp_path / "stats.zarr")
    assert loaded.attrs["remark"] == "mine"  # what was added is kept
    ms.save_ensemble(
        loaded.isel(member=[2, 0]), tmp_path / "again.zarr"
    )  # and a store is as computed as what was stored
    assert ms.load_ensemble(tmp_path / "again.zarr").attrs["values"] == "as computed"


MEMBERS = {
    "renumbered": lambda data: data.assign_coords(member=[5, 6, 7]),
    "exchanged": lambda data: data.assign_coords(member=[1, 0, 2]),
    "another seed": lambda data: data.assign_coords(member_seed=("member", [1, 1, 1])),
    "another status": lambda data: data.assign(status=("member", ["success", "max_steps", "failed"])),
    "other steps": lambda data: data.assign(accepted=("member", [1, 1, 1])),
}


@pytest.mark.parametrize("change", MEMBERS)
def test_members_are_those_that_were_computed(stats, tmp_path, change):
    """Number and seed say how to compute a member again."""
    with pytest.raises(
        InvalidInputError, match=r"members? of stats .* or the number .*assign_coords\(place=\('member', "
    ):
        ms.save_ensemble(MEMBERS[change](stats), tmp_path / "stats.zarr")
    assert not (tmp_path / "stats.zarr").exists()


def test_lengths_of_drawn_models_are_those_that_were_computed(tmp_path):
    def drawn(generator):
        return ms.Attention(dim=2, beta=float(generator.uniform(1.0, 9.0)))

    options = {"tokens": 5, "members": 3, "times": [0.0, 1.0], "engine": "reference"}
    stats = ms.ensemble(drawn, seed=0, observe={"many": ms.observe.clusters()}, **options)
    ms.save_ensemble(stats, tmp_path / "stats.zarr")
    assert ms.load_ensemble(tmp_path / "stats.zarr").attrs["values"] == "as computed"
    with pytest.raises(InvalidInputError, match="3 members of stats"):
        ms.save_ensemble(stats.assign(many_radius=2.0 * stats.many_radius), tmp_path / "other.zarr")


def test_a_variable_of_yours_may_be_called_like_a_length(tmp_path):
    """Where the observable says its radius itself, no model of a member sets one."""
    options = {"tokens": 5, "members": 3, "times": [0.0, 1.0], "engine": "reference"}
    observe = {"many": ms.observe.clusters(radius=0.1), "many_delta": COSINE}
    stats = ms.ensemble(ms.Attention(dim=2, beta=4.0), seed=0, observe=observe, **options)
    ms.save_ensemble(stats.assign(many_radius=("member", [1.0, 2.0, 3.0])), tmp_path / "stats.zarr")
    loaded = ms.load_ensemble(tmp_path / "stats.zarr")
    assert loaded.attrs["values"] == "as computed"
    assert loaded.many_radius.values.tolist() == [1.0, 2.0, 3.0]


def test_members_that_an_outer_join_made_numbers_of_are_the_same(stats, tmp_path):
    """Seeds and counts of steps are 0.0 and 12.0 then."""
    padded = stats.reindex(member=[0, 1, 2, 3]).isel(member=[0, 1, 2])
    assert padded.accepted.dtype == float
    ms.save_ensemble(padded, tmp_path / "stats.zarr")
    assert ms.load_ensemble(tmp_path / "stats.zarr").attrs["values"] == "as computed"


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.assign_coords(time=2.0 * data.time + 1.0),
        lambda data: data.assign_coords(time=["early", "late"]),
        lambda data: data.assign_coords(time=np.array(["early", 1.0], dtype=object)),
        lambda data: data.assign_coords(time=np.array([1, 2], "M8[ns]")),
        lambda data: data.isel(time=[1]).assign_coords(time=[7.0]),
        lambda data: data.isel(time=1).assign_coords(time=7.0),
        lambda data: data.drop_vars("own").assign_coords(time=[0.0, 3.0]),
        lambda data: data[["cosine", "member_digest", "status"]].interp(time=[0.5]),
    ],
)
def test_times_that_were_changed_are_not_saved_as_computed(stats, tmp_path, change):
    """They were stored as if they had been selected."""
    with pytest.raises(InvalidInputError, match="the times of stats are not those that were computed any more"):
        ms.save_ensemble(change(stats), tmp_path / "stats.zarr")
    assert not (tmp_path / "stats.zarr").exists()


def test_times_that_were_exchanged_are_noticed(stats, tmp_path):
    with pytest.raises(InvalidInputError, match="3 members of stats"):
        ms.save_ensemble(stats.assign_coords(time=stats.time.values[::-1]), tmp_path / "stats.zarr")


def test_statistics_where_something_holds(stats, tmp_path):
    """`where` spreads the status and the digest of a member over times; that was a TypeError about an unhashable list."""
    late, high = stats.where(stats.time > 0.5), stats.where(stats.cosine > stats.cosine.min())
    for edited, members in ((late, 3), (high, 1), (stats.expand_dims(copy=2), 3)):
        with pytest.raises(InvalidInputError, match=rf"{members} members? of stats .* not what was computed any more"):
            ms.save_ensemble(edited, tmp_path / "stats.zarr")
    assert not (tmp_path / "stats.zarr").exists()
    wanted = ms.summarize(stats)
    found = ms.summarize(late)
    assert {*found.data_vars} == {*wanted.data_vars}
    assert found.attrs == wanted.attrs
    xr.testing.assert_allclose(found.isel(time=1), wanted.isel(time=1))
    assert found.cosine_mean[0].isnull()
    lowest = stats.cosine.values.argmin(axis=0)
    others = [stats.cosine.values[np.arange(3) != lowest[0], 0].mean(), stats.cosine.values[:, 1].mean()]
    assert stats.cosine.min() == stats.cosine[lowest[0], 0]
    np.testing.assert_allclose(ms.summarize(high).cosine_mean, others)
    part = stats.where(stats.time > 0.5, drop=True)
    ms.save_ensemble(part, tmp_path / "part.zarr")
    loaded = ms.load_ensemble(tmp_path / "part.zarr")
    assert loaded.status.dims == loaded.member_digest.dims == ("member",)
    assert loaded.attrs["values"] != "as computed"
    one = stats.where((stats.member == 1) & (stats.time > 0.5))
    with pytest.raises(
        InvalidInputError, match=r"2 of the 3 members of stats are empty.*stats\.dropna\('member', how='all'\)"
    ):
        ms.summarize(one)
    assert ms.summarize(one.dropna("member", how="all")).attrs["members"] == 1


def test_stores_say_whether_their_values_were_checked(stats, tmp_path):
    turned = stats.transpose("time", "coord", "token", "own_0", "member", missing_dims="ignore")
    for number, (given, known) in enumerate(
        (
            (stats, True),
            (turned, True),
            (stats.assign(mine=2 * stats.cosine), True),
            (stats.where(stats.member != 1, drop=True), True),
            (xr.concat([stats.isel(member=[2]), stats.isel(member=[0])], "member"), True),
            (stats.isel(time=[1, 0]), True),
            (stats.isel(time=[1]), False),
            (xr.concat([stats, stats.assign_coords(time=[2.0, 3.0])], "time", data_vars="minimal"), False),
            (stats.drop_vars("time"), False),
            (stats.isel(time=-1), False),
            (stats.drop_vars("own"), False),
            (stats.drop_vars("member_digest"), False),
        )
    ):
        ms.save_ensemble(given, tmp_path / f"{number}")
        loaded = ms.load_ensemble(tmp_path / f"{number}")
        assert (loaded.attrs["values"] == "as computed") == known
        ms.save_ensemble(loaded, tmp_path / f"{number} again")  # what comes back from disk has the same digests
        assert ms.load_ensemble(tmp_path / f"{number} again").attrs["values"] == loaded.attrs["values"]


def test_nothing_is_overwritten_unasked(stats, tmp_path):
    ms.save_ensemble(stats, tmp_path / "stats.zarr")
    with pytest.raises(StoreExistsError, match="overwrite"):
        ms.save_ensemble(stats, tmp_path / "stats.zarr")
    ms.save_ensemble(stats.isel(member=[0]), tmp_path / "stats.zarr", overwrite=True)
    assert ms.load_ensemble(tmp_path / "stats.zarr").sizes["member"] == 1


def test_runs_and_ensembles_are_told_apart(stats, tmp_path):
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(4, dim=2, seed=0), until=1.0, engine="reference")
    run.save(tmp_path / "run.zarr")
    ms.save_ensemble(stats, tmp_path / "stats.zarr")
    with pytest.raises(StoreError, match=r"metastable\.load$"):
        ms.load_ensemble(tmp_path / "run.zarr")
    with pytest.raises(StoreError, match="load_ensemble"):
        ms.load(tmp_path / "stats.zarr")
    with pytest.raises(InvalidInputError, match=r"metastable\.ensemble"):
        ms.save_ensemble(run, tmp_path / "other.zarr")
    with pytest.raises(InvalidInputError, match="'when'"):
        ms.save_ensemble(stats.assign(when=("member", np.array([1, 2, 3], "M8[ns]"))), tmp_path / "other.zarr")
    assert not (tmp_path / "other.zarr").exists()


def test_damage_is_noticed(stats, tmp_path):
    ms.save_ensemble(stats, tmp_path / "stats.zarr")
    for number, damage in enumerate((_lose_a_file, _change_a_byte, _edit_an_attribute, _edit_the_labels)):
        copy = tmp_path / f"copy{number}.zarr"
        shutil.copytree(tmp_path / "stats.zarr", copy)
        damage(copy)
        with pytest.raises(IncompleteStoreError):
            ms.load_ensemble(copy)


def _chunk(store: Path) -> Path:
    return next(path for path in (store / "cosine" / "c").rglob("*") if path.is_file())


def _lose_a_file(store):
    _chunk(store).unlink()


def _change_a_byte(store):
    data = bytearray(_chunk(store).read_bytes())
    data[len(data) // 2] ^= 1
    _chunk(store).write_bytes(bytes(data))


def _edit_an_attribute(store):
    table = json.loads((store / "zarr.json").read_text())
    table["attributes"]["seed"] = 1
    (store / "zarr.json").write_text(json.dumps(table))


def _edit_the_labels(store):
    table = json.loads((store / "status" / "zarr.json").read_text())
    table["attributes"]["labels"] = '["failed"]'
    (store / "status" / "zarr.json").write_text(json.dumps(table))


def test_a_failed_write_leaves_the_old_store(stats, tmp_path, monkeypatch):
    ms.save_ensemble(stats, tmp_path / "stats.zarr")

    def fail(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "_put", fail)
    with pytest.raises(StoreError):
        ms.save_ensemble(stats.isel(member=[0]), tmp_path / "stats.zarr", overwrite=True)
    monkeypatch.undo()
    xr.testing.assert_identical(ms.load_ensemble(tmp_path / "stats.zarr"), stats)
    assert [path.name for path in tmp_path.iterdir()] == ["stats.zarr"]


def test_killed_between_the_two_moves(stats, tmp_path):
    """`kill -9` after the old store was moved away: the next reader finds it in its place."""
    ms.save_ensemble(stats, tmp_path / "stats.zarr")
    script = """
import os, signal, sys
import metastable as ms
from metastable.stores import folders
stats = ms.load_ensemble(sys.argv[1])
rename = os.rename
def dying(source, target, *rest):
    if str(target) == os.path.abspath(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(source, target, *rest)
os.rename = dying
ms.save_ensemble(stats.isel(member=[0]), sys.argv[1], overwrite=True)
"""
    died = subprocess.run([sys.executable, "-c", script, str(tmp_path / "stats.zarr")])
    assert died.returncode == -9
    assert not (tmp_path / "stats.zarr").exists()
    xr.testing.assert_identical(ms.load_ensemble(tmp_path / "stats.zarr"), stats)


def test_a_summary_is_described_as_its_members_are(stats):
    other = stats.assign_coords(member_seed=("member", np.full(3, 7)))
    joined = xr.concat([stats, other], dim="member")
    told = ms.summarize(joined).attrs
    assert (told["members"], told["seed"], told["status"]) == (6, [0, 7], "success")
    broken = stats.assign(status=("member", np.array(["success", "success", "failed"])))
    broken.attrs |= {"status": "incomplete", "failure": "member 2, ValueError: no"}
    told = ms.summarize(broken.isel(member=slice(0, 2))).attrs
    assert (told["members"], told["status"]) == (2, "success")
    assert "failure" not in told
    with pytest.raises(InvalidInputError, match="no members any more"):
        ms.summarize(stats.isel(member=0))


def test_members_that_an_outer_join_left_empty_are_refused(stats, tmp_path):
    wide = stats.drop_vars("own").reindex(member=range(5))
    for use in (ms.summarize, lambda data: ms.save_ensemble(data, tmp_path / "stats.zarr")):
        with pytest.raises(InvalidInputError, match="2 of the 5 members of stats are empty"):
            use(wide)
    assert not (tmp_path / "stats.zarr").exists()
    xr.testing.assert_allclose(ms.summarize(wide.dropna("member", how="all")), ms.summarize(stats.drop_vars("own")))


def test_joined_ensembles_of_two_models_are_kept(tmp_path):
    """As the docs say, without the attributes in which they differ; before, such a dataset was refused."""
    options = {"tokens": 4, "members": 2, "times": [1.0], "observe": {"cosine": ms.observe.mean_cosine()}}
    parts = [ms.ensemble(ms.Attention(dim=2, beta=beta), seed=seed, **options) for seed, beta in enumerate((4.0, 9.0))]
    joined = xr.concat(parts, "member", combine_attrs="drop_conflicts")
    ms.save_ensemble(joined, tmp_path / "joined.zarr")
    found = ms.load_ensemble(tmp_path / "joined.zarr")
    assert "model" not in found.attrs
    assert (found.attrs["members"], found.attrs["seed"]) == (4, [0, 1])
    np.testing.assert_array_equal(found.cosine, joined.cosine)


def test_ensembles_of_two_models_do_not_take_the_name_of_one(tmp_path):
    """Of the same seed: xarray keeps the attributes of the first."""
    options = {"tokens": 4, "members": 3, "times": [1.0], "observe": {"cosine": ms.observe.mean_cosine()}, "seed": 0}
    cold, hot = (ms.ensemble(ms.Attention(dim=2, beta=beta), **options) for beta in (9.0, 4.0))
    mixed = xr.concat([cold, hot], "member")
    for use in (ms.summarize, lambda data: ms.save_ensemble(data, tmp_path / "mixed.zarr")):
        with pytest.raises(InvalidInputError, match=r"several models .* combine_attrs='drop_conflicts'"):
            use(mixed)
    assert not (tmp_path / "mixed.zarr").exists()
    ms.summarize(xr.concat([cold, hot], "member", combine_attrs="drop_conflicts"))


def test_ensembles_of_two_models_and_seeds_do_not_take_the_name_of_one(tmp_path):
    """Of different seeds nothing repeats: all members were saved, "as computed", under the model and the radius of the first."""
    options = {"tokens": 4, "members": 3, "times": [1.0], "engine": "reference"}

    def made(seed, beta=4.0, radius=0.1, **more):
        observe = {"many": ms.observe.clusters(radius)}
        return ms.ensemble(ms.Attention(dim=2, beta=beta), seed=seed, observe=observe, **(options | more))

    first = made(0)
    for number, other in enumerate((made(1, beta=9.0), made(1, radius=0.2), made(1, tokens=5), made(1, rtol=1e-4))):
        with pytest.raises(
            InvalidInputError,
            match=r"3 members of stats .* than the attributes of stats say.* combine_attrs='drop_conflicts'",
        ):
            ms.save_ensemble(xr.concat([first, other], "member"), tmp_path / "joined.zarr")
        assert not (tmp_path / "joined.zarr").exists()
        kept = xr.concat([first, other], "member", combine_attrs="drop_conflicts")
        ms.save_ensemble(kept, tmp_path / f"{number}.zarr")
        assert "not checked" in ms.load_ensemble(tmp_path / f"{number}.zarr").attrs["values"]
    for name, how in (("override", {}), ("drop", {"combine_attrs": "drop_conflicts"})):
        ms.save_ensemble(xr.concat([first, made(1)], "member", **how), tmp_path / name)
        assert ms.load_ensemble(tmp_path / name).attrs["values"] == "as computed"


def test_drawn_models_of_several_seeds_are_joined(tmp_path):
    """Their attribute model names the first of them, and their method may be that of a few: both depend on the seed."""

    def drawn(generator):
        return ms.Attention(dim=2, beta=float(generator.uniform(1.0, 9.0)))

    def other(generator):
        return ms.Attention(dim=2, beta=float(generator.uniform(10.0, 90.0)))

    options = {"tokens": 5, "members": 3, "times": [0.0, 1.0], "engine": "reference", "observe": {"cosine": COSINE}}
    one, two, stranger = (ms.ensemble(draw, seed=seed, **options) for seed, draw in enumerate((drawn, drawn, other)))
    assert one.attrs["model"] != two.attrs["model"]
    ms.save_ensemble(xr.concat([one, two], "member"), tmp_path / "joined.zarr")
    assert ms.load_ensemble(tmp_path / "joined.zarr").attrs["values"] == "as computed"
    with pytest.raises(InvalidInputError, match="3 members of stats"):
        ms.save_ensemble(xr.concat([one, stranger], "member"), tmp_path / "other.zarr")


def test_attributes_that_cannot_be_checked_are_not_as_computed(stats, tmp_path):
    """Without `computed` any model was saved beside values "as computed"."""
    edited = without("computed")(stats.copy()).assign_attrs(model=ms.Attention(dim=2, beta=9.0).to_json())
    ms.save_ensemble(edited, tmp_path / "stats.zarr")
    assert "not checked" in ms.load_ensemble(tmp_path / "stats.zarr").attrs["values"]


def test_members_that_are_there_twice_are_told(tmp_path, recwarn):
    options = {"tokens": 4, "members": 3, "times": [1.0], "observe": {"cosine": ms.observe.mean_cosine()}}
    stats, other = (ms.ensemble(ms.Attention(dim=2, beta=4.0), seed=seed, **options) for seed in (0, 1))
    for use in (ms.summarize, lambda data: ms.save_ensemble(data, tmp_path / "twice.zarr")):
        with pytest.warns(RepeatedMembersWarning, match="2 of the 5 members of stats are there already") as told:
            use(xr.concat([stats, stats.isel(member=[0, 2])], "member"))
        assert told[0].filename == __file__
    recwarn.clear()
    ms.summarize(xr.concat([stats, other], "member"))
    ms.summarize(stats.isel(member=[2, 0]))
    assert not recwarn


def test_text_instead_of_numbers_is_refused_by_name(stats, tmp_path):
    edited = stats.assign(cosine=(stats.cosine.dims, np.full(stats.cosine.shape, "lost")))
    with pytest.raises(InvalidInputError, match="not what was computed"):
        ms.save_ensemble(edited, tmp_path / "stats.zarr")


def test_a_summary_claims_nothing_about_the_members(stats):
    assert stats.attrs["values"] == "as computed"
    assert not {"values", "time_digests"} & {*ms.summarize(stats).attrs}


def test_coordinates_that_no_variable_uses_come_back(stats, tmp_path):
    kept = stats.assign_coords(level=[0.1, 0.9], note="mine")
    ms.save_ensemble(kept, tmp_path / "stats.zarr")
    found = ms.load_ensemble(tmp_path / "stats.zarr")
    assert found["level"].values.tolist() == [0.1, 0.9]
    assert set(found.coords) == set(kept.coords)


@pytest.mark.parametrize("order", ["x", ["x", "status"], None])
def test_stores_without_an_order_of_their_own(stats, tmp_path, monkeypatch, order):
    """As earlier versions wrote them: an attribute of this name is the user's."""
    save = dataset.save

    def earlier(told, *rest):
        del told.attrs["variable_order"]
        save(told if order is None else told.assign_attrs(variable_order=order), *rest)

    monkeypatch.setattr(dataset, "save", earlier)
    ms.save_ensemble(stats, tmp_path / "stats.zarr")
    found = ms.load_ensemble(tmp_path / "stats.zarr")
    assert set(found.data_vars) == set(stats.data_vars)
    assert found.attrs.get("variable_order") == order
