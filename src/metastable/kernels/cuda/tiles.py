"""Attention sums of long sequences for large dimension: two small matrix products per tile, as in flash attention.

A block of 16 x 16 threads owns `ROWS` rows. For each tile of columns it forms the logits (each thread a patch of rows and
columns), turns them into weights in shared memory, and adds weights times tokens to sums held in registers. Coordinates are
staged through shared memory, `depth` at a time. In single precision and up to dimension 64 all of them fit: the queries then stay
there for all tiles, and the next tile of columns is fetched into registers while the present one is worked on, so that the
latency of device memory is hidden. Units, chunks, intervals and bounds are those of `pairs.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from metastable.kernels.cuda.intrinsics import (
    ALIGNMENT,
    Arithmetic,
    cuda,
    inlined,
    kernel,
    load_four,
    load_two,
    store_four,
)
from metastable.kernels.cuda.pairs import OUTER_START, OUTER_STOP

SIDE = 16
"""Threads along each side of a block."""

THREADS = SIDE * SIDE

PATCH = 4
"""Rows per thread."""

ROWS = SIDE * PATCH
"""Rows per block."""

SLICE = 32
"""Coordinates that are staged at a time where not all of them fit."""

MARGIN = 4
"""Numbers of padding behind each line in shared memory, against bank conflicts."""

WEIGHT_LINE = ROWS + MARGIN
"""Numbers per column in the table of weights."""


class Shape(NamedTuple):
    """Sizes of a block, what 48 KiB of shared memory hold: columns per tile, coordinates that are staged at a time, and whether
    rows stay in shared memory and columns are fetched ahead."""

    columns: int
    depth: int
    resident: bool

    @property
    def line(self) -> int:
        """Numbers per token in shared memory."""
        return self.depth + MARGIN


def padding(dim: int) -> int:
    """Numbers per token in device memory: a multiple of `SLICE`."""
    return -(-dim // SLICE) * SLICE


def shape_for(arithmetic: Arithmetic, dim: int) -> Shape:
    """The shape of the blocks for a precision and a dimension."""
    pad = padding(dim)
    if arithmetic.real is not np.float32:
        return Shape(32, SLICE, False)
    return Shape(64 if pad == SLICE else 48, pad, True) if pad <= 2 * SLICE else Shape(64, SLICE, False)


class Place(NamedTuple):
    """Where a thread stands in its block, and the first of its rows."""

    across: Any
    down: Any
    row: Any


class Own(NamedTuple):
    """What a thread knows of each of its rows: shift, sum of its weights, and the columns that it sees."""

    shift: Any
    weight: Any
    start: Any
    stop: Any


def _make_products(arithmetic: Arithmetic, shape: Shape):
    """Device functions for the products of one slice: logits += rows times columns, totals += weights times columns."""
    number, depth, line = arithmetic.number, shape.depth, shape.line
    columns, own_columns, own = shape.columns, shape.columns // SIDE, shape.depth // SIDE
    unroll = 4 if shape.resident else 2

    @inlined
    def multiply(left, right, logits, place):
        a = cuda.local.array((PATCH, 4), number)
        row, column = np.int32(place.down * np.int32(PATCH * line)), np.int32(place.across * np.int32(line))
        at = np.int32(0)
        while at < np.int32(depth):
            for r in range(PATCH):
                a[r, 0], a[r, 1], a[r, 2], a[r, 3] = load_four(left, np.int32(row + np.int32(r * line) + at))
            for c in range(own_columns):
                b0, b1, b2, b3 = load_four(right, np.int32(column + np.int32(c * SIDE * line) + at))
                for r in range(PATCH):
                    logits[r, c] += a[r, 0] * b0
                    logits[r, c] += a[r, 1] * b1
                    logits[r, c] += a[r, 2] * b2
                    logits[r, c] += a[r, 3] * b3
            at = np.int32(at + np.int32(4))

    @inlined
    def accumulate(weights, right, total, part, place):
        # Sums of this part in registers while the columns go by.
        sums, x = cuda.local.array((PATCH, own), number), cuda.local.array(own, number)
        for r in range(PATCH):
            for c in range(own):
                sums[r, c] = total[r, own * part + c]
        column = np.int32(0)
        while column < np.int32(columns):
            for _ in range(unroll):
                at = np.int32(column * np.int32(WEIGHT_LINE) + place.down * np.int32(PATCH))
                w0, w1, w2, w3 = load_four(weights, at)
                at = np.int32(column * np.int32(line) + place.across * np.int32(own))
                for c in range(0, own, 2):
                    x[c], x[c + 1] = load_two(right, np.int32(at + np.int32(c)))
                for c in range(own):
                    sums[0, c] += w0 * x[c]
                    sums[1, c] += w1 * x[c]
                    sums[2, c] += w2 * x[c]
                    sums[3, c] += w3 * x[c]
                column = np.int32(column + np.int32(1))
        for r in range(PATCH):
            for c in range(own):
                total[r, own * part + c] = sums[r, c]

    return multiply, accumulate


def _make_copies(arithmetic: Arithmetic, pad: int, shape: Shape):
    """Device functions that move `depth` coordinates of tokens, zeros behind the last one.

    `stage` copies `count` tokens from device to shared memory; `fetch` and `put` do the same for a tile of columns in two
    halves, by way of registers (`turns` times four).
    """
    fours, line = shape.depth // 4, shape.line
    turns = shape.columns * fours // THREADS
    zero = arithmetic.real(0)

    @inlined
    def split(item):
        return np.int32(item // np.int32(fours)), np.int32(np.int32(item % np.int32(fours)) * np.int32(4))

    @inlined
    def stage(source, start, tokens, offset, target, count):
        item = np.int32(cuda.threadIdx.x)
        while item < np.int32(count * fours):
            token, group = np.int32(item // np.int32(fours)), np.int32(item % np.int32(fours))
            a, b, c, d = zero, zero, zero, zero
            if np.int32(start + token) < tokens:
                place = np.int32(np.int32(start + token) * np.int32(pad) + offset + group * np.int32(4))
                a, b, c, d = load_four(source, place)
            store_four(target, np.int32(token * np.int32(line) + group * np.int32(4)), a, b, c, d)
            item = np.int32(item + np.int32(THREADS))

    @inlined
    def fetch(source, start, tokens, hold):
        for turn in range(turns):
            token, at = split(np.int32(np.int32(cuda.threadIdx.x) + np.int32(turn * THREADS)))
            a, b, c, d = zero, zero, zero, zero
            if np.int32(start + token) < tokens:
                a, b, c, d = load_four(source, np.int32(np.int32(start + token) * np.int32(pad) + at))
            hold[turn, 0], hold[turn, 1], hold[turn, 2], hold[turn, 3] = a, b, c, d

    @inlined
    def put(hold, target):
        for turn in range(turns):
            token, at = split(np.int32(np.int32(cuda.threadIdx.x) + np.int32(turn * THREADS)))
            a, b, c, d = hold[turn, 0], hold[turn, 1], hold[turn, 2], hold[turn, 3]
            store_four(target, np.int32(token * np.int32(line) + at), a, b, c, d)

    return stage, fetch, put, turns


def _make_weigh(arithmetic: Arithmetic, shape: Shape, biased: bool):
    """A device function that turns the logits of a patch into weights in shared memory, and adds them up per row."""
    real, number, exp2, zero = arithmetic.real, arithmetic.number, arithmetic.exp2, arithmetic.real(0)
    own_columns = shape.columns // SIDE

    @inlined
    def weigh(logits, weights, own, slope, tile, place):
        w = cuda.local.array(PATCH, number)
        for c in range(own_columns):
            across = np.int32(place.across + np.int32(c * SIDE))
            column = np.int32(tile + across)
            for r in range(PATCH):
                logit = logits[r, c]
                if biased:
                    logit -= slope * real(abs(np.int32(place.row + np.int32(r) - column)))
                value = exp2(logit)
                w[r] = value if column >= own.start[r] and column < own.stop[r] else zero
                own.weight[r] += w[r]
            target = np.int32(across * np.int32(WEIGHT_LINE) + place.down * np.int32(PATCH))
            store_four(weights, target, w[0], w[1], w[2], w[3])

    return weigh


def make_kernel(arithmetic: Arithmetic, dim: int, biased: bool, **options):
    """The kernel for tokens in R^dim; arguments as in `pairs.make_kernel`."""
    number, zero = arithmetic.number, arithmetic.real(0)
    pad, shape = padding(dim), shape_for(arithmetic, dim)
    columns, depth, resident = shape
    line, slices, own_columns, each = shape.line, pad // depth, columns // SIDE, depth // SIDE
    every, left_size, right_size, weight_size = each * slices, ROWS * line, columns * line, columns * WEIGHT_LINE
    multiply, accumulate = _make_products(arithmetic, shape)
    stage, fetch, put, turns = _make_copies(arithmetic, pad, shape)
    weigh = _make_weigh(arithmetic, shape, biased)

    @kernel(**options)
    def attend(x, query, shift, intervals, bounds, slope, first, chunk, partial):
        left = cuda.shared.array(left_size, number, alignment=ALIGNMENT)
        right = cuda.shared.array(right_size, number, alignment=ALIGNMENT)
        weights = cuda.shared.array(weight_size, number, alignment=ALIGNMENT)
        logits, total = cuda.local.array((PATCH, own_columns), number), cuda.local.array((PATCH, every), number)
        hold = cuda.local.array((turns, 4), number)
        own = Own(
            cuda.local.array(PATCH, number),
            cuda.local.array(PATCH, number),
            cuda.local.array(PATCH, numba.int32),
            cuda.local.array(PATCH, numba.int32),
        )
        tokens, thread = np.int32(shift.shape[0]), np.int32(cuda.threadIdx.x)
        across, down = np.int32(thread % np.int32(SIDE)), np.int32(thread // np.int32(SIDE))
        block, piece = np.int32(cuda.gridDim.x - 1 - cuda.blockIdx.x), np.int32(cuda.blockIdx.y)
        base = np.int32(first + block * np.int32(ROWS))
        row = np.int32(base + down * np.int32(PATCH))
        place = Place(across, down, row)
        piece_start = np.int32(piece * chunk)
        piece_stop = min(np.int32(piece_start + chunk), tokens)
        for r in range(PATCH):
            own.weight[r], own.shift[r] = zero, zero
            if row + r < tokens:
                own.shift[r] = shift[row + r]
            for c in range(every):
                total[r, c] = zero
        if resident:
            stage(query, base, tokens, np.int32(0), left, ROWS)
        for interval in range(2):
            for r in range(PATCH):
                own.start[r], own.stop[r] = np.int32(0), np.int32(0)
                if row + r < tokens:
                    own.start[r] = intervals[row + r, interval, 0]
                    own.stop[r] = min(intervals[row + r, interval, 1], piece_stop)
            outer_start = max(bounds[block, interval, OUTER_START], piece_start)
            outer_stop = min(bounds[block, interval, OUTER_STOP], piece_stop)
            tile = np.int32(outer_start - outer_start % np.int32(columns))
            if resident:
                fetch(x, tile, tokens, hold)
            while tile < outer_stop:
                for r in range(PATCH):
                    for c in range(own_columns):
                        logits[r, c] = -own.shift[r]
                for part in range(slices):
                    cuda.syncthreads()
                    if resident:
                        put(hold, right)
                    else:
                        stage(query, base, tokens, np.int32(part * depth), left, ROWS)
                        stage(x, tile, tokens, np.int32(part * depth), right, columns)
                    cuda.syncthreads()
                    if resident:
                        fetch(x, np.int32(tile + np.int32(columns)), tokens, hold)
                    multiply(left, right, logits, place)
                weigh(logits, weights, own, slope, tile, place)
                for part in range(slices):
                    cuda.syncthreads()
                    if slices > 1:
                        stage(x, tile, tokens, np.int32(part * depth), right, columns)
                        cuda.syncthreads()
                    accumulate(weights, right, total, part, place)
                tile = np.int32(tile + np.int32(columns))
        cuda.syncthreads()
        # The weights of a row are spread over the threads of a line: add them up in shared memory, always in the same order.
        for r in range(PATCH):
            left[np.int32(down * np.int32(PATCH) + r) * np.int32(line) + across] = own.weight[r]
        cuda.syncthreads()
        if thread < np.int32(ROWS) and np.int32(base + thread) < tokens:
            together = zero
            for c in range(SIDE):
                together += left[thread * np.int32(line) + c]
            partial[piece, dim, base + thread] = together
        for r in range(PATCH):
            if row + r < tokens:
                for c in range(every):
                    coordinate = np.int32(c // each * depth + c % each) + across * np.int32(each)
                    if coordinate < np.int32(dim):
                        partial[piece, coordinate, row + r] = total[r, c]

    return attend
