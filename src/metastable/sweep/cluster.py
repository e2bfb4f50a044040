"""Batches on Dask: a local cluster, a scheduler that is already running, or a batch system through dask-jobqueue."""

from __future__ import annotations

import logging
import os
import queue
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from metastable.errors import MetastableError, SchedulerLostError, SweepError, missing_extra
from metastable.sweep.executors import Returned
from metastable.sweep.tasks import Execute
from metastable.sweep.work import Batch, run_elsewhere

CLUSTERS = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "sge": "SGECluster",
    "lsf": "LSFCluster",
    "oar": "OARCluster",
    "moab": "MoabCluster",
    "htcondor": "HTCondorCluster",
}
"""Batch systems, by their name on the command line and their class in `dask_jobqueue`."""

FREE_PORT = "127.0.0.1:0"
"""Any free port, and for this machine only."""
DASHBOARD: str | None = FREE_PORT
"""Where a local cluster shows its dashboard (None: nowhere)."""
FRUGAL: dict[str, Any] = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "2s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "1s",
}
"""Dask looks at itself up to a hundred times a second in every process: seven percent of a core in all with two workers, taken
from the tasks where there are as many workers as cores. Tasks last a second here; looking once in one is enough."""
PATIENCE = 15.0
"""Seconds without a scheduler after which a sweep stops (it may be restarted at the same address meanwhile)."""
STARTS = 3
"""How often a local cluster is started when a process of it dies while starting."""
CONNECT = 10.0
"""Seconds to wait for the first answer of a scheduler."""
COUNT_EVERY = 2.0
"""Seconds between two counts of the workers."""
RESULT_TIMEOUT = 30.0
"""Seconds to wait for the bytes of a finished batch; then its worker is asked for again."""


def available() -> bool:
    """True when Dask distributed is installed."""
    return _installed("distributed")


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def require(what: str) -> None:
    """Raise the error that names the extra when Dask is missing."""
    if not available():
        raise missing_extra("distributed", "sweep", what)


class OnDask:
    """Batches on the workers of a Dask client. `closers` are closed with it (a cluster that was started for it)."""

    def __init__(self, client: Any, closers: list[Any], text: str, execute: str | Execute) -> None:
        self._client, self._closers = client, closers
        self._text, self._execute = text, execute
        self._batches: dict[str, tuple[Batch, Any]] = {}
        self._returned: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._name = f"metastable-{uuid.uuid4().hex[:8]}"
        self._number = 0
        self._last_seen = time.monotonic()
        self._workers, self._counted = 1, 0.0
        self.dashboard: str = _dashboard(client)

    @property
    def workers(self) -> int:
        """Threads of the workers that are there now (1 while none is)."""
        now = time.monotonic()
        if now - self._counted > COUNT_EVERY:
            with suppress(Exception):
                self._workers = max(1, sum(self._client.nthreads().values()))
            self._counted = now
        return self._workers

    def submit(self, batch: Batch) -> None:
        self._number += 1
        key = f"{self._name}-{self._number}"
        # One thread per task: the workers are the parallelism, and results do not depend on the number of threads.
        future = self._client.submit(run_elsewhere, self._text, batch, self._execute, 1, key=key, pure=False)
        self._batches[key] = (batch, future)
        future.add_done_callback(lambda done: self._returned.put(done.key))

    def collect(self, timeout: float) -> list[Returned]:
        keys = []
        with suppress(queue.Empty):
            keys.append(self._returned.get(timeout=timeout))
            while True:
                keys.append(self._returned.get_nowait())
        self._check_scheduler()
        found = (self._take(key) for key in keys if key in self._batches)
        return [item for item in found if item is not None]

    def _check_scheduler(self) -> None:
        if self._client.status == "running":
            self._last_seen = time.monotonic()
        elif self._client.status == "closed" or time.monotonic() - self._last_seen > PATIENCE:
            raise SchedulerLostError("the scheduler of the cluster went away")

    def _take(self, key: str) -> Returned | None:
        """The result of a batch that Dask calls finished, or why there is none."""
        from concurrent.futures import CancelledError

        from distributed import KilledWorker

        batch, future = self._batches[key]
        try:
            finished = future.result(timeout=RESULT_TIMEOUT)
        except KilledWorker as reason:
            del self._batches[key]
            return Returned(batch, None, f"the worker died each time it ran this (out of memory, or a crash): {reason}")
        except (CancelledError, TimeoutError, OSError):
            # Cancelled by a scheduler that was restarted, or held by a worker that died after finishing: run it again.
            del self._batches[key]
            self._check_scheduler()
            self.submit(batch)
            return None
        except MetastableError:
            raise
        except Exception as reason:
            del self._batches[key]
            return Returned(batch, None, f"{type(reason).__name__}: {reason}")
        del self._batches[key]
        return Returned(batch, finished)

    def close(self) -> None:
        # A scheduler that is gone cannot be told anything; closing must not hide the error that says so.
        with suppress(Exception):
            self._client.cancel([future for _, future in self._batches.values()], force=True)
        for item in (self._client, *self._closers):
            with suppress(Exception):
                item.close(timeout=5)


