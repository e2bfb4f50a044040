"""Long runs: tens of decades of depth on one axis.

Primitives that draw on a given axis: world lines coloured by cluster, the number of clusters with the law N(t), the
merge tree as a dendrogram in log time, collapse times of many draws. Two pages put them together: `long_run` for one
run, `collapse` for statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from metastable import _checks
from metastable._words import counted
from metastable.errors import InvalidInputError
from metastable.figures import style
from metastable.figures.circle_view import angles_of, break_wraps
from metastable.figures.curves import draw_dendrogram
from metastable.figures.landmarks import draw_joints, draw_landmark_key, joint_handles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_BRANCHES = 30
"""Clusters that a tree is drawn from, unless told otherwise: more cannot be named."""
ROOM = 0.02
"""Behind the last merge of a tree as much of the axis is left free, as a part of what is before it."""
LARGEST_DECADE = 308.0
"""Axes end here: floating point numbers do a little later."""


class Tree(Protocol):
    """What is needed of a `MergeTree`."""

    @property
    def time(self) -> np.ndarray: ...

    @property
    def child(self) -> np.ndarray: ...

    @property
    def parent(self) -> np.ndarray: ...

    def labels_at(self, t: float) -> np.ndarray: ...


def leaders_at(tree: Tree, t: float) -> np.ndarray:
    """First token of the cluster of every token at time t, shape (tokens,)."""
    labels = tree.labels_at(t)
    _, first = np.unique(labels, return_index=True)
    return first[labels]


def palette_of(leaders: Sequence[int]) -> dict[int, str]:
    """A colour for each cluster, named by its first token."""
    return {int(leader): style.CATEGORICAL[i % len(style.CATEGORICAL)] for i, leader in enumerate(leaders)}


def draw_cascade(
    ax: Axes, times: Any, points: Any, tree: Tree, *, since: float, width: float = 0.6, opacity: float = 0.85
) -> dict[int, str]:
    """Angle of every token against log time, in the colour of the cluster that it belongs to at that time.

    `times` (m,) and `points` (m, tokens, 2); times <= 0 are left out. Before `since` a token has the colour of the
    cluster that it will be in at `since`; when a cluster is absorbed it takes the colour of the one that absorbs it.
    Returns the colours.
    """
    from matplotlib.collections import LineCollection

    t = np.asarray(times, dtype=float)
    angles = angles_of(points)[t > 0]
    t = t[t > 0]
    owner = np.stack([leaders_at(tree, max(since, float(moment))) for moment in t])
    palette = palette_of(np.unique(leaders_at(tree, since)).tolist())
    lines, colors = [], []
    for k in reversed(range(angles.shape[1])):  # early tokens on top: they lead
        changes = np.flatnonzero(np.diff(owner[:, k])) + 1
        for first, last in zip(np.append(0, changes), np.append(changes, len(t))):
            # One moment of overlap closes the gap between two colours.
            part = slice(max(0, first - 1), last)
            steps, path = break_wraps(t[part], angles[part, k], log=True)
            for piece in np.split(np.column_stack([steps, path]), np.flatnonzero(np.isnan(steps))):
                inside = piece[~np.isnan(piece[:, 0])]
                if len(inside) > 1:
                    lines.append(inside)
                    colors.append(palette[int(owner[first, k])])
    ax.add_collection(LineCollection(lines, colors=colors, linewidths=width, alpha=opacity, zorder=2))
    style.angle_axis(ax)
    style.log_time_axis(ax, float(t[0]), float(t[-1]))
    return palette


def draw_merges(ax: Axes, tree: Tree, *, since: float, end: float, colors: Mapping[int, str] | None = None) -> None:
    """The merge tree from `since` to `end` as a dendrogram in log time; lines are as wide as clusters are large."""
    leader = leaders_at(tree, since)
    leaders, sizes = np.unique(leader, return_counts=True)
    later = (tree.time > since) & (tree.time <= end)
    merges = list(zip(tree.time[later].tolist(), tree.child[later].tolist(), tree.parent[later].tolist()))
    draw_dendrogram(
        ax,
        leaders.tolist(),
        merges,
        start=since,
        end=end,
        sizes={int(a): int(b) for a, b in zip(leaders, sizes)},
        colors=dict(colors or palette_of(leaders.tolist())),
    )


def draw_tree(tree: Any, *, since: float | None = None, theme: str = "screen") -> Figure:
    """A page with the merge tree in log time: one branch for each cluster at `since`, as wide as it is large at each time, ending
    where it is swallowed.

    Args:
        tree: a `MergeTree`, of a run or predicted. Where it is predicted, bars show the uncertainty of each time (a
            factor 10^(+-uncertainty) of the wait since `tree.t0`), and merges whose parent is in doubt are marked by a question mark.
            The title says where times are those of saved moments, and where there was noise. Thin lines are the depths at which the
            model of the run changes.
        since: the moment at which the branches begin, not before the tree does (`MergeTree.t0`); None: when `MOST_BRANCHES` clusters
            are left, or the first merge.
        theme: "screen" or "print".
    """
    if not all(hasattr(tree, name) for name in ("time", "child", "parent", "labels_at", "start_labels")):
        raise InvalidInputError(f"tree must be what metastable.merge_tree returns, not {type(tree).__name__}")
    since, begin = _beginning(tree, since)
    # Behind the end of a run nobody knows who merges.
    known = getattr(tree, "until", None)
    last = float(tree.time[-1]) if len(tree.time) else begin
    end = 3.0 * max(begin, last) if len(tree.time) or known is None else known
    end = max(min(end, math.inf if known is None else known), 1.01 * begin)
    with style.theme(theme):
        rows = int(tree.labels_at(since).max()) + 1
        page, ax = style.figure(7.2, 1.4 + 0.2 * min(max(rows, 4), 40), managed=True)
        draw_merges(ax, tree, since=begin, end=end)
        ax.set_xlim(right=_room_behind(last, begin, end))
        if getattr(tree, "uncertainty", None) is not None:
            _draw_uncertainty(ax, tree, begin)
        joints = getattr(tree, "joints", ())
        draw_joints(ax, joints)
        draw_landmark_key(page, joint_handles(ax, joints))
        left = counted(int(tree.final_labels.max()) + 1, "cluster")
        finish = "the end of time" if known is None else style.time_label(float(known))
        title = (
            f"who merges into whom (width: size), {left} left at {finish}"
            if len(tree.time)
            else f"nothing merges: {left}"
        )
        earlier = int((tree.time <= since).sum()) if since > 0 else 0
        hidden = [f"{counted(earlier, 'earlier merge')} not shown"] if earlier else []
        style.panel(ax, "", "\n".join([title, *hidden, *getattr(tree, "caveats", ())]))
    return page


def _beginning(tree: Any, since: float | None) -> tuple[float, float]:
    """The moment whose clusters have branches, and where these begin on a log axis."""
    t0 = float(getattr(tree, "t0", 0.0))
    positive = tree.time[tree.time > 0]
    # A little before the first merge, which may be decades behind the begin of the tree.
    first = max(t0, 0.5 * float(positive.min() if positive.size else 1.0))
    if since is not None:
        since = _checks.number(since, "since", 0.0)
        return since, since if since > 0 else first
    many = max(0, int(tree.start_labels.max()) + 1 - MOST_BRANCHES)
    if many and len(tree.time):
        since = float(tree.time[min(many, len(tree.time)) - 1])
        return since, since if since > 0 else first
    return t0, first


def _room_behind(last: float, begin: float, end: float) -> float:
    """The right end of a log axis from `begin` that shows the merge at `last` whole: `end`, or a little behind `last`.

    A settled run ends with its last merge, and what is at the very edge of the axes is cut.
    """
    if last <= begin:
        return end
    last, first = math.log10(last), math.log10(begin)
    return max(end, 10.0 ** min(last + ROOM * (last - first), LARGEST_DECADE))


def _draw_uncertainty(ax: Axes, tree: Any, since: float) -> None:
    """Bars of +-uncertainty decades of the wait at the merges, a question mark where the parent is in doubt."""
    t0 = getattr(tree, "t0", 0.0)
    heights = {int(text.get_text()): place for place, text in zip(ax.get_yticks(), ax.get_yticklabels())}
    for time, child, off, doubtful in zip(tree.time, tree.child, tree.uncertainty, tree.doubtful):
        place = heights.get(int(child))
        if place is None or time <= since:
            continue
        if doubtful:
            ax.annotate("?", (time, place), xytext=(3, 0), textcoords="offset points", va="center", color=style.RED)
        else:
            span = [t0 + (time - t0) * 10.0**-off, t0 + (time - t0) * 10.0**off]
            ax.plot(span, [place, place], color=style.INK, linewidth=1.0, marker="|", markersize=3, zorder=5)


def draw_cluster_counts(
    ax: Axes,
    times: Any,
    counts: Any,
    *,
    law: Any = None,
    quantiles: tuple[float, float] = (0.1, 0.9),
    color: str = style.MEASURED,
    label: str = "",
) -> None:
    """Number of clusters against log time, on a logarithmic axis: `counts` (m,) of one run or (members, m) of many.

    Many members are drawn as their mean with a band between two `quantiles`. `law` (m,): a predicted number, dashed.
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    t = np.asarray(times, dtype=float)
    values = np.asarray(counts, dtype=float)
    if values.ndim == 1:
        ax.step(t, values, where="post", color=color, label=label or "this run", zorder=3)
    else:
        low, high = np.quantile(values, quantiles, axis=0)
        ax.fill_between(t, low, high, color=color, alpha=0.18, linewidth=0, zorder=1)
        ax.plot(t, values.mean(axis=0), color=color, label=label or f"mean of {len(values)} runs", zorder=3)
    if law is not None:
        ax.plot(t, np.asarray(law), color=style.THEORY, linestyle=(0, (4, 2)), label=r"law $N(t)$", zorder=2)
    ax.set_yscale("log")
    ticks = [1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000]
    top = float(np.nanmax(values))
    ax.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if tick <= 1.2 * top]))
    ax.yaxis.set_major_formatter("{x:.0f}")
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_ylim(0.85, 1.25 * top)
    ax.set_ylabel("clusters")
    style.log_time_axis(ax, float(t[t > 0][0]), float(t[-1]))
    style.grid(ax, "y")


