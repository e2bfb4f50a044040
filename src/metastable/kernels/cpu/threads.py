"""How many threads compiled code may use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numba

from metastable import _checks
from metastable.errors import InvalidInputError

_launch = threading.RLock()
"""Numba's plain threading layer runs one parallel region at a time."""


def thread_count(threads: int | None) -> int:
    """`threads`, or all that Numba was started with (NUMBA_NUM_THREADS) for None; ask before calling compiled code.

    Numba launches its threads when a parallel loop is compiled, but not when a function that merely calls one is loaded from the
    cache; asking for their number launches them. Without that such a function crashes.
    """
    numba.get_num_threads()
    available = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    if threads is None:
        return available
    threads = _checks.count(threads, "threads")
    if threads > available:
        raise InvalidInputError(
            f"threads={threads}, but Numba was started with {available}; set NUMBA_NUM_THREADS={threads} before Python starts"
        )
    return threads


@contextmanager
def using(threads: int | None) -> Iterator[None]:
    """Run compiled parallel code on that many threads (None: there is none to run)."""
    if threads is None:
        yield
        return
    with _launch:
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        try:
            yield
        finally:
            numba.set_num_threads(before)
