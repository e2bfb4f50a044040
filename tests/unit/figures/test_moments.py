"""Which moments pictures and films show: no corners, a clock that follows the motion, the action in the middle."""

import errno

import numpy as np
import pytest

import metastable as ms
from metastable import sphere
from metastable.errors import InvalidInputError, StoreFullError
from metastable.figures import animation, moments, run_view, titles


@pytest.fixture(scope="module")
def runs():
    """Runs whose motion is over after a tenth of their time."""
    return {
        dim: ms.simulate(
            ms.Attention(dim=dim, beta=9.0),
            sphere.uniform(8, dim=dim, seed=dim),
            until=400.0,
            method="tsit5",
            engine="reference",
        )
        for dim in (2, 3, 5)
    }


def ways(states):
    return np.linalg.norm(np.diff(states, axis=0), axis=2).max(axis=1)


@pytest.mark.parametrize("dim", [2, 3])
def test_lines_have_no_corners(runs, dim):
    _, even = moments.sample(runs[dim], 300)
    assert ways(even).max() > moments.STRIDE  # evenly in time a line is a polygon where everything happens
    times, states = moments.trace(runs[dim], 300)
    assert ways(states).max() <= moments.STRIDE
    assert np.all(np.diff(times) >= 0)
    assert times[-1] == 400.0
    np.testing.assert_allclose(states[-1], runs[dim].final, atol=1e-12)
    np.testing.assert_allclose(states[len(times) // 3], runs[dim].at(times[len(times) // 3]), atol=1e-12)


def test_the_picture_is_drawn_from_those_moments(runs):
    page = runs[3].plot()
    segments = [line for part in page.axes[0].collections for line in getattr(part, "get_segments", list)()]
    assert (
        max(np.linalg.norm(np.diff(line, axis=0), axis=1).max() for line in segments if len(line) > 1) <= moments.STRIDE
    )


def test_falls_within_one_floating_point_time_are_drawn():
    """Two tokens far apart meet at 1e20, within less than the spacing of numbers there: the path is complete all the same."""
    start = np.array([[1.0, 0.0], [np.cos(2.6), np.sin(2.6)]])
    run = ms.simulate(ms.Attention(dim=2, beta=25.0), start, until=1e30, method="rodas", progress=False)
    _, even = moments.sample(run, 300)
    _, states = moments.trace(run, 300)
    assert ways(even).max() > 1.0
    assert ways(states).max() <= moments.STRIDE


@pytest.mark.parametrize("log", [False, True])
def test_the_clock_of_a_film_follows_the_motion(runs, log):
    times, states, path, index = moments.frames(runs[3], 120, log)
    assert ways(path).max() <= moments.STRIDE  # trails have no corners
    np.testing.assert_array_equal(path[index], states)
    assert (times.size, times[0], times[-1]) == (120, 0.0, 400.0)
    _, fine = moments.trace(runs[3], 300, log)
    share = ways(fine).sum() / (1 - moments.STANDING) / 119
    assert ways(states).max() <= 1.5 * share
    _, even = moments.sample(runs[3], 120, log)
    assert ways(states).max() < 0.6 * ways(even).max()


def test_runs_without_dense_output_keep_their_states():
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), sphere.uniform(5, dim=2, seed=0), times=[1.0, 2.0], method="tsit5")
    times, states = moments.trace(run, 50)
    assert (times.tolist(), len(states)) == ([0.0, 1.0, 2.0], 3)
    assert moments.saved_states(run) == 3


def test_the_middle_snapshot_is_where_the_action_is(runs):
    page = runs[5].plot()
    shown = [page.axes[k].images[0].get_array() for k in range(3)]
    assert np.abs(shown[1] - shown[0]).max() > 0.3
    assert np.abs(shown[1] - shown[2]).max() > 0.3


def test_token_colours_have_a_key(runs):
    for dim in (2, 3):
        assert any(ax.get_ylabel() == "token, in order (from 0)" for ax in runs[dim].plot().axes)


def test_one_head_is_one_head():
    text = titles.describe(ms.Attention(dim=3, heads=(ms.Head(beta=2.0),)), 4)
    assert "1 head" in text
    assert "heads" not in text
    assert "2 heads" in titles.describe(ms.Attention(dim=3, heads=(ms.Head(), ms.Head(beta=2.0))), 4)


def test_thousands_of_tokens_are_a_density():
    start = sphere.uniform(run_view.MANY, dim=2, seed=0)
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), start, times=[0.5, 1.0], progress=False)
    page = run.plot()
    assert any("tokens per cell" in ax.get_ylabel() for ax in page.axes)
    assert not any(hasattr(part, "get_segments") for part in page.axes[0].collections)


def test_a_film_on_a_full_disk_leaves_what_was_there(runs, tmp_path, monkeypatch):
    target = tmp_path / "film.gif"
    target.write_bytes(b"an older film")

    def full(pictures, path, *_):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(animation, "_write_gif", full)
    with pytest.raises(StoreFullError, match="no room left"):
        animation.animate(runs[2], target, seconds=0.2, frames_per_second=10, progress=False)
    assert target.read_bytes() == b"an older film"
    assert [path.name for path in tmp_path.iterdir()] == ["film.gif"]


