"""One writer at a time: a lock that the operating system releases when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metastable.errors import StoreError, StoreLockedError

NAME = "lock"
ATTEMPTS = 5
PAUSE = 0.1
"""Seconds between two attempts."""


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`; raises `StoreLockedError` at once when another process holds it."""
    path = folder / NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as reason:
        raise StoreError(f"{folder} cannot be written: {reason.strerror}") from reason
    try:
        if not _acquire(descriptor):
            who = _owner(path)
            raise StoreLockedError(
                f"{folder} is being written by another process{who}; wait for it, stop it, or choose another folder "
                f"(see: metastable sweep status {folder})"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int) -> bool:
    """Try to take the lock, a few times: an onlooker (see `holder`) has it for a moment."""
    for attempt in range(ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE if attempt < ATTEMPTS - 1 else 0.0)
        else:
            return True
    return False


def holder(folder: Path) -> dict[str, Any] | None:
    """Who holds the lock of `folder` (pid and host where known), or None when nobody does."""
    path = folder / NAME
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        # Shared, so that two onlookers do not take each other for the writer.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(path)
    finally:
        os.close(descriptor)
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def _owner(path: Path) -> str:
    known = _read(path)
    return f" (process {known['pid']} on {known['host']})" if {"pid", "host"} <= set(known) else ""
