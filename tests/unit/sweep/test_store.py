"""Records, the journal, the zarr view and the lock: what is on disk is whole, or is recognised as damaged."""

import errno
import multiprocessing
import os
import shutil
import time
import warnings
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

from metastable import ensembles
from metastable import sweep as sweeps
from metastable.errors import IncompleteStoreError, StoreError, StoreExistsError, StoreFullError, StoreLockedError
from metastable.stores import locks
from metastable.sweep import journal, records, tasks, work
from metastable.sweep import view as views
from tests.unit.sweep import toy
from tests.unit.sweep.conftest import zarr_files
from tests.unit.sweep.toy import small_sweep


@pytest.fixture
def finished(tmp_path):
    """A finished sweep."""
    sweeps.run(small_sweep(), tmp_path / "sweep", workers=0, execute=toy.execute)
    return tmp_path / "sweep"


# ------------------------------------------------------------------------------------------------------ records


def some_records():
    variables = [
        tasks.Variable("a", ("member",), np.array([1.0, np.nan, -0.0])),
        tasks.Variable("b", (), np.array(2.0)),
    ]
    return [records.encode({"key": f"k{i}", "status": "done"}, variables) for i in range(3)]


def test_record_round_trip():
    header, variables = records.decode(some_records()[1])
    assert header["key"] == "k1"
    assert [v.name for v in variables] == ["a", "b"]
    assert variables[0].values.tobytes() == np.array([1.0, np.nan, -0.0]).tobytes()
    assert variables[1].values.shape == ()


@pytest.mark.parametrize("place", range(0, 200, 7))
def test_any_flipped_byte_costs_one_record(place):
    parts = some_records()
    data = bytearray(b"".join(parts))
    data[len(parts[0]) + place % len(parts[1])] ^= 0x41
    found = list(records.scan(bytes(data)))
    good = [item.key for item in found if isinstance(item, records.Record)]
    assert good == ["k0", "k2"]
    assert len(found) > len(good)
    with pytest.raises(IncompleteStoreError):
        records.decode(bytes(data[len(parts[0]) :]))


def test_truncated_records():
    data = b"".join(some_records())
    found = list(records.scan(data[:-5]))
    assert [isinstance(item, records.Record) for item in found] == [True, True, False]
    assert found[-1].key == "k2"


# ------------------------------------------------------------------------------------------------------ journal


def test_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StoreFullError, match="no room left"):
        journal.append(tmp_path, some_records()[0])
    assert list(tmp_path.iterdir()) == []


def test_damaged_bytes_are_never_stored(tmp_path):
    data = bytearray(some_records()[0])
    data[-1] ^= 1
    with pytest.raises(StoreError, match="damaged on its way"):
        journal.append(tmp_path, bytes(data))


def test_a_result_beats_a_failure_whatever_the_order(tmp_path):
    done = records.encode({"key": "k", "status": "done"})
    failed = records.encode({"key": "k", "status": "failed"})
    for first, second in ((done, failed), (failed, done)):
        folder = tmp_path / str(first == done)
        folder.mkdir()
        journal.append(folder, first)
        journal.append(folder, second)
        assert journal.read(folder).entries["k"].done


# --------------------------------------------------------------------------------------------------------- view


def test_results_open_with_plain_xarray(finished):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = xr.open_zarr(finished / "results.zarr", chunks=None).load()
    assert dataset["clusters"].dims == ("mask", "beta", "member", "time")
    assert dataset["mask"].values.tolist() == ["causal", "full", "window(4)"]
    assert dataset["beta"].values.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert dataset["time"].values.tolist() == [1.0, 10.0, 100.0]
    assert (dataset["task_status"] == 1).all()
    sweep = small_sweep()
    for task in sweep.tasks():
        expected = toy.execute(task)
        for name in ("clusters", "steps"):
            assert (dataset[name].values[task.index] == expected[name].values).all()


