"""Frozen tokens, joints of a Schedule and the red first token: pictures and films show what they are about, and say so."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba

import metastable as ms
from metastable.errors import InvalidInputError
from metastable.figures import animation, style
from metastable.figures.landmarks import CHANGES, EARLIER, FROZEN, MARKER, draw_frozen, draw_joints, landmarks
from metastable.figures.moments import frames
from metastable.figures.run_view import MANY, gram
from metastable.figures.sphere_view import DEFAULT_VIEW

ANGLES = np.array([-2.0, 1.0])


def on_circle(*angles):
    return np.column_stack([np.cos(angles), np.sin(angles)])


def simulated(dim, places, tokens=6):
    """A run with one piece for each array of frozen tokens (None: no frozen ones), joints at 2, 4, ..."""
    models = [
        ms.Attention(dim=dim, beta=4.0 + k, frozen=None if place is None else ms.Frozen(place))
        for k, place in enumerate(places)
    ]
    schedule = ms.Schedule([(2.0 * k, model) for k, model in enumerate(models)])
    start = ms.sphere.uniform(tokens, dim=dim, seed=dim)
    return ms.simulate(schedule, start, until=2.0 * len(models), engine="reference", progress=False)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def runs():
    eye = np.eye(5)
    return {
        "circle": simulated(2, [on_circle(*ANGLES), on_circle(1.0), None]),
        "ball": simulated(3, [np.eye(3)[:1], -np.eye(3)[:1]]),
        "gram": simulated(5, [eye[:1], eye[1:4], None]),
        **{dim: simulated(dim, [None]) for dim in (2, 3, 5)},
    }


def film_of(run, count=12):
    with style.theme("screen"):
        return animation._scene(run, frames(run, count), False, 0.1, None, None, DEFAULT_VIEW)


def key(page):
    return [text.get_text() for legend in page.legends for text in legend.get_texts()]


def diamonds_of(ax):
    """Where hollow diamonds are, all collections together."""
    from matplotlib.markers import MarkerStyle

    shape = MarkerStyle(MARKER)
    path = shape.get_path().transformed(shape.get_transform()).vertices
    found = [
        np.asarray(part.get_offsets())
        for part in ax.collections
        if len(part.get_paths()) and np.array_equal(part.get_paths()[0].vertices, path)
    ]
    return np.concatenate([part for part in found if len(part)] or [np.empty((0, 2))])


def dashed(ax):
    """Dashed lines of constant angle: (angle, first depth, last depth)."""
    found = [
        part for part in ax.collections if hasattr(part, "get_segments") and part.get_linestyle()[0][1] is not None
    ]
    return [(line[0, 1], line[0, 0], line[1, 0]) for part in found for line in part.get_segments()]


def uprights(ax):
    """Depths of the vertical lines."""
    lines = (np.asarray(line.get_xdata(), dtype=float) for line in ax.lines)
    return sorted(x[0] for x in lines if len(x) == 2 and x[0] == x[1])


# ---------------------------------------------------------------------------------------------------------- circle


def test_frozen_tokens_are_on_the_circle_and_among_world_lines():
    page = simulated(2, [on_circle(*ANGLES)]).plot()
    np.testing.assert_allclose(diamonds_of(page.axes[1]), on_circle(*ANGLES), atol=1e-14)
    np.testing.assert_allclose(dashed(page.axes[0]), [(angle, 0.0, 2.0) for angle in ANGLES])
    assert key(page) == [FROZEN]


def test_lines_of_frozen_tokens_last_as_long_as_their_models(runs):
    page = runs["circle"].plot()
    np.testing.assert_allclose(sorted(dashed(page.axes[0])), [(-2.0, 0.0, 2.0), (1.0, 0.0, 4.0)])
    assert not len(diamonds_of(page.axes[1]))  # none at the end
    assert uprights(page.axes[0]) == [2.0, 4.0]
    assert key(page) == [FROZEN, CHANGES]


def test_an_angle_of_pi_is_at_both_edges():
    lines = dashed(simulated(2, [on_circle(np.pi)]).plot().axes[0])
    np.testing.assert_allclose(sorted(line[0] for line in lines), [-np.pi, np.pi], atol=0.021)


def test_densities_have_them_too():
    run = simulated(2, [on_circle(*ANGLES)], tokens=MANY)
    page = run.plot(moments=10)
    assert len(dashed(page.axes[0])) == 2
    assert len(diamonds_of(page.axes[1])) == 2
    assert key(page) == [FROZEN]


def test_log_time_begins_where_its_axis_does(runs):
    ax = runs["circle"].plot(log=True).axes[0]
    low, high = ax.get_xlim()
    assert all(low <= first < last <= high for _, first, last in dashed(ax))
    assert uprights(ax) == [2.0, 4.0]


@pytest.mark.parametrize("saved", [False, True])
def test_the_first_token_is_red_where_the_title_says_so(saved):
    start = ms.sphere.uniform(9, dim=2, seed=1)
    when = {"times": [1.0, 3.0]} if saved else {"until": 3.0}
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), start, engine="reference", progress=False, **when)
    page = run.plot()
    assert "first token red" in page.axes[0].get_title(loc="left")
    red = [
        np.asarray(part.get_offsets())
        for part in page.axes[1].collections
        if to_rgba(style.RED) in map(tuple, part.get_facecolor())
    ]
    np.testing.assert_allclose(np.concatenate(red), run.final[:1], atol=1e-12)
    figure = run.plot(backend="plotly", moments=10)
    assert "first token red" in figure.layout.title.text
    assert figure.data[1].marker.color[0] == style.RED


# ------------------------------------------------------------------------------------------------------------ ball


def test_on_the_ball_red_is_the_end_and_the_title_says_so(runs):
    ax = runs[3].plot().axes[0]
    assert "(red)" in ax.get_title(loc="left")
    assert "first token" not in ax.get_title(loc="left")
    filled = [part for part in ax.collections if len(part.get_facecolor())]
    red = [part for part in filled if np.allclose(part.get_facecolor()[0, :3], to_rgba(style.RED)[:3])]
    assert sum(len(part.get_offsets()) for part in red) == len(runs[3].final)


def test_frozen_tokens_are_on_the_ball(runs):
    page = runs["ball"].plot()
    expected = DEFAULT_VIEW.project(-np.eye(3)[:1])
    np.testing.assert_allclose(diamonds_of(page.axes[0]), expected[:, :2], atol=1e-14)
    assert expected[0, 2] < 0  # behind it, so paler
    behind = [part for part in page.axes[0].collections if np.allclose(part.get_offsets(), expected[:, :2])]
    assert behind[0].get_edgecolor()[0, 3] < 0.5
    assert key(page) == [FROZEN, EARLIER]


# ----------------------------------------------------------------------------------------------------------- d > 3


def test_cosines_with_frozen_tokens_are_rows_below():
    x, still = ms.sphere.uniform(4, dim=5, seed=0), np.eye(5)[:2]
    matrix = gram(x, still, 3)
    np.testing.assert_allclose(matrix[:4], x @ x.T, atol=1e-15)
    np.testing.assert_allclose(matrix[4:6], still @ x.T, atol=1e-15)
    assert np.isnan(matrix[6]).all()


def test_matrices_show_the_frozen_tokens_of_their_moment(runs):
    page = runs["gram"].plot()
    rows = [int(np.isfinite(ax.images[0].get_array().filled(np.nan)[6:]).all(axis=1).sum()) for ax in page.axes[:3]]
    assert rows[0] == 1
    assert rows[2] == 0
    assert uprights(page.axes[3]) == [2.0, 4.0]
    assert len(key(page)) == 2
    assert key(page)[0].startswith(FROZEN)


# ----------------------------------------------------------------------------------------------------------- films


@pytest.mark.parametrize("name", ["circle", "ball"])
def test_films_show_the_frozen_tokens_of_their_moment(runs, name):
    run = runs[name]
    film, scene = frames(run, 12), film_of(run)
    assert FROZEN in key(scene.page)
    for frame, t in enumerate(film.times):
        scene.update(frame)
        frozen = run.model_at(float(t)).frozen
        place = np.empty((0, run.start.shape[1])) if frozen is None else frozen.tokens
        expected = place if name == "circle" else DEFAULT_VIEW.project(place)[:, :2]
        np.testing.assert_allclose(diamonds_of(scene.page.axes[0]), expected, atol=1e-14)
    if name == "circle":
        assert set(uprights(scene.page.axes[1])) >= {2.0, 4.0}
        assert CHANGES in key(scene.page)


def test_films_of_cosines_have_rows_for_frozen_tokens(runs):
    scene = film_of(runs["gram"])
    image, border, *_ = scene.moving
    assert image.get_array().shape == (9, 6)
    scene.update(0)
    assert border.get_visible()
    scene.update(11)
    assert not border.get_visible()


# ------------------------------------------------------------------------------------------------- nothing to show


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_models_without_frozen_tokens_or_joints_have_no_marks(runs, dim):
    page = runs[dim].plot()
    assert not page.legends
    assert all(not len(diamonds_of(ax)) for ax in page.axes)
    found = landmarks(runs[dim])
    assert not found.any_frozen
    assert found.joints == ()


def test_a_joint_between_equal_models_is_none():
    model = ms.Attention(dim=2, beta=4.0)
    run = ms.simulate(ms.Schedule([(0.0, model), (1.0, model)]), on_circle(0.0, 1.0), until=2.0, progress=False)
    assert landmarks(run).joints == ()


def test_very_many_joints_are_ticks():
    _page, ax = style.figure()
    ax.set_xlim(0.0, 100.0)
    draw_joints(ax, np.arange(-5.0, 120.0))
    assert uprights(ax) == []
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), np.arange(1.0, 100.0))


def test_plotly_has_diamonds_that_follow_the_slider(runs):
    for name in ("circle", "ball"):
        figure = runs[name].plot(backend="plotly", moments=10)
        assert FROZEN in [trace.name for trace in figure.data]
        number = figure.frames[0].traces[1]
        assert figure.data[number].name == FROZEN
        assert len(figure.frames[0].data[1].x) == len(runs[name].model.frozen.tokens)
    assert CHANGES in [trace.name for trace in runs["circle"].plot(backend="plotly", moments=10).data]


def test_frozen_tokens_of_other_dimensions_are_refused():
    _page, ax = style.figure()
    with pytest.raises(InvalidInputError, match="frozen tokens"):
        draw_frozen(ax, np.eye(4))


def test_merge_trees_show_where_the_model_changes(runs):
    """As every other picture against depth; a predicted tree, and one of a single model, has no joints."""
    run = runs["circle"]
    tree = ms.merge_tree(run, radius=0.3)
    assert tree.joints == landmarks(run).joints == (2.0, 4.0)
    page = tree.plot(since=0.5)
    (ax,) = page.axes
    low, high = ax.get_xlim()
    across = [line for line in ax.lines if line.get_transform() == ax.get_xaxis_transform(which="grid")]
    drawn = {line.get_xdata()[0] for line in across}
    assert drawn == {t for t in tree.joints if low < t < high} != set()
    assert key(page) == [CHANGES]
    short = ms.simulate(run.schedule, run.start, times=[0.0, 1.0, 3.0], engine="reference", progress=False)
    assert ms.merge_tree(short, radius=0.3).joints == (2.0,)
    for other in (ms.merge_tree(runs[2], radius=0.3), runs[2].predict_merges(radius=0.3)):
        assert other.joints == ()
        assert key(other.plot()) == []
