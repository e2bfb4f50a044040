"""Figures for the lemmas, theorems and conjectures: measured points against predicted curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.figures import style
from metastable.figures.circle_view import angles_of, draw_world_lines
from metastable.figures.curves import draw_error_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """A named curve: `x`, `y` (m,), optional `error` bars (drawn as points) and `dashed` for predictions.

    `marker` is that of points; `hollow` ones stand for values that are only known to lie beyond.
    """

    label: str
    x: Any
    y: Any
    error: Any = None
    dashed: bool = False
    points: bool = False
    color: str | None = None
    marker: str = "o"
    hollow: bool = False


@dataclass(frozen=True)
class Plot:
    """One axis: curves, labels, scales ("linear" or "log"), a title and limits; `whole`: the horizontal axis counts something."""

    title: str
    xlabel: str
    ylabel: str
    curves: Sequence[Curve]
    xscale: str = "linear"
    yscale: str = "linear"
    ylim: tuple[float, float] | None = None
    xlim: tuple[float, float] | None = None
    legend: str | None = "best"
    whole: bool = False


def _draw_curve(ax: Any, curve: Curve, color: str) -> Any:
    """Draw one curve; returns what stands for it in a legend."""
    if curve.hollow:
        face = {"markerfacecolor": style.PAPER, "markeredgewidth": 0.9, "markersize": 4.2}
        return ax.plot(curve.x, curve.y, curve.marker, color=color, linestyle="none", clip_on=False, zorder=5, **face)[
            0
        ]
    if curve.points or curve.error is not None:
        draw_error_points(ax, curve.x, curve.y, curve.error, color=color, label=curve.label, marker=curve.marker)
        return ax.containers[-1]
    dash: Any = (0, (4, 2)) if curve.dashed else "-"
    return ax.plot(curve.x, curve.y, color=color, label=curve.label, linestyle=dash)[0]


def _fill(ax: Any, plot: Plot, letter: str) -> None:
    from matplotlib.ticker import MaxNLocator

    drawn = [
        (_draw_curve(ax, curve, curve.color or style.CATEGORICAL[number % len(style.CATEGORICAL)]), curve.label)
        for number, curve in enumerate(plot.curves)
    ]
    ax.set_yscale(plot.yscale)
    if plot.xscale == "log":
        x = np.concatenate([np.atleast_1d(np.asarray(curve.x, dtype=float)) for curve in plot.curves])
        x = x if plot.xlim is None else np.array(plot.xlim)
        room = 1.15 if any(curve.points or curve.error is not None for curve in plot.curves) else 1.0
        style.log_time_axis(ax, float(x[x > 0].min()) / room, float(x.max()) * room, plot.xlabel)
    elif plot.xlim is not None:
        ax.set_xlim(*plot.xlim)
    if plot.whole:
        ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    ax.set_xlabel(plot.xlabel)
    ax.set_ylabel(plot.ylabel)
    if plot.ylim is not None:
        ax.set_ylim(*plot.ylim)
    style.grid(ax)
    style.panel(ax, letter, plot.title)
    named = [(artist, label) for artist, label in drawn if label]
    if plot.legend is not None and named:
        # In the order of the curves: by itself matplotlib puts points behind all lines.
        ax.legend([artist for artist, _ in named], [label for _, label in named], loc=plot.legend)


@style.styled
def plots(panels: Sequence[Plot], height: float = 2.4, shared: bool = False) -> Figure:
    """Plots side by side across the page (one alone takes little more than a column); `shared`: with one vertical axis for all."""
    width = style.PAGE_WIDTH if len(panels) > 1 else 4.0
    page, axes = style.figure(width, height, 1, len(panels), squeeze=False)
    for letter, ax, plot in zip("abcdef", axes[0], panels):
        _fill(ax, plot, letter if len(panels) > 1 else "")
    if shared:
        for ax in axes[0][1:]:
            ax.set_ylabel("")
            ax.set_yticklabels([])
    return page


@dataclass(frozen=True)
class Strip:
    """World lines on the circle: `times` (m,), `states` (m, tokens, 2), a title, and angles of frozen tokens."""

    title: str
    times: Any
    states: Any
    log: bool = False
    frozen: Any = ()
    reach: float = 0.0
    first_color: str = style.RED


@style.styled
def strips(panels: Sequence[Strip], extra: Plot | None = None, height: float = 2.5) -> Figure:
    """World lines side by side, the first token in red; frozen tokens as horizontal bands of half width `reach`."""
    columns = len(panels) + (extra is not None)
    page, axes = style.figure(style.PAGE_WIDTH, height, 1, columns, squeeze=False)
    for number, (letter, ax, strip) in enumerate(zip("abcdef", axes[0], panels)):
        for angle in angles_of(strip.frozen) if len(strip.frozen) else ():
            ax.axhspan(angle - strip.reach, angle + strip.reach, color=style.ORANGE, alpha=0.28, linewidth=0, zorder=1)
            ax.axhline(angle, color=style.ORANGE, linewidth=0.8, zorder=1)
        draw_world_lines(ax, strip.times, strip.states, log=strip.log, highlight={0: strip.first_color}, width=0.45)
        style.panel(ax, letter, strip.title)
        if number:
            ax.set_ylabel("")
            ax.set_yticklabels([])
    if extra is not None:
        _fill(axes[0][-1], extra, "abcdef"[columns - 1])
    return page


@dataclass(frozen=True)
class Fraction:
    """`successes` of `draws` with the exact 95 % interval [`low`, `high`], under a named `condition` of a named `row`."""

    row: str
    condition: str
    successes: int
    draws: int
    low: float
    high: float


@style.styled
def fractions_chart(entries: Sequence[Fraction], *, xlabel: str = "draws that end as the row says (%)") -> Figure:
    """Fractions with exact binomial intervals, grouped by row of the table; one colour per condition."""
    rows = list(dict.fromkeys(entry.row for entry in entries))
    conditions = list(dict.fromkeys(entry.condition for entry in entries))
    page, ax = style.figure(style.PAGE_WIDTH, (0.62 if len(conditions) > 1 else 0.34) * len(rows) + 0.85)
    step = 0.72 / max(len(conditions) - 1, 1)
    markers = "osD^v"
    for entry in entries:
        place = conditions.index(entry.condition)
        y = -rows.index(entry.row) - (place * step - 0.36 if len(conditions) > 1 else 0.0)
        color = style.CATEGORICAL[place % len(style.CATEGORICAL)]
        ax.plot(
            [100 * entry.low, 100 * entry.high], [y, y], color=color, linewidth=1.6, alpha=0.45, solid_capstyle="butt"
        )
        ax.plot(
            [100 * entry.successes / entry.draws],
            [y],
            marker=markers[place % 5],
            color=color,
            markersize=4.2,
            clip_on=False,
        )
        ax.text(103, y, f"{entry.successes}/{entry.draws}", va="center", fontsize="x-small", color=color)
    for number in range(1, len(rows)):
        ax.axhline(0.5 - number, color=style.FAINT, linewidth=0.6)
    ax.set_yticks([-number for number in range(len(rows))], rows)
    ax.set_ylim(-len(rows) + 0.5, 0.5)
    ax.set_xlim(0, 101)
    ax.set_xlabel(xlabel)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    style.grid(ax, "x")
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=style.CATEGORICAL[n % 10], marker=markers[n % 5], markersize=4.2, label=name)
        for n, name in enumerate(conditions)
    ]
    if any(conditions):
        page.legend(handles=handles, loc="outside upper center", ncols=2)
    return page


@style.styled
def notice(*lines: str) -> Figure:
    """A card with text, for an item whose data are not available."""
    page, ax = style.figure(style.PAGE_WIDTH, 0.5 + 0.3 * len(lines))
    style.bare(ax)
    ax.set_aspect("auto")
    for number, line in enumerate(lines):
        ax.text(
            0.5,
            1 - (number + 0.5) / len(lines),
            line,
            ha="center",
            va="center",
            transform=ax.transAxes,
            color=style.MUTED,
        )
    return page
