"""The unit sphere of R^3 drawn on a plain two-dimensional axis: orthographic camera, shading, hidden lines.

A general 3-D axis sorts whole artists by depth, so a curve that goes around the sphere is drawn in front or behind as
one piece. Here every segment is split at the horizon: what lies behind is drawn first, then a translucent shaded ball,
then what lies in front. All coordinates are of R^3; `View` turns them into the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable.errors import InvalidInputError
from metastable.figures import style
from metastable.figures.arguments import drawing
from metastable.figures.gaps import DOTTED, MARK, angles_between, beside_gaps, with_arcs
from metastable.figures.moments import STRIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BEHIND, _BALL, _FRONT = 1.0, 2.0, 3.0
"""Drawing order: what is behind the ball, the ball itself, what is in front of it."""


@dataclass(frozen=True)
class View:
    """Orthographic camera looking at the origin from longitude `azimuth` and latitude `elevation` (degrees)."""

    azimuth: float = 35.0
    elevation: float = 22.0

    @property
    def rotation(self) -> np.ndarray:
        """3 x 3 matrix whose rows are the picture's right, up and toward-the-viewer directions."""
        a, e = np.deg2rad(self.azimuth), np.deg2rad(self.elevation)
        right = [-np.sin(a), np.cos(a), 0.0]
        up = [-np.sin(e) * np.cos(a), -np.sin(e) * np.sin(a), np.cos(e)]
        toward = [np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)]
        return np.array([right, up, toward])

    def project(self, points: Any) -> np.ndarray:
        """Points (..., 3) in picture coordinates: right, up, and depth (positive is in front)."""
        return _sphere_points(points, "points") @ self.rotation.T

    @classmethod
    def facing(cls, direction: Any, turn: float = 28.0, lift: float = 18.0) -> View:
        """A camera that sees `direction` (3,) turned by `turn` degrees from the middle of the picture and `lift`
        above.
        """
        turn, lift = _checks.number(turn, "turn"), _checks.number(lift, "lift")
        point = _checks.vector(direction, "direction", 3)
        largest = np.abs(point).max()
        if largest == 0:
            raise InvalidInputError("direction is the zero vector, which shows nowhere; give another")
        x, y, z = point / largest / np.linalg.norm(point / largest)
        latitude = np.rad2deg(np.arcsin(np.clip(z, -1, 1)))
        return cls(float(np.rad2deg(np.arctan2(y, x)) + turn), float(np.clip(latitude + lift, -80, 80)))


DEFAULT_VIEW = View()


@dataclass(frozen=True)
class Strokes:
    """How paths look: opacities of what is in `front` of the ball and behind it (`back`), and the `layer` they are drawn in."""

    front: float = 0.95
    back: float = 0.45
    layer: float = 0.0


@dataclass(frozen=True)
class Dots:
    """How points look: `marker`, colour and width of the edge, opacity behind the ball (`back`), the `layer` they are drawn in."""

    marker: str = "o"
    edge: str = style.PAPER
    edge_width: float = 0.5
    back: float = 0.45
    layer: float = 0.3


DEFAULT_STROKES, DEFAULT_DOTS = Strokes(), Dots()


def _sphere_points(points: Any, name: str) -> np.ndarray:
    array = _checks.real_array(points, name)
    if array.ndim == 0 or array.shape[-1] != 3:
        raise InvalidInputError(
            f"{name} must hold points of R^3 (last axis 3), not shape {array.shape}; use the circle view"
        )
    return array


@drawing
def draw_ball(
    ax: Axes, view: View = DEFAULT_VIEW, *, graticule: bool = True, veil: float = 0.62, resolution: int = 384
) -> None:
    """The ball itself: soft shading lit from the upper left, a graticule every 30 degrees, a thin rim.

    `veil` is the opacity of the ball over what lies behind it (0 glass, 1 solid).
    """
    resolution = _checks.count(resolution, "resolution", minimum=2, maximum=8192)
    style.bare(ax)
    grid = np.linspace(-1, 1, resolution)
    u, v = np.meshgrid(grid, grid)
    radius = np.hypot(u, v)
    w = np.sqrt(np.clip(1 - radius**2, 0, None))
    light = np.array([-0.45, 0.62, 0.64])
    diffuse = np.clip(light[0] * u + light[1] * v + light[2] * w, 0, 1)
    tone = 0.865 + 0.125 * diffuse - 0.05 * (1 - w) ** 2
    picture = np.empty((resolution, resolution, 4))
    picture[..., 0], picture[..., 1], picture[..., 2] = tone - 0.010, tone + 0.002, np.clip(tone + 0.012, 0, 1)
    edge = np.clip((1 - radius) * resolution / 2, 0, 1)
    picture[..., 3] = veil * edge
    ax.imshow(
        np.clip(picture, 0, 1),
        extent=(-1, 1, -1, 1),
        origin="lower",
        zorder=_BALL,
        interpolation="bilinear",
        aspect="equal",
    )
    turn = np.linspace(0, 2 * np.pi, 361)
    ax.plot(np.cos(turn), np.sin(turn), color=style.MUTED, linewidth=0.7, zorder=_BALL + 0.2)
    if graticule:
        _draw_graticule(ax, view)
    ax.set_xlim(-1.06, 1.06)
    ax.set_ylim(-1.06, 1.06)