def test_unfinished_is_nan(tmp_path):
    class Stop(Exception):
        pass

    ran = []

    def stop(task):
        if len(ran) == 5:
            raise KeyboardInterrupt
        ran.append(task.number)
        return toy.execute(task)

    with pytest.raises(KeyboardInterrupt):
        sweeps.run(small_sweep(), tmp_path / "sweep", workers=0, execute=stop)
    dataset = sweeps.open_results(tmp_path / "sweep").load()
    done = dataset["task_status"].values == 1
    assert 0 < done.sum() < 12
    assert (np.isfinite(dataset["clusters"].values).all(axis=(2, 3)) == done).all()
    found = sweeps.status(tmp_path / "sweep")
    assert (found.done, found.failed, found.waiting) == (int(done.sum()), 0, 12 - int(done.sum()))


def test_chunks_are_small_and_cover_the_grid(tmp_path, monkeypatch):
    monkeypatch.setattr(views, "CHUNK_BYTES", 500)
    sweeps.run(small_sweep(), tmp_path / "many", workers=0, execute=toy.execute)
    monkeypatch.undo()
    sweeps.run(small_sweep(), tmp_path / "one", workers=0, execute=toy.execute)
    assert len(zarr_files(tmp_path / "many")) > len(zarr_files(tmp_path / "one"))
    assert sweeps.open_results(tmp_path / "many").load().identical(sweeps.open_results(tmp_path / "one").load())


def test_results_of_different_sizes_are_padded(tmp_path):
    def execute(task):
        values = np.arange(task.tokens, dtype=float) + 1
        return xr.Dataset({"a": (("token",), values)}, coords={"token": np.arange(task.tokens)})

    for order in ([2, 4], [4, 2]):
        folder = tmp_path / str(order[0])
        sweeps.run(
            small_sweep(grid={"tokens": order}, model={"dim": 2, "beta": 1.0}, tokens=None),
            folder,
            workers=0,
            execute=execute,
        )
        found = sweeps.open_results(folder)["a"].sel(tokens=2).values
        assert found.tolist()[:2] == [1.0, 2.0]
        assert np.isnan(found[2:]).all()


def test_statistics_instead_of_members(tmp_path):
    sweep = small_sweep(keep="statistics", members=40)
    found = sweep.run(tmp_path / "sweep", workers=0, execute=toy.execute).dataset.load()
    assert found["clusters"].dims == ("mask", "beta", "statistic", "time")
    values = toy.execute(sweep.task(6))["clusters"].values
    here = found["clusters"].isel(mask=1, beta=2)
    assert here.sel(statistic="mean").values == pytest.approx(values.mean(axis=0))
    assert here.sel(statistic="std").values == pytest.approx(values.std(axis=0, ddof=1))
    for name, level in (("q10", 0.1), ("q50", 0.5), ("q90", 0.9)):
        assert here.sel(statistic=name).values == pytest.approx(np.quantile(values, level, axis=0))


@pytest.mark.filterwarnings("error")
def test_statistics_count_infinite_members():
    """They were dropped without a word: mean 1, spread 0, and one member fewer in the count."""
    inf, nan = np.inf, np.nan
    rows = {
        (1.0, 1.0, inf, 1.0, 1.0, nan): (inf, nan, 1.0, 1.0, inf, 5.0),
        (-inf, 1.0, 2.0, nan, nan, nan): (-inf, nan, -inf, 1.0, 1.8, 3.0),
        (-inf, inf, nan, nan, nan, nan): (nan, nan, nan, nan, nan, 2.0),
        (inf, inf, inf, nan, nan, nan): (inf, nan, inf, inf, inf, 3.0),
        (inf, nan, nan, nan, nan, nan): (inf, nan, inf, inf, inf, 1.0),
    }
    found = tasks.statistics(np.array(list(rows)), 1)
    np.testing.assert_allclose(found, list(rows.values()))


