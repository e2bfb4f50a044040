"""Attention sums in single precision for dimension 17 to 64: as `tiles.py`, with the rows of a block resident in shared memory.

A block of 16 x 16 threads keeps the queries of its 64 rows in shared memory for all tiles. The next tile of columns is fetched
into registers while the present one is worked on, so that the latency of device memory is hidden.
"""

from __future__ import annotations

import numba
import numpy as np

from metastable.kernels.cuda.intrinsics import ALIGNMENT, cuda, inlined, kernel, load_four, load_two, store_four
from metastable.kernels.cuda.tiles import MARGIN, SIDE, SLICE, make_weigh, padding

PATCH = 4
"""Rows per thread."""

ROWS = SIDE * PATCH
"""Rows per block."""

LARGEST_DIM = 2 * SLICE
"""Largest dimension whose rows fit."""


def columns_for(dim: int) -> int:
    """Columns per tile: what is left of 48 KiB of shared memory."""
    return 64 if padding(dim) == SLICE else 48


def _make_copies(real, pad: int, columns: int):
    """Device functions: `fetch` a tile of columns into registers, `put` it into shared memory, `stage` the rows."""
    per_token, line = pad // 4, pad + MARGIN
    turns = columns * per_token // (SIDE * SIDE)
    row_turns = ROWS * per_token // (SIDE * SIDE)
    zero = real(0)

    @inlined
    def place_of(thread, turn):
        item = np.int32(thread + np.int32(turn * SIDE * SIDE))
        return np.int32(item // np.int32(per_token)), np.int32(np.int32(item % np.int32(per_token)) * np.int32(4))

    @inlined
    def fetch(source, start, tokens, thread, hold):
        for turn in range(turns):
            token, coordinate = place_of(thread, turn)
            hold[turn, 0], hold[turn, 1], hold[turn, 2], hold[turn, 3] = zero, zero, zero, zero
            if np.int32(start + token) < tokens:
                place = np.int32(np.int32(start + token) * np.int32(pad) + coordinate)
                hold[turn, 0], hold[turn, 1], hold[turn, 2], hold[turn, 3] = load_four(source, place)

    @inlined
    def put(hold, thread, target):
        for turn in range(turns):
            token, coordinate = place_of(thread, turn)
            place = np.int32(token * np.int32(line) + coordinate)
            store_four(target, place, hold[turn, 0], hold[turn, 1], hold[turn, 2], hold[turn, 3])

    @inlined
    def stage(source, start, tokens, thread, target):
        for turn in range(row_turns):
            token, coordinate = place_of(thread, turn)
            a, b, c, d = zero, zero, zero, zero
            if np.int32(start + token) < tokens:
                a, b, c, d = load_four(source, np.int32(np.int32(start + token) * np.int32(pad) + coordinate))
            store_four(target, np.int32(token * np.int32(line) + coordinate), a, b, c, d)

    return fetch, put, stage, turns


def _make_products(pad: int, columns: int, number):
    """Device functions: logits += rows times columns, totals += weights times columns."""
    own_columns, own = columns // SIDE, pad // SIDE
    line, weight_line = pad + MARGIN, ROWS + MARGIN

    @inlined
    def multiply(left, right, logits, across, down):
        a = cuda.local.array((PATCH, 4), number)
        row = np.int32(down * np.int32(PATCH * line))
        column = np.int32(across * np.int32(line))
        depth = np.int32(0)
        while depth < np.int32(pad):
            for r in range(PATCH):
                a[r, 0], a[r, 1], a[r, 2], a[r, 3] = load_four(left, np.int32(row + np.int32(r * line) + depth))
            for c in range(own_columns):
                b0, b1, b2, b3 = load_four(right, np.int32(column + np.int32(c * SIDE * line) + depth))
                for r in range(PATCH):
                    logits[r, c] += a[r, 0] * b0
                    logits[r, c] += a[r, 1] * b1
                    logits[r, c] += a[r, 2] * b2
                    logits[r, c] += a[r, 3] * b3
            depth = np.int32(depth + np.int32(4))

    @inlined
    def accumulate(weights, right, total, across, down):
        x = cuda.local.array(own, number)
        column = np.int32(0)
        while column < np.int32(columns):
            for _ in range(4):
                place = np.int32(column * np.int32(weight_line) + down * np.int32(PATCH))
                w0, w1, w2, w3 = load_four(weights, place)
                place = np.int32(column * np.int32(line) + across * np.int32(own))
                for c in range(0, own, 2):
                    x[c], x[c + 1] = load_two(right, np.int32(place + np.int32(c)))
                for c in range(own):
                    total[0, c] += w0 * x[c]
                    total[1, c] += w1 * x[c]
                    total[2, c] += w2 * x[c]
                    total[3, c] += w3 * x[c]
                column = np.int32(column + np.int32(1))

    return multiply, accumulate


def make_kernel(real, dim: int, biased: bool, **options):
    """The kernel for tokens in R^dim; arguments as in `pairs.make_kernel`."""
    number = numba.float32 if real is np.float32 else numba.float64
    pad, columns = padding(dim), columns_for(dim)
    line, own, own_columns = pad + MARGIN, pad // SIDE, columns // SIDE
    left_size, right_size, weight_size = ROWS * line, columns * line, columns * (ROWS + MARGIN)
    zero = real(0)
    fetch, put, stage, turns = _make_copies(real, pad, columns)
    multiply, accumulate = _make_products(pad, columns, number)
    weigh = make_weigh(real, PATCH, columns, biased)

    @kernel(**options)
    def attend(x, query, shift, intervals, bounds, slope, first, chunk, partial):
        left = cuda.shared.array(left_size, number, alignment=ALIGNMENT)
        right = cuda.shared.array(right_size, number, alignment=ALIGNMENT)
        weights = cuda.shared.array(weight_size, number, alignment=ALIGNMENT)
        logits, total = cuda.local.array((PATCH, own_columns), number), cuda.local.array((PATCH, own), number)
        hold = cuda.local.array((turns, 4), number)
        weight, own_shift = cuda.local.array(PATCH, number), cuda.local.array(PATCH, number)
        start, stop = cuda.local.array(PATCH, numba.int32), cuda.local.array(PATCH, numba.int32)
        tokens, thread = np.int32(shift.shape[0]), np.int32(cuda.threadIdx.x)
        across, down = np.int32(thread % np.int32(SIDE)), np.int32(thread // np.int32(SIDE))
        block, piece = np.int32(cuda.gridDim.x - 1 - cuda.blockIdx.x), np.int32(cuda.blockIdx.y)
        base = np.int32(first + block * np.int32(ROWS))
        own_first = np.int32(base + down * np.int32(PATCH))
        piece_start = np.int32(piece * chunk)
        piece_stop = min(np.int32(piece_start + chunk), tokens)
        for r in range(PATCH):
            weight[r], own_shift[r] = zero, zero
            if own_first + r < tokens:
                own_shift[r] = shift[own_first + r]
            for c in range(own):
                total[r, c] = zero
        stage(query, base, tokens, thread, left)
        for interval in range(2):
            for r in range(PATCH):
                start[r], stop[r] = np.int32(0), np.int32(0)
                if own_first + r < tokens:
                    start[r] = intervals[own_first + r, 2 * interval]
                    stop[r] = min(intervals[own_first + r, 2 * interval + 1], piece_stop)
            outer_start = max(bounds[block, 4 * interval], piece_start)
            outer_stop = min(bounds[block, 4 * interval + 3], piece_stop)
            tile = np.int32(outer_start - outer_start % np.int32(columns))
            fetch(x, tile, tokens, thread, hold)
            while tile < outer_stop:
                cuda.syncthreads()
                put(hold, thread, right)
                cuda.syncthreads()
                fetch(x, np.int32(tile + np.int32(columns)), tokens, thread, hold)
                for r in range(PATCH):
                    for c in range(own_columns):
                        logits[r, c] = -own_shift[r]
                multiply(left, right, logits, across, down)
                weigh(logits, weights, weight, start, stop, slope, own_first, tile, across, down)
                cuda.syncthreads()
                accumulate(weights, right, total, across, down)
                tile = np.int32(tile + np.int32(columns))
        cuda.syncthreads()
        # The weights of a row are spread over the threads of a line: add them up in shared memory, always in the same order.
        for r in range(PATCH):
            left[np.int32(down * np.int32(PATCH) + r) * np.int32(line) + across] = weight[r]
        cuda.syncthreads()
        if thread < np.int32(ROWS) and np.int32(base + thread) < tokens:
            together = zero
            for c in range(SIDE):
                together += left[thread * np.int32(line) + c]
            partial[piece, dim, base + thread] = together
        for r in range(PATCH):
            if own_first + r < tokens:
                for c in range(own):
                    coordinate = np.int32(across * np.int32(own) + c)
                    if coordinate < np.int32(dim):
                        partial[piece, coordinate, own_first + r] = total[r, c]

    return attend
