"""Readers of a sweep: they find all that is safe, whatever a writer left, and change nothing."""

import json
import shutil

import numpy as np
import pytest
import xarray as xr
import zarr

from metastable import sweep as sweeps
from metastable.errors import StoreError, UnreadJournalWarning
from metastable.stores import locks, write_file
from metastable.sweep import journal, results
from metastable.sweep import view as views
from metastable.sweep.store import DESCRIPTION, JOURNAL, Store, attributes_of, index_of
from tests.unit.sweep import toy

HELD = 5
"""Tasks that a zarr store has which was left behind."""


def contents(folder):
    """Every file of a folder but its locks, which who asks for them makes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(locks.NAME)
    }


def damage(segment):
    """Change a bit in the middle of a file of the journal."""
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(bytes(data))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished sweep."""
    return toy.small_sweep().run(tmp_path_factory.mktemp("sweeps") / "whole", workers=0, execute=toy.execute).folder


def left_behind(folder, sweep, held=HELD):
    """Let the zarr store of a folder have the first tasks only, as after a kill."""
    shutil.rmtree(folder / views.NAME)
    entries = index_of(sweep).select(journal.read(folder / JOURNAL).entries)
    views.open_view(
        folder / views.NAME, sweep.axes, attributes_of(sweep), {number: entries[number] for number in range(held)}
    )


@pytest.fixture
def killed(whole, tmp_path):
    """The folder of a sweep whose writer died when its zarr store had some of the tasks."""
    folder = tmp_path / "killed"
    shutil.copytree(whole, folder)
    left_behind(folder, toy.small_sweep())
    return folder


def done_tasks(results):
    return int((results["task_status"] == 1).sum())


def test_a_reader_finds_what_the_store_lacks_and_writes_nothing(whole, killed):
    before = contents(killed)
    found = sweeps.open_results(killed)
    xr.testing.assert_identical(found.load(), sweeps.open_results(whole).load())
    assert contents(killed) == before
    assert sweeps.run(toy.small_sweep(), killed, workers=0, execute=toy.execute).ran == 0
    assert xr.open_zarr(killed / views.NAME)["task_status"].values.sum() == 12


def test_a_store_that_was_removed(whole, killed):
    shutil.rmtree(killed / views.NAME)
    xr.testing.assert_identical(sweeps.open_results(killed).load(), sweeps.open_results(whole).load())
    assert not (killed / views.NAME).exists()


def test_who_works_on_it_is_left_in_peace(killed):
    with locks.exclusive(killed):
        assert done_tasks(sweeps.open_results(killed)) == HELD


@pytest.mark.parametrize("keep", [{DESCRIPTION, views.NAME}, {views.NAME}])
def test_a_copy_of_the_results_without_their_journal(killed, keep):
    for item in killed.iterdir():
        if item.name not in keep:
            shutil.rmtree(item) if item.is_dir() else item.unlink()
    before = contents(killed)
    found = sweeps.open_results(killed)
    assert done_tasks(found) == HELD
    assert np.isfinite(found["clusters"].values).any()
    assert contents(killed) == before


def test_a_damaged_journal_takes_nothing_from_the_store(killed):
    """Nor does what it has beyond the store come without what was lost: the store is opened as it is, and somebody is told."""
    damage(min((killed / JOURNAL).glob("*.segment")))
    assert sweeps.status(killed).done < 12
    with pytest.warns(
        UnreadJournalWarning, match=r"may lack tasks of the journal \(\d tasks of the store cannot be read"
    ):
        assert done_tasks(sweeps.open_results(killed)) == HELD


def test_words_for_people_are_no_other_sweep(whole, tmp_path):
    """A remark in the description, and a damaged journal: the store is the same as before."""
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    text = (folder / DESCRIPTION).read_text(encoding="utf-8")
    (folder / DESCRIPTION).write_text("# a remark\n" + text, encoding="utf-8")
    damage(min((folder / JOURNAL).glob("*.segment")))
    assert done_tasks(sweeps.open_results(folder)) == 12


