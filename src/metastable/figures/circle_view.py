"""The unit circle: tokens as dots (stacked outward where they coincide), centers, and world lines theta(t)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable.errors import InvalidInputError
from metastable.figures import style
from metastable.figures.arguments import drawing
from metastable.figures.gaps import DOTTED, MARK, beside_gaps, stretches
from metastable.figures.moments import STRIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes


STRIP = 1.0 / 160
"""Part of a density picture that a saved moment takes to each side, at the most."""
HIGHLIGHT = 1.3
"""Width of the world lines of highlighted tokens."""


def angles_of(points: Any) -> np.ndarray:
    """Angles in (-pi, pi] of points (..., 2) of the plane."""
    array = _checks.real_array(points, "points")
    if array.shape[-1] != 2:
        raise InvalidInputError(
            f"points must lie in the plane (last axis 2), not shape {array.shape}; use the sphere view"
        )
    return np.arctan2(array[..., 1], array[..., 0])


def stacked_radii(angles: np.ndarray, width: float, gap: float) -> np.ndarray:
    """Radii for dots at `angles` so that dots closer than `width` radians stack outward in steps of `gap`.

    Within each bin of `width` radians the k-th token of the sequence (from 0) gets radius 1 + k gap: a cluster reads as a
    histogram.
    """
    return 1.0 + gap * pile_places(angles, width)


def pile_places(angles: np.ndarray, width: float) -> np.ndarray:
    """How many earlier tokens are in the bin of `width` radians of each of `angles` (tokens,): its place in the pile."""
    bins = np.floor(np.mod(angles, 2 * np.pi) / width)
    order = np.argsort(bins, kind="stable")
    ordered = bins[order]
    places = np.empty(len(bins), dtype=np.int64)
    places[order] = np.arange(len(bins)) - np.searchsorted(ordered, ordered)
    return places


def pile_gap(highest: float, stack: float, reach: float) -> float:
    """The step of piles: `stack`, or less where the `highest` place of a pile would lie farther out than `reach`."""
    return min(stack, reach / max(1.0, highest))


@drawing
def draw_circle(ax: Axes, *, color: str = style.FAINT, width: float = 0.9, limit: float = 1.12) -> None:
    """The circle itself, on a bare axis of half width `limit`."""
    style.bare(ax)
    turn = np.linspace(0, 2 * np.pi, 361)
    ax.plot(np.cos(turn), np.sin(turn), color=color, linewidth=width, zorder=1)
    ax.set_xlim(-limit, limit)
    ax.set_ylim(-limit, limit)


@drawing
def draw_tokens(
    ax: Axes,
    points: Any,
    *,
    colors: Any = style.TOKEN,
    size: float = 7.0,
    opacity: float = 0.75,
    stack: float = 0.0,
    stack_width: float = 0.05,
    reach: float = np.inf,
) -> np.ndarray:
    """Tokens (tokens, 2) as dots; with `stack` > 0 coinciding dots pile up outward in steps of `stack`, smaller ones
    where the highest pile would be higher than `reach`. Returns the radii.
    """
    angles = angles_of(points)
    radii = np.ones(len(angles))
    if stack > 0:
        places = pile_places(angles, stack_width)
        radii += pile_gap(places.max(initial=0), stack, reach) * places
    ax.scatter(
        radii * np.cos(angles),
        radii * np.sin(angles),
        s=size,
        c=colors,
        alpha=opacity,
        linewidths=0,
        zorder=2,
        clip_on=False,
    )
    return radii


@drawing
def draw_centers(
    ax: Axes,
    points: Any,
    renyi: Any,
    strong: Any,
    *,
    size: float = 26.0,
    radius: float = 1.0,
    labels: bool = False,
) -> None:
    """Renyi centers black, strong ones red (and larger, square), as in the paper; `renyi`, `strong`: token indices."""
    angles = angles_of(points)
    weak = np.setdiff1d(np.asarray(renyi, dtype=int), np.asarray(strong, dtype=int))
    for chosen, color, scale, marker, name in (
        (weak, style.RENYI, 0.8, "o", "Rényi center"),
        (np.asarray(strong, dtype=int), style.STRONG, 1.0, "D", "strong Rényi center"),
    ):
        ax.scatter(
            radius * np.cos(angles[chosen]),
            radius * np.sin(angles[chosen]),
            s=size * scale,
            c=color,
            marker=marker,
            edgecolors=style.PAPER,
            linewidths=0.6,
            zorder=4,
            clip_on=False,
            label=name if labels else None,
        )


def break_wraps(times: Any, angles: np.ndarray, log: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """`times` and one token's `angles` for a line that leaves the picture at +-pi and comes back at the other side.

    Where the angle jumps by more than pi the token went the short way, across the edge: the line is led to the edge
    at the moment at which a straight line to the unwrapped angle meets it, broken by NaN, and taken up at the
    opposite edge. `log`: straight in log time.
    """
    t = np.asarray(times, dtype=float)
    jumps = np.flatnonzero(np.abs(np.diff(angles)) > np.pi) + 1
    before, after = angles[jumps - 1], angles[jumps]
    edge = np.where(before > after, np.pi, -np.pi)
    way = after + 2.0 * edge - before
    # From one edge to the other there is no way to go: it is at the edge all the time.
    part = (edge - before) / np.where(way == 0.0, 1.0, way)
    first, last = t[jumps - 1], t[jumps]
    if log:
        crossing = first * (last / np.where(first > 0, first, last)) ** part
    else:
        crossing = first + part * (last - first)
    place = np.repeat(jumps, 3)
    path = np.column_stack([edge, np.full(edge.size, np.nan), -edge]).ravel()
    moments = np.column_stack([crossing, np.full(edge.size, np.nan), crossing]).ravel()
    return np.insert(t, place, moments), np.insert(angles, place, path)


def _axes_of_angle_and_time(ax: Axes, t: np.ndarray, log: bool) -> None:
    """Angles upwards, the depths `t` (ascending) to the right."""
    style.angle_axis(ax)
    if log:
        style.log_time_axis(ax, float(t[0]), float(t[-1]))
    else:
        ax.set_xlim(float(t[0]), float(t[-1]))
        ax.set_xlabel("depth $t$")


@drawing
def draw_world_density(ax: Axes, times: Any, points: Any, *, log: bool = False, cells: int = 160) -> Any:
    """How many tokens are where against depth t, for more tokens than lines can show: `times` (m,), `points` (m,
    tokens, 2).

    One column of `cells` cells of angle for each moment, coloured by the logarithm of the number of tokens in it
    (cells without any stay blank). Returns the image, for a colour bar.
    """
    cells = _checks.count(cells, "cells", minimum=2, maximum=8192)
    counts = np.array([angle_counts(row, cells) for row in _checks.real_array(points, "points")])
    return draw_world_counts(ax, times, counts, log=log)


def angle_counts(points: Any, cells: int) -> np.ndarray:
    """How many of the points (tokens, 2) are in each of `cells` arcs, from -pi on."""
    return np.histogram(angles_of(points), cells, (-np.pi, np.pi))[0].astype(float)


@drawing
def draw_world_counts(
    ax: Axes, times: Any, counts: Any, *, log: bool = False, relative: bool = False, gaps: Any = False
) -> Any:
    """A number for each arc of the circle against depth t: `times` (m,), `counts` (m, cells), arcs from -pi on.

    Coloured by its logarithm; what is zero stays blank, and of cells that share a pixel the fullest is seen. `relative`: numbers are
    densities, 1 uniform, and need not be whole.
    `gaps`, True or one answer for each two moments (m - 1,): the moments are all that is known, so each is a strip no wider than
    1/80 of the picture, ticked above, and what lies between is hatched. Returns the image, for a colour bar.
    """
    from matplotlib.colors import LogNorm

    from metastable.figures._counts_image import CountsImage

    t, numbers = np.asarray(times, dtype=float), np.asarray(counts, dtype=float)
    gaps = np.broadcast_to(np.asarray(gaps, dtype=bool), max(0, t.size - 1))
    if log:
        gaps = gaps[t[:-1] > 0]
        numbers, t = numbers[t > 0], t[t > 0]
    top = float(numbers.max())
    edges, owner = _columns(t, log, gaps)
    numbers = np.where(owner[:, None] >= 0, numbers[owner], 0.0)
    norm = LogNorm(min(0.1, 0.5 * top), max(1.5, top), clip=True) if relative else LogNorm(1.0, max(2.0, top))
    arcs = np.linspace(-np.pi, np.pi, numbers.shape[1] + 1)
    image = CountsImage(ax, (edges, arcs), numbers.T, cmap=style.density_map(), norm=norm, zorder=1.0)
    ax.add_image(image)
    _axes_of_angle_and_time(ax, t, log)
    for first, last, empty in zip(edges[:-1], edges[1:], owner < 0):
        if empty:
            ax.axvspan(first, last, facecolor="none", edgecolor=style.FAINT, hatch="////", linewidth=0, zorder=0.5)
    if (owner < 0).any():
        above = ax.get_xaxis_transform()
        ax.plot(t, np.ones(t.size), "v", transform=above, color=style.INK, markersize=3.0, clip_on=False)
    return image


def _columns(t: np.ndarray, log: bool, gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the columns of a density picture of the moments `t`, and the moment that each shows (-1: none).

    Columns meet half way between moments; into `gaps` (m - 1,) they reach no farther than `STRIP` of the picture.
    """
    place = np.log(t) if log else t
    ends = 0.5 * (place[1:] + place[:-1])
    if not gaps.any() or t.size < 2:
        edges = np.concatenate([place[:1], ends, place[-1:]])
        if t.size == 1:
            edges = edges + np.array([-0.5, 0.5])
        return (np.exp(edges) if log else edges), np.arange(t.size)
    reach = STRIP * (place[-1] - place[0])
    # The first and the last moment are at the rim and have one side only: there the strip is as wide as others.
    sides = np.full(t.size - 1, reach), np.full(t.size - 1, reach)
    sides[0][0] = sides[1][-1] = 2 * reach
    right = np.append(np.where(gaps, np.minimum(place[:-1] + sides[0], ends), ends), place[-1])
    left = np.append(place[0], np.where(gaps, np.maximum(place[1:] - sides[1], ends), ends))
    edges, owner = [left[0]], []
    for index in range(t.size):
        if left[index] > edges[-1]:
            edges.append(left[index])
            owner.append(-1)
        edges.append(right[index])
        owner.append(index)
    return (np.exp(edges) if log else np.array(edges)), np.array(owner)


