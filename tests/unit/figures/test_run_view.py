"""`Run.plot`, `Run.animate` and the plotly backend, on small real runs."""

import numpy as np
import pytest

from metastable import sphere
from metastable.errors import InvalidInputError, StoreError, TimeError, UnsupportedError
from metastable.figures import run_view, style
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
    text = run_view.describe(Attention(dim=4, beta=2.0, mask=Full(), weights="hardmax"), 7)
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
    animate(runs[dim], target, seconds=0.5, frames_per_second=8, delta=1.0, progress=False)
    with Image.open(target) as film:
        # Pillow drops frames that equal the one before: the second that the last picture is held.
        assert film.n_frames >= 4
    assert [path.name for path in tmp_path.iterdir()] == ["film.gif"]


def test_mp4_plays(runs, tmp_path):
    import imageio_ffmpeg

    target = tmp_path / "film.mp4"
    runs[3].animate(target, seconds=0.5, frames_per_second=8, progress=False)
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(target))
    assert frames == 4 + 8
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
    from metastable.figures.animation import _center_marks

    start = sphere.uniform(40, dim=2, seed=3)
    centers, colors = _center_marks(start, 0.5)
    strong = set(renyi_centers(start, 0.5, strong=True).tolist())
    assert [color == style.STRONG for color in colors] == [k in strong for k in centers.tolist()]
