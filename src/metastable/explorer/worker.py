"""A worker process: orders come in on standard input, messages go out on standard output.

Every message is a length (uint32, big-endian), a kind (`JSON` or `BINARY`) and that many bytes. The process ends when its input
does, so it never outlives the server. It is started as `python -m metastable.explorer.worker`.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import traceback
import warnings
from queue import SimpleQueue
from typing import Any, BinaryIO

from metastable.errors import StoppedEarlyWarning

FRAME = struct.Struct(">IB")
JSON, BINARY = 0, 1


def read(stream: BinaryIO) -> dict[str, Any] | None:
    """The next order, or None at the end of the input."""
    head = stream.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    size, _ = FRAME.unpack(head)
    body = stream.read(size)
    return json.loads(body) if len(body) == size else None


def encode(message: dict[str, Any] | bytes) -> bytes:
    """A message with its length and kind in front."""
    from metastable.explorer.protocol import dumps

    body = message if isinstance(message, bytes) else dumps(message).encode()
    return FRAME.pack(len(body), BINARY if isinstance(message, bytes) else JSON) + body


def warm_up(thorough: bool = False) -> None:
    """Load compiled code (on a new machine: compile it) before anybody waits for it; `thorough`: also for long runs."""
    import numpy as np

    from metastable import analysis, sphere
    from metastable.model import Attention
    from metastable.run import simulate

    for dim in (2, 3):
        start = sphere.uniform(4, dim=dim, seed=0)
        run = simulate(Attention(dim=dim, beta=4.0), start, until=1.0, progress=False)
        analysis.renyi_centers(start, 0.5)
        analysis.consumed(run.final, np.array([0]), 0.1)
        analysis.cluster_labels(run.final, radius=0.1)
        if thorough:
            simulate(Attention(dim=dim, beta=4.0), start, until=10.0, method="rodas", progress=False)


class Cancelled(Exception):
    """The order that is being carried out is no longer wanted."""


def serve(source: BinaryIO, sink: BinaryIO, thorough: bool = False) -> None:
    """Carry out orders until the input ends. An order that is cancelled stops at its next message."""
    orders: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    cancelled: set[int] = set()

    def listen() -> None:
        while (order := read(source)) is not None:
            if "cancel" in order:
                cancelled.add(order["cancel"])
            else:
                orders.put(order)
        orders.put(None)
        # Nobody is left to read the result: do not finish a long computation for nothing.
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    try:
        warm_up(thorough)
    except Exception:  # whatever it is, it will be told to the page with the run that needs it
        traceback.print_exc()
    _send(sink, {"type": "ready"})
    while (order := orders.get()) is not None:
        _carry_out(order, sink, cancelled)
        cancelled.discard(order["number"])


def _send(sink: BinaryIO, message: dict[str, Any] | bytes) -> None:
    sink.write(encode(message))
    sink.flush()


def _carry_out(order: dict[str, Any], sink: BinaryIO, cancelled: set[int]) -> None:
    from metastable.errors import MetastableError
    from metastable.explorer import job

    reply: dict[str, Any] = {"type": "finished", "number": order["number"]}
    try:
        for message in job.perform(order):
            if order["number"] in cancelled:
                raise Cancelled
            _send(sink, message)
    except Cancelled:
        pass
    except MetastableError as reason:
        reply["error"] = str(reason)
    except MemoryError:
        reply["error"] = "there is not enough memory for this run; take fewer tokens or a shorter horizon"
    except Exception as reason:  # a bug must not take the server's other pages down with it
        traceback.print_exc()
        reply["error"] = f"the run failed unexpectedly ({type(reason).__name__}: {reason})"
    reply["known"] = job.remembered()
    _send(sink, reply)


def main() -> None:
    """Entry point: keep standard output for messages and send everything that is printed to standard error."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    warnings.simplefilter("ignore", StoppedEarlyWarning)  # the page says it
    try:
        serve(sys.stdin.buffer, sink, "thorough" in sys.argv[1:])
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)


if __name__ == "__main__":
    main()
