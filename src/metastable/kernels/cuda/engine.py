"""Right-hand sides on the GPU: which kernels run in which order, and the memory they share."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels import reference
from metastable.kernels.cuda import device, pairs, rows, support, tables, tiles
from metastable.kernels.cuda.device import THREADS, blocks
from metastable.kernels.cuda.harmonics import Harmonics
from metastable.kernels.cuda.intrinsics import ARITHMETIC, cuda
from metastable.kernels.cuda.series import Fourier
from metastable.kernels.expansion import whole
from metastable.kernels.minimax import LOG2E
from metastable.model import Attention

PAIR_THREADS = 8 if device.SIMULATED else 128
"""Threads per block of `pairs.py`, which is also its tile width."""

UNITS_PER_MULTIPROCESSOR = {"small": 256, "large": 32}
"""Units of work that keep a multiprocessor busy to the end, for small and large dimension (where partial sums are long)."""

PARTIAL_BYTES = 2**31
"""Largest table of partial sums."""


def rows_per_thread(dim: int, dtype: str) -> int:
    """Rows that one thread of `pairs.py` holds in registers (measured: see docs/performance-gpu.md)."""
    return 4 if dim <= (8 if dtype == "float32" else 4) else 2


@lru_cache(maxsize=64)
def pair_kernel(dtype: str, dim: int, biased: bool) -> Any:
    """The compiled kernel for the pair sums."""
    arithmetic = ARITHMETIC[dtype]
    if dim > pairs.LARGEST_DIM:
        return tiles.make_kernel(arithmetic, dim, biased, launch_bounds=(tiles.THREADS, 2))
    bounds = (PAIR_THREADS, (4 if dtype == "float32" else 6) if dim <= 4 else 1)
    return pairs.make_kernel(arithmetic, dim, rows_per_thread(dim, dtype), PAIR_THREADS, biased, launch_bounds=bounds)


def block_bounds(intervals: np.ndarray, first: int, height: int) -> np.ndarray:
    """(row blocks, 2, 4) int32: for both intervals of the rows of a block the columns of `pairs.OUTER_START` and the others.

    The outer range covers whoever is seen by anybody, the inner one is seen by everybody; empty when a row sees nobody there.
    """
    blocks_at = np.arange(first, len(intervals), height) - first
    begin, end = intervals[first:, :, 0], intervals[first:, :, 1]
    empty, large = begin >= end, np.iinfo(np.int32).max
    outer_start = np.minimum.reduceat(np.where(empty, large, begin), blocks_at)
    result = np.empty((len(blocks_at), 2, 4), dtype=np.int32)
    result[..., pairs.OUTER_START] = np.where(outer_start == large, 0, outer_start)
    result[..., pairs.INNER_START] = np.maximum.reduceat(np.where(empty, 1, begin), blocks_at)
    result[..., pairs.INNER_STOP] = np.minimum.reduceat(np.where(empty, 0, end), blocks_at)
    result[..., pairs.OUTER_STOP] = np.maximum.reduceat(np.where(empty, 0, end), blocks_at)
    return result


class _Launcher:
    """What direct sums and series share: normalised tokens in, norm out."""

    def __init__(self, model: Attention, tokens: int, first: int, dtype: str, pad: int) -> None:
        self.model, self.tokens, self.first, self.dtype, self.pad = model, tokens, np.int32(first), dtype, pad
        self.real = ARITHMETIC[dtype].real
        self.row_blocks = blocks(tokens - first)
        self.rows = rows.make_kernels(ARITHMETIC[dtype], model.dim, pad)
        self.x = cuda.device_array(tokens * pad, self.real)
        self.drift = cuda.device_array((tokens, model.dim), self.real)
        self.host_state: Any = None

    def attention(self) -> None:
        """Fill `drift` with the attention sums at `x`."""
        raise NotImplementedError

    def evaluate(self, t: float, y: Any, out: Any) -> None:
        """Velocity at the packed state `y` on the device, into `out` on the device (rows below `first` untouched)."""
        self.rows.prepare[blocks(self.tokens), THREADS](y, self.x)
        self.attention()
        law = self.model.norm.law(t)
        # What depends on depth is an argument, the rest is compiled in.
        finish = rows.make_finish(self.model.dim, self.pad, law._replace(amplitude=1.0, decay=0.0))
        pace = np.float64(law.amplitude / law.depth(t))
        finish[self.row_blocks, THREADS](y, self.x, self.drift, pace, self.first, out)

    def __call__(self, t: float, y: FloatArray, out: FloatArray) -> None:
        """The velocity on host arrays: copied to the device and back."""
        if self.host_state is None:
            shape = (self.tokens, self.model.width)
            self.host_state = cuda.device_array(shape, np.float64), cuda.device_array(shape, np.float64)
        state, velocity = self.host_state
        state.copy_to_device(np.ascontiguousarray(y, dtype=np.float64))
        self.evaluate(float(t), state, velocity)
        out[self.first :] = velocity.copy_to_host()[self.first :]


class DirectSums(_Launcher):
    """Velocity by direct sums over all visible pairs."""

    def __init__(self, model: Attention, tokens: int, first: int = 0, dtype: str = "float64") -> None:
        small = model.dim <= pairs.LARGEST_DIM
        super().__init__(model, tokens, first, dtype, pairs.padding(model.dim) if small else support.LARGEST_DIM)
        self.threads = PAIR_THREADS if small else tiles.THREADS
        height = PAIR_THREADS * rows_per_thread(model.dim, dtype) if small else tiles.ROWS
        column_step = PAIR_THREADS if small else tiles.columns_of(ARITHMETIC[dtype])
        ranges = model.mask.intervals(tokens)
        assert ranges is not None
        table = np.ascontiguousarray(ranges, dtype=np.int32)
        self.grid_rows = -(-(tokens - first) // height)
        self.chunk, self.chunks = self._chunks(column_step)
        self.intervals = cuda.to_device(table)
        self.bounds = cuda.to_device(block_bounds(table, first, height))
        self.query = cuda.device_array(tokens * self.pad, self.real)
        self.shift = cuda.device_array(tokens, self.real)
        self.partial = cuda.device_array((self.chunks, model.dim + 1, tokens), self.real)
        self.matrices = cuda.to_device(support.matrices(model).astype(self.real))
        frozen, counts = np.zeros((0, model.dim + 1)), np.zeros((len(model.all_heads), 0))
        if model.frozen is not None:
            frozen = np.column_stack([model.frozen.tokens, np.asarray(model.frozen.weights)])
        if model.weights == "unnormalized":
            counts = np.exp(reference.log_divisors(model, tokens))
        self.frozen = cuda.to_device(frozen.astype(self.real))
        self.counts = [cuda.to_device(count.astype(self.real)) for count in counts]
        self.slopes = [self.real(LOG2E * slope) for slope in model.slopes]
        self.exact = [
            model.weights != "unnormalized" and support.weight_gap(head) > support.LARGEST_GAP[dtype]
            for head in model.all_heads
        ]

    def _chunks(self, step: int) -> tuple[int, int]:
        """Columns per chunk and number of chunks: enough units to fill the GPU, within the memory for partial sums."""
        size = "small" if self.model.dim <= pairs.LARGEST_DIM else "large"
        units = UNITS_PER_MULTIPROCESSOR[size] * device.multiprocessors()
        wanted = max(1, min(-(-2 * units // self.grid_rows), -(-self.tokens // step)))
        each = (self.model.dim + 1) * self.tokens * np.dtype(self.real).itemsize
        wanted = max(1, min(wanted, PARTIAL_BYTES // each, 65535))
        chunk = -(-self.tokens // (wanted * step)) * step
        return chunk, -(-self.tokens // chunk)

    def attention(self) -> None:
        x, query, shift, frozen, first = self.x, self.query, self.shift, self.frozen, self.first
        grid = self.row_blocks, THREADS
        for head, slope in enumerate(self.slopes):
            number = np.int32(head)
            self.rows.ask[grid](x, self.matrices, number, first, query, shift)
            if self.exact[head]:
                self.rows.largest[grid](x, query, self.intervals, slope, frozen, first, shift)
            # The O(tokens^2) part: weighted sums over all visible tokens into `partial`.
            attend = pair_kernel(self.dtype, self.model.dim, bool(slope))[(self.grid_rows, self.chunks), self.threads]
            chunk, partial = np.int32(self.chunk), self.partial
            attend(x, query, shift, self.intervals, self.bounds, slope, first, chunk, partial)
            self.rows.combine[grid](
                partial, query, shift, frozen, self.matrices, number, self.counts[head], first, self.drift
            )


def _asks_for_length(model: Attention) -> bool:
    """True when the norm needs the part of the attention sum along a token."""
    return any(law.length_power != 0 or law.radial != 0 for law in model.norm.laws)


class SeriesSums(_Launcher):
    """Velocity by Fourier series on the circle, by harmonics on the sphere: one total for those who see one another wholly, prefix
    sums between chunks of tokens for the others."""

    def __init__(self, model: Attention, tokens: int, first: int = 0, dtype: str = "float64") -> None:
        self.series = series_of(model, dtype)
        super().__init__(model, tokens, first, dtype, self.series.pad)
        self.scan, self.collect = tables.make_scan(ARITHMETIC[dtype]), tables.make_collect(ARITHMETIC[dtype])
        self.whole = np.int32(whole(model, tokens))
        columns = self.series.columns
        if self.whole < tokens:
            lines = -(-tokens // self.series.chunk)
            self.table = cuda.device_array((lines, columns), self.real)
            self.offsets = cuda.device_array((-(-lines // tables.SEGMENT), columns), self.real)
        if self.whole > first:
            self.total_table = cuda.device_array((-(-int(self.whole) // self.series.block), columns), self.real)
            self.total = cuda.device_array(columns, self.real)
            self._add_frozen()

    def _add_frozen(self) -> None:
        """What is in every total, and what it is divided by where that is not the sum of weights."""
        extra, count, frozen = np.zeros(self.series.columns), float(self.whole), self.model.frozen
        if frozen is not None:
            weights = np.asarray(frozen.weights, dtype=float)
            extra, count = self.series.constant(np.asarray(frozen.tokens), weights), count + float(weights.sum())
        fixed = count * math.exp(-self.model.all_heads[0].beta) if self.model.weights == "unnormalized" else 0.0
        self.extra, self.count, self.fixed = cuda.to_device(extra.astype(self.real)), self.real(count), self.real(fixed)

    def attention(self) -> None:
        if self.whole < self.tokens:
            self._prefix_sums()
        if self.whole > self.first:
            self._one_total()

    def _prefix_sums(self) -> None:
        table, segments, length = self.table, self.offsets, np.int32(tables.SEGMENT)
        columns = blocks(self.series.columns)
        grid = (columns, len(segments))
        self.series.sums(self.x, table)
        self.scan.totals[grid, THREADS](table, length, segments)
        self.scan.offsets[columns, THREADS](segments)
        self.scan.prefix[grid, THREADS](table, length, segments)
        self.series.evaluate(self.x, table, max(self.first, self.whole), self.drift)

    def _one_total(self) -> None:
        self.series.gather(self.x, self.whole, self.total_table)
        self.collect[self.series.columns, tables.CHUNK](self.total_table, self.extra, self.total)
        rows = self.first, self.whole
        self.series.evaluate_total(self.x, self.total, self.count, self.fixed, rows, self.drift)


def series_of(model: Attention, dtype: str) -> Fourier | Harmonics:
    """The series of the interaction: on the circle or on the sphere."""
    return (Fourier if model.dim == 2 else Harmonics)(model.all_heads[0].beta, dtype, _asks_for_length(model))


def table_bytes(model: Attention, tokens: int, dtype: str) -> int:
    """Device memory for the sums of a series (at most: a prefix has two tables, each for its part)."""
    series = series_of(model, dtype)
    count = whole(model, tokens)
    lines = (-(-tokens // series.chunk) if count < tokens else 0) + -(-count // series.block)
    return lines * series.columns * np.dtype(dtype).itemsize


def make(model: Attention, tokens: int, first: int, interaction: str, dtype: str) -> DirectSums | SeriesSums:
    """The right-hand side for a model, with its device memory allocated."""
    kind = SeriesSums if interaction == "series" else DirectSums
    wanted = 16 * tokens * max(model.width, 4) * np.dtype(np.float64).itemsize
    if kind is SeriesSums:
        wanted += table_bytes(model, tokens, dtype)
    fix = "use fewer tokens or engine='cpu'"
    purpose = f"a right-hand side for {tokens} tokens in dimension {model.dim}"
    with device.allocating(wanted, purpose, fix):
        return kind(model, tokens, first, dtype)
