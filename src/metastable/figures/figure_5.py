"""Figure 5: spectrum of a value matrix at initialisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.figures import style
from metastable.figures.curves import draw_spectrum

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style.styled
def figure_5(eigenvalues: Any, *, radius: float, title: str) -> Figure:
    """Eigenvalues (heads, modes) of Gaussian value matrices: one head (left), all heads and the predicted disk (middle), and
    the real parts of all heads (right).

    `radius`: radius of the disk, sigma² sqrt(dim head_dim).
    """
    values = np.asarray(eigenvalues, dtype=complex)
    page, axes = style.figure(style.PAGE_WIDTH, 2.5, 1, 3, width_ratios=[1, 1, 1.05])
    draw_spectrum(axes[0], values[0], circle=radius, size=7)
    style.panel(axes[0], "a", "one head")
    draw_spectrum(axes[1], values, circle=radius, size=2.2, leading=False)
    style.panel(axes[1], "b", f"all {len(values)} heads")
    for ax in axes[:2]:
        ax.set_xlim(-1.25 * radius, 1.25 * radius)
        ax.set_ylim(-1.25 * radius, 1.25 * radius)
        ax.set_xlabel(r"Re $\lambda$")
    axes[0].set_ylabel(r"Im $\lambda$")
    real = np.real(values).ravel()
    axes[2].hist(real, bins=48, density=True, color=style.SKY, alpha=0.7, linewidth=0)
    grid = np.linspace(-radius, radius, 200)
    semicircle = 2 * np.sqrt(np.clip(radius**2 - grid**2, 0, None)) / (np.pi * radius**2)
    axes[2].plot(grid, semicircle, color=style.THEORY, label="uniform disk")
    axes[2].axvline(0, color=style.MUTED, linewidth=0.7)
    axes[2].set_xlabel(r"Re $\lambda$")
    axes[2].set_ylabel("density")
    axes[2].set_ylim(0, 1.3 * semicircle.max())
    axes[2].legend(loc="upper right")
    style.panel(axes[2], "c", title)
    return page