def _draw_graticule(ax: Axes, view: View) -> None:
    turn = np.linspace(-np.pi, np.pi, 181)
    lines = [
        np.column_stack([np.cos(b) * np.cos(turn), np.cos(b) * np.sin(turn), np.full(turn.size, np.sin(b))])
        for b in np.deg2rad([-60, -30, 0, 30, 60])
    ]
    half = np.linspace(-np.pi / 2, np.pi / 2, 91)
    lines += [
        np.column_stack([np.cos(half) * np.cos(a), np.cos(half) * np.sin(a), np.sin(half)])
        for a in np.deg2rad(np.arange(-180, 180, 30))
    ]
    for line in lines:
        draw_paths(ax, line[:, None, :], view, colors=["#9aa4b1"], width=0.35, strokes=Strokes(0.55, 0.35, -0.5))


@drawing
def draw_paths(
    ax: Axes,
    states: Any,
    view: View = DEFAULT_VIEW,
    *,
    colors: Any = None,
    width: float = 0.8,
    fade: bool = False,
    gaps: bool = False,
    strokes: Strokes = DEFAULT_STROKES,
) -> None:
    """Trajectories `states` (times, tokens, 3) with the part behind the ball paler and thinner.

    `colors`: one per token (default: by position in the sequence). `fade`: let the beginning of each path fade out, so that
    the direction of motion can be seen. `gaps`: the states are all that is known, so wide gaps between them are dotted arcs between
    dots (see `figures.gaps`). `strokes`: opacities and layer.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba_array

    array = _sphere_points(states, "states")
    if array.ndim != 3:
        raise InvalidInputError(f"states must have shape (times, tokens, 3), not {array.shape}")
    steps, tokens = array.shape[:2]
    if steps < 2:
        return
    rgba = style.token_colors(tokens) if colors is None else to_rgba_array(colors)
    known = np.ones((steps - 1, tokens), dtype=bool)
    far = np.zeros_like(known)
    if gaps:
        beside = beside_gaps(angles_between(array) > STRIDE)
        marks, tints = array[beside], np.broadcast_to(rgba, (steps, tokens, 4))[beside]
        if len(marks):
            draw_points(ax, marks, view, colors=tints, size=MARK**2, dots=Dots(edge_width=0, layer=strokes.layer + 0.1))
        array, far, lost = with_arcs(array)
        known = ~lost
    projected = view.project(array)
    in_front = projected[:-1, :, 2] + projected[1:, :, 2] >= 0  # (steps - 1, tokens), one per segment
    for side, order, thin, opacity in (
        (False, _BEHIND, 0.8, strokes.back),
        (True, _FRONT, 1.0, strokes.front),
    ):
        for gap, dash in ((False, "-"), (True, DOTTED)):
            shown = (in_front == side) & (far == gap) & known
            lines, tints = _pieces(projected[..., :2], shown, rgba, opacity, fade)
            if lines:
                options: Any = {"linestyles": [dash], "capstyle": "butt" if gap else "round"}
                width_here = width * thin * (0.8 if gap else 1.0)
                ax.add_collection(
                    LineCollection(lines, colors=tints, linewidths=width_here, zorder=order + strokes.layer, **options)
                )


def _pieces(
    paths: np.ndarray, shown: np.ndarray, rgba: np.ndarray, opacity: float, fade: bool
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Polylines of `paths` (steps, tokens, 2) where `shown` (steps - 1, tokens), with their colours.

    Unbroken stretches are one line each, so that vector files stay small; a fading path needs a colour for every segment.
    """
    lines, tints = [], []
    for token in range(paths.shape[1]):
        borders = np.flatnonzero(np.diff(np.concatenate([[False], shown[:, token], [False]])))
        for first, last in zip(borders[::2], borders[1::2]):
            stretch = paths[first : last + 1, token]
            strength = np.linspace(0.12, 1.0, len(shown))[first:last] if fade else np.ones(1)
            pieces = [stretch[k : k + 2] for k in range(last - first)] if fade else [stretch]
            lines += pieces
            tints += [np.append(rgba[token, :3], opacity * value) for value in strength]
    return lines, tints


