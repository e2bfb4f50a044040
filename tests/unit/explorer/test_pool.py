"""The pool: orders are carried out, cancelled, timed out; a process that dies is replaced."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from metastable.explorer.pool import Pool, RunFailedError

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


async def messages(pool, order=ORDER, seconds=60.0):
    async with contextlib.aclosing(pool.run(order, "", seconds)) as stream:
        return [message async for message in stream]


def with_pool(test):
    """Run an async test with a pool of one worker."""

    async def go():
        pool = Pool(1)
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