@pytest.mark.filterwarnings("error")
def test_statistics_of_finite_members_are_those_of_numpy():
    values = np.random.default_rng(0).standard_normal((7, 23))
    found = tasks.statistics(values, 1)
    np.testing.assert_allclose(found[:, 0], values.mean(1), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(found[:, 1], values.std(1, ddof=1), rtol=1e-13)
    np.testing.assert_allclose(found[:, 2:5].T, np.quantile(values, [0.1, 0.5, 0.9], axis=1), rtol=1e-13, atol=1e-15)


def test_statistics_leave_out_failed_members():
    values = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan]])
    found = tasks.statistics(values, 0)
    assert found[:, 0] == pytest.approx([2.0, 2**0.5, 1.2, 2.0, 2.8, 2.0])
    assert np.isnan(found[:-1, 1]).all()
    assert found[-1, 1] == 0


def test_a_grid_without_axes(tmp_path):
    outcome = small_sweep(grid={}, model={"dim": 2, "beta": 1.0}).run(tmp_path / "s", workers=0, execute=toy.execute)
    assert outcome.complete
    assert outcome.dataset["clusters"].dims == ("member", "time")


# ------------------------------------------------------------------------------------------- damage and repair


def test_damaged_chunk_is_repaired_from_the_journal(finished):
    before = zarr_files(finished)
    chunk = next(path for path in (finished / "results.zarr" / "clusters").iterdir() if path.name[0].isdigit())
    for damage in (
        b"",
        b"garbage",
        chunk.read_bytes()[:-3],
        chunk.read_bytes()[:40] + b"\x00\xff" + chunk.read_bytes()[42:],
    ):
        chunk.write_bytes(damage)
        lines = []
        outcome = sweeps.run(small_sweep(), finished, workers=0, execute=toy.execute, say=lines.append)
        assert outcome.ran == 0
        assert "brought up to date" in lines[0]
        assert zarr_files(finished) == before


@pytest.mark.parametrize(
    "name", [".zmetadata", "clusters/.zarray", "clusters/.zattrs", "time/0", "beta/0", "task_status/0.0"]
)
def test_damaged_metadata_is_repaired(finished, name):
    before = zarr_files(finished)
    path = finished / "results.zarr" / name
    path.write_bytes(path.read_bytes()[:-4])
    assert sweeps.run(small_sweep(), finished, workers=0, execute=toy.execute).ran == 0
    assert zarr_files(finished) == before


def test_lost_zarr_store_is_made_again(finished):
    before = zarr_files(finished)
    shutil.rmtree(finished / "results.zarr")
    assert sweeps.run(small_sweep(), finished, workers=0, execute=toy.execute).ran == 0
    assert zarr_files(finished) == before


def test_damaged_segment_names_its_tasks_and_they_run_again(finished):
    before = zarr_files(finished)
    segment = journal.segments(finished / "journal")[-1]
    data = bytearray(segment.read_bytes())
    lost = [item for item in records.scan(bytes(data)) if isinstance(item, records.Record)]
    data[lost[0].offset + lost[0].length - 30] ^= 0x10
    segment.write_bytes(bytes(data))
    found = sweeps.status(finished)
    assert found.damaged == (segment.name,)
    assert found.done == 11
    lines = []
    outcome = sweeps.run(small_sweep(), finished, workers=0, execute=toy.execute, say=lines.append)
    point = tasks.describe(lost[0].header["point"])
    assert f"lost and to be computed again: {point}" in lines[0]
    assert outcome.ran == 1
    assert zarr_files(finished) == before
    assert sweeps.status(finished).damaged == ()


def test_leftovers_of_a_crash_are_removed(finished):
    (finished / "journal" / ".x.segment.abc.partial").write_bytes(b"half")
    (finished / ".results.zarr.abc.partial").mkdir()
    (finished / ".sweep.toml.0123456789abcdef.partial").write_bytes(b"half")
    sweeps.run(small_sweep(), finished, workers=0, execute=toy.execute)
    assert not list(finished.rglob("*.partial"))


# ------------------------------------------------------------------------------------------- folders and locks


def test_another_sweep_is_refused_or_takes_over(finished):
    other = small_sweep(grid={"mask": ["full", "causal"], "beta": [0.5, 1.0, 2.0]})
    with pytest.raises(StoreExistsError, match=r"grid differ.*--extend"):
        other.run(finished, workers=0, execute=toy.execute)
    outcome = other.run(finished, workers=0, execute=toy.execute, extend=True)
    assert outcome.ran == 2
    assert outcome.complete
    fresh = other.run(finished.with_name("fresh"), workers=0, execute=toy.execute)
    assert zarr_files(finished) == zarr_files(fresh.folder)


