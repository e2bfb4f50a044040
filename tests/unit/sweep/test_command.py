"""`metastable sweep` as a user calls it."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from unittest import mock

import pytest
import xarray as xr

import metastable as ms
from metastable._words import counted
from metastable.cli import main
from metastable.cli.sweep import plot_settings
from metastable.sweep import open_results
from tests.unit.sweep.conftest import PATIENCE, ROOT, stored, wait_for, zarr_files

TEXT = """
name = "small"
tokens = 6
members = 3
seed = 1
[model]
dim = 2
[grid]
mask = ["causal", "full"]
beta = [1.0, 4.0, 9.0, 16.0]
[run]
times = [1.0, 2.0, 4.0, 8.0]
[observe.clusters]
radius = "0.5 / sqrt(beta)"
[observe.mean_cosine]
[plot]
variable = "mean_cosine"
"""


def command(*arguments, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "metastable", "sweep", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"},
        start_new_session=True,
    )


def call(*arguments, cwd, code=0):
    """`metastable sweep ARGUMENTS` in this process, which saves the time of starting one; returns what it printed."""
    printed = io.StringIO()
    settings = {"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        mock.patch.dict(os.environ, settings),
        mock.patch.object(sys, "argv", ["metastable", "sweep", *map(str, arguments)]),
    ):
        try:
            main()
            ended = 0
        except SystemExit as end:
            ended = end.code or 0
    assert ended == code, printed.getvalue()
    return printed.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small sweep, run."""
    place = tmp_path_factory.mktemp("command")
    (place / "small.toml").write_text(TEXT)
    process = command("small.toml", "--out", "small", "--workers", 0, "--calibrate", 0.1, cwd=place)
    text, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, text
    assert "small: 8 tasks (2 mask x 4 beta), 3 members each" in text
    assert "estimated from" in text
    assert "8 of 8 tasks done, 0 failed, 8 run now" in text
    return place


def test_results_are_those_of_ensembles(folder):
    found = xr.open_zarr(folder / "small" / "results.zarr", chunks=None).load()
    sweep = ms.Sweep.from_file(folder / "small.toml")
    task = sweep.task(6)
    assert task.where == "mask = full, beta = 9"
    stats = ms.ensemble(
        task.attention(), tokens=6, members=3, times=[1.0, 2.0, 4.0, 8.0], seed=task.seed, observe=task.observables()
    )
    for name in ("clusters", "mean_cosine"):
        assert found[name].dims == ("mask", "beta", "member", "time")
        assert (found[name].values[task.index] == stats[name].values).all()


def test_the_same_command_goes_on(folder):
    assert "8 of 8 tasks done, 0 failed, 0 run now" in call("small.toml", "--out", "small", cwd=folder)


def test_run_may_be_spelled_out(folder):
    assert "0 run now" in call("run", "small.toml", "-o", "small", cwd=folder)
    assert "0 run now" in call("--out", "small", "small.toml", cwd=folder)


def test_dry_run_runs_nothing(folder):
    text = call("small.toml", "--dry-run", "--calibrate", 0.1, "--workers", 4, cwd=folder)
    assert "8 tasks" in text
    assert "on 4 workers" in text
    assert "on disk" in text
    assert not (folder / "none").exists()


def test_status(folder):
    text = call("status", "small", cwd=folder)
    assert "8 of 8 (100.0 %)" in text
    assert text.count("slowest") == 5


def test_plot_of_a_single_time(tmp_path):
    text = (
        "tokens = 6\nmembers = 2\nseed = 0\n[model]\ndim = 2\n[grid]\nmask = ['causal', 'full']\nbeta = [1.0, 2.0]\n"
        "[run]\ntimes = [1.0]\n[observe.clusters]\nradius = 0.1\n"
    )
    (tmp_path / "one.toml").write_text(text)
    assert "short enough to run here" in call("one.toml", "--out", "one", cwd=tmp_path)
    call("plot", "one", cwd=tmp_path)
    assert (tmp_path / "one" / "clusters.png").stat().st_size > 5000
    with mock.patch("metastable.figures.style.save", return_value=[]) as saved:
        call("plot", "one", "-o", "one.svg", cwd=tmp_path)
    assert saved.call_args.args[0].get_suptitle() == "$t$ = 1, $n = 6$, $d = 2$; radius = 0.1"


def heading(folder, *options):
    """What stands above the picture that `metastable sweep plot` makes."""
    with mock.patch("metastable.figures.style.save", return_value=[]) as saved:
        call("plot", folder.name, *options, cwd=folder.parent)
    return " ".join(saved.call_args.args[0].get_suptitle().split())


