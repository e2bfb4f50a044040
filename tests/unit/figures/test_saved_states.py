"""Pictures and films of runs that kept chosen times only: nothing is made up between the saved states, and the figure says so.

Also what every picture of tokens says: they are counted from 0, and colours have a key.
"""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba_array

import metastable as ms
from metastable import sphere
from metastable.figures import animation, curves, film_key, gaps, moments, style

TIMES = np.linspace(0.0, 20.0, 9)


@pytest.fixture(autouse=True)
def closed():
    """Pictures are pyplot's, which keeps them until it is told."""
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def coarse():
    """Runs with nine states, between which tokens move far."""
    return {
        dim: ms.simulate(
            ms.Attention(dim=dim, beta=9.0), sphere.uniform(12, dim=dim, seed=dim), times=TIMES, engine="reference"
        )
        for dim in (2, 3, 5)
    }


def lines_of(ax, dotted):
    """Polylines of the line collections of an axis that are dotted, or that are not."""
    found = []
    for part in ax.collections:
        if hasattr(part, "get_segments"):
            dashes = part.get_linestyle()[0][1]
            if (dashes is not None) == dotted:
                found += [np.asarray(line) for line in part.get_segments()]
    return found


# ------------------------------------------------------------------------------------------------------------ arcs


def test_arcs_are_great_circles_through_the_saved_states():
    states = np.stack([sphere.uniform(7, dim=3, seed=k) for k in range(5)])
    points, far, lost = gaps.with_arcs(states)
    np.testing.assert_allclose(np.linalg.norm(points, axis=2), 1.0, atol=1e-14)
    assert not lost.any()
    assert gaps.angles_between(points).max() <= moments.STRIDE + 1e-12
    # All of the way is on the arc: its pieces add up to the distance of the states.
    total = gaps.angles_between(points).sum(axis=0)
    np.testing.assert_allclose(total, gaps.angles_between(states).sum(axis=0), rtol=1e-12)
    for state in states:
        assert (np.abs(points - state).max(axis=(1, 2)) == 0).any()
    assert far.all()


def test_opposite_states_and_states_that_stand():
    states = np.array([[[1.0, 0, 0], [0, 1.0, 0]], [[-1.0, 0, 0], [0, 1.0, 0]]])
    points, far, lost = gaps.with_arcs(states)
    assert lost[:, 0].all()
    assert not lost[:, 1].any()
    assert not far[:, 1].any()
    np.testing.assert_allclose(points[:, 1], np.tile([0, 1.0, 0], (len(points), 1)), atol=1e-15)


# -------------------------------------------------------------------------------------------------------- pictures


def test_no_solid_line_spans_a_gap_on_the_circle(coarse):
    ax = coarse[2].plot().axes[0]
    for line in lines_of(ax, dotted=False):
        assert np.abs(np.diff(line[:, 1])).max() <= moments.STRIDE
    assert lines_of(ax, dotted=True)
    title = ax.get_title(loc="left")
    assert "9 saved states (dots)" in title
    marks = np.concatenate([part.get_offsets() for part in ax.collections if not hasattr(part, "get_segments")])
    assert set(np.unique(marks[:, 0])) <= set(TIMES)
    assert len(marks) > 12


def test_no_solid_line_spans_a_gap_on_the_sphere(coarse):
    from metastable.figures.sphere_view import DEFAULT_VIEW

    ax = coarse[3].plot().axes[0]
    assert "9 saved states (dots)" in ax.get_title(loc="left")
    dotted = lines_of(ax, dotted=True)
    # An arc stays on the ball: no chord through it (in projection a point may be anywhere inside the rim, but neighbours are near).
    assert dotted
    assert max(np.linalg.norm(np.diff(line, axis=0), axis=1).max() for line in dotted) <= moments.STRIDE + 1e-9
    saved = DEFAULT_VIEW.project(coarse[3].states)[..., :2].reshape(-1, 2)
    marks = np.concatenate([part.get_offsets() for part in ax.collections if not hasattr(part, "get_segments")])
    assert np.abs(marks[:, None] - saved[None]).max(axis=2).min(axis=1).max() < 1e-12


