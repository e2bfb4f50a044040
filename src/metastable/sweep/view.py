"""The zarr store of a sweep: one labelled array per observable, NaN where a task is not done yet.

It is a view of the journal: every chunk is a function of the journal's records, and can be made again at any time. Readers open
it with plain xarray while the sweep runs (`xarray.open_zarr(DIR / "results.zarr")`); chunks are replaced atomically, and have a
checksum: a damaged one cannot be read. Zarr format 2, because it has standard text labels and consolidated metadata.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from metastable.errors import StoreError
from metastable.stores import folders, storage_error
from metastable.stores.files import PARTIAL
from metastable.sweep.axes import Axis
from metastable.sweep.journal import Entry

NAME = "results.zarr"
STATUS = "task_status"
WAITING, DONE, FAILED = 0, 1, 2
FORMAT = "metastable-sweep-1"
CHUNK_BYTES = 1 << 20
"""About how large the largest chunk of a variable is; a chunk holds at least one task."""

Chunk = tuple[int, ...]


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
class View:
    """A zarr store at `path` (or one of zarr's own, in memory) for the grid `axes`; `attributes` go to its root."""

    path: Any
    axes: tuple[Axis, ...]
    layout: Layout
    attributes: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.axes)

    @property
    def block(self) -> tuple[int, ...]:
        """Tasks per chunk along each axis: as many as `CHUNK_BYTES` hold, the last axis first."""
        largest = max((8 * int(np.prod(self.layout.shape(name))) for name in self.layout.variables), default=8)
        room = max(1, CHUNK_BYTES // max(largest, 8))
        block = []
        for length in reversed(self.shape):
            block.append(min(length, room))
            room = max(1, room // block[-1]) if block[-1] == length else 1
        return tuple(reversed(block))

    def chunk_of(self, number: int) -> Chunk:
        """The chunk in which task `number` lies."""
        index = np.unravel_index(number, self.shape) if self.axes else ()
        return tuple(int(i) // size for i, size in zip(index, self.block))

    def chunks(self) -> Iterator[Chunk]:
        """All chunks."""
        return _chunks(self.shape, self.block)

    def _region(self, chunk: Chunk) -> tuple[slice, ...]:
        return tuple(
            slice(i * size, min((i + 1) * size, length)) for i, size, length in zip(chunk, self.block, self.shape)
        )

    # --------------------------------------------------------------------------------------------- contents

    def expected(self, chunk: Chunk, entries: Mapping[int, Entry]) -> dict[str, np.ndarray]:
        """What the chunk of every variable must hold, from the journal."""
        region = self._region(chunk)
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

    def refresh(self, chunks: Iterable[Chunk], entries: Mapping[int, Entry]) -> int:
        """Make the chunks equal to the journal, writing only what differs; returns how many differed."""
        import zarr

        with zarr.config.set({"array.write_empty_chunks": True}):  # see `lost_chunk`
            group = zarr.open_group(self.path, mode="r+", zarr_format=2, use_consolidated=False)
            arrays = {name: group[name] for name in (*self.layout.variables, STATUS)}
        changed = 0
        for chunk in chunks:
            region = self._region(chunk)
            blocks = self.expected(chunk, entries)
            done = bool((blocks[STATUS] == DONE).any())
            for name, block in blocks.items():
                array: Any = arrays[name]
                kept = done or name == STATUS
                if _equal(array, region, block) and not (kept and _lacks(self.path, array, chunk)):
                    continue
                changed += 1
                try:
                    array[region if region else ...] = block
                except OSError as reason:
                    raise storage_error(self.path, reason) from reason
        return changed

    # --------------------------------------------------------------------------------------------- the store

    def sound(self, entries: Mapping[int, Entry]) -> bool:
        """True when the store at `path` has this grid and this layout, and its metadata is intact (data: see `refresh`)."""
        try:
            stored = json.loads((self.path / ".zmetadata").read_text(encoding="utf-8"))["metadata"]
            for name, content in stored.items():
                if json.loads((self.path / name).read_text(encoding="utf-8")) != content:
                    return False
            return stored == self._metadata(entries) and self._coordinates_intact(entries)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _metadata(self, entries: Mapping[int, Entry]) -> dict[str, Any]:
        """The metadata that a new store would have."""
        with folders.scratch(self.path) as scratch:
            self._write_frame(scratch, entries)
            return json.loads((scratch / ".zmetadata").read_text(encoding="utf-8"))["metadata"]

    def _coordinates_intact(self, entries: Mapping[int, Entry]) -> bool:
        import zarr

        group = zarr.open_group(self.path, mode="r", zarr_format=2)
        wanted = {axis.name: np.asarray(axis.labels) for axis in self.axes} | self._inner_coordinates(entries)
        return all(
            _equal(group[name], (), values) and not _lacks(self.path, group[name], ())
            for name, values in wanted.items()
        )

    def create(self, entries: Mapping[int, Entry]) -> None:
        """Write the whole store beside its place and put it there, instead of one that may be there."""
        # Not flushed: after a power failure it is made again from the journal.
        with folders.new_folder(self.path, overwrite=True, durable=False) as place:
            replace(self, path=place).write(entries)

    def write(self, entries: Mapping[int, Entry]) -> None:
        """Write the whole store in its place, where there is none."""
        self._write_frame(self.path, entries)
        self.refresh(self.chunks(), entries)

    def _write_frame(self, path: Any, entries: Mapping[int, Entry]) -> None:
        """Metadata and coordinates; variables are all NaN (no chunk is written for them)."""
        import zarr

        group = zarr.open_group(path, mode="w", zarr_format=2, attributes=dict(self.attributes))
        names = tuple(axis.name for axis in self.axes)
        for axis in self.axes:
            _write_array(group, axis.name, (axis.name,), np.asarray(axis.labels))
        for dim, values in self._inner_coordinates(entries).items():
            _write_array(group, dim, (dim,), values)
        status = np.full(self.shape, WAITING, dtype=np.int8)
        meanings = {"flag_values": [WAITING, DONE, FAILED], "flag_meanings": "waiting done failed"}
        _write_array(group, STATUS, names, status, chunks=self.block, attributes=meanings)
        for name, dims in self.layout.variables.items():
            inner = self.layout.shape(name)
            group.create_array(
                name,
                shape=self.shape + inner,
                chunks=self.block + tuple(max(1, size) for size in inner),
                dtype="float64",
                fill_value=np.nan,
                filters=_checked(),
                attributes={"_ARRAY_DIMENSIONS": [*names, *dims]},
            )
        zarr.consolidate_metadata(path, zarr_format=2)

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


def _equal(array: Any, region: tuple[slice, ...], block: np.ndarray) -> bool:
    """True when the stored region has exactly these bytes. A chunk that cannot be decoded is not equal."""
    try:
        stored = np.asarray(array[region if region else ...])
    except Exception:
        # Damaged compressed bytes raise whatever the codec raises.
        return False
    return stored.dtype == block.dtype and stored.tobytes() == block.tobytes()


def _checked() -> list[Any]:
    """Filters of every array: a checksum of each chunk."""
    from numcodecs import CRC32

    return [CRC32()]


def _lacks(path: Any, array: Any, chunk: Chunk) -> bool:
    """True where a store on disk has no file for the chunk of tasks `chunk` of an array."""
    return (
        0 not in array.shape
        and isinstance(path, Path)
        and not (path / array.basename / _file_of(array, chunk)).exists()
    )


def _file_of(array: Any, chunk: Chunk) -> str:
    """Name of the file of a chunk of tasks; all of what a task has lies in it."""
    return ".".join(map(str, (*chunk, *(0,) * (array.ndim - len(chunk))))) or "0"


def lost_chunk(path: Path) -> str | None:
    """A chunk that is not there any more, which zarr takes for one that was never written; None where all are.

    Coordinates and the status of tasks always have theirs, results have those of finished tasks. (Stores of earlier versions have no
    checksums, and lack what is empty.)
    """
    import zarr

    group = zarr.open_group(path, mode="r", zarr_format=2)
    arrays: dict[str, Any] = {name: array for name, array in group.arrays() if array.filters}
    if STATUS not in arrays:
        return None
    status = arrays[STATUS]
    done = np.asarray(status[...]) == DONE  # before files are listed: who works on the sweep writes it last
    every = list(_chunks(done.shape, status.chunks))
    held = [chunk for chunk in every if done[_part(chunk, status.chunks)].any()]
    for name, array in arrays.items():
        files = set(os.listdir(path / name))
        coordinate = name in array.attrs["_ARRAY_DIMENSIONS"]
        wanted = [()] if coordinate else every if name == STATUS else held
        # (A listing may miss a file that is being replaced.)
        if any(_file_of(array, chunk) not in files and _lacks(path, array, chunk) for chunk in wanted):
            return f"a chunk of {name} is missing"
    return None


def _chunks(shape: tuple[int, ...], block: tuple[int, ...]) -> Iterator[Chunk]:
    return itertools.product(*(range(-(-length // size)) for length, size in zip(shape, block)))


def _part(chunk: Chunk, block: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(i * size, (i + 1) * size) for i, size in zip(chunk, block))


def _write_array(
    group: Any,
    name: str,
    dims: tuple[str, ...],
    values: np.ndarray,
    chunks: tuple[int, ...] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """A small array that is written whole; no fill value, so that xarray keeps its type."""
    array = group.create_array(
        name,
        shape=values.shape,
        chunks=chunks if chunks else tuple(max(1, size) for size in values.shape),
        dtype=values.dtype,
        fill_value=None,
        filters=_checked(),
        attributes={"_ARRAY_DIMENSIONS": list(dims), **(attributes or {})},
        config={"write_empty_chunks": True},
    )
    array[...] = values


def open_view(
    path: Path, axes: tuple[Axis, ...], attributes: Mapping[str, Any], entries: Mapping[int, Entry]
) -> tuple[View, int | None] | None:
    """The store of a sweep, verified against the journal and repaired where it differs; None while nothing is done.

    Returns the view and the number of chunks that had to be rewritten (None for a store that had to be made anew).
    """
    layout = layout_of(entries.values())
    if not layout.variables:
        shutil.rmtree(path, ignore_errors=True)
        return None
    view = View(path, axes, layout, attributes)
    if view.sound(entries):
        return view, view.refresh(view.chunks(), entries)
    view.create(entries)
    return view, None


def in_memory(axes: tuple[Axis, ...], attributes: Mapping[str, Any], entries: Mapping[int, Entry]) -> Any:
    """The dataset that the store of these entries would hold, all of it in memory."""
    import xarray as xr
    from zarr.storage import MemoryStore

    view = View(MemoryStore(), axes, layout_of(entries.values()), attributes)
    view.write(entries)
    return xr.open_zarr(view.path, chunks=None).load()


def sweep_up(folder: Path) -> None:
    """Remove what interrupted writes left behind (only the holder of the lock may)."""
    folders.settle(folder / NAME)
    for path in (*folder.glob(f".{NAME}.*"), *folder.glob(f".*{PARTIAL}"), *(folder / NAME).rglob(f"*{PARTIAL}")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
