"""One folder, whole or not at all, also instead of one that is there already.

No system replaces a folder that has contents in one step, so there are two, and a way back from between them:

    .NAME.TOKEN.lock              held by the writer as long as it lives
    .NAME.TOKEN.partial/store     the new folder while it is written
    .NAME.TOKEN.partial/old       the old one, after the first step:   NAME -> old,   store -> NAME

Whoever finds a `.partial` folder whose lock nobody holds undoes it: where NAME is missing while both `store` and `old` are there,
the writer died between the steps, and `old` goes back to its place; then the rest is removed. A save that did not finish has
changed nothing. (`old` without `store` means that both steps were done and NAME was removed later: it stays removed.)
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from metastable.errors import MetastableError, StoreError, StoreExistsError, StoreLockedError
from metastable.stores.files import PARTIAL, move, storage_error, sync_folder, sync_tree
from metastable.stores.locks import Busy, Lock, patiently

NEW, OLD = "store", "old"
LOCK = ".lock"
CLAIM = "claimed_"
"""In the name of the lock of a process that reads a store and will replace it: `.NAME.claimed_.lock`."""
LEFTOVER = re.compile(r"\.(?P<name>.+)\.[0-9A-Za-z_]{8,32}\.(partial|lock)")
"""Names of what writers leave behind (also of version 0.1, which had no locks)."""
ABANDONED = 3600.0
"""Seconds after which a partial folder without a lock is nobody's (written by version 0.1, or on a disk without locks)."""
LONELY = 60.0
"""Seconds after which a lock without its folder is nobody's: a living writer makes the folder at once."""
PATIENCE = 5.0
"""Seconds that a reader waits for a living writer that is between its two steps."""
RIVALS = 8
"""How many times another writer may put its folder in the place while this one does, or while a reader reads."""

T = TypeVar("T")


@contextmanager
def new_folder(
    target: Path, *, overwrite: bool = False, durable: bool = True, check: Callable[[Path], None] | None = None
) -> Iterator[Path]:
    """An empty folder to write into, which becomes `target` when the block ends; nothing happens when it ends with an exception.

    Args:
        overwrite: take the place of what is at `target`; without it, raise `StoreExistsError`.
        durable: flush all files to the disk first, so that a power failure cannot leave an empty one.
        check: called with the folder that is overwritten when nobody else can replace it any more; where it raises, that one stays.

    Raises:
        StoreError: (`StoreFullError` when there is no room) for whatever the operating system refuses.
    """
    place = Path(os.path.abspath(target))
    try:
        settle(place)
        if not overwrite:
            _refuse_existing(place)
        with scratch(place) as folder:
            (folder / NEW).mkdir()
            yield folder / NEW
            if durable:
                sync_tree(folder / NEW)
            _put(folder, place, overwrite, check)
            if durable:
                sync_folder(place.parent)
    except OSError as reason:
        if isinstance(reason, MetastableError):
            raise
        raise storage_error(Path(target), reason) from reason


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise StoreExistsError(f"{target} exists and was left untouched; choose another name, or overwrite it")


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """A hidden folder beside `target` that is gone afterwards; where its process is killed, `settle(target)` removes it."""
    folder = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}{PARTIAL}")
    lock = Lock(folder.with_suffix(LOCK))
    try:
        # The lock first: a partial folder without one could be taken for a dead writer's. Where files cannot be locked, nobody
        # removes the folder before it is `ABANDONED`.
        with suppress(OSError, Busy):
            lock.acquire()
        folder.mkdir()
        yield folder
    finally:
        try:
            _undo(folder, target)
        finally:
            # What could not be removed keeps its lock, by which the next one sees that nobody owns it.
            lock.release(remove=not folder.exists())


def _put(folder: Path, target: Path, overwrite: bool, check: Callable[[Path], None] | None) -> None:
    """The two steps. Another writer may do the same at the same time: the last one stays (where `check` does not mind)."""
    for rival in range(RIVALS):
        if overwrite:
            old = folder / (f"{OLD}{rival}" if rival else OLD)
            if (
                check is not None
            ):  # a writer between its steps has taken away what is to be looked at, and is done at once
                find(target)
            with suppress(FileNotFoundError):
                move(target, old)
            if check is not None and os.path.lexists(old):
                check(old)
        try:
            _refuse_existing(target)
            os.rename(folder / NEW, target)
            return
        except OSError:
            if not overwrite or not os.path.lexists(target):
                raise
    raise StoreError(f"{target} is being written by other processes all the time; choose another name")