def test_dense_output_has_no_dots_and_no_note():
    run = ms.simulate(ms.Attention(dim=3, beta=9.0), sphere.uniform(6, dim=3, seed=0), until=20.0, engine="reference")
    ax = run.plot().axes[0]
    assert not lines_of(ax, dotted=True)
    assert "saved" not in ax.get_title(loc="left")


def test_many_saved_states_are_lines_as_usual():
    """With states nearer than the stride there is nothing to leave open, but the figure says what it is drawn from."""
    times = np.linspace(0.0, 20.0, 600)
    run = ms.simulate(ms.Attention(dim=3, beta=4.0), sphere.uniform(6, dim=3, seed=0), times=times, engine="reference")
    ax = run.plot().axes[0]
    assert gaps.angles_between(run.states).max() < moments.STRIDE
    assert not lines_of(ax, dotted=True)
    assert ax.get_title(loc="left").endswith("drawn from 600 saved states")


def test_cosines_say_what_they_are_drawn_from(coarse):
    page = coarse[5].plot()
    assert "9 saved states" in page._suptitle.get_text()
    assert page.axes[3].lines[0].get_marker() == "."


def drawn_by_plotly(figure):
    """The lines of tokens."""
    return [trace for trace in figure.data if "lines" in (getattr(trace, "mode", None) or "") and trace.text]


@pytest.mark.parametrize("dim", [2, 3])
def test_the_interactive_picture_has_gaps_too(coarse, dim):
    figure = coarse[dim].plot(backend="plotly")
    assert "9 saved states (dots)" in figure.layout.title.text
    assert len(figure.frames) <= 9
    lines = drawn_by_plotly(figure)
    solid = [trace for trace in lines if trace.line.dash in (None, "solid")]
    assert len(solid) < len(lines)
    names = ("y",) if dim == 2 else ("x", "y", "z")
    for trace in solid:
        steps = np.diff(np.column_stack([np.asarray(trace[name], dtype=float) for name in names]), axis=0)
        assert np.nanmax(np.linalg.norm(steps, axis=1)) <= moments.STRIDE


def test_the_interactive_picture_has_no_corners_and_one_head():
    """It had 300 moments linear in time, wrapped straight in time on a log axis, and said "1 heads"."""
    model = ms.Attention(dim=3, heads=(ms.Head(beta=9.0),))
    run = ms.simulate(model, sphere.uniform(6, dim=3, seed=0), until=400.0, method="tsit5", engine="reference")
    figure = run.plot(backend="plotly", moments=50)
    assert len(drawn_by_plotly(figure)) == 6
    for trace in drawn_by_plotly(figure):
        steps = np.diff(np.column_stack([trace.x, trace.y, trace.z]), axis=0)
        assert np.linalg.norm(steps, axis=1).max() <= moments.STRIDE
    assert "beta = 9" in figure.layout.title.text
    assert "heads" not in figure.layout.title.text
    flat = ms.simulate(ms.Attention(dim=2, beta=9.0), sphere.uniform(9, dim=2, seed=0), until=400.0, engine="reference")
    for trace in flat.plot(backend="plotly", log=True).data[2:]:
        assert np.nanmin(np.asarray(trace.x, dtype=float)) > 0  # nothing at t = 0 of a log axis


# ----------------------------------------------------------------------------------------------------------- films


@pytest.mark.parametrize("count", [3, 40, 1000])
def test_a_film_of_saved_states_lasts_as_long_as_asked(count, tmp_path):
    """All saved states were frames, whatever `seconds` was."""
    import imageio_ffmpeg

    times = np.linspace(0.0, 20.0, count)
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), sphere.uniform(5, dim=2, seed=0), times=times, engine="reference")
    run.animate(tmp_path / "film.mp4", seconds=2.0, frames_per_second=10, progress=False)
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "film.mp4"))
    assert frames == 20


