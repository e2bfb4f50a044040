"""Which axis of the results of a sweep goes where in a picture: what is averaged, what is fixed, what becomes panels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._words import counted
from metastable.errors import InvalidInputError
from metastable.figures.cells import cell_edges, is_log
from metastable.figures.curves import BAND_MEANING

if TYPE_CHECKING:
    import xarray as xr

MOST_CURVES = 10
MOST_NAMED = 12
"""Values of an axis that a message names."""
REPLICATES = ("member", "draw", "token")
"""Dims over which the mean is taken, unless a picture has one of them as its axis."""

PARTS = ("mean", "low", "high", "count")
"""The arrays of `Reduced`."""


@dataclass(frozen=True)
class Reduced:
    """A quantity over the grid: mean over members, its 0.1 and 0.9 quantiles, of how many members (or draws) there is a value, and what
    a legend calls the band."""

    mean: xr.DataArray
    low: xr.DataArray
    high: xr.DataArray
    count: xr.DataArray
    total: int = 1
    """Members of a place: the largest possible `count`."""
    band: str = BAND_MEANING

    @property
    def of(self) -> str:
        """What is counted."""
        return "member" if "member" in self.band else "draw"

    @property
    def every(self) -> str:
        """`40 members`: how many a place has, with or without a value."""
        return counted(self.total, self.of)

    @property
    def averaged(self) -> str:
        """The same where all of them are in every mean, else `members`."""
        return _every(self.count, self.total, self.total, self.of)


def reduce_members(array: xr.DataArray, keep: Collection[str | None] = ()) -> Reduced:
    """Mean and quantiles over members, also of several draws of random matrices; where an observable has one value for each token, of
    their mean over tokens.

    With the dim `statistic` (a sweep that kept statistics) they are those over members, averaged over the others: means by how many
    members are left in them. NaN is left out. `keep`: dims that stay.
    """
    import warnings

    over = [dim for dim in REPLICATES if dim in array.dims and dim not in keep]
    with warnings.catch_warnings():
        # Grid points that are not done are NaN throughout, which is what they should stay, and so is what infinite values leave open.
        warnings.filterwarnings("ignore", "(All-NaN|Mean of empty|invalid value)", RuntimeWarning)
        if "statistic" in array.dims:
            mean, low, high = (array.sel(statistic=name, drop=True) for name in ("mean", "q10", "q90"))
            left = array.sel(statistic="count", drop=True).fillna(0.0)
            members = int(array.attrs.get("members", left.max()))
            total = members * int(np.prod([array.sizes[dim] for dim in over]))
            if over:
                count = left.sum(over)
                mean = (mean.where(left > 0, 0.0) * left).sum(over, skipna=False) / count.where(count > 0)
                low, high, left = low.mean(over), high.mean(over), count
            return Reduced(mean, low, high, left, total, _band(_every(left, total, members, "member"), over))
        inner = [dim for dim in over if dim == "token"]
        spread = [dim for dim in over if dim not in inner]
        array = array.mean(inner, keep_attrs=True) if inner else array
        count = array.notnull().sum(spread)
        if not spread:
            return Reduced(array, array, array, count)
        # Not `array.quantile`: it makes a dim `quantile`, which an observable may have.
        low, high = (array.reduce(np.nanquantile, spread, q=level, keep_attrs=True) for level in (0.1, 0.9))
        total = int(np.prod([array.sizes[dim] for dim in spread]))
        every = _every(count, total, total, "member" if "member" in spread else "draw")
        return Reduced(array.mean(spread), low, high, count, total, _band(every, inner))


def _every(count: xr.DataArray, total: int, members: int, noun: str) -> str:
    """Of how many members a mean is, in words: without their number where not all of the `total` are in every mean."""
    return counted(members, noun) if bool(((count == 0) | (count == total)).all()) else f"{noun}s"


def _band(every: str, averaged: list[str]) -> str:
    """What a legend calls a band of `every` ("20 members"), and over what the mean was taken before."""
    meaning = BAND_MEANING.replace("members", every)
    return f"{meaning},\nmean over {' and '.join(f'{dim}s' for dim in averaged)}" if averaged else meaning


def numbered(reduced: Reduced) -> Reduced:
    """With numbers along every dim that has no coordinate: titles and legends name the place of what they show by it."""
    bare = {str(dim): np.arange(size) for dim, size in reduced.mean.sizes.items() if dim not in reduced.mean.coords}
    return replace(reduced, **{name: getattr(reduced, name).assign_coords(bare) for name in PARTS})


def in_order(array: xr.DataArray) -> xr.DataArray:
    """`array` with the numbers along each axis rising: cells and curves are made of neighbours. Names stay in their order."""
    mixed = [
        str(dim)
        for dim in array.dims
        if dim in array.coords and not _is_named(array, str(dim)) and (np.diff(array[dim].values) <= 0).any()
    ]
    return array.sortby(mixed) if mixed else array


def select(array: xr.DataArray, at: Mapping[str, Any]) -> xr.DataArray:
    """`array` at one place on some axes: the label, or the nearest number; what is in the cell of none is refused."""
    for dim, value in at.items():
        if dim not in array.dims:
            raise InvalidInputError(
                f"{dim!r} is no axis of these results; their axes are: {', '.join(map(str, array.dims))}"
            )
        if dim not in array.coords:  # numbered
            array = array.assign_coords({dim: np.arange(array.sizes[dim])})
        known = array[dim].values
        place = _place_of(known.tolist(), str(value)) if _is_named(array, dim) else _place_of_number(known, value)
        if place is None:
            shown = [str(item) for item in known.tolist()]
            shown = shown if len(shown) <= MOST_NAMED else [*shown[: MOST_NAMED - 2], "...", shown[-1]]
            raise InvalidInputError(f"{dim} has no value {value!r}; it has {', '.join(shown)}")
        array = array.isel({dim: place})
    return array


def _place_of(names: list[Any], name: str) -> int | None:
    found = [str(item) for item in names]
    return found.index(name) if name in found else None


def _place_of_number(numbers: np.ndarray, value: Any) -> int | None:
    """Where the nearest of some numbers is; None for what is no number, or outside of all their cells."""
    try:
        asked = float(value)
    except (TypeError, ValueError):
        return None
    edges = cell_edges(np.unique(numbers), is_log(numbers))
    return int(np.argmin(np.abs(numbers - asked))) if edges[0] <= asked <= edges[-1] else None


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


def with_values(reduced: Reduced, plan: Arrangement) -> Reduced:
    """Without the curves, and the values of panels, of which nothing is there yet: a sweep that runs is drawn as far as it is.

    For sweeps that are not finished: in others nothing is to come, and a panel without a value says so. Axes of a picture stay whole,
    so that one sees what is missing. Where there is nothing at all everything stays.
    """
    known = reduced.mean.notnull()
    if not bool(known.any()):
        return reduced
    dims = [dim for dim in (plan.series, *plan.panels) if dim is not None]
    keep = {dim: known.any([other for other in known.dims if other != dim]).values for dim in dims}
    return replace(reduced, **{name: getattr(reduced, name).isel(keep) for name in PARTS})


def panels_of(reduced: Reduced, plan: Arrangement, all_of_them: bool = True) -> list[dict[str, int]]:
    """The places of panels along `plan.panels`, the last axis fastest; where not all are wanted those that have something to show (all
    where none has)."""
    shape = [reduced.mean.sizes[dim] for dim in plan.panels]
    places = [dict(zip(plan.panels, index)) for index in np.ndindex(*shape)]
    if all_of_them:
        return places
    return [place for place in places if bool(reduced.mean.isel(place).notnull().any())] or places
