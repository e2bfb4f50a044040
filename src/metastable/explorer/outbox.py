"""Messages on their way to one page: a queue of bounded size that its connection empties as fast as the page reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

from metastable.explorer import limits

Send = Callable[[str | bytes], Awaitable[None]]


class Outbox:
    """What was said and not yet sent, in order.

    Whoever computes for a page puts messages here and is done with them; a page that does not read (a halted tab) keeps its own
    queue full, and nobody else waits. `limits.OUTBOX_BYTES` bound it.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[tuple[str | bytes, Hashable]] = deque()
        self._size = 0
        self._changed = asyncio.Condition()
        self._gone = False
        self._task: asyncio.Task[None] | None = None

    async def put(self, message: str | bytes, about: Hashable = None) -> None:
        """Queue a message when there is room for it; `ConnectionError` when nobody reads any more.

        `about`: what `drop` knows it by.
        """
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._empty())
        async with self._changed:
            await self._changed.wait_for(lambda: self._gone or self._has_room(len(message)))
            if self._gone:
                raise ConnectionError("the page went away")
            self._waiting.append((message, about))
            self._size += len(message)
            self._changed.notify_all()

    async def drop(self, about: Hashable) -> None:
        """Forget what waits about something that is no longer wanted."""
        async with self._changed:
            kept = [item for item in self._waiting if item[1] != about]
            self._size -= sum(len(message) for message, _ in self._waiting) - sum(len(message) for message, _ in kept)
            self._waiting = deque(kept)
            self._changed.notify_all()

    async def close(self) -> None:
        """Stop sending."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])

    def _has_room(self, size: int) -> bool:
        return not self._size or self._size + size <= limits.OUTBOX_BYTES

    async def _empty(self) -> None:
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: len(self._waiting) > 0)
                    message, _ = self._waiting.popleft()
                await self._send(message)
                async with self._changed:
                    self._size -= len(message)
                    self._changed.notify_all()
        except (RuntimeError, OSError):  # the page went away while something was being sent to it
            pass
        finally:
            self._gone = True
            with contextlib.suppress(asyncio.CancelledError):
                async with self._changed:
                    self._changed.notify_all()
