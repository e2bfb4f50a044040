"""The pool: orders are carried out, cancelled, timed out; a process that dies is replaced."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from metastable.explorer.pool import Pool, RunFailedError
from metastable.explorer.setting import Clock, Setting

ORDER = {
    "kind": "simulate",
    "panel": 0,
    "run": 1,
    "setting": {"model": {"dim": 2, "beta": 4.0}, "start": {"tokens": 4}},
    "clock": {"until": 5.0},
}
LONG = {
    **ORDER,
    "setting": {"model": {"dim": 3, "beta": 200.0, "norm": {"kind": "peri_ln"}}, "start": {"tokens": 1500}},
    "clock": {"until": 1e5},
}


async def messages(pool, order=ORDER, seconds=60.0, key=""):
    async with contextlib.aclosing(pool.run(order, key, seconds)) as stream:
        return [message async for message in stream]


def with_pool(test, size=1):
    """Run an async test with a pool of one worker, or of several."""

    async def go():
        pool = Pool(size)
        await pool.start()
        try:
            await test(pool)
        finally:
            await pool.close()

    # In a thread of its own: where a browser test ran before in this process, Playwright's event loop still runs in the main one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, go()).result()


def test_orders_are_carried_out_and_failures_told():
    async def body(pool):
        found = await messages(pool)
        assert [m["type"] for m in found if isinstance(m, dict)] == ["facts", "view", "curves", "end"]
        with pytest.raises(RunFailedError, match="up to 2000 tokens"):
            await messages(pool, {**ORDER, "setting": {**ORDER["setting"], "start": {"tokens": 10**7}}})
        with pytest.raises(RunFailedError, match="unexpectedly"):
            await messages(pool, {"kind": "simulate"})
        assert await messages(pool)

    with_pool(body)


def test_slow_orders_are_stopped_and_the_worker_replaced():
    async def body(pool):
        with pytest.raises(RunFailedError, match=r"longer than 0\.5 s"):
            await messages(pool, LONG, seconds=0.5)
        assert await messages(pool)

    with_pool(body)


def test_cancelled_orders_make_room():
    async def body(pool):
        task = asyncio.create_task(messages(pool, LONG))
        await asyncio.sleep(2.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await messages(pool)

    with_pool(body)


def test_a_process_that_dies_is_replaced():
    async def body(pool):
        await messages(pool)
        task = asyncio.create_task(messages(pool, LONG))
        await asyncio.sleep(1.0)
        (worker,) = pool._all
        worker.process.kill()
        with pytest.raises(RunFailedError, match="ended unexpectedly"):
            await task
        assert await messages(pool)

    with_pool(body)


def test_a_run_is_looked_at_where_it_is_remembered():
    """Also right after a look that was cut short, and after looks at another run: nobody computes it again."""
    look = {**ORDER, "kind": "attention", "frame": 5}
    other = {**ORDER, "clock": {"until": 6.0}}
    key, second = (Setting.from_dict(o["setting"]).key(Clock.from_dict(o["clock"])) for o in (ORDER, other))

    async def body(pool):
        while len(pool._idle) < 2:
            await asyncio.sleep(0.05)
        await messages(pool, ORDER, key=key)
        (knowing,) = (worker for worker in pool._all if worker.known)
        assert set(knowing.known) == {key}
        for _ in range(5):
            # The answer is here, and the next wish comes before its worker has said that it is done.
            stream = pool.run(look, key)
            await anext(stream)
            await stream.aclose()
            assert knowing not in pool._idle
            await messages(pool, look, key=key)
        assert [worker for worker in pool._all if worker.known] == [knowing], "the run was computed again"
        # What the worker remembers is what it says, however often one run was looked at.
        pool._idle.sort(key=lambda worker: worker is not knowing)
        await messages(pool, other, key=second)
        for _ in range(4):
            await messages(pool, look, key=key)
        assert set(knowing.known) == {key, second}

    with_pool(body, 2)
