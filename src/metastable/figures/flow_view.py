"""Pictures of a checkpoint's layers as a flow: who merges with whom at which depth, what-if curves, what each part of a layer does.

Primitives draw on a given axis; the `*_page` functions put them together. They take arrays, datasets and merge trees; none runs a flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.figures import style
from metastable.figures.whole_numbers import count_axis, whole_ticks

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from metastable.analysis import MergeTree

ROW = 0.105
"""Height of a token's row, in inches."""
FIRST_SHARE = 0.01
"""In log time the axis starts at this share of the end, or at the first merge."""

FEW = 5
"""Heads below which each is drawn for itself, and layers below which each is named."""
DARK = 0.7
"""Cells with a larger sign score are dark enough for white marks."""

ALONE = "#9aa2ad"
"""Grey of tokens that stay alone; no cluster has a grey."""
CLUSTERS = tuple(color for color in style.CATEGORICAL if color != style.GREY)

Curves = Mapping[str, tuple[Any, Any]]
"""Name -> (times, values)."""


def token_label(token: str, width: int = 14) -> str:
    """A token as a label: visible spaces and line breaks, shortened."""
    text = token.strip(" ").replace("\n", "↵").replace("\r", "").replace("\t", "⇥")
    text = text if text.strip() else "␣"
    return style.plain(text if len(text) <= width else text[: width - 1] + "…")


def _colors(tree: MergeTree) -> list[Any]:
    """A colour for every token: that of the cluster it ends in; grey for tokens that stay alone."""
    sizes = np.bincount(tree.final_labels)
    ranked = [int(label) for label in np.argsort(-sizes, kind="stable") if sizes[label] > 1]
    tint = {label: CLUSTERS[place % len(CLUSTERS)] for place, label in enumerate(ranked)}
    return [tint.get(int(label), ALONE) for label in tree.final_labels]


def draw_merges(
    ax: Axes,
    tree: MergeTree,
    names: Sequence[str],
    *,
    end: float,
    log: bool = False,
    words: Mapping[int, str] | None = None,
) -> None:
    """Each token is a line in the order of the text; where it becomes part of an earlier token's cluster for good, it ends there.

    A line grows thicker with the number of tokens that it stands for. `words`: cluster leader -> text at its end.
    """
    begin = 0.0
    if log:
        begin = max(
            min(end * FIRST_SHARE, float(tree.time[tree.time > 0].min()) / 2 if (tree.time > 0).any() else end), 1e-12
        )
        ax.set_xscale("log")
    else:
        whole_ticks(ax.xaxis)
    colors = _colors(tree)
    stop = np.full(tree.tokens, end)
    stop[tree.child] = tree.time
    leaders = {int(np.flatnonzero(tree.start_labels == label)[0]) for label in np.unique(tree.start_labels)}
    for token in range(tree.tokens):
        if token not in leaders:  # it starts in the cluster of an earlier token
            leader = int(np.flatnonzero(tree.start_labels == tree.start_labels[token])[0])
            ax.plot([begin], [token], marker=".", markersize=2.5, color=colors[token], clip_on=False)
            ax.vlines(begin, leader, token, color=colors[token], linewidth=0.4, alpha=0.5)
            continue
        joined = tree.parent == token
        times = np.concatenate([[begin], np.maximum(tree.time[joined], begin), [stop[token]]])
        start = int((tree.start_labels == tree.start_labels[token]).sum())
        sizes = np.concatenate([[start], start + np.cumsum(tree.child_size[joined])])
        for low, high, size in zip(times[:-1], times[1:], sizes):
            if high > low:
                ax.hlines(token, low, high, color=colors[token], linewidth=0.6 + 0.55 * np.log2(size))
    for time, child, parent in zip(tree.time, tree.child, tree.parent):
        ax.vlines(max(time, begin), parent, child, color=colors[child], linewidth=0.45, alpha=0.6)
    for leader, text in (words or {}).items():
        ax.annotate(
            style.plain(text),
            (end, leader),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.5,
            color=colors[leader],
        )
    ax.set_ylim(tree.tokens - 0.3, -0.7)
    ax.set_xlim(begin, end)
    ax.set_yticks(range(tree.tokens), [token_label(name) for name in names], fontsize=5.6)
    ax.tick_params(axis="y", length=0, pad=1)
    ax.spines["left"].set_visible(False)
    ax.grid(True, axis="x", color=style.FAINT, linewidth=0.4)


