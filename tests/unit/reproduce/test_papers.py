"""Papers are folders: found by themselves, chosen by number, loaded from outside; each with a report, and one page over all."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metastable.cli.app import build
from metastable.errors import InvalidInputError
from metastable.reproduce import (
    Finding,
    Paper,
    Settings,
    all_papers,
    catalogue,
    find_papers,
    load_paper,
    recipe,
    with_earlier,
    write_index,
)
from metastable.reproduce.own_papers import remembered
from metastable.reproduce.runner import run_papers, select
from tests.unit.reproduce.test_runner import finding, make_recipe

DOCS = Path(__file__).parents[3] / "docs" / "how-to" / "reproduce.md"


def make_paper(number="own", names=("one", "two"), calls=None, **changes):
    recipes = tuple(make_recipe(name, calls, **changes) for name in names)
    return Paper(number, f"Title of {number}", "A. Author", "It says something.", recipes)


def call(*arguments):
    return CliRunner().invoke(build(["reproduce"]), ["reproduce", *arguments])


def documented_example():
    """The first Python block below the heading of the docs that says how a paper is added."""
    text = DOCS.read_text(encoding="utf-8").split("## Add a paper")[1]
    return text.split("```python\n")[1].split("```")[0]


def test_papers_of_the_package_are_found_by_themselves():
    folders = sorted(
        path.name for path in Path(load_paper.__code__.co_filename).parent.joinpath("papers").iterdir() if path.is_dir()
    )
    numbers = sorted("p" + paper.number.replace(".", "_") for paper in all_papers())
    assert numbers == [name for name in folders if name != "__pycache__"]
    assert all_papers()[0].number == "2411.04990"
    for paper in all_papers():
        assert paper.link.endswith(paper.number)
        for item in paper.recipes:
            json.dumps(dict(item.parameters))
            assert set(item.quick) <= set(item.parameters), f"{paper.number} {item.name}"
            assert item.seconds is not None, f"{paper.number} {item.name} does not say how long it takes"


def test_a_paper_is_chosen_by_its_number():
    assert [paper.number for paper in find_papers("arXiv:2411.04990")] == ["2411.04990"]
    assert find_papers("all") == list(all_papers())
    with pytest.raises(InvalidInputError, match=r"did you mean 2411.04990.*--from"):
        find_papers("2411.0499")
    with pytest.raises(InvalidInputError, match="no paper ''"):
        find_papers("")


def test_names_are_looked_for_in_all_chosen_papers():
    papers = [make_paper("a", ("one", "two")), make_paper("b", ("two", "three"))]
    chosen = select(["two"], papers)
    assert [(paper.number, [item.name for item in items]) for paper, items in chosen.items()] == [
        ("a", ["two"]),
        ("b", ["two"]),
    ]
    assert [paper.number for paper in select(["three"], papers)] == ["b"]
    with pytest.raises(InvalidInputError, match="no item 'four'"):
        select(["four"], papers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": "../up"}, "number must be"),
        ({"number": "all"}, "number must be"),
        ({"recipes": ()}, "at least one"),
        ({"recipes": (make_recipe("a"), make_recipe("a"))}, "a name of its own"),
        ({"recipes": (make_recipe("a/b"),)}, "become folders"),
        ({"picture": "b"}, "picture must be"),
        ({"title": 3}, "title must be text"),
    ],
)
def test_wrong_papers_are_refused(changes, message):
    fields = {"number": "a", "title": "t", "citation": "c", "summary": "s", "recipes": (make_recipe("a"),)}
    with pytest.raises(InvalidInputError, match=message):
        Paper(**{**fields, **changes})


def test_results_of_the_first_paper_stay_where_they_were(monkeypatch, tmp_path):
    """Folders of version 0.3 go on: the same place below `out`, and the same fingerprints (written down before the move)."""
    monkeypatch.setattr(recipe, "__version__", "0.0")
    found = {item.name: item.fingerprint(Settings(seed=3)) for item in catalogue()}
    assert found["figure-3"] == "3d7161cb36f2c529"
    assert found["table-1"] == "ea15fe918bf0e8f8"
    assert found["cloud-width"] == "3aef09deaa17c63e"
    assert all_papers()[0].folder(tmp_path) == tmp_path
    assert catalogue()[0].command(Settings()) == "metastable reproduce figure-1 --seed 0"


def test_every_paper_has_its_report_and_the_index_covers_all(tmp_path):
    calls = []
    first = make_paper("first", ("one",), calls)
    second = make_paper("second", ("two",), calls, judge=lambda data: [finding("disagrees", "3 of 4 <i>")])
    outcome = run_papers(select([], [first, second]), Settings(), tmp_path, "metastable reproduce --paper all")
    assert [path.relative_to(tmp_path).as_posix() for path in outcome.reports] == [
        "first/report.html",
        "second/report.html",
    ]
    assert "Title of second, recomputed" in outcome.reports[1].read_text()
    assert '<a href="../index.html">All papers</a>' in outcome.reports[0].read_text()
    assert outcome.index == tmp_path / "index.html"
    page = outcome.index.read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "<script" not in page
    assert 'href="second/report.html#two"' in page
    assert '<a href="#disagrees">What we could not confirm (1)</a>' in page
    assert "3 of 4 &lt;i&gt;" in page.split('<section id="disagrees">')[1]
    again = run_papers(select([], [first]), Settings(), tmp_path, "again", known=[second])
    assert calls == ["one", "two"]
    assert again.index is not None
    assert "Title of second" in again.index.read_text()


def test_what_was_changed_after_a_result_and_whose_claim_it_is_are_said(tmp_path):
    ours = Finding("a guess of ours", "as expected", "by eye", "agrees", ours=True)
    first = make_paper("first", ("one",), judge=lambda data: [finding(), ours], hindsight="The step was 1e-4 first")
    outcome = run_papers(select([], [first, make_paper("second")]), Settings(), tmp_path, "")
    report = outcome.reports[0].read_text()
    assert "Changed after a result was seen.</b> The step was 10<sup>−4</sup> first" in report
    assert report.count("<dt>paper says</dt>") == 1
    assert report.count("<dt>our claim</dt>") == 1
    assert "Changed after" not in outcome.reports[1].read_text()
    page = outcome.index.read_text()
    assert (
        "<b>Of 3 statements of theirs that were tested 3 hold.</b> Of 1 claim of our own that was tested 1 holds."
        in page
    )
    assert "In 1 item something was changed after a result had been seen" in page
    assert 'href="first/report.html#one">first · one</a>' in page
    again = run_papers(select([], [first]), Settings(), tmp_path, "")
    assert again.results[first][0].hindsight == "The step was 1e-4 first"
    with pytest.raises(InvalidInputError, match="ours must be"):
        Finding("a", "b", "c", "agrees", ours="yes")


def test_statements_that_could_not_be_tested_are_not_counted_as_tested(tmp_path):
    first = make_paper(
        "first", ("one",), judge=lambda data: [finding("not available"), finding("disagrees"), finding()]
    )
    page = run_papers(select([], [first, make_paper("second")]), Settings(), tmp_path, "").index.read_text()
    assert "Of 4 statements of theirs that were tested 3 hold and 1 could not be confirmed." in page
    assert 'not confirmed: <a href="first/report.html#one">' in page
    minute = page.split('<div class="minute">')[1].split("<h2 class=")[0]
    assert "1 of 2 statements tested holds, 1 not confirmed" in minute
    assert "all 2 statements tested hold" in minute
    unsure, undecided = minute.split("What we could not confirm")[1].split("Not decided")
    assert unsure.count("<li>") == undecided.count("<li>") == 1
    assert "Found: 1 of 1 &lt;b&gt;" in unsure


def test_what_was_computed_is_not_called_simulated(tmp_path):
    formula = Finding("a formula", "equal", "exact", "agrees", computed=True)
    guess = Finding("a guess", "wrong", "by eye", "disagrees", ours=True)
    first = make_paper("first", ("one",), judge=lambda data: [finding(), formula, guess])
    outcome = run_papers(select([], [first, make_paper("second")]), Settings(), tmp_path, "")
    page, report = outcome.index.read_text(), outcome.reports[0].read_text()
    assert "4 lines by simulation or random draws, 1 by computation without one" in page
    assert report.count("<dt>we computed</dt>") == 1
    assert report.count("<dt>we measured</dt>") == 2
    assert "not confirmed: " not in page  # a guess of ours that fails is listed, and does not speak against the paper
    assert outcome.results[first][0].verdict == "agrees"
    with pytest.raises(InvalidInputError, match="computed must be"):
        Finding("a", "b", "c", "agrees", computed="yes")


def test_stored_results_are_summed_up_as_today(tmp_path):
    """A verdict and a hindsight that an earlier version wrote beside the same numbers are not kept."""
    mixed = make_paper(
        "first", ("one",), judge=lambda data: [finding(), finding("disagrees")], hindsight="two became ten"
    )
    run_papers(select([], [mixed]), Settings(), tmp_path, "")
    marker = tmp_path / "first" / "one" / "result.json"
    content = json.loads(marker.read_text())
    marker.write_text(json.dumps({**content, "verdict": "agrees", "hindsight": ""}))
    (again,) = run_papers(select([], [mixed]), Settings(), tmp_path, "").results[mixed]
    assert again.resumed
    assert (again.verdict, again.hindsight) == ("agrees under a condition", "two became ten")


def test_blas_is_told_before_numpy_is_loaded():
    """One thread for BLAS works only if nothing that the command imports first has loaded NumPy."""
    code = (
        "import os, sys; from metastable.cli import reproduce\n"
        "assert 'numpy' not in sys.modules\n"
        "reproduce.one_thread_for_blas(); import metastable.reproduce\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'], 'numpy' in sys.modules)"
    )
    free = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=free, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "True"]


def test_one_paper_alone_needs_no_index(tmp_path):
    outcome = run_papers(select([], [make_paper()]), Settings(), tmp_path, "")
    assert outcome.index is None
    assert "index.html" not in outcome.reports[0].read_text()  # no link into nothing
    assert not (tmp_path / "index.html").exists()


def test_an_index_over_nothing_that_differs_says_so(tmp_path):
    papers = [make_paper("a"), make_paper("b")]
    outcome = run_papers(select([], papers), Settings(), tmp_path, "")
    assert "every statement held" in outcome.index.read_text()
    with pytest.raises(InvalidInputError, match="found must map"):
        write_index([1], tmp_path, "")


def test_ctrl_c_keeps_finished_papers(tmp_path):
    def killed(parameters, settings, report):
        raise KeyboardInterrupt

    calls = []
    first = make_paper("first", ("one",), calls)
    with pytest.raises(KeyboardInterrupt):
        run_papers(select([], [first, make_paper("second", ("two",), measure=killed)]), Settings(), tmp_path, "")
    assert (tmp_path / "first" / "report.html").is_file()
    run_papers(select([], [first, make_paper("second", ("two",), calls)]), Settings(), tmp_path, "")
    assert calls == ["one", "two"]


def test_the_documented_example_runs_as_it_stands(tmp_path, monkeypatch):
    """A folder of one's own: loaded, run from the command line, resumed, and computed again when its code changes."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my_paper"
    folder.mkdir()
    source = documented_example()
    (folder / "__init__.py").write_text(source)
    done = call("--from", "my_paper")
    assert done.exit_code == 0, done.output
    paper = load_paper(folder)
    (result,) = with_earlier([], load_paper("my_paper").recipes, Settings(), paper.folder("out"))
    assert result.verdict == "agrees"
    assert result.command == f"metastable reproduce --from my_paper {result.name} --seed 0"
    assert (tmp_path / "out" / paper.number / "report.html").is_file()
    assert "done before" in call("--from", "my_paper").output
    (folder / "__init__.py").write_text(source + "\n# changed\n")
    assert "done before" not in call("--from", "my_paper").output


