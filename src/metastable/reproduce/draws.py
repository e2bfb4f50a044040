"""Random draws for recipes: independent of the order and of the number of workers."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from metastable.errors import ConvergenceError
from metastable.reproduce.recipe import Report, Settings

if TYPE_CHECKING:
    import xarray as xr

    from metastable.run import Run

Item = TypeVar("Item")
Value = TypeVar("Value")


def seeds(settings: Settings, name: str, count: int) -> list[int]:
    """`count` seeds for the draws of the recipe (or part of it) called `name`; the first k do not depend on `count`."""
    root = np.random.SeedSequence(settings.seed, spawn_key=(zlib.crc32(name.encode()),))
    return [int(child.generate_state(1)[0]) for child in root.spawn(count)]


def each(function: Callable[[Item], Value], items: Sequence[Item], report: Report) -> list[Value]:
    """`[function(item) for item in items]` on all processors, in order; tells `report` the fraction that is done.

    Threads, not processes: the compiled engines release the interpreter lock, and nothing has to be pickled.
    """
    values: dict[int, Value] = {}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        waiting = {pool.submit(function, item): index for index, item in enumerate(items)}
        try:
            for done in as_completed(waiting):
                values[waiting[done]] = done.result()
                report(len(values) / len(items))
        except BaseException:
            for future in waiting:
                future.cancel()
            raise
    return [values[index] for index in range(len(items))]


def part(report: Report, first: float, last: float) -> Report:
    """A report for the part of the work between the fractions `first` and `last`."""
    return lambda fraction: report(first + (last - first) * fraction)


def complete(stats: xr.Dataset) -> xr.Dataset:
    """An ensemble that Ctrl-C cut short is no result: it stops the item, as it would anywhere else."""
    if stats.attrs["status"] == "interrupted":
        raise KeyboardInterrupt
    return stats


def whole(run: Run) -> Run:
    """A run that ended before its horizon is no result either: what was not reached must not be counted as if nothing had happened."""
    if run.status != "success":
        raise ConvergenceError(
            f"a run ended at t = {run.end:g} ({run.status}: {run.message}); ask for a shorter horizon or another method"
        )
    return run


def gaussian_pair(dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random Q and K with independent standard normal entries."""
    generator = np.random.default_rng(seed)
    return generator.standard_normal((dim, dim)), generator.standard_normal((dim, dim))


def rotation(dim: int, seed: int) -> np.ndarray:
    """A random orthogonal matrix (Haar)."""
    factor, triangle = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))
    return factor * np.sign(np.diag(triangle))
