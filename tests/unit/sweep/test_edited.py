"""Functions of one's own that are edited between two calls of a sweep."""

import importlib
import json
import shutil
import sys
from unittest import mock

import numpy as np
import pytest
import xarray as xr

import metastable as ms
from metastable.errors import StoreError, StoreExistsError, SweepError
from metastable.sweep import own, records, store, work
from tests.unit.sweep import toy
from tests.unit.sweep.test_own import shell, sweep

LAB = """
FACTOR, HOTTEST = {factor}, {hottest}
seen = {{}}

def height(states, times, model):
    seen[len(seen)] = states
    if model.beta > HOTTEST:
        raise ValueError("too hot")
    return FACTOR * states[:, :, 0].mean(axis=1)
"""
FILE = """
members = 6
tokens = 5
model = {dim = 2}
grid = {beta = [1.0, 9.0]}
run = {times = [0.0, 1.0], engine = "reference"}
observe.height.kind = "edited_lab:height"
"""


def write_lab(folder, factor, hottest=100.0):
    """A laboratory beside its sweep file, as it is after an edit."""
    folder.mkdir(exist_ok=True)
    (folder / "edited_lab.py").write_text(LAB.format(factor=factor, hottest=hottest))
    (folder / "mine.toml").write_text(FILE)


def heights(folder):
    return ms.sweep.open_results(folder).height.to_numpy()


@pytest.mark.parametrize("workers", [0, 2])
def test_results_of_a_function_that_was_edited_are_not_mixed_with_those_of_the_new_one(tmp_path, workers):
    """Finished tasks were taken for those of the new function, and the view held both."""
    lab, out = tmp_path / "lab", tmp_path / "out"

    def run(*arguments):
        return shell(
            lab / "mine.toml", "--out", out, "--workers", workers, "-q", "--calibrate", 0, *arguments, folder=tmp_path
        )

    write_lab(lab, 1.0)
    assert run()[0] == 0
    first = heights(out)
    # Tables that functions fill while they run are no edit, and nothing is to be done.
    code, text = run()
    assert (code, "2 of 2" in text) == (0, True), text
    write_lab(lab, 3.0)
    code, text = run()
    assert code == 2
    assert "holds results of another version of edited_lab:height" in text
    assert "--edited retry" in text
    np.testing.assert_array_equal(heights(out), first)
    assert shell("status", out, folder=tmp_path)[0] == 0
    code, text = run("--edited", "retry")
    assert code == 0, text
    np.testing.assert_allclose(heights(out), 3 * first, rtol=1e-12)
    # The new one is now the one that counts.
    assert run()[0] == 0
    write_lab(lab, 1.0)
    assert run()[0] == 2
    # An edit that changes nothing, its author says; her word is kept.
    assert run("--edited", "keep")[0] == 0
    assert run()[0] == 0
    np.testing.assert_allclose(heights(out), 3 * first, rtol=1e-12)


def test_a_function_that_is_mended(tmp_path):
    arguments = (tmp_path / "lab/mine.toml", "--out", tmp_path / "out", "--workers", 0, "-q")
    write_lab(tmp_path / "lab", 1.0, hottest=5.0)
    assert "1 of 2 tasks done, 1 failed" in shell(*arguments, folder=tmp_path)[1]
    first = heights(tmp_path / "out")
    write_lab(tmp_path / "lab", 1.0)
    assert shell(*arguments, "--retry-failed", folder=tmp_path)[0] == 2
    code, text = shell(*arguments, "--retry-failed", "--edited", "keep", folder=tmp_path)
    assert (code, "2 of 2 tasks done" in text) == (0, True), text
    np.testing.assert_array_equal(heights(tmp_path / "out")[0], first[0])
    assert np.isfinite(heights(tmp_path / "out")).all()


def test_failed_tasks_are_no_results_of_another_version(tmp_path):
    made = sweep(observe={"north": {"kind": "tests.unit.sweep.toy:northern"}})
    assert made.run(tmp_path, workers=0, execute=lambda task: xr.Dataset()).failed == 2
    (tmp_path / "functions.json").write_text('{"tests.unit.sweep.toy:northern": ["anotherone"]}')
    assert made.run(tmp_path, workers=0, execute=toy.execute, retry_failed=True).done == 2
    (tmp_path / "functions.json").write_text('{"tests.unit.sweep.toy:northern": ["anotherone"]}')
    # Nothing that is done was made by the version that the folder has now.
    assert ms.sweep.status(tmp_path).done == 0


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "lab")
    return Lab(tmp_path)


