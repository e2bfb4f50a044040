"""The folder of a sweep: its description, its journal, and the zarr store that readers open.

DIR/sweep.toml       what is being swept
DIR/functions.json   fingerprints of the functions of one's own that it names: results of other versions do not count
DIR/journal/         finished and failed tasks (the truth; see `metastable.sweep.journal`)
DIR/results.zarr     labelled arrays over the grid (a view of it; see `metastable.sweep.view`)
DIR/progress.json    what the running process last said about itself
DIR/lock             held by the one process that writes (lock.json says which)
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metastable._words import counted
from metastable.errors import StoreError, StoreExistsError
from metastable.stores import locks, write_file
from metastable.sweep import journal, own
from metastable.sweep import view as views
from metastable.sweep.journal import Entry
from metastable.sweep.specification import Sweep
from metastable.sweep.table import layout_of
from metastable.sweep.view import View

DESCRIPTION = "sweep.toml"
FUNCTIONS = "functions.json"
EDITED = (REFUSE, RETRY, KEEP) = ("refuse", "retry", "keep")
"""What becomes of results whose functions were edited since."""
JOURNAL = "journal"
PROGRESS = "progress.json"
_BEFORE_DESCRIPTION = (JOURNAL, locks.NAME, locks.NOTE)
REFRESH_SECONDS = 5.0
"""The zarr store follows the journal at most this many seconds behind (more when refreshing it is slow)."""
REFRESH_SHARE = 0.1
"""Share of the time of the client that refreshing the zarr store may take."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Index:
    """Where the tasks of a sweep are: key of each task, and the tasks of each key (equal tasks share one result)."""

    keys: list[str]
    numbers: Mapping[str, list[int]]

    versions: own.Versions = field(default_factory=dict)
    """Functions of one's own whose results count (empty: of none, or not known)."""

    def select(self, entries: Mapping[str, Entry]) -> dict[int, Entry]:
        """The entries of this sweep's tasks, by number; not those that other versions of its functions have made."""
        return {
            number: item
            for key, item in entries.items()
            if key in self.numbers and not own.edited(dict(item.functions), self.versions)
            for number in self.numbers[key]
        }


def index_of(sweep: Sweep, versions: own.Versions | None = None) -> Index:
    """Keys of all tasks, and the versions of functions whose results count (None: whoever selects no results need not know)."""
    keys = [task.key for task in sweep.tasks()]
    numbers: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        numbers.setdefault(key, []).append(number)
    return Index(keys, numbers, versions or {})


