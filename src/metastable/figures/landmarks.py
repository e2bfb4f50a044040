"""What does not move in the picture of a run: frozen tokens, and the moments at which its model changes.

Frozen tokens are hollow diamonds where they are, on the circle and on the ball, and dashed lines where angles are drawn against depth.
The joints of a `Schedule` (and of layers with different weights) are thin vertical lines on every axis of depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable.analysis.trajectory import joints_of
from metastable.errors import InvalidInputError
from metastable.figures import style
from metastable.figures.arguments import drawing
from metastable.figures.circle_view import angles_of
from metastable.figures.moments import RunLike
from metastable.figures.sphere_view import DEFAULT_VIEW, Dots, View, draw_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKER = "D"
"""Frozen tokens are diamonds, as in the explorer."""
SIZE, EDGE = 34.0, 1.1
"""Area (square points) of the diamonds and width of their edges."""
BEGINNING = 20.0
"""Area of those at the beginning of a dashed line."""
DASHES = (0, (4.0, 2.5))
HOLLOW = (0.0, 0.0, 0.0, 0.0)
AT_THE_EDGE = 0.02
"""Radians from +-pi within which an angle is drawn at both edges of the picture: tokens come to it from both."""
MOST_LINES = 20
"""Joints that are lines over the whole picture; more of them would be a grid and are ticks at its top."""
ROW_HEIGHT = 9.0
"""Points of a row of a matrix, as the page is first laid out, from which on a diamond has room beside it."""
BESIDE = 1.04
"""Where it is, in widths of the matrix."""
KEY_HEIGHT = 0.25
"""Inches of a line of a key below a page."""
CHANGES = "model changes"
FROZEN = "frozen token"
EARLIER = "earlier frozen token"
GONE = "X"
"""Where a frozen token was."""


@dataclass(frozen=True)
class Landmarks:
    """Frozen tokens of a run, `frozen[i]` (m_i, dim) from depth `begins[i]` on, up to the next or the `end`, and its `joints`, the
    depths inside the run at which the model becomes another."""

    begins: tuple[float, ...]
    frozen: tuple[np.ndarray, ...]
    joints: tuple[float, ...]
    end: float

    @property
    def any_frozen(self) -> bool:
        """True where a model of the run has frozen tokens."""
        return any(len(tokens) for tokens in self.frozen)

    @property
    def most_frozen(self) -> int:
        """How many frozen tokens there are at a time, at most."""
        return max(len(tokens) for tokens in self.frozen)

    def at(self, t: float) -> np.ndarray:
        """Frozen tokens (m, dim) at depth t; at a joint those of the model behind it."""
        return self.frozen[max(0, int(np.searchsorted(self.begins, t, side="right")) - 1)]

    def spans(self) -> list[tuple[np.ndarray, float, float]]:
        """Each frozen token (dim,) once for every stretch of depth over which it is there, with its first and last depth."""
        found: list[tuple[np.ndarray, float, float]] = []
        open_before: dict[bytes, int] = {}
        for first, last, tokens in zip(self.begins, (*self.begins[1:], self.end), self.frozen):
            still_open: dict[bytes, int] = {}
            for point in tokens:
                place = open_before.get(_name(point), still_open.get(_name(point)))
                if place is None:
                    place = len(found)
                    found.append((point, first, last))
                found[place] = (point, found[place][1], last)
                still_open[_name(point)] = place
            open_before = still_open
        return found

    def earlier(self) -> np.ndarray:
        """Frozen tokens (m, dim) that were there, and are not at the end."""
        seen = {_name(point) for point in self.frozen[-1]}
        gone = {_name(point): point for tokens in self.frozen for point in tokens if _name(point) not in seen}
        return np.array(list(gone.values())).reshape(-1, self.frozen[0].shape[1])


def _name(point: np.ndarray) -> bytes:
    return (point + 0.0).tobytes()  # -0 and 0 are one


def landmarks(run: RunLike) -> Landmarks:
    """The frozen tokens and the joints of a run that lie within it."""
    begin, end = float(getattr(run, "begin", 0.0)), float(run.times[-1])
    schedule = getattr(run, "schedule", None)
    pieces = ((0.0, run.model),) if schedule is None else schedule.pieces
    lasts = (*(first for first, _ in pieces[1:]), np.inf)
    held = [(max(first, begin), model) for (first, model), last in zip(pieces, lasts) if first < end and last > begin]
    none = np.empty((0, np.shape(run.start)[1]))
    parts = [getattr(model, "frozen", None) for _, model in held]
    return Landmarks(
        begins=tuple(first for first, _ in held),
        frozen=tuple(none if part is None else np.asarray(part.tokens) for part in parts),
        joints=joints_of(run),
        end=end,
    )


@drawing
def draw_frozen(ax: Axes, points: Any, view: View = DEFAULT_VIEW, *, gone: bool = False) -> None:
    """Frozen tokens (m, 2) on the circle or (m, 3) on the ball as hollow diamonds; behind the ball paler.

    `gone`: those that were frozen before, as small crosses (ball only).
    """
    found = _checks.real_array(points, "points")
    if found.ndim != 2 or found.shape[1] not in (2, 3):
        raise InvalidInputError(f"points must have shape (frozen tokens, 2) or (frozen tokens, 3), not {found.shape}")
    if found.shape[1] == 2:
        angles = angles_of(found)
        diamonds(ax).set_offsets(np.column_stack([np.cos(angles), np.sin(angles)]))
    elif gone:
        draw_points(ax, found, view, colors=style.INK, size=20.0, dots=Dots(marker=GONE, edge_width=0.5, layer=0.6))
    else:
        dots = Dots(marker=MARKER, edge=style.INK, edge_width=EDGE, layer=0.6)
        draw_points(ax, found, view, colors=[HOLLOW], size=SIZE, dots=dots)


def diamonds(ax: Axes, color: Any = style.INK, order: float = 4.5, size: float = SIZE) -> Any:
    """Hollow diamonds, nowhere yet: `set_offsets` puts them where frozen tokens are at a moment."""
    return ax.scatter(
        [], [], s=size, marker=MARKER, facecolors="none", edgecolors=color, linewidths=EDGE, zorder=order, clip_on=False
    )


def draw_frozen_half(ax: Axes, points: np.ndarray, view: View, *, far: bool) -> None:
    """Frozen tokens (m, 3) on the half of the ball that a density shows: `far`, the other side, seen from behind."""
    from matplotlib.patheffects import withStroke

    right, up, depth = view.project(points.reshape(-1, 3)).T
    shown = (depth < 0) == far
    if shown.any():
        halved = np.column_stack([-right if far else right, up])
        found = diamonds(ax)
        found.set_offsets(halved[shown])
        found.set_path_effects([withStroke(linewidth=EDGE + 1.6, foreground=style.PAPER)])  # cells may be as dark


def row_marks(ax: Axes, tokens: int) -> tuple[Any, Any]:
    """A dashed line below the rows of `tokens` of a matrix of cosines, and diamonds beside rows, nowhere yet (see `mark_rows`)."""
    border = ax.axhline(tokens - 0.5, color=style.INK, linewidth=0.9, linestyle=DASHES, visible=False)
    beside: Any = {"transform": ax.get_yaxis_transform(), "clip_on": False, "zorder": 4}
    options: Any = {"s": 14, "marker": MARKER, "facecolors": "none", "edgecolors": style.INK, "linewidths": 0.9}
    return border, ax.scatter([], [], **options, **beside)


def mark_rows(marks: tuple[Any, Any], matrix: np.ndarray) -> None:
    """The marks of the frozen tokens of a `matrix` (tokens + rows, tokens), whose last rows may be NaN: a diamond beside each row, one
    for all of them where rows are too thin."""
    border, beside = marks
    ax, tokens = border.axes, matrix.shape[1]
    rows = int(np.isfinite(matrix[tokens:]).all(axis=1).sum())
    height = 72.0 * ax.get_position(original=True).height * ax.figure.get_figheight() / len(matrix)
    shown = rows if height >= ROW_HEIGHT else min(rows, 1)
    places = tokens - 0.5 + rows * (np.arange(shown) + 0.5) / max(shown, 1)
    border.set_visible(rows > 0)
    beside.set_offsets(np.column_stack([np.full(shown, BESIDE), places]))


def draw_landmarks(ax: Axes, marks: Landmarks) -> None:
    """Where angles are drawn against depth: frozen tokens as dashed lines, a diamond where each begins, and the joints."""
    from matplotlib.collections import LineCollection
    from matplotlib.patheffects import withStroke

    low, high = ax.get_xlim()
    lines = []
    for point, first, last in marks.spans():
        angle = float(angles_of(point))
        edges = [AT_THE_EDGE - np.pi, np.pi - AT_THE_EDGE] if np.pi - abs(angle) < AT_THE_EDGE else [angle]
        ends = max(first, low), min(last, high)
        lines += [[(ends[0], height), (ends[1], height)] for height in edges if ends[0] < ends[1]]
    if lines:
        width = 1.0 if len(lines) <= MOST_LINES else 0.5
        halo = [withStroke(linewidth=2.4 * width, foreground=style.PAPER, alpha=0.8)]
        options: Any = {"linestyles": [DASHES], "capstyle": "butt", "path_effects": halo}
        ax.add_collection(LineCollection(lines, colors=style.INK, linewidths=width, zorder=4, **options), autolim=False)
        diamonds(ax, size=BEGINNING).set_offsets([line[0] for line in lines])
    draw_joints(ax, marks.joints)


def draw_joints(ax: Axes, joints: Sequence[float]) -> None:
    """Thin vertical lines at the depths at which the model changes, ticks at the top of the axis where there are very many."""
    low, high = ax.get_xlim()
    inside = [t for t in joints if low < t < high]
    if len(inside) > MOST_LINES:
        from matplotlib.markers import TICKDOWN

        options: Any = {"transform": ax.get_xaxis_transform(), "linestyle": "", "marker": TICKDOWN, "markersize": 6.0}
        ax.plot(inside, np.ones(len(inside)), color=style.MUTED, zorder=3.5, **options)
        return
    for t in inside:
        ax.axvline(t, color=style.MUTED, linewidth=0.8, zorder=3.5)


def landmark_handles(
    marks: Landmarks, *, frozen: str = FROZEN, earlier: bool = False, ax: Axes | None = None
) -> list[Any]:
    """Entries of a key for what of the landmarks a picture has.

    `frozen`: what it calls frozen tokens; `earlier`: those that are gone at the end are crosses; `ax`: the axis of depth, where joints
    are lines.
    """
    from matplotlib.lines import Line2D

    options: Any = {
        "linestyle": "",
        "marker": MARKER,
        "markerfacecolor": "none",
        "markeredgewidth": EDGE,
        "markersize": 5.0,
    }
    handles = []
    if marks.any_frozen and (len(marks.frozen[-1]) or not earlier):
        handles.append(Line2D([], [], color=style.INK, label=frozen, **options))
    if earlier and len(marks.earlier()):
        was: Any = {"linestyle": "", "marker": GONE, "markeredgewidth": 0, "markersize": 5.0}
        handles.append(Line2D([], [], color=style.INK, label=EARLIER, **was))
    return handles if ax is None else [*handles, *joint_handles(ax, marks.joints)]


def joint_handles(ax: Axes, joints: Sequence[float]) -> list[Any]:
    """The entry of a key for the joints that an axis of depth shows; none where it shows none."""
    from matplotlib.lines import Line2D

    low, high = ax.get_xlim()
    if not any(low < t < high for t in joints):
        return []
    options: Any = {"marker": "|", "markersize": 11.0, "markeredgewidth": 0.8, "linestyle": ""}
    return [Line2D([], [], color=style.MUTED, label=CHANGES, **options)]


def draw_landmark_key(page: Figure, handles: Sequence[Any]) -> None:
    """The key of a page, below all of it, which grows by as much; nothing where there is nothing to explain."""
    if handles:
        page.set_size_inches(page.get_figwidth(), page.get_figheight() + KEY_HEIGHT)
        style.page_key(page, handles)