class Lab:
    """A laboratory in this process: its module is imported anew after every edit. `versions` says which factor made each point."""

    def __init__(self, folder):
        self.folder, self.out = folder / "lab", folder / "out"
        self.write(1.0)

    def write(self, factor, hottest=100.0):
        write_lab(self.folder, factor, hottest)
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)
        sys.modules.pop("edited_lab", None)
        importlib.invalidate_caches()

    def run(self, *betas, **options):
        described = ms.Sweep(
            model={"dim": 2},
            grid={"beta": betas or (1.0, 9.0)},
            members=2,
            tokens=5,
            times=[0.0, 1.0],
            options={"engine": "reference"},
            starts="shared",
            observe={"height": {"kind": "edited_lab:height"}},
        )
        return described.run(self.out, workers=0, **options)

    def versions(self):
        """(At time zero all points have the same states.)"""
        found = heights(self.out)[:, 0, 0]
        return [None if np.isnan(value) else round(float(value / self.unit)) for value in found]

    @property
    def unit(self):
        task = store.read_description(self.out).task(0)
        stats = ms.ensemble(
            task.attention(),
            tokens=task.tokens,
            members=1,
            times=[0.0, 1.0],
            seed=task.seed,
            observe={"x": ms.observe.state()},
            engine="reference",
        )
        return float(stats.x.values[0, 0, :, 0].mean())


def test_what_counts_is_known_of_whole_files_only(lab):
    """Where the file is lost the journal says it, as long as it can."""
    lab.run()
    marks = json.loads((lab.out / "functions.json").read_text())
    (lab.out / "functions.json").write_text('{"edited_lab:he')
    assert ms.sweep.status(lab.out).done == 2
    lab.write(2.0)
    with pytest.raises(StoreExistsError, match="another version of edited_lab:height"):
        lab.run()
    lab.write(1.0)
    assert lab.run().ran == 0
    assert json.loads((lab.out / "functions.json").read_text()) == marks
    lab.write(2.0)
    assert lab.run(9.0, edited="retry", extend=True).ran == 1
    (lab.out / "functions.json").unlink()
    with pytest.raises(StoreError, match=r"results of several versions of edited_lab:height; say --edited retry"):
        ms.sweep.status(lab.out)
    with pytest.raises(StoreError, match="several versions"):
        lab.run(extend=True)
    assert lab.run(edited="retry", extend=True).ran == 1
    assert lab.versions() == [2, 2]
    with pytest.raises(SweepError, match="edited must be"):
        lab.run(edited="yes")


def test_results_of_which_nobody_knows_the_version_count_until_they_are_to_be_made_again(lab):
    """Folders of earlier releases: `retry` computed nothing, and said that today's functions had made them."""
    lab.run()
    for segment in (lab.out / "journal").glob("*.segment"):
        kept = [
            records.decode(segment.read_bytes()[r.offset : r.offset + r.length])
            for r in records.scan(segment.read_bytes())
        ]
        segment.write_bytes(
            b"".join(records.encode({k: v for k, v in head.items() if k in EARLIER}, arrays) for head, arrays in kept)
        )
    (lab.out / "functions.json").unlink()
    assert lab.run().ran == 0
    lab.write(2.0)
    with pytest.raises(StoreExistsError):
        lab.run()
    assert lab.run(edited="retry").ran == 2
    assert lab.versions() == [2, 2]


EARLIER = ("key", "status", "point", "seconds", "finished", "host", "version")


def test_failures_are_those_of_a_version(lab):
    """A task that failed after `retry` was forgotten, since the former version had finished it, and run again and again."""
    lab.run()
    lab.write(2.0, hottest=5.0)
    assert lab.run(edited="retry").failed == 1
    found = ms.sweep.status(lab.out)
    assert (found.done, found.failed, found.waiting) == (1, 1, 0)
    assert "too hot" in found.failures[0].error
    assert lab.run().ran == 0
    assert lab.versions() == [2, None]
    # What failed before an edit has not failed after it.
    lab.write(3.0)
    assert lab.run(edited="retry").ran == 2
    assert lab.versions() == [3, 3]


def test_a_repaired_journal_keeps_its_order(lab):
    """Its good records became the newest ones, and what a former version had made took the place of today's."""
    lab.run(1.0, 9.0, 16.0)
    first = next((lab.out / "journal").glob("*.segment"))
    lab.write(2.0)
    lab.run(1.0, 9.0, 16.0, edited="retry")
    data = bytearray(first.read_bytes())
    data[-3] ^= 1
    first.write_bytes(bytes(data))
    said = []
    assert lab.run(1.0, 9.0, 16.0, say=said.append).ran == 0
    assert not any("lost" in line for line in said)
    assert lab.versions() == [2, 2, 2]


def test_what_was_kept_can_be_made_again(lab):
    lab.run()
    lab.write(2.0)
    assert lab.run(edited="keep").ran == 0
    assert lab.versions() == [1, 1]
    assert lab.run(edited="retry").ran == 2
    assert lab.versions() == [2, 2]
    # `keep` is about the versions that count, not about all that ever were.
    lab.write(3.0)
    assert lab.run(1.0, 9.0, 16.0, edited="keep", extend=True).ran == 1
    assert lab.versions() == [2, 2, 3]


