"""Figure 2: snapshots of the circle with Renyi centers in black and strong ones in red."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.figures import style
from metastable.figures.circle_view import angles_of, draw_centers, draw_circle, draw_tokens, draw_world_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TURN = 2 * np.pi
BIN = 0.045
"""Width in radians of the bins in which dots are stacked."""


@style.styled
def figure_2(
    times: Any,
    states: Any,
    renyi: Any,
    strong: Any,
    snapshots: Any,
    *,
    separate: Any = None,
) -> Figure:
    """The paper's Figure 2, and under it the world lines that connect the snapshots.

    `times` (m,), `states` (m, tokens, 2): a run sampled finely, containing every time of `snapshots` (s,). `renyi`, `strong`:
    indices of the centers of the start. `separate` (s,): how many Renyi centers still stand alone at each snapshot, printed.
    """
    t, x = np.asarray(times, dtype=float), np.asarray(states, dtype=float)
    chosen = [int(np.argmin(np.abs(t - moment))) for moment in snapshots]
    page, _ = style.figure(style.PAGE_WIDTH, 4.3, squeeze=False)
    page.clear()
    grid = page.add_gridspec(2, len(chosen), height_ratios=[1.0, 1.2])
    highest = max(
        np.unique(np.floor(np.mod(angles_of(x[index]), TURN) / BIN), return_counts=True)[1].max() for index in chosen
    )
    gap = 0.5 / highest
    for column, index in enumerate(chosen):
        ax = page.add_subplot(grid[0, column])
        draw_circle(ax, limit=1.56)
        draw_tokens(ax, x[index], stack=gap, stack_width=BIN, size=4.2, opacity=0.8)
        draw_centers(ax, x[index], renyi, strong, size=26, labels=column == 0)
        ax.text(0, 0, style.time_label(t[index]), ha="center", va="center")
        if separate is not None:
            ax.text(
                0,
                -1.78,
                f"{int(separate[column])} separate centers",
                ha="center",
                va="top",
                fontsize="small",
                color=style.MUTED,
            )
        if column == 0:
            handles, names = ax.get_legend_handles_labels()
    ax = page.add_subplot(grid[1, :])
    # Strong ones last, and so on top: a key that is set again keeps its place.
    strongest = {int(k): style.STRONG for k in strong}
    highlight = {int(k): style.RENYI for k in renyi if int(k) not in strongest} | strongest
    draw_world_lines(ax, t, x, colors=["#9db8cf"], width=0.4, highlight=highlight)
    for index in chosen[1:-1]:
        ax.axvline(t[index], color=style.MUTED, linewidth=0.6, linestyle=(0, (3, 3)), zorder=1)
    page.legend(handles, names, loc="outside lower center", ncols=2)
    return page