def test_a_retried_task_whose_record_is_lost_is_done_in_the_store(tmp_path, monkeypatch):
    """The failed record before it is still in the journal, and another task is not in the store yet."""
    monkeypatch.setenv("METASTABLE_TEST_CURE", str(tmp_path / "cure"))
    sweep, folder = toy.small_sweep(), tmp_path / "sweep"
    sweep.run(folder, workers=0, execute=toy.failing)
    (tmp_path / "cure").touch()
    before = set((folder / JOURNAL).glob("*.segment"))
    sweep.run(folder, workers=0, execute=toy.failing, retry_failed=True)
    retried = min(set((folder / JOURNAL).glob("*.segment")) - before)
    entries = index_of(sweep).select(journal.read(folder / JOURNAL).entries)
    lacking = next(number for number, entry in entries.items() if entry.path in before)
    shutil.rmtree(folder / views.NAME)
    held = {number: entry for number, entry in entries.items() if number != lacking}
    views.open_view(folder / views.NAME, sweep.axes, attributes_of(sweep), held)
    damage(retried)
    with pytest.warns(UnreadJournalWarning, match="opened as it is"):
        assert done_tasks(sweeps.open_results(folder)) == 11


@pytest.mark.parametrize("fault", ["description", "segment"])
def test_what_cannot_be_read_beside_a_store_loses_nothing_of_it(killed, fault):
    if fault == "description":
        text = (killed / DESCRIPTION).read_text(encoding="utf-8")
        (killed / DESCRIPTION).write_text('colour = "red"\n' + text, encoding="utf-8")
    else:
        segment = min((killed / JOURNAL).glob("*.segment"))
        segment.unlink()
        segment.mkdir()
    with pytest.warns(UnreadJournalWarning, match="opened as it is"):
        assert done_tasks(sweeps.open_results(killed)) == HELD


def test_a_journal_that_is_tidied_while_somebody_reads_it(killed, monkeypatch):
    """Segments move away between two looks; whoever has a store gets that, others are asked to come again."""
    keep = journal.read

    def read(folder, versions):
        found = keep(folder, versions)
        for segment in folder.glob("*.segment"):
            segment.rename(segment.with_suffix(".aside"))
        return found

    monkeypatch.setattr(journal, "read", read)
    with pytest.warns(UnreadJournalWarning, match="opened as it is"):
        assert done_tasks(sweeps.open_results(killed)) == HELD
    for segment in (killed / JOURNAL).glob("*.aside"):
        segment.rename(segment.with_suffix(".segment"))
    shutil.rmtree(killed / views.NAME)
    with pytest.raises(StoreError, match="try again"):
        sweeps.open_results(killed)


def test_members_that_stopped_early_are_those_of_the_tasks_at_hand(tmp_path):
    """Also when the zarr store is that of a larger grid, and where only it knows (as of records of earlier versions)."""

    def early(told):
        def execute(task):
            number = task.members if task.model["beta"] > 1 else 0
            attributes = {"early": json.dumps({"max_steps": number} if told and number else {})}
            return toy.execute(task).assign(unfinished=number).assign_attrs(attributes)

        return execute

    for told in (True, False):
        folder, sweep = tmp_path / f"told {told}", toy.small_sweep()
        sweep.run(folder, workers=0, execute=early(told))
        assert sweeps.status(folder).unfinished == 9 * 5
        write_file(folder / DESCRIPTION, toy.small_sweep(grid={**sweep.grid, "beta": [1.0, 2.0]}).to_toml().encode())
        assert sweeps.status(folder).unfinished == 3 * 5 == sweeps.open_results(folder)["clusters"].attrs["unfinished"]


