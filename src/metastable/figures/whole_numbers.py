"""Axes of whole numbers: layers, and numbers of clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_COUNTS = 7
"""Ticks of an axis of counts."""
COUNT_ROOM = 1.12
"""An axis of counts begins and ends this factor beyond them."""


def whole_ticks(ruler: Any) -> None:
    """Ticks at whole numbers only, for an axis (`ax.xaxis`) of layers or counts."""
    from matplotlib.ticker import MaxNLocator

    ruler.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def count_axis(ax: Axes, counts: Any) -> None:
    """A logarithmic vertical axis of positive numbers that are counted: every tick is a whole number, and has its label.

    Powers of ten alone leave an axis from 2 to 7 without a tick. Below a factor of four ticks are evenly spaced, above it they are at
    1, 2 and 5 times powers of ten, or at powers of ten where these would be more than `MOST_COUNTS`. Means of counts may all lie
    between two whole numbers (or below one): then the axis reaches to the nearer of the two, its only tick.
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    known = np.asarray(counts, dtype=float)
    known = known[np.isfinite(known) & (known > 0)]
    low, high = (float(known.min()), float(known.max())) if known.size else (1.0, 1.0)
    ticks = _ticks_of_counts(low / COUNT_ROOM, high * COUNT_ROOM)
    if not ticks:
        below, above = float(np.floor(low)), float(np.ceil(high))
        ticks = [below if below >= 1.0 and low / below < above / high else above]
        low, high = min(low, ticks[0]), max(high, ticks[0])
    ax.set_yscale("log")
    ax.set_ylim(low / COUNT_ROOM, high * COUNT_ROOM)
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter("{x:.0f}")


def _ticks_of_counts(low: float, high: float) -> list[float]:
    """Whole numbers between two limits that `count_axis` puts ticks at; there may be none."""
    from matplotlib.ticker import MaxNLocator

    if high < 4.0 * COUNT_ROOM**2 * low:
        ticks = MaxNLocator(MOST_COUNTS, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1).tick_values(low, high)
    else:
        decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
        inside = [np.sort(np.outer(decades, factors).ravel()) for factors in ((1, 2, 5), (1,))]
        few = [found for found in inside if np.sum((found >= low) & (found <= high)) <= MOST_COUNTS]
        ticks = few[0] if few else inside[-1]
    # Within one unit `integer` does not hold: 1.1, 1.2, ...; and rounding errors leave 3.0000000000000004.
    near = [float(tick) for tick in ticks if abs(tick - round(tick)) < 1e-9 * max(1.0, tick)]
    return [float(round(tick)) for tick in near if tick >= 1.0 - 1e-9 and low <= tick <= high]