@pytest.mark.parametrize(
    ("start", "grid", "said"),
    [
        ("'uniform'", "beta = [4.0]", r"$n = 6$, $d = 2$, causal; radius = 0.25 (default)"),
        (
            "{kind = 'von_mises_fisher', concentration = 'beta'}",
            "beta = [4.0]",
            "; start = von_mises_fisher(concentration = beta);",
        ),
        (
            "'tests.unit.sweep.toy:cap'",
            "beta = [4.0, 100.0]",
            "; start = tests.unit.sweep.toy:cap; radius = 0.05 to 0.25 (default)",
        ),
    ],
)
def test_the_heading_names_starts_and_default_lengths(tmp_path, start, grid, said):
    """An own start was not named, nor a radius that nobody had given (pictures of ensembles have it)."""
    text = f"tokens = 6\nmembers = 2\nseed = 0\nstart = {start}\n[model]\ndim = 2\n[grid]\n{grid}\n"
    (tmp_path / "one.toml").write_text(f"{text}[run]\ntimes = [1.0, 2.0]\n[observe.clusters]\n")
    call("one.toml", "--out", "one", "--workers", 0, "--calibrate", 0, cwd=tmp_path)
    assert said in heading(tmp_path / "one")


def test_plot(folder):
    assert call("plot", "small", cwd=folder).strip() == str((folder / "small" / "mean_cosine.png").relative_to(folder))
    assert (folder / "small" / "mean_cosine.png").stat().st_size > 5000
    call(
        "plot",
        "small",
        "-v",
        "clusters",
        "--x",
        "beta",
        "--kind",
        "curves",
        "--at",
        "time=2",
        "-o",
        "a.svg",
        cwd=folder,
    )
    assert "<svg" in (folder / "a.svg").read_text()[:1000]


def test_the_command_line_has_the_last_word_on_an_axis(tmp_path):
    """`--x time` with `at = {time = ...}` in the file ended with "'time' is no axis of these results"."""
    text = TEXT.replace('variable = "mean_cosine"', 'variable = "clusters"\nx = "beta"\nat = {time = 2.0}')
    (tmp_path / "small.toml").write_text(text)
    call("small.toml", "--out", "small", "--workers", "0", "-q", cwd=tmp_path)
    call("plot", "small", "--x", "time", "--kind", "curves", "-o", "curves.svg", cwd=tmp_path)
    call("plot", "small", "--at", "beta=4", "-o", "fixed.svg", cwd=tmp_path)
    assert (tmp_path / "curves.svg").exists()
    assert (tmp_path / "fixed.svg").exists()
    said = call("plot", "small", "--x", "time", "--at", "time=2", cwd=tmp_path, code=2)
    assert "'time' is an axis of the picture and fixed by at={...}, too" in " ".join(said.split())


def test_settings_of_a_plot():
    file = {"variable": "clusters", "x": "beta", "at": {"time": 2.0}, "label": "clusters at t = 2", "log": True}
    assert plot_settings(file, {}) == file
    assert plot_settings(file, {"x": "time"}) == {"variable": "clusters", "x": "time", "at": {}, "log": True}
    both = {"time": 2.0, "mask": "full"}
    assert plot_settings(file, {"at": {"mask": "full"}}) == {**file, "at": both}
    assert plot_settings(file, {"at": {"beta": "4"}})["at"] == {"time": 2.0, "beta": "4"}
    assert "x" not in plot_settings(file, {"at": {"beta": "4"}})
    assert "x" not in plot_settings(file, {"y": "beta"})
    assert plot_settings(file, {"variable": "mean_cosine"}) == {
        "variable": "mean_cosine",
        "x": "beta",
        "at": {"time": 2.0},
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["small.toml"], "--out DIR"),
        (["absent.toml", "--out", "x"], "cannot be read"),
        (["small.toml", "--out", "small.toml", "--dry-run"], "is a file and was left untouched"),
        (["small.toml", "--out", "x", "--cluster", "cloud"], "cluster must be one of"),
        (["small.toml", "--out", "x", "--cluster", "slurm"], "'sbatch', which this machine does not have"),
        (["small.toml", "--out", "x", "--cluster-option", "cores=3"], "belongs to --cluster"),
        (["small.toml", "--out", "x", "--workers", "2", "--scheduler", "tcp://x"], "has its own workers"),
        (["status", "absent"], "holds no sweep"),
        (["stauts", "small"], "neither a file nor a command of 'metastable sweep'; did you mean 'status'?"),
        (["absent", "--out", "x"], "the commands are run, status, plot"),
        (["plot", "small", "-v", "temperature"], "no result called 'temperature'; there are: accepted, clusters"),
        (["plot", "small", "--at", "beta"], "NAME=VALUE"),
        (["plot", "small", "--x", "beta", "--y", "beta"], "two different axes"),
        (["plot", "small", "-o", "a.doc"], "must end in"),
    ],
)
def test_mistakes(folder, arguments, message):
    text = call(*arguments, cwd=folder, code=2)
    assert message in " ".join(text.split())
    assert not (folder / "x").exists()


