"""Runs whose rest rounding hides: the status "unresolved" goes through everything that takes a status."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import metastable as ms
from metastable.cli.app import build
from metastable.errors import StoppedEarlyWarning
from metastable.explorer import outcome
from metastable.integrate.solution import MEMBER_STATUSES, STATUSES, Solution, Statistics, one_by_one, tally
from tests import implicit

ANTIPODES = np.array([[1.0, 0.0], [-1.0, 0.0], [0.6, 0.8]])
"""Tokens 1 and 2 stand opposite each other, token 3 falls to token 1."""
MODEL = ms.Attention(dim=2, beta=4.0)


@pytest.fixture(scope="module")
def run() -> ms.Run:
    with pytest.warns(StoppedEarlyWarning, match="rounding errors"):
        return ms.simulate(MODEL, ANTIPODES, until="settled", method="rodas")


def test_it_is_kept_with_the_run(run, tmp_path):
    assert run.status == "unresolved"
    run.save(tmp_path / "run.zarr")
    loaded = ms.load(tmp_path / "run.zarr")
    assert (loaded.status, loaded.message) == (run.status, run.message)
    assert "unresolved" in repr(loaded)
    loaded.plot()


def test_members_have_it():
    starts = np.stack([ANTIPODES, ms.sphere.from_angle([0.0, 1.0, 2.0])])
    _, statuses = implicit.solve_members(MODEL, starts, [1e6], settled=True)
    assert statuses == ["unresolved", "success"]

    def solve(start, number):
        return Solution(np.array([1.0]), start[None], STATUSES[number], Statistics())

    found = one_by_one(np.stack([ANTIPODES] * len(STATUSES)), 1, lambda done: None, solve, 0)
    assert [MEMBER_STATUSES[code] for code in found.status] == list(STATUSES)
    assert tally(np.array(["unresolved", "max_steps", "unresolved"])) == "1 max_steps, 2 unresolved"


def test_the_command_line_shows_it(tmp_path):
    np.save(tmp_path / "start.npy", ANTIPODES)
    command = ["simulate", "-d", "2", "-b", "4", "--method", "rodas", "--until", "settled", "-q"]
    found = CliRunner().invoke(
        build(command), [*command, "--start", str(tmp_path / "start.npy"), "-o", str(tmp_path / "run.zarr")]
    )
    assert found.exit_code == 3, found.output
    assert "unresolved" in found.output
    attributes = json.loads((tmp_path / "run.zarr" / "zarr.json").read_text())["attributes"]
    assert attributes["status"] == "unresolved"


def test_the_explorer_does_not_call_it_rest(run):
    setting = SimpleNamespace(model=MODEL)
    end = outcome.ending(setting, run, run.states, run.times, np.array([[0, 1, 0]]))  # type: ignore[arg-type]
    assert end["status"] == "unresolved"
    assert "rounding" in end["message"]
    assert end["reached"]["text"].startswith("2 clusters at t = ")
    assert end["reached"]["text"].endswith(", where rounding hides whether they still move")
    assert end["reached"]["agrees"] is None
