"""The paper's figures draw from plain arrays, in both themes, without overlapping text."""

import itertools

import numpy as np
import pytest

import metastable as ms
from metastable import sphere
from metastable.figures import figure_1, figure_2, figure_3, figure_4, figure_5, figure_6, long_runs, statements

TIMES = np.linspace(0, 150, 16)


def circle_states(tokens=20):
    return np.repeat(sphere.uniform(tokens, dim=2, seed=0)[None], TIMES.size, axis=0)


def make_figure_1():
    states = np.stack([sphere.uniform(6, dim=3, seed=s) for s in range(4)])
    line, plane = np.eye(3)[:, :1], np.eye(3)[:, :2]
    return figure_1.figure_1([figure_1.SpherePanel("a", states, "note", space) for space in (None, line, plane, None)])


def make_figure_2():
    return figure_2.figure_2(TIMES, circle_states(), [0, 1, 2], [0, 2], [0.0, 50.0, 150.0], separate=[3, 3, 2])


def make_figure_3():
    curve = np.linspace(0, 1, 48).reshape(3, 16)
    return figure_3.figure_3(TIMES, curve, curve / 2, members=7)


def make_figure_4():
    x = np.linspace(-np.pi, np.pi, 50)
    return figure_4.figure_4(
        x, np.sin(x), beta=1.0, peak=1.5, height=1.0, betas=[1, 10], peaks=[1, 0.3], predicted=[1, 0.3]
    )


def make_figure_5():
    return figure_5.figure_5(
        np.linalg.eigvals(np.random.default_rng(0).normal(size=(3, 8, 8))), radius=3.0, title="real parts"
    )


def make_figure_6():
    values = np.linalg.eigvals(np.random.default_rng(0).normal(size=(5, 8, 8)))
    return figure_6.figure_6(
        list(values), [f"head {k}" for k in range(5)], np.linspace(-1, 1, 9), np.zeros(5), name="model"
    )


def make_cascade():
    times = np.geomspace(0.1, 1e6, 16)
    run = ms.simulate(ms.Attention(dim=2, beta=9.0), sphere.uniform(10, dim=2, seed=0), times=times)
    return long_runs.long_run(times, run.states, ms.merge_tree(run), since=10.0, law=times * 0 + 1)


def make_plots():
    x = np.linspace(1, 100, 5)
    curves = [statements.Curve("line", x, x), statements.Curve("points", x, x, error=x / 10)]
    return statements.plots([statements.Plot("a", "x", "y", curves, "log", "log")] * 2)


def make_strips():
    strip = statements.Strip("a", TIMES, circle_states(), frozen=sphere.uniform(2, dim=2, seed=5), reach=0.1)
    extra = statements.Plot("b", "x", "y", [statements.Curve("line", [1, 2], [1, 2])])
    return statements.strips([strip, strip], extra)


def make_fractions():
    return statements.fractions_chart(
        [statements.Fraction(f"row {r}", c, r, 4, 0.1, 0.9) for r in range(4) for c in "ab"]
    )


def make_notice():
    return statements.notice("one line", "another")


MAKERS = [
    make_figure_1,
    make_figure_2,
    make_figure_3,
    make_figure_4,
    make_figure_5,
    make_figure_6,
    make_cascade,
    make_plots,
    make_strips,
    make_fractions,
    make_notice,
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_draws_without_warnings_and_labels_every_data_axis(make, recwarn):
    page = make()
    page.canvas.draw()
    assert not [str(warning.message) for warning in recwarn]
    framed = [ax for ax in page.axes if ax.axison]
    for ax in framed:
        ticked = any(label.get_visible() for label in ax.get_xticklabels())
        assert ax.get_xlabel() or ax.get_title(loc="left") or not ticked


@pytest.mark.parametrize("make", [make_figure_3, make_figure_4, make_plots], ids=lambda make: make.__name__)
def test_tick_labels_do_not_overlap(make):
    page = make()
    page.canvas.draw()
    for ax in page.axes:
        boxes = [
            label.get_window_extent() for label in ax.get_xticklabels() if label.get_text() and label.get_visible()
        ]
        boxes = [
            box
            for box in boxes
            if ax.get_window_extent().x0 - 5 <= (box.x0 + box.x1) / 2 <= ax.get_window_extent().x1 + 5
        ]
        for left, right in itertools.pairwise(boxes):
            assert left.x1 <= right.x0 + 1


def test_screen_theme_is_larger():
    curve = np.linspace(0, 1, 48).reshape(3, 16)
    small = figure_3.figure_3(TIMES, curve, curve, members=1)
    large = figure_3.figure_3(TIMES, curve, curve, members=1, theme="screen")
    assert large.axes[0].xaxis.label.get_size() > small.axes[0].xaxis.label.get_size()