# ------------------------------------------------------------------------------------------------ ensembles and trees


@pytest.fixture(scope="module")
def stats():
    return ms.ensemble(
        ms.Attention(dim=2, beta=9.0),
        tokens=12,
        members=8,
        times=np.linspace(0.0, 10.0, 6),
        seed=0,
        observe={"cosine": ms.observe.mean_cosine(), "clusters": ms.observe.clusters(radius=0.2)},
        progress=False,
    )


def test_an_ensemble_shows_mean_and_band_and_says_so(stats):
    page = ms.plot_ensemble(stats, quantiles=(0.25, 0.75))
    assert [ax.get_title(loc="left") for ax in page.axes[:2]] == ["cosine", "clusters, $r = 0.2$"]
    drawn = [line.get_ydata() for line in page.axes[0].lines]
    assert any(np.allclose(y, stats.cosine.mean("member")) for y in drawn)
    for level in (0.25, 0.75):
        assert any(np.allclose(y, stats.cosine.quantile(level, "member")) for y in drawn)
    words = [text.get_text() for text in page.legends[0].get_texts()]
    assert words == ["mean", "25 % to 75 % of members"]
    assert page._suptitle.get_text().replace("\n", " ") == r"8 members, $n = 12$, $d = 2$, $\beta = 9$, causal"


def test_pictures_of_ensembles_name_what_moved_them():
    """Beta, noise and the lengths of observables were missing."""
    options = {"tokens": 5, "members": 2, "times": [0.0, 0.1], "seed": 0, "engine": "reference"}
    near = {"near": ms.observe.consumed(delta=0.5, radius=0.25)}
    noisy = ms.ensemble(ms.Attention(dim=3, beta=7.0, noise=0.3), observe=near, **options)
    page = ms.plot_ensemble(noisy)
    words = page._suptitle.get_text().replace("\n", " ")
    assert words == r"2 members, $n = 5$, $d = 3$, $\beta = 7$, causal, $\sigma = 0.3$"
    assert page.axes[0].get_title(loc="left") == r"near, $\delta = 0.5$, $r = 0.25$"

    def random_model(generator):
        return ms.Attention(dim=2, beta=float(generator.uniform(1, 9)))

    drawn = ms.ensemble(random_model, observe={"clusters": ms.observe.clusters()}, **options)
    page = ms.plot_ensemble(drawn)
    assert page._suptitle.get_text().replace("\n", " ") == "2 members, $n = 5$, $d = 2$, models drawn by random_model"
    assert page.axes[0].get_title(loc="left") == "clusters"  # each member has its own radius
    joined = drawn.drop_attrs(deep=False).assign_attrs(tokens=5)
    assert ms.plot_ensemble(joined)._suptitle.get_text() == "2 members, $n = 5$"


def test_ensembles_without_anything_to_draw_are_refused(stats):
    with pytest.raises(InvalidInputError, match="is no observable"):
        ms.plot_ensemble(stats, ["energy"])
    with pytest.raises(InvalidInputError, match="dims member and time"):
        ms.plot_ensemble(stats.mean("member"))
    with pytest.raises(InvalidInputError, match="lower and an upper"):
        ms.plot_ensemble(stats, quantiles=(0.9, 0.1))


def test_trees_draw_themselves(runs):
    tree = ms.merge_tree(runs[2])
    page = tree.plot()
    ax = page.axes[0]
    assert ax.get_xscale() == "log"
    ends = sorted({float(x) for line in ax.lines for x in np.atleast_1d(line.get_xdata())})
    for time in tree.time[tree.time > tree.plot(since=1.0).axes[0].get_xlim()[0]]:
        assert any(np.isclose(end, time) for end in ends)


def test_a_predicted_tree_shows_its_doubts():
    angles = np.array([0.0, 2.0, 1.0 + 1e-7])
    state = np.column_stack([np.cos(angles), np.sin(angles)])
    page = ms.predict_merges(state, ms.Attention(dim=2, beta=30.0)).plot()
    assert "?" in [text.get_text() for text in page.axes[0].texts]


def test_a_run_predicts_its_own_future(runs):
    tree = runs[2].predict_merges(50.0)
    same = ms.predict_merges(runs[2].at(50.0), runs[2].model, 50.0)
    np.testing.assert_array_equal(tree.time, same.time)
    assert runs[2].predict_merges().start_labels.tolist() == same.labels_at(400.0).tolist()


def test_what_is_no_tree_is_refused():
    with pytest.raises(InvalidInputError, match="tree must be"):
        ms.figures.draw_tree([1, 2])
    still = ms.predict_merges(np.eye(2)[:1], ms.Attention(dim=2, beta=4.0))
    assert "nothing merges: 1 cluster" in still.plot().axes[0].get_title(loc="left")
