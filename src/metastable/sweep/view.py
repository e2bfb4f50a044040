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

from metastable.stores import folders, storage_error
from metastable.stores.files import PARTIAL
from metastable.sweep.axes import Axis
from metastable.sweep.journal import Entry
from metastable.sweep.table import DONE, MEANINGS, STATUS, WAITING, Layout, Table, layout_of

NAME = "results.zarr"
FORMAT = "metastable-sweep-1"
CHUNK_BYTES = 1 << 20
"""About how large the largest chunk of a variable is; a chunk holds at least one task."""

Chunk = tuple[int, ...]


@dataclass(frozen=True)
class View:
    """A zarr store at `path` that shows a table; `attributes` go to its root."""

    path: Path
    table: Table
    attributes: Mapping[str, Any]

    @property
    def block(self) -> tuple[int, ...]:
        """Tasks per chunk along each axis: as many as `CHUNK_BYTES` hold, the last axis first."""
        largest = max(
            (8 * int(np.prod(self.table.layout.shape(name))) for name in self.table.layout.variables), default=8
        )
        room = max(1, CHUNK_BYTES // max(largest, 8))
        block = []
        for length in reversed(self.table.shape):
            block.append(min(length, room))
            room = max(1, room // block[-1]) if block[-1] == length else 1
        return tuple(reversed(block))

    def chunk_of(self, number: int) -> Chunk:
        """The chunk in which task `number` lies."""
        index = np.unravel_index(number, self.table.shape) if self.table.axes else ()
        return tuple(int(i) // size for i, size in zip(index, self.block))

    def chunks(self) -> Iterator[Chunk]:
        """All chunks."""
        return _chunks(self.table.shape, self.block)

    def _region(self, chunk: Chunk) -> tuple[slice, ...]:
        return tuple(
            slice(i * size, min((i + 1) * size, length)) for i, size, length in zip(chunk, self.block, self.table.shape)
        )

    # --------------------------------------------------------------------------------------------- contents

    def expected(self, chunk: Chunk, entries: Mapping[int, Entry]) -> dict[str, np.ndarray]:
        """What the chunk of every variable must hold, from the journal."""
        return self.table.blocks(self._region(chunk), entries)

    def refresh(self, chunks: Iterable[Chunk], entries: Mapping[int, Entry]) -> int:
        """Make the chunks equal to the journal, writing only what differs; returns how many differed."""
        import zarr

        with zarr.config.set({"array.write_empty_chunks": True}):  # see `lost_chunk`
            group = zarr.open_group(self.path, mode="r+", zarr_format=2, use_consolidated=False)
            arrays = {name: group[name] for name in (*self.table.layout.variables, STATUS)}
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
        return all(
            _equal(group[name], (), values) and not _lacks(self.path, group[name], ())
            for name, values in self.table.coordinates(entries).items()
        )

    def create(self, entries: Mapping[int, Entry]) -> None:
        """Write the whole store beside its place and put it there, instead of one that may be there."""
        # Not flushed: after a power failure it is made again from the journal.
        with folders.new_folder(self.path, overwrite=True, durable=False) as place:
            self._write_frame(place, entries)
            replace(self, path=place).refresh(self.chunks(), entries)

    def _write_frame(self, path: Path, entries: Mapping[int, Entry]) -> None:
        """Metadata and coordinates; variables are all NaN (no chunk is written for them)."""
        import zarr

        group = zarr.open_group(path, mode="w", zarr_format=2, attributes=dict(self.attributes))
        for name, values in self.table.coordinates(entries).items():
            _write_array(group, name, (name,), values)
        status = np.full(self.table.shape, WAITING, dtype=np.int8)
        _write_array(group, STATUS, self.table.names, status, chunks=self.block, attributes=MEANINGS)
        for name in self.table.layout.variables:
            inner = self.table.layout.shape(name)
            group.create_array(
                name,
                shape=self.table.shape + inner,
                chunks=self.block + tuple(max(1, size) for size in inner),
                dtype="float64",
                fill_value=np.nan,
                filters=_checked(),
                attributes={"_ARRAY_DIMENSIONS": list(self.table.dims(name))},
            )
        zarr.consolidate_metadata(path, zarr_format=2)


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


def _lacks(path: Path, array: Any, chunk: Chunk) -> bool:
    """True where the store at `path` has no file for the chunk of tasks `chunk` of an array."""
    return 0 not in array.shape and not (path / array.basename / _file_of(array, chunk)).exists()


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

    Returns the view and the number of chunks that had to be rewritten (None for a store that was damaged, or of an earlier version).
    """
    layout = layout_of(entries.values())
    if not layout.variables:
        shutil.rmtree(path, ignore_errors=True)
        return None
    view = View(path, Table(axes, layout), attributes)
    if view.sound(entries):
        return view, view.refresh(view.chunks(), entries)
    before = _as_it_is(path, axes)
    whole = before is not None and before.attributes.keys() == attributes.keys() and before.sound(entries)
    view.create(entries)
    return view, 0 if whole else None


def _as_it_is(path: Path, axes: tuple[Axis, ...]) -> View | None:
    """The view that a store was made by, if it shows this grid: another title and fewer variables, or places for them, are no damage.
    None for a store that cannot be read, or of another format."""
    try:
        found = json.loads((path / ".zmetadata").read_text(encoding="utf-8"))["metadata"]
        dims = {
            name.partition("/")[0]: item["_ARRAY_DIMENSIONS"]
            for name, item in found.items()
            if name.endswith("/.zattrs")
        }
        inner = {name: tuple(held[len(axes) :]) for name, held in dims.items() if [name] != held and name != STATUS}
        sizes = {dim: size for name in inner for dim, size in zip(dims[name], found[f"{name}/.zarray"]["shape"])}
        sizes = {dim: sizes[dim] for held in inner.values() for dim in held}
        layout = Layout({name: inner[name] for name in sorted(inner)}, {dim: sizes[dim] for dim in sorted(sizes)})
        view = View(path, Table(axes, layout), found[".zattrs"])
        return view if view.attributes["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def sweep_up(folder: Path) -> None:
    """Remove what interrupted writes left behind (only the holder of the lock may)."""
    folders.settle(folder / NAME)
    for path in (*folder.glob(f".{NAME}.*"), *folder.glob(f".*{PARTIAL}"), *(folder / NAME).rglob(f"*{PARTIAL}")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
