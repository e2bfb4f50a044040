"""Where batches run. `Here` is the plain loop: this process, one batch at a time, nothing to install."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from metastable.sweep.tasks import Execute
from metastable.sweep.work import Batch, Finished, run_batch


@dataclass(frozen=True)
class Returned:
    """A batch that came back: finished, or with the reason why its worker never answered."""

    batch: Batch
    finished: Finished | None
    reason: str = ""


class Executor(Protocol):
    """Runs batches somewhere."""

    @property
    def workers(self) -> int:
        """How many batches run at once."""
        ...

    @property
    def dashboard(self) -> str:
        """Address of a page that shows the work, or empty."""
        ...

    def submit(self, batch: Batch) -> None:
        """Take a batch."""

    def collect(self, timeout: float) -> list[Returned]:
        """Batches that came back; waits up to `timeout` seconds for the first. Raises `SchedulerLostError`."""
        ...

    def close(self) -> None:
        """Stop; batches that did not come back are forgotten."""


class Here:
    """The plain loop. Tasks use all threads of the machine (results do not depend on their number)."""

    workers = 1
    dashboard = ""

    def __init__(self, text: str, execute: str | Execute, threads: int | None = None) -> None:
        self._text, self._execute, self._threads = text, execute, threads
        self._queue: deque[Batch] = deque()

    def submit(self, batch: Batch) -> None:
        self._queue.append(batch)

    def collect(self, timeout: float) -> list[Returned]:
        batch = self._queue.popleft()
        return [Returned(batch, run_batch(self._text, batch, self._execute, self._threads))]

    def close(self) -> None:
        self._queue.clear()
