"""Observables and starts of one's own in a sweep, and what is said twice or not known."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import metastable as ms
from metastable.errors import SweepError
from tests.unit.sweep import toy

SETTINGS = {
    "model": {"dim": 2},
    "grid": {"beta": [1.0, 4.0]},
    "observe": {"mean_cosine": {}},
    "times": [1.0],
    "members": 2,
    "tokens": 5,
    "options": {"engine": "reference"},
}
HERE = "tests.unit.sweep.toy"


def sweep(**changes):
    return ms.Sweep(**(SETTINGS | changes))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tokens": 100, "grid": {"tokens": [5, 6], "beta": [1.0]}}, "tokens is set twice"),
        ({"model": {"dim": 2, "beta": 3.0}}, "beta is set twice, by model.beta and by grid.beta"),
        ({"model": {"dim": 2}, "grid": {"beta": [1.0], "size": [{"dim": 3}, {"dim": 4}]}}, "dim is set twice"),
        ({"grid": {"beta": [1.0], "both": [{"beta": 2.0}, {"noise": 0.0}]}}, "two axes"),
        ({"observe": {"magic": {}}}, "unknown kind 'magic'"),
        ({"observe": {"mean": {"kind": "magic"}}}, "known observables are"),
        ({"observe": {"clusters": {"radios": 0.1}}}, "radios"),
        ({"observe": {"own": {}}}, "unknown kind"),
        ({"observe": {"a": {"kind": f"{HERE}:nothing"}}}, "nothing"),
        ({"observe": {"a": {"kind": "no.such.room:f"}}}, "no.such|No module"),
        ({"observe": {"a": {"kind": f"{HERE}:northern", "colour": 1}}}, "colour|arguments"),
        ({"observe": {"a": {"kind": f"{HERE}:moment"}}}, "needs order by name"),
        ({"observe": {"a": lambda x: 1.0}}, "top of a module"),
        ({"start": "normal"}, "von_mises_fisher"),
        ({"start": {"kind": "normal"}}, "known starts are"),
        ({"start": {"kind": "correlated"}}, "correlation"),
        ({"start": {"kind": "correlated", "rho": 0.1}}, "rho|correlation"),
        ({"start": lambda generator: None}, "top of a module"),
        ({"start": f"{HERE}:nothing"}, "nothing"),
    ],
)
def test_refused_when_it_is_made(changes, word):
    with pytest.raises(SweepError, match=word):
        sweep(**changes)


def test_a_default_under_a_bundle_is_no_conflict():
    """Where some values of an axis set a field and others do not, the model says what it is for the others."""
    bundles = {"kind": [{"label": "plain", "noise": 0.0}, {"label": "hot", "beta": 0.1}]}
    made = sweep(model={"dim": 2, "beta": 3.0}, grid=bundles)
    assert [task.model["beta"] for task in made.tasks()] == [3.0, 0.1]


def test_observables_by_import_path(tmp_path):
    observe = {"north": {"kind": f"{HERE}:northern"}, "power": {"kind": f"{HERE}:moment", "order": "beta + 1"}}
    made = sweep(observe=observe, starts="shared")
    assert sweep(observe={"north": toy.northern}).observe["north"] == {"kind": f"{HERE}:northern"}
    assert ms.Sweep.from_toml(made.to_toml()).identity == made.identity
    made.check()
    data = made.run(tmp_path / "out", workers=0, progress=False).dataset
    for place, beta in enumerate([1.0, 4.0]):
        stats = ms.ensemble(
            ms.Attention(dim=2, beta=beta),
            tokens=5,
            members=2,
            times=[1.0],
            seed=made.task(place).seed,
            engine="reference",
        )
        np.testing.assert_array_equal(data["north"][place].values, stats.x[..., 1].max("token"))
        np.testing.assert_allclose(data["power"][place].values, (np.abs(stats.x[..., 0]) ** (beta + 1)).mean("token"))


@pytest.mark.parametrize(
    "start",
    [f"{HERE}:bunch", toy.bunch, {"kind": "von_mises_fisher", "concentration": "100 * beta"}],
    ids=["path", "function", "table"],
)
def test_starts_of_ones_own(start):
    from metastable.sweep.tasks import run_ensemble

    made = sweep(start=start)
    assert ms.Sweep.from_toml(made.to_toml()).identity == made.identity
    result = run_ensemble(made.task(0))
    assert float(result.mean_cosine.min()) > 0.9
    assert made.task(0).key != sweep().task(0).key


def test_keys_without_a_start_are_those_of_earlier_versions():
    """A store that version 0.1 wrote finds its results again."""
    assert sweep().task(0).key == "168348e417f3c79263e5cdd988af9d25"
    assert sweep().task(0).seed == 7435820413311731961


# ----------------------------------------------------------------------------------------------------- in a shell

LAB = """
def height(x):
    return x[:, 0].max()

