"""One file, whole or not at all."""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from metastable.errors import StoreError, StoreFullError

PARTIAL = ".partial"
"""How the names of unfinished files and folders end; they begin with a dot and the name of what they become."""
_NO_ROOM = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name))
_ATTEMPTS, _PAUSE = 10, 0.05
"""On Windows a file that somebody has open for a moment (a reader, a virus scanner) cannot be moved: try again for half a second."""


def write_file(path: Path, data: bytes, durable: bool = True) -> None:
    """All of `data` at `path`, or nothing: written beside it, flushed, moved. Raises `StoreFullError` when there is no room."""
    with new_file(path, durable) as partial:
        partial.write_bytes(data)


@contextmanager
def new_file(path: Path, durable: bool = True) -> Iterator[Path]:
    """A place beside `path` for who needs a name to write to (an encoder): moved there when the block ends, removed when it fails."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        yield partial
        if durable:
            # Windows flushes only what was opened for writing.
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
        move(partial, path)
        if durable:
            sync_folder(path.parent)
    except OSError as reason:
        _drop(partial)
        raise storage_error(path, reason) from reason
    except BaseException:
        _drop(partial)
        raise


def _drop(partial: Path) -> None:
    """Remove an unfinished file; what hinders that must not hide why it is unfinished."""
    with suppress(OSError):
        partial.unlink(missing_ok=True)


def check_folder(path: Path) -> None:
    """Refuse a place in a folder that is not there, before any work is done."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise StoreError(f"the folder {folder} does not exist; create it first")


def storage_error(path: Path, reason: OSError) -> StoreError:
    """The named error for a failed write."""
    if reason.errno in _NO_ROOM:
        return StoreFullError(
            f"there is no room left to write {path}: {reason.strerror}; what was stored before is safe: free some space and try again"
        )
    return StoreError(f"{path} could not be written: {reason}")


def move(source: Path, target: Path) -> None:
    """`os.replace`, with patience on Windows."""
    for attempt in range(_ATTEMPTS):
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if os.name != "nt" or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE)


def sync_folder(folder: Path) -> None:
    """Make what was moved into `folder` durable, where folders can be flushed (not on Windows, not on some network disks)."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make every file below `folder` durable."""
    for place, _, names in os.walk(folder):
        for name in names:
            # Windows flushes only what was opened for writing.
            with open(os.path.join(place, name), "rb+") as file:
                os.fsync(file.fileno())
        sync_folder(Path(place))
