"""Attention sums of long sequences for large dimension: two small matrix products per tile, as in flash attention.

A block of 16 x 16 threads owns 64 rows. For each tile of columns it forms the logits (each thread a patch of rows and columns),
turns them into weights in shared memory, and adds weights times tokens to sums held in registers. Coordinates are
staged through shared memory `SLICE` at a time. Units, chunks, intervals and bounds are those of `pairs.py`.
"""

from __future__ import annotations

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
)

SIDE = 16
"""Threads along each side of a block."""

PATCH = 4
"""Rows per thread."""

ROWS = SIDE * PATCH
"""Rows per block."""

SLICE = 32
"""Coordinates that are staged at a time: two per thread in the second product."""


def padding(dim: int) -> int:
    """Numbers per token in device memory: a multiple of `SLICE`."""
    return -(-dim // SLICE) * SLICE


def columns_of(real) -> int:
    """Columns per tile: what 48 KiB of shared memory hold."""
    return 64 if real is np.float32 else 32


def _make_products(real, line: int, weight_line: int, columns: int):
    """Device functions for the two products of one slice: logits += rows times columns, totals += weights times columns."""
    number = numba.float32 if real is np.float32 else numba.float64
    patch = columns // SIDE

    @inlined
    def multiply(left, right, logits, across, down):
        a = cuda.local.array((PATCH, 4), number)
        depth = np.int32(0)
        while depth < np.int32(SLICE):
            for r in range(PATCH):
                place = np.int32((down * np.int32(PATCH) + r) * np.int32(line) + depth)
                a[r, 0], a[r, 1], a[r, 2], a[r, 3] = load_four(left, place)
            for c in range(patch):
                b0, b1, b2, b3 = load_four(right, np.int32((across + c * SIDE) * np.int32(line) + depth))
                for r in range(PATCH):
                    logits[r, c] += a[r, 0] * b0
                    logits[r, c] += a[r, 1] * b1
                    logits[r, c] += a[r, 2] * b2
                    logits[r, c] += a[r, 3] * b3
            depth = np.int32(depth + np.int32(4))

    @inlined
    def accumulate(weights, right, total, part, across, down):
        column = np.int32(0)
        t00, t10, t20, t30 = total[0, 2 * part], total[1, 2 * part], total[2, 2 * part], total[3, 2 * part]
        t01, t11 = total[0, 2 * part + 1], total[1, 2 * part + 1]
        t21, t31 = total[2, 2 * part + 1], total[3, 2 * part + 1]
        while column < np.int32(columns):
            for _ in range(4):
                w0, w1, w2, w3 = load_four(weights, np.int32(column * np.int32(weight_line) + down * np.int32(PATCH)))
                x0, x1 = load_two(right, np.int32(column * np.int32(line) + across * np.int32(2)))
                t00 += w0 * x0
                t10 += w1 * x0
                t20 += w2 * x0
                t30 += w3 * x0
                t01 += w0 * x1
                t11 += w1 * x1
                t21 += w2 * x1
                t31 += w3 * x1
                column = np.int32(column + np.int32(1))
        total[0, 2 * part], total[1, 2 * part], total[2, 2 * part], total[3, 2 * part] = t00, t10, t20, t30
        total[0, 2 * part + 1], total[1, 2 * part + 1] = t01, t11
        total[2, 2 * part + 1], total[3, 2 * part + 1] = t21, t31

    return multiply, accumulate


def _make_stage(real, pad: int, line: int, count: int):
    """A device function that copies coordinates `part` of `count` tokens into shared memory, zeros behind the last token."""
    turns = count * SLICE // (4 * SIDE * SIDE)
    per_token = SLICE // 4
    zero = real(0)

    @inlined
    def stage(source, start, tokens, part, target, thread):
        for turn in range(turns):
            item = np.int32(thread + np.int32(turn * SIDE * SIDE))
            token, group = np.int32(item // np.int32(per_token)), np.int32(item % np.int32(per_token))
            a, b, c, d = zero, zero, zero, zero
            if np.int32(start + token) < tokens:
                place = np.int32(np.int32(start + token) * np.int32(pad) + part * np.int32(SLICE) + group * np.int32(4))
                a, b, c, d = load_four(source, place)
            to = np.int32(token * np.int32(line) + group * np.int32(4))
            target[to], target[to + np.int32(1)], target[to + np.int32(2)], target[to + np.int32(3)] = a, b, c, d

    return stage


def make_kernel(real, dim: int, biased: bool, **options):
    """The kernel for tokens in R^dim; arguments as in `pairs.make_kernel`."""
    exp2 = exp2_single if real is np.float32 else exp2_double
    number = numba.float32 if real is np.float32 else numba.float64
    pad, columns = padding(dim), columns_of(real)
    patch, slices = columns // SIDE, pad // SLICE
    own = 2 * slices
    line, weight_line = SLICE + 4, ROWS + 4  # four numbers of padding against bank conflicts
    left_storage, right_storage, weight_storage = ROWS * line, columns * line, columns * weight_line
    zero = real(0)
    multiply, accumulate = _make_products(real, line, weight_line, columns)
    stage_rows, stage_columns = _make_stage(real, pad, line, ROWS), _make_stage(real, pad, line, columns)

    @kernel(**options)
    def attend(x, query, shift, intervals, bounds, slope, first, chunk, partial):
        left = cuda.shared.array(left_storage, number, alignment=ALIGNMENT)
        right = cuda.shared.array(right_storage, number, alignment=ALIGNMENT)
        weights = cuda.shared.array(weight_storage, number, alignment=ALIGNMENT)
        logits = cuda.local.array((PATCH, patch), number)
        total = cuda.local.array((PATCH, own), number)
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
        for interval in range(2):
            for r in range(PATCH):
                start[r], stop[r] = np.int32(0), np.int32(0)
                if own_first + r < tokens:
                    start[r] = intervals[own_first + r, 2 * interval]
                    stop[r] = min(intervals[own_first + r, 2 * interval + 1], piece_stop)
            outer_start = max(bounds[block, 4 * interval], piece_start)
            outer_stop = min(bounds[block, 4 * interval + 3], piece_stop)
            tile = np.int32(outer_start - outer_start % np.int32(columns))
            while tile < outer_stop:
                for r in range(PATCH):
                    for c in range(patch):
                        logits[r, c] = -own_shift[r]
                for part in range(slices):
                    cuda.syncthreads()
                    stage_rows(query, base, tokens, np.int32(part), left, thread)
                    stage_columns(x, tile, tokens, np.int32(part), right, thread)
                    cuda.syncthreads()
                    multiply(left, right, logits, across, down)
                for c in range(patch):
                    place = np.int32(across + np.int32(c * SIDE))
                    column = np.int32(tile + place)
                    for r in range(PATCH):
                        logit = logits[r, c]
                        if biased:
                            logit -= slope * real(abs(np.int32(own_first + r - column)))
                        w = exp2(logit)
                        w = w if column >= start[r] and column < stop[r] else zero
                        weight[r] += w
                        weights[place * np.int32(weight_line) + down * np.int32(PATCH) + r] = w
                for part in range(slices):
                    cuda.syncthreads()
                    stage_columns(x, tile, tokens, np.int32(part), right, thread)
                    cuda.syncthreads()
                    accumulate(weights, right, total, part, across, down)
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
                for part in range(slices):
                    for c in range(2):
                        coordinate = np.int32(part * SLICE + c) + across * np.int32(2)
                        if coordinate < np.int32(dim):
                            partial[piece, coordinate, own_first + r] = total[r, 2 * part + c]

    return attend
