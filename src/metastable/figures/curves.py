"""Curves and matrices: capture bands, counts against a law, dendrograms in log time, complex spectra, attention
matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metastable.errors import InvalidInputError
from metastable.figures import style
from metastable.figures.arguments import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


BAND = 0.16
"""Opacity of a shaded band."""
BAND_MEANING = "10 % to 90 %\nof members"
"""What the bands of ensembles and sweeps are, for legends; the line is the mean."""


@drawing
def draw_band(
    ax: Axes,
    x: Any,
    middle: Any,
    low: Any = None,
    high: Any = None,
    *,
    color: str = style.MEASURED,
    label: str | None = None,
    dashed: bool = False,
) -> None:
    """A line `middle` (m,) over `x` with a shaded band from `low` to `high` whose edges are hairlines."""
    if low is not None and high is not None:
        ax.fill_between(x, low, high, color=color, alpha=BAND, linewidth=0, zorder=2)
        for edge in (low, high):
            ax.plot(x, edge, color=color, linewidth=0.5, alpha=0.6, zorder=2)
    ax.plot(x, middle, color=color, label=label, linestyle=(0, (4, 2)) if dashed else "-", zorder=3)


@drawing
def draw_error_points(
    ax: Axes, x: Any, mean: Any, error: Any, *, color: str = style.MEASURED, label: str | None = None, marker: str = "o"
) -> None:
    """Measured means with error bars (one standard error, or whatever `error` holds)."""
    ax.errorbar(
        x,
        mean,
        yerror_or_none(error),
        fmt=marker,
        color=color,
        markersize=3.6,
        markeredgecolor=style.PAPER,
        markeredgewidth=0.4,
        elinewidth=0.9,
        capsize=1.6,
        label=label,
        zorder=4,
    )


def yerror_or_none(error: Any) -> Any:
    """`error` for matplotlib: None stays None, arrays become float arrays."""
    return None if error is None else np.asarray(error, dtype=float)


@drawing
def draw_spectrum(
    ax: Axes,
    eigenvalues: Any,
    *,
    color: str = style.MEASURED,
    size: float = 5.0,
    circle: float | None = None,
    leading: bool = True,
    label: str | None = None,
) -> None:
    """Eigenvalues in the complex plane, the one with the largest real part marked, the imaginary axis drawn.

    `circle`: radius of a dashed circle for comparison (the circular law of a Gaussian matrix).
    """
    values: NDArray[np.complex128] = np.asarray(eigenvalues, dtype=np.complex128).ravel()
    if values.size == 0:
        raise InvalidInputError("there are no eigenvalues to draw; give at least one")
    ax.axhline(0, color=style.FAINT, linewidth=0.6, zorder=1)
    ax.axvline(0, color=style.MUTED, linewidth=0.7, zorder=1)
    if circle is not None:
        turn = np.linspace(0, 2 * np.pi, 241)
        ax.plot(
            circle * np.cos(turn),
            circle * np.sin(turn),
            color=style.MUTED,
            linewidth=0.7,
            linestyle=(0, (3, 2)),
            zorder=2,
        )
    ax.scatter(values.real, values.imag, s=size, c=color, linewidths=0, alpha=0.7, zorder=3, label=label)
    if leading:
        top: NDArray[np.complex128] = values[values.real >= values.real.max() - 1e-9 * max(1.0, np.abs(values).max())]
        ax.scatter(
            top.real,
            top.imag,
            s=5 * size,
            facecolors="none",
            edgecolors=style.RED,
            linewidths=1.0,
            zorder=4,
            clip_on=False,
        )
    ax.set_aspect("equal")


@drawing
def draw_attention(ax: Axes, weights: Any, *, log: bool = False, floor: float = 1e-6) -> Any:
    """Attention weights (tokens, tokens), row k = whom token k sees; invisible pairs (NaN or 0 under `log`) stay blank.

    `log` colours by decades down to `floor`. Returns the image, for a colour bar.
    """
    from matplotlib.colors import LogNorm, Normalize

    array = np.asarray(weights, dtype=float)
    if array.ndim != 2:
        raise InvalidInputError(f"attention weights must be a matrix (query, key), not an array of shape {array.shape}")
    norm = LogNorm(vmin=floor, vmax=1.0, clip=False) if log else Normalize(vmin=0.0, vmax=float(np.nanmax(array)))
    shown = np.ma.masked_invalid(np.where(array > 0, np.maximum(array, floor), np.nan) if log else array)
    image = ax.imshow(shown, cmap=style.heat_map(), norm=norm, interpolation="nearest", aspect="equal")
    for spine in ax.spines.values():
        spine.set_visible(True)
    last = array.shape[0] - 1
    ax.set_xticks(sorted({0, last}))
    ax.set_yticks(sorted({0, last}))
    ax.set_xlabel("token $j$ (seen), from 0", labelpad=-4)
    ax.set_ylabel("token $k$ (sees), from 0", labelpad=-4)
    return image


def dendrogram_order(leaders: Sequence[int], merges: Sequence[tuple[float, int, int]]) -> list[int]:
    """Order of `leaders` along the axis so that no two branches cross.

    `merges`: (time, absorbed, into) in increasing time. Each leader carries the list of leaders it has swallowed; when
    it is swallowed itself, its whole list is appended to the one that takes it.
    """
    families: dict[int, list[int]] = {leader: [leader] for leader in leaders}
    for _, absorbed, into in merges:
        families[into] = families[into] + families.pop(absorbed)
    return [leader for family in families.values() for leader in family]


def _branches(
    leaders: Sequence[int],
    merges: Sequence[tuple[float, int, int]],
    start: float,
    end: float,
    sizes: dict[int, int] | None,
) -> list[tuple[int, float, float, int]]:
    """The pieces of branches between merges: leader, begin, end, and how many tokens it leads there (1 where no `sizes` are known)."""
    size = dict.fromkeys(leaders, 1) if sizes is None else {leader: sizes.get(leader, 1) for leader in leaders}
    since = dict.fromkeys(leaders, start)
    pieces = []
    for time, absorbed, into in merges:
        pieces += [(leader, since[leader], time, size[leader]) for leader in (absorbed, into)]
        since[into] = time
        del since[absorbed]
        if sizes is not None:
            size[into] += size[absorbed]
    return pieces + [(leader, first, end, size[leader]) for leader, first in since.items()]


@drawing
def draw_dendrogram(
    ax: Axes,
    leaders: Sequence[int],
    merges: Sequence[tuple[float, int, int]],
    *,
    start: float,
    end: float,
    sizes: dict[int, int] | None = None,
    colors: dict[int, Any] | None = None,
    label_limit: int = 30,
) -> None:
    """Who merged into whom, in log time: one horizontal branch per cluster, ending where it is swallowed.

    `leaders`: first token of each cluster at time `start`; `merges`: (time, absorbed leader, into leader). `sizes`:
    tokens per cluster at `start`; a line is as wide as its cluster is large at that time, so it grows with every merge. Tokens are
    counted from 0, as everywhere.
    """
    order = dendrogram_order(leaders, sorted(merges))
    height = {leader: float(row) for row, leader in enumerate(order)}
    branches = _branches(leaders, sorted(merges), start, end, sizes)
    largest = max((size for *_, size in branches), default=1)
    for leader, first, last, size in branches:
        tint = (colors or {}).get(leader, style.MEASURED)
        thick = 0.8 + 2.2 * np.sqrt(size / largest)
        ax.plot([first, last], [height[leader]] * 2, color=tint, linewidth=thick, solid_capstyle="butt", zorder=3)
    for time, absorbed, into in merges:
        ax.plot([time, time], [height[absorbed], height[into]], color=style.MUTED, linewidth=0.8, zorder=2)
        ax.plot([time], [height[into]], marker="o", markersize=2.6, color=style.INK, zorder=4)
    style.log_time_axis(ax, start, end)
    ax.set_ylim(-0.8, len(order) - 0.2)
    if len(order) <= label_limit:
        ax.set_yticks(range(len(order)), [str(leader) for leader in order])
    else:
        ax.set_yticks([])
    # One line of a short picture has no room for all of it.
    ax.set_ylabel("cluster\n(first token, from 0)" if len(order) < 12 else "cluster (its first token, from 0)")
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