def draw_collapse_times(ax: Axes, betas: Sequence[float], decades: Sequence[Any]) -> None:
    """log10 of the collapse time of many draws for each beta, in units of the largest possible, 2 beta / ln 10.

    `decades`: one array of log10 times for each beta. Dots are draws (spread sideways by rank), bars are medians.
    """
    spread = (np.arange(997) * 0.6180339887498949) % 1.0 - 0.5
    for place, (beta, values) in enumerate(zip(betas, decades)):
        sample = np.sort(np.asarray(values, dtype=float)) / (2 * beta / np.log(10))
        ax.plot(
            place + 0.5 * spread[np.arange(sample.size) % spread.size],
            sample,
            linestyle="",
            marker="o",
            markersize=2.6,
            markeredgewidth=0,
            alpha=0.65,
            color=style.CATEGORICAL[place % len(style.CATEGORICAL)],
        )
        middle = float(np.median(sample))
        ax.plot([place - 0.3, place + 0.3], [middle, middle], color=style.INK, linewidth=1.2)
        text = f"$10^{{{np.median(np.asarray(values)):.0f}}}$"
        ax.annotate(text, (place + 0.33, middle), va="center", ha="left", fontsize="small")
    ax.axhline(1.0, color=style.THEORY, linestyle=(0, (4, 2)), linewidth=0.9)
    ax.set_xticks(range(len(betas)), [rf"$\beta = {beta:g}$" for beta in betas])
    ax.set_xlim(-0.6, len(betas) - 0.25)
    ax.set_ylim(0.0, 1.12)
    ax.set_ylabel(r"$\ln t_{\mathrm{collapse}} \;/\; 2\beta$")
    style.grid(ax, "y")


