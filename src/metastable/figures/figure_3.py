"""Figure 3: how many tokens the centers have consumed, mean and quantile band over thousands of experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.figures import style
from metastable.figures.curves import draw_band

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style.styled
def figure_3(times: Any, renyi: Any, strong: Any, *, members: int, early: float = 25.0) -> Figure:
    """The paper's Figure 3: per cent consumed against depth, whole horizon (left) and the first `early` units (right).

    `renyi`, `strong`: arrays (3, m): mean, 0.1 and 0.9 quantile, as fractions 0..1.
    """
    t = np.asarray(times, dtype=float)
    page, axes = style.figure(style.PAGE_WIDTH, 2.45, 1, 2, sharey=True)
    for ax, last, letter, title in (
        (axes[0], float(t[-1]), "a", f"{members} experiments"),
        (axes[1], early, "b", "the first steps"),
    ):
        shown = t <= last
        for curve, color, name in (
            (renyi, style.RENYI, "Rényi centers"),
            (strong, style.STRONG, "strong Rényi centers"),
        ):
            mean, low, high = 100 * np.asarray(curve, dtype=float)[:, shown]
            draw_band(ax, t[shown], mean, low, high, color=color, label=name)
        style.grid(ax)
        style.panel(ax, letter, title)
        ax.set_xlim(0, last)
        ax.set_ylim(0, 101)
        ax.set_xlabel("depth $t$")
    axes[0].set_ylabel("tokens consumed (%)")
    axes[0].legend(loc="lower right", title="mean, band 10 % to 90 %", alignment="left", title_fontsize="small")
    return page
