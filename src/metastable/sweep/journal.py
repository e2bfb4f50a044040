"""The journal: what a sweep has finished, in files that appear whole or not at all.

One folder with one segment file per group of finished tasks. A segment is written beside its place, flushed to the disk, and
moved to its name: after a crash, a kill or a full disk it is there with all its records or it is not there. Segments are never
changed. The journal is the truth; the zarr store of a sweep is a view of it.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from metastable.errors import StoreError
from metastable.stores.files import PARTIAL, move, write_file
from metastable.sweep import own, records
from metastable.sweep.records import Damage, Record
from metastable.sweep.tasks import EARLY, FUNCTIONS, Variable

SUFFIX = ".segment"
DAMAGED = "damaged"


Layout = tuple[tuple[str, tuple[str, ...], tuple[int, ...], bool], ...]
"""Of each array of a record: name, dims, shape, whether it is the coordinate of a dim."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished or failed task in the journal: where its record lies, and the little that is needed at once.

    Small on purpose: a sweep may have a million of these in memory, but reads the arrays of a few at a time.
    """

    path: Path
    offset: int
    length: int
    done: bool
    seconds: float
    finished: float
    version: str
    layout: Layout
    note: str = ""
    """Why members of a finished task failed, where functions of one's own raised."""
    early: tuple[tuple[str, int], ...] = ()
    """Members of a finished task that stopped early: (status, how many)."""
    functions: tuple[tuple[str, str], ...] = ()
    """Functions of one's own that made it: (import path, fingerprint)."""

    def read(self) -> tuple[dict[str, Any], list[Variable]]:
        """Header and arrays, read and verified again."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return records.decode(file.read(self.length))


@cache
def _interned(layout: Layout) -> Layout:
    return layout


@cache
def _noted(functions: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return functions


def entry(path: Path, record: Record) -> Entry:
    """The entry of a record in the segment `path`."""
    header = record.header
    layout = tuple(
        (item["name"], tuple(item["dims"]), tuple(item["shape"]), bool(item["coordinate"])) for item in header["arrays"]
    )
    return Entry(
        path,
        record.offset,
        record.length,
        record.done,
        float(header.get("seconds", 0.0)),
        float(header.get("finished", 0.0)),
        sys.intern(str(header.get("version", ""))),
        _interned(layout),
        str(header.get("note", "")),
        tuple((sys.intern(str(name)), int(count)) for name, count in dict(header.get(EARLY, {})).items()),
        _noted(tuple((str(path), str(said)) for path, said in dict(header.get(FUNCTIONS, {})).items())),
    )


def early_members(entries: Iterable[Entry]) -> dict[str, int]:
    """Members of all finished tasks that stopped early, by status. (Records of earlier versions do not say.)"""
    found: Counter[str] = Counter()
    for item in entries:
        found.update(dict(item.early))
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Contents:
    """All of a journal: the last word on each key, what is damaged (segment, key or None), and the keys of what other versions of
    functions of one's own have finished."""

    entries: dict[str, Entry]
    damages: list[tuple[Path, str | None]]
    others: frozenset[str] = frozenset()


def append(folder: Path, data: bytes, place: str = "") -> dict[str, Entry]:
    """Write the records `data` as one new segment, the last one, or at the `place` of another one; returns its entries by key."""
    path = folder / f"{place or f'{time.time_ns():020d}'}-{uuid.uuid4().hex[:8]}{SUFFIX}"
    found = list(records.scan(data))
    good = [item for item in found if isinstance(item, Record)]
    if len(good) != len(found):
        raise StoreError("a result was damaged on its way from the worker (wrong checksum) and was not stored")
    write_file(path, data)
    return {item.key: entry(path, item) for item in good}


def segments(folder: Path) -> list[Path]:
    """The segments, oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def read_segment(path: Path) -> Iterator[Record | Damage]:
    """Every record of a segment, verified."""
    try:
        return records.scan(path.read_bytes())
    except OSError as reason:
        raise StoreError(f"{path} cannot be read: {reason}") from reason


def read(folder: Path, versions: own.Versions | None = None) -> Contents:
    """Read and verify the whole journal. A finished record beats a failed one; among equals the later one counts.

    Records that were made by other `versions` of functions of one's own do not count.
    """
    entries: dict[str, Entry] = {}
    damages: list[tuple[Path, str | None]] = []
    others: set[str] = set()
    for path in segments(folder):
        for item in read_segment(path):
            if isinstance(item, Damage):
                damages.append((path, item.key))
                continue
            found = entry(path, item)
            before = entries.get(item.key)
            if not own.counts(dict(found.functions), versions or {}):
                others |= {item.key} if found.done else set()
            elif before is None or found.done or not before.done:
                entries[item.key] = found
    return Contents(entries, damages, frozenset(others))


def versions(folder: Path) -> dict[str, tuple[str, ...]]:
    """The versions of functions of one's own that finished records name, of each function (`own.UNKNOWN` where some say nothing)."""
    known: dict[str, dict[str, None]] = {}
    said = [dict(item.functions) for item in _all_done(folder)]
    for path in {path: None for functions in said for path in functions}:
        known[path] = dict.fromkeys(functions.get(path, own.UNKNOWN) for functions in said)
    return {path: tuple(found) for path, found in known.items()}


def _all_done(folder: Path) -> Iterator[Entry]:
    for path in segments(folder):
        for item in read_segment(path):
            if isinstance(item, Record) and item.done:
                yield entry(path, item)


def repair(folder: Path, damaged: Iterable[Path]) -> None:
    """Set damaged segments aside under `damaged/`, keeping their good records in new segments at their places."""
    for path in dict.fromkeys(damaged):
        data = path.read_bytes()
        good = [
            data[item.offset : item.offset + item.length] for item in records.scan(data) if isinstance(item, Record)
        ]
        if good:
            append(folder, b"".join(good), place=path.name.partition("-")[0])
        (folder / DAMAGED).mkdir(exist_ok=True)
        move(path, folder / DAMAGED / path.name)


def sweep_up(folder: Path) -> None:
    """Remove what interrupted writes left behind (only the holder of the lock may)."""
    for path in folder.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)
