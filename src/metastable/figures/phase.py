"""Phase diagrams of sweeps: heat maps over two axes, curves with bands over one, small multiples beyond.

`draw_phase` and `draw_family` draw arrays on a given axis; `phase_figure` makes a whole figure of an `xarray.DataArray` whose
dims are the axes of a grid (and `member` or `statistic`, over which it takes the mean).
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._words import left_out
from metastable.errors import InvalidInputError
from metastable.figures import style
from metastable.figures.curves import BAND, BAND_MEANING, draw_band

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
MOST_CURVES = 10
MOST_PANELS = 24
DECADES_FOR_LOG = 0.75
"""Span of an axis from which on it may be logarithmic: 25, 50, 100, 200 are."""
MOST_TICKS = 7
"""Values of an axis that get a tick each; more are left to the usual ticks."""
LEGEND_WIDTH = 1.1
"""Inches beside the panels for the legend of curves."""
TITLE_CHARACTERS = 75
"""Titles of panels side by side, in all."""
STOPPED_EARLY = "unfinished"
"""Attribute of a variable of `metastable.sweep.open_results`: members that stopped early or failed, in the whole sweep."""
FAILED = "failed"
"""The same: those of them that could not be drawn or measured."""
REPLICATES = ("member", "draw", "token")
"""Dims over which the mean is taken, unless a picture has one of them as its axis."""


@dataclass(frozen=True)
class Reduced:
    """A quantity over the grid: mean over members, its 0.1 and 0.9 quantiles, and what a legend calls the band between them."""

    mean: xr.DataArray
    low: xr.DataArray
    high: xr.DataArray
    band: str = BAND_MEANING


def is_log(values: Any) -> bool:
    """True when positive values span more than a decade and are spaced more evenly in the logarithm."""
    array = np.sort(np.asarray(values, dtype=float))
    if array.size < 3 or array[0] <= 0 or np.log10(array[-1] / array[0]) < DECADES_FOR_LOG:
        return False
    steps, ratios = np.diff(array), np.diff(np.log(array))
    return bool(ratios.std() / ratios.mean() < steps.std() / steps.mean())


def cell_edges(centers: Any, log: bool = False) -> FloatArray:
    """Edges (m + 1,) of cells around `centers` (m,): halfway between neighbours (in the logarithm, for `log`)."""
    array = np.log(np.asarray(centers, dtype=float)) if log else np.asarray(centers, dtype=float)
    if array.size == 1:
        half = 0.5
        edges = np.array([array[0] - half, array[0] + half])
    else:
        middle = 0.5 * (array[1:] + array[:-1])
        edges = np.concatenate([[2 * array[0] - middle[0]], middle, [2 * array[-1] - middle[-1]]])
    return np.exp(edges) if log else edges


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

    Numbers on x and y are placed to scale, logarithmic where they are spaced so; names become equal cells. `contours`: levels
    that are drawn as lines.
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
    if array.dtype.kind in "UOS":
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
        ruler.set_ticks(centers.tolist(), [f"{value:.4g}" for value in centers])
        ruler.set_ticks([], minor=True)
    if log:
        ruler.set_minor_formatter("")
    return centers, cell_edges(centers, log)


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
    """Curves `mean` (curves, len(x)) over `x` with bands from `low` to `high`, one colour per curve.

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
        draw_band(ax, places, rows[row], *band, color=color, label=shown or None)
        if marker is not None and len(places) <= 30:
            ax.plot(places, rows[row], marker, color=color, markersize=2.6, zorder=4)
    style.grid(ax, "y")


# ------------------------------------------------------------------------------------------------- whole figures


def reduce_members(array: xr.DataArray, keep: Collection[str | None] = ()) -> Reduced:
    """Mean and quantiles over members, over draws of random matrices, and over tokens where an observable has one value for each.

    With the dim `statistic` (a sweep that kept statistics) they are those over members, averaged over the others. NaN is left out.
    `keep`: dims that stay.
    """
    import warnings

    over = [dim for dim in REPLICATES if dim in array.dims and dim not in keep]
    with warnings.catch_warnings():
        # Grid points that are not done are NaN throughout, which is what they should stay.
        warnings.filterwarnings("ignore", "(All-NaN|Mean of empty)", RuntimeWarning)
        if "statistic" in array.dims:
            pick = [array.sel(statistic=name, drop=True) for name in ("mean", "q10", "q90")]
            band = f"{BAND_MEANING},\nmean over {' and '.join(f'{dim}s' for dim in over)}" if over else BAND_MEANING
            mean, low, high = (item.mean(over) if over else item for item in pick)
            return Reduced(mean, low, high, band)
        if not over:
            return Reduced(array, array, array)
        # Not `array.quantile`: it makes a dim `quantile`, which an observable may have.
        low, high = (array.reduce(np.nanquantile, over, q=level, keep_attrs=True) for level in (0.1, 0.9))
        return Reduced(array.mean(over), low, high)


