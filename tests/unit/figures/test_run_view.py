"""`Run.plot`, `Run.animate` and the plotly backend, on small real runs."""

import numpy as np
import pytest

from metastable import sphere
from metastable.errors import InvalidInputError, StoreError, TimeError, UnsupportedError
from metastable.figures import run_view, style, titles
from metastable.figures.animation import animate
from metastable.model import Attention, Full
from metastable.run import simulate


@pytest.fixture(scope="module")
def runs():
    return {
        dim: simulate(
            Attention(dim=dim, beta=9.0),
            sphere.uniform(8, dim=dim, seed=dim),
            until=10.0,
            method="tsit5",
            engine="reference",
        )
        for dim in (2, 3, 5)
    }


@pytest.fixture(scope="module")
def thinned():
    start = sphere.uniform(6, dim=2, seed=1)
    return simulate(Attention(dim=2, beta=4.0), start, times=[1.0, 2.0, 4.0], method="tsit5", engine="reference")


def close(page):
    import matplotlib.pyplot as plt

    plt.close(page)


@pytest.mark.parametrize(("dim", "axes"), [(2, 3), (3, 2), (5, 5)])
def test_plot_picks_by_dimension(runs, dim, axes):
    page = runs[dim].plot()
    assert len(page.axes) == axes
    page.canvas.draw()
    close(page)


def test_plot_is_known_to_pyplot(runs):
    import matplotlib.pyplot as plt

    page = runs[3].plot(theme="print")
    assert plt.fignum_exists(page.number)
    close(page)


def test_log_time(runs):
    page = runs[2].plot(log=True)
    assert page.axes[0].get_xscale() == "log"
    close(page)


def test_sample_uses_dense_output_and_ends_exactly(runs):
    times, states = run_view.sample(runs[2], 50)
    assert times.size == 50
    np.testing.assert_allclose(states[-1], runs[2].final, atol=1e-12)
    np.testing.assert_allclose(states[0], runs[2].start, atol=1e-12)
    times, states = run_view.sample(runs[2], 50, log=True)
    assert times[0] == 0
    assert times[-1] == 10.0
    np.testing.assert_allclose(np.linalg.norm(states, axis=-1), 1.0)


def test_runs_without_dense_output_show_their_saved_states(thinned):
    times, states = run_view.sample(thinned, 50)
    np.testing.assert_allclose(times, [0.0, 1.0, 2.0, 4.0])
    np.testing.assert_allclose(states[0], thinned.start)


def test_wrong_arguments_are_refused(runs):
    with pytest.raises(InvalidInputError, match="backend"):
        runs[2].plot(backend="gnuplot")
    with pytest.raises(InvalidInputError, match="moments"):
        runs[2].plot(moments=1)
    with pytest.raises(UnsupportedError, match="matplotlib"):
        runs[5].plot(backend="plotly")


def test_a_run_that_never_started_is_refused(runs):
    class Still:
        times = np.array([0.0])
        states = np.zeros((1, 2, 2))
        model = runs[2].model
        start = final = np.eye(2)

        def at(self, t):
            return self.start

    with pytest.raises(TimeError, match="only its start"):
        run_view.draw_run(Still())


def test_mean_cosine_matches_the_definition(runs):
    x = runs[5].final
    gram = x @ x.T
    expected = gram[~np.eye(len(x), dtype=bool)].mean()
    assert run_view.mean_cosine(x[None])[0] == pytest.approx(expected)


def test_description_says_what_is_not_default():
    text = titles.describe(Attention(dim=4, beta=2.0, mask=Full(), weights="hardmax"), 7)
    assert "full" in text
    assert "hardmax" in text
    assert "n = 7" in text


@pytest.mark.parametrize("dim", [2, 3])
def test_plotly_has_a_slider_and_every_token(runs, dim):
    figure = runs[dim].plot(backend="plotly", moments=20)
    assert len(figure.layout.sliders[0].steps) == len(figure.frames)
    lines = [trace for trace in figure.data if getattr(trace, "mode", "") == "lines" and trace.text]
    assert len(lines) == 8
    assert "beta = 9" in figure.layout.title.text


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_gif_has_its_frames(runs, dim, tmp_path):
    from PIL import Image

    target = tmp_path / "film.gif"
    animate(runs[dim], target, seconds=1.0, frames_per_second=8, delta=1.0, progress=False)
    with Image.open(target) as film:
        # Pillow drops frames that equal the one before: the second that the last picture is held.
        assert film.n_frames >= 4
    assert [path.name for path in tmp_path.iterdir()] == ["film.gif"]