def read_versions(folder: Path) -> dict[str, tuple[str, ...]]:
    """Fingerprints of the functions whose results count in a folder (none in folders of earlier releases)."""
    path = folder / FUNCTIONS
    try:
        return {str(name): tuple(map(str, said)) for name, said in json.loads(path.read_text("utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as reason:
        raise StoreError(
            f"{path} cannot be read ({reason}); when your functions are those that made the results, delete it"
        ) from reason


def read_description(folder: Path) -> Sweep:
    """The sweep of a folder."""
    path = folder / DESCRIPTION
    if not path.is_file():
        raise StoreError(f"{folder} holds no sweep (there is no {DESCRIPTION} in it)")
    with own.as_stored():
        return Sweep.from_file(path)


def check_folder(folder: Path, sweep: Sweep, extend: bool, edited: str) -> None:
    """Raise when the folder holds something else; with `extend` another sweep may take over its finished tasks, and unless `edited` is
    to be refused, functions of one's own may be others than those that made its results."""
    if folder.exists() and not folder.is_dir():
        raise StoreExistsError(f"{folder} is a file and was left untouched; choose another name")
    if (folder / DESCRIPTION).exists():
        known = read_description(folder)
        changed = _differences(known.to_dict(), sweep.to_dict())
        if changed and not extend:
            raise StoreExistsError(
                f"{folder} holds another sweep ({', '.join(changed)} differ) and was left untouched; choose another folder, or "
                "say --extend to describe it anew and keep what both have in common"
            )
        others = own.edited(own.fingerprints(sweep), read_versions(folder))
        if others and edited == REFUSE and _has_results(folder, sweep):
            raise StoreExistsError(
                f"{folder} holds results of another version of {', '.join(sorted(others))} (of the code, or of globals that it reads) "
                "and was left untouched; choose another folder, or say --edited retry to compute them again, or --edited keep if the "
                "edit does not change them (edited='retry', edited='keep')"
            )
    elif folder.exists() and any(item.name not in _BEFORE_DESCRIPTION for item in folder.iterdir()):
        raise StoreExistsError(f"{folder} is not empty and holds no sweep; choose another folder")


def _has_results(folder: Path, sweep: Sweep) -> bool:
    """True when tasks of the sweep are done."""
    found = index_of(sweep, read_versions(folder)).select(journal.read(folder / JOURNAL).entries)
    return any(entry.done for entry in found.values())


def prepare_folder(folder: Path, sweep: Sweep, extend: bool, edited: str) -> None:
    """Make the folder, or check that it holds this sweep (see `check_folder`)."""
    check_folder(folder, sweep, extend, edited)
    try:
        (folder / JOURNAL).mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise StoreError(f"{folder} cannot be created: {reason.strerror}") from reason


def versions_that_count(folder: Path, functions: Mapping[str, str], edited: str) -> dict[str, tuple[str, ...]]:
    """Today's functions, and with them what a folder knows of: where none is edited, or where `edited` says so."""
    known = read_versions(folder)
    others = own.edited(functions, known)
    return known | {
        path: tuple(dict.fromkeys((*(known.get(path, ()) if path not in others or edited == KEEP else ()), found)))
        for path, found in functions.items()
    }


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    words = ("name", "description", "plot")
    return [key for key in {**old, **new} if key not in words and old.get(key) != new.get(key)]


class Store:
    """The folder of a sweep, opened for writing by the holder of its lock."""

    def __init__(self, folder: Path, sweep: Sweep, say: Say, edited: str = REFUSE) -> None:
        self.folder = folder
        self.sweep = sweep
        self.edited = edited
        self.functions = own.fingerprints(sweep)
        """Of the functions of one's own, as they are now."""
        self.index: Index = index_of(sweep, versions_that_count(folder, self.functions, edited))
        journal.sweep_up(folder / JOURNAL)
        views.sweep_up(folder)
        grown = (folder / DESCRIPTION).exists() and read_description(folder).identity != sweep.identity
        if self.functions:
            write_file(folder / FUNCTIONS, json.dumps(self.index.versions, indent=1).encode())
        write_file(folder / DESCRIPTION, sweep.to_toml().encode())
        self.entries: dict[int, Entry] = self.index.select(self._read_journal(say))
        self._dirty: set[int] = set()
        self._pause = REFRESH_SECONDS
        self._refreshed = time.monotonic()
        self.view: View | None = None
        # For another grid the zarr store must be made anew, which is nothing to report.
        self._open_view((lambda line: None) if grown else say)

    def _read_journal(self, say: Say) -> dict[str, Entry]:
        contents = journal.read(self.folder / JOURNAL)
        if contents.damages:
            journal.repair(self.folder / JOURNAL, (path for path, _ in contents.damages))
            contents_now = journal.read(self.folder / JOURNAL)
            for path, key in contents.damages:
                numbers = self.index.numbers.get(key or "", [])
                if key is not None and key in contents_now.entries:
                    continue
                lost = "; ".join(self.sweep.task(number).where for number in numbers) or "a task that cannot be named"
                say(f"{path.name} was damaged; lost and to be computed again: {lost}")
            contents = contents_now
        return contents.entries

    def _open_view(self, say: Say) -> None:
        path = self.folder / views.NAME
        existed = path.exists()
        opened = views.open_view(path, self.sweep.axes, attributes_of(self.sweep), self.entries)
        self.view, changed = (None, 0) if opened is None else opened
        if existed and changed is None:
            say(
                f"{views.NAME} was not laid out as this version does it, or damaged, and was made anew from the journal"
            )
        elif existed and changed:
            say(f"{views.NAME} differed from the journal in {counted(changed, 'chunk')} and was brought up to date")

    @property
    def done(self) -> int:
        """Number of tasks with a result."""
        return sum(entry.done for entry in self.entries.values())

    @property
    def failed(self) -> int:
        """Number of tasks that failed."""
        return len(self.entries) - self.done

    def waiting(self, retry_failed: bool) -> list[int]:
        """Tasks to run, one per key, in order."""
        seen: set[str] = set()
        result = []
        for number, key in enumerate(self.index.keys):
            entry = self.entries.get(number)
            if key in seen or (entry is not None and (entry.done or not retry_failed)):
                continue
            seen.add(key)
            result.append(number)
        return result

    def add(self, data: bytes) -> list[Entry]:
        """Keep records for good, then let the zarr store follow when it is time."""
        stored = journal.append(self.folder / JOURNAL, data)
        fresh = self.index.select(stored)
        self.entries.update(fresh)
        self._dirty.update(fresh)
        if time.monotonic() - self._refreshed >= self._pause:
            self.refresh()
        return list(stored.values())

    def refresh(self) -> None:
        """Bring the zarr store up to date with the journal."""
        if not self._dirty:
            return
        begin = time.monotonic()
        fresh = layout_of(self.entries[number] for number in self._dirty)
        if self.view is None or not self.view.table.layout.covers(fresh):
            self._open_view(lambda line: None)
        else:
            self.view.refresh(sorted({self.view.chunk_of(number) for number in self._dirty}), self.entries)
        self._dirty.clear()
        self._refreshed = time.monotonic()
        # Refreshing never takes more than its share of the client's time.
        self._pause = max(REFRESH_SECONDS, (self._refreshed - begin) / REFRESH_SHARE)

    def catch_up(self) -> None:
        """Read the journal again and bring the zarr store up to date: an interruption may have come between the two."""
        found = self.index.select(self._read_journal(lambda line: None))
        self._dirty.update(number for number, entry in found.items() if self.entries.get(number) != entry)
        self.entries.update(found)
        self.refresh()

    def say_progress(self, state: Mapping[str, Any]) -> None:
        """Leave a note for `metastable sweep status`; losing it loses nothing."""
        text = json.dumps({"pid": os.getpid(), "time": time.time(), **state})
        with suppress(StoreError):
            write_file(self.folder / PROGRESS, text.encode(), durable=False)


def attributes_of(sweep: Sweep) -> dict[str, Any]:
    """Attributes of the zarr store of a sweep."""
    return {"format": views.FORMAT, "title": sweep.name, "sweep": sweep.to_toml()}
