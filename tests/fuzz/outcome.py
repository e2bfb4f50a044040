"""What a call may end in: a result without NaN, or an exception of `metastable.errors`, and that soon."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from metastable.errors import MetastableError
from tests.fuzz.surface import Entry

PATIENCE = 60
"""Seconds of processor time after which a call counts as hanging: compiling takes the longest honest one half of that."""
SPARE = 6 * 2**30
"""Bytes that a call may take beyond what the process has: far more than any of these honest requests needs."""

INFINITE = (
    *("theory.spectral_gap", "theory.strong_center_time", "theory.strong_center_sufficient_time"),
    *("theory.strong_center_displacement", "MergeTree.linkage"),
)
"""Functions whose documented answer may be infinity: gaps, times, a bound that grows with the time, the height of what never merged."""


class HangError(BaseException):
    """A call did not come back. Not an `Exception`: nothing that is tested may catch it."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Bound the time and the memory of a call, where the platform can."""
    if not hasattr(signal, "SIGPROF"):
        yield
        return
    import resource

    def ring(*_: Any) -> None:
        raise HangError(f"no answer within {PATIENCE} s of processor time")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as status:
        taken = int(status.read().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGPROF, ring)
    resource.setrlimit(resource.RLIMIT_AS, (taken + SPARE, hard))
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def numbers_in(value: Any, depth: int = 0) -> Iterator[np.ndarray]:
    """The numbers that a result is made of."""
    if isinstance(value, (bool, str, bytes)) or value is None or depth > 3:
        return
    if isinstance(value, (int, float, complex, np.generic, np.ndarray)):
        array = np.asarray(value)
        if array.dtype.kind in "fc":
            yield array
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from numbers_in(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers_in(item, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from numbers_in(getattr(value, field.name, None), depth + 1)


def complaint(entry: Entry, instance: tuple[Any, ...], arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with how a call ended, or None."""
    try:
        with bounded(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = entry.function(*instance, **arguments)
    except MetastableError as error:
        return None if len(str(error)) > 10 else f"{type(error).__name__} says nothing: {error}"
    except (Exception, HangError) as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(entry.function, type):
        return None  # an object that holds what it was given; what it holds is asked when it is used
    for array in numbers_in(result):
        if np.isnan(array).any():
            return "the result holds NaN"
        if np.isinf(array).any() and entry.name not in INFINITE:
            return "the result is infinite"
    return None
