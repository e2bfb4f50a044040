"""Functions of one's own that are edited between two calls of a sweep."""

import importlib
import json
import sys

import numpy as np
import pytest
import xarray as xr

import metastable as ms
from metastable.errors import StoreError, SweepError
from metastable.sweep import own, work
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
    (tmp_path / "functions.json").write_text('{"tests.unit.sweep.toy:northern": ["3.11:another:one"]}')
    assert made.run(tmp_path, workers=0, execute=toy.execute, retry_failed=True).done == 2
    (tmp_path / "functions.json").write_text('{"tests.unit.sweep.toy:northern": ["3.11:another:one"]}')
    # Nothing that is done was made by the version that the folder has now.
    assert ms.sweep.status(tmp_path).done == 0


def test_what_counts_is_known_of_whole_files_only(tmp_path):
    write_lab(tmp_path / "lab", 1.0)
    arguments = (tmp_path / "lab/mine.toml", "--out", tmp_path / "out", "--workers", 0, "-q")
    assert shell(*arguments, folder=tmp_path)[0] == 0
    (tmp_path / "out/functions.json").write_text('{"edited_lab:he')
    with pytest.raises(StoreError, match=r"functions\.json cannot be read"):
        ms.sweep.status(tmp_path / "out")
    with pytest.raises(SweepError, match="edited must be"):
        ms.sweep.run(sweep(), tmp_path / "other", edited="yes")


def test_workers_that_have_another_version_stop_the_sweep(tmp_path, monkeypatch):
    """Their results would be kept as those of the version that this process has."""
    write_lab(tmp_path / "lab", 1.0)
    monkeypatch.syspath_prepend(tmp_path / "lab")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lab"))
    monkeypatch.delitem(sys.modules, "edited_lab", raising=False)
    importlib.invalidate_caches()
    made = ms.Sweep.from_file(tmp_path / "lab/mine.toml")
    write_lab(tmp_path / "lab", 30.0)  # in a notebook, say, whose process has the former one
    with pytest.raises(SweepError, match="a worker has another version of edited_lab:height"):
        made.run(tmp_path / "out", workers=1)
    assert ms.sweep.status(tmp_path / "out").done == 0
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
    assert own.fingerprints(made) != dict(functions)
