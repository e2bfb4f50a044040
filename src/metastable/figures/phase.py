"""Phase diagrams of sweeps: heat maps over two axes, curves with bands over one, small multiples beyond.

`draw_phase` and `draw_family` draw arrays on a given axis; `phase_figure` makes a whole figure of an `xarray.DataArray` whose
dims are the axes of a grid (and `member` or `statistic`, over which it takes the mean).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable._checks import FloatArray
from metastable._words import counted, left_out
from metastable.errors import InvalidInputError
from metastable.figures import style
from metastable.figures.arrangement import (
    PARTS,
    REPLICATES,
    Arrangement,
    Reduced,
    arrange,
    in_order,
    numbered,
    panels_of,
    reduce_members,
    select,
    with_values,
)
from metastable.figures.cells import cell_edges, is_log
from metastable.figures.curves import BAND, draw_band
from metastable.figures.titles import PER_INCH, filled

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {
    "beta": r"inverse temperature $\beta$",
    "time": "depth $t$",
    "tokens": "tokens $n$",
    "dim": "dimension $d$",
    "noise": r"noise $\sigma$",
}
"""Axis labels of well-known axes; others are called by their name."""
SYMBOLS = {"beta": r"$\beta$", "time": "$t$", "tokens": "$n$", "dim": "$d$", "noise": r"$\sigma$"}
"""How well-known axes are called in titles of panels."""
MOST_PANELS = 24
MOST_TICKS = 7
"""Values of an axis that get a tick each; more are left to the usual ticks."""
LETTER, LINE = 0.062, 0.13
"""Width of a letter and height of a line at a tick, in inches."""
LEGEND_WIDTH = 1.1
"""Inches beside the panels for the legend of curves."""
HEADING_LINE = 0.19
"""Inches of a line of the heading."""
TITLE_CHARACTERS = 75
"""Titles of panels side by side, in all."""
BESIDE = 0.5
"""Over so much of the room of a name its curves are spread, side by side."""
STOPPED_EARLY = "unfinished"
"""Attribute of a variable of `metastable.sweep.open_results`: members that stopped early or failed, in the whole sweep."""
FAILED = "failed"
"""The same: those of them that could not be drawn or measured."""
TASKS, DONE_TASKS, FAILED_TASKS = "tasks", "done_tasks", "failed_tasks"
"""The same, of a sweep with tasks that have no result: how many tasks there are, how many are done, how many failed."""


def draw_phase(
    ax: Axes,
    x: Any,
    y: Any,
    values: Any,
    *,
    color_log: bool = False,
    limits: tuple[float, float] | None = None,
    contours: Sequence[float] = (),
) -> Any:
    """A heat map of `values` (len(y), len(x)); cells without a value are left grey. Returns the mesh, for a colour bar.

    Numbers on x and y rise or fall and are placed to scale, logarithmic where they are spaced so; names become equal cells.
    `color_log`: colours by the logarithm, where all that is shown is above 0. `contours`: levels that are drawn as lines.
    """
    from matplotlib.colors import LogNorm, Normalize

    array = np.asarray(values, dtype=float)
    if array.shape != (len(y), len(x)):
        raise InvalidInputError(f"values must have shape (len(y), len(x)) = {(len(y), len(x))}, not {array.shape}")
    low, high = limits if limits is not None else _limits(array)
    norm = LogNorm(low, high) if color_log and low > 0 else Normalize(low, high)
    ax.set_facecolor(style.FAINT)
    across, down = _place(ax, x, "x"), _place(ax, y, "y")
    mesh = ax.pcolormesh(
        across[1], down[1], np.ma.masked_invalid(array), cmap=style.sequence_map(), norm=norm, rasterized=True
    )
    if len(contours) and min(array.shape) > 1:
        lines = ax.contour(across[0], down[0], np.ma.masked_invalid(array), levels=list(contours), colors=style.PAPER)
        lines.set_linewidth(0.7)
        ax.clabel(lines, fontsize=6, fmt="%g")
    return mesh


def _limits(array: FloatArray) -> tuple[float, float]:
    finite = array[np.isfinite(array)]
    if finite.size == 0:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _place(ax: Axes, values: Any, axis: str) -> tuple[FloatArray, FloatArray]:
    """Centers and edges of cells along an axis, with its scale and ticks set."""
    array = np.asarray(values)
    if _is_named(values):
        centers = np.arange(len(array), dtype=float)
        names = [str(value) for value in array]
        (ax.set_xticks if axis == "x" else ax.set_yticks)(centers, names)
        return centers, cell_edges(centers)
    centers = array.astype(float)
    log = is_log(centers)
    if log:
        (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    ruler = ax.xaxis if axis == "x" else ax.yaxis
    if len(centers) <= MOST_TICKS:
        names = numbers_apart(centers)
        length = float(ax.bbox.width if axis == "x" else ax.bbox.height) / float(ax.figure.dpi)
        rooms = [LETTER * (len(name) + 1.5) if axis == "x" else LINE for name in names]
        ruler.set_ticks(
            centers.tolist(), _with_room(np.log(centers) if log else centers, names, np.array(rooms) / length)
        )
        ruler.set_ticks([], minor=True)
    if log:
        ruler.set_minor_formatter("")
    return centers, cell_edges(centers, log)


def numbers_apart(values: FloatArray) -> list[str]:
    """Numbers as text, in four digits, or as many as tell them apart."""
    for digits in range(4, 17):
        names = [f"{value:.{digits}g}" for value in values]
        if len({*names}) == len({*values.tolist()}):
            return names
    return [repr(float(value)) for value in values]


def _with_room(places: FloatArray, names: Sequence[str], rooms: FloatArray) -> list[str]:
    """The names of ticks at `places`, where they have their `rooms` (in lengths of the axis): none where one would stand on that of the
    tick before it, or of the last one. Nearest ends of cells are half a cell away, so that the axis is a little longer."""
    span = float(np.ptp(places)) * len(places) / max(1, len(places) - 1)
    shown, order = [""] * len(names), np.argsort(places)
    last = order[-1]
    before: int | None = None
    for number in order:

        def apart(other: int, number: int = number) -> bool:
            return abs(places[number] - places[other]) >= 0.5 * (rooms[number] + rooms[other]) * span

        if number == last or ((before is None or apart(before)) and apart(last)):
            shown[number], before = names[number], number
    return shown


def _is_named(values: Any) -> bool:
    """True for an axis of names, which have no places between them."""
    return np.asarray(values).dtype.kind in "UOS"


def draw_family(
    ax: Axes,
    x: Any,
    mean: Any,
    low: Any = None,
    high: Any = None,
    *,
    labels: Sequence[Any] | None = None,
    marker: str | None = "o",
) -> None:
    """Curves `mean` (curves, len(x)) over `x`, which rises or falls, with bands from `low` to `high`, one colour per curve; over names
    there is nothing between them, and points with bars stand side by side.

    Many ordered curves (labels that are numbers, more than four) run through the sequence colours, few or named ones through the
    categorical palette.
    """
    rows = np.atleast_2d(np.asarray(mean, dtype=float))
    names = [""] if labels is None else list(labels)
    if rows.shape != (len(names), len(x)):
        raise InvalidInputError(f"mean must have shape (labels, len(x)) = {(len(names), len(x))}, not {rows.shape}")
    ordered = len(names) > 4 and all(isinstance(name, (int, float, np.number)) for name in names)
    colors: Any = style.sequence_map()(np.linspace(0, 0.9, len(names))) if ordered else style.CATEGORICAL
    places, _ = _place(ax, x, "x")
    for row, name in enumerate(names):
        color = colors[row % len(colors)]
        band = (None, None) if low is None else (np.atleast_2d(low)[row], np.atleast_2d(high)[row])
        shown = name if isinstance(name, str) else f"{name:.4g}"
        if _is_named(x):
            aside = BESIDE * ((row + 0.5) / len(names) - 0.5)
            _draw_bars(ax, places + aside, rows[row], *band, color=color, label=shown, marker=marker or "o")
            continue
        draw_band(ax, places, rows[row], *band, color=color, label=shown or None)
        if marker is not None and len(places) <= 30:
            ax.plot(places, rows[row], marker, color=color, markersize=2.6, zorder=4)
    if _is_named(x):
        ax.set_xlim(-0.5, len(places) - 0.5)
    style.grid(ax, "y")


def _draw_bars(
    ax: Axes, places: FloatArray, middle: Any, low: Any, high: Any, *, color: Any, label: str, marker: str
) -> None:
    """Points at `places` with bars from `low` to `high` (which need not hold the point between them)."""
    if low is not None:
        ax.vlines(places, low, high, color=color, linewidth=1.0, zorder=3)
    ax.plot(places, middle, marker, color=color, markersize=3.6, label=label or None, zorder=4)


# ------------------------------------------------------------------------------------------------- whole figures


@style.styled
def phase_figure(
    array: xr.DataArray,
    *,
    x: str | None = None,
    y: str | None = None,
    kind: str = "auto",
    at: Mapping[str, Any] | None = None,
    label: str | None = None,
    title: str = "",
    setting: str = "",
    log: bool = False,
    contours: Sequence[float] = (),
) -> Figure:
    """A phase diagram of `array`, whose dims are the axes of a grid (and `member` or `statistic`).

    Args:
        array: a variable of `metastable.sweep.open_results`.
        x, y: axes of the picture; by default the last long numeric axis, and the first for a map.
        kind: "map" (heat maps), "curves" (mean with the 0.1 and 0.9 quantiles over members), or "auto".
        at: axis -> value for axes that should not be shown: a label, or a number, of which the nearest on the axis is taken (the
            heading says which) unless it lies outside the cells of all of them.
        label: name of the quantity (default: the name of the array).
        title: title of the figure.
        setting: what is the same in all of it, a line below the title.
        log: logarithmic colours (map) or values (curves); where some values are not above 0 the heading says what becomes of them.
        contours: levels drawn as lines on a map.

    Numbers of an axis are in order, whatever their order in the array; names stay as they are. Axes that are left become panels, but
    for `draw`, the replicate number: like members, draws are averaged. Members that stopped early are left out of means and bands from
    there on, and the heading says how many did; and over how many members means are, where an observable has no value for some. Of a
    sweep that is not finished panels and curves are drawn as far as there are results, and the heading says how many of its tasks are
    done.
    """
    for name in (x, y):
        if name is not None and name in (at or {}):
            raise InvalidInputError(
                f"{name!r} is an axis of the picture and fixed by at={{...}}, too; leave one of them out"
            )
    chosen = select(in_order(array), at or {})
    # An axis of one point has nothing to show, unless it was asked for; the heading says which point that is.
    aside = {*REPLICATES, "statistic"} - {x, y}
    axes = [dim for dim in chosen.dims if dim not in aside]
    single = [dim for dim in axes if chosen.sizes[dim] == 1 and dim not in (x, y)]
    only = "" if len(single) == len(axes) else _names(chosen, [str(dim) for dim in single if dim in chosen.coords])
    if len(single) < len(axes):
        chosen = chosen.isel(dict.fromkeys(single, 0), drop=True)
    reduced = numbered(reduce_members(chosen, keep=(x, y)))
    plan = arrange(reduced.mean, x, y, kind)
    whole = not _missing_tasks(array.attrs)
    reduced = reduced if whole else with_values(reduced, plan)
    panels = panels_of(reduced, plan, whole)
    if len(panels) > MOST_PANELS:
        raise InvalidInputError(
            f"{len(panels)} panels are too many to read; fix one of the axes {', '.join(plan.panels)} with at={{...}} (--at AXIS=VALUE)"
        )
    page, grid = _page(reduced, plan, len(panels))
    name = label or style.plain(str(array.name or "value"))
    mesh = _draw_panels(grid, reduced, plan, panels, name, log, contours)
    if plan.y is None:
        _legend(page, grid[0, 0], plan, reduced)
    if mesh is not None:
        page.colorbar(mesh, ax=grid, label=_averaged(name, reduced), shrink=0.9, pad=0.02)
    told = [
        _title(title, chosen, at or {}),
        ", ".join(part for part in (only, setting) if part),
        *_left_out(array.attrs),
        *_thin(reduced),
        _not_logarithmic(reduced, plan) if log else "",
    ]
    # The legend of curves stands at the right end.
    most = int(PER_INCH * (page.get_figwidth() - (LEGEND_WIDTH if plan.y is None else 0.0)))
    heading = "\n".join(filled(part, most) for part in told if part)
    if heading:
        page.set_figheight(page.get_figheight() + HEADING_LINE * heading.count("\n"))  # panels stay as high as they are
        page.suptitle(heading, x=0.01, ha="left", fontsize="medium")
    return page


def _draw_panels(
    grid: Any,
    reduced: Reduced,
    plan: Arrangement,
    panels: Sequence[Mapping[str, int]],
    name: str,
    log: bool,
    contours: Sequence[float],
) -> Any:
    """Draw the panels at their places in `grid`; returns the mesh of one of the maps, for a colour bar (None for curves)."""
    limits = _limits(np.asarray(reduced.mean.values, dtype=float))
    mesh: Any = None
    for place, ax in enumerate(grid.flat):
        if place >= len(panels):
            ax.set_axis_off()
            continue
        where = panels[place]
        part = replace(reduced, **{each: getattr(reduced, each).isel(where) for each in PARTS})
        if plan.y is not None:
            cells = part.mean.transpose(plan.y, plan.x)
            across, up = cells[plan.x].values, cells[plan.y].values
            mesh = draw_phase(ax, across, up, cells.values, color_log=log, limits=limits, contours=contours)
        else:
            _curves(ax, part, plan, log)
        rows, columns = grid.shape
        _labels(ax, plan, name, place, columns, rows, len(panels))
        lines = filled(_names(part.mean, plan.panels), TITLE_CHARACTERS // max(2, columns))
        style.panel(ax, chr(ord("a") + place) if len(panels) > 1 else "", lines)
    return mesh


def _page(reduced: Reduced, plan: Arrangement, total: int) -> tuple[Figure, Any]:
    """An empty page with a place for each of `total` panels, and the places, shape (rows, columns)."""
    sizes = [reduced.mean.sizes[dim] for dim in plan.panels]
    whole = len(sizes) == 2 and total == sizes[0] * sizes[1] and sizes[-1] <= 5  # one row for each value of the first
    columns = sizes[-1] if whole else min(total, 3 if total != 4 else 2)
    rows = -(-total // columns)
    beside = LEGEND_WIDTH if plan.y is None else 0.0
    width = style.COLUMN_WIDTH + beside if total == 1 else min(style.PAGE_WIDTH, 2.6 * columns + 0.6 + beside)
    height = ((width - beside) / columns) * 0.74 * rows + 0.3
    return style.figure(width, height, rows, columns, squeeze=False, sharey=True)


def _names(array: xr.DataArray, dims: Iterable[str]) -> str:
    """Where an array is on axes that it has one value of."""
    return ", ".join(f"{SYMBOLS.get(dim, dim)} = {_short(array[dim].values.item())}" for dim in dims)


def _title(title: str, chosen: xr.DataArray, at: Mapping[str, Any]) -> str:
    """The title with where the array is on the axes that are fixed, and what was asked for where that is something else."""
    places = []
    for dim, asked in at.items():
        words = _names(chosen, [dim])
        taken = chosen[dim].values.item()
        elsewhere = not isinstance(taken, str) and f"{float(asked):.4g}" != f"{taken:.4g}"
        places.append(f"{words} (nearest to {float(asked):.4g})" if elsewhere else words)
    return ": ".join(part for part in (title, ", ".join(places)) if part)


def _not_logarithmic(reduced: Reduced, plan: Arrangement) -> str:
    """What becomes of values that have no logarithm, in words; "" where all have one."""
    if not bool((reduced.mean <= 0).any()):
        return ""
    if plan.y is not None:
        return "colours are linear, not logarithmic: some values are not above 0"
    return "values that are not above 0 have no place on the logarithmic axis"


def _averaged(name: str, reduced: Reduced) -> str:
    """What the colours of a map are, and the mean of how many members."""
    return f"{name}\nmean of {reduced.averaged}" if reduced.total > 1 else name


def _thin(reduced: Reduced) -> list[str]:
    """Over how many members means are, where some have no value, and where infinite ones leave none."""
    there, known = reduced.count > 0, np.isfinite(reduced.mean)
    words = []
    if bool((there & (reduced.count < reduced.total)).any()):
        counts = reduced.count.values[there.values]
        words.append(f"means are over {_range(counts)} of {reduced.every}: the others have no value there")
    infinite = int((there & ~known).sum())
    if infinite:
        words.append(f"no mean in {infinite} of {counted(int(there.size), 'place')}: {reduced.of}s are infinite there")
    return words


def _range(numbers: Any) -> str:
    low, high = int(numbers.min()), int(numbers.max())
    return f"{low}" if low == high else f"{low} to {high}"


def _missing_tasks(attributes: Mapping[str, Any]) -> str:
    """How much of a sweep is done, in words; "" where all of it is. From attributes of `metastable.sweep.open_results`."""
    done, tasks, lost = (int(attributes.get(name, 0)) for name in (DONE_TASKS, TASKS, FAILED_TASKS))
    if done >= tasks:
        return ""
    said = f"{done} of {counted(tasks, 'task')} of the sweep {'is' if done == 1 else 'are'} done"
    return said + (f", {lost} failed" if lost else "")


def _left_out(attributes: Mapping[str, Any]) -> list[str]:
    """What the heading says of tasks and members without values."""
    early, failed = (int(attributes.get(name, 0)) for name in (STOPPED_EARLY, FAILED))
    return [_missing_tasks(attributes), left_out(early, failed, "the sweep")]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _has_band(reduced: Reduced) -> bool:
    """True when there is more than one member to take quantiles over."""
    return bool(np.nanmax(np.abs(reduced.high.values - reduced.low.values), initial=0.0) > 0)


def _legend(page: Figure, ax: Axes, plan: Arrangement, reduced: Reduced) -> None:
    """What the colours are, beside the panels, never on the data; and what the bands are, where there are some."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, _ = ax.get_legend_handles_labels()
    if _has_band(reduced) and _is_named(reduced.mean[plan.x].values):
        handles.append(Line2D([], [], linestyle="", marker="|", markersize=8, color=style.MUTED, label=reduced.band))
    elif _has_band(reduced):
        handles.append(Patch(facecolor=style.MUTED, alpha=BAND, edgecolor=style.MUTED, label=reduced.band))
    if not handles:
        return
    title = None if plan.series is None else LABELS.get(plan.series, plan.series)
    page.legend(handles=handles, title=title, loc="outside right upper", fontsize="x-small", title_fontsize="x-small")


def _curves(ax: Axes, part: Reduced, plan: Arrangement, log: bool) -> None:
    order = (plan.x,) if plan.series is None else (plan.series, plan.x)
    mean, low, high = (item.transpose(*order).values for item in (part.mean, part.low, part.high))
    labels = None if plan.series is None else part.mean[plan.series].values.tolist()
    draw_family(ax, part.mean[plan.x].values, mean, low, high, labels=labels)
    if log:
        ax.set_yscale("log")


def _labels(ax: Axes, plan: Arrangement, name: str, place: int, columns: int, rows: int, total: int) -> None:
    """Labels at the outer edge only."""
    if place + columns >= total or rows == 1:
        ax.set_xlabel(LABELS.get(plan.x, plan.x))
    if place % columns == 0:
        ax.set_ylabel(LABELS.get(plan.y, plan.y) if plan.y is not None else name)
