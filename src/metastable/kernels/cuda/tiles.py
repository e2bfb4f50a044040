"""Attention sums of long sequences for dimensions 17 to 32: two small matrix products per tile, as in flash attention.

A block of 16 x 16 threads owns `ROWS` rows, whose queries stay in shared memory. For each tile of columns it forms the logits (each
thread a patch of rows and columns), turns them into weights in shared memory, and adds weights times tokens to sums held in
registers. The next tile of columns is fetched into registers while the present one is worked on, so that the latency of device
memory is hidden. Units, chunks, intervals and bounds are those of `pairs.py`. Beyond `LARGEST_DIM` matrix products
(engine="torch") are faster: docs/performance-gpu.md.
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
from metastable.kernels.cuda.support import LARGEST_DIM

SIDE = 16
"""Threads along each side of a block."""

THREADS = SIDE * SIDE

PATCH = 4
"""Rows per thread."""

ROWS = SIDE * PATCH
"""Rows per block."""

MARGIN = 4
"""Numbers of padding behind each line in shared memory, against bank conflicts."""

LINE = LARGEST_DIM + MARGIN
"""Numbers per token in shared memory; in device memory they are `LARGEST_DIM`."""

WEIGHT_LINE = ROWS + MARGIN
"""Numbers per column in the table of weights."""

OWN = LARGEST_DIM // SIDE
"""Coordinates whose sums a thread holds."""


def columns_of(arithmetic: Arithmetic) -> int:
    """Columns per tile: what 48 KiB of shared memory hold."""
    return 64 if arithmetic.real is np.float32 else 32


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


def _make_products(arithmetic: Arithmetic):
    """Device functions for the products of one tile: logits += rows times columns, total += weights times columns."""
    number, columns = arithmetic.number, columns_of(arithmetic)
    own_columns = columns // SIDE
    unroll = 4 if arithmetic.real is np.float32 else 2

    @inlined
    def multiply(left, right, logits, place):
        a = cuda.local.array((PATCH, 4), number)
        row, column = np.int32(place.down * np.int32(PATCH * LINE)), np.int32(place.across * np.int32(LINE))
        at = np.int32(0)
        while at < np.int32(LARGEST_DIM):
            for r in range(PATCH):
                a[r, 0], a[r, 1], a[r, 2], a[r, 3] = load_four(left, np.int32(row + np.int32(r * LINE) + at))
            for c in range(own_columns):
                b0, b1, b2, b3 = load_four(right, np.int32(column + np.int32(c * SIDE * LINE) + at))
                for r in range(PATCH):
                    logits[r, c] += a[r, 0] * b0
                    logits[r, c] += a[r, 1] * b1
                    logits[r, c] += a[r, 2] * b2
                    logits[r, c] += a[r, 3] * b3
            at = np.int32(at + np.int32(4))

    @inlined
    def accumulate(weights, right, total, place):
        x = cuda.local.array(OWN, number)
        column = np.int32(0)
        while column < np.int32(columns):
            for _ in range(unroll):
                at = np.int32(column * np.int32(WEIGHT_LINE) + place.down * np.int32(PATCH))
                w0, w1, w2, w3 = load_four(weights, at)
                at = np.int32(column * np.int32(LINE) + place.across * np.int32(OWN))
                for c in range(0, OWN, 2):
                    x[c], x[c + 1] = load_two(right, np.int32(at + np.int32(c)))
                for c in range(OWN):
                    total[0, c] += w0 * x[c]
                    total[1, c] += w1 * x[c]
                    total[2, c] += w2 * x[c]
                    total[3, c] += w3 * x[c]
                column = np.int32(column + np.int32(1))

    return multiply, accumulate


def _make_copies(arithmetic: Arithmetic):
    """Device functions that move `count` times `THREADS` / 8 tokens in two halves: from device memory to registers (`count` times
    four numbers a thread; zeros behind the last token), and on to shared memory."""
    fours, zero = LARGEST_DIM // 4, arithmetic.real(0)

    @inlined
    def split(turn):
        item = np.int32(np.int32(cuda.threadIdx.x) + np.int32(turn * THREADS))
        return np.int32(item // np.int32(fours)), np.int32(np.int32(item % np.int32(fours)) * np.int32(4))

    @inlined
    def fetch(source, start, tokens, hold, count):
        for turn in range(count):
            token, at = split(turn)
            a, b, c, d = zero, zero, zero, zero
            if np.int32(start + token) < tokens:
                a, b, c, d = load_four(source, np.int32(np.int32(start + token) * np.int32(LARGEST_DIM) + at))
            hold[turn, 0], hold[turn, 1], hold[turn, 2], hold[turn, 3] = a, b, c, d

    @inlined
    def put(hold, target, count):
        for turn in range(count):
            token, at = split(turn)
            a, b, c, d = hold[turn, 0], hold[turn, 1], hold[turn, 2], hold[turn, 3]
            store_four(target, np.int32(token * np.int32(LINE) + at), a, b, c, d)

    return fetch, put


def _make_weigh(arithmetic: Arithmetic, biased: bool):
    """A device function that turns the logits of a patch into weights in shared memory, and adds them up per row."""
    real, number, exp2, zero = arithmetic.real, arithmetic.number, arithmetic.exp2, arithmetic.real(0)
    own_columns = columns_of(arithmetic) // SIDE

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
    number, zero, columns = arithmetic.number, arithmetic.real(0), columns_of(arithmetic)
    own_columns, row_turns, turns = (
        columns // SIDE,
        ROWS * LARGEST_DIM // (4 * THREADS),
        columns * LARGEST_DIM // (4 * THREADS),
    )
    left_size, right_size, weight_size = ROWS * LINE, columns * LINE, columns * WEIGHT_LINE
    multiply, accumulate = _make_products(arithmetic)
    fetch, put = _make_copies(arithmetic)
    weigh = _make_weigh(arithmetic, biased)

    @kernel(**options)
    def attend(x, query, shift, intervals, bounds, slope, first, chunk, partial):
        left = cuda.shared.array(left_size, number, alignment=ALIGNMENT)
        right = cuda.shared.array(right_size, number, alignment=ALIGNMENT)
        weights = cuda.shared.array(weight_size, number, alignment=ALIGNMENT)
        logits, total = cuda.local.array((PATCH, own_columns), number), cuda.local.array((PATCH, OWN), number)
        hold = cuda.local.array((row_turns, 4), number)
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
            for c in range(OWN):
                total[r, c] = zero
        fetch(query, base, tokens, hold, row_turns)
        put(hold, left, row_turns)
        for interval in range(2):
            for r in range(PATCH):
                own.start[r], own.stop[r] = np.int32(0), np.int32(0)
                if row + r < tokens:
                    own.start[r] = intervals[row + r, interval, 0]
                    own.stop[r] = min(intervals[row + r, interval, 1], piece_stop)
            outer_start = max(bounds[block, interval, OUTER_START], piece_start)
            outer_stop = min(bounds[block, interval, OUTER_STOP], piece_stop)
            tile = np.int32(outer_start - outer_start % np.int32(columns))
            fetch(x, tile, tokens, hold, turns)
            while tile < outer_stop:
                for r in range(PATCH):
                    for c in range(own_columns):
                        logits[r, c] = -own.shift[r]
                cuda.syncthreads()
                put(hold, right, turns)
                cuda.syncthreads()
                fetch(x, np.int32(tile + np.int32(columns)), tokens, hold, turns)
                multiply(left, right, logits, place)
                weigh(logits, weights, own, slope, tile, place)
                cuda.syncthreads()
                accumulate(weights, right, total, place)
                tile = np.int32(tile + np.int32(columns))
        cuda.syncthreads()
        # The weights of a row are spread over the threads of a line: add them up in shared memory, always in the same order.
        for r in range(PATCH):
            left[np.int32(down * np.int32(PATCH) + r) * np.int32(LINE) + across] = own.weight[r]
        cuda.syncthreads()
        if thread < np.int32(ROWS) and np.int32(base + thread) < tokens:
            together = zero
            for c in range(SIDE):
                together += left[thread * np.int32(LINE) + c]
            partial[piece, dim, base + thread] = together
        for r in range(PATCH):
            if row + r < tokens:
                for c in range(OWN):
                    coordinate = np.int32(across * np.int32(OWN) + c)
                    if coordinate < np.int32(dim):
                        partial[piece, coordinate, row + r] = total[r, c]

    return attend