def test_frames_are_saved_states_and_follow_the_motion():
    times = np.linspace(0.0, 200.0, 401)
    run = ms.simulate(ms.Attention(dim=3, beta=9.0), sphere.uniform(8, dim=3, seed=3), times=times, engine="reference")
    film = moments.frames(run, 120)
    assert (film.times[0], film.times[-1], len(film.times)) == (0.0, 200.0, 120)
    np.testing.assert_array_equal(film.states, run.states[np.searchsorted(run.times, film.times)])
    np.testing.assert_array_equal(film.path[film.index], film.states)
    way = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(run.states, axis=0), axis=2).max(axis=1)))
    half = run.times[np.searchsorted(way, 0.5 * way[-1])]
    assert half < 20.0  # the motion is over early,
    assert 0.3 < np.mean(film.times <= half) < 0.6  # and takes its share of the film


@pytest.fixture
def scenes(monkeypatch):
    """The scenes of the films that are made; none is written."""
    found = []

    def look(scene, *rest):
        found.append(scene)
        yield np.zeros((4, 4, 3), dtype=np.uint8)

    monkeypatch.setattr(animation, "_pictures", look)
    return found


def test_films_have_a_key(coarse, scenes, tmp_path):
    for dim in (2, 3):
        coarse[dim].animate(tmp_path / "film.gif", seconds=1.0, delta=1.0)
        (key,) = scenes[-1].page.legends
        assert "the cluster that a token ends in" in key.get_title().get_text()
        words = [text.get_text() for text in key.get_texts()]
        sizes = np.bincount(ms.cluster_labels(coarse[dim].final, radius=ms.analysis.cluster_radius(coarse[dim].model)))
        assert [int(word) for word in words if word.isdigit()] == sorted(sizes, reverse=True)[:5]
        assert words[-1] == "strong center"
        assert any("9 saved states" in ax.get_title(loc="left") for ax in scenes[-1].page.axes)


@pytest.mark.parametrize(("delta", "shown"), [(None, 8), (1.0, 5)])
def test_a_key_has_room_for_so_many_clusters(scenes, tmp_path, delta, shown):
    """Centers take the room of three; the test of the key read another number than the code."""
    run = ms.simulate(ms.Attention(dim=3, beta=9.0), sphere.uniform(12, dim=3, seed=0), times=[0.0, 0.1])
    run.animate(tmp_path / "film.gif", seconds=1.0, delta=delta, radius=1e-3)
    (key,) = scenes[-1].page.legends
    assert sum(text.get_text() == "1" for text in key.get_texts()) == shown
    assert f"the {shown} largest of 12 clusters" in key.get_title().get_text()


def test_strong_centers_are_drawn_over_the_others(coarse, scenes, tmp_path):
    """They vanished under black where centers met; and films of d > 3 had no centers at all."""
    for dim, delta in ((2, 0.6), (3, 1.0), (5, 1.5)):
        start = coarse[dim].start
        strong = ms.renyi_centers(start, delta, strong=True).tolist()
        weak = [k for k in ms.renyi_centers(start, delta).tolist() if k not in strong]
        assert min(strong) < max(weak)  # so that order of index would put black on top
        centers, tints = film_key.center_marks(start, delta)
        assert centers.tolist() == weak + strong
        assert tints == [style.RENYI] * len(weak) + [style.STRONG] * len(strong)
        coarse[dim].animate(tmp_path / "film.gif", seconds=1.0, delta=delta)
        (key,) = scenes[-1].page.legends
        assert [text.get_text() for text in key.get_texts()][-2:] == ["Rényi center", "strong center"]
    (marks,) = scenes[-1].page.axes[0].collections
    np.testing.assert_array_equal(np.asarray(marks.get_offsets())[:, 1], weak + strong)
    np.testing.assert_allclose(marks.get_facecolors(), to_rgba_array(tints))
    coarse[5].animate(tmp_path / "film.gif", seconds=1.0)
    assert not scenes[-1].page.legends