def test_a_paper_of_ones_own_stays_on_the_index(tmp_path, monkeypatch):
    """A later call without --from shows what is stored of it, runs none of its code, and says how to compute it again."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my_paper"
    folder.mkdir()
    (folder / "__init__.py").write_text(documented_example())
    assert call("--from", "my_paper", "--members", "4").exit_code == 0
    shutil.rmtree(folder)
    other = make_paper("other")
    page = run_papers(select([], [other]), Settings(members=4), "out", "").index.read_text()
    assert 'href="my-paper/report.html#few-clusters"' in page
    assert "your own, as of the last call with --from my_paper" in page
    again = run_papers(select([], [other]), Settings(members=4, seed=1), "out", "")
    assert again.index is None  # nothing of it was computed with this seed
    asked = call("--paper", "my-paper", "--members", "4")
    assert "its code is asked for each time: --from my_paper" in str(asked.exception)
    (tmp_path / "out" / "my-paper" / "paper.json").write_text("{}")
    assert remembered("out") == []


def test_a_folder_may_have_several_files(tmp_path):
    (tmp_path / "__init__.py").write_text(documented_example().replace("PAPER = ", "from .more import OTHER\nPAPER = "))
    (tmp_path / "more.py").write_text("OTHER = 1\n")
    assert load_paper(tmp_path).number


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1/0", "ZeroDivisionError"),
        ("x = 1", "must define PAPER"),
        ("PAPER = 3", "what it has is int"),
        (None, "there is no"),
    ],
)
def test_folders_that_are_no_papers_are_explained(tmp_path, content, message):
    if content is not None:
        (tmp_path / "__init__.py").write_text(content)
    with pytest.raises(InvalidInputError, match=message):
        load_paper(tmp_path)


def test_a_number_of_the_package_is_not_taken_twice(tmp_path):
    source = Path(load_paper.__code__.co_filename).parent / "papers" / "p2411_04990"
    shutil.copytree(source, tmp_path / "copy")
    with pytest.raises(InvalidInputError, match="give PAPER another number"):
        load_paper(tmp_path / "copy")


def test_the_list_shows_papers_items_and_times():
    done = call("--list")
    assert done.exit_code == 0
    for paper in all_papers():
        assert paper.number in done.output
    assert "figure-3" in done.output
    assert "about" in done.output
    assert " s" in done.output
