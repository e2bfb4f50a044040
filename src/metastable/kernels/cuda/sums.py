"""Attention sums of the rows that a thread holds in registers, each written once, and what a row needs before and after them.

There are two: over coordinates (`make_add`; `pairs.py`) and over angles (`make_gather`; `circle.py`). Members on the sphere and
the direct part of the series write theirs out, because the compiler unrolls them better so (measured).
Rows in large dimension do not fit into registers: their sums are the matrix products of `tiles.py`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from metastable.kernels.cuda.intrinsics import Arithmetic, inlined, load_four, load_two


class Rows(NamedTuple):
    """The rows of a thread: row r has `query[r * dim : (r + 1) * dim]`, `shift[r]`, and the same places of its sums."""

    query: Any
    shift: Any
    total: Any
    weight: Any


def make_add(arithmetic: Arithmetic, dim: int, biased: bool = False):
    """`add(seen, mass, key, bias, rows, row)`: token `key` of weight w = mass 2^(q . key - shift - bias) into the sums of a row,
    if it is seen: weight += w, total += w key."""
    exp2, zero = arithmetic.exp2, arithmetic.real(0)

    @inlined
    def add(seen, mass, key, bias, rows, row):
        logit = -rows.shift[row]
        for i in range(dim):
            logit += rows.query[row * dim + i] * key[i]
        if biased:
            logit -= bias
        w = mass * exp2(logit)
        w = w if seen else zero
        rows.weight[row] += w
        for i in range(dim):
            rows.total[row * dim + i] += w * key[i]

    return add


class Angle(NamedTuple):
    """A row on the circle: its cosine and sine, plain and times beta log2(e)."""

    cosine: Any
    sine: Any
    scaled_cosine: Any
    scaled_sine: Any


class Pull(NamedTuple):
    """Sums of a row on the circle: w sin(z_j - z_k), and w."""

    force: Any
    weight: Any


def make_gather(arithmetic: Arithmetic):
    """`gather(seen, cosine, sine, own, shift, pull)`: the pull on the row `own` with one more token, if it is seen.

    The sine of the difference is formed pair by pair, which costs one operation more than summing cosines and sines apart and
    is several times more accurate: what cancels is never added up.
    """
    exp2, zero = arithmetic.exp2, arithmetic.real(0)

    @inlined
    def gather(seen, cosine, sine, own, shift, pull):
        w = exp2(cosine * own.scaled_cosine + (sine * own.scaled_sine - shift))
        w = w if seen else zero
        return Pull(pull.force + w * (sine * own.cosine - cosine * own.sine), pull.weight + w)

    return gather


def make_load(pad: int):
    """`load(array, index, key)`: the padded coordinates of one token, by the widest loads there are."""
    step, load_some = (2, load_two) if pad == 2 else (4, load_four)

    @inlined
    def load(array, index, key):
        for i in range(0, pad, step):
            some = load_some(array, np.int32(index + i))
            for j in range(step):
                key[i + j] = some[j]

    return load


def make_ask(arithmetic: Arithmetic, dim: int):
    """`ask(x, at, matrices, head, query)`: q = M^T x with M = `matrices[head, 0]` for the token at `x[at:]`, into
    `query[at:]`; returns its length."""
    real = arithmetic.real

    @inlined
    def ask(x, at, matrices, head, query):
        square = real(0)
        for i in range(dim):
            value = real(0)
            for j in range(dim):
                value += matrices[head, 0, j, i] * x[at + j]
            query[at + i] = value
            square += value * value
        return real(math.sqrt(square))

    return ask


def make_inverse_length(dim: int):
    """`inverse_length(x, at)`: 1 / |x[at : at + dim]| in double precision."""

    @inlined
    def inverse_length(x, at):
        square = 0.0
        for i in range(dim):
            square += x[at + i] * x[at + i]
        return 1.0 / math.sqrt(square)

    return inverse_length