@drawing
def draw_world_lines(
    ax: Axes,
    times: Any,
    points: Any,
    *,
    colors: Any = None,
    width: float = 0.5,
    opacity: float = 0.8,
    log: bool = False,
    highlight: dict[int, str] | None = None,
    gaps: bool = False,
) -> None:
    """Angle of every token against depth t: `times` (m,), `points` (m, tokens, 2).

    `log` uses a logarithmic time axis (times <= 0 are left out). `highlight` maps token indices to colours of thicker
    lines. `gaps`: the states are all that is known, so wide gaps between them are dotted lines between dots (see `figures.gaps`).
    """
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    t = np.asarray(times, dtype=float)
    angles = angles_of(points)
    if log:
        keep = t > 0
        t, angles = t[keep], angles[keep]
    tokens = angles.shape[1]
    rgba = _rgba(colors, tokens)
    special = {token: to_rgba(color) for token, color in (highlight or {}).items()}
    # Early tokens on top: they are the leaders. Highlighted ones over all of them.
    drawn = [(k, rgba[k], width, opacity, 2.0) for k in reversed(range(tokens))]
    drawn += [(token, color, HIGHLIGHT, 1.0, 3.0) for token, color in special.items()]
    strokes: dict[tuple[float, bool], list[Any]] = {}
    for k, color, thick, strong, layer in drawn:
        for line, far in world_line(t, angles[:, k], log, gaps):
            strokes.setdefault((layer, far), []).append((line, (*color[:3], strong * color[3]), thick))
    for (layer, far), found in strokes.items():
        lines, tints, widths = zip(*found)
        options: Any = {"linestyles": [DOTTED], "capstyle": "butt"} if far else {"capstyle": "round"}
        ax.add_collection(LineCollection(lines, colors=tints, linewidths=widths, zorder=layer, **options))
    if gaps:
        _mark_gaps(ax, t, angles, rgba, special)
    _axes_of_angle_and_time(ax, t, log)