def test_an_edit_is_refused_on_another_grid_too(lab):
    """On a grid that had nothing in common it was not, and back on the first one finished work was done again without a word."""
    lab.run()
    lab.write(2.0)
    with pytest.raises(StoreExistsError, match="another version"):
        lab.run(4.0, extend=True)
    lab.write(1.0)
    assert lab.run().ran == 0


@pytest.mark.parametrize("place", ["_read_journal", "_open_view"])
def test_a_run_that_is_killed_before_it_begins_has_changed_nothing(lab, place):
    """`status` said that nothing is done, and `open_results` showed what the former version had made."""
    lab.run()
    lab.write(2.0)
    with mock.patch.object(store.Store, place, side_effect=SystemError), pytest.raises(SystemError):
        lab.run(edited="retry")
    assert ms.sweep.status(lab.out).done == 2
    assert lab.versions() == [1, 1]
    with pytest.raises(StoreExistsError, match="another version"):
        lab.run()


def test_what_another_version_has_made_is_not_shown(lab):
    """A store that a killed process left behind is not what counts by now."""
    lab.run()
    shutil.copytree(lab.out / "results.zarr", lab.out / "kept")
    lab.write(2.0, hottest=5.0)
    lab.run(edited="retry")
    shutil.rmtree(lab.out / "results.zarr")
    (lab.out / "kept").rename(lab.out / "results.zarr")
    assert lab.versions() == [2, None]


def test_globals_that_are_filled_at_the_first_call_are_no_edit(tmp_path, monkeypatch):
    """In one process, where the grid grows or the same is run again: refused, and with `retry` all of it was done again."""
    monkeypatch.syspath_prepend(tmp_path)
    lines = (
        "TABLE = None\ncalls = 0\ndef height(x):\n    global TABLE, calls\n    calls += 1\n    TABLE = TABLE or {}\n"
    )
    (tmp_path / "filling_lab.py").write_text(lines + "    TABLE[len(TABLE)] = 1\n    return x[:, 0].mean()\n")
    importlib.invalidate_caches()
    options = {"workers": 0, "extend": True}
    assert sweep(observe={"height": {"kind": "filling_lab:height"}}).run(tmp_path / "out", **options).done == 2
    found = importlib.import_module("filling_lab")
    assert found.calls > 0
    grown = sweep(observe={"height": {"kind": "filling_lab:height"}}, grid={"beta": [1.0, 2.0, 9.0]})
    outcome = grown.run(tmp_path / "out", **options)
    assert (outcome.done, outcome.ran < 3) == (3, True)


def test_workers_that_have_another_version_stop_the_sweep(tmp_path, monkeypatch):
    """Their results would be kept as those of the version that this process has."""
    write_lab(tmp_path / "lab", 1.0)
    monkeypatch.syspath_prepend(tmp_path / "lab")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lab"))
    monkeypatch.delitem(sys.modules, "edited_lab", raising=False)
    importlib.invalidate_caches()
    made = ms.Sweep.from_file(tmp_path / "lab/mine.toml")
    write_lab(tmp_path / "lab", 30.0)  # in a notebook, say, whose process has the former one
    for workers in (0, 1):
        with pytest.raises(SweepError, match=r"edited_lab:(FACTOR|HOTTEST), which edited_lab:height uses, is not what"):
            made.run(tmp_path / "out", workers=workers)
    assert not (tmp_path / "out").exists()
    # A worker of a scheduler that has run for long.
    batch = work.Batch((0,), 100.0, tuple(own.fingerprints(made).items()))
    with pytest.raises(SweepError, match=r"a worker has another version of edited_lab:(FACTOR|HOTTEST)"):
        work.run_elsewhere(json.dumps(made.to_dict()), batch, "metastable.sweep.tasks:run_ensemble", 1)
    # Who knows better says so; and a process that has read the module again agrees with its workers.
    assert made.run(tmp_path / "kept", workers=1, edited="keep").complete
    importlib.reload(sys.modules["edited_lab"])
    assert made.run(tmp_path / "out", workers=1).complete
    np.testing.assert_array_equal(heights(tmp_path / "out"), heights(tmp_path / "kept"))


def test_what_a_worker_fills_while_it_computes_is_no_edit(tmp_path, monkeypatch):
    write_lab(tmp_path / "lab", 1.0)
    monkeypatch.syspath_prepend(tmp_path / "lab")
    monkeypatch.delitem(sys.modules, "edited_lab", raising=False)
    importlib.invalidate_caches()
    made = ms.Sweep.from_file(tmp_path / "lab/mine.toml")
    text, functions = json.dumps(made.to_dict()), tuple(own.fingerprints(made).items())
    for number in (0, 1):
        batch = work.Batch((number,), 100.0, functions)
        assert b'"status": "done"' in work.run_elsewhere(text, batch, "metastable.sweep.tasks:run_ensemble", 1).records
    assert len(sys.modules["edited_lab"].seen) > 0
    assert own.fingerprints(made) == dict(functions)
