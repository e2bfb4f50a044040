"""The queue of a page: in order, bounded, and nobody waits for a page that does not read longer than the queue makes him."""

from __future__ import annotations

import asyncio

import pytest

from metastable.explorer import limits
from metastable.explorer.outbox import Outbox


def test_messages_go_out_in_order_and_only_so_many_wait(monkeypatch):
    monkeypatch.setattr(limits, "OUTBOX_BYTES", 10)

    async def go():
        reads, sent = asyncio.Event(), []

        async def send(message):
            await reads.wait()
            sent.append(message)

        outbox = Outbox(send)
        for message in ("aaaa", b"bbbb"):
            await outbox.put(message, "run")
        late = asyncio.ensure_future(outbox.put("cccc", "other"))
        await asyncio.sleep(0.01)
        assert not late.done(), "there is no room for it"
        await outbox.drop("run")
        await late
        reads.set()
        while len(sent) < 2:
            await asyncio.sleep(0)
        # The first was on its way already; the second was dropped.
        assert sent == ["aaaa", "cccc"]
        await outbox.close()

    asyncio.run(go())


def test_a_page_that_went_away_is_noticed_by_whoever_still_writes(monkeypatch):
    monkeypatch.setattr(limits, "OUTBOX_BYTES", 4)

    async def go():
        async def send(message):
            raise ConnectionError

        outbox = Outbox(send)
        await outbox.put("aaaa")
        while not outbox._gone:
            await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            await outbox.put("aaaa")
        await outbox.close()

    asyncio.run(go())