def test_journals_can_be_joined(tmp_path):
    """Two parts of a grid, run apart, and their segments copied into one folder: the whole grid, with nothing left to run."""
    whole = small_sweep()
    for name, masks in (("first", ["causal"]), ("second", ["full", {"kind": "window", "width": 4}])):
        part = small_sweep(grid={"mask": masks, "beta": [1.0, 2.0, 3.0, 4.0]})
        part.run(tmp_path / name, workers=0, execute=toy.execute)
    for segment in journal.segments(tmp_path / "second" / "journal"):
        shutil.copy(segment, tmp_path / "first" / "journal")
    outcome = whole.run(tmp_path / "first", workers=0, execute=toy.execute, extend=True)
    assert outcome.ran == 0
    assert outcome.complete


def test_foreign_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(StoreExistsError, match="not empty"):
        small_sweep().run(tmp_path, workers=0, execute=toy.execute)
    with pytest.raises(StoreExistsError, match="is a file"):
        small_sweep().run(tmp_path / "thesis.tex", workers=0, execute=toy.execute)
    with pytest.raises(StoreError, match="holds no sweep"):
        sweeps.status(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def _hold(folder, ready, leave):
    with locks.exclusive(folder):
        ready.set()
        leave.wait(30)


def test_second_process_is_refused_and_a_dead_one_forgotten(finished):
    context = multiprocessing.get_context("spawn")
    ready, leave = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(finished, ready, leave))
    process.start()
    assert ready.wait(30)
    with pytest.raises(StoreLockedError, match=f"process {process.pid} on "):
        small_sweep().run(finished, workers=0, execute=toy.execute)
    assert locks.holder(finished)["pid"] == process.pid
    process.kill()
    process.join()
    assert locks.holder(finished) is None
    assert small_sweep().run(finished, workers=0, execute=toy.execute).complete


# -------------------------------------------------------------------------------------------------- the loop


def test_failed_tasks_are_kept_apart_and_retried_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("METASTABLE_TEST_CURE", str(tmp_path / "cure"))
    sweep, folder = small_sweep(), tmp_path / "sweep"
    outcome = sweep.run(folder, workers=0, execute=toy.failing)
    assert (outcome.done, outcome.failed, outcome.ran) == (9, 3, 12)
    found = sweeps.status(folder)
    assert [item.where for item in found.failures] == [f"mask = {m}, beta = 2" for m in ("causal", "full", "window(4)")]
    assert found.failures[0].error == "ValueError: beta is two"
    assert "raise ValueError" in found.failures[0].traceback
    dataset = sweeps.open_results(folder).load()
    assert (dataset["task_status"].sel(beta=2.0) == 2).all()
    assert dataset["clusters"].attrs == {"tasks": 12, "done_tasks": 9, "failed_tasks": 3}
    assert sweep.run(folder, workers=0, execute=toy.failing).ran == 0
    (tmp_path / "cure").touch()
    outcome = sweep.run(folder, workers=0, execute=toy.failing, retry_failed=True)
    assert (outcome.done, outcome.failed, outcome.ran) == (12, 0, 3)
    assert sweeps.open_results(folder)["clusters"].attrs == {}
    healthy = sweep.run(tmp_path / "healthy", workers=0, execute=toy.execute)
    assert zarr_files(folder) == zarr_files(healthy.folder)


def test_a_task_without_numbers_fails(tmp_path):
    outcome = small_sweep().run(tmp_path / "s", workers=0, execute=lambda task: xr.Dataset())
    assert outcome.failed == 12
    with pytest.raises(StoreError, match="no result yet"):
        sweeps.open_results(tmp_path / "s")