def moody(states, times, model):
    if model.beta > 5.0:
        raise KeyError("too hot")
    if states[0, 0, 0] < 0.0:
        raise ZeroDivisionError("west of here")
    return states[:, 0, 0]

def topics(generator, tokens, dim):
    import metastable as ms
    return ms.starts.mixture(tokens, dim, generator, centers=3, concentration=40.0)
"""
FILE = """
members = 6
tokens = 5
start = "lab_of_mine:topics"
model = {dim = 2}
grid = {beta = [1.0, 9.0]}
run = {times = [0.0, 1.0], engine = "reference"}
[observe.height]
kind = "lab_of_mine:height"
[observe.moody]
kind = "lab_of_mine:moody"
"""


def shell(*arguments, folder):
    source = str(Path(ms.__file__).parents[1])
    command = [sys.executable, "-c", "from metastable.cli import main; main()", "sweep", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": source, "COLUMNS": "200"}
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    return found.returncode, found.stdout + found.stderr


def test_a_sweep_file_with_functions_beside_it(tmp_path):
    """They were found through PYTHONPATH only; and without them nobody could look at the results."""
    lab, elsewhere = tmp_path / "lab", tmp_path / "elsewhere"
    lab.mkdir()
    elsewhere.mkdir()
    (lab / "lab_of_mine.py").write_text(LAB)
    (lab / "mine.toml").write_text(FILE)
    code, text = shell(lab / "mine.toml", "--out", tmp_path / "out", "--workers", 0, "-q", folder=elsewhere)
    assert (code, "1 of 2 tasks done, 1 failed" in text) == (1, True), text
    (lab / "lab_of_mine.py").unlink()
    code, text = shell("status", tmp_path / "out", folder=elsewhere)
    assert code == 0, text
    # What one's own functions raised is kept: with the task that failed, and with the members of the one that did not.
    assert "task 1 at beta = 9: OwnFunctionError: the observable 'moody'" in text
    assert "raised KeyError for member 0" in text
    assert "some failed at beta = 1" in text
    # It said to raise max_steps, whatever the reason was.
    assert "members of finished tasks stopped early (" in text
    assert "failed): their values are NaN" in text
    assert "max_steps" not in text
    assert "ZeroDivisionError for member" in text
    code, text = shell("plot", tmp_path / "out", "--variable", "height", folder=elsewhere)
    assert code == 0, text
    results = ms.sweep.open_results(tmp_path / "out")
    assert 0 < int(results.unfinished[0]) < 6
    assert results.height.attrs["failed"] == results.height.attrs["unfinished"] == int(results.unfinished[0])
    # To go on with it they must be there.
    code, text = shell(lab / "mine.toml", "--out", tmp_path / "out", "--retry-failed", folder=elsewhere)
    assert code == 2
    assert "No module named 'lab_of_mine'; put the module beside the sweep file" in text


def test_a_module_that_cannot_be_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_lab.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SweepError, match=r"broken_lab:f.*cannot be loaded: ZeroDivisionError"):
        sweep(observe={"a": {"kind": "broken_lab:f"}})


# ------------------------------------------------------------------------------------------- observables as objects

AXIS = np.array([0.6, 0.8])
OBJECTS = [
    (ms.observe.clusters(), {"kind": "clusters"}),
    (ms.observe.clusters(radius=0.1), {"kind": "clusters", "radius": 0.1}),
    (ms.observe.consumed(radius=0.3, strong=True), {"kind": "consumed", "radius": 0.3, "strong": True}),
    (ms.observe.cosine_quantiles((0.25, 0.5)), {"kind": "cosine_quantiles", "levels": [0.25, 0.5]}),
    (ms.observe.density(8, axis=AXIS), {"kind": "density", "cells": 8, "axis": [0.6, 0.8]}),
    (ms.observe.attention_rank(tolerance=0.1), {"kind": "attention_rank", "tolerance": 0.1}),
    (toy.Near((0.5, 1.0)), {"kind": f"{HERE}:Near", "radii": [0.5, 1.0], "center": [1.0, 0.0]}),
]


@pytest.mark.parametrize(("item", "table"), OBJECTS, ids=[table["kind"] for _, table in OBJECTS])
def test_an_observable_as_an_object_is_the_table_that_it_is_made_again_of(item, table):
    """A sweep took tables and functions only, where an ensemble takes both and objects."""
    made = sweep(observe={"it": item})
    assert made.observe["it"] == table
    again = ms.Sweep.from_toml(made.to_toml())
    assert again.identity == made.identity
    assert [task.observables() for task in again.tasks()] == [{"it": item}] * 2


def test_a_subspace_comes_back_to_the_last_bit():
    """Its basis, made orthonormal once more, would be another one."""
    item = ms.observe.distance_to(np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 1.0]]))
    made = ms.Sweep.from_toml(sweep(observe={"away": item}, model={"dim": 3}).to_toml())
    assert made.task(0).observables() == {"away": item}


def test_objects_measure_what_they_measure_in_an_ensemble(tmp_path):
    observe = {"near": toy.Near((0.5, 2.0)), "many": ms.observe.clusters(radius=0.1)}
    made = sweep(observe=observe, starts="shared")
    data = made.run(tmp_path / "out", workers=0, progress=False).dataset
    assert data["radius"].values.tolist() == [0.5, 2.0]
    for place, beta in enumerate([1.0, 4.0]):
        seed = made.task(place).seed
        model = ms.Attention(dim=2, beta=beta)
        stats = ms.ensemble(model, tokens=5, members=2, times=[1.0], seed=seed, observe=observe, engine="reference")
        for name in observe:
            np.testing.assert_array_equal(data[name].sel(beta=beta).values, stats[name].values)


def test_a_class_by_its_import_path_has_fields_that_may_be_formulas():
    made = sweep(observe={"near": {"kind": f"{HERE}:Near", "radii": [0.1], "note": "1 / sqrt(beta)"}})
    assert [task.observables()["near"] for task in made.tasks()] == [
        toy.Near((0.1,), note=1.0),
        toy.Near((0.1,), note=0.5),
    ]
    with pytest.raises(SweepError, match=r"observe.near: Near: .*colour"):
        sweep(observe={"near": {"kind": f"{HERE}:Near", "radii": [0.1], "colour": 1}})
    with pytest.raises(SweepError, match="no observable: it needs dims and measure"):
        sweep(observe={"near": {"kind": "pathlib:PurePosixPath"}}).task(0).observables()


@pytest.mark.parametrize(
    ("item", "word"),
    [
        (ms.observe.own(toy.northern), "its field function is"),
        (toy.Near((0.1,), note="fast"), "its field note is 'fast'"),
        (toy.Near((float("inf"),)), "finite numbers"),
        (toy.Near([0.1]), "its field radii is"),
        (
            toy.Level(level=None),
            "its field level is None, which tables cannot say, and not by default",
        ),  # "is another one"
        (toy.Level(needed=8), "Level of the same fields is another one"),  # a bare RuntimeError
    ],
)
def test_what_no_table_says_is_refused_with_the_way_that_is_left(item, word):
    with pytest.raises(SweepError, match=word) as refusal:
        sweep(observe={"it": item})
    assert "'package.module:NAME'" in str(refusal.value)