def _undo(folder: Path, target: Path) -> None:
    """Put back what a writer moved away and did not replace; then remove its folder."""
    if (folder / NEW).exists() and not os.path.lexists(target):
        olds = sorted(folder.glob(f"{OLD}*"))
        if olds:
            move(olds[-1], target)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def claimed(target: Path) -> Iterator[None]:
    """Keep the store `target` for this process, which reads it and will replace it, as long as the block lasts.

    Raises `StoreLockedError` where another process does so. In a place without locks nothing happens.
    """
    place = Path(os.path.realpath(target))
    lock = Lock(place.with_name(f".{place.name}.{CLAIM}{LOCK}"))
    taken = False
    try:
        with suppress(OSError):
            patiently(lock)
            taken = True
    except Busy:
        raise StoreLockedError(
            f"{target} is being taken further by another process; wait for it, or keep yours elsewhere (--out)"
        ) from None
    try:
        yield
    finally:
        if taken:
            lock.release(remove=True)


def settle(target: Path) -> None:
    """Undo and remove what dead writers of `target` left behind; those that are alive are not touched.

    In a place that may only be read nothing happens (`find` still finds the old store).
    """
    place = Path(os.path.abspath(target))
    for leftover in _leftovers(place.parent, place.name):
        with suppress(OSError):
            _settle_one(leftover, place)


def tidy(folder: Path) -> None:
    """`settle` for everything in `folder`."""
    names = {match["name"] for item in _names(folder) if (match := LEFTOVER.fullmatch(item))}
    for name in sorted(names):
        settle(folder / name)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _leftovers(folder: Path, name: str) -> list[Path]:
    """Partial folders of `name`, and locks that have no folder."""
    found = [item for item in _names(folder) if (match := LEFTOVER.fullmatch(item)) and match["name"] == name]
    folders = {item.removesuffix(PARTIAL) for item in found if item.endswith(PARTIAL)}
    return [folder / item for item in found if item.endswith(PARTIAL) or item.removesuffix(LOCK) not in folders]


def _settle_one(leftover: Path, target: Path) -> None:
    """Undo and remove one leftover, if its writer is dead."""
    if leftover.name.endswith(LOCK):
        if time.time() - leftover.stat().st_mtime > LONELY:
            lock = Lock(leftover)
            with suppress(Busy):  # of a process that claimed the store and lives
                lock.acquire()
                lock.release(remove=True)
        return
    path = leftover.with_suffix(LOCK)
    if not path.exists():
        if _age(leftover) > ABANDONED:
            if leftover.is_dir():
                _undo(leftover, target)
            else:
                leftover.unlink(missing_ok=True)  # of `write_file`
        return
    lock = Lock(path)
    try:
        lock.acquire()
    except Busy:
        return
    try:
        _undo(leftover, target)
    finally:
        lock.release(remove=not leftover.exists())


def _age(path: Path) -> float:
    """Seconds since `path` or, for a folder, anything in it was changed."""
    newest = path.stat().st_mtime
    for place, _, names in os.walk(path):
        for name in (".", *names):
            with suppress(OSError):
                newest = max(newest, os.stat(os.path.join(place, name)).st_mtime)
    return time.time() - newest


def find(target: Path) -> Path:
    """Where the store `target` can be read: at its place, after `settle`; `target` itself also when there is nothing.

    While a living writer is between its two steps this waits for it. Where leftovers cannot be undone (a place that may only be
    read), the old store is where the dead writer put it.
    """
    settle(target)
    deadline = time.monotonic() + PATIENCE
    while not os.path.lexists(target):
        place = Path(os.path.abspath(target))
        folders = [item for item in _leftovers(place.parent, place.name) if (item / NEW).exists()]
        moved = [old for item in folders for old in item.glob(f"{OLD}*")]
        if not moved:
            return target
        if time.monotonic() > deadline:
            return max(moved)
        time.sleep(0.05)
        settle(target)
    return target


def steadily(target: Path, read: Callable[[Path], T]) -> T:
    """`read(place)` of the store `target` (see `find`), once more where that failed while another store took its place."""
    for _ in range(RIVALS):
        place = find(target)
        before = _identity(place)
        try:
            return read(place)
        except OSError:
            if _identity(find(target)) == before:
                raise
    raise StoreLockedError(
        f"{target} is replaced by other processes all the time and cannot be read meanwhile; wait for them"
    )


def _identity(place: Path) -> tuple[int, ...] | None:
    """What tells the folder at `place` from another one, and from itself after it was away; None where there is none."""
    try:
        found = os.stat(place)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns
