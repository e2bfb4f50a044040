"""Numba's `njit`, with on-disk caches that notice every change of the package.

Numba ties cached machine code to the file that defines a function. Our functions inline or call (through addresses, with
structures that another file lays out) functions of other files, so code that was cached before one of those changed would be
wrong, or crash. Here a cache entry is tied to all compiled rooms of the package together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

LANES_CHOSEN = int(os.environ.get("METASTABLE_LANES") or 0)
"""Width of vectors that was asked for (2, 4, 8, ...), 0: what fits the processor. Code of another width is not this code."""
ROOMS = ("kernels", "integrate", "analysis")
"""Folders of the package that hold compiled code."""


@cache
def source_stamp() -> tuple[int, int, int, int]:
    """(files, newest change in ns, total size, chosen width) of everything that compiled code is made of."""
    root = Path(__file__).parent
    status = [path.stat() for room in ROOMS for path in (root / room).rglob("*.py")]
    return len(status), max(entry.st_mtime_ns for entry in status), sum(entry.st_size for entry in status), LANES_CHOSEN


def njit(function: Callable | None = None, **options: Any) -> Any:
    """`numba.njit`, stamped with `source_stamp`."""
    if function is None:
        return lambda inner: njit(inner, **options)
    dispatcher = numba.njit(**options)(function)
    # Not part of Numba's interface: where a version keeps its cache elsewhere, its own rule (one file) holds.
    store = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if store is not None and hasattr(store, "_source_stamp"):
        store._source_stamp = source_stamp()
    return dispatcher