def test_mp4_plays(runs, tmp_path):
    import imageio_ffmpeg

    target = tmp_path / "film.mp4"
    runs[3].animate(target, seconds=0.5, frames_per_second=8, progress=False)
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(target))
    assert frames == 4
    assert seconds == pytest.approx(0.5, abs=0.15)
    size = next(imageio_ffmpeg.read_frames(str(target)))["size"]
    assert all(side % 2 == 0 for side in size)


def test_films_are_refused_before_work(runs, tmp_path):
    with pytest.raises(InvalidInputError, match=r"\.mp4 or \.gif"):
        animate(runs[2], tmp_path / "film.avi")
    with pytest.raises(StoreError, match="does not exist"):
        animate(runs[2], tmp_path / "missing" / "film.gif")
    with pytest.raises(InvalidInputError, match="seconds"):
        animate(runs[2], tmp_path / "film.gif", seconds=0)


def test_center_marks_are_red_when_strong(runs):
    from metastable.analysis import renyi_centers
    from metastable.figures.film_key import center_marks

    start = sphere.uniform(40, dim=2, seed=3)
    centers, colors = center_marks(start, 0.5)
    strong = set(renyi_centers(start, 0.5, strong=True).tolist())
    assert [color == style.STRONG for color in colors] == [k in strong for k in centers.tolist()]


def test_saved_densities_are_strips_with_nothing_between():
    start = sphere.uniform(run_view.MANY, dim=2, seed=1)
    run = simulate(Attention(dim=2, beta=4.0), start, times=[0.0, 1.0, 3.0], progress=False)
    page = run.plot()
    ax = page.axes[0]
    (image,) = ax.images
    edges, cells = image.edges[0], np.ma.getmaskarray(image.get_array()).all(axis=0)
    np.testing.assert_array_equal(cells, [False, True, False, True, False])
    assert np.diff(edges)[~cells].max() <= 3.001 / 80
    assert len(ax.patches) == 2  # hatched
    assert "hatched" in ax.get_title(loc="left")
    close(page)


@pytest.mark.parametrize(("seconds", "pace"), [(1.0, 10), (3.0, 10), (2.0, 30), (1.5, 60), (1.0, 120)])
def test_a_gif_lasts_as_long_as_asked_for(runs, tmp_path, seconds, pace):
    """A picture stands for whole hundredths of a second, 3 or 4 of them at 30 a second: cut off, they were 3.7 s of 4."""
    from PIL import Image

    animate(runs[5], tmp_path / "film.gif", seconds=seconds, frames_per_second=pace, progress=False)
    with Image.open(tmp_path / "film.gif") as film:
        total = 0
        for frame in range(film.n_frames):
            film.seek(frame)
            total += film.info["duration"]
            assert film.info["duration"] >= 20
    assert total == pytest.approx(1000 * seconds, abs=11)


def inside(page, text):
    """True when a text is on the page with all its letters."""
    page.canvas.draw()
    box = text.get_window_extent()
    return box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page.bbox.x1 and box.y1 <= page.bbox.y1


def test_labels_and_titles_are_on_the_page():
    import metastable as ms

    model = Attention(dim=2, beta=16.0)
    tree = ms.merge_tree(simulate(model, sphere.uniform(5, dim=2, seed=3), until="settled", progress=False))
    page = tree.plot()
    assert inside(page, page.axes[0].yaxis.label)
    close(page)
    with pytest.warns(ms.errors.StoppedEarlyWarning):
        stats = ms.ensemble(
            model,
            tokens=10,
            members=3,
            times=[0.0, 2.0],
            seed=0,
            max_steps=8,
            observe={"c": ms.observe.clusters(), "v": lambda x: x[:2, 0]},
        )
    page = ms.plot_ensemble(stats)
    assert "not drawn: v" in page._suptitle.get_text().replace("\n", " ")
    assert inside(page, page._suptitle)
    close(page)
