"""The cascade of merges over tens of decades of depth: world lines, the tree of merges and the number of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.figures import style
from metastable.figures.circle_view import draw_world_lines
from metastable.figures.curves import draw_dendrogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style.styled
def cascade(
    times: Any,
    states: Any,
    leaders: Sequence[int],
    sizes: dict[int, int],
    merges: Sequence[tuple[float, int, int]],
    *,
    since: float,
    counts: Any,
    law: Any = None,
) -> Figure:
    """World lines in log time (top), who merged into whom after `since` (middle), and the number of clusters (bottom).

    `leaders`, `sizes`: first token and size of each cluster at `since`; `merges`: (time, absorbed leader, into leader) after it.
    `counts` (m,): clusters at `times`; `law` (m,): a predicted number, drawn dashed.
    """
    t = np.asarray(times, dtype=float)
    page, axes = style.figure(style.PAGE_WIDTH, 6.4, 3, 1, sharex=True, height_ratios=[1.5, 1.25, 0.8])
    palette = {leader: style.CATEGORICAL[i % len(style.CATEGORICAL)] for i, leader in enumerate(leaders)}
    draw_world_lines(
        axes[0], t, states, log=True, width=0.4, colors=["#9db8cf"], highlight=palette, highlight_width=1.3
    )
    style.panel(axes[0], "a", "angle of every token; the first token of each cluster in colour")
    draw_dendrogram(axes[1], leaders, merges, start=since, end=float(t[-1]), sizes=sizes, colors=palette)
    style.panel(axes[1], "b", "who merges into whom (width: size of the cluster)")
    later = t > since / 10
    axes[2].step(t[later], np.asarray(counts)[later], where="post", color=style.MEASURED, label="this run")
    if law is not None:
        axes[2].plot(
            t[later], np.asarray(law)[later], color=style.THEORY, linestyle=(0, (4, 2)), label=r"law $N(t)$ (mean)"
        )
        axes[2].legend(loc="upper right")
    axes[2].set_ylabel("clusters")
    axes[2].set_ylim(0, 1.9 * len(leaders))
    style.grid(axes[2])
    style.panel(axes[2], "c", "how many are left")
    for ax in axes:
        style.log_time_axis(ax, float(t[t > 0][0]), float(t[-1]), "")
        ax.tick_params(labelbottom=ax is axes[2])
    axes[2].set_xlabel("depth $t$")
    return page