def own_observable(folder, body):
    """A small sweep with an observable of one's own, in a module beside it."""
    folder.joinpath("mine.py").write_text(f"import os\ndef it(x):\n    {body}\n")
    text = TEXT.replace("[observe.mean_cosine]", "[observe.it]\nkind = 'mine:it'").replace("mean_cosine", "it")
    folder.joinpath("own.toml").write_text(text)
    return command("own.toml", "--dry-run", cwd=folder)


def test_a_trial_that_kills_its_process_takes_nobody_with_it(tmp_path):
    """The whole command died of the estimate."""
    process = own_observable(tmp_path, "os._exit(9)")
    text, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, text
    assert "no estimate: a trial ended its process" in " ".join(text.split())


def test_who_knows_better_than_the_trials_is_told_how_to_go_on(tmp_path):
    process = own_observable(tmp_path, "return [1, 2][x.size]")
    text, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, text
    said = " ".join(text.split())
    assert re.search(
        r"all \d trials failed; the first: a trial at mask = causal, beta = 1 failed", said
    )  # as many as time allows
    assert "without trials: --calibrate 0" in said


@pytest.mark.skipif(sys.platform == "win32", reason="there are no groups of processes to send Ctrl-C to there")
def test_ctrl_c_and_go_on(folder):
    """Interrupted on two workers, finished in the plain loop: the same bytes as one undisturbed run."""
    text = TEXT
    for old, new in (
        ("[grid]", "[grid]\ndraw = {range = [0, 14], step = 1}"),
        ("tokens = 6", "tokens = 50"),
        ("members = 3", "members = 16"),
        ("8.0]", "200.0]"),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "long.toml").write_text(text)
    process = command("long.toml", "--out", "long", "--workers", 2, "--calibrate", 0, cwd=folder)
    wait_for(lambda: stored(folder / "long") >= 2)
    os.killpg(process.pid, signal.SIGINT)  # to the workers too, as a terminal does
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "run the same command to go on" in output
    assert "run the same command again" in call("status", "long", cwd=folder)
    call("long.toml", "--out", "long", "--workers", 0, cwd=folder)
    call("long.toml", "--out", "whole", "--workers", 0, "--calibrate", 0, cwd=folder)
    assert zarr_files(folder / "long") == zarr_files(folder / "whole")


def test_members_that_stop_early_are_counted(folder):
    (folder / "few.toml").write_text(TEXT.replace("[run]", "[run]\nmax_steps = 18"))
    text = call("few.toml", "--out", "few", "--workers", 0, "--calibrate", 0, cwd=folder, code=1)
    found = xr.open_zarr(folder / "few" / "results.zarr", chunks=None)
    missing = found.mean_cosine.isnull().any("time").sum("member")
    done = found.task_status.values == 1
    early = int(found.unfinished.where(found.task_status == 1).sum())
    assert early > 0
    assert 0 < done.sum() < done.size
    assert (found.unfinished.values[done] == missing.values[done]).all()
    assert f"{counted(early, 'member')} stopped early ({early} max_steps)" in text
    assert "raise max_steps in [run]" in text
    text = " ".join(call("status", "few", "--failures", cwd=folder).split())
    assert {item.attrs["unfinished"] for item in open_results(folder / "few").data_vars.values()} == {early}
    assert f"unfinished {counted(early, 'member')}" in text
    assert "none of the 3 members reached t = 8 (3 max_steps)" in text


def test_ready_made_sweeps_are_sound():
    files = sorted((ROOT / "examples" / "sweeps").glob("*.toml"))
    assert [path.stem for path in files] == ["atlas", "clusters", "law", "lifetime", "norms"]
    for path in files:
        sweep = ms.Sweep.from_file(path)
        sweep.check()
        assert sweep.name
        assert ms.Sweep.from_toml(sweep.to_toml()).identity == sweep.identity


def test_help():
    text = call("--help", cwd=ROOT)
    for word in ("metastable sweep FILE --out DIR", "status", "plot"):
        assert word in text
