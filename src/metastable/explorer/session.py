"""One page: reads its messages, orders its runs, sends frames. The last wish of each panel counts; earlier ones are cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from metastable import __version__, _checks
from metastable.errors import MetastableError
from metastable.explorer import limits, presets, protocol
from metastable.explorer.pool import Pool
from metastable.explorer.setting import Clock, Setting, only
from metastable.model import declare

Send = Callable[[str | bytes], Awaitable[None]]
PANELS = 2
WARMING = "The engine is starting. The very first time it is compiled, which takes a minute; later it takes a second."


def greeting() -> dict[str, Any]:
    """The first message to every page: what there is to choose from, and the limits."""
    return {
        "type": "hello",
        "version": __version__,
        "where": f"Computed by metastable {__version__} on this machine.",
        "presets": presets.catalogue(),
        "variants": declare.catalogue(),
        "limits": {
            "tokens": limits.MAX_TOKENS,
            "dim": limits.MAX_DIM,
            "numbers": limits.MAX_NUMBERS,
            "until": limits.MAX_UNTIL,
            "beta": limits.MAX_BETA,
            "frames": limits.FRAMES,
            "appended": limits.MAX_APPENDED,
        },
    }


class Session:
    """What the server keeps for one connection: the tasks that work for it, and nothing else."""

    def __init__(self, pool: Pool, send: Send) -> None:
        self._pool = pool
        self._raw_send = send
        self._sending = asyncio.Lock()
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def send(self, message: dict[str, Any] | bytes) -> None:
        """Send one message; messages of the two panels never mix."""
        async with self._sending:
            await self._raw_send(message if isinstance(message, bytes) else protocol.dumps(message))

    async def close(self) -> None:
        """Cancel everything that works for this page."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def handle(self, text: str | bytes) -> None:
        """Do what one message asks for; whatever is wrong with it becomes an error message to the page."""
        tag: dict[str, int] = {}
        try:
            message = protocol.parse(text)
            kind = _checks.choice(message.get("type"), "type", ("simulate", "attention", "cancel", "ping"))
            if kind == "ping":
                await self.send({"type": "pong"})
                return
            panel = _checks.count(message.get("panel"), "panel", 0, PANELS - 1)
            run = _checks.count(message.get("run"), "run", 0, 2**31)
            tag = {"panel": panel, "run": run}
            if kind == "simulate":
                await self._simulate(message, tag)
            elif kind == "attention":
                await self._attention(message, tag)
            else:
                await self._stop(("simulate", panel))
        except MetastableError as reason:
            await self.send({"type": "error", **tag, "message": str(reason)[:1000]})

    # ------------------------------------------------------------------------------------------------ inside

    async def _simulate(self, message: dict[str, Any], tag: dict[str, int]) -> None:
        only(message, ("type", "panel", "run", "setting", "clock", "before"), "the message")
        await self._stop(("simulate", tag["panel"]))
        setting, clock = Setting.from_dict(message.get("setting")), Clock.from_dict(message.get("clock"))
        setting.check_clock(clock)
        before = message.get("before")
        order = {
            "kind": "simulate",
            **tag,
            "setting": setting.to_dict(),
            "clock": clock.to_dict(),
            "before": None if before is None else Setting.from_dict(before).to_dict(),
        }
        await self.send({"type": "begin", **tag, **_beginning(setting, clock)})
        if setting.model.dim <= 3:
            await self.send(_first_frame(setting, tag))
        if self._pool.warming:
            await self.send({"type": "warming", "message": WARMING})
        self._start(("simulate", tag["panel"]), order, tag, setting.key(clock))

    async def _attention(self, message: dict[str, Any], tag: dict[str, int]) -> None:
        only(message, ("type", "panel", "run", "setting", "clock", "frame"), "the message")
        name = ("attention", tag["panel"])
        await self._stop(name)
        setting, clock = Setting.from_dict(message.get("setting")), Clock.from_dict(message.get("clock"))
        setting.check_clock(clock)
        frame = _checks.count(message.get("frame"), "frame", 0, limits.FRAMES - 1)
        order = {
            "kind": "attention",
            **tag,
            "setting": setting.to_dict(),
            "clock": clock.to_dict(),
            "frame": frame,
        }
        self._start(name, order, tag, setting.key(clock))

    def _start(self, name: tuple[str, int], order: dict[str, Any], tag: dict[str, int], key: str) -> None:
        self._tasks[name] = asyncio.get_running_loop().create_task(self._forward(order, tag, key))

    async def _stop(self, name: tuple[str, int]) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])

    async def _forward(self, order: dict[str, Any], tag: dict[str, int], key: str) -> None:
        """Carry out an order and pass on what it yields."""
        try:
            async with contextlib.aclosing(self._pool.run(order, key, limits.RUN_SECONDS)) as messages:
                async for message in messages:
                    await self.send(message)
        except MetastableError as reason:
            await self.send({"type": "error", **tag, "about": order["kind"], "message": str(reason)[:1000]})


def _beginning(setting: Setting, clock: Clock) -> dict[str, Any]:
    dim = setting.model.dim
    return {
        "times": setting.times(clock).tolist(),
        "tokens": setting.start.total,
        "dim": dim,
        "components": min(dim, 3),
        "delta": setting.separation,
        "radius": setting.cluster_radius,
    }


def _first_frame(setting: Setting, tag: dict[str, int]) -> bytes:
    """The start itself, which needs no run: something to see at once."""
    from metastable import sphere

    start = setting.positions[None]
    return protocol.pack_positions(tag["panel"], tag["run"], 0, start, sphere.distance(start, start[:, :1]))
