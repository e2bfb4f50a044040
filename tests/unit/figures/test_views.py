"""Projections and primitives: geometry that can be checked, and drawings that put things where they belong."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metastable import sphere
from metastable.errors import InvalidInputError
from metastable.figures import circle_view, curves, sphere_view, style
from metastable.figures.sphere_view import View

degrees = st.floats(-179, 179)


@given(degrees, st.floats(-80, 80))
def test_camera_is_a_rotation(azimuth, elevation):
    rotation = View(azimuth, elevation).rotation
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(rotation) == pytest.approx(1.0)


@given(degrees, st.floats(-80, 80))
def test_the_point_under_the_camera_is_in_the_middle_and_in_front(azimuth, elevation):
    a, e = np.deg2rad([azimuth, elevation])
    point = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
    np.testing.assert_allclose(View(azimuth, elevation).project(point), [0, 0, 1], atol=1e-12)


def test_up_is_up():
    assert View(20, 30).project([0.0, 0.0, 1.0])[1] > 0


def offsets(ax):
    return {round(c.get_zorder(), 3): np.asarray(c.get_offsets()) for c in ax.collections}


def test_points_behind_the_ball_are_drawn_behind_it():
    _page, ax = style.figure()
    view = View(0, 0)  # looks along x
    sphere_view.draw_ball(ax, view, graticule=False)
    sphere_view.draw_points(ax, np.array([[1.0, 0, 0], [-1.0, 0, 0], [0, 1.0, 0]]), view)
    ball = next(image.get_zorder() for image in ax.images)
    behind = sum(len(xy) for order, xy in offsets(ax).items() if order < ball)
    front = sum(len(xy) for order, xy in offsets(ax).items() if order > ball)
    assert (behind, front) == (1, 2)


@pytest.mark.parametrize("fade", [False, True])
def test_paths_are_split_at_the_horizon(fade):
    _page, ax = style.figure()
    turn = np.linspace(0, 2 * np.pi, 101)
    circle = np.column_stack([np.cos(turn), np.sin(turn), 0 * turn])[:, None]
    sphere_view.draw_paths(ax, circle, View(0, 0), fade=fade)
    sizes = sorted(sum(len(line) - 1 for line in c.get_segments()) for c in ax.collections)
    assert sum(sizes) == 100
    assert sizes[0] >= 45
    lines = sum(len(c.get_segments()) for c in ax.collections)
    assert lines == (100 if fade else 3)  # the front half is cut where the circle begins


def test_dimension_is_checked():
    _page, ax = style.figure()
    with pytest.raises(InvalidInputError, match="circle view"):
        sphere_view.draw_points(ax, np.eye(2))
    with pytest.raises(InvalidInputError, match="sphere view"):
        circle_view.angles_of(np.eye(3))


def test_caps_have_their_radius():
    _page, ax = style.figure()
    center = np.array([[1.0, 0.0, 0.0]])
    sphere_view.draw_caps(ax, center, 0.3, View(0, 0))
    points = np.concatenate([np.concatenate(c.get_segments()) for c in ax.collections])
    np.testing.assert_allclose(np.hypot(*points.T), np.sin(0.3), rtol=1e-9)


def test_stacks_count_tokens():
    angles = np.array([0.01, 0.02, 0.015, 2.0])
    np.testing.assert_allclose(circle_view.stacked_radii(angles, 0.5, 0.1), [1.0, 1.1, 1.2, 1.0])


def test_world_lines_leave_at_the_edge_and_come_back_at_the_other():
    times, path = circle_view.break_wraps(np.arange(4.0), np.array([3.0, 3.1, -3.1, -3.0]))
    np.testing.assert_allclose(path, [3.0, 3.1, np.pi, np.nan, -np.pi, -3.1, -3.0])
    # The straight line from 3.1 to -3.1 + 2 pi meets pi in the middle; it used to run along the edge until t = 2 and jump there.
    np.testing.assert_allclose(times, [0, 1, 1.5, np.nan, 1.5, 2, 3])
    times, path = circle_view.break_wraps(np.arange(3.0), np.array([0.0, 0.1, 0.2]))
    assert path.size == 3


@pytest.mark.parametrize("log", [False, True])
def test_wrapped_lines_are_straight_across_the_edge(log):
    """Coarse output: on both sides of the edge the line is the one to the unwrapped angle, straight on the axis that is drawn."""
    times = np.geomspace(1.0, 1e6, 7) if log else np.linspace(1.0, 7.0, 7)
    turning = 2.0 + 1.4 * np.arange(7)
    wrapped = np.angle(np.exp(1j * turning))
    t, path = circle_view.break_wraps(times, wrapped, log)
    axis = np.log(t) if log else t
    known = np.isfinite(t)
    expected = np.interp(axis[known], np.log(times) if log else times, turning)
    np.testing.assert_allclose(np.exp(1j * path[known]), np.exp(1j * expected), atol=1e-12)
    assert np.isnan(t).sum() == 2  # the angle passes pi and 3 pi


def test_many_tokens_are_counted_not_drawn_over_each_other():
    _page, ax = style.figure()
    times = np.linspace(0, 1, 5)
    states = np.repeat(sphere.uniform(3000, dim=2, seed=0)[None], 5, axis=0)
    image = circle_view.draw_world_density(ax, times, states, cells=40)
    cells = np.ma.filled(image.get_array(), 0.0).reshape(40, 5)
    np.testing.assert_array_equal(cells.sum(axis=0), 3000.0)


@pytest.mark.parametrize("dpi", [20, 45, 70, 100, 300])
@pytest.mark.parametrize("log", [False, True])
def test_no_cell_of_a_density_is_lost_between_pixels(dpi, log):
    """Below 83 dpi there were fewer pixels than cells, and clusters vanished from the picture for a while."""
    page, ax = style.figure(4.0, 2.0)
    page.set_dpi(dpi)
    counts = np.zeros((240, 240))
    counts[np.arange(240), np.arange(240)[::-1]] = 5.0  # one cell for each moment
    times = np.geomspace(1.0, 1e9, 240) if log else np.linspace(0.0, 9.0, 240)
    image = circle_view.draw_world_counts(ax, times, counts, log=log)
    shown = image.make_image(None)[0][:, :, 3] > 0
    assert shown.any(axis=0).all()  # every moment
    assert shown.any(axis=1).all()  # every arc
    assert abs(shown.shape[0] - ax.bbox.height) <= 1


@pytest.mark.parametrize("turned", [False, True])
def test_large_cells_are_drawn_where_they_are(turned):
    page, ax = style.figure(4.0, 4.0)
    page.set_dpi(100)
    counts = np.array([[0.0, 1.0, 0.0, 2.0], [3.0, 0.0, 0.0, 1.0]])
    image = circle_view.draw_world_counts(ax, [0.0, 1.0], counts)
    ax.set_xlim(-0.5, 1.5)  # beside the cells there is nothing
    if turned:
        ax.invert_yaxis()
    pixels, _, _, _ = image.make_image(None)
    height, width = pixels.shape[:2]
    rows = ((np.arange(4) + 0.5) / 4 * height).astype(int)[:: -1 if turned else 1]
    shown = pixels[rows][:, ((np.arange(4) + 0.5) / 4 * width).astype(int)]
    expected = image.to_rgba(np.ma.masked_equal(np.column_stack([np.zeros(4), counts.T, np.zeros(4)]), 0.0), bytes=True)
    np.testing.assert_array_equal(shown, expected)
    row = (pixels[rows[1], :, 3] > 0).sum()
    assert abs(row - width / 4) <= 1  # no wider than it is


def test_world_lines_keep_every_token():
    _page, ax = style.figure()
    times = np.linspace(0, 1, 5)
    states = np.repeat(sphere.uniform(7, dim=2, seed=0)[None], 5, axis=0)
    circle_view.draw_world_lines(ax, times, states)
    assert len(ax.collections[0].get_segments()) == 7
    assert ax.get_ylim() == pytest.approx((-np.pi, np.pi))


@pytest.mark.parametrize("seed", range(5))
def test_dendrogram_branches_do_not_cross(seed):
    generator = np.random.default_rng(seed)
    leaders = list(range(8))
    alive, merges = list(leaders), []
    for time in range(1, 8):
        into, absorbed = sorted(generator.choice(alive, 2, replace=False).tolist())
        alive.remove(absorbed)
        merges.append((10.0**time, absorbed, into))
    order = curves.dendrogram_order(leaders, merges)
    assert sorted(order) == leaders
    families = {leader: [leader] for leader in leaders}
    for _, absorbed, into in merges:
        families[into] += families.pop(absorbed)
        places = sorted(order.index(member) for member in families[into])
        assert places == list(range(places[0], places[0] + len(places)))


def test_spectrum_marks_both_of_a_leading_pair():
    _page, ax = style.figure()
    curves.draw_spectrum(ax, np.array([1 + 2j, 1 - 2j, -1.0]))
    assert len(ax.collections[-1].get_offsets()) == 2
    with pytest.raises(InvalidInputError, match="no eigenvalues"):
        curves.draw_spectrum(ax, np.array([]))


def test_attention_matrix_needs_a_matrix():
    _page, ax = style.figure()
    image = curves.draw_attention(ax, np.tril(np.ones((4, 4))) / 4, log=True)
    assert image.get_array().mask.sum() == 6
    with pytest.raises(InvalidInputError, match="matrix"):
        curves.draw_attention(ax, np.ones(3))


def test_no_cluster_is_grey() -> None:
    """Grey is for tokens that stay alone, however many clusters there are."""
    from metastable.figures import flow_view

    labels = np.repeat(np.arange(14), [2] * 12 + [1, 1])
    tree = SimpleNamespace(final_labels=labels)
    colors = flow_view._colors(tree)  # type: ignore[arg-type]
    assert set(colors[24:]) == {flow_view.ALONE}
    assert not set(colors[:24]) & {flow_view.ALONE, style.GREY, style.MUTED}
    assert len(set(colors[:18])) == 9


@pytest.mark.parametrize(
    ("counts", "ticks"),
    [
        ((3, 2, 1), [1, 2, 3]),
        ((7, 7, 6), [6, 7]),
        ((1, 1, 1), [1]),
        ((5, 5, 5), [5]),
        ((24, 12, 9), [10, 15, 20, 25]),
        ((300, 12, 3), [5, 10, 20, 50, 100, 200]),
        ((1e6, 3), [10.0**k for k in range(1, 7)]),
        ((np.nan, 2, 1), [1, 2]),
    ],
)
def test_counts_of_clusters_have_ticks_at_whole_numbers(counts, ticks):
    """An axis from 2 to 7 had no tick, one with a single cluster ticks at 0.1 and 10."""
    from metastable.figures import flow_view

    _page, ax = style.figure()
    layers = np.arange(len(counts))
    flow_view.draw_curves(ax, {"model": (layers, np.array(counts))}, label="clusters", x_label="layer", counted=True)
    assert ax.get_yticks().tolist() == ticks
    ax.figure.canvas.draw()
    assert [text.get_text() for text in ax.get_yticklabels()] == [f"{tick:.0f}" for tick in ticks]
    assert np.array_equal(ax.get_xticks(), np.round(ax.get_xticks()))
