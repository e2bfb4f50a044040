"""Pictures of what `metastable.control` found: what was tried, clusters before and after, success rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.errors import InvalidInputError
from metastable.figures import style
from metastable.figures.curves import draw_error_points
from metastable.figures.long_runs import draw_cascade, draw_merges
from metastable.figures.moments import sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOMENTS = 500
"""States that world lines are drawn from, evenly in log time."""
LARGE = 1000.0
"""Members from which on dots are not drawn larger: they would hide their errors."""
HELD = 0.10
"""Opacity of the shade over the depths at which beta is changed."""


def draw_setting(setting: Any, *, theme: str = "screen") -> Figure:
    """A page with the tries of a `Setting`: mean number of clusters (one standard error) against the knob, the goal and what was found.

    The size of a dot shows how many members it has (up to 1000); the shade is the interval of 95 %.
    """
    if not all(hasattr(setting, name) for name in ("tries", "interval", "knob")):
        raise InvalidInputError(f"setting must be what metastable.control.tune returns, not {type(setting).__name__}")
    with style.theme(theme):
        page, ax = style.figure(5.2, 3.2, managed=True)
        draw_tries(ax, setting.tries, setting.clusters)
        ax.axvspan(*setting.interval, color=style.VERMILLION, alpha=0.15, linewidth=0, label="95 % for the value")
        ax.axvline(setting.value, color=style.VERMILLION, linewidth=1.0)
        if setting.law is not None:
            ax.axvline(setting.law, color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 2)), label="the law alone")
        ax.set_xlabel(r"$\beta$" if setting.knob == "beta" else setting.knob)
        ax.legend(loc="best", fontsize="small")
        style.panel(
            ax,
            "",
            f"{setting.clusters:g} clusters at {style.time_label(setting.until)}: {setting.knob} = {setting.value:.4g}",
        )
    return page


def draw_tries(ax: Axes, tries: Sequence[Any], goal: float) -> None:
    """Mean numbers of clusters with standard errors at the values tried, on a log axis, and the goal as a line."""
    values = np.array([item.value for item in tries])
    draw_error_points(ax, values, [item.mean for item in tries], [item.error for item in tries], marker="none")
    members = np.array([item.members for item in tries], dtype=float)
    ax.scatter(
        values,
        [item.mean for item in tries],
        s=8.0 + 0.05 * np.minimum(members, LARGE),
        color=style.MEASURED,
        zorder=5,
        linewidths=0,
    )
    ax.axhline(goal, color=style.INK, linewidth=0.8, label="goal")
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("{x:g}")
    ax.tick_params(axis="x", which="minor", labelsize="x-small")
    ax.set_ylabel("clusters (mean)")
    style.grid(ax, "y")


def draw_steering(steering: Any, without: Any = None, *, theme: str = "screen") -> Figure:
    """A page with a cascade without and with a change of beta.

    Args:
        steering: a `Steering` whose schedule was simulated.
        without: a `Run` of the model as it is, to the same depth or further: world lines of both are drawn (circle only). None:
            who merges into whom, without (as the flow of clusters says) and with the change.
    """
    run = getattr(steering, "run", None)
    if run is None:
        raise InvalidInputError("steering has no simulation; call metastable.control.schedule with verify=True")
    from metastable.analysis import merge_tree

    radius, since = steering.natural.radius, min(steering.window[0], 100.0)
    tree = merge_tree(run, radius)
    end = run.end if without is None else max(run.end, without.end)
    with style.theme(theme):
        page, axes = style.figure(7.2, 5.4, 2, 1, managed=True)
        lines = without is not None and run.start.shape[1] == 2
        pairs = ((axes[0], without, None if without is None else merge_tree(without, radius)), (axes[1], run, tree))
        for ax, source, merges in pairs:
            if lines and merges is not None:
                times, states = _film(source)
                draw_cascade(ax, times, states, merges, since=since)
            else:
                shown = steering.natural if merges is None else merges
                draw_merges(ax, shown, since=max(since, shown.t0), end=end)
            style.log_time_axis(ax, 1.0 if lines else since, end, "depth $t$" if ax is axes[1] else "")
            ax.axvline(steering.at, color=style.INK, linewidth=0.8, linestyle=(0, (1, 2)))
        if steering.changed != steering.beta:
            axes[1].axvspan(*np.clip(steering.window, None, end), color=style.VERMILLION, alpha=HELD, linewidth=0)
        goal = "no merge" if steering.event is None else f"{steering.event[0]} into {steering.event[1]}"
        when = "before" if steering.event is None else "at"
        style.panel(axes[0], "a", rf"$\beta = {steering.beta:.4g}$ throughout")
        style.panel(
            axes[1],
            "b",
            rf"{goal} {when} {style.time_label(steering.at)}: $\beta = {steering.changed:.4g}$ in the shade",
        )
    return page


def _film(run: Any) -> tuple[np.ndarray, np.ndarray]:
    """Times from 1 on, evenly in log time, and the states then."""
    times, states = sample(run, MOMENTS, log=True)
    return np.asarray(times), np.asarray(states)


def draw_rates(ax: Axes, rates: Mapping[str, tuple[float, float, float]], *, color: str = style.MEASURED) -> None:
    """Success rates as bars with intervals: name -> (rate, low, high)."""
    places = np.arange(len(rates))
    values = np.array(list(rates.values()), dtype=float)
    ax.barh(places, values[:, 0], height=0.62, color=color, alpha=0.85)
    spans = np.maximum(0.0, np.stack([values[:, 0] - values[:, 1], values[:, 2] - values[:, 0]]))  # but for rounding
    ax.errorbar(values[:, 0], places, xerr=spans, fmt="none", color=style.INK, elinewidth=1.0, capsize=2.0)
    ax.set_yticks(places, list(rates))
    ax.invert_yaxis()
    ax.set_xlim(0.0, 1.02)
    ax.set_xlabel("goal met (share of draws, 95 %)")
    style.grid(ax, "x")
