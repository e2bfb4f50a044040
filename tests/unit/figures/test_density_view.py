"""Pictures of densities: what is drawn is what was computed."""

import numpy as np
import pytest
from matplotlib.figure import Figure

import metastable as ms
from metastable.errors import InvalidInputError
from metastable.figures import circle_view, density_view, run_view
from metastable.meanfield import Density, branch, evolve, uniform_branch


@pytest.fixture
def ax():
    return Figure().add_subplot()


def test_an_evolution_is_an_image_of_its_density(ax):
    model = ms.Attention(dim=2, beta=4.0, mask=ms.Full(), noise=0.5)
    evolution = evolve(model, Density.perturbed(2, {2: 0.5}), np.linspace(0, 2, 9))
    image = ms.figures.draw_evolution(ax, evolution, cells=60)
    shown = image.get_array().reshape(60, 9)
    angles, values = evolution.on_circle(60)
    assert np.abs(shown - values.T).max() == 0
    assert values[3] == pytest.approx(evolution.densities[3].at_angle(angles))
    assert ax.get_xlim() == (0.0, 2.0)
    with pytest.raises(InvalidInputError, match="evolve"):
        ms.figures.draw_evolution(ax, "no evolution")
    with pytest.raises(InvalidInputError, match="two times"):
        ms.figures.draw_evolution(ax, evolve(model, Density.uniform(2), [1.0]))


def test_branches_are_drawn_solid_where_stable_and_dashed_elsewhere(ax):
    model = ms.Attention(dim=2, beta=4.0, mask=ms.Full(), weights="unnormalized")
    found = [uniform_branch(model, limits=(0.38, 0.42), points=9), branch(model, limits=(0.38, 0.42))]
    ms.figures.draw_branches(ax, found)
    solid = [line for line in ax.lines if line.get_linestyle() == "-"]
    dashed = [line for line in ax.lines if line.get_linestyle() == "--"]
    assert len(solid) == len(dashed) == 2
    assert max(solid[0].get_xdata()) <= found[0].bifurcations[0] + 1e-9
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert [dot.get_xdata()[0] for dot in dots] == list(found[1].folds)
    with pytest.raises(InvalidInputError, match="branch"):
        ms.figures.draw_branches(ax, [])


def test_the_density_on_the_sphere_faces_the_viewer(ax):
    """All tokens at one place: it is seen from its side, in the middle of the picture, and not from the other one."""
    view = ms.figures.View(azimuth=30.0, elevation=20.0)
    toward = view.rotation[2]
    x = ms.sphere.normalize(toward + 0.02 * np.random.default_rng(0).normal(size=(500, 3)))
    near = ms.figures.draw_sphere_density(ax, x, view, bands=16, resolution=101).get_array()
    far = ms.figures.draw_sphere_density(ax, x, view, bands=16, resolution=101, far=True).get_array()
    assert near[50, 50] > 10
    assert far.count() == 0
    # A token to the right of the middle is seen to the right of it; from behind, what is behind on the right is on the left.
    right = ms.sphere.normalize(toward + 0.5 * view.rotation[0])[None]
    columns = np.argwhere(ms.figures.draw_sphere_density(ax, right, view, bands=16, resolution=101).get_array())[:, 1]
    assert columns.mean() > 55
    counts = density_view.sphere_counts(ms.sphere.uniform(20000, 3, 0), 4)
    assert counts.mean() == pytest.approx(1.0)
    assert np.abs(counts - 1).max() < 0.2


def test_thousands_of_tokens_on_the_sphere_are_a_density():
    x = ms.sphere.uniform(run_view.MANY, dim=3, seed=0)
    run = ms.simulate(ms.Attention(dim=3, beta=4.0), x, times=[0.1, 0.2], engine="cpu")
    page = ms.figures.draw_run(run)
    assert len([axis for axis in page.axes if axis.images]) == 6


def test_a_ring_of_bars(ax):
    ms.figures.draw_ring(ax, ms.sphere.from_angle([0.01] * 4 + [3.0]), cells=36, reach=0.5)
    lengths = [np.hypot(line.get_xdata()[1], line.get_ydata()[1]) for line in ax.lines[1:]]
    assert max(lengths) == pytest.approx(1.5)
    assert sorted(lengths)[-2] == pytest.approx(1.25)


def test_columns_of_a_density_meet_where_tokens_went_no_farther_than_can_be_seen(ax):
    """Saved states that are near one another leave no gaps; those of a run that is fast for a while leave them there only."""
    model, start = ms.Attention(dim=2, beta=16.0), ms.sphere.uniform(200, 2, 0)

    def drawn(times):
        run = ms.simulate(model, start, times=times, progress=False)
        page = Figure().add_subplot()
        run_view.world_counts(page, run, 100, False)
        return page

    fine, coarse = drawn(np.linspace(0, 4, 81)), drawn(np.append(np.linspace(0, 2, 41), 20.0))
    assert "hatched" not in fine.get_title(loc="left")
    assert "41 saved" not in fine.get_title(loc="left")
    assert not fine.patches
    assert "42 saved states (strips); hatched: not known" in coarse.get_title(loc="left")
    assert len(coarse.patches) == 1
    edges, owner = circle_view._columns(np.array([0.0, 1.0, 2.0, 10.0]), False, np.array([False, False, True]))
    np.testing.assert_allclose(
        edges, [0.0, 0.5, 1.5, 2.0 + 10.0 * circle_view.STRIP, 10.0 - 20.0 * circle_view.STRIP, 10.0]
    )
    assert owner.tolist() == [0, 1, 2, -1, 3]