def test_the_key_names_the_colours_that_there_are(coarse, scenes, tmp_path):
    """With strong centers only, all marks are red, and the key had a black one."""
    coarse[2].animate(tmp_path / "film.gif", seconds=1.0, delta=3.1)
    assert (
        ms.renyi_centers(coarse[2].start, 3.1).tolist() == ms.renyi_centers(coarse[2].start, 3.1, strong=True).tolist()
    )
    (key,) = scenes[-1].page.legends
    assert [text.get_text() for text in key.get_texts()][-1] == "strong center"
    assert "Rényi center" not in [text.get_text() for text in key.get_texts()]


# -------------------------------------------------------------------------------------------------------- counting


def test_tokens_are_counted_from_zero_everywhere(coarse):
    """`tree.plot()` counted from 1 where `tree.child` and tables count from 0."""
    run = ms.simulate(ms.Attention(dim=2, beta=9.0), sphere.uniform(12, dim=2, seed=2), until=400.0, engine="reference")
    tree = ms.merge_tree(run)
    ax = tree.plot(since=1.0).axes[0]
    named = {int(text.get_text()) for text in ax.get_yticklabels()}
    labels = tree.labels_at(1.0)
    assert named == {int(np.flatnonzero(labels == k)[0]) for k in range(labels.max() + 1)}
    assert 0 in named
    assert "from 0" in ax.get_ylabel()
    predicted = ms.predict_merges(run.at(20.0), run.model, 20.0).plot().axes[0]
    assert {int(text.get_text()) for text in predicted.get_yticklabels()} <= set(range(12))
    cosines = coarse[5].plot().axes[0]
    assert [text.get_text() for text in cosines.get_xticklabels()] == ["0", "11"]
    left = style.figure(2, 2)[1]
    curves.draw_attention(left, np.tri(5) / np.arange(1, 6)[:, None])
    assert [text.get_text() for text in left.get_yticklabels()] == ["0", "4"]
    bars = [ax for ax in coarse[3].plot().axes if ax.get_ylabel().startswith("token")]
    assert bars[0].get_yticks().tolist() == [0, 11]
    assert "token 0" in {trace.text for trace in coarse[2].plot(backend="plotly").data if isinstance(trace.text, str)}


def test_bars_of_predicted_merges_stand_at_their_branches():
    start = sphere.uniform(30, dim=2, seed=5)
    run = ms.simulate(ms.Attention(dim=2, beta=16.0), start, until=100.0, method="tsit5")
    tree = run.predict_merges()
    ax = tree.plot().axes[0]
    place = {int(text.get_text()): tick for tick, text in zip(ax.get_yticks(), ax.get_yticklabels())}
    bars = {line.get_ydata()[0] for line in ax.lines if line.get_marker() == "|"}
    sure = [int(child) for child, doubt in zip(tree.child, tree.doubtful) if not doubt]
    assert bars == {place[child] for child in sure}


def test_a_film_of_many_tokens_invents_no_way_between_saved_states(coarse, monkeypatch, tmp_path):
    """Dotted lines of thousands of tokens would fuse into wedges; there are strips of the saved states, and the rest is hatched."""
    seen = []

    def look(scene, *_):
        seen.append(scene.page)
        raise KeyboardInterrupt

    monkeypatch.setattr(animation, "_pictures", look)
    monkeypatch.setattr(animation, "MANY", 12)
    with pytest.raises(KeyboardInterrupt):
        coarse[2].animate(tmp_path / "film.gif", seconds=1.0)
    axis = seen[0].axes[1]
    assert not lines_of(axis, dotted=True)
    assert "9 saved states (strips); hatched: not known" in axis.get_title(loc="left")


def test_a_logarithmic_axis_says_that_it_leaves_out_the_start(monkeypatch):
    """It said "4 saved states" and drew three."""
    run = ms.simulate(ms.Attention(dim=2, beta=9.0), sphere.uniform(6, dim=2, seed=0), times=[0.0, 1.0, 10.0, 50.0])
    monkeypatch.setattr("metastable.figures.run_view.MANY", 5)
    told = {log: run.plot(log=log).axes[0].get_title(loc="left") for log in (False, True)}
    assert "4 saved states (strips)" in told[False]
    assert "3 saved states behind $t = 0$ (strips)" in told[True]


