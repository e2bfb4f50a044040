"""Run a sweep: hand out batches, keep what comes back, lose nothing."""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metastable import _checks
from metastable._progress import progress_bar
from metastable.errors import MetastableError, SchedulerLostError, StoreError, SweepError
from metastable.stores import locks
from metastable.sweep import cluster as clusters
from metastable.sweep import journal, own
from metastable.sweep.executors import Executor, Here, Returned
from metastable.sweep.results import open_results
from metastable.sweep.specification import Sweep
from metastable.sweep.store import EDITED, KEEP, REFUSE, Say, Store, prepare_folder
from metastable.sweep.tasks import ENSEMBLE_TASK, Execute
from metastable.sweep.work import Batch, failure

BATCH_SECONDS = 1.0
"""Work per batch: long against the few milliseconds that a batch costs, short against what a person waits."""
CLIENT_SECONDS = 0.01
"""What a batch may cost the client: with many workers batches grow, so that the client keeps up with all of them."""
BATCH_LIMIT = 5.0
"""A batch that takes this many times longer than meant hands back what it has not started."""
AHEAD = 2
"""Batches per worker that are under way at a time, so that no worker waits for the client."""
LARGEST_BATCH = 2000
POLL = 0.5
NOTE_EVERY = 2.0
"""Seconds between two notes for `metastable sweep status`."""
MEMORY = 0.7
"""Weight of the past in the running mean of seconds per task."""