def local(workers: int, text: str, execute: str | Execute) -> OnDask:
    """Workers on this machine: one process each, one thread each."""
    require("running a sweep on several workers")
    reasons = []
    for _ in range(STARTS):
        try:
            cluster, client = _start_local(workers)
        except Exception as reason:  # whatever Dask makes of a process that dies while it starts
            reasons.append(f"{type(reason).__name__}: {reason}".rstrip(": "))
        else:
            return OnDask(client, [cluster], text, execute)
    raise SchedulerLostError(
        f"{workers} worker processes could not be started in {STARTS} attempts ({reasons[-1]}); was one of them killed, for example "
        "because memory ran out? Use fewer workers, or workers=0 for none"
    )


def _start_local(workers: int) -> tuple[Any, Any]:
    """A Dask cluster on this machine and its client; nothing stays behind when that fails."""
    from dask import config
    from distributed import Client, LocalCluster

    opened: list[Any] = []
    try:
        with config.set(FRUGAL):  # the processes that are started inherit it
            opened.append(
                LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    # Without a dashboard the scheduler still answers over HTTP, on port 8787 of all addresses unless told.
                    dashboard_address=DASHBOARD or FREE_PORT,
                    scheduler_kwargs={"dashboard": DASHBOARD is not None},
                    silence_logs=logging.CRITICAL,
                )
            )
            opened.append(Client(opened[0]))
        _ignore_ctrl_c(opened[1])
    except BaseException:
        for item in reversed(opened):
            with suppress(Exception):
                item.close(timeout=5)
        raise
    return opened[0], opened[1]


def _ignore_ctrl_c(client: Any) -> None:
    """Workers do not hear Ctrl-C: a terminal sends it to every process, and the client alone stops the sweep, in good order."""
    from distributed import WorkerPlugin

    class IgnoreCtrlC(WorkerPlugin):
        def setup(self, worker: Any) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    client.register_plugin(IgnoreCtrlC(), name="metastable-ignore-ctrl-c")


def remote(address: str, text: str, execute: str | Execute) -> OnDask:
    """Workers of a scheduler that is already running."""
    require("using a Dask scheduler")
    from distributed import Client

    try:
        client = Client(address, timeout=CONNECT)
    except (OSError, ValueError, TimeoutError) as reason:
        raise SchedulerLostError(
            f"no Dask scheduler answers at {address!r} ({reason}); start one with 'dask scheduler', or leave --scheduler out"
        ) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    return OnDask(client, [], text, execute)


def batch_system(kind: str, jobs: int, options: Mapping[str, Any], text: str, execute: str | Execute) -> OnDask:
    """Workers as jobs of a batch system, through dask-jobqueue; `options` go to its cluster class (queue, cores, memory, ...)."""
    from distributed import Client

    cluster = job_cluster(kind, options)
    cluster.scale(jobs=jobs)
    return OnDask(Client(cluster), [cluster], text, execute)


def jobqueue() -> Any:
    """The package dask_jobqueue, without the handler of Ctrl-C (an exit without cleaning up) that importing it installs."""
    handler = signal.getsignal(signal.SIGINT)
    import dask_jobqueue

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
    return dask_jobqueue


def check_batch_system(kind: str) -> None:
    """Raise when this machine cannot hand jobs to the batch system, or what that needs is not installed."""
    require(f"running on {kind}")
    if not _installed("dask_jobqueue"):
        raise missing_extra("dask-jobqueue", "sweep", f"running on {kind}")
    submit = getattr(jobqueue(), CLUSTERS[kind]).job_cls.submit_command
    command = submit.split()[0] if submit else ""
    if command and shutil.which(command) is None:
        raise SweepError(
            f"{kind} takes jobs through the command {command!r}, which this machine does not have; run this where jobs are submitted "
            "(the login node of the cluster), or use --workers or --scheduler"
        )


def job_cluster(kind: str, options: Mapping[str, Any]) -> Any:
    """The dask-jobqueue cluster of a batch system."""
    dask_jobqueue = jobqueue()
    # One thread per worker process, as on one machine: a job of N cores runs N processes.
    given = {"cores": 1, "memory": "2GB", **options}
    given.setdefault("processes", given["cores"])
    try:
        return getattr(dask_jobqueue, CLUSTERS[kind])(**given)
    except (TypeError, ValueError) as reason:
        raise SweepError(
            f"the {kind} cluster cannot be made: {reason}; see the options of dask_jobqueue.{CLUSTERS[kind]}"
        ) from None


def cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _dashboard(client: Any) -> str:
    """Address of the scheduler's page; empty when bokeh, which draws it, is not installed."""
    if not _installed("bokeh"):
        return ""
    with suppress(Exception):
        return str(client.dashboard_link)
    return ""