def early_and_failed(task):
    """All members run out of steps at beta = 1, none at beta = 2, and others cannot be measured."""
    beta, number = task.model["beta"], task.members if task.model["beta"] != 2.0 else 0
    told = {"max_steps": number} if beta == 1.0 else {"failed": number} if number else {}
    return toy.execute(task).assign(unfinished=number).assign_attrs(early=json.dumps(told))


def test_members_that_failed_are_those_of_the_tasks_at_hand(tmp_path):
    """A grid that shrank had the failed members of the tasks that it no longer has."""
    folder, sweep = tmp_path / "sweep", toy.small_sweep()
    sweep.run(folder, workers=0, execute=early_and_failed)
    told = sweeps.open_results(folder)["clusters"].attrs
    assert (told["unfinished"], told["failed"]) == (9 * 5, 6 * 5)
    smaller = toy.small_sweep(grid={**sweep.grid, "beta": [1.0, 2.0]})
    smaller.run(folder, workers=0, execute=early_and_failed, extend=True)
    assert sweeps.open_results(folder)["clusters"].attrs == {"unfinished": 3 * 5}
    assert sweeps.status(folder).early == {"max_steps": 3 * 5}


def test_a_finished_store_is_opened_where_only_the_journal_knows_who_failed(tmp_path):
    """The store was whole, and refused."""
    folder, sweep = tmp_path / "sweep", toy.small_sweep()
    sweep.run(folder, workers=0, execute=early_and_failed)
    segment = min((folder / JOURNAL).glob("*.segment"))
    segment.unlink()
    segment.mkdir()
    with pytest.warns(UnreadJournalWarning, match="could not be drawn or measured is not known"):
        found = sweeps.open_results(folder)
    assert done_tasks(found) == 12
    assert found["clusters"].attrs == {"unfinished": 9 * 5}


def said_by_a_run(folder, sweep, execute=toy.execute):
    """What the next run says of a folder."""
    lines = []
    sweep.run(folder, workers=0, execute=execute, say=lines.append)
    return lines


def test_another_title_is_no_alarm(whole, tmp_path):
    """The store was said to be of another version, or damaged."""
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    assert said_by_a_run(folder, toy.small_sweep(name="another title")) == []
    assert sweeps.open_results(folder).attrs["title"] == "another title"


def test_a_store_that_was_killed_before_it_grew_is_no_alarm(tmp_path):
    """Later tasks have more places, and another variable."""

    def growing(task):
        found = toy.execute(task)
        number = int(task.model["beta"])
        cells = (("member", "cell"), np.ones((task.members, number)))
        return found.assign(cells=cells) if number > 1 else found

    sweep, folder = toy.small_sweep(), tmp_path / "sweep"
    sweep.run(folder, workers=0, execute=growing)
    for held in (1, 2):
        left_behind(folder, sweep, held)
        assert said_by_a_run(folder, sweep, growing) == []
        assert xr.open_zarr(folder / views.NAME).sizes["cell"] == 4


@pytest.mark.parametrize("fault", ["format", "attribute", "metadata", "coordinate"])
def test_a_store_that_is_damaged_or_foreign_is_an_alarm(whole, tmp_path, fault):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    place = folder / views.NAME
    if fault in ("format", "attribute"):
        group = zarr.open_group(place, mode="r+", zarr_format=2, use_consolidated=False)
        group.attrs.update({"format": "another"} if fault == "format" else {"colour": "red"})
        zarr.consolidate_metadata(place, zarr_format=2)
    elif fault == "metadata":
        (place / "clusters" / ".zarray").write_text("{}", encoding="utf-8")
    else:
        (place / "beta" / "0").write_bytes(b"nothing that a codec reads")
    assert any("or damaged, and was made anew" in line for line in said_by_a_run(folder, toy.small_sweep()))
    xr.testing.assert_identical(sweeps.open_results(folder).load(), sweeps.open_results(whole).load())


