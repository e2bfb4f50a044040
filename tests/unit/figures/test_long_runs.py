"""Pictures of long runs, from arrays."""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable.analysis import MergeTree
from metastable.errors import TimeError
from metastable.figures import curves, long_runs, style
from metastable.figures.moments import sample


@pytest.fixture(scope="module")
def cascade():
    run = ms.simulate(ms.Attention(dim=2, beta=16.0), ms.sphere.uniform(24, dim=2, seed=1), until=1e15, method="rodas")
    return run, ms.merge_tree(run, radius=0.1)


def test_leaders_are_the_first_tokens(cascade):
    _, tree = cascade
    for t in (0.0, 1e2, 1e15):
        leaders = long_runs.leaders_at(tree, t)
        assert (leaders <= np.arange(24)).all()
        assert (leaders[leaders] == leaders).all()
    assert (long_runs.leaders_at(tree, 1e15) == 0).all()


def test_page_of_one_run(cascade, tmp_path):
    run, tree = cascade
    times, states = sample(run, 80, log=True)
    law = np.array([ms.theory.cluster_count(t, 16.0, 2) if t > 3 else np.nan for t in times])
    page = long_runs.long_run(times, states, tree, since=30.0, law=law, title="a run")
    assert len(page.axes) == 3
    assert style.save(page, tmp_path / "run")[0].stat().st_size > 10_000


def test_cascade_colours_follow_the_clusters(cascade):
    run, tree = cascade
    times, states = sample(run, 60, log=True)
    _, ax = style.figure()
    palette = long_runs.draw_cascade(ax, times, states, tree, since=30.0)
    assert set(palette) == set(np.unique(long_runs.leaders_at(tree, 30.0)).tolist())
    assert ax.get_xscale() == "log"
    assert len(ax.collections) == 1


def test_counts_and_collapse_times(tmp_path):
    times = np.geomspace(1.0, 1e20, 21)
    counts = np.maximum(1, np.array([8, 9, 7])[:, None] - np.arange(21) // 3)
    law = np.linspace(8, 1, 21)
    page = long_runs.collapse((16.0, 32.0), [[10.0, 12.0], [20.0, 25.0]], [times] * 2, [counts] * 2, [law] * 2)
    assert style.save(page, tmp_path / "collapse")[0].exists()
    _, ax = style.figure()
    long_runs.draw_cluster_counts(ax, times, counts[0], law=law)
    assert len(ax.lines) == 2


def test_a_tree_without_merges_is_its_branches():
    run = ms.simulate(ms.Attention(dim=2, beta=64.0), ms.sphere.from_angle([0.0, 1.5, 3.1]), until=50.0, progress=False)
    page = ms.merge_tree(run).plot()
    (ax,) = page.axes
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["0", "1", "2"]
    assert ax.get_xlim()[1] >= 50.0
    assert "nothing merges: 3 clusters" in ax.get_title(loc="left")


def test_bars_of_a_predicted_tree_are_decades_of_the_wait():
    """They were decades of the time: where the wait is short they reached far before the moment that is predicted from."""
    tree = MergeTree(
        radius=0.1,
        start_labels=np.arange(3),
        final_labels=np.zeros(3, dtype=int),
        time=np.array([1010.0, 3000.0]),
        before=np.array([1000.0, 2900.0]),
        child=np.array([2, 1]),
        parent=np.array([1, 0]),
        child_size=np.array([1, 2]),
        parent_size=np.array([1, 1]),
        refined=True,
        uncertainty=np.array([0.3, 0.1]),
        doubtful=np.array([False, False]),
        t0=1000.0,
    )
    (ax,) = long_runs.draw_tree(tree).axes
    bars = [line.get_xdata() for line in ax.lines if line.get_marker() == "|"]
    np.testing.assert_allclose(
        bars, [1000 + 10 * 10.0 ** np.array([-0.3, 0.3]), 1000 + 2000 * 10.0 ** np.array([-0.1, 0.1])]
    )


def test_a_predicted_tree_knows_its_moment(cascade):
    run, _ = cascade
    tree = run.predict_merges(100.0)
    assert (tree.t0, ms.merge_tree(run, radius=0.1).t0) == (100.0, 0.0)
    assert (tree.time > 100.0).all()


def _widths(ax, row):
    """Times and widths of the pieces of the branch that is drawn in a row."""
    pieces = [line for line in ax.lines if len(line.get_xdata()) == 2 and set(line.get_ydata()) == {row}]
    return [(*line.get_xdata(), line.get_linewidth()) for line in pieces]


def test_branches_are_as_wide_as_clusters_are_large_at_each_time():
    """They had the width of before the first merge, when nearly all are one token."""
    _, ax = style.figure()
    sizes = {0: 1, 1: 2, 2: 1}
    curves.draw_dendrogram(ax, [0, 1, 2], [(10.0, 1, 0), (100.0, 2, 0)], start=1.0, end=1e3, sizes=sizes)
    rows = [int(tick.get_text()) for tick in ax.get_yticklabels()]
    pieces = {leader: _widths(ax, float(row)) for row, leader in enumerate(rows)}
    assert [piece[:2] for piece in pieces[0]] == [(1.0, 10.0), (10.0, 100.0), (100.0, 1e3)]
    assert pieces[0][0][2] < pieces[1][0][2] < pieces[0][1][2] < pieces[0][2][2]
    assert pieces[0][0][2] == pieces[2][0][2]


def test_a_predicted_tree_begins_where_it_knows_and_a_tree_says_when_its_clusters_are_left(cascade):
    run, _ = cascade
    first = float(run.predict_merges(20.0).time[0])
    late = ms.predict_merges(run.at(0.9 * first), run.model, 0.9 * first)
    (ax,) = late.plot().axes
    assert ax.get_xlim()[0] == pytest.approx(late.t0)  # not at half of the first merge
    assert "1 cluster left at the end of time" in ax.get_title(loc="left")
    (ax,) = ms.merge_tree(run, radius=0.1).plot().axes
    assert "left at $t = 10^{15}$" in ax.get_title(loc="left")
    with pytest.raises(TimeError, match="from t ="):
        late.plot(since=1.0)
