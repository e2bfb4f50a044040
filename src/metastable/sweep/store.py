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
from dataclasses import dataclass
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

    def select(self, entries: Mapping[str, Entry]) -> dict[int, Entry]:
        """The entries of this sweep's tasks, by number."""
        return {number: item for key, item in entries.items() if key in self.numbers for number in self.numbers[key]}


def index_of(sweep: Sweep) -> Index:
    """Keys of all tasks."""
    keys = [task.key for task in sweep.tasks()]
    numbers: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        numbers.setdefault(key, []).append(number)
    return Index(keys, numbers)


def read_versions(folder: Path, sweep: Sweep) -> dict[str, tuple[str, ...]]:
    """Fingerprints of the functions of one's own that a sweep names whose results count in a folder (none of those that nobody knows).

    The journal says them where the file is lost, unless its results come from several versions: then it cannot say which count.
    """
    names = own.names(sweep)
    if not names:
        return {}
    try:
        known = _all_versions(folder)
    except (OSError, ValueError, TypeError, AttributeError) as reason:
        known = {name: (own.UNKNOWN, *found) for name, found in journal.versions(folder / JOURNAL).items()}
        several = [name for name in names if len({*known.get(name, ())}) > 2]
        if several:
            raise StoreError(
                f"{folder / FUNCTIONS} cannot be read ({reason}), and there are results of several versions of {', '.join(several)}; "
                "say --edited retry to compute again what today's has not made, or --edited keep if all of them count (edited='retry', "
                "edited='keep')"
            ) from reason
    return {name: known[name] for name in names if name in known}


def _all_versions(folder: Path) -> dict[str, tuple[str, ...]]:
    """What the file of a folder says, also of functions of an earlier grid."""
    said = json.loads((folder / FUNCTIONS).read_text(encoding="utf-8"))
    return {str(name): tuple(map(str, known)) for name, known in said.items()}


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
        others = _edited_since(folder, sweep) if edited == REFUSE else set()
        if others:
            raise StoreExistsError(
                f"{folder} holds results of another version of {', '.join(sorted(others))} (of the code, or of globals that it reads) "
                "and was left untouched; choose another folder, or say --edited retry to compute them again, or --edited keep if the "
                "edit does not change them (edited='retry', edited='keep')"
            )
    elif folder.exists() and any(item.name not in _BEFORE_DESCRIPTION for item in folder.iterdir()):
        raise StoreExistsError(f"{folder} is not empty and holds no sweep; choose another folder")


def _edited_since(folder: Path, sweep: Sweep) -> set[str]:
    """Functions of one's own that are others than those that made the results of a folder, of this grid or of an earlier one."""
    known = read_versions(folder, sweep)
    others = own.edited(own.fingerprints(sweep), known)
    done = others and any(item.done for item in journal.read(folder / JOURNAL, known).entries.values())
    return others if done else set()


def prepare_folder(folder: Path, sweep: Sweep, extend: bool, edited: str) -> None:
    """Make the folder, or check that it holds this sweep (see `check_folder`)."""
    check_folder(folder, sweep, extend, edited)
    try:
        (folder / JOURNAL).mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise StoreError(f"{folder} cannot be created: {reason.strerror}") from reason


def versions_that_count(folder: Path, sweep: Sweep, edited: str) -> dict[str, tuple[str, ...]]:
    """Today's functions, and with them what a folder knows of: unless `edited` says that only today's do."""
    functions = own.fingerprints(sweep)
    if edited == RETRY:
        return {path: (found,) for path, found in functions.items()}
    try:
        known = read_versions(folder, sweep)
    except StoreError:
        if edited != KEEP:
            raise
        known = journal.versions(folder / JOURNAL)
    others = set() if edited == KEEP else own.edited(functions, known)
    # Of what nobody knows all that is there counts.
    before = {path: known[path] if path in known and path not in others else (own.UNKNOWN,) for path in functions}
    return {path: tuple(dict.fromkeys((*before[path], found))) for path, found in functions.items()}


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    words = ("name", "description", "plot")
    return [key for key in {**old, **new} if key not in words and old.get(key) != new.get(key)]


class Store:
    """The folder of a sweep, opened for writing by the holder of its lock."""

    def __init__(self, folder: Path, sweep: Sweep, say: Say, edited: str = REFUSE) -> None:
        self.folder = folder
        self.sweep = sweep
        self.edited = edited
        self.functions: dict[str, str] = own.fingerprints(sweep)
        """Of the functions of one's own, as they are now."""
        self.versions: dict[str, tuple[str, ...]] = versions_that_count(folder, sweep, edited)
        """Whose results count."""
        self.index: Index = index_of(sweep)
        journal.sweep_up(folder / JOURNAL)
        views.sweep_up(folder)
        grown = (folder / DESCRIPTION).exists() and read_description(folder).identity != sweep.identity
        write_file(folder / DESCRIPTION, sweep.to_toml().encode())
        self.entries: dict[int, Entry] = self.index.select(self._read_journal(say))
        self._dirty: set[int] = set()
        self._pause = REFRESH_SECONDS
        self._refreshed = time.monotonic()
        self.view: View | None = None
        # For another grid the zarr store must be made anew, which is nothing to report.
        self._open_view((lambda line: None) if grown else say)
        # Last: until then what is in the journal counts as before, and nothing is lost.
        if self.functions:
            earlier: dict[str, Any] = {}
            with suppress(OSError, ValueError, TypeError, AttributeError):
                earlier = _all_versions(folder)
            write_file(folder / FUNCTIONS, json.dumps(earlier | self.versions, indent=1).encode())

    def _read_journal(self, say: Say) -> dict[str, Entry]:
        contents = journal.read(self.folder / JOURNAL, self.versions)
        if contents.damages:
            journal.repair(self.folder / JOURNAL, (path for path, _ in contents.damages))
            contents_now = journal.read(self.folder / JOURNAL, self.versions)
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