def test_marks_behind_the_ball_are_pale_and_below_what_is_in_front(monkeypatch, tmp_path):
    """Edges of dots behind the ball were as white as in front, and marks were drawn over everything or not at all."""
    start = np.array([[1.0, 0, 0], [-1.0, 0, 0], [0, 1.0, 0], [0, -1.0, 0], [0, 0, 1.0], [0, 0, -1.0]])
    run = ms.simulate(ms.Attention(dim=3, beta=30.0), start, until=1.0, engine="reference")
    seen = []

    def look(scene, *_):
        scene.update(0)
        seen.append(scene)
        raise KeyboardInterrupt

    monkeypatch.setattr(animation, "_pictures", look)
    with pytest.raises(KeyboardInterrupt):
        run.animate(tmp_path / "film.gif", seconds=1.0, delta=0.5)
    _, back_dots, back_rings, _, front_dots, front_rings, _ = seen[0].moving
    assert len(back_rings.get_offsets()) == len(front_rings.get_offsets()) == 3
    for back, front in ((back_dots, front_dots), (back_rings, front_rings)):
        assert (back.get_edgecolor()[:, 3] == 1.0).all()  # or a heap of them would be dark
        assert back.get_zorder() < front.get_zorder()
    assert back_rings.get_edgecolor()[:, :3].min() > 0.6 > front_rings.get_edgecolor()[:, :3].min()
    assert back_dots.get_facecolor()[:, :3].min() > 0.6 > front_dots.get_facecolor()[:, :3].min()


@pytest.mark.parametrize("dim", [2, 3, 8])
def test_what_is_said_of_saved_states_is_on_the_page(coarse, dim):
    """Before, the sentence over the ball was cut at the edge of the page."""
    run = (
        coarse[dim]
        if dim in coarse
        else ms.simulate(ms.Attention(dim=dim, beta=9.0), sphere.uniform(6, dim=dim, seed=1), times=TIMES)
    )
    page = run.plot()
    page.canvas.draw()
    titles = [ax.title for ax in page.axes] + [ax._left_title for ax in page.axes] + list(page.texts)
    words = [text for text in titles if "saved states" in text.get_text()]
    assert words or page.get_suptitle()
    for text in words:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= page.bbox.x1


def test_a_tree_ends_where_its_run_does():
    """It was drawn to three times the last merge, over merges that the run did not live to see."""
    run = ms.simulate(ms.Attention(dim=2, beta=16.0), sphere.uniform(40, dim=2, seed=0), until=70.0, progress=False)
    for tree in (
        ms.merge_tree(run),
        ms.merge_tree(ms.simulate(run.model, run.start, times=np.linspace(0.0, 70.0, 71))),
    ):
        assert tree.until == pytest.approx(70.0)
        ax = tree.plot().axes[0]
        assert max(line.get_xdata().max() for line in ax.lines) <= 70.0 * (1 + 1e-9)
    assert ms.predict_merges(run.final, run.model, 70.0).until is None
    # Where followers are carried along, the path has an end of its own, in times of its own.
    assert ms.analysis.followers.in_tokens(ms.analysis.merge_tree(run), np.arange(40)).until is None


def test_the_last_merge_of_a_settled_run_is_seen_whole():
    """The run ends with it, and its line and dot were cut by the edge of the axes."""
    run = ms.simulate(ms.Attention(dim=2, beta=9.0), sphere.uniform(40, dim=2, seed=0), until="settled", progress=False)
    tree = ms.merge_tree(run)
    assert tree.time[-1] > 0.99 * tree.until
    ax = tree.plot().axes[0]
    place = np.log(tree.time[-1] / ax.get_xlim()[0]) / np.log(np.divide(*ax.get_xlim()[::-1]))
    assert 0.95 < place < 0.99