@pytest.mark.parametrize(("status", "states"), [("interrupted", ["success"]), ("success", ["failed", "failed"])])
def test_half_an_ensemble_is_no_result(tmp_path, monkeypatch, status, states):
    """`ensemble` returns what is finished on Ctrl-C, and NaN for members that fail: neither may pass for a result."""

    def ensemble(model, **_):
        return xr.Dataset(
            {"a": ("member", [np.nan] * len(states)), "status": ("member", states)}, attrs={"status": status}
        )

    monkeypatch.setattr(ensembles, "ensemble", ensemble)
    if status == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            small_sweep().run(tmp_path / "s", workers=0)
        assert sweeps.status(tmp_path / "s").done == 0
    else:
        assert small_sweep().run(tmp_path / "s", workers=0).failed == 12
        assert "none of the 2 members reached t = 100 (2 failed)" in sweeps.status(tmp_path / "s").failures[0].error


def test_equal_tasks_run_once(tmp_path):
    sweep = small_sweep(
        starts="shared", grid={"beta": [1.0, 2.0], "c": [1.0, 2.0]}, observe={"clusters": {"radius": "0 * c + 1"}}
    )
    outcome = sweep.run(tmp_path / "s", workers=0, execute=toy.execute)
    assert outcome.ran == 2
    assert outcome.complete
    assert not np.isnan(outcome.dataset["clusters"].values).any()


def test_batches_hand_back_what_they_do_not_reach(monkeypatch):
    import json

    monkeypatch.setenv("METASTABLE_TEST_SECONDS", "0.02")
    batch = work.Batch(tuple(range(12)), limit=0.05)
    finished = work.run_batch(json.dumps(small_sweep().to_dict()), batch, toy.slow, 1)
    count = sum(isinstance(item, records.Record) for item in records.scan(finished.records))
    assert 1 < count < 12
    assert finished.rest == tuple(range(count, 12))


def test_estimate():
    found = sweeps.estimate(small_sweep(members=400), toy.slow, seconds=0.3)
    assert found.tasks == 12
    assert 1 <= found.sampled <= 8
    assert found.seconds > 12 * 25 * 0.05
    per_member = 3 + 1
    assert found.bytes == pytest.approx(2 * 12 * 8 * (400 * (per_member + 1) + 3), rel=0.01)
    assert found.wall_seconds(4) == pytest.approx(found.seconds / 4)


def test_long_trials_run_once():
    """The first one ran once more, for the time that compilation had taken."""
    members = []

    def counted(task):
        members.append(task.members)
        return toy.execute(task)

    sweeps.estimate(small_sweep(members=400), counted, seconds=0.0)
    assert members == [1]


def test_compilation_is_no_part_of_an_estimate(monkeypatch):
    """By a clock of our own: a trial of twenty seconds, in which something is compiled for a hundred more."""
    from numba.core import event

    now = [0.0]
    estimating = import_module("metastable.sweep.estimate")
    monkeypatch.setattr(estimating, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(event, "timer", lambda: now[0])

    def compiled(task):
        with event.trigger_event("numba:compile"):
            now[0] += 100.0
        now[0] += 20.0
        return toy.execute(task)

    found = sweeps.estimate(small_sweep(members=400), compiled, seconds=0.5)
    assert (found.sampled, found.dearest, found.seconds) == (1, 8000.0, 12 * 8000.0)


def test_no_time_stands_still(finished):
    """`status` on a finished sweep reports no process and no rate."""
    found = sweeps.status(finished)
    assert found.process is None
    assert found.rate is None
    assert found.complete
    assert len(found.slowest) == 5
    assert all(entry.finished <= time.time() for entry in journal.read(finished / "journal").entries.values())


def test_ctrl_c_between_journal_and_view_leaves_both_equal(tmp_path, monkeypatch):
    """The moment after a record is written is the moment in which whoever waits for it presses Ctrl-C."""
    append, count = journal.append, []

    def interrupted(folder, data):
        stored = append(folder, data)
        count.append(len(stored))
        if len(count) == 3:
            raise KeyboardInterrupt
        return stored

    monkeypatch.setattr(journal, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small_sweep().run(tmp_path / "s", workers=0, execute=toy.execute)
    assert int((sweeps.open_results(tmp_path / "s")["task_status"] == 1).sum()) == sum(count)
