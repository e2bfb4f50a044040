"""Attention sums of long sequences for large dimension: two small matrix products per tile, as in flash attention.

A block of 16 x 16 threads owns `rows` rows. For each tile of columns it forms the logits (each thread a patch of rows and
columns), turns them into weights in shared memory, and adds weights times tokens to sums held in registers. Coordinates are
staged through shared memory: of the rows `SLICE` at a time, of the columns as many as fit. Units, chunks,
intervals and bounds are those of `pairs.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from metastable.kernels.cuda.intrinsics import (
    ALIGNMENT,
    cuda,
    exp2_double,
    exp2_single,
    inlined,
    kernel,
    load_four,
    load_two,
    store_four,
)

SIDE = 16
"""Threads along each side of a block."""

SLICE = 32
"""Coordinates of the rows that are staged at a time."""

MARGIN = 4
"""Numbers of padding behind each line in shared memory, against bank conflicts."""


class Shape(NamedTuple):
    """Sizes of a block: what 48 KiB of shared memory hold."""

    patch: int
    """Rows per thread."""
    columns: int
    """Columns per tile."""
    breadth: int
    """Coordinates of the columns that are staged at a time (all of them, where they fit: then once per tile)."""

    @property
    def rows(self) -> int:
        """Rows per block."""
        return SIDE * self.patch


def padding(dim: int) -> int:
    """Numbers per token in device memory: a multiple of `SLICE`."""
    return -(-dim // SLICE) * SLICE


def shape_for(real) -> Shape:
    """The shape of the blocks for a precision."""
    return Shape(4, 64 if real is np.float32 else 32, SLICE)


def _make_products(real, shape: Shape):
    """Device functions for the products of one slice: logits += rows times columns, totals += weights times columns."""
    number = numba.float32 if real is np.float32 else numba.float64
    patch, columns, breadth = shape
    own_columns, own = columns // SIDE, breadth // SIDE
    left_line, right_line, weight_line = SLICE + MARGIN, breadth + MARGIN, SIDE * patch + MARGIN

    @inlined
    def multiply(left, right, offset, logits, across, down):
        a = cuda.local.array((patch, 4), number)
        depth = np.int32(0)
        while depth < np.int32(SLICE):
            for r in range(patch):
                place = np.int32((down * np.int32(patch) + r) * np.int32(left_line) + depth)
                a[r, 0], a[r, 1], a[r, 2], a[r, 3] = load_four(left, place)
            for c in range(own_columns):
                place = np.int32((across + c * SIDE) * np.int32(right_line) + offset + depth)
                b0, b1, b2, b3 = load_four(right, place)
                for r in range(patch):
                    logits[r, c] += a[r, 0] * b0
                    logits[r, c] += a[r, 1] * b1
                    logits[r, c] += a[r, 2] * b2
                    logits[r, c] += a[r, 3] * b3
            depth = np.int32(depth + np.int32(4))

    @inlined
    def accumulate(weights, right, total, part, across, down):
        # Sums of this part in registers while the columns go by.
        sums = cuda.local.array((patch, own), number)
        w, x = cuda.local.array(patch, number), cuda.local.array(own, number)
        for r in range(patch):
            for c in range(own):
                sums[r, c] = total[r, own * part + c]
        column = np.int32(0)
        while column < np.int32(columns):
            for _ in range(2):
                for r in range(0, patch, 4):
                    place = np.int32(column * np.int32(weight_line) + down * np.int32(patch) + r)
                    w[r], w[r + 1], w[r + 2], w[r + 3] = load_four(weights, place)
                place = np.int32(column * np.int32(right_line) + across * np.int32(own))
                for c in range(0, own, 2):
                    x[c], x[c + 1] = load_two(right, np.int32(place + c))
                for r in range(patch):
                    for c in range(own):
                        sums[r, c] += w[r] * x[c]
                column = np.int32(column + np.int32(1))
        for r in range(patch):
            for c in range(own):
                total[r, own * part + c] = sums[r, c]

    return multiply, accumulate


def _make_stage(real, pad: int, width: int, count: int):
    """A device function that copies `width` coordinates of `count` tokens into shared memory, zeros behind the last token."""
    per_token = width // 4
    items = count * per_token
    line = width + MARGIN
    zero = real(0)

    @inlined
    def stage(source, start, tokens, offset, target, thread):
        item = thread
        while item < np.int32(items):
            token, group = np.int32(item // np.int32(per_token)), np.int32(item % np.int32(per_token))
            a, b, c, d = zero, zero, zero, zero
            if np.int32(start + token) < tokens:
                place = np.int32(np.int32(start + token) * np.int32(pad) + offset + group * np.int32(4))
                a, b, c, d = load_four(source, place)
            store_four(target, np.int32(token * np.int32(line) + group * np.int32(4)), a, b, c, d)
            item = np.int32(item + np.int32(SIDE * SIDE))

    return stage


def make_weigh(real, patch: int, columns: int, biased: bool):
    """A device function that turns the logits of a patch into weights in shared memory, and adds them up per row."""
    exp2 = exp2_single if real is np.float32 else exp2_double
    number = numba.float32 if real is np.float32 else numba.float64
    own_columns, weight_line = columns // SIDE, SIDE * patch + MARGIN
    zero = real(0)

    @inlined
    def weigh(logits, weights, weight, start, stop, slope, first_row, tile, across, down):
        w = cuda.local.array(patch, number)
        for c in range(own_columns):
            place = np.int32(across + np.int32(c * SIDE))
            column = np.int32(tile + place)
            for r in range(patch):
                logit = logits[r, c]
                if biased:
                    logit -= slope * real(abs(np.int32(first_row + np.int32(r) - column)))
                value = exp2(logit)
                w[r] = value if column >= start[r] and column < stop[r] else zero
                weight[r] += w[r]
            target = np.int32(place * np.int32(weight_line) + down * np.int32(patch))
            for r in range(0, patch, 4):
                store_four(weights, np.int32(target + np.int32(r)), w[r], w[r + 1], w[r + 2], w[r + 3])

    return weigh


def make_kernel(real, dim: int, biased: bool, **options):
    """The kernel for tokens in R^dim; arguments as in `pairs.make_kernel`."""
    number = numba.float32 if real is np.float32 else numba.float64
    pad, shape = padding(dim), shape_for(real)
    patch, columns, breadth = shape
    rows, slices, parts = shape.rows, pad // SLICE, pad // breadth
    own_columns, own = columns // SIDE, breadth // SIDE
    every = own * parts
    left_line = SLICE + MARGIN
    left_size, right_size, weight_size = rows * left_line, columns * (breadth + MARGIN), columns * (rows + MARGIN)
    whole = parts == 1
    zero = real(0)
    multiply, accumulate = _make_products(real, shape)
    weigh = make_weigh(real, patch, columns, biased)
    stage_rows, stage_columns = _make_stage(real, pad, SLICE, rows), _make_stage(real, pad, breadth, columns)

    @kernel(**options)
    def attend(x, query, shift, intervals, bounds, slope, first, chunk, partial):
        left = cuda.shared.array(left_size, number, alignment=ALIGNMENT)
        right = cuda.shared.array(right_size, number, alignment=ALIGNMENT)
        weights = cuda.shared.array(weight_size, number, alignment=ALIGNMENT)
        logits, total = cuda.local.array((patch, own_columns), number), cuda.local.array((patch, every), number)
        weight, own_shift = cuda.local.array(patch, number), cuda.local.array(patch, number)
        start, stop = cuda.local.array(patch, numba.int32), cuda.local.array(patch, numba.int32)
        tokens, thread = np.int32(shift.shape[0]), np.int32(cuda.threadIdx.x)
        across, down = np.int32(thread % np.int32(SIDE)), np.int32(thread // np.int32(SIDE))
        block, piece = np.int32(cuda.gridDim.x - 1 - cuda.blockIdx.x), np.int32(cuda.blockIdx.y)
        base = np.int32(first + block * np.int32(rows))
        own_first = np.int32(base + down * np.int32(patch))
        piece_start = np.int32(piece * chunk)
        piece_stop = min(np.int32(piece_start + chunk), tokens)
        for r in range(patch):
            weight[r], own_shift[r] = zero, zero
            if own_first + r < tokens:
                own_shift[r] = shift[own_first + r]
            for c in range(every):
                total[r, c] = zero
        for interval in range(2):
            for r in range(patch):
                start[r], stop[r] = np.int32(0), np.int32(0)
                if own_first + r < tokens:
                    start[r] = intervals[own_first + r, 2 * interval]
                    stop[r] = min(intervals[own_first + r, 2 * interval + 1], piece_stop)
            outer_start = max(bounds[block, 4 * interval], piece_start)
            outer_stop = min(bounds[block, 4 * interval + 3], piece_stop)
            tile = np.int32(outer_start - outer_start % np.int32(columns))
            while tile < outer_stop:
                for r in range(patch):
                    for c in range(own_columns):
                        logits[r, c] = -own_shift[r]
                for part in range(slices):
                    cuda.syncthreads()
                    stage_rows(query, base, tokens, np.int32(part * SLICE), left, thread)
                    if not whole or part == 0:
                        stage_columns(x, tile, tokens, np.int32(part * SLICE), right, thread)
                    cuda.syncthreads()
                    multiply(left, right, np.int32(part * SLICE if whole else 0), logits, across, down)
                weigh(logits, weights, weight, start, stop, slope, own_first, tile, across, down)
                for part in range(parts):
                    cuda.syncthreads()
                    if not whole:
                        stage_columns(x, tile, tokens, np.int32(part * breadth), right, thread)
                        cuda.syncthreads()
                    accumulate(weights, right, total, part, across, down)
                tile = np.int32(tile + np.int32(columns))
        cuda.syncthreads()
        # The weights of a row are spread over the threads of a line: add them up in shared memory, always in the same order.
        for r in range(patch):
            left[np.int32(down * np.int32(patch) + r) * np.int32(left_line) + across] = weight[r]
        cuda.syncthreads()
        if thread < np.int32(rows) and np.int32(base + thread) < tokens:
            together = zero
            for c in range(SIDE):
                together += left[thread * np.int32(left_line) + c]
            partial[piece, dim, base + thread] = together
        for r in range(patch):
            if own_first + r < tokens:
                for c in range(every):
                    coordinate = np.int32(c // own * breadth + c % own) + across * np.int32(own)
                    if coordinate < np.int32(dim):
                        partial[piece, coordinate, own_first + r] = total[r, c]

    return attend