@style.styled
def merge_page(
    tree: MergeTree,
    names: Sequence[str],
    *,
    end: float,
    title: str,
    label: str,
    log: bool = False,
    words: Mapping[int, str] | None = None,
) -> Figure:
    """One picture of merges, as tall as its text."""
    page, ax = style.figure(style.PAGE_WIDTH, 1.0 + ROW * tree.tokens)
    draw_merges(ax, tree, names, end=end, log=log, words=words)
    ax.set_xlabel(label)
    ax.set_title(title, loc="left")
    return page


def curve_looks(names: Iterable[str]) -> dict[str, tuple[str, bool]]:
    """Colour of each curve, and whether it is dashed (nulls are): the same in pictures and in legends beside them."""
    tints = iter((style.INK, *style.CATEGORICAL[1:] * 2))
    return {name: (next(tints), name.startswith("null")) for name in names}


def draw_curves(
    ax: Axes, curves: Curves, *, label: str, x_label: str, log_x: bool = False, counted: bool = False
) -> None:
    """One line for each curve; the first is the thick one, nulls (names that start with "null") are dashed.

    `counted`: the values are numbers of things, on a logarithmic axis with whole numbers.
    """
    for (name, (times, values)), (color, null) in zip(curves.items(), curve_looks(curves).values()):
        x, y = np.asarray(times, dtype=float), np.asarray(values, dtype=float)
        kept = x > 0 if log_x else np.ones(x.size, dtype=bool)
        ax.plot(
            x[kept],
            y[kept],
            color=color,
            linewidth=1.9 if color == style.INK else 1.1,
            linestyle=(0, (3, 1.6)) if null else "-",
            label=name,
        )
    if log_x:
        ax.set_xscale("log")
    else:
        whole_ticks(ax.xaxis)  # of layers
    if counted:
        count_axis(ax, np.concatenate([np.ravel(values) for _, values in curves.values()]))
    ax.set_xlabel(x_label)
    ax.set_ylabel(label)
    style.grid(ax)


