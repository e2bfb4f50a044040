"""Axes of counts: ticks are whole numbers with their labels, wherever the numbers lie."""

import numpy as np
import pytest

import metastable as ms
from metastable.figures import style
from metastable.figures.whole_numbers import COUNT_ROOM, MOST_COUNTS, count_axis


def axis_of(counts):
    """Ticks, their labels and the limits of an axis of counts."""
    page, ax = style.figure()
    count_axis(ax, counts)
    page.canvas.draw()
    labels = [label.get_text() for label in ax.get_yticklabels()]
    return ax.get_yticks().tolist(), labels, ax.get_ylim()


@pytest.mark.parametrize(
    ("counts", "ticks"),
    [
        ([1.2, 1.4], [1.0]),  # were 1.1, 1.2, ..., all labelled 1
        ([1.6, 1.7], [2.0]),
        ([0.3, 0.5], [1.0]),  # had none
        ([0.1, 0.6], [1.0]),
        ([12.3, 12.4], [11.0, 12.0, 13.0]),
        ([1.9, 2.6], [2.0]),
        ([2.0, 7.0], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
        ([1.0, 500.0], [1.0, 10.0, 100.0]),
        ([1.0], [1.0]),
        ([], [1.0]),
    ],
)
def test_ticks_are_whole_numbers(counts, ticks):
    found, labels, (low, high) = axis_of(counts)
    assert found == ticks
    assert labels == [f"{tick:.0f}" for tick in ticks]
    # Around the counts; and around the tick, where there is none among them.
    known = counts if len(ticks) > 1 or (counts and min(counts) <= ticks[0] <= max(counts)) else [*counts, *ticks]
    assert (low, high) == pytest.approx((min(known) / COUNT_ROOM, max(known) * COUNT_ROOM))


def test_every_axis_has_ticks_that_can_be_read():
    rng = np.random.default_rng(0)
    for counts in 10.0 ** rng.uniform(-1.0, 4.0, (200, 2)):
        ticks, labels, (low, high) = axis_of(counts)
        assert 1 <= len(ticks) <= MOST_COUNTS + 2
        assert [float(label) for label in labels] == ticks
        assert low <= min(ticks) <= max(ticks) <= high
        assert low < counts.min() < counts.max() < high


# ---------------------------------------------------------------------------------------------------- times of ensembles


@pytest.mark.parametrize(
    ("times", "scale"),
    [
        ([1.0, 2.0, 4.0, 8.0], "log"),
        ([0.0, 1.0, 3.0, 9.0], "log"),  # the start has no place on it
        ([0.0, 1.0, 2.0, 3.0], "linear"),
        ([0.0, 1.0, 10.0], "linear"),  # two times are no progression
        ([1.0, 1.01, 1.0201], "linear"),
    ],
)
def test_ensembles_at_geometric_times_have_a_logarithmic_axis(times, scale):
    options = {"tokens": 4, "members": 2, "seed": 0, "engine": "reference"}
    stats = ms.ensemble(ms.Attention(dim=2, beta=4.0), times=times, observe={"it": ms.observe.mean_cosine()}, **options)
    ax = ms.plot_ensemble(stats).axes[0]
    assert ax.get_xscale() == scale
    shown = [time for time in times if time > 0 or scale == "linear"]
    assert ax.lines[0].get_xdata().tolist() == shown
    other = ms.plot_ensemble(stats, log=scale == "linear").axes[0]  # who says which is right
    assert other.get_xscale() != scale
