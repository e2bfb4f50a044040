"""Sums over columns whose components stay in registers, two to four of them at a time: a chunk.

Columns (tokens that are attended to) fill the vectors. Arrays hold a line of `stride` numbers for each component, padded so that whole
vectors can be read. How many components a chunk has is `size`, in most callers a constant of the compiled code (the number of axes of
`chunk_tag`); what lies beyond is zero and is not computed with. Dimensions above four are padded with zero components to a multiple of
four and looped over.
"""

from __future__ import annotations

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cpu.compiled import inlined
from metastable.kernels.cpu.vector import LANES, fill, keep, load, store, total


def padded_dimension(dim: int) -> int:
    """Components after padding: dim up to four, else the next multiple of four."""
    return dim if dim <= 4 else -(-dim // 4) * 4


def chunk_tag(dim: int) -> FloatArray:
    """An empty array whose number of axes, which compiled code knows, is the number of components that are handled at once."""
    return np.empty((0,) * min(padded_dimension(dim), 4))


@inlined
def get_four(array, place, stride):
    """Four vectors of an array."""
    first, third = place + stride, place + 3 * stride
    return load(array, place), load(array, first), load(array, place + 2 * stride), load(array, third)


@inlined
def put_four(array, place, stride, four):
    """The same, written."""
    store(array, place, four[0])
    store(array, place + stride, four[1])
    store(array, place + 2 * stride, four[2])
    store(array, place + 3 * stride, four[3])


@inlined
def no_four():
    """Four vectors of zeros."""
    return fill(0.0), fill(0.0), fill(0.0), fill(0.0)


@inlined
def numbers_of(size, vector, a):
    """A chunk of a vector, from component a on."""
    return vector[a], vector[a + 1], vector[a + 2] if size > 2 else 0.0, vector[a + 3] if size > 3 else 0.0


@inlined
def columns_of(size, points, place, stride):
    """A chunk of the columns of one vector; its first component is at `place`."""
    third = load(points, place + 2 * stride) if size > 2 else fill(0.0)
    fourth = load(points, place + 3 * stride) if size > 3 else fill(0.0)
    return load(points, place), load(points, place + stride), third, fourth


@inlined
def dot(size, columns, vector, value):
    """`value` + <vector, x_j> for each column, of one chunk."""
    value = value + columns[0] * vector[0]
    value = value + columns[1] * vector[1]
    if size > 2:
        value = value + columns[2] * vector[2]
    if size > 3:
        value = value + columns[3] * vector[3]
    return value


@inlined
def with_gaps(size, sums, weight, columns, origin):
    """`sums` with weight (x_j - origin) of one chunk."""
    s0, s1, s2, s3 = sums
    s0 = s0 + weight * (columns[0] - origin[0])
    s1 = s1 + weight * (columns[1] - origin[1])
    if size > 2:
        s2 = s2 + weight * (columns[2] - origin[2])
    if size > 3:
        s3 = s3 + weight * (columns[3] - origin[3])
    return s0, s1, s2, s3


@inlined
def add_totals(size, sums, out, a):
    """Add up the lanes of a chunk of sums, to `out` from component a on."""
    out[a] += total(sums[0])
    out[a + 1] += total(sums[1])
    if size > 2:
        out[a + 2] += total(sums[2])
    if size > 3:
        out[a + 3] += total(sums[3])


@inlined
def store_first(target, index, value, count):
    """Store the first `count` lanes only; the entries behind them belong to another range."""
    if count < LANES:
        before = load(target, index)
        value = keep(value, count) + (before - keep(before, count))
    store(target, index, value)