@style.styled
def long_run(times: Any, states: Any, tree: Tree, *, since: float, law: Any = None, title: str = "") -> Figure:
    """One run over all its decades: world lines coloured by cluster, who merges into whom, and how many are left.

    `times` (m,) and `states` (m, tokens, 2), evenly spaced in log time; `since`: when the metastable clusters have
    formed; `law` (m,): a predicted number of clusters.
    """
    t = np.asarray(times, dtype=float)
    page, axes = style.figure(style.PAGE_WIDTH, 6.6, 3, 1, height_ratios=[1.6, 1.1, 0.8])
    palette = draw_cascade(axes[0], t, states, tree, since=since)
    style.panel(axes[0], "a", f"every token, in the colour of its cluster{': ' + title if title else ''}")
    draw_merges(axes[1], tree, since=since, end=float(t[-1]), colors=palette)
    style.panel(axes[1], "b", f"who merges into whom after {style.time_label(since)} (width: size)")
    moments = t[t > 0]
    counts = np.array([tree.labels_at(float(moment)).max() + 1 for moment in moments])
    draw_cluster_counts(axes[2], moments, counts, law=None if law is None else np.asarray(law)[t > 0])
    axes[2].legend(loc="upper right")
    style.panel(axes[2], "c", "how many are left")
    for ax in axes:
        style.log_time_axis(ax, float(moments[0]), float(moments[-1]), "depth $t$" if ax is axes[2] else "")
    return page