@style.styled
def what_if_page(stack: tuple[Curves, Curves], loop: tuple[Curves, Curves], *, layer: int, until: float) -> Figure:
    """Four panels: mean cosine and clusters through the stack, and of one looped layer; each pair is (cosines, clusters)."""
    page, axes = style.figure(style.PAGE_WIDTH, 5.0, 2, 2)
    draw_curves(axes[0, 0], stack[0], label="mean cosine between tokens", x_label="layer")
    draw_curves(axes[0, 1], stack[1], label="clusters", x_label="layer", counted=True)
    draw_curves(
        axes[1, 0], loop[0], label="mean cosine between tokens", x_label="time in the loop (layers)", log_x=True
    )
    draw_curves(axes[1, 1], loop[1], label="clusters", x_label="time in the loop (layers)", log_x=True, counted=True)
    looped = f"layer {layer} looped to t = {until:g}"
    titles = ("the whole stack", "the whole stack", looped, looped)
    for ax, letter, title in zip(axes.ravel(), "abcd", titles):
        style.panel(ax, letter, title)
    for row in axes:
        row[1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return page


@style.styled
def decomposition_page(parts: xr.Dataset) -> Figure:
    """How far attention and feed-forward part turn the tokens in every layer, and what each does to the mean cosine and the energy."""
    page, axes = style.figure(style.PAGE_WIDTH, 2.35, 1, 3)
    layers = parts["layer"].values
    names = {"attention": ("attention", style.BLUE), "mlp": ("feed-forward", style.VERMILLION)}
    for part, (name, color) in names.items():
        row = parts.sel(part=part)
        axes[0].fill_between(layers, row["angle_low"], row["angle_high"], color=color, alpha=0.18, linewidth=0)
        axes[0].plot(layers, row["angle"], color=color, label=name)
        for ax, key in ((axes[1], "mean_cosine_change"), (axes[2], "energy_change")):
            shift = -0.2 if part == "attention" else 0.2
            ax.bar(layers + shift, row[key], width=0.4, color=color, label=name)
    for ax, letter, title in zip(axes, "abc", ("angle turned (rad)", "change of mean cosine", "change of energy")):
        style.panel(ax, letter, title)
        ax.set_xlabel("layer")
        whole_ticks(ax.xaxis)
        ax.axhline(0, color=style.MUTED, linewidth=0.6)
    axes[0].legend()
    return page


def _mark_key(page: Figure) -> None:
    """What rings and crosses mean, below the picture."""
    from matplotlib.lines import Line2D

    shared: dict[str, Any] = {"linestyle": "none", "color": style.INK, "markersize": 4.5, "markeredgewidth": 0.9}
    more, less = "words read and written more alike than in random heads, p ≤ 0.05", "less alike, p ≤ 0.05"
    marks = [
        Line2D([], [], marker="o", markerfacecolor="none", label=more, **shared),
        Line2D([], [], marker="x", label=less, **shared),
    ]
    page.legend(handles=marks, loc="outside lower left", ncols=2, handletextpad=0.2, columnspacing=1.5)


@style.styled
def sign_grid_page(meanings: xr.Dataset) -> Figure:
    """Layers x heads coloured by sign score; rings: heads whose read and written words are more alike than those of random heads
    (p <= 0.05), crosses: less alike.
    """
    score = meanings["sign_score"].values
    lead = meanings.isel(mode=0)
    alike, p = lead["alike"].values, lead["alike_p"].values
    usual = lead["alike_usual"].values
    layers, heads = score.shape
    page, ax = style.figure(style.PAGE_WIDTH, 1.45 + 0.19 * heads)
    image = ax.imshow(score.T, cmap=style.diverging_map(), vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    for flags, marker, size in (((p <= 0.05) & (alike > usual), "o", 18), ((p <= 0.05) & (alike < usual), "x", 14)):
        row, column = np.nonzero(flags)
        inks = [style.PAPER if abs(value) > DARK else style.INK for value in score[row, column]]
        colors: dict[str, Any] = {"facecolors": "none", "edgecolors": inks} if marker == "o" else {"color": inks}
        ax.scatter(row, column, s=size, marker=marker, linewidths=0.9, **colors)
    _mark_key(page)
    step = max(1, layers // 10)
    ax.set_xticks(range(0, layers, step), [str(layer) for layer in meanings["layer"].values[::step]])
    ax.set_yticks(range(heads), [str(head) for head in meanings["head"].values])
    ax.set_xlabel("layer")
    ax.set_ylabel("head")
    page.colorbar(image, ax=ax, label="sign score", pad=0.01)
    return page


@style.styled
def likeness_page(meanings: xr.Dataset) -> Figure:
    """Likeness of read and written words: by kind of leading (or first chosen) eigenvalue against the Haar null, and over depth."""
    lead = meanings.isel(mode=0)
    alike, null = lead["alike"].values, lead["alike_null"].values.ravel()
    value = np.asarray(lead["eigenvalue"].values, dtype=np.complex128)
    positive = (value.imag == 0) & (value.real > 0)
    page, axes = style.figure(style.PAGE_WIDTH, 2.5, 1, 2)
    bins = np.linspace(-1, 1, 41)
    groups = (("random (Haar) heads", null, style.MUTED), ("real, positive", alike[positive], style.BLUE))
    for name, values, color in (*groups, ("complex or negative", alike[~positive], style.VERMILLION)):
        kept = np.ravel(values)[np.isfinite(np.ravel(values))]
        label = f"{name} ({kept.size})"
        if kept.size >= FEW:
            axes[0].hist(kept, bins=list(bins), histtype="step", density=True, color=color, label=label)
        elif kept.size:  # a few heads are no distribution
            for place, one in enumerate(kept):
                axes[0].axvline(one, color=color, linewidth=1.2, label=label if place == 0 else None)
    axes[0].set_xlabel("alike: words read and written")
    axes[0].set_ylabel("density")
    axes[0].legend(fontsize="x-small", loc="upper left")
    layer = np.broadcast_to(meanings["layer"].values[:, None], alike.shape)
    axes[1].axhspan(
        *np.nanquantile(null, (0.05, 0.95)), color=style.FAINT, linewidth=0, label="random heads, 5 to 95 %"
    )
    axes[1].scatter(layer[positive], alike[positive], s=9, color=style.BLUE, label="real, positive")
    axes[1].scatter(
        layer[~positive], alike[~positive], s=9, facecolors="none", edgecolors=style.VERMILLION, label="others"
    )
    axes[1].set_xlabel("layer")
    if len(alike) < FEW:
        axes[1].set_xticks(meanings["layer"].values)
        axes[1].set_xlim(meanings["layer"].values.min() - 1, meanings["layer"].values.max() + 1)
    axes[1].set_ylabel("alike")
    axes[1].set_ylim(-1.05, 1.5)
    axes[1].legend(fontsize="x-small", loc="upper left")
    which = str(meanings.attrs.get("which", "largest"))
    kind = {"largest": "leading", "modulus": "largest (in modulus)"}.get(which, which)
    style.panel(axes[0], "a", f"{kind} eigenvalue")
    style.panel(axes[1], "b", "depth")
    return page
