"""Tables of sums that series are made of: a line for every block of tokens, a column for every number that is summed.

A block of threads adds up what its tokens contribute (`make_fold`), then the lines are added up: to those before each one
(`make_scan`, causal masks) or to one total (`make_collect`, tokens that see one another wholly). The order of additions is fixed, so
results do not depend on scheduling.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from metastable.kernels.cuda.device import SIMULATED
from metastable.kernels.cuda.intrinsics import Arithmetic, cuda, inlined

CHUNK = 8 if SIMULATED else 64
"""Threads per block."""

BATCH = 4 if SIMULATED else 16
"""Modes that are summed at a time; two numbers each."""

QUARTERS = 4
"""Parts in which the threads of a block add up what they have put down."""

VALUES, LINE = 2 * BATCH, CHUNK + 1
STORAGE = VALUES * LINE
"""Shared memory of a block: a line for every value, one longer than there are threads, so that they meet no bank twice."""

SEGMENT = 128
"""Lines of a table that one thread of a scan adds up."""


@lru_cache(maxsize=2)
def make_fold(arithmetic: Arithmetic) -> Any:
    """A part of kernels: `fold(shared, quarters, thread, mode, modes, row)` adds up what the threads of a block have for each of the
    2 `BATCH` values of modes from `mode` on, and writes it to its `row` of the table. The block has just been synchronised."""
    real = arithmetic.real

    @inlined
    def fold(shared, quarters, thread, mode, modes, row):
        item = thread
        while item < VALUES * QUARTERS:
            value, quarter = np.int32(item // QUARTERS), np.int32(item % QUARTERS)
            some = real(0)
            for i in range(CHUNK // QUARTERS):
                some += shared[value * np.int32(LINE) + quarter * np.int32(CHUNK // QUARTERS) + i]
            quarters[value, quarter] = some
            item += np.int32(CHUNK)
        cuda.syncthreads()
        item = thread
        while item < VALUES:
            if 2 * mode + item < 2 * modes:
                early, late = quarters[item, 0] + quarters[item, 1], quarters[item, 2] + quarters[item, 3]
                row[2 * mode + item] = early + late
            item += np.int32(CHUNK)

    return fold


class Scan(NamedTuple):
    """Kernels that turn a table into sums over the lines before each one: segments of lines are summed (`totals(table, length,
    segments)`), the segments are scanned (`offsets(segments)`), and each segment is scanned from its offset (`prefix(table, length,
    segments)`)."""

    totals: Any
    offsets: Any
    prefix: Any


@lru_cache(maxsize=2)
def make_scan(arithmetic: Arithmetic) -> Scan:
    """The kernels of a scan, in order."""
    real = arithmetic.real

    @cuda.jit
    def totals(table, length, segments):
        column, segment = np.int32(cuda.grid(1)), np.int32(cuda.blockIdx.y)
        if column < table.shape[1]:
            total = real(0)
            for chunk in range(segment * length, min((segment + 1) * length, table.shape[0])):
                total += table[chunk, column]
            segments[segment, column] = total

    @cuda.jit
    def offsets(segments):
        column = np.int32(cuda.grid(1))
        if column < segments.shape[1]:
            running = real(0)
            for segment in range(segments.shape[0]):
                total = segments[segment, column]
                segments[segment, column] = running
                running += total

    @cuda.jit
    def prefix(table, length, segments):
        column, segment = np.int32(cuda.grid(1)), np.int32(cuda.blockIdx.y)
        if column < table.shape[1]:
            running = segments[segment, column]
            for chunk in range(segment * length, min((segment + 1) * length, table.shape[0])):
                total = table[chunk, column]
                table[chunk, column] = running
                running += total

    return Scan(totals, offsets, prefix)


@lru_cache(maxsize=2)
def make_collect(arithmetic: Arithmetic) -> Any:
    """Kernel `collect(table, extra, total)`: the sum over all lines, and of `extra` (the frozen tokens), a block to a column."""
    real, number = arithmetic.real, arithmetic.number

    @cuda.jit
    def collect(table, extra, total):
        shared = cuda.shared.array(CHUNK, number)
        thread, column = np.int32(cuda.threadIdx.x), np.int32(cuda.blockIdx.x)
        some = real(0)
        block = thread
        while block < table.shape[0]:
            some += table[block, column]
            block += np.int32(CHUNK)
        shared[thread] = some
        cuda.syncthreads()
        half = np.int32(CHUNK // 2)
        while half > 0:
            if thread < half:
                shared[thread] += shared[thread + half]
            cuda.syncthreads()
            half = np.int32(half // np.int32(2))
        if thread == 0:
            total[column] = shared[0] + extra[column]

    return collect