@style.styled
def collapse(
    betas: Sequence[float], decades: Sequence[Any], times: Sequence[Any], counts: Sequence[Any], laws: Sequence[Any]
) -> Figure:
    """Statistics of many runs: number of clusters for each beta with the law N(t), and the collapse times.

    For each of `betas`: `decades` (draws,) log10 of the collapse time, `times` (m,), `counts` (draws, m), `laws` (m,).
    """
    page, axes = style.figure(style.PAGE_WIDTH, 2.7, 1, 2, width_ratios=[1.7, 1.0])
    for place, (beta, t, values, law) in enumerate(zip(betas, times, counts, laws)):
        color = style.CATEGORICAL[place % len(style.CATEGORICAL)]
        draw_cluster_counts(axes[0], t, values, color=color, label=rf"$\beta = {beta:g}$")
        name = "law $N(t)$" if place == len(betas) - 1 else None
        axes[0].plot(t, law, color=style.INK, linestyle=(0, (4, 2)), linewidth=0.8, label=name, zorder=4)
    longest = max(float(np.max(t)) for t in times)
    style.log_time_axis(axes[0], min(float(np.min(t)) for t in times), longest)
    axes[0].legend(loc="upper right")
    style.panel(axes[0], "a", "clusters left (mean, 10 % to 90 % of the draws)")
    draw_collapse_times(axes[1], betas, decades)
    style.panel(axes[1], "b", "when one cluster is left")
    return page


@style.styled
def prediction(
    pairs: Mapping[str, tuple[np.ndarray, np.ndarray]], times: Any, counts: Any = None, law: Any = None
) -> Figure:
    """Predicted against simulated times of merges, their difference in decades, and what follows for the number of
    clusters.

    `pairs`: name -> (simulated, predicted) times of its merges. `counts` (draws, m) at `times` (m,): predicted
    numbers of clusters, beside `law` (m,).
    """
    columns = 2 if counts is None else 3
    page, axes = style.figure(style.PAGE_WIDTH, 2.6, 1, columns)
    every = np.concatenate([np.concatenate(pair) for pair in pairs.values()])
    low, high = float(every.min()) / 2, float(every.max()) * 10
    axes[0].plot([low, high], [low, high], color=style.FAINT, linewidth=2.0, zorder=1)
    axes[1].axhline(0.0, color=style.FAINT, linewidth=2.0, zorder=1)
    for place, (name, (simulated, predicted)) in enumerate(pairs.items()):
        color = style.CATEGORICAL[place % len(style.CATEGORICAL)]
        options: Any = {"linestyle": "", "marker": "osD^v"[place % 5], "markersize": 2.8, "color": color, "alpha": 0.75}
        axes[0].plot(simulated, predicted, label=name, **options)
        axes[1].plot(simulated, np.log10(np.asarray(predicted) / simulated), **options)
    style.log_time_axis(axes[0], low, high, "simulated time of a merge")
    axes[0].set_yscale("log")
    axes[0].set_ylim(low, high)
    axes[0].set_yticks(axes[0].get_xticks())
    axes[0].minorticks_off()
    axes[0].set_ylabel("predicted from $t = 100$")
    axes[0].legend(loc="lower right", handletextpad=0.1, fontsize="small")
    style.panel(axes[0], "a", "every later merge")
    style.log_time_axis(axes[1], low, high, "simulated time of a merge")
    axes[1].set_ylabel(r"$\log_{10}$ predicted/simulated")
    style.grid(axes[1], "y")
    style.panel(axes[1], "b", "error, in decades")
    if counts is not None:
        draw_cluster_counts(axes[2], times, counts, law=law, label=f"predicted, {len(counts)} starts")
        axes[2].legend(loc="upper right")
        style.panel(axes[2], "c", "clusters left (mean, 10 % to 90 %)")
    return page
