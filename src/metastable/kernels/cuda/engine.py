"""Right-hand sides on the GPU: which kernels run in which order, and the memory they share."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cuda import device, pairs, rows, series, support, tiles
from metastable.kernels.cuda.device import THREADS, blocks
from metastable.kernels.cuda.intrinsics import ARITHMETIC, cuda
from metastable.model import Attention

PAIR_THREADS = 8 if device.SIMULATED else 128
"""Threads per block of `pairs.py`, which is also its tile width."""

UNITS_PER_MULTIPROCESSOR = {"small": 256, "large": 32}
"""Units of work that keep a multiprocessor busy to the end, for small and large dimension (where partial sums are long)."""

PARTIAL_BYTES = 2**31
"""Largest table of partial sums."""

SEGMENT = 128
"""Chunks per segment of the scan of `series.py`."""


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
        frozen, counts = np.zeros((0, model.dim + 1)), np.zeros(0)
        if model.frozen is not None:
            frozen = np.column_stack([model.frozen.tokens, np.asarray(model.frozen.weights)])
        if model.weights == "unnormalized":
            counts = (table[:, :, 1] - table[:, :, 0]).sum(axis=1) + frozen[:, -1].sum()
        self.frozen, self.counts = cuda.to_device(frozen.astype(self.real)), cuda.to_device(counts.astype(self.real))
        self.slopes = [self.real(support.LOG2E * slope) for slope in model.slopes]
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
                partial, query, shift, frozen, self.matrices, number, self.counts, first, self.drift
            )


def _asks_for_length(model: Attention) -> bool:
    """True when the norm needs the part of the attention sum along a token."""
    return any(law.length_power != 0 or law.radial != 0 for law in model.norm.laws)


class SeriesSums(_Launcher):
    """Velocity on the circle by Fourier series: one total for those who see one another wholly, prefix sums between chunks of
    tokens for the others."""

    def __init__(self, model: Attention, tokens: int, first: int = 0, dtype: str = "float64") -> None:
        super().__init__(model, tokens, first, dtype, 2)
        beta, lengths = model.all_heads[0].beta, _asks_for_length(model)
        terms = series.coefficients(beta)
        self.modes = terms.shape[1] - 1
        self.terms = cuda.to_device(terms.astype(self.real))
        self.whole = support.whole(model, tokens)
        if self.whole < tokens:
            self.kernels = series.make_kernels(ARITHMETIC[dtype], lengths)
            self.chunks = -(-tokens // series.CHUNK)
            self.segments = -(-self.chunks // SEGMENT)
            self.shift = self.real(support.LOG2E * beta)
            self.table = cuda.device_array((self.chunks, 2 * self.modes), self.real)
            self.offsets = cuda.device_array((self.segments, 2 * self.modes), self.real)
        if self.whole > first:
            self._make_total(beta, lengths)

    def _make_total(self, beta: float, lengths: bool) -> None:
        """Memory and numbers of those who see one another wholly, frozen tokens among them."""
        self.total_kernels = series.make_total(ARITHMETIC[self.dtype], lengths)
        blocks_of_all = -(-self.whole // series.BLOCK)
        self.total_table = cuda.device_array((blocks_of_all, 2 * self.modes), self.real)
        self.total = cuda.device_array(2 * self.modes, self.real)
        extra, count = np.zeros(2 * self.modes), float(self.whole)
        frozen = self.model.frozen
        if frozen is not None:
            weights, angle = np.asarray(frozen.weights), np.arctan2(frozen.tokens[:, 1], frozen.tokens[:, 0])
            phase = np.outer(np.arange(1, self.modes + 1), angle)
            extra = np.stack([np.cos(phase) @ weights, np.sin(phase) @ weights], axis=1).ravel()
            count += float(weights.sum())
        fixed = count * math.exp(-beta) if self.model.weights == "unnormalized" else 0.0
        self.extra, self.count, self.fixed = cuda.to_device(extra.astype(self.real)), self.real(count), self.real(fixed)

    def attention(self) -> None:
        if self.whole < self.tokens:
            self._prefix_sums()
        if self.whole > self.first:
            self._one_total()

    def _prefix_sums(self) -> None:
        sums, totals, offsets, prefix, evaluate = self.kernels
        columns, first = blocks(2 * self.modes), np.int32(max(self.first, self.whole))
        grid = (columns, self.segments)
        sums[self.chunks, series.CHUNK](self.x, np.int32(self.modes), self.table)
        totals[grid, THREADS](self.table, np.int32(SEGMENT), self.offsets)
        offsets[columns, THREADS](self.offsets)
        prefix[grid, THREADS](self.table, np.int32(SEGMENT), self.offsets)
        evaluate[self.chunks, series.CHUNK](self.x, self.table, self.terms, self.shift, first, self.drift)

    def _one_total(self) -> None:
        gather, collect, evaluate = self.total_kernels
        last, grid = np.int32(self.whole), -(-(self.whole - int(self.first)) // series.BLOCK)
        gather[len(self.total_table), series.CHUNK](self.x, last, np.int32(self.modes), self.total_table)
        collect[2 * self.modes, series.CHUNK](self.total_table, self.extra, self.total)
        evaluate[grid, series.CHUNK](
            self.x, self.total, self.terms, self.count, self.fixed, self.first, last, self.drift
        )


def make(model: Attention, tokens: int, first: int, interaction: str, dtype: str) -> DirectSums | SeriesSums:
    """The right-hand side for a model, with its device memory allocated."""
    width = max(model.width, 4) * np.dtype(np.float64).itemsize
    fix = "use fewer tokens or engine='cpu'"
    purpose = f"a right-hand side for {tokens} tokens in dimension {model.dim}"
    with device.allocating(16 * tokens * width, purpose, fix):
        return (SeriesSums if interaction == "series" else DirectSums)(model, tokens, first, dtype)
