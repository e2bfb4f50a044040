"""Causal attention of one member on the circle, inside one thread block: the velocity that `members.py` integrates.

With z_k the angle of token k and sums over j < k

    dz_k/dt = sum_j w_kj sin(z_j - z_k) / (1 + sum_j w_kj),    w_kj = exp(beta (cos(z_j - z_k) - 1)).

Each thread owns two rows (tokens), dealt by `members.make_deal`. All loops have bounds that are the same for the whole warp; only
on the diagonal tiles are weights masked.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from metastable.kernels.cuda.intrinsics import Arithmetic, cuda, inlined, load_four, load_two, make_sincos
from metastable.kernels.cuda.members import Geometry, make_deal
from metastable.kernels.cuda.sums import Angle, Pull, make_gather

NONE, SOME, ALL = 0, 1, 2
"""How much of a tile a row sees: nothing (it is not asked), what lies before it, everything."""


class Own(NamedTuple):
    """The two rows of a thread: their positions in shared memory, and what they are."""

    low: Any
    high: Any
    x: Angle
    y: Angle


def _make_walk(arithmetic: Arithmetic, low: int, high: int):
    """Device functions for tiles of which the rows of a thread see `low` and `high`: one token, four at a time, two at a time.

    Arguments: p (position), its cosine and sine or `stop` and shared memory, the rows, the shift, the pulls a and b on them.
    """
    gather = make_gather(arithmetic)

    @inlined
    def token(p, cosine, sine, own, shift, a, b):
        if low != NONE:
            a = gather(low == ALL or p < own.low, cosine, sine, own.x, shift, a)
        b = gather(high == ALL or p < own.high, cosine, sine, own.y, shift, b)
        return a, b

    @inlined
    def fours(p, stop, shared, own, shift, a, b):
        last = np.int32(stop - np.int32(4))
        while p <= last:
            c0, s0, c1, s1 = load_four(shared, np.int32(2) * p)
            c2, s2, c3, s3 = load_four(shared, np.int32(2) * p + np.int32(4))
            a, b = token(p, c0, s0, own, shift, a, b)
            a, b = token(np.int32(p + np.int32(1)), c1, s1, own, shift, a, b)
            a, b = token(np.int32(p + np.int32(2)), c2, s2, own, shift, a, b)
            a, b = token(np.int32(p + np.int32(3)), c3, s3, own, shift, a, b)
            p = np.int32(p + np.int32(4))
        return p, a, b

    @inlined
    def twos(p, stop, shared, own, shift, a, b):
        while p < stop:
            c0, s0, c1, s1 = load_four(shared, np.int32(2) * p)
            a, b = token(p, c0, s0, own, shift, a, b)
            p = np.int32(p + np.int32(1))
            a, b = token(p, c1, s1, own, shift, a, b)
            p = np.int32(p + np.int32(1))
        return p, a, b

    return token, fours, twos


def make_velocity(arithmetic: Arithmetic, lanes: int):
    """The device function `velocity` of `Geometry` for warps of `lanes`."""
    real, quotient = arithmetic.real, arithmetic.quotient
    zero = real(0)
    sincos, deal = make_sincos(real), make_deal(lanes)
    either, _, _ = _make_walk(arithmetic, SOME, SOME)
    _, both_see, _ = _make_walk(arithmetic, ALL, ALL)
    _, low_tile, low_rest = _make_walk(arithmetic, SOME, ALL)
    _, high_sees, _ = _make_walk(arithmetic, NONE, ALL)
    _, high_tile, high_rest = _make_walk(arithmetic, NONE, SOME)

    @inlined
    def place(angle, position, first, shift, shared):
        """Publish a row and return it (zeros for a row that does not exist)."""
        cosine, sine = zero, zero
        if position >= first:
            sine, cosine = sincos(angle)
            shared[np.int32(2) * position], shared[np.int32(2) * position + np.int32(1)] = cosine, sine
        return Angle(cosine, sine, shift * cosine, shift * sine)

    @inlined
    def velocity(z, f, shared, field):
        # Positions in shared memory are tokens, moved up by one where that makes the number even: then tiles start at
        # even positions, and two tokens are loaded at once.
        shift = field.shift
        first = np.int32(field.tokens & np.int32(1))
        low_start, high_start, lane = deal(np.int32(field.tokens + first))
        low, high = np.int32(low_start + lane), np.int32(high_start + lane)
        cuda.syncthreads()
        x = place(z[0], low, first, shift, shared)
        y = place(z[1], high, first, shift, shared)
        cuda.syncthreads()
        own = Own(low, high, x, y)
        # Sums begin with the token itself: weight one, and no force.
        a, b = Pull(zero, real(1)), Pull(zero, real(1))
        low_end = max(np.int32(low_start + np.int32(lanes)), first)
        high_end = np.int32(high_start + np.int32(lanes))
        p = first
        if first == np.int32(1):
            cosine, sine = load_two(shared, np.int32(2))
            a, b = either(p, cosine, sine, own, shift, a, b)
            p = np.int32(2)
        # Tokens before the tile of the low row; that tile, up to its diagonal, all of it before the high row; tokens that
        # only the high row sees; its tile. What is left of a stretch that is not a multiple of four goes with the next tile.
        p, a, b = both_see(p, max(low_start, first), shared, own, shift, a, b)
        p, a, b = low_tile(p, low_end, shared, own, shift, a, b)
        p, a, b = low_rest(p, low_end, shared, own, shift, a, b)
        p, a, b = high_sees(p, max(high_start, first), shared, own, shift, a, b)
        p, a, b = high_tile(p, high_end, shared, own, shift, a, b)
        p, a, b = high_rest(p, high_end, shared, own, shift, a, b)
        f[0], f[1] = quotient(a.force, a.weight), quotient(b.force, b.weight)

    return velocity


def make_geometry(arithmetic: Arithmetic, lanes: int) -> Geometry:
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

    return Geometry(1, 2, make_velocity(arithmetic, lanes), read, retract, write)
