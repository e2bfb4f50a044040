"""A few worker processes and the orders that wait for them. An order that is no longer wanted costs at most a moment."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Literal

from metastable.errors import MetastableError
from metastable.explorer.worker import BINARY, FRAME, JSON

GRACE = 2.0
"""Seconds that a cancelled order may still take before its process is ended and replaced."""
READY_SECONDS = 600.0
"""A process that is not ready by then (compilation included) is given up."""
INBOX = 4
"""Messages of a worker that wait in the server; with more than that the worker waits."""
COSTLY = 0.5
"""Seconds of a run from which on its worker is waited for rather than another one made to compute it again."""


def _thread_limits(workers: int) -> dict[str, str]:
    """Share the cores between the workers, unless the user decided; results do not depend on it."""
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    return dict.fromkeys(("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), threads)


class RunFailedError(MetastableError):
    """A run could not be done; the message is meant for the page."""


@dataclass(eq=False)
class Worker:
    """One process, what it has said and not been read, and the runs that it remembers."""

    process: asyncio.subprocess.Process
    known: dict[str, float] = field(default_factory=dict)
    """The runs that it remembers and the seconds that they took, as it said itself after its last order."""
    task: Literal["brief", "run", "file"] = "run"
    """What it does now: something that takes a moment (an order about a run that it remembers, the end of one that was cancelled), a
    run, or a file, which can take long."""
    inbox: asyncio.Queue[dict[str, Any] | bytes | None] = field(default_factory=lambda: asyncio.Queue(maxsize=INBOX))

    async def listen(self) -> None:
        """Read messages into the inbox until the process ends. One reader, so that a cancelled order leaves no half message."""
        assert self.process.stdout is not None
        try:
            while True:
                size, kind = FRAME.unpack(await self.process.stdout.readexactly(FRAME.size))
                body = await self.process.stdout.readexactly(size)
                await self.inbox.put(body if kind == BINARY else json.loads(body))
        except asyncio.IncompleteReadError:
            await self.inbox.put(None)

    async def send(self, order: dict[str, Any]) -> None:
        body = json.dumps(order).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(FRAME.pack(len(body), JSON) + body)
        await self.process.stdin.drain()

    async def receive(self, seconds: float) -> dict[str, Any] | bytes:
        """The next message; `TimeoutError` after `seconds`, `ConnectionError` when the process ended."""
        message = await asyncio.wait_for(self.inbox.get(), max(seconds, 0.0))
        if message is None:
            raise ConnectionError("the worker process ended")
        return message

    async def end(self) -> None:
        """End the process and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class Pool:
    """Worker processes, started one after the other: the first one is ready as early as possible."""

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._changed = asyncio.Condition()
        self._numbers = itertools.count(1)
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False
        self._failure: str | None = None
        self.warming = True  # until the first process is ready

    async def start(self) -> None:
        """Begin to start the processes; orders wait until one is ready."""
        self._spawn_task(self._start_all())

    async def close(self) -> None:
        """End all processes."""
        self._closed = True
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in list(self._all)))
        self._all.clear()
        self._idle.clear()

    async def run(self, order: dict[str, Any], key: str = "", seconds: float = 60.0) -> AsyncGenerator[Any, None]:
        """Carry out an order: yields its messages (dictionaries and bytes).

        `key` names the run that the order is about: a worker that remembers it is preferred. Raises `RunFailedError` when
        the order cannot be done, takes longer than `seconds`, or its process ended. Closing the generator cancels it.
        """
        worker = await self._acquire(key)
        worker.task = "file" if order["kind"] == "export" else "brief" if key in worker.known else "run"
        number = next(self._numbers)
        finished = False
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            await worker.send({**order, "number": number})
            while True:
                message = await worker.receive(deadline - asyncio.get_running_loop().time())
                if isinstance(message, dict) and message.get("type") == "finished":
                    finished = True
                    worker.known = message["known"]
                    if "error" in message:
                        raise RunFailedError(message["error"])
                    return
                yield message
        except TimeoutError:
            raise RunFailedError(
                f"this took longer than {seconds:g} s and was stopped; take fewer tokens, a smaller beta or a shorter horizon"
            ) from None
        except ConnectionError:
            raise RunFailedError(
                "the process that computed this ended unexpectedly (out of memory?); it has been replaced, try a smaller run"
            ) from None
        finally:
            if finished:
                await self._release(worker)
            else:
                worker.task = "brief"  # at once: the next order may already look for it
                self._spawn_task(self._abandon(worker, number))

    # ------------------------------------------------------------------------------------------------ inside

    def _spawn_task(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _start_all(self) -> None:
        for number in range(self.size):
            await self._add_worker(thorough=number > 0)

    async def _add_worker(self, thorough: bool = False) -> None:
        """Start a process. A thorough one first compiles what long runs need, too: on a new machine that takes a while, and it
        must not happen inside a run that somebody cancels.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "metastable.explorer.worker",
            *(["thorough"] if thorough else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**_thread_limits(self.size), **os.environ},
        )
        worker = Worker(process)
        self._all.add(worker)
        self._spawn_task(worker.listen())
        try:
            await worker.receive(READY_SECONDS)
        except (TimeoutError, ConnectionError):
            await self._forget(worker)
            async with self._changed:
                self._failure = "the process that computes runs does not start; see the messages in the terminal"
                self._changed.notify_all()
            return
        self._failure = None
        self.warming = False
        await self._release(worker)

    async def _acquire(self, key: str) -> Worker:
        async with self._changed:
            if not self._all and self._failure:
                # The last attempts to start a process failed; what was wrong may have been mended.
                self._failure = None
                self._spawn_task(self._add_worker())
            worker = await self._choose(key)
            self._idle.remove(worker)
            return worker

    async def _choose(self, key: str) -> Worker:
        """An idle worker, if possible one that remembers the run `key`. One that does and will be free in a moment is waited for, and
        where the run is costly also one that computes another. Called with `_changed` held.
        """
        while True:
            knowing = [worker for worker in self._all if key in worker.known]
            ready = [worker for worker in self._idle if worker in knowing]
            if ready:
                return ready[0]
            wait = {"brief": True, "run": any(worker.known[key] > COSTLY for worker in knowing), "file": False}
            if self._idle and not any(wait[worker.task] for worker in knowing):
                return self._idle[0]
            if self._failure and not self._all:
                raise RunFailedError(self._failure)
            await self._changed.wait()

    async def _release(self, worker: Worker) -> None:
        if worker.process.returncode is not None:
            await self._forget(worker)
            self._spawn_task(self._add_worker())
            return
        async with self._changed:
            self._idle.append(worker)
            self._changed.notify_all()  # those who wait do not all want the same one

    async def _forget(self, worker: Worker) -> None:
        self._all.discard(worker)
        async with self._changed:
            self._changed.notify_all()
        await worker.end()

    async def _abandon(self, worker: Worker, number: int) -> None:
        """Let a cancelled order come to its end if that is near; otherwise replace the process."""
        deadline = asyncio.get_running_loop().time() + GRACE
        try:
            await worker.send({"cancel": number})
            while True:
                message = await worker.receive(deadline - asyncio.get_running_loop().time())
                if isinstance(message, dict) and message.get("type") == "finished":
                    worker.known = message["known"]
                    break
            await self._release(worker)
        except (TimeoutError, ConnectionError):
            await self._forget(worker)
            if not self._closed:
                await self._add_worker()
