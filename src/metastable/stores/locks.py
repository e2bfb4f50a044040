"""Locks between processes, on every platform: released by the operating system when their holder dies, however it dies."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from metastable.errors import StoreError, StoreLockedError
from metastable.stores.files import write_file

NAME = "lock"
"""The lock of a folder; `NOTE` beside it says who holds it (Windows lets nobody else read a locked file)."""
NOTE = "lock.json"
ATTEMPTS = 5
PAUSE = 0.1
"""Seconds between two attempts."""


class Busy(Exception):
    """Somebody else holds a lock."""


class Lock:
    """A lock on the file `path`, which is made when missing."""

    def __init__(self, path: Path) -> None:
        from filelock import FileLock  # here, because importing it takes a while and most readers need no lock

        self.path = path
        self._lock = FileLock(path, timeout=0)

    def acquire(self) -> None:
        """Take the lock, or raise `Busy` at once; `OSError` where files cannot be locked."""
        from filelock import Timeout

        if not self.path.parent.is_dir():  # filelock would make it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path.parent))
        try:
            self._lock.acquire()
        except Timeout:
            raise Busy from None
        except NotImplementedError as reason:
            raise OSError(f"{self.path.parent} has no locks: {reason}") from reason

    def release(self, remove: bool = False) -> None:
        """Give the lock back (does nothing for one that was not taken); `remove`: and delete its file."""
        with suppress(OSError):
            self._lock.release(force=True)
        if remove:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`; raises `StoreLockedError` at once when another process holds it."""
    lock = Lock(folder / NAME)
    try:
        try:
            patiently(lock)
        except Busy:
            raise StoreLockedError(
                f"{folder} is being written by another process{_owner(folder)}; wait for it, stop it, or choose another folder "
                f"(see: metastable sweep status {folder})"
            ) from None
        except OSError as reason:
            raise StoreError(f"{folder} cannot be written: {reason.strerror or reason}") from reason
        note = {"pid": os.getpid(), "host": socket.gethostname()}
        write_file(folder / NOTE, json.dumps(note).encode(), durable=False)
        yield
    finally:
        lock.release()


def holder(folder: Path) -> dict[str, Any] | None:
    """Who holds the lock of `folder` (pid and host where known), or None when nobody does."""
    if not (folder / NAME).exists():
        return None
    lock = Lock(folder / NAME)
    try:
        patiently(lock)
    except Busy:
        return _read(folder)
    except OSError:
        return None  # a folder that may only be read: whoever writes to it is not of this machine
    finally:
        lock.release()
    return None


def patiently(lock: Lock) -> None:
    """Take the lock in a few attempts: an onlooker (see `holder`) has it for a moment."""
    for attempt in range(ATTEMPTS):
        try:
            lock.acquire()
            return
        except Busy:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(PAUSE)


def _read(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _owner(folder: Path) -> str:
    known = _read(folder)
    return f" (process {known['pid']} on {known['host']})" if {"pid", "host"} <= set(known) else ""
