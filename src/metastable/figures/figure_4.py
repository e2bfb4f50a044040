"""Figure 4: the interaction function h and its peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style.styled
def figure_4(
    x: Any, h: Any, *, beta: float, peak: float, height: float, betas: Any, peaks: Any, predicted: Any
) -> Figure:
    """h(x) = exp(beta (cos x - 1)) sin x with its maximum (left), and the maximum's place against beta (right).

    `peak`, `height`: place and value of the maximum; `peaks`: places found numerically for `betas`; `predicted`: the formula.
    """
    page, axes = style.figure(style.PAGE_WIDTH, 2.3, 1, 2)
    ax = axes[0]
    ax.axhline(0, color=style.FAINT, linewidth=0.6)
    ax.plot(x, h, color=style.MEASURED, linewidth=1.4)
    ax.plot([peak, peak], [0, height], color=style.MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
    ax.plot([peak], [height], marker="o", color=style.RED, markersize=4.5)
    ax.annotate(
        rf"$\tau^* = {peak:.3f}$",
        (peak, height),
        xytext=(8, -4),
        textcoords="offset points",
        color=style.RED,
        va="center",
    )
    ax.set_ylabel(r"interaction $h(x)$")
    style.angle_axis(ax, "x", "distance $x$ (rad)")
    style.panel(ax, "a", rf"$\beta = {beta:g}$")
    ax = axes[1]
    ax.loglog(betas, predicted, color=style.THEORY, label="Lemma A.1")
    ax.loglog(
        betas, np.asarray(betas, dtype=float) ** -0.5, color=style.MUTED, linestyle=(0, (4, 2)), label=r"$\beta^{-1/2}$"
    )
    ax.loglog(
        betas,
        peaks,
        marker="o",
        linestyle="none",
        color=style.MEASURED,
        markersize=3.6,
        label="maximum found numerically",
    )
    ax.set_xlabel(r"inverse temperature $\beta$")
    ax.set_ylabel(r"place of the peak $\tau^*$ (rad)")
    ax.legend(loc="lower left")
    style.panel(ax, "b", "strongest at about $\\beta^{-1/2}$")
    style.grid(ax)
    return page
