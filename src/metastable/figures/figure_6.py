"""Figure 6: spectra of the value matrices of trained heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.figures import style
from metastable.figures.curves import draw_spectrum

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style.styled
def figure_6(
    eigenvalues: Sequence[Any], titles: Sequence[str], scores: Any, null_scores: Any, *, name: str, columns: int = 4
) -> Figure:
    """Spectra of chosen heads as small multiples, and the sign score of every head against the null (bottom).

    `eigenvalues`: one complex array per panel; `scores`: sum Re/sum abs of all heads; `null_scores`: the same for Gaussian ones.
    """
    rows = -(-len(eigenvalues) // columns)
    page, _ = style.figure(style.PAGE_WIDTH, 1.75 * rows + 1.75)
    page.clear()
    grid = page.add_gridspec(rows + 1, columns, height_ratios=[1.0] * rows + [0.8])
    for number, (values, title) in enumerate(zip(eigenvalues, titles)):
        ax = page.add_subplot(grid[number // columns, number % columns])
        draw_spectrum(ax, values, size=5)
        reach = 1.12 * float(np.abs(values).max())
        ax.set_xlim(-reach, reach)
        ax.set_ylim(-reach, reach)
        ax.tick_params(labelsize="x-small")
        ax.locator_params(nbins=3)
        ax.set_title(title, fontsize="small", pad=3)
        if number % columns == 0:
            ax.set_ylabel(r"Im $\lambda$")
        if number // columns == rows - 1:
            ax.set_xlabel(r"Re $\lambda$")
    _draw_scores(page.add_subplot(grid[rows, :]), np.asarray(scores), np.asarray(null_scores), name)
    return page


def _draw_scores(ax: Any, scores: np.ndarray, null: np.ndarray, name: str) -> None:
    """Distribution of the sign score over heads, above the narrow distribution of the null."""
    bins = np.linspace(-1, 1, 61)
    ax.hist(
        scores.ravel(),
        bins=bins,
        color=style.MEASURED,
        alpha=0.75,
        linewidth=0,
        label=f"{name}: {scores.size} trained heads",
    )
    low, high = np.quantile(null, [0.005, 0.995])
    ax.axvspan(low, high, color=style.ORANGE, alpha=0.45, linewidth=0, label="99 % of Gaussian heads")
    ax.axvline(0, color=style.MUTED, linewidth=0.7)
    ax.set_xlim(-1.02, 1.02)
    ax.set_xlabel(r"sign score $\sum\mathrm{Re}\,\lambda\;/\;\sum|\lambda|$   ($-1$: all repel, $+1$: all attract)")
    ax.set_ylabel("heads")
    ax.legend(loc="upper left")
