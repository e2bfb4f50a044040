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

LARGEST_DIM = 16
"""Largest dimension of this kernel; `tiles.py` takes over above."""

UNROLL = 4
"""Tokens of a tile per turn of the innermost loop."""


def padding(dim: int) -> int:
    """Numbers per token in device memory: two for the circle, else a multiple of four, for wide loads."""
    return 2 if dim == 2 else -(-dim // 4) * 4


def _make_load(real, dim: int):
    """A device function `load(array, index, key)` for the padded coordinates of one token."""
    if dim == 2:

        @inlined
        def load(array, index, key):
            key[0], key[1] = load_two(array, np.int32(index))

        return load
    chunks = padding(dim) // 4

    @inlined
    def load(array, index, key):
        for i in range(chunks):
            a, b, c, d = load_four(array, np.int32(index + 4 * i))
            key[4 * i], key[4 * i + 1], key[4 * i + 2], key[4 * i + 3] = a, b, c, d

    return load


def make_kernel(real, dim: int, rows: int, threads: int, biased: bool, **options):
    """The kernel for tokens in R^dim with `rows` rows per thread and blocks of `threads`.

    Arguments: `x`, `query` (tokens * padding), `shift` (tokens,), `intervals` (tokens, 4), `bounds` (row blocks, 8), `slope`
    (log2 e times the ALiBi slope), `first` (row of the first block), `chunk` (columns, a multiple of `threads`), `partial`.
    """
    exp2 = exp2_single if real is np.float32 else exp2_double
    number = numba.float32 if real is np.float32 else numba.float64
    pad, mine, storage = padding(dim), rows * dim, padding(dim) * threads
    zero = real(0)
    load = _make_load(real, dim)

    @inlined
    def add(key, query, shift, bias, total, weight, row):
        logit = -shift[row]
        for i in range(dim):
            logit += query[row * dim + i] * key[i]
        if biased:
            logit -= bias
        w = exp2(logit)
        weight[row] += w
        for i in range(dim):
            total[row * dim + i] += w * key[i]

    @inlined
    def add_if(seen, key, query, shift, bias, total, weight, row):
        logit = -shift[row]
        for i in range(dim):
            logit += query[row * dim + i] * key[i]
        if biased:
            logit -= bias
        w = exp2(logit)
        w = w if seen else zero
        weight[row] += w
        for i in range(dim):
            total[row * dim + i] += w * key[i]

    @kernel(**options)
    def attend(x, query, shift, intervals, bounds, slope, first, chunk, partial):
        shared = cuda.shared.array(storage, number, alignment=ALIGNMENT)
        q, total = cuda.local.array(mine, number), cuda.local.array(mine, number)
        own_shift, weight = cuda.local.array(rows, number), cuda.local.array(rows, number)
        start, stop = cuda.local.array(rows, numba.int32), cuda.local.array(rows, numba.int32)
        key = cuda.local.array(pad, number)
        tokens = np.int32(shift.shape[0])
        thread = np.int32(cuda.threadIdx.x)
        # The last row blocks have the longest rows under a causal mask: they go first.
        block = np.int32(cuda.gridDim.x - 1 - cuda.blockIdx.x)
        piece = np.int32(cuda.blockIdx.y)
        base = np.int32(first + block * np.int32(threads * rows))
        piece_start = np.int32(piece * chunk)
        piece_stop = min(np.int32(piece_start + chunk), tokens)
        for r in range(rows):
            token = np.int32(base + r * threads + thread)
            weight[r], own_shift[r] = zero, zero
            for i in range(dim):
                total[r * dim + i] = zero
                q[r * dim + i] = zero
            if token < tokens:
                own_shift[r] = shift[token]
                load(query, token * np.int32(pad), key)
                for i in range(dim):
                    q[r * dim + i] = key[i]
        for interval in range(2):
            for r in range(rows):
                token = np.int32(base + r * threads + thread)
                start[r], stop[r] = np.int32(0), np.int32(0)
                if token < tokens:
                    start[r], stop[r] = intervals[token, 2 * interval], intervals[token, 2 * interval + 1]
            outer_start = max(bounds[block, 4 * interval], piece_start)
            inner_start = bounds[block, 4 * interval + 1]
            inner_stop = bounds[block, 4 * interval + 2]
            outer_stop = min(bounds[block, 4 * interval + 3], piece_stop)
            tile = np.int32(outer_start - outer_start % np.int32(threads))
            while tile < outer_stop:
                here = np.int32(tile + thread)
                cuda.syncthreads()
                if here < tokens:
                    load(x, here * np.int32(pad), key)
                    for i in range(pad):
                        shared[thread * np.int32(pad) + i] = key[i]
                cuda.syncthreads()
                if tile >= inner_start and np.int32(tile + np.int32(threads)) <= inner_stop:
                    j = np.int32(0)
                    while j < np.int32(threads):
                        for _ in range(UNROLL):
                            load(shared, j * np.int32(pad), key)
                            for r in range(rows):
                                bias = zero
                                if biased:
                                    bias = slope * real(abs(np.int32(base + r * threads + thread - (tile + j))))
                                add(key, q, own_shift, bias, total, weight, r)
                            j = np.int32(j + np.int32(1))
                else:
                    j = np.int32(0)
                    visible = min(np.int32(threads), np.int32(outer_stop - tile))
                    while j < visible:
                        load(shared, j * np.int32(pad), key)
                        column = np.int32(tile + j)
                        for r in range(rows):
                            bias = zero
                            if biased:
                                bias = slope * real(abs(np.int32(base + r * threads + thread - column)))
                            seen = column >= start[r] and column < stop[r]
                            add_if(seen, key, q, own_shift, bias, total, weight, r)
                        j = np.int32(j + np.int32(1))
                tile = np.int32(tile + np.int32(threads))
        for r in range(rows):
            token = np.int32(base + r * threads + thread)
            if token < tokens:
                for i in range(dim):
                    partial[piece, i, token] = total[r * dim + i]
                partial[piece, dim, token] = weight[r]

    return attend