def test_a_store_of_an_earlier_layout_is_no_damage(whole, tmp_path):
    """Members were stored as floats once."""
    folder, lines = tmp_path / "copy", []
    shutil.copytree(whole, folder)
    group = zarr.open_group(folder / views.NAME, mode="r+", zarr_format=2, use_consolidated=False)
    member = group["member"]
    del group["member"]
    group.create_array("member", shape=member.shape, dtype="float64", attributes=dict(member.attrs))[...] = np.arange(5)
    zarr.consolidate_metadata(folder / views.NAME, zarr_format=2)
    sweeps.run(toy.small_sweep(), folder, workers=0, execute=toy.execute, say=lines.append)
    assert not any("differed from the journal" in line for line in lines)
    assert xr.open_zarr(folder / views.NAME)["member"].dtype == np.int64


def test_a_finished_store_needs_no_journal(whole, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    for segment in (folder / JOURNAL).glob("*.segment"):
        segment.write_bytes(b"nothing")
    assert done_tasks(sweeps.open_results(folder)) == 12


def test_killed_while_a_grid_grows(whole, tmp_path):
    """The description is the new one, the zarr store that of the old grid."""
    folder = tmp_path / "growing"
    shutil.copytree(whole, folder)
    larger = toy.small_sweep(grid={**toy.small_sweep().grid, "beta": [1.0, 2.0, 3.0, 4.0, 5.0]})
    write_file(folder / DESCRIPTION, larger.to_toml().encode())
    found = sweeps.open_results(folder)
    assert found["task_status"].shape == (3, 5)
    assert done_tasks(found) == 12 == sweeps.status(folder).done == found["clusters"].attrs["done_tasks"]
    assert (sweeps.open_results(whole)["clusters"].values == found["clusters"].values[:, :4]).all()
    other = toy.small_sweep(seed=8)
    write_file(folder / DESCRIPTION, other.to_toml().encode())
    with pytest.raises(StoreError, match="no result yet: none of its 12 tasks"):
        sweeps.open_results(folder)
    assert (folder / views.NAME).exists()


def test_interrupted_between_a_retried_task_and_the_store(tmp_path, monkeypatch):
    monkeypatch.setenv("METASTABLE_TEST_CURE", str(tmp_path / "cure"))
    sweep, folder = toy.small_sweep(), tmp_path / "sweep"
    sweep.run(folder, workers=0, execute=toy.failing)
    (tmp_path / "cure").touch()
    keep = Store.add

    def interrupted(self, data):
        journal.append(self.folder / JOURNAL, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep.run(folder, workers=0, execute=toy.failing, retry_failed=True)
    monkeypatch.setattr(Store, "add", keep)
    done = sweeps.status(folder).done
    assert done > 9
    assert done_tasks(xr.open_zarr(folder / views.NAME)) == done == done_tasks(sweeps.open_results(folder))


def test_failures_that_the_store_does_not_have_yet_are_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("METASTABLE_TEST_CURE", str(tmp_path / "cure"))
    sweep, folder = toy.small_sweep(), tmp_path / "sweep"
    sweep.run(folder, workers=0, execute=toy.failing)
    left_behind(folder, sweep, held=1)
    assert sweeps.open_results(folder)["clusters"].attrs == {"tasks": 12, "done_tasks": 9, "failed_tasks": 3}


def test_status_of_a_damaged_store(whole, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    for chunk in (folder / views.NAME).rglob("*"):
        if chunk.is_file() and not chunk.name.startswith("."):
            chunk.write_bytes(b"nothing that a codec reads")
    assert sweeps.status(folder).done == 12
    with pytest.raises(StoreError, match="cannot be read"):
        sweeps.open_results(folder)


def test_members_that_are_no_whole_numbers_stay(tmp_path):
    def halves(task):
        return toy.execute(task).assign_coords(member=np.arange(task.members) / 2)

    found = toy.small_sweep().run(tmp_path / "sweep", workers=0, execute=halves).dataset
    assert found["member"].values.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]


def read(folder):
    """What a reader gets; None where it is refused."""
    try:
        return sweeps.open_results(folder)["clusters"].values
    except StoreError:
        return None


def test_no_bit_of_a_store_changes_a_number(whole, tmp_path):
    """Readers that do not ask the journal would take it: a chunk has a checksum, and one that is gone is missed."""
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    chunk = next(path for path in sorted((folder / views.NAME / "clusters").iterdir()) if path.name[0].isdigit())
    data, truth = chunk.read_bytes(), sweeps.open_results(whole)["clusters"].values
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 16
        chunk.write_bytes(bytes(changed))
        found = read(folder)
        assert found is None or np.array_equal(found, truth)
    chunk.write_bytes(b"nothing that a codec reads")
    with pytest.raises(StoreError, match="run the sweep again to repair it"):
        sweeps.open_results(folder)
    chunk.unlink()
    with pytest.raises(StoreError, match="a chunk of clusters is missing"):
        sweeps.open_results(folder)
    sweeps.run(toy.small_sweep(), folder, workers=0, execute=toy.execute)
    np.testing.assert_array_equal(sweeps.open_results(folder)["clusters"].values, truth)


def test_tasks_whose_values_are_all_empty_are_there(tmp_path):
    def empty(task):
        found = toy.execute(task)
        return found.assign(clusters=np.nan * found.clusters)

    found = toy.small_sweep().run(tmp_path / "sweep", workers=0, execute=empty).dataset
    assert done_tasks(found) == 12
    assert np.isnan(found["clusters"].values).all()


@pytest.mark.parametrize(
    "change", [{"grid": {}}, {"grid": {"noise": [0.0]}}, {"grid": {"draw": [0]}}, {"grid": {"noise": [0.0, 1.0]}}]
)
@pytest.mark.parametrize("keep", ["members", "statistics"])
def test_coordinates_that_are_zero_are_there(tmp_path, change, keep):
    """One member and one draw have the number 0, which zarr would not write."""
    sweep = toy.small_sweep(members=1, keep=keep, model={"dim": 2, "beta": 4.0}, observe={"mean_cosine": {}}, **change)
    for _ in range(2):
        found = sweep.run(tmp_path / "sweep", workers=0, execute=toy.execute).dataset
        assert (found["task_status"] == 1).all()


@pytest.mark.parametrize("name", ["time/0", "beta/0", "member/0", "task_status/0.0"])
def test_lost_coordinates_are_refused_and_made_again(whole, tmp_path, name):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    (folder / views.NAME / name).unlink()
    with pytest.raises(StoreError, match=f"a chunk of {name.partition('/')[0]} is missing"):
        sweeps.open_results(folder)
    sweeps.run(toy.small_sweep(), folder, workers=0, execute=toy.execute)
    xr.testing.assert_identical(sweeps.open_results(folder).load(), sweeps.open_results(whole).load())


def test_status_is_read_before_the_values(killed, monkeypatch):
    """Between the two a writer may finish tasks: what is called done must have its values."""
    order, load = [], xr.Variable.load

    def noted(self, **options):
        order.append(self.dtype)
        return load(self, **options)

    monkeypatch.setattr(xr.Variable, "load", noted)
    with locks.exclusive(killed):
        sweeps.open_results(killed)
    assert order[0] == np.int8


def test_large_results_are_read_when_they_are_used(whole, tmp_path, monkeypatch):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    chunk = next(path for path in (folder / views.NAME / "clusters").iterdir() if path.name[0].isdigit())
    chunk.write_bytes(b"nothing that a codec reads")
    monkeypatch.setattr(results, "AT_ONCE", 0)
    found = sweeps.open_results(folder)
    with pytest.raises(StoreError, match="run the sweep again to repair it"):
        results.read_variable(found, "clusters", folder)