def select(array: xr.DataArray, at: Mapping[str, Any]) -> xr.DataArray:
    """`array` at one place on some axes: the nearest number, or the label."""
    for dim, value in at.items():
        if dim not in array.dims:
            raise InvalidInputError(
                f"{dim!r} is no axis of these results; their axes are: {', '.join(map(str, array.dims))}"
            )
        if dim not in array.coords:  # numbered
            array = array.assign_coords({dim: np.arange(array.sizes[dim])})
        try:
            if array[dim].dtype.kind in "UOS":
                array = array.sel({dim: str(value)})
            else:
                array = array.sel({dim: float(value)}, method="nearest")
        except (KeyError, ValueError):
            known = ", ".join(str(item) for item in array[dim].values.tolist()[:12])
            raise InvalidInputError(f"{dim} has no value {value!r}; it has {known}") from None
    return array


def _is_named(array: xr.DataArray, dim: str) -> bool:
    return dim in array.coords and array[dim].dtype.kind in "UOS"


@dataclass(frozen=True)
class Arrangement:
    """Which axis of the results goes where: `x`, `y` (None: curves), `series` (curves of one panel), `panels`."""

    x: str
    y: str | None
    series: str | None
    panels: tuple[str, ...]


def arrange(array: xr.DataArray, x: str | None = None, y: str | None = None, kind: str = "auto") -> Arrangement:
    """Choose the axes of a picture of `array`; `kind` is "map", "curves" or "auto" (a map when two numeric axes are long)."""
    _checks.choice(kind, "kind", ("auto", "map", "curves"))
    if x is not None and x == y:
        raise InvalidInputError(f"x and y are both {x!r}; a picture needs two different axes")
    dims = [str(dim) for dim in array.dims if array.sizes[dim] > 1]
    for name in (x, y):
        if name is not None and name not in array.dims:
            raise InvalidInputError(
                f"{name!r} is no axis of these results; their axes are: {', '.join(map(str, array.dims))}"
            )
    numeric = [dim for dim in dims if not _is_named(array, dim)]
    if y is None and kind == "auto":
        long = [dim for dim in numeric if array.sizes[dim] >= 4 and dim != x]
        kind = "map" if len(long) >= (2 if x is None else 1) and (x is None or x in numeric) else "curves"
    elif y is not None:
        kind = "map"
    x = x or next(iter(reversed(numeric)), dims[-1] if dims else str(array.dims[-1]))
    rest = [dim for dim in dims if dim not in (x, y)]
    if kind == "map":
        if y is None:
            y = next((dim for dim in rest if not _is_named(array, dim)), rest[0] if rest else None)
        if y is not None:
            return Arrangement(x, y, None, tuple(dim for dim in rest if dim != y))
    short = [dim for dim in rest if array.sizes[dim] <= MOST_CURVES]
    series = next((dim for dim in short if _is_named(array, dim)), short[-1] if short else None)
    return Arrangement(x, None, series, tuple(dim for dim in rest if dim != series))


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
    log: bool = False,
    contours: Sequence[float] = (),
) -> Figure:
    """A phase diagram of `array`, whose dims are the axes of a grid (and `member` or `statistic`).

    Args:
        array: a variable of `metastable.sweep.open_results`.
        x, y: axes of the picture; by default the last long numeric axis, and the first for a map.
        kind: "map" (heat maps), "curves" (mean with the 0.1 and 0.9 quantiles over members), or "auto".
        at: axis -> value for axes that should not be shown.
        label: name of the quantity (default: the name of the array).
        title: title of the figure.
        log: logarithmic colours (map) or values (curves).
        contours: levels drawn as lines on a map.

    Axes that are left become panels, but for `draw`, the replicate number: like members, draws are averaged. Members that stopped
    early are left out of means and bands from there on, and the heading says how many did.
    """
    for name in (x, y):
        if name is not None and name in (at or {}):
            raise InvalidInputError(
                f"{name!r} is an axis of the picture and fixed by at={{...}}, too; leave one of them out"
            )
    chosen = select(array, at or {})
    # An axis of one point has nothing to show, unless it was asked for.
    aside = {*REPLICATES, "statistic"} - {x, y}
    axes = [dim for dim in chosen.dims if dim not in aside]
    single = [dim for dim in axes if chosen.sizes[dim] == 1 and dim not in (x, y)]
    if len(single) < len(axes):
        chosen = chosen.isel(dict.fromkeys(single, 0), drop=True)
    reduced = reduce_members(chosen, keep=(x, y))
    plan = arrange(reduced.mean, x, y, kind)
    choices = [reduced.mean[dim].values.tolist() for dim in plan.panels]
    total = int(np.prod([len(choice) for choice in choices])) if choices else 1
    if total > MOST_PANELS:
        raise InvalidInputError(
            f"{total} panels are too many to read; fix one of the axes {', '.join(plan.panels)} with at={{...}} (--at AXIS=VALUE)"
        )
    columns = len(choices[-1]) if len(choices) == 2 and len(choices[-1]) <= 5 else min(total, 3 if total != 4 else 2)
    rows = -(-total // columns)
    beside = LEGEND_WIDTH if plan.y is None else 0.0
    width = style.COLUMN_WIDTH + beside if total == 1 else min(style.PAGE_WIDTH, 2.6 * columns + 0.6 + beside)
    page, grid = style.figure(
        width, ((width - beside) / columns) * 0.74 * rows + 0.3, rows, columns, squeeze=False, sharey=True
    )
    name = label or str(array.name or "value").replace("_", " ")
    limits = _limits(np.asarray(reduced.mean.values, dtype=float))
    mesh: Any = None
    for place, ax in enumerate(grid.flat):
        if place >= total:
            ax.set_axis_off()
            continue
        where = _panel(plan.panels, choices, place)
        part = Reduced(reduced.mean.isel(where), reduced.low.isel(where), reduced.high.isel(where))
        if plan.y is not None:
            cells = part.mean.transpose(plan.y, plan.x)
            mesh = draw_phase(
                ax,
                cells[plan.x].values,
                cells[plan.y].values,
                cells.values,
                color_log=log,
                limits=limits,
                contours=contours,
            )
        else:
            _curves(ax, part, plan, log)
        _labels(ax, plan, name, place, columns, rows, total)
        text = ", ".join(
            f"{SYMBOLS.get(dim, dim)} = {_short(choices[k][where[dim]])}" for k, dim in enumerate(plan.panels)
        )
        lines = textwrap.fill(text, TITLE_CHARACTERS // max(2, columns))
        style.panel(ax, chr(ord("a") + place) if total > 1 else "", lines)
    if plan.y is None:
        _legend(page, grid[0, 0], plan, reduced.band if _has_band(reduced) else None)
    if mesh is not None:
        page.colorbar(mesh, ax=grid, label=name, shrink=0.9, pad=0.02)
    fixed = ", ".join(f"{SYMBOLS.get(dim, dim)} = {_short(chosen[dim].values.item())}" for dim in at or {})
    heading = ": ".join(part for part in (title, fixed) if part)
    said = left_out(int(array.attrs.get(STOPPED_EARLY, 0)), int(array.attrs.get(FAILED, 0)), "the sweep")
    heading = "\n".join(part for part in (heading, said) if part)
    if heading:
        page.suptitle(heading, fontsize="medium")
    return page


def _panel(panels: Sequence[str], choices: Sequence[Sequence[Any]], place: int) -> dict[str, int]:
    if not panels:
        return {}
    index = np.unravel_index(place, [len(choice) for choice in choices])
    return {dim: int(i) for dim, i in zip(panels, index)}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _has_band(reduced: Reduced) -> bool:
    """True when there is more than one member to take quantiles over."""
    return bool(np.nanmax(np.abs(reduced.high.values - reduced.low.values), initial=0.0) > 0)


def _legend(page: Figure, ax: Axes, plan: Arrangement, band: str | None) -> None:
    """What the colours are, beside the panels, never on the data; and what the bands are (None: there are none)."""
    from matplotlib.patches import Patch

    handles, _ = ax.get_legend_handles_labels()
    if band is not None:
        handles.append(Patch(facecolor=style.MUTED, alpha=BAND, edgecolor=style.MUTED, label=band))
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
