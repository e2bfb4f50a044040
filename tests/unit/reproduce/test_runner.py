"""The runner: resumes, loses nothing, and says clearly what is wrong."""

import errno
import json
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from metastable.errors import InvalidInputError, StoreError, UnsupportedError
from metastable.figures import statements
from metastable.reproduce import (
    Finding,
    Recipe,
    Settings,
    catalogue,
    choose,
    find_papers,
    run_recipes,
    with_earlier,
    write_report,
)
from metastable.reproduce import result_store as storage
from metastable.reproduce.display import terminal
from metastable.reproduce.recipe import overall
from metastable.reproduce.runner import Watch


def finding(verdict="agrees", measured="1 of 1 <b>"):
    return Finding("it holds", measured, "exact", verdict)


def make_recipe(name="sample", calls=None, **changes):
    """A recipe that draws one curve and counts how often it was computed."""

    def measure(parameters, settings, report):
        if calls is not None:
            calls.append(name)
        report(0.5)
        report(1.0)
        values = np.random.default_rng(settings.seed).normal(size=parameters["size"])
        return xr.Dataset(
            {"y": ("x", values), "label": ("x", ["a"] * values.size)}, attrs={"total": np.float64(values.sum())}
        )

    def draw(data):
        return statements.plots(
            [statements.Plot("a", "x", "y", [statements.Curve("", np.arange(data.sizes["x"]), data.y.values)])]
        )

    plain = Recipe(
        name=name,
        title=f"Title of {name}",
        statement="a statement",
        parameters={"size": 4},
        measure=measure,
        judge=lambda data: [finding()],
        draw=draw,
    )
    return replace(plain, **changes)


