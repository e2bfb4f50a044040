"""Figure 1: where tokens end for every kind of value matrix, one sphere each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.figures import style
from metastable.figures.sphere_view import (
    DEFAULT_VIEW,
    View,
    draw_ball,
    draw_direction,
    draw_great_circle,
    draw_paths,
    draw_points,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SpherePanel:
    """One sphere: trajectories `states` (times, tokens, 3), a `title`, a `note` below, the leading `subspace` (3, k) or None.

    `final` (tokens, 3): where the red dots are; None for the end of the trajectories.
    """

    title: str
    states: np.ndarray
    note: str = ""
    subspace: np.ndarray | None = None
    view: View = DEFAULT_VIEW
    final: np.ndarray | None = None


def draw_sphere_panel(ax: Axes, panel: SpherePanel, letter: str = "", width: float = 0.75) -> None:
    """Trajectories coloured by position in the sequence, final positions red, the leading eigenspace in black."""
    draw_ball(ax, panel.view)
    draw_paths(ax, panel.states, panel.view, width=width)
    draw_points(ax, panel.states[-1] if panel.final is None else panel.final, panel.view, size=15)
    if panel.subspace is not None and panel.subspace.shape[1] == 1:
        draw_direction(ax, panel.subspace[:, 0], panel.view, label=r"$\xi$")
    elif panel.subspace is not None and panel.subspace.shape[1] == 2:
        draw_great_circle(ax, panel.subspace, panel.view)
        edge = _nearest_label_place(panel)
        ax.text(edge[0], edge[1], "$L$", fontsize="small", ha="center", va="center")
    style.panel(ax, letter, panel.title)
    if panel.note:
        ax.text(
            0.5, -0.02, panel.note, transform=ax.transAxes, ha="center", va="top", fontsize="small", color=style.MUTED
        )


def _nearest_label_place(panel: SpherePanel) -> np.ndarray:
    assert panel.subspace is not None
    plane, _ = np.linalg.qr(panel.subspace)
    turn = np.linspace(0, 2 * np.pi, 241)
    circle = panel.view.project(np.cos(turn)[:, None] * plane[:, 0] + np.sin(turn)[:, None] * plane[:, 1])
    return 1.09 * circle[np.argmax(circle[:, 0]), :2]


@style.styled
def figure_1(panels: Sequence[SpherePanel], columns: int = 3) -> Figure:
    """The paper's Figure 1: one sphere per kind of V (n = 32, d = 3, beta = 9, T = 5000), final positions as red dots."""
    rows = -(-len(panels) // columns)
    page, axes = style.figure(style.PAGE_WIDTH, 2.68 * rows + 0.25, rows, columns, squeeze=False)
    page.set_layout_engine("constrained", hspace=0.07)
    for index, ax in enumerate(axes.flat):
        if index < len(panels):
            draw_sphere_panel(ax, panels[index], "abcdefghijkl"[index])
        else:
            ax.set_axis_off()
    _legend(page, len(panels[0].states[0]))
    return page


def _legend(page: Figure, tokens: int) -> None:
    from matplotlib.lines import Line2D

    colors = style.token_colors(tokens)
    handles: list[Any] = [
        Line2D([], [], color=colors[0], label="path of the first token"),
        Line2D([], [], color=colors[-3], label="path of the last token"),
        Line2D(
            [],
            [],
            color=style.FINAL,
            marker="o",
            linestyle="none",
            markersize=4.5,
            label="final position (pale: behind the ball)",
        ),
        Line2D([], [], color=style.INK, label=r"leading eigenspace $L$"),
    ]
    page.legend(handles=handles, loc="outside lower center", ncols=4, columnspacing=1.4)
