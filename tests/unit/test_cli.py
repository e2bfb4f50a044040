"""The command line, as a user calls it."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import metastable as ms


def call(*arguments: str, cwd=None, code: int = 0) -> str:
    """Run `metastable ARGUMENTS` in a process of its own; returns what it printed."""
    result = subprocess.run(
        [sys.executable, "-m", "metastable", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "140", "NO_COLOR": "1", "TERM": "dumb"},
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_overview_names_every_command():
    text = call("--help")
    for name in ("simulate", "predict", "reproduce", "sweep", "control", "spectrum", "geometry", "explore", "bench"):
        assert name in text


def test_help_shows_tables_of_files():
    text = call("simulate", "--help")
    for table in ("[model]", "[start]", "[run]"):
        assert text.count(table) >= 2
    assert "[plot]" in call("sweep", "plot", "--help")


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc"), reason="a folder in which not even root may write")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--plot", "x.foo"], "must end in .png, .pdf, .svg"),
        pytest.param(["--out", "/proc/x.zarr"], "not writable", marks=needs_proc),
        (["--mask", "windw:3"], "window:WIDTH"),
        (["--start", "tokens.txt"], ".npy or a .csv"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(flags, complaint, tmp_path):
    (tmp_path / "tokens.txt").write_text("1 0\n")
    tokens = [] if "--start" in flags else ["-n", "5"]
    text = call("simulate", *tokens, "-b", "4", "--until", "1e9", *flags, cwd=tmp_path, code=2)
    assert complaint in text
    assert "Traceback" not in text


def test_version():
    assert call("--version").strip() == f"metastable {ms.__version__}"


def test_overview_imports_nothing_heavy():
    """`metastable --help` must answer at once: no NumPy, Numba, xarray or matplotlib behind it."""
    script = (
        "import sys; sys.argv = ['metastable', '--help']\n"
        "from metastable.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'numba', 'scipy', 'xarray', 'matplotlib', 'torch', 'dask'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_import_is_light():
    script = "import sys, metastable; assert not {'numba', 'xarray', 'matplotlib', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_help_teaches():
    text = call("simulate", "--help")
    for word in ("Examples", "--until", "diag:1,0.5,-1", "run.toml", "window:W"):
        assert word in text


def test_simulate_from_flags(tmp_path):
    text = call(
        "simulate", "-n", "12", "-d", "2", "-b", "16", "--until", "5", "--seed", "3", "-o", "run.zarr", cwd=tmp_path
    )
    assert "12 on the unit sphere of R^2" in text
    run = ms.load(tmp_path / "run.zarr")
    assert run.status == "success"
    assert run.model == ms.Attention(dim=2, beta=16.0)
    np.testing.assert_allclose(run.start, ms.sphere.uniform(12, dim=2, seed=3), atol=1e-15)


def test_simulate_from_a_file_with_flags_over_it(tmp_path):
    (tmp_path / "run.toml").write_text(
        '[model]\ndim = 3\nbeta = 4.0\nmask = {kind = "window", width = 3}\n'
        '[start]\ntokens = 8\nseed = 1\n[run]\ntimes = [1.0, 2.0]\nout = "run.zarr"\n'
    )
    call("simulate", "run.toml", "--beta", "5", "--value", "diag:1,0.5,-1", "--engine", "reference", cwd=tmp_path)
    run = ms.load(tmp_path / "run.zarr")
    assert run.model == ms.Attention(dim=3, beta=5.0, mask=ms.Window(3), value=np.diag([1, 0.5, -1]))
    assert list(run.times) == [1.0, 2.0]
    assert run.engine == "reference"


def test_simulate_from_saved_tokens_and_matrices(tmp_path):
    x = ms.sphere.uniform(5, dim=3, seed=0)
    np.save(tmp_path / "x.npy", x)
    np.savetxt(tmp_path / "x.csv", x, delimiter=",")
    np.save(tmp_path / "V.npy", np.diag([2.0, 1.0, 0.0]))
    for name in ("x.npy", "x.csv"):
        call(
            *f"simulate --start {name} --beta 2 --value V.npy --until 1 --out {name}.zarr".split(), cwd=tmp_path
        )  # they say the dimension
    first, second = ms.load(tmp_path / "x.npy.zarr"), ms.load(tmp_path / "x.csv.zarr")
    np.testing.assert_allclose(first.final, second.final, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("--beta 1 --until 1", "--tokens"),
        ("--tokens 5 --until 1", "--beta"),
        ("--tokens 5 --beta 1", "until"),
        ("--tokens 5 --beta nan --until 1", "beta"),
        ("--tokens 5 --beta 1 --until soon", "--until"),
        ("--tokens 5 --beta 1 --until 1 --mask window", "window:WIDTH"),
        ("--tokens 5 --beta 1 --until 1 --mask window:x", "numbers"),
        ("--tokens 5 --beta 1 --until 1 --mask tree", "tree"),
        ("--tokens 5 --beta 1 --until 1 --value diag:1,x", "diagonal"),
        ("--tokens 5 --beta 1 --until 1 --value nothing.npy", "cannot be read"),
        ("--tokens 5 --beta 1 --until 1 --value diag:1,0.5,-1", "give --dim 3"),
        ("--tokens 5 --beta 1 --times 3,2", "increase"),
        ("--tokens 5 --beta 1 --times log:1,2", "log:FIRST"),
        ("--tokens 5 --beta 1 --until 1 --engine gpu", "cuda"),
        ("--tokens 5 --beta 1 --until 1 --out no/where.zarr", "does not exist"),
        ("--tokens 5 --beta 1 --until 1 --plot no/where.png", "does not exist"),
        ("nothing.toml", "cannot be read"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, word, tmp_path):
    text = call("simulate", *arguments.split(), cwd=tmp_path, code=2)
    assert text.startswith("error:")
    assert word in text
    assert "Traceback" not in text
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("flag", ["--start", "--value"])
def test_a_file_of_another_kind_is_named_once(flag, tmp_path):
    """It was "not an array of numbers: --start: a.png must be a .npy or a .csv file"."""
    (tmp_path / "a.png").touch()
    text = call("simulate", *f"--beta 1 --until 1 {flag} a.png".split(), cwd=tmp_path, code=2)
    assert text.split() == f"error: {flag}: a.png must be a .npy or a .csv file".split()


def test_an_existing_store_is_refused_before_work_starts(tmp_path):
    flags = "simulate -n 4 -b 1 --until 1 --engine reference -o run.zarr"
    call(*flags.split(), cwd=tmp_path)
    assert "overwrite" in call(*flags.split(), cwd=tmp_path, code=2)
    call(*flags.split(), "--overwrite", cwd=tmp_path)


def test_a_run_that_stopped_early_is_kept_and_says_so(tmp_path):
    flags = ["--times", "1,100", "--method", "tsit5", "--max-steps", "5", "--out", "run.zarr"]
    text = call("simulate", "-n", "8", "-b", "4", *flags, cwd=tmp_path, code=3)
    assert "raise max_steps" in text
    assert ms.load(tmp_path / "run.zarr").status == "max_steps"


def test_unknown_keys_of_a_file_are_named(tmp_path):
    (tmp_path / "a.toml").write_text("[model]\nbeta = 1.0\n[start]\ntokens = 3\n[run]\nuntill = 3\n")
    assert "untill" in call("simulate", "a.toml", cwd=tmp_path, code=2)
    (tmp_path / "b.toml").write_text("[modell]\nbeta = 1.0\n")
    assert "modell" in call("simulate", "b.toml", cwd=tmp_path, code=2)


def test_extend_in_place_and_beside(tmp_path):
    call(
        *[
            "simulate",
            "-n",
            "6",
            "-b",
            "4",
            "--norm",
            "pre_ln",
            "--until",
            "5",
            "--engine",
            "reference",
            "-o",
            "run.zarr",
        ],
        cwd=tmp_path,
    )
    short = ms.load(tmp_path / "run.zarr")
    assert "t = 20" in call(*["extend", "run.zarr", "--until", "20", "-o", "longer.zarr", "-q"], cwd=tmp_path)
    assert ms.load(tmp_path / "run.zarr").end == 5.0
    assert "overwrite" in call(*["extend", "run.zarr", "--until", "30", "-o", "longer.zarr"], cwd=tmp_path, code=2)
    call(*["extend", "run.zarr", "--until", "20"], cwd=tmp_path)
    whole = ms.simulate(short.model, short.start, until=20.0, engine="reference")
    for name in ("run.zarr", "longer.zarr"):
        further = ms.load(tmp_path / name)
        assert further.end == 20.0
        np.testing.assert_allclose(further.final, whole.final, atol=1e-10)
        np.testing.assert_allclose(further.radius[-1], whole.radius[-1], rtol=1e-10)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ("--until 3", "later"),
        ("--until soon", "number or 'settled'"),
        ("", "how far"),
        ("--times 6,7", "dense output"),
        ("--until 9 --method layers", "method"),
        ("--until 1e6 --method rodas", "PreLN"),
    ],
)
def test_a_run_that_cannot_be_extended_stays_as_it_is(flags, word, tmp_path):
    run = ms.simulate(ms.Attention(dim=2, beta=4.0, norm=ms.PreLN()), ms.sphere.uniform(4, dim=2, seed=0), until=5.0)
    run.save(tmp_path / "run.zarr")
    assert word in call("extend", "run.zarr", *flags.split(), cwd=tmp_path, code=2)
    np.testing.assert_array_equal(ms.load(tmp_path / "run.zarr").states, run.states)


def test_extending_what_stops_early_keeps_what_was_reached(tmp_path):
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(4, dim=2, seed=0), until=5.0, engine="reference")
    run.save(tmp_path / "run.zarr")
    assert "raise max_steps" in call("extend", "run.zarr", "-t", "900", "--max-steps", "9", cwd=tmp_path, code=3)
    assert 5.0 < ms.load(tmp_path / "run.zarr").end < 900.0


def test_predict_shows_writes_and_draws_the_merges_of_a_stored_run(tmp_path):
    model = ms.Attention(dim=2, beta=16.0)
    run = ms.simulate(model, ms.sphere.uniform(40, dim=2, seed=0), until=50.0)
    run.save(tmp_path / "run.zarr")
    tree = run.predict_merges()
    text = call("predict", "run.zarr", cwd=tmp_path)
    assert f"{tree.start_labels.max() + 1} clusters at t = 50" in text
    assert "1 cluster left at the end of time" in text
    for when in tree.time:
        assert f"{when:.6g}" in text
    assert len(tree) > 1
    flags = ["--at", "30", "--radius", "0.1", "--csv", "merges.csv", "--plot", "tree.svg", "--json"]
    found = json.loads(call("predict", "run.zarr", *flags, cwd=tmp_path))
    earlier = run.predict_merges(30.0, radius=0.1)
    assert (found["t0"], found["radius"], found["left"], found["balanced"]) == (30.0, 0.1, 1, False)
    assert found["until"] is None
    assert found["clusters"] == earlier.start_labels.max() + 1
    for name, column in earlier.to_columns().items():
        assert [row[name] for row in found["merges"]] == column.tolist()
    rows = list(csv.DictReader((tmp_path / "merges.csv").open()))
    assert [float(row["time"]) for row in rows] == earlier.time.tolist()
    assert [int(row["parent"]) for row in rows] == earlier.parent.tolist()
    assert "<svg" in (tmp_path / "tree.svg").read_text()


def test_predict_says_when_clusters_are_left_in_balance(tmp_path):
    run = ms.simulate(
        ms.Attention(dim=3, beta=4.0), np.diag([1.0, -1.0, 1.0])[[0, 0]] * [[1], [-1]], until=1.0, engine="reference"
    )
    run.save(tmp_path / "run.zarr")
    text = call("predict", "run.zarr", "--at", "0", cwd=tmp_path)
    assert "2 clusters left" in text
    assert "balance" in text


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ("--csv merges.txt", "must end in .csv"),
        ("--csv no/merges.csv", "does not exist"),
        ("--at 9", "outside the run"),
        ("", "PreLN"),
    ],
)
def test_what_cannot_be_predicted_is_refused(flags, word, tmp_path):
    norm = ms.PostLN() if flags else ms.PreLN()
    run = ms.simulate(ms.Attention(dim=2, beta=4.0, norm=norm), ms.sphere.uniform(4, dim=2, seed=0), until=5.0)
    run.save(tmp_path / "run.zarr")
    text = call("predict", "run.zarr", *flags.split(), cwd=tmp_path, code=2)
    assert word in text
    assert "Traceback" not in text


def test_control_teaches_and_finds_a_temperature(tmp_path):
    assert "metastable control temperature --clusters 5 --until 1e6" in call("control", "temperature", "--help")
    assert "later leader falls into an earlier one" in call("control", "schedule", "--help")
    arguments = ["-c", "3", "-t", "50", "-n", "30", "--accuracy", "0.2", "--plot", "tried.png"]
    text = call("control", "temperature", *arguments, cwd=tmp_path)
    assert "3 clusters of 30 tokens at t = 50" in text
    assert (tmp_path / "tried.png").exists()
    assert "at most 30 clusters" in call("control", "temperature", "-c", "90", "-t", "50", "-n", "30", code=2)
    assert "--beta 32" in call("control", "temperature", "-c", "3", "-t", "50", "--knob", "noise", code=2)
    assert "LOW,HIGH" in call("control", "temperature", "-c", "3", "-t", "50", "--between", "3", code=2)


def test_control_of_a_stored_run(tmp_path):
    call("simulate", "-n", "30", "-b", "12", "--until", "100", "--seed", "4", "-q", "--out", "run.zarr", cwd=tmp_path)
    text = call(
        "control", "schedule", "run.zarr", "--at", "1e12", "--out", "held.zarr", "--plot", "held.png", cwd=tmp_path
    )
    assert "no merge before t = 1e+12" in text
    assert (tmp_path / "held.png").exists()
    held = ms.load(tmp_path / "held.zarr")
    assert len(held.models) > 1
    assert "TOKEN,TOKEN" in call("control", "schedule", "run.zarr", "--at", "1e8", "--event", "x", cwd=tmp_path, code=2)
    assert "--no-verify" in call(
        "control", "schedule", "run.zarr", "--at", "1e8", "--no-verify", "--out", "x.zarr", cwd=tmp_path, code=2
    )