@drawing
def draw_points(
    ax: Axes,
    points: Any,
    view: View = DEFAULT_VIEW,
    *,
    colors: Any = style.FINAL,
    size: float = 14.0,
    dots: Dots = DEFAULT_DOTS,
    label: str | None = None,
) -> None:
    """Tokens `points` (tokens, 3) as dots, those behind the ball paler and a little smaller (a depth cue)."""
    from matplotlib.colors import to_rgba_array

    array = _sphere_points(points, "points")
    projected = view.project(array)
    rgba = np.broadcast_to(to_rgba_array(colors), (len(projected), 4))
    for shown, order, opacity, scale in (
        (projected[:, 2] < 0, _BEHIND, dots.back, 0.8),
        (projected[:, 2] >= 0, _FRONT, 1.0, 1.0),
    ):
        if not shown.any():
            continue
        tint = rgba[shown].copy()
        tint[:, 3] *= opacity
        ax.scatter(
            projected[shown, 0],
            projected[shown, 1],
            s=size * scale,
            c=tint,
            marker=dots.marker,
            linewidths=dots.edge_width,
            edgecolors=[(*to_rgba_array(dots.edge)[0, :3], opacity)],
            zorder=order + dots.layer,
            label=label if order == _FRONT else None,
        )


@drawing
def draw_direction(
    ax: Axes, direction: Any, view: View = DEFAULT_VIEW, *, label: str = "", color: str = style.INK, reach: float = 1.28
) -> None:
    """The line through the origin along `direction` (3,), visible outside the ball, with `label` at its nearer end."""
    unit = np.asarray(direction, dtype=float) / np.linalg.norm(direction)
    for sign in (1.0, -1.0):
        near, far = view.project(sign * unit), view.project(sign * reach * unit)
        order = _FRONT - 0.2 if near[2] >= 0 else _BEHIND
        ax.plot([near[0], far[0]], [near[1], far[1]], color=color, linewidth=0.9, zorder=order, clip_on=False)
        if label:
            text = label if sign > 0 else rf"$-${label}"
            place = 1.12 * far[:2]
            options: Any = {
                "ha": "center",
                "va": "center",
                "color": color,
                "zorder": order + 0.7,
                "clip_on": False,
                "fontsize": "small",
            }
            ax.text(place[0], place[1], text, **options)


@drawing
def draw_great_circle(
    ax: Axes,
    basis: Any,
    view: View = DEFAULT_VIEW,
    *,
    color: str = style.INK,
    width: float = 1.0,
    label: str | None = None,
) -> None:
    """The great circle in the plane spanned by the two columns of `basis` (3, 2)."""
    plane, _ = np.linalg.qr(np.asarray(basis, dtype=float))
    turn = np.linspace(0, 2 * np.pi, 241)
    circle = np.cos(turn)[:, None] * plane[:, 0] + np.sin(turn)[:, None] * plane[:, 1]
    draw_paths(ax, circle[:, None, :], view, colors=[color], width=width, strokes=Strokes(0.9, 0.5, -0.3))
    if label:
        ax.plot([], [], color=color, linewidth=width, label=label)


@drawing
def draw_caps(
    ax: Axes,
    centers: Any,
    radius: float,
    view: View = DEFAULT_VIEW,
    *,
    colors: Sequence[str] | str = style.MUTED,
    width: float = 0.7,
) -> None:
    """Circles of geodesic `radius` (radians) around `centers` (m, 3): the caps B_radius."""
    from matplotlib.colors import to_rgba_array

    array = _sphere_points(np.atleast_2d(centers), "centers")
    rgba = np.broadcast_to(to_rgba_array(colors), (len(array), 4))
    turn = np.linspace(0, 2 * np.pi, 121)
    for center, tint in zip(array, rgba):
        helper = np.eye(3)[np.argmin(np.abs(center))]
        first = np.cross(center, helper)
        first /= np.linalg.norm(first)
        second = np.cross(center, first)
        rim = np.cos(radius) * center + np.sin(radius) * (
            np.cos(turn)[:, None] * first + np.sin(turn)[:, None] * second
        )
        draw_paths(ax, rim[:, None, :], view, colors=[tint], width=width, strokes=Strokes(0.8, 0.25, -0.1))
