"""Densities: of very many tokens on the circle and the sphere, of infinitely many against depth, and branches of stationary states."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from metastable import _checks
from metastable.errors import InvalidInputError
from metastable.figures import style
from metastable.figures.arguments import drawing
from metastable.figures.circle_view import angle_counts, draw_circle, draw_world_counts
from metastable.figures.moments import LOG_SPAN
from metastable.figures.sphere_view import DEFAULT_VIEW, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STABLE, UNSTABLE = style.BLUE, style.VERMILLION


class EvolutionLike(Protocol):
    """What `metastable.meanfield.evolve` returns."""

    @property
    def times(self) -> np.ndarray: ...

    def on_circle(self, cells: int) -> tuple[np.ndarray, np.ndarray]: ...


class BranchLike(Protocol):
    """What `metastable.meanfield.branch` returns."""

    @property
    def parameter(self) -> str: ...

    @property
    def values(self) -> np.ndarray: ...

    @property
    def order_parameter(self) -> np.ndarray: ...

    @property
    def stable(self) -> np.ndarray: ...

    @property
    def folds(self) -> tuple[float, ...]: ...


@drawing
def draw_evolution(ax: Axes, evolution: EvolutionLike, *, log: bool | None = None, cells: int = 360) -> Any:
    """The density of infinitely many tokens on the circle against depth t, darker where denser (1 is uniform; logarithmic).

    `log`: log time; None for evolutions longer than `moments.LOG_SPAN`. Returns the image, for a colour bar.
    """
    if not hasattr(evolution, "on_circle"):
        raise InvalidInputError(f"evolution must be what metastable.meanfield.evolve returns, not {evolution!r}")
    if len(evolution.times) < 2:
        raise InvalidInputError("an evolution with fewer than two times has no picture; ask evolve for more times")
    _, values = evolution.on_circle(_checks.count(cells, "cells", minimum=2, maximum=8192))
    # Cells start at -pi, values belong to their left edges: half a cell, less than a pixel.
    logged = bool(evolution.times[-1] > LOG_SPAN) if log is None else _checks.flag(log, "log")
    return draw_world_counts(ax, evolution.times, values, log=logged, relative=True)


@drawing
def draw_ring(ax: Axes, points: Any, *, cells: int = 360, reach: float = 0.7, color: str = style.TOKEN) -> None:
    """How many of the points (tokens, 2) are where on the circle: bars outwards, the longest of length `reach`; square roots, so that
    small clusters can be seen beside large ones.
    """
    cells = _checks.count(cells, "cells", minimum=2, maximum=8192)
    counts = np.sqrt(angle_counts(points, cells))
    middle = -np.pi + 2.0 * np.pi * (np.arange(cells) + 0.5) / cells
    draw_circle(ax, limit=1.1 + reach)
    ends = 1.0 + reach * counts / counts.max()
    ax.plot(
        np.stack([np.cos(middle), ends * np.cos(middle)]),
        np.stack([np.sin(middle), ends * np.sin(middle)]),
        color=color,
        linewidth=1.1,
        solid_capstyle="butt",
    )


def sphere_counts(points: Any, bands: int) -> np.ndarray:
    """Density of the points (tokens, 3) in cells of equal area, bands of x_3 times 2 bands around: (bands, 2 bands), 1 uniform."""
    x = _checks.real_array(points, "points")
    if x.ndim != 2 or x.shape[1] != 3:
        raise InvalidInputError(f"points must have shape (tokens, 3), not {x.shape}")
    edges = ((-1.0, 1.0), (-np.pi, np.pi))
    counts = np.histogram2d(np.clip(x[:, 2], -1.0, 1.0), np.arctan2(x[:, 1], x[:, 0]), (bands, 2 * bands), edges)[0]
    return counts * (counts.size / len(x))


@drawing
def draw_sphere_density(
    ax: Axes,
    points: Any,
    view: View = DEFAULT_VIEW,
    *,
    bands: int = 36,
    top: float | None = None,
    far: bool = False,
    resolution: int = 320,
) -> Any:
    """How dense the points (tokens, 3) are on the side of the sphere that faces the viewer (`far`: on the other one, seen from behind).

    Cells of equal area, coloured by the logarithm of the density up to `top` (None: the largest); 1 is uniform, empty cells are blank.
    Returns the image, for a colour bar.
    """
    from matplotlib.colors import LogNorm

    bands = _checks.count(bands, "bands", minimum=2, maximum=2048)
    resolution = _checks.count(resolution, "resolution", minimum=2, maximum=8192)
    density = sphere_counts(points, bands)
    style.bare(ax)
    grid = np.linspace(-1, 1, resolution)
    u, v = np.meshgrid(grid, grid)
    depth = np.sqrt(np.clip(1.0 - u**2 - v**2, 0.0, None))
    # From behind, left and right change places.
    x = np.stack([-u if far else u, v, -depth if far else depth], axis=-1) @ view.rotation
    row = np.clip(((x[..., 2] + 1.0) / 2.0 * bands).astype(int), 0, bands - 1)
    column = np.clip(((np.arctan2(x[..., 1], x[..., 0]) + np.pi) / np.pi * bands).astype(int), 0, 2 * bands - 1)
    picture = np.where(u**2 + v**2 <= 1.0, density[row, column], 0.0)
    highest = float(density.max()) if top is None else _checks.number(top, "top", 0.0, strict=True)
    image = ax.imshow(
        np.ma.masked_less_equal(picture, 0.0),
        extent=(-1, 1, -1, 1),
        origin="lower",
        cmap=style.density_map(),
        norm=LogNorm(0.1, max(2.0, highest), clip=True),
        interpolation="nearest",
        aspect="equal",
    )
    turn = np.linspace(0, 2 * np.pi, 361)
    ax.plot(np.cos(turn), np.sin(turn), color=style.MUTED, linewidth=0.7)
    ax.set_xlim(-1.06, 1.06)
    ax.set_ylim(-1.06, 1.06)
    return image


@drawing
def draw_branches(ax: Axes, branches: BranchLike | Sequence[BranchLike], *, labels: bool = True) -> None:
    """Branches of stationary states: the order parameter |mean token| against kappa or beta, unstable parts dashed.

    Dots mark the folds, where a branch turns back.
    """
    listed: list[Any] = [branches] if hasattr(branches, "order_parameter") else list(cast(Sequence[Any], branches))
    if not listed or not all(hasattr(item, "order_parameter") and hasattr(item, "stable") for item in listed):
        raise InvalidInputError("branches must be what metastable.meanfield.branch returns, or a list of it")
    shown: set[bool] = set()
    for item in listed:
        values, order = np.asarray(item.values), np.asarray(item.order_parameter)
        stable = np.asarray(item.stable, dtype=bool)
        for first, last in _pieces(stable):
            kind = bool(stable[first])
            if kind and last - first == 1 and len(values) > 1:
                continue  # a neutral point at the onset: no line
            # One point more on each side, so that no gap is left where the stability changes.
            part = slice(max(0, first - (0 if kind else 1)), min(len(values), last + (0 if kind else 1)))
            label = ("stable" if kind else "unstable") if labels and kind not in shown else None
            shown.add(kind)
            ax.plot(
                values[part],
                order[part],
                color=STABLE if kind else UNSTABLE,
                linestyle="-" if kind else (0, (4, 2)),
                linewidth=1.6 if kind else 1.2,
                label=label,
                zorder=3 if kind else 2,
            )
        for fold in item.folds:
            nearest = int(np.argmin(np.abs(values - fold)))
            ax.plot([fold], [order[nearest]], "o", color=style.INK, markersize=3.5, zorder=4)
    names = {"kappa": r"$\kappa = 2/\sigma^2$", "beta": r"$\beta$"}
    ax.set_xlabel(names.get(str(listed[0].parameter), "parameter"))
    ax.set_ylabel("order parameter $|E\\,x|$")
    ax.set_ylim(-0.03, 1.03)
    style.grid(ax)
    if labels:
        ax.legend(loc="best")


def _pieces(flags: np.ndarray) -> list[tuple[int, int]]:
    """Half-open runs of equal flags."""
    cuts = [0, *(np.flatnonzero(np.diff(flags.astype(np.int8))) + 1).tolist(), flags.size]
    return [(a, b) for a, b in pairwise(cuts) if b > a]