@dataclass(frozen=True)
class Outcome:
    """What a call of `run` left behind: tasks in the grid, with a result, failed, run by this call, and its seconds.

    `early`: members of tasks with a result that stopped early or failed, how many by status ({"max_steps": 3}).
    """

    folder: Path
    total: int
    done: int
    failed: int
    ran: int
    seconds: float
    early: Mapping[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True when every task has a result."""
        return self.done == self.total

    @property
    def dataset(self) -> Any:
        """The results as an `xarray.Dataset` (see `metastable.sweep.open_results`)."""
        return open_results(self.folder)


def run(
    sweep: Sweep,
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    cluster: str | None = None,
    cluster_options: Mapping[str, Any] | None = None,
    retry_failed: bool = False,
    edited: str = REFUSE,
    extend: bool = False,
    execute: str | Execute = ENSEMBLE_TASK,
    progress: bool | None = None,
    say: Say | None = None,
) -> Outcome:
    """Run the tasks of `sweep` that have no result yet, and keep the results under `out`.

    The same call continues after any interruption. Results do not depend on where, in which order, or how often tasks ran.

    Parameters
    ----------
    out : the folder of the sweep; made when missing.
    workers : processes of a local Dask cluster (None: one per processor; 0: the plain loop, in this process). With `cluster`:
        number of jobs.
    scheduler : address of a Dask scheduler to use instead.
    cluster, cluster_options : a batch system ("slurm", "pbs", ...) through dask-jobqueue, and the options of its class.
    retry_failed : also run tasks that failed before.
    edited : what becomes of results of functions of your own that were edited since: "refuse" raises, "retry" computes them again,
        "keep" takes them for those of the new ones.
    extend : `out` may hold another sweep; what both have in common is kept.
    execute : what a task runs, `Task -> xarray.Dataset` (or its name, "package.module:name"). Edits of it are not noticed:
        after one, take another folder.
    progress : show a progress bar (None: on a terminal).
    say : called with lines for people (default: print nothing).
    """
    _checks.instance(sweep, Sweep, "sweep")
    folder = _checks.path(out, "out")
    _checks.progress(progress)
    if say is None:
        say = _silent
    elif not callable(say):
        raise SweepError(f"say must be a function that takes a line, not {say!r}")
    retry_failed, extend = _checks.flag(retry_failed, "retry_failed"), _checks.flag(extend, "extend")
    _checks.choice(edited, "edited", EDITED, error=SweepError)
    check_place(workers, scheduler, cluster)
    sweep.task(0)
    if execute == ENSEMBLE_TASK:
        sweep.check_labels()
    if edited != KEEP:
        own.check_as_written(sweep)
    prepare_folder(folder, sweep, extend, edited)
    with locks.exclusive(folder):
        # Once more, now that nobody else can change it.
        prepare_folder(folder, sweep, extend, edited)
        store = Store(folder, sweep, say, edited)
        before = time.monotonic()
        waiting = store.waiting(retry_failed)
        ran = 0
        if waiting:
            executor = _executor(sweep, execute, workers, scheduler, cluster, cluster_options or {}, len(waiting), say)
            ran = _run(store, executor, waiting, progress)
        store.refresh()
        early = journal.early_members(store.entries.values())
        return Outcome(folder, sweep.size, store.done, store.failed, ran, time.monotonic() - before, early)


def _silent(line: str) -> None:
    """Say nothing."""


def check_place(workers: int | None, scheduler: str | None, cluster: str | None) -> None:
    """Raise when these say contradictory things about where to run, or what they need is not installed."""
    if cluster is not None:
        _checks.choice(cluster, "cluster", tuple(clusters.CLUSTERS), error=SweepError)
    if workers is not None:
        _checks.count(workers, "workers", minimum=0)
    if scheduler is not None and (cluster is not None or workers is not None):
        raise SweepError("scheduler=ADDRESS has its own workers; leave out workers and cluster, or leave out scheduler")
    if cluster is not None:
        clusters.check_batch_system(cluster)
    if scheduler is not None or (workers is not None and workers > 1):
        clusters.require("running a sweep on workers")


def _executor(
    sweep: Sweep,
    execute: str | Execute,
    workers: int | None,
    scheduler: str | None,
    cluster: str | None,
    options: Mapping[str, Any],
    tasks: int,
    say: Say,
) -> Executor:
    text = json.dumps(sweep.to_dict())
    if scheduler is not None:
        executor = clusters.remote(scheduler, text, execute)
    elif cluster is not None:
        executor = clusters.batch_system(cluster, workers or 1, options, text, execute)
    elif workers == 0:
        return Here(text, execute)
    elif not clusters.available():
        say(
            "Dask is not installed: running one task after the other in this process "
            '(for workers: pip install "metastable[sweep]")'
        )
        return Here(text, execute)
    else:
        executor = clusters.local(min(workers or clusters.cpus(), tasks), text, execute)
    if executor.dashboard:
        say(f"dashboard: {executor.dashboard}")
    return executor


def _run(store: Store, executor: Executor, waiting: list[int], progress: bool | None) -> int:
    """Run `waiting` and return how many tasks came back."""
    loop = _Loop(store, executor, waiting)
    try:
        with progress_bar("sweep", len(waiting), progress) as report:
            while loop.open:
                loop.hand_out()
                loop.take_back()
                report(loop.ran)
    except SchedulerLostError as reason:
        _leave(loop)
        raise SchedulerLostError(
            f"{reason}; {store.done} of {store.sweep.size} tasks are done and safe in {store.folder}, run the same command again "
            "for the rest"
        ) from reason
    except StoreError:
        # No room (or no right) to write: nothing more can be kept, so nothing more is computed.
        executor.close()
        raise
    except BaseException:
        _leave(loop)
        raise
    executor.close()
    loop.note(finished=True)
    return loop.ran


def _leave(loop: _Loop) -> None:
    """Stop early, with what is done in the zarr store; problems here must not hide the reason for leaving."""
    loop.executor.close()
    try:
        loop.store.catch_up()
        loop.note(finished=True)
    except MetastableError:
        # The journal has everything; the next call repairs the zarr store from it.
        pass


def batch_seconds(workers: int) -> float:
    """How much work a batch should be."""
    return max(BATCH_SECONDS, CLIENT_SECONDS * workers)


class _Loop:
    """Batches out, records in."""

    def __init__(self, store: Store, executor: Executor, waiting: list[int]) -> None:
        self.store, self.executor = store, executor
        self.ran = 0
        self._waiting: deque[int] = deque(waiting)
        self._alone: deque[int] = deque()
        self._out: list[Batch] = []
        known = [entry.seconds for entry in store.entries.values() if entry.done]
        self._seconds = sum(known) / len(known) if known else None
        self._started = time.time()
        self._noted = 0.0

    @property
    def open(self) -> bool:
        return bool(self._waiting or self._alone or self._out)

    def hand_out(self) -> None:
        """Keep every worker busy and a little ahead."""
        workers = self.executor.workers
        while (self._waiting or self._alone) and len(self._out) < AHEAD * workers:
            if self._alone:
                numbers: tuple[int, ...] = (self._alone.popleft(),)
            else:
                size = min(self._batch_size(workers), len(self._waiting))
                numbers = tuple(self._waiting.popleft() for _ in range(size))
            limit = BATCH_LIMIT * batch_seconds(workers)
            batch = Batch(numbers, limit, tuple(self.store.functions.items()), self.store.edited != KEEP)
            self._out.append(batch)
            self.executor.submit(batch)

    def _batch_size(self, workers: int) -> int:
        """As many tasks as take `batch_seconds`, but no more than an even share of what is left."""
        if self._seconds is None:
            return 1
        wanted = batch_seconds(workers) / max(self._seconds, 1e-6)
        share = math.ceil(len(self._waiting) / (AHEAD * workers))
        return max(1, min(int(wanted), share, LARGEST_BATCH))

    def take_back(self) -> None:
        """Keep everything that came back, in one segment."""
        data = []
        for returned in self.executor.collect(POLL):
            self._out.remove(returned.batch)
            data.append(self._records(returned))
        if any(data):
            self._keep(b"".join(data))
        if time.time() - self._noted > NOTE_EVERY:
            self.note()

    def _records(self, returned: Returned) -> bytes:
        if returned.finished is not None:
            self._waiting.extendleft(reversed(returned.finished.rest))
            return returned.finished.records
        if len(returned.batch.numbers) > 1:
            # One of them killed the worker; alone, each shows whether it was the one.
            self._alone.extend(returned.batch.numbers)
            return b""
        task = self.store.sweep.task(max(returned.batch.numbers))
        return failure(task, returned.batch, returned.reason, returned.reason, 0.0)

    def _keep(self, data: bytes) -> None:
        entries = self.store.add(data)
        self.ran += len(entries)
        mean = sum(entry.seconds for entry in entries) / len(entries)
        self._seconds = mean if self._seconds is None else MEMORY * self._seconds + (1 - MEMORY) * mean

    def note(self, finished: bool = False) -> None:
        """Tell `metastable sweep status` what is going on."""
        self._noted = time.time()
        self.store.say_progress(
            {
                "started": self._started,
                "ran": self.ran,
                "workers": self.executor.workers,
                "dashboard": self.executor.dashboard,
                "running": [] if finished else [number for batch in self._out for number in batch.numbers],
                "finished": finished,
            }
        )
