"""Films of the circle: piles of dots are as high as their clusters are large, and nothing of them is cut off."""

import numpy as np
import pytest

import metastable as ms
from metastable.figures import animation, circle_view
from metastable.figures.moments import frames


def _scene(run, count=4):
    return animation._scene(run, frames(run, count), False, 0.1, None, None, animation.DEFAULT_VIEW)


@pytest.mark.parametrize(("tokens", "beta"), [(3, 4.0), (40, 1.0), (200, 30.0), (2500, 30.0)])
def test_no_dot_of_a_film_lies_outside_its_axes(tokens, beta):
    run = ms.simulate(ms.Attention(dim=2, beta=beta), ms.sphere.uniform(tokens, 2, seed=1), until=30.0)
    scene = _scene(run)
    dots = next(artist for artist in scene.moving if hasattr(artist, "get_offsets"))
    size = 1.1 * np.sqrt(dots.get_sizes()[0]) / 144.0 / (dots.axes.get_position().width * scene.page.get_figwidth())
    for frame in range(4):
        scene.update(frame)
        within = dots.axes.transAxes.inverted().transform(dots.axes.transData.transform(dots.get_offsets()))
        assert within.shape == (tokens, 2)
        assert within.min() > size
        assert within.max() < 1.0 - size


def test_piles_of_a_film_are_as_high_as_clusters_are_large():
    """At n = 200 clusters of 51 and of 43 tokens were equally high: both ended at the edge of the axes."""
    sizes = (51, 43, 7)
    start = np.repeat(ms.sphere.from_angle(np.array([0.51, 2.51, 4.51])), sizes, axis=0)
    run = ms.simulate(ms.Attention(dim=2, beta=200.0), start, times=[0.0, 1.0])
    scene = _scene(run, 2)
    dots = next(artist for artist in scene.moving if hasattr(artist, "get_offsets"))
    scene.update(1)
    radii = np.linalg.norm(dots.get_offsets(), axis=1)
    heights = [piece.max() - 1.0 for piece in np.split(radii, np.cumsum(sizes)[:-1])]
    np.testing.assert_allclose(np.divide(heights, np.array(sizes) - 1), heights[0] / (sizes[0] - 1), rtol=1e-12)
    np.testing.assert_allclose(heights[0], animation.REACH)


def test_a_token_that_goes_from_edge_to_edge_divides_by_nothing():
    """From exactly +pi to -pi there is no way to go; it was 0/0."""
    with np.errstate(all="raise"):
        times, path = circle_view.break_wraps(np.arange(3.0), np.array([3.0, np.pi, -np.pi]))
    np.testing.assert_array_equal(path, [3.0, np.pi, np.pi, np.nan, -np.pi, -np.pi])
    assert np.isfinite(times[~np.isnan(path)]).all()