def _rgba(colors: Any, tokens: int) -> np.ndarray:
    from matplotlib.colors import to_rgba_array

    return style.token_colors(tokens) if colors is None else np.broadcast_to(to_rgba_array(colors), (tokens, 4))


def world_line(t: np.ndarray, angles: np.ndarray, log: bool, gaps: bool) -> Iterator[tuple[np.ndarray, bool]]:
    """The world line of one token as polylines (m, 2), each with whether it spans a gap."""
    steps, path = break_wraps(t, angles, log)
    for piece in np.split(np.column_stack([steps, path]), np.flatnonzero(np.isnan(steps))):
        inside = piece[~np.isnan(piece[:, 0])]
        far = np.abs(np.diff(inside[:, 1])) > STRIDE if gaps else np.zeros(max(0, len(inside) - 1), dtype=bool)
        for first, last, gap in stretches(far):
            yield inside[first : last + 1], gap


def _mark_gaps(ax: Axes, t: np.ndarray, angles: np.ndarray, rgba: np.ndarray, special: dict[int, Any]) -> None:
    """Dots at the saved states on both sides of a gap."""
    moved = np.abs(np.diff(angles, axis=0))
    marked = beside_gaps(np.minimum(moved, 2 * np.pi - moved) > STRIDE)
    tints = np.array([special.get(k, rgba[k]) for k in range(angles.shape[1])])
    moment, token = np.nonzero(marked)
    ax.scatter(t[moment], angles[moment, token], s=MARK**2, c=tints[token], linewidths=0, zorder=2.5, clip_on=False)
