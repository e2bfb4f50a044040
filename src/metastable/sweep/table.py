"""The results of a sweep as arrays over its grid, made of the journal: what the zarr store holds, and what readers get without it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable.errors import StoreError
from metastable.sweep.axes import Axis
from metastable.sweep.journal import Entry

STATUS = "task_status"
WAITING, DONE, FAILED = 0, 1, 2
MEANINGS: dict[str, Any] = {"flag_values": [WAITING, DONE, FAILED], "flag_meanings": "waiting done failed"}
"""Attributes of `STATUS`."""


@dataclass(frozen=True)
class Layout:
    """Variables of the results with their inner dims (those after the axes of the grid), and the sizes of these dims."""

    variables: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]

    def shape(self, name: str) -> tuple[int, ...]:
        """Inner shape of a variable."""
        return tuple(self.sizes[dim] for dim in self.variables[name])

    def covers(self, other: Layout) -> bool:
        """True when results of layout `other` fit into this one."""
        return all(self.variables.get(name) == dims for name, dims in other.variables.items()) and all(
            self.sizes.get(dim, -1) >= size for dim, size in other.sizes.items()
        )


def layout_of(entries: Iterable[Entry]) -> Layout:
    """The smallest layout that holds all finished tasks; smaller results are padded with NaN."""
    variables: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    for described in dict.fromkeys(entry.layout for entry in entries if entry.done):
        for name, dims, shape, coordinate in described:
            if coordinate:
                continue
            if variables.setdefault(name, dims) != dims:
                raise StoreError(
                    f"{name} has dims {dims} in one task and {variables[name]} in another; observe them apart"
                )
            for dim, size in zip(dims, shape):
                sizes[dim] = max(size, sizes.get(dim, 0))
    ordered = sorted(variables)
    return Layout({name: variables[name] for name in ordered}, {dim: sizes[dim] for dim in sorted(sizes)})


@dataclass(frozen=True)
class Table:
    """Results over the grid `axes`, in the arrays of `layout`."""

    axes: tuple[Axis, ...]
    layout: Layout

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes of the grid."""
        return tuple(axis.name for axis in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the grid."""
        return tuple(len(axis) for axis in self.axes)

    def dims(self, name: str) -> tuple[str, ...]:
        """Dims of a variable, or of `STATUS`."""
        return self.names + self.layout.variables.get(name, ())

    def blocks(self, region: tuple[slice, ...], entries: Mapping[int, Entry]) -> dict[str, np.ndarray]:
        """What each variable, and `STATUS`, holds in a region of the grid."""
        extent = tuple(part.stop - part.start for part in region)
        blocks = {name: np.full(extent + self.layout.shape(name), np.nan) for name in self.layout.variables}
        blocks[STATUS] = np.full(extent, WAITING, dtype=np.int8)
        for inner in itertools.product(*(range(size) for size in extent)):
            index = tuple(part.start + i for part, i in zip(region, inner))
            number = int(np.ravel_multi_index(index, self.shape)) if self.axes else 0
            entry = entries.get(number)
            if entry is None:
                continue
            blocks[STATUS][inner] = DONE if entry.done else FAILED
            if not entry.done:
                continue
            for variable in entry.read()[1]:
                if not variable.coordinate:
                    place = inner + tuple(slice(0, size) for size in variable.values.shape)
                    blocks[variable.name][place] = variable.values
        return blocks

    def coordinates(self, entries: Mapping[int, Entry]) -> dict[str, np.ndarray]:
        """Labels along the axes of the grid, and along the inner dims that have a coordinate."""
        return {axis.name: np.asarray(axis.labels) for axis in self.axes} | self._inner_coordinates(entries)

    def _inner_coordinates(self, entries: Mapping[int, Entry]) -> dict[str, np.ndarray]:
        """Coordinates of the inner dims that have one, from the first task whose result has the full size."""
        from metastable.sweep.tasks import STATISTICS

        found: dict[str, np.ndarray] = {}
        wanted = dict(self.layout.sizes)
        if "statistic" in wanted:
            found["statistic"] = np.asarray(STATISTICS)
            del wanted["statistic"]
        for number in sorted(entries):
            if not wanted:
                break
            entry = entries[number]
            if not any(c and wanted.get(name) == shape[0] for name, _, shape, c in entry.layout):
                continue
            for variable in entry.read()[1]:
                if variable.coordinate and wanted.get(variable.name) == variable.values.size:
                    found[variable.name] = _coordinate(variable.name, variable.values)
                    del wanted[variable.name]
        return {dim: found[dim] for dim in self.layout.sizes if dim in found}


def _coordinate(name: str, values: np.ndarray) -> np.ndarray:
    """A coordinate in its own type: records hold all of them as floats, but members are whole numbers."""
    whole = name == "member" and bool((values == np.round(values)).all())
    return values.astype(np.int64 if whole else np.float64)


def in_memory(axes: tuple[Axis, ...], attributes: Mapping[str, Any], entries: Mapping[int, Entry]) -> Any:
    """The dataset that the zarr store of these entries would hold, all of it in memory."""
    import xarray as xr

    table = Table(axes, layout_of(entries.values()))
    blocks = table.blocks(tuple(slice(0, length) for length in table.shape), entries)
    variables = {name: (table.dims(name), blocks[name], MEANINGS if name == STATUS else {}) for name in sorted(blocks)}
    coordinates = {name: ((name,), values) for name, values in table.coordinates(entries).items()}
    return xr.Dataset(variables, coordinates, dict(attributes))
