"""Break a piece of code at its n-th call of the file system, whichever it is, by an exception or by `kill -9`.

Python announces every call that opens, makes, moves, lists or removes something to its audit hooks, before the call is made, and a
hook may raise. Nothing has to be patched, and calls made by libraries count as well. (`os.fsync` alone is not announced, and patched.)
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree"}


class Breaker:
    """Counts the calls that touch `folder` while it is on, and does `action` before call number `at` (1, 2, ...).

    `moves`: the numbers of the calls that moved something.
    """

    def __init__(self) -> None:
        self.folder, self.on, self.count, self.at = "", False, 0, 0
        self.moves: list[int] = []
        self.action: Callable[[], None] = lambda: None
        sys.addaudithook(self._hear)

    def fsync(self, descriptor: int) -> None:
        """In place of `os.fsync`: counted, and not done, because no test cuts the power."""
        if self.on:
            self._strike()

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or event not in EVENTS:
            return
        paths = [os.fspath(item) for item in arguments[:2] if isinstance(item, (str, os.PathLike))]
        # Relative paths: what `shutil.rmtree` removes below a folder that it has open.
        if any(self.folder in path or (event != "open" and not os.path.isabs(path)) for path in paths):
            if event == "os.rename":
                self.moves.append(self.count + 1)
            self._strike()

    def _strike(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.action()

    def run(self, work: Callable[[], Any], folder: Path, at: int, action: Callable[[], None]) -> int:
        """Do `work`; returns how many calls it made."""
        self.folder, self.count, self.at, self.action = str(folder), 0, at, action
        self.moves = []
        self.on = True
        try:
            work()
        finally:
            self.on = False
        return self.count


def die() -> None:
    """The end, with no chance to clean up."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(work: Callable[[], Any], breaker: Breaker, folder: Path, at: int) -> bool:
    """Do `work` in a copy of this process that is killed at call number `at`; False when it finished before."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            breaker.run(work, folder, at, die)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False
