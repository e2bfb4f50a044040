"""Figures that move: the report links pages that play the runs behind its main figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from metastable.reproduce.papers.p2411_04990.atlas import FIGURE_1
from metastable.reproduce.papers.p2411_04990.parking import FIGURE_2
from metastable.reproduce.recipe import Settings
from metastable.reproduce.report import render
from metastable.reproduce.result_store import finished, read_data
from metastable.reproduce.runner import run_recipes
from tests.unit.explorer.test_export import decoded


def test_the_report_plays_the_runs_that_its_figure_shows(tmp_path: Path) -> None:
    from metastable.reproduce.paper import FIRST, find_papers

    settings = Settings(members=2)
    (result,) = run_recipes([FIGURE_2.small()], settings, tmp_path)
    again = finished(FIGURE_2.small(), settings, tmp_path)
    assert again is not None
    for item in (result, again):
        assert list(item.players) == ["The circle to t = 150"]
        report = render([item], "metastable reproduce", find_papers(FIRST)[0])
        assert '<a href="figure-2/play-1.html">The circle to t = 150</a>' in report
    page = result.players["The circle to t = 150"].read_text()
    found = decoded(page.split('METASTABLE_RECORDED = {"run": ["')[1].split('"')[0].replace("<\\/", "</"))
    data = read_data(tmp_path / "figure-2")
    np.testing.assert_allclose(found["positions"][0], data.x.values[0], atol=2e-5)
    np.testing.assert_allclose(found["positions"][-1], data.x.values[-1], atol=1e-4)


def test_figures_with_runs_have_players_and_others_say_nothing() -> None:
    assert FIGURE_1.play is not None
    from metastable.reproduce.papers.p2411_04990.parking import FIGURE_3

    assert FIGURE_3.play is None
