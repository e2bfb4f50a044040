"""How far a sweep is, read from its folder without disturbing it."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from metastable import _checks
from metastable.stores import locks
from metastable.sweep import journal
from metastable.sweep.results import unfinished_members
from metastable.sweep.store import JOURNAL, PROGRESS, index_of, read_description, read_versions

OFFENDERS = 5
"""How many of the slowest tasks are named."""


@dataclass(frozen=True)
class Failure:
    """A task that failed: its number, its grid point in words, the error in a line, and the whole traceback."""

    number: int
    where: str
    error: str
    traceback: str


@dataclass(frozen=True)
class Status:
    """How far a sweep is.

    `running`: numbers of tasks that are under way; `process`: pid and host of the process that works on it, or None; `rate`:
    tasks per second of that process, `left`: seconds until it will be done (None when nobody works); `slowest`: (grid point,
    seconds) of the slowest tasks; `unfinished`: members of finished tasks that stopped early, `early`: how many by status;
    `damaged`: segments with results that cannot be read any more (they will be computed again); `notes`: (grid point, why) of finished
    tasks of which members failed because a function of one's own raised, the first `OFFENDERS`.
    """

    folder: Path
    name: str
    total: int
    done: int
    failed: int
    running: tuple[int, ...]
    process: dict[str, Any] | None
    workers: int
    dashboard: str
    rate: float | None
    left: float | None
    mean_seconds: float | None
    slowest: tuple[tuple[str, float], ...]
    failures: tuple[Failure, ...]
    unfinished: int
    damaged: tuple[str, ...]
    versions: tuple[str, ...]
    notes: tuple[tuple[str, str], ...] = ()
    early: Mapping[str, int] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """Tasks that nobody has started."""
        return max(0, self.total - self.done - self.failed - len(self.running))

    @property
    def complete(self) -> bool:
        """True when every task has a result."""
        return self.done == self.total


def status(folder: str | PathLike[str]) -> Status:
    """Read the folder of a sweep; works while it runs, and on what a crash left behind."""
    place = _checks.path(folder, "folder")
    sweep = read_description(place)
    index = index_of(sweep)
    contents = journal.read(place / JOURNAL, read_versions(place, sweep))
    entries = index.select(contents.entries)
    done = [number for number, entry in entries.items() if entry.done]
    failed = sorted(number for number, entry in entries.items() if not entry.done)
    process = locks.holder(place)
    note = _note(place) if process is not None else {}
    running = tuple(number for number in note.get("running", ()) if number not in entries)
    rate = left = None
    if note.get("ran"):
        rate = note["ran"] / max(note["time"] - note["started"], 1e-9)
        left = (sweep.size - len(entries)) / rate
    slowest = heapq.nlargest(OFFENDERS, done, key=lambda number: entries[number].seconds)
    noted = sorted(number for number in done if entries[number].note)
    mean = sum(entries[number].seconds for number in done) / len(done) if done else None
    early = journal.early_members(entries.values())
    return Status(
        folder=place,
        name=sweep.name,
        total=sweep.size,
        done=len(done),
        failed=len(failed),
        running=running,
        process=process,
        workers=int(note.get("workers", 0)),
        dashboard=str(note.get("dashboard", "")),
        rate=rate,
        left=left,
        mean_seconds=mean,
        slowest=tuple((sweep.task(number).where, entries[number].seconds) for number in slowest),
        failures=tuple(_failure(number, sweep.task(number).where, entries[number]) for number in failed),
        unfinished=unfinished_members(place, sweep, index.keys, entries),
        damaged=tuple(sorted({path.name for path, _ in contents.damages})),
        versions=tuple(sorted({entries[number].version for number in done})),
        notes=tuple((sweep.task(number).where, entries[number].note) for number in noted[:OFFENDERS]),
        early=early,
    )


def _failure(number: int, where: str, entry: journal.Entry) -> Failure:
    header, _ = entry.read()
    return Failure(number, where, str(header.get("error", "")), str(header.get("traceback", "")))


def _note(folder: Path) -> dict[str, Any]:
    try:
        note = dict(json.loads((folder / PROGRESS).read_text(encoding="utf-8")))
        return note if {"time", "started", "ran"} <= set(note) and time.time() >= note["started"] else {}
    except (OSError, ValueError):
        return {}
