"""What a worker does: run a batch of tasks, one after the other, and return their records as bytes."""

from __future__ import annotations

import json
import socket
import time
import traceback
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from metastable.errors import SweepError
from metastable.sweep import own, records
from metastable.sweep.specification import Sweep
from metastable.sweep.tasks import EARLY, FUNCTIONS, Execute, Task, load, variables

LONGEST_TRACEBACK = 20_000
"""Characters of a traceback that are kept, counted from its end."""
LONGEST_NOTE = 500
"""Characters that are kept of why a member of a finished task failed."""


@dataclass(frozen=True)
class Batch:
    """Tasks to run together, and after how many seconds to return what is done and hand back the rest."""

    numbers: tuple[int, ...]
    limit: float
    functions: tuple[tuple[str, str], ...] = ()
    """Functions of one's own that the tasks name: (import path, fingerprint)."""
    checked: bool = True
    """Workers ask whether theirs are the same."""


@dataclass(frozen=True)
class Finished:
    """Records of the tasks that ran, and the numbers of those that did not get their turn."""

    records: bytes
    rest: tuple[int, ...]


@lru_cache(maxsize=4)
def _sweep(text: str) -> Sweep:
    return Sweep.from_dict(json.loads(text))


def run_elsewhere(text: str, batch: Batch, execute: str | Execute, threads: int | None) -> Finished:
    """`run_batch` in another process than the one that hands out: it imports functions by itself, perhaps after an edit, or before.

    Raises `SweepError` where they are not those of the batch: their results would be kept under the name of others.
    """
    _sweep(text)  # imports them
    for path, expected in batch.functions if batch.checked else ():
        other = own.not_as_written(path)
        if expected != own.fingerprint(path) or other:
            raise SweepError(
                f"a worker has another version of {other or path} than the process that started the sweep: its file is another one "
                "there, or was edited meanwhile; put the same files everywhere, and start the workers of the scheduler again"
            )
    return run_batch(text, batch, execute, threads)


def run_batch(text: str, batch: Batch, execute: str | Execute, threads: int | None) -> Finished:
    """Run the tasks of a batch of the sweep `text` (JSON). Tasks that fail become records too; nothing is raised for them."""
    sweep = _sweep(text)
    function = load(execute) if isinstance(execute, str) else execute
    begin = time.monotonic()
    kept: list[bytes] = []
    for place, number in enumerate(batch.numbers):
        if kept and time.monotonic() - begin > batch.limit:
            return Finished(b"".join(kept), batch.numbers[place:])
        kept.append(run_task(replace(sweep.task(number), threads=threads), function, batch))
    return Finished(b"".join(kept), ())


def run_task(task: Task, function: Execute, batch: Batch) -> bytes:
    """The record of one task of a batch: its arrays, or its traceback and parameters."""
    begin = time.monotonic()
    try:
        result = function(task)
        kept = variables(result, task.keep)
        extra: dict[str, Any] = {"note": str(result.attrs.get("failure", ""))[:LONGEST_NOTE]}
        extra |= {EARLY: json.loads(result.attrs.get(EARLY, "{}")), FUNCTIONS: dict(batch.functions)}
    except Exception as reason:
        text = "".join(traceback.format_exception(reason))[-LONGEST_TRACEBACK:]
        return failure(task, batch, f"{type(reason).__name__}: {reason}", text, time.monotonic() - begin)
    header = _header(task, records.DONE, time.monotonic() - begin)
    return records.encode(header | {name: value for name, value in extra.items() if value}, kept)


def failure(task: Task, batch: Batch, error: str, text: str, seconds: float) -> bytes:
    """The record of a task of a batch that failed."""
    parameters = {"model": dict(task.model), "tokens": task.tokens, "members": task.members, "seed": task.seed}
    header = _header(task, records.FAILED, seconds) | {"error": error, "traceback": text, "parameters": parameters}
    return records.encode(header | ({FUNCTIONS: dict(batch.functions)} if batch.functions else {}))


def _header(task: Task, status: str, seconds: float) -> dict[str, Any]:
    from metastable import __version__

    return {
        "key": task.key,
        "status": status,
        "point": dict(task.point),
        "seconds": seconds,
        "finished": time.time(),
        "host": socket.gethostname(),
        "version": __version__,
    }
