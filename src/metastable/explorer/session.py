"""One page: reads its messages, orders its runs, sends frames.

The last wish of each panel counts; earlier ones are cancelled. When to say a wish is the page's business: while something is dragged
it waits until the run before it has been seen.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from metastable import __version__, _checks
from metastable.errors import MetastableError
from metastable.explorer import limits, presets, protocol
from metastable.explorer.outbox import Outbox, Send
from metastable.explorer.pool import Pool
from metastable.explorer.setting import Clock, Setting, only
from metastable.explorer.starting import STARTS
from metastable.model import declare

PANELS = 2
WARMING = (
    "The engine is starting, and your browser computes meanwhile. The very first time it is compiled, which takes a minute; "
    "later it takes a second."
)


def greeting() -> dict[str, Any]:
    """The first message to every page: what there is to choose from, and the limits."""
    return {
        "type": "hello",
        "version": __version__,
        "where": f"Computed by metastable {__version__} on this machine.",
        "presets": presets.catalogue(),
        "variants": {**declare.catalogue(), "start": STARTS},
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
        self._outbox = Outbox(send)
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def send(self, message: dict[str, Any] | bytes, about: tuple[str, int] | None = None) -> None:
        """Send one message, after those before it. `about`: the work that it belongs to."""
        await self._outbox.put(message if isinstance(message, bytes) else protocol.dumps(message), about)

    async def close(self) -> None:
        """Cancel everything that works for this page."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        await self._outbox.close()

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
        except limits.HorizonError as reason:
            # The page can shorten the horizon by itself.
            await self.send({"type": "error", **tag, "message": str(reason)[:1000], "until": reason.until})
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
        name = ("simulate", tag["panel"])
        await self.send({"type": "begin", **tag, **beginning(setting, clock)}, name)
        if setting.model.dim <= 3:
            await self.send(_first_frame(setting, tag), name)
        if self._pool.warming:
            await self.send({"type": "warming", "message": WARMING})
        self._start(name, order, tag, setting.key(clock))

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
        self._tasks[name] = asyncio.get_running_loop().create_task(self._forward(name, order, tag, key))

    async def _stop(self, name: tuple[str, int]) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        await self._outbox.drop(name)

    async def _forward(self, name: tuple[str, int], order: dict[str, Any], tag: dict[str, int], key: str) -> None:
        """Carry out an order and pass on what it yields. A page that leaves no room for it loses the run, not the others theirs."""
        try:
            async with contextlib.aclosing(self._pool.run(order, key, limits.RUN_SECONDS)) as messages:
                async for message in messages:
                    await asyncio.wait_for(self.send(message, name), limits.SEND_SECONDS)
        except MetastableError as reason:
            await self.send({"type": "error", **tag, "about": order["kind"], "message": str(reason)[:1000]})
        except TimeoutError:
            await self._outbox.drop(name)
            await self.send({"type": "stalled", **tag, "about": order["kind"]})
        except ConnectionError:
            pass  # the page went away, and whoever reads its messages knows


def beginning(setting: Setting, clock: Clock) -> dict[str, Any]:
    """What is known at once: the moments of a run and the lengths that it is looked at with."""
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
