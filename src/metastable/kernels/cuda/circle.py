"""Causal attention of one member on the circle, inside one thread block: the velocity that `members.py` integrates.

With z_k the angle of token k and sums over j < k

    dz_k/dt = sum_j w_kj sin(z_j - z_k) / (1 + sum_j w_kj),    w_kj = exp(beta (cos(z_j - z_k) - 1)).

Each thread owns two rows (tokens), dealt by `members.deal`. All loops have bounds that are the same for the whole warp; only
on the diagonal tiles are weights masked.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from metastable.kernels.cuda.device import LANES
from metastable.kernels.cuda.intrinsics import Arithmetic, cuda, inlined, load_four, make_sincos
from metastable.kernels.cuda.members import Geometry, deal, rounded
from metastable.kernels.cuda.sums import Angle, Pull, make_gather

NONE, EDGE, BEFORE, ALL = 0, 1, 2, 3
"""Whom of a stretch a row sees: nobody (it is not asked); tokens that exist and lie before it; those before it; everybody."""


class Own(NamedTuple):
    """The two rows of a thread, their positions in shared memory, and the position of the first token."""

    x: Angle
    y: Angle
    low: Any
    high: Any
    first: Any


def _make_walk(arithmetic: Arithmetic, low: int, high: int):
    """`walk(p, stop, shared, own, shift, a, b)`: the pulls a and b on the rows of a thread with the tokens from position p on, four
    at a time, of whom the rows see `low` and `high`. Returns the first position that was left out, a and b."""
    gather = make_gather(arithmetic)

    @inlined
    def sees(whom, p, row, first):
        if whom == ALL:
            return True
        return p < row and (whom != EDGE or p >= first)

    @inlined
    def token(p, cosine, sine, own, shift, a, b):
        if low != NONE:
            a = gather(sees(low, p, own.low, own.first), cosine, sine, own.x, shift, a)
        b = gather(sees(high, p, own.high, own.first), cosine, sine, own.y, shift, b)
        return a, b

    @inlined
    def walk(p, stop, shared, own, shift, a, b):
        while p < stop:
            c0, s0, c1, s1 = load_four(shared, np.int32(2) * p)
            c2, s2, c3, s3 = load_four(shared, np.int32(2) * p + np.int32(4))
            a, b = token(p, c0, s0, own, shift, a, b)
            a, b = token(np.int32(p + np.int32(1)), c1, s1, own, shift, a, b)
            a, b = token(np.int32(p + np.int32(2)), c2, s2, own, shift, a, b)
            a, b = token(np.int32(p + np.int32(3)), c3, s3, own, shift, a, b)
            p = np.int32(p + np.int32(4))
        return p, a, b

    return walk


def make_velocity(arithmetic: Arithmetic):
    """The device function `velocity` of `Geometry`."""
    real, quotient = arithmetic.real, arithmetic.quotient
    zero, one = real(0), real(1)
    sincos, edge = make_sincos(real), _make_walk(arithmetic, EDGE, EDGE)
    both_see, low_tile = _make_walk(arithmetic, ALL, ALL), _make_walk(arithmetic, BEFORE, ALL)
    high_sees, high_tile = _make_walk(arithmetic, NONE, ALL), _make_walk(arithmetic, NONE, BEFORE)

    @inlined
    def place(angle, position, first, shift, shared):
        """Publish a row and return it (zeros for a row that does not exist)."""
        cosine, sine = zero, zero
        if position >= first:
            sine, cosine = sincos(angle)
        if position >= np.int32(0):
            shared[np.int32(2) * position], shared[np.int32(2) * position + np.int32(1)] = cosine, sine
        return Angle(cosine, sine, shift * cosine, shift * sine)

    @inlined
    def velocity(z, f, shared, field):
        # Positions in shared memory are tokens, moved up so that their number is a multiple of four: then so are the starts of
        # all tiles, and four tokens are loaded at once.
        count, shift = rounded(field.tokens), field.shift
        first = np.int32(count - field.tokens)
        low_start, high_start, lane = deal(count)
        low, high = np.int32(low_start + lane), np.int32(high_start + lane)
        cuda.syncthreads()
        x = place(z[0], low, first, shift, shared)
        y = place(z[1], high, first, shift, shared)
        cuda.syncthreads()
        own = Own(x, y, low, high, first)
        # Sums begin with the token itself: weight one, and no force.
        p, a, b = np.int32(0), Pull(zero, one), Pull(zero, one)
        if first > np.int32(0):
            p, a, b = edge(p, np.int32(4), shared, own, shift, a, b)
        # Tokens before the tile of the low row; that tile, up to its diagonal, all of it before the high row; tokens that
        # only the high row sees; its tile.
        p, a, b = both_see(p, low_start, shared, own, shift, a, b)
        p, a, b = low_tile(p, np.int32(low_start + np.int32(LANES)), shared, own, shift, a, b)
        p, a, b = high_sees(p, high_start, shared, own, shift, a, b)
        p, a, b = high_tile(p, np.int32(high_start + np.int32(LANES)), shared, own, shift, a, b)
        f[0], f[1] = quotient(a.force, a.weight), quotient(b.force, b.weight)

    return velocity


def make_geometry(arithmetic: Arithmetic) -> Geometry:
    """Tokens of the circle by their angle."""
    sincos = make_sincos(np.float64)

    @cuda.jit(device=True)
    def read(y, at, starts, member, token):
        y[at] = math.atan2(starts[member, token, 1], starts[member, token, 0])

    @cuda.jit(device=True)
    def retract(z):
        return

    @cuda.jit(device=True)
    def write(z, at, out, member, slot, token):
        sine, cosine = sincos(z[at])
        out[member, slot, token, 0] = cosine
        out[member, slot, token, 1] = sine

    return Geometry(1, 2, make_velocity(arithmetic), read, retract, write)
