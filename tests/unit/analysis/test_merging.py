"""The merge tree on trajectories whose merges are known."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.cluster import hierarchy

import metastable as ms
from metastable import sphere
from metastable.analysis import _film, cluster_labels, merge_tree
from metastable.analysis._film import RunFilm
from metastable.analysis._rewind import EARLIEST
from metastable.errors import InvalidInputError, PassingMergeWarning, TimeError
from metastable.integrate.solution import Dense


def on_circle(start: list[float], width: list[float], coefficients: list[np.ndarray]) -> SimpleNamespace:
    """A run in the angle chart: per step the polynomial coefficients (5, tokens)."""
    table = np.zeros((len(start), 5, coefficients[0].shape[1], 1))
    for step, values in enumerate(coefficients):
        table[step, : len(values), :, 0] = values
    dense = Dense("angle", 2, np.array(start), np.array(width), table)
    final = dense.evaluate(len(start) - 1, 1.0)
    first = dense.evaluate(0, 0.0)
    return SimpleNamespace(
        model=ms.Attention(dim=2, beta=1.0),
        times=np.array([dense.end]),
        states=final[None],
        start=first,
        final=final,
        dense=dense,
        status="success",
    )


def test_times_are_refined_inside_steps() -> None:
    """Angles 0, 1 - t and 2 - t on [0, 1]: tokens 0 and 1 come within 0.1 at t = 0.9, token 2 never does."""
    run = on_circle([0.0], [1.0], [np.array([[0.0, 1.0, 2.0], [0.0, -1.0, -1.0]])])
    tree = merge_tree(run, radius=0.1)
    assert tree.refined
    assert not tree.complete
    assert (tree.child.tolist(), tree.parent.tolist()) == ([1], [0])
    assert tree.time[0] == pytest.approx(0.9, abs=1e-8)
    assert tree.before[0] < 0.9 < tree.time[0] + 1e-12
    assert tree.count([0.0, 0.5, 0.95]).tolist() == [3, 3, 2]
    assert tree.labels_at(1.0).tolist() == [0, 0, 1]


def test_passing_by_is_not_merging() -> None:
    """Token 1 runs past token 0 and on to token 2, with which it stays."""
    run = on_circle([0.0], [1.0], [np.array([[0.0, -0.5, 1.0], [0.0, 1.5, 0.0]])])
    tree = merge_tree(run, radius=0.1)
    assert (tree.child.tolist(), tree.parent.tolist()) == ([2], [1])
    assert tree.time[0] == pytest.approx(1.4 / 1.5, abs=1e-8)


def test_many_decades_and_steps_below_the_spacing_of_floats() -> None:
    """Two merges inside steps that are shorter than the spacing of floating-point numbers at t = 1e40."""
    late = 1e40
    steps = [np.array([[0.0, 1.0, 2.0]])]
    steps += [np.array([[0.0, 1.0, 2.0], [0.0, -1.0, -0.5]]), np.array([[0.0, 0.0, 1.5], [0.0, 0.0, -1.5]])]
    run = on_circle([0.0, late, late], [late, 1.0, 1.0], steps)
    tree = merge_tree(run, radius=1e-3)
    assert tree.complete
    assert (tree.child.tolist(), tree.parent.tolist()) == ([1, 2], [0, 0])
    assert tree.time.tolist() == [late, late]
    assert tree.child_size.tolist() == [1, 1]
    assert tree.parent_size.tolist() == [1, 2]


def test_without_dense_output_saved_times_bracket_the_merge() -> None:
    x = [sphere.from_angle([0.0, a, 2.0]) for a in (1.0, 0.5, 0.01)]
    run = SimpleNamespace(
        model=ms.Attention(dim=2, beta=1.0),
        times=np.array([1.0, 2.0]),
        states=np.array(x[1:]),
        start=x[0],
        final=x[2],
        dense=None,
        status="success",
    )
    tree = merge_tree(run, radius=0.1)
    assert not tree.refined
    assert (tree.before.tolist(), tree.time.tolist()) == ([1.0], [2.0])
    assert tree.start_labels.tolist() == [0, 1, 2]
    assert "times of saved moments" in repr(tree)
    assert "of saved moments" in tree._repr_html_()


def test_trees_say_whose_times_they_have_and_that_noise_parts_what_met() -> None:
    """Trees of coarse times looked like refined ones, and those of noisy runs like trees whose merges are for good."""
    start = sphere.uniform(12, dim=2, seed=0)
    model = ms.Attention(dim=2, beta=9.0)
    fine, coarse = (
        ms.merge_tree(ms.simulate(model, start, **how)) for how in ({"until": 50.0}, {"times": [1.0, 50.0]})
    )
    assert "saved" not in repr(fine) + fine.plot().axes[0].get_title(loc="left")
    assert "times of saved moments" in coarse.plot().axes[0].get_title(loc="left")
    run = ms.simulate(model.replace(noise=0.4), start, times=np.linspace(0.0, 50.0, 101), seed=0)
    for function in (merge_tree, ms.merge_tree):
        with pytest.warns(PassingMergeWarning, match=r"noise \(0.4\)") as told:
            tree = function(run, radius=0.17)
        assert told[0].filename == __file__
    # What the warning says: there are more clusters at later moments than the tree ends with.
    counts = [cluster_labels(x, 0.17).max() + 1 for x in run.states]
    assert max(counts[50:]) > counts[-1] == tree.final_labels.max() + 1
    assert all("under noise 0.4" in text for text in (repr(tree), tree.plot().axes[0].get_title(loc="left")))
    assert "part again" in tree._repr_html_()


def test_linkage_is_what_scipy_wants() -> None:
    run = ms.simulate(
        ms.Attention(dim=2, beta=16.0), sphere.uniform(40, 2, seed=3), until=60.0, method="tsit5", engine="reference"
    )
    tree = merge_tree(run, radius=1e-3)
    np.testing.assert_array_equal(tree.final_labels, cluster_labels(run.final, 1e-3))
    linkage = tree.linkage()
    assert linkage.shape == (39, 4)
    assert hierarchy.is_valid_linkage(linkage)
    assert hierarchy.is_monotonic(linkage)
    for t in (0.0, 5.0, 20.0, 59.0):
        assert tree.count(t) == tree.labels_at(t).max() + 1
        flat = hierarchy.fcluster(linkage, t, "distance")
        assert len(set(zip(flat, tree.labels_at(t)))) == tree.count(t) == flat.max()
    # Around each merge the clusters change from two to one, seen on the dense output itself.
    for time, child, parent in zip(tree.time, tree.child, tree.parent):
        after = cluster_labels(run.at(time), 1e-3)
        before = cluster_labels(run.at(max(0.0, time - 1e-4)), 1e-3)
        assert after[child] == after[parent]
        assert before[child] != before[parent]
    drawn = tree.linkage("log10", unmerged=3.0)
    assert drawn[:, 2].max() <= 3.0
    hierarchy.dendrogram(drawn, no_plot=True)
    frame = tree.to_dataframe()
    assert list(frame.columns) == list(tree.to_columns())
    assert frame["clusters"].iloc[-1] == tree.final_labels.max() + 1
    assert (frame["size"] == frame["child_size"] + frame["parent_size"]).all()


def test_by_default_the_tree_counts_metastable_clusters() -> None:
    """The default radius follows beta; the tree then agrees with the clusters of single moments while clusters stand."""
    run = ms.simulate(ms.Attention(dim=2, beta=64.0), sphere.uniform(200, 2, seed=0), until=1e4)
    tree = merge_tree(run)
    assert tree.radius == 0.5 / 8
    for t in (10.0, 20.0, 40.0, 75.0, 150.0, 500.0, 9e3):
        assert tree.count(t) == cluster_labels(run.at(t), tree.radius).max() + 1


def test_one_token_and_refusals() -> None:
    run = on_circle([0.0], [1.0], [np.array([[0.3]])])
    tree = merge_tree(run)
    assert (len(tree), tree.complete, tree.linkage().shape) == (0, True, (0, 4))
    with pytest.raises(InvalidInputError):
        merge_tree(run, radius=-1.0)
    with pytest.raises(InvalidInputError):
        merge_tree(run, resolution=math.nan)
    with pytest.raises(InvalidInputError, match="Run"):
        merge_tree(np.eye(2))  # type: ignore[arg-type]


def test_a_cluster_that_stretches_while_it_falls_is_one_cluster() -> None:
    """Tokens 1 and 2 sit together for a million units of time and fall into token 0 one after the other."""
    steps = [
        np.array([[0.0, 1.0, 1.0001]]),
        np.array([[0.0, 1.0, 1.0001], [0.0, -1.0, 0.0]]),
        np.array([[0.0, 0.0, 1.0001], [0.0, 0.0, -1.0]]),
        np.array([[0.0, 0.0, 0.0001]]),
    ]
    run = on_circle([0.0, 1e6, 1e6 + 1, 1e6 + 2], [1e6, 1.0, 1.0, 2e6], steps)
    tree = merge_tree(run, radius=1e-3)
    assert tree.start_labels.tolist() == [0, 1, 1]
    assert (tree.child.tolist(), tree.parent.tolist()) == ([1], [0])
    assert (tree.child_size.tolist(), tree.parent_size.tolist()) == ([2], [1])
    assert tree.time[0] == pytest.approx(1e6 + 0.999, abs=1e-6)
    # With windows so narrow that checkpoints fall into the fall, the stretch is seen.
    assert merge_tree(run, radius=1e-3, window=1e-7).start_labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("beta", "tokens", "seed"), [(16.0, 20, 0), (16.0, 20, 4), (64.0, 20, 3)])
def test_merges_do_not_depend_on_where_steps_end(beta: float, tokens: int, seed: int) -> None:
    """Links that open for a while and close again: every tolerance sees the same merges at the same times."""
    model, x = ms.Attention(dim=2, beta=beta), sphere.uniform(tokens, 2, seed=seed)
    trees = [merge_tree(ms.simulate(model, x, until=1e3, rtol=rtol, atol=1e-3 * rtol)) for rtol in (1e-8, 1e-6, 1e-4)]
    for other in trees[1:]:
        np.testing.assert_array_equal(other.child, trees[0].child)
        np.testing.assert_array_equal(other.parent, trees[0].parent)
        np.testing.assert_allclose(other.time, trees[0].time, rtol=1e-3)


def test_a_short_separation_inside_one_long_step_is_seen() -> None:
    """The gap 0.1 + 8e-3 (1 - 4 (u - 1/2)^2)^2 - 4e-3 opens and closes in the middle of a step that looks closed at both ends."""
    wave = np.polynomial.Polynomial([0.0, 4.0, -4.0]) ** 2
    gap = np.polynomial.Polynomial([0.096]) + 8e-3 * wave
    coefficients = np.zeros((5, 2))
    coefficients[:, 1] = gap.coef
    steps = [np.array([[0.0, 1.0], [0.0, -0.904]]), coefficients, np.array([[0.0, 0.096]])]
    run = on_circle([0.0, 1.0, 1.09], [1.0, 0.09, 9.0], steps)
    closed = 1.0 + 0.09 * (0.5 + 0.5 * math.sqrt(1.0 - math.sqrt(0.5)))
    assert merge_tree(run, radius=0.1, window=0.07).time.tolist() == pytest.approx([closed], abs=1e-8)
    # It takes 0.049, and half of a longer window is more than that: there it does not count.
    assert merge_tree(run, radius=0.1, window=4.0).time.tolist() == pytest.approx([0.9 / 0.904], abs=1e-8)


def test_a_moment_apart_is_no_separation_wherever_windows_begin() -> None:
    """Token 5 joins 1 at t = 56637, and is stretched away for 4 units of time when 2 comes along at 58842, within the same window."""
    model = ms.Attention(dim=5, beta=18.92)
    run = ms.simulate(model, ms.sphere.uniform(8, dim=5, seed=96), until=1e5, rtol=1e-8, atol=1e-10, progress=False)
    together = run.at(58000.0) @ run.at(58000.0)[5] > 0.99
    assert np.flatnonzero(together)[0] == 1
    for window in (0.1, 0.02, 0.001):
        tree = merge_tree(run, window=window)
        assert list(zip(tree.child.tolist(), tree.parent.tolist()))[-2:] == [(5, 1), (2, 1)]
        np.testing.assert_allclose(tree.time[-2:], [56637.3, 58842.5], rtol=1e-5)


@pytest.mark.parametrize("more", [1.0, 1e3, 2e6])
def test_the_end_of_a_run_decides_nothing_about_its_past(more: float) -> None:
    """The tokens of the test above are apart where a window begins, and the run ends before or behind the middle of this window."""
    fall = EARLIEST * 1.1**290 - 1.0
    steps = [
        np.array([[0.0, 1.0, 1.0001]]),
        np.array([[0.0, 1.0, 1.0001], [0.0, -1.0, 0.0]]),
        np.array([[0.0, 0.0, 1.0001], [0.0, 0.0, -1.0]]),
        np.array([[0.0, 0.0, 0.0001]]),
    ]
    tree = merge_tree(on_circle([0.0, fall, fall + 1, fall + 2], [fall, 1.0, 1.0, more], steps), radius=1e-3)
    assert tree.start_labels.tolist() == [0, 1, 1]
    assert (tree.child.tolist(), tree.parent.tolist()) == ([1], [0])
    assert tree.count([1.0, fall + 1.5, fall + 2.5]).tolist() == [2, 1, 1]


def test_a_small_cluster_that_falls_as_one_holds_together():
    """Judged by the ways of single tokens nothing held that moves by more than the radius, and radii of 1e-5 took minutes."""
    angles = np.array([[0.0, 1e-6, 2.0, 3.0, 3.0], [0.3, 0.3, 0.3, 0.3, 0.3 + 2e-5]])
    run = on_circle([0.0], [1.0], [angles])
    film = RunFilm(run.dense.start, run.dense.width, 1e-5, run.dense, 2)
    held, way = film.held(0, 0.0, 1.0)
    assert held.tolist() == [0, 0, 1, 2, 3]  # the last two part on their way
    assert way > 0.1


@pytest.mark.parametrize("radius", [1e-4, 1e-2, 0.3])
def test_what_is_said_to_hold_together_does(radius):
    """Looked at in many moments; and tokens that are apart somewhere in between are not said to hold."""
    run = ms.simulate(ms.Attention(dim=3, beta=9.0), ms.sphere.uniform(24, dim=3, seed=2), until=60.0)
    film = RunFilm(run.dense.start, run.dense.width, radius, run.dense, 3)
    together = 0
    for step in range(len(film.start)):
        for low, high in ((0.0, 1.0), (0.3, 0.4)):
            held, _ = film.held(step, low, high)
            for u in np.linspace(low, high, 9):
                assert _film.refine(held, film.look(step, u)).max() == held.max()
            together += held.max() + 1 < len(held)
    assert together > 10


def test_small_radii_take_few_looks(monkeypatch):
    """A merge is found in a number of looks that grows with the logarithm of the radius, not with one over it."""
    model = ms.Attention(dim=3, beta=8.0, mask=ms.Full())
    run = ms.simulate(model, ms.sphere.uniform(8, dim=3, seed=16), until=200.0)
    looks: list[int] = []
    tokens = RunFilm.tokens

    def looked(film, step, u):
        looks[-1] += 1
        return tokens(film, step, u)

    monkeypatch.setattr(RunFilm, "tokens", looked)
    for radius in (1e-1, 1e-3, 1e-5):
        looks.append(0)
        assert len(ms.merge_tree(run, radius=radius)) > 3
    assert max(looks) < 10_000


@pytest.mark.parametrize(("dim", "beta", "tokens", "seed"), [(5, 6.0, 30, 950100), (8, 4.0, 20, 470)])
def test_one_who_is_with_a_friend_is_with_the_friend_of_that(dim, beta, tokens, seed):
    """Three that part for a moment, one after the other: reading never ended, a billionth of a step at a time."""
    model = ms.Attention(dim=dim, beta=beta, norm=ms.NGPT(alpha=1.0))
    run = ms.simulate(model, sphere.uniform(tokens, dim=dim, seed=seed), until=60.0, progress=False)
    tree = merge_tree(run, 0.03, window=0.3)
    assert len(tree) == tree.start_labels.max() - tree.final_labels.max()
    assert len(set(tree.child.tolist())) == len(tree)
    # Nobody is apart at a later checkpoint whom the tree has together.
    for number in range(100):
        t = EARLIEST * 1.3**number
        looks = [cluster_labels(run.at(min(t * part, run.end)), 0.03) for part in (1.0, 1.3**0.5)]
        if t <= run.end:
            fewest = min(looks, key=lambda labels: labels.max())
            assert _film.refine(tree.labels_at(t), fewest).max() == tree.labels_at(t).max()


def test_the_latest_times_have_windows_too():
    """Behind 1e298 windows ended, and a time of 1e303 was an OverflowError."""
    run = ms.simulate(ms.Attention(dim=2, beta=9.0), sphere.uniform(20, dim=2, seed=0), until=1e308, progress=False)
    tree = merge_tree(run)
    short = merge_tree(ms.simulate(run.model, run.start, until=1e9, progress=False))
    assert tree.complete
    np.testing.assert_allclose(tree.time, short.time, rtol=1e-6)
    steps = [np.array([[0.0, 1.0]]), np.array([[0.0, 1.0], [0.0, -1.0]]), np.array([[0.0, 0.0]])]
    late = merge_tree(on_circle([0.0, 1e307, 2e307], [1e307, 1e307, 1e307], steps), radius=0.5)
    np.testing.assert_allclose(late.time, [1.5e307], rtol=1e-6)


def test_a_predicted_tree_knows_nothing_of_before() -> None:
    """It answered with its clusters at t0: 6 at t = 1, where there were 21."""
    run = ms.simulate(ms.Attention(dim=2, beta=16.0), sphere.uniform(30, 2, seed=0), until=60.0, progress=False)
    tree, predicted = ms.merge_tree(run), run.predict_merges(20.0)
    assert (tree.t0, predicted.t0) == (0.0, 20.0)
    assert predicted.count(20.0) == predicted.start_labels.max() + 1 == predicted.labels_at(20.0).max() + 1
    assert predicted.count([]).size == 0
    for early in (1.0, [30.0, 1.0]):
        with pytest.raises(TimeError, match="from t = 20 on, and nothing of t = 1;"):
            predicted.count(early)
    with pytest.raises(TimeError, match="from t = 20 on"):
        predicted.labels_at(19.999)
    assert tree.count(0.0) == tree.start_labels.max() + 1
    assert "from t = 20 on" in repr(predicted)
    assert "from t" not in repr(tree)


@pytest.mark.parametrize("tokens", [1, 12])
@pytest.mark.parametrize("mask", [ms.Causal(), ms.Full()])
def test_every_predicted_tree_keeps_its_begin(tokens: int, mask: ms.model.Masking) -> None:
    """Also one without a way: a single token never moves."""
    model = ms.Attention(dim=2, beta=16.0, mask=mask)
    state = ms.simulate(model, sphere.uniform(tokens, 2, seed=3), until=40.0, progress=False).final
    for predicted in (ms.analysis.predict_merges, ms.predict_merges):
        assert predicted(state, model, 40.0).t0 == 40.0
