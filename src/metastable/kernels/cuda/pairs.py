"""Attention sums of long sequences for small dimension (up to `LARGEST_DIM`): tiles of tokens in shared memory.

The work is cut into units (row block, column chunk). In a unit each thread owns `rows` tokens and walks over the chunk tile by
tile; every token of a tile is read once from shared memory and used for all rows of the thread. Sums of a chunk go to `partial`
(chunks, dim + 1, tokens) and are added up later in a fixed order, so results do not depend on scheduling.

Column ranges come from the mask, as intervals per row and as bounds per row block: tiles that all rows of a block see entirely
take the short path, the others test every pair.
"""

from __future__ import annotations

import numba
import numpy as np

from metastable.kernels.cuda.intrinsics import ALIGNMENT, Arithmetic, cuda, inlined, kernel
from metastable.kernels.cuda.sums import Rows, make_add, make_load
from metastable.kernels.cuda.support import padded

LARGEST_DIM = 16
"""Largest dimension of this kernel; `tiles.py` takes over above."""

UNROLL = 4
"""Tokens of a tile per turn of the innermost loop."""

OUTER_START, INNER_START, INNER_STOP, OUTER_STOP = 0, 1, 2, 3
"""Columns of `bounds`: who is seen by anybody of a row block, and who is seen by everybody (see `engine.block_bounds`)."""


def padding(dim: int) -> int:
    """Numbers per token in device memory: two for the circle, else a multiple of four, for wide loads."""
    return 2 if dim == 2 else padded(dim)


def make_kernel(arithmetic: Arithmetic, dim: int, rows_each: int, threads: int, biased: bool, **options):
    """The kernel for tokens in R^dim with `rows_each` rows per thread and blocks of `threads`.

    Arguments: `x`, `query` (tokens * padding), `shift` (tokens,), `intervals` (tokens, 2, 2), `bounds` (row blocks, 2, 4), `slope`
    (log2 e times the ALiBi slope), `first` (row of the first block), `chunk` (columns, a multiple of `threads`), `partial`.
    """
    real, number = arithmetic.real, arithmetic.number
    pad, mine, storage = padding(dim), rows_each * dim, padding(dim) * threads
    zero, unit = real(0), real(1)
    load, add = make_load(pad), make_add(arithmetic, dim, biased)

    @inlined
    def bias(slope, row, column):
        return slope * real(abs(np.int32(row - column))) if biased else zero

    @kernel(**options)
    def attend(x, query, shift, intervals, bounds, slope, first, chunk, partial):
        shared = cuda.shared.array(storage, number, alignment=ALIGNMENT)
        rows = Rows(
            cuda.local.array(mine, number),
            cuda.local.array(rows_each, number),
            cuda.local.array(mine, number),
            cuda.local.array(rows_each, number),
        )
        start, stop = cuda.local.array(rows_each, numba.int32), cuda.local.array(rows_each, numba.int32)
        key = cuda.local.array(pad, number)
        tokens = np.int32(shift.shape[0])
        thread = np.int32(cuda.threadIdx.x)
        # The last row blocks have the longest rows under a causal mask: they go first.
        block = np.int32(cuda.gridDim.x - 1 - cuda.blockIdx.x)
        piece = np.int32(cuda.blockIdx.y)
        base = np.int32(first + block * np.int32(threads * rows_each) + thread)
        piece_start = np.int32(piece * chunk)
        piece_stop = min(np.int32(piece_start + chunk), tokens)
        for r in range(rows_each):
            token = np.int32(base + r * threads)
            rows.weight[r], rows.shift[r] = zero, zero
            for i in range(dim):
                rows.total[r * dim + i] = zero
                rows.query[r * dim + i] = zero
            if token < tokens:
                rows.shift[r] = shift[token]
                load(query, token * np.int32(pad), key)
                for i in range(dim):
                    rows.query[r * dim + i] = key[i]
        for interval in range(2):
            for r in range(rows_each):
                token = np.int32(base + r * threads)
                start[r], stop[r] = np.int32(0), np.int32(0)
                if token < tokens:
                    start[r], stop[r] = intervals[token, interval, 0], intervals[token, interval, 1]
            limits = bounds[block, interval]
            outer_start, outer_stop = max(limits[OUTER_START], piece_start), min(limits[OUTER_STOP], piece_stop)
            inner_start, inner_stop = limits[INNER_START], limits[INNER_STOP]
            tile = np.int32(outer_start - outer_start % np.int32(threads))
            while tile < outer_stop:
                here = np.int32(tile + thread)
                cuda.syncthreads()
                if here < tokens:
                    load(x, here * np.int32(pad), key)
                    for i in range(pad):
                        shared[thread * np.int32(pad) + i] = key[i]
                cuda.syncthreads()
                j = np.int32(0)
                if tile >= inner_start and np.int32(tile + np.int32(threads)) <= inner_stop:
                    while j < np.int32(threads):
                        for _ in range(UNROLL):
                            load(shared, j * np.int32(pad), key)
                            for r in range(rows_each):
                                add(True, unit, key, bias(slope, base + r * threads, tile + j), rows, r)
                            j = np.int32(j + np.int32(1))
                else:
                    visible = min(np.int32(threads), np.int32(outer_stop - tile))
                    while j < visible:
                        load(shared, j * np.int32(pad), key)
                        column = np.int32(tile + j)
                        for r in range(rows_each):
                            seen = column >= start[r] and column < stop[r]
                            add(seen, unit, key, bias(slope, base + r * threads, column), rows, r)
                        j = np.int32(j + np.int32(1))
                tile = np.int32(tile + np.int32(threads))
        for r in range(rows_each):
            token = np.int32(base + r * threads)
            if token < tokens:
                for i in range(dim):
                    partial[piece, i, token] = rows.total[r * dim + i]
                partial[piece, dim, token] = rows.weight[r]

    return attend