def test_an_item_is_complete_on_disk(tmp_path):
    (result,) = run_recipes([make_recipe()], Settings(seed=3), tmp_path / "out")
    folder = tmp_path / "out" / "sample"
    assert sorted(path.name for path in folder.iterdir()) == ["data.zarr", "figure.png", "result.json", "x.csv"]
    content = json.loads((folder / "result.json").read_text())
    assert content["verdict"] == "agrees"
    assert content["command"] == "metastable reproduce sample --seed 3"
    assert content["parameters"] == {"size": 4}
    data = storage.read_data(folder)
    np.testing.assert_array_equal(data.y.values, np.random.default_rng(3).normal(size=4))
    table = np.genfromtxt(folder / "x.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    np.testing.assert_allclose(table["y"], data.y.values)
    assert result.figure is not None
    assert result.figure.is_file()


def test_finished_items_are_not_computed_again(tmp_path):
    calls = []
    recipes = [make_recipe("one", calls), make_recipe("two", calls)]
    run_recipes(recipes[:1], Settings(), tmp_path)
    results = run_recipes(recipes, Settings(), tmp_path)
    assert calls == ["one", "two"]
    assert [result.resumed for result in results] == [True, False]
    assert results[0].findings == (finding(),)


@pytest.mark.parametrize("change", ["seed", "members", "parameters", "revision"])
def test_other_settings_are_computed_again(tmp_path, change):
    calls = []
    recipe, settings = make_recipe("one", calls), Settings()
    run_recipes([recipe], settings, tmp_path)
    if change == "seed":
        settings = Settings(seed=1)
    elif change == "members":
        settings = Settings(members=7)
    elif change == "parameters":
        recipe = replace(recipe, parameters={"size": 5})
    else:
        recipe = replace(recipe, revision=2)
    run_recipes([recipe], settings, tmp_path)
    assert len(calls) == 2


def test_settings_that_an_item_does_not_use_do_not_matter(tmp_path):
    calls = []
    recipe = make_recipe("one", calls, uses=("seed",))
    run_recipes([recipe], Settings(), tmp_path)
    run_recipes([recipe], Settings(members=7), tmp_path)
    assert calls == ["one"]


def test_the_report_keeps_items_of_earlier_runs(tmp_path):
    recipes = [make_recipe("one"), make_recipe("two"), make_recipe("three")]
    run_recipes(recipes[:1], Settings(), tmp_path)
    results = with_earlier(run_recipes(recipes[1:2], Settings(), tmp_path), recipes, Settings(), tmp_path)
    assert [(result.name, result.resumed) for result in results] == [("one", True), ("two", False)]
    assert with_earlier([], recipes, Settings(seed=1), tmp_path) == []


def test_a_new_format_is_drawn_from_the_stored_data(tmp_path):
    calls = []
    recipe = make_recipe("one", calls)
    run_recipes([recipe], Settings(), tmp_path)
    (result,) = run_recipes([recipe], Settings(), tmp_path, ("svg", "pdf"))
    assert calls == ["one"]
    assert {path.suffix for path in (tmp_path / "one").glob("figure.*")} == {".png", ".svg", ".pdf"}
    assert set(result.formats) == {"png", "svg", "pdf"}


def test_killing_the_run_keeps_what_is_finished(tmp_path):
    calls = []

    def killed(parameters, settings, report):
        raise KeyboardInterrupt

    recipes = [make_recipe("one", calls), make_recipe("two", calls, measure=killed)]
    with pytest.raises(KeyboardInterrupt):
        run_recipes(recipes, Settings(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]
    recipes[1] = make_recipe("two", calls)
    results = run_recipes(recipes, Settings(), tmp_path)
    assert calls == ["one", "two"]
    assert [result.verdict for result in results] == ["agrees", "agrees"]


def test_killing_while_writing_leaves_no_half_item(tmp_path):
    def killed(data):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_recipes([make_recipe("one", draw=killed)], Settings(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    """Also of items that are not asked for, and with the result that a killed process had moved away in its old place."""
    run_recipes([make_recipe("one"), make_recipe("two")], Settings(), tmp_path)
    for name in ("one", "two"):
        leftover = tmp_path / f".{name}.0123456789ab.partial"
        (leftover / "store").mkdir(parents=True)
        leftover.with_suffix(".lock").touch()
        (tmp_path / name).rename(leftover / "old")
    calls = []
    (result,) = run_recipes([make_recipe("one", calls)], Settings(), tmp_path)
    assert result.resumed
    assert not calls
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_a_picture_that_was_being_drawn_is_drawn_again(tmp_path):
    recipe = make_recipe("one")
    run_recipes([recipe], Settings(), tmp_path)
    (tmp_path / "one" / "figure.svg").write_text("<svg")  # killed here: the marker does not name it
    run_recipes([recipe], Settings(), tmp_path, formats=("svg",))
    assert "</svg>" in (tmp_path / "one" / "figure.svg").read_text(encoding="utf-8")


def test_a_damaged_marker_means_computing_again(tmp_path):
    calls = []
    recipe = make_recipe("one", calls)
    run_recipes([recipe], Settings(), tmp_path)
    (tmp_path / "one" / "result.json").write_text("{")
    run_recipes([recipe], Settings(), tmp_path)
    assert len(calls) == 2


def test_one_failing_item_does_not_stop_the_others(tmp_path):
    def refused(parameters, settings, report):
        raise UnsupportedError("engine='cuda' has no hardmax; use engine='cpu'")

    def broken(parameters, settings, report):
        raise ZeroDivisionError("oops")

    recipes = [make_recipe("one", measure=refused), make_recipe("two", measure=broken), make_recipe("three")]
    results = run_recipes(recipes, Settings(), tmp_path)
    assert [result.verdict for result in results] == ["failed", "failed", "agrees"]
    assert results[0].error == "engine='cuda' has no hardmax; use engine='cpu'"
    assert results[1].error == "ZeroDivisionError: oops"
    page = write_report(results, tmp_path, "", find_papers("2411.04990")[0]).read_text()
    assert page.count("Traceback (most recent call last)") == 2
    assert "in broken\n" in page  # the place in the recipe, not only what it said
    assert not (tmp_path / "two").exists()
    with StringIO() as log:
        with terminal(Console(file=log, width=200), show=False) as watch:
            watch.ended(results[1], 2, 3)
        assert 'raise ZeroDivisionError("oops")' in log.getvalue()


def test_a_full_disk_is_told_and_keeps_finished_items(tmp_path, monkeypatch):
    recipes = [make_recipe("one"), make_recipe("two")]
    run_recipes(recipes[:1], Settings(), tmp_path)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "write_data", full)
    with pytest.raises(StoreError, match=r"is full; finished items are kept: free some space") as caught:
        run_recipes(recipes, Settings(), tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]


def test_an_unwritable_folder_is_told_before_work(tmp_path):
    calls = []
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file, not a folder"):
        run_recipes([make_recipe("one", calls)], Settings(), tmp_path / "file")
    with pytest.raises(StoreError, match="choose another folder with --out"):
        run_recipes([make_recipe("one", calls)], Settings(), tmp_path / "file" / "below")
    assert calls == []


def test_wrong_names_get_suggestions():
    recipes = [make_recipe("figure-3"), make_recipe("lemma-5.1")]
    with pytest.raises(InvalidInputError, match=r"did you mean figure-3.*--list"):
        choose(["figur-3"], recipes)
    assert [recipe.name for recipe in choose(["Figure 3"], recipes)] == ["figure-3"]
    assert [recipe.name for recipe in choose([], recipes)] == ["figure-3", "lemma-5.1"]


def test_wrong_formats_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="png, pdf, svg"):
        run_recipes([make_recipe()], Settings(), tmp_path, ("jpeg",))


@pytest.mark.parametrize("changes", [{"seed": -1}, {"members": 1}, {"engine": "abacus"}])
def test_wrong_settings_are_refused(changes):
    with pytest.raises(InvalidInputError):
        Settings(**changes)


def test_the_watch_sees_every_item(tmp_path):
    seen = []

    def started(recipe, number, total):
        seen.append((recipe.name, number, total))
        return lambda fraction: seen.append(fraction)

    watch = Watch(started, lambda result, number, total: seen.append(result.verdict))
    run_recipes([make_recipe("one")], Settings(), tmp_path, watch=watch)
    assert seen == [("one", 1, 1), 0.5, 1.0, "agrees"]


def test_overall_verdict():
    assert overall([finding("agrees"), finding("agrees")]) == "agrees"
    assert overall([finding("agrees"), finding("disagrees")]) == "agrees under a condition"
    assert overall([finding("agrees"), finding("agrees under a condition")]) == "agrees under a condition"
    guess = Finding("a guess", "wrong", "by eye", "disagrees", ours=True)
    assert overall([finding("agrees"), guess]) == "agrees"
    assert overall([finding("not available"), guess]) == "disagrees"
    assert overall([finding("disagrees")]) == "disagrees"
    assert overall([finding("agrees"), finding("not available")]) == "agrees"
    assert overall([finding("not available")]) == "not available"


def test_the_report_is_one_page_with_everything(tmp_path):
    def refused(parameters, settings, report):
        raise UnsupportedError("no such engine")

    recipes = [make_recipe("one"), make_recipe("two", measure=refused, origin="beyond")]
    results = run_recipes(recipes, Settings(), tmp_path)
    page = write_report(results, tmp_path, "metastable reproduce").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert "<script" not in page
    assert 'src="http' not in page
    assert 'name="viewport"' in page
    assert "1 of 1 &lt;b&gt;" in page  # measured text is escaped
    assert "paper says" in page
    assert "no such engine" in page
    assert "metastable reproduce one --seed 0" in page
    assert 'href="#one"' in page
    assert 'id="one"' in page


def test_the_catalogue_holds_every_item_of_the_paper():
    names = [recipe.name for recipe in catalogue()]
    wanted = {f"figure-{k}" for k in range(1, 7)} | {
        "table-1",
        "theorem-4.1",
        "theorem-5.2",
        "conjecture-1",
        "conjecture-2",
    }
    wanted |= {"lemma-3.1", "lemma-5.1", "lemma-5.3", "lemma-a.1", "lemma-c.1", "counts-scaling"}
    wanted |= {"cascade", "cascade-law", "cluster-law", "causal-vs-full", "table-1-random", "cloud-width"}
    assert set(names) == wanted
    assert len(names) == len(wanted)
    for recipe in catalogue():
        assert recipe.title
        assert recipe.statement
        json.dumps(dict(recipe.parameters))
        assert len(recipe.fingerprint(Settings())) == 16
