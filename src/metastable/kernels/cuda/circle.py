"""Causal attention of one member on the circle, inside one thread block: the velocity that `members.py` integrates.

Each thread owns two rows (tokens), one of a tile from the end of the sequence and one of a tile from its beginning, so that every
warp has the same share of the triangle. Tiles are counted from the last token backwards: the ragged one is the first,
where rows are short. All loops have bounds that are the same for the whole warp; only on the diagonal tiles are weights masked.

With z_k the angle of token k and sums over j < k

    dz_k/dt = sum_j w_kj sin(z_j - z_k) / (1 + sum_j w_kj),    w_kj = exp(beta (cos(z_j - z_k) - 1)),

the sine is formed pair by pair, which costs one operation more than summing cosines and sines apart and is several times more
accurate: what cancels is never added up.
"""

from __future__ import annotations

import math

import numpy as np

from metastable.kernels.cuda.geometry import Geometry
from metastable.kernels.cuda.intrinsics import (
    cuda,
    exp2_double,
    exp2_single,
    inlined,
    load_four,
    load_two,
    make_sincos,
    quotient_double,
    quotient_single,
)


def _make_gather(real, exact: bool):
    """Device functions that add one token to the sums of a row, always or only if it is seen.

    `exact`: sum w sin(z_j - z_k) pair by pair. Otherwise sum w cos z_j and w sin z_j apart (one operation less per pair) and
    combine them at the end: an absolute error of the size of rounding. Sums are triples, of which the exact form uses two.
    """
    exp2 = exp2_single if real is np.float32 else exp2_double
    quotient = quotient_single if real is np.float32 else quotient_double
    zero = real(0)

    @inlined
    def add(w, cosine, sine, own, sums):
        if exact:
            return sums[0] + w * (sine * own[0] - cosine * own[1]), sums[1], sums[2] + w
        return sums[0] + w * cosine, sums[1] + w * sine, sums[2] + w

    @inlined
    def gather(cosine, sine, own, shift, sums):
        return add(exp2(cosine * own[2] + (sine * own[3] - shift)), cosine, sine, own, sums)

    @inlined
    def gather_if(seen, cosine, sine, own, shift, sums):
        w = exp2(cosine * own[2] + (sine * own[3] - shift))
        return add(w if seen else zero, cosine, sine, own, sums)

    @inlined
    def start(own):
        """Sums that hold the token itself: weight one, and no force."""
        if exact:
            return zero, zero, real(1)
        return own[0], own[1], real(1)

    @inlined
    def force(own, sums):
        if exact:
            return quotient(sums[0], sums[2])
        return quotient(sums[1] * own[0] - sums[0] * own[1], sums[2])

    return gather, gather_if, start, force


def make_velocity(real, lanes: int, exact: bool = True):
    """The device function `velocity` of `Geometry` in the precision `real`, for warps of `lanes`."""
    sincos = make_sincos(real)
    zero = real(0)
    gather, gather_if, start, force = _make_gather(real, exact)

    @inlined
    def place(angle, position, first, shift, shared):
        """Publish a row; returns its cosine and sine, plain and scaled by the shift (zeros for a row that does not exist)."""
        cosine, sine = zero, zero
        if position >= first:
            sine, cosine = sincos(angle)
            shared[np.int32(2) * position], shared[np.int32(2) * position + np.int32(1)] = cosine, sine
        return cosine, sine, shift * cosine, shift * sine

    @inlined
    def velocity(z, f, shared, tokens, shift, matrices):
        # Positions in shared memory are tokens, moved up by one where that makes the number even: then tiles start at
        # even positions, and two tokens are loaded at once.
        first = np.int32(tokens & np.int32(1))
        count = np.int32(tokens + first)
        tiles = np.int32((count + np.int32(lanes - 1)) // np.int32(lanes))
        thread = np.int32(cuda.threadIdx.x)
        warp = np.int32(thread // np.int32(lanes))
        lane = np.int32(thread - warp * np.int32(lanes))
        high_start = np.int32(count - np.int32(lanes) * np.int32(warp + np.int32(1)))
        low_start = np.int32(count - np.int32(lanes) * np.int32(tiles - warp + np.int32(tiles & np.int32(1))))
        low, high = np.int32(low_start + lane), np.int32(high_start + lane)
        cuda.syncthreads()
        x = place(z[0], low, first, shift, shared)
        y = place(z[1], high, first, shift, shared)
        cuda.syncthreads()
        a, b = start(x), start(y)
        low_end = max(np.int32(low_start + np.int32(lanes)), first)
        high_end = np.int32(high_start + np.int32(lanes))
        low_start, high_start = max(low_start, first), max(high_start, first)
        p = first
        if first == np.int32(1):
            c0, s0 = load_two(shared, np.int32(2))
            a = gather_if(p < low, c0, s0, x, shift, a)
            b = gather_if(p < high, c0, s0, y, shift, b)
            p = np.int32(2)
        # Tokens before the tile of the low row: both rows see all of them. `last`: where four more tokens may start.
        last = np.int32(low_start - np.int32(4))
        while p <= last:
            c0, s0, c1, s1 = load_four(shared, np.int32(2) * p)
            c2, s2, c3, s3 = load_four(shared, np.int32(2) * p + np.int32(4))
            a = gather(c0, s0, x, shift, a)
            b = gather(c0, s0, y, shift, b)
            a = gather(c1, s1, x, shift, a)
            b = gather(c1, s1, y, shift, b)
            a = gather(c2, s2, x, shift, a)
            b = gather(c2, s2, y, shift, b)
            a = gather(c3, s3, x, shift, a)
            b = gather(c3, s3, y, shift, b)
            p = np.int32(p + np.int32(4))
        # The tile of the low row, up to its diagonal; all of it lies before the high row.
        last = np.int32(low_end - np.int32(4))
        while p <= last:
            c0, s0, c1, s1 = load_four(shared, np.int32(2) * p)
            c2, s2, c3, s3 = load_four(shared, np.int32(2) * p + np.int32(4))
            a = gather_if(p < low, c0, s0, x, shift, a)
            b = gather(c0, s0, y, shift, b)
            a = gather_if(np.int32(p + np.int32(1)) < low, c1, s1, x, shift, a)
            b = gather(c1, s1, y, shift, b)
            a = gather_if(np.int32(p + np.int32(2)) < low, c2, s2, x, shift, a)
            b = gather(c2, s2, y, shift, b)
            a = gather_if(np.int32(p + np.int32(3)) < low, c3, s3, x, shift, a)
            b = gather(c3, s3, y, shift, b)
            p = np.int32(p + np.int32(4))
        while p < low_end:
            c0, s0, c1, s1 = load_four(shared, np.int32(2) * p)
            a = gather_if(p < low, c0, s0, x, shift, a)
            b = gather(c0, s0, y, shift, b)
            p = np.int32(p + np.int32(1))
            a = gather_if(p < low, c1, s1, x, shift, a)
            b = gather(c1, s1, y, shift, b)
            p = np.int32(p + np.int32(1))
        # Tokens that only the high row sees.
        last = np.int32(high_start - np.int32(4))
        while p <= last:
            c0, s0, c1, s1 = load_four(shared, np.int32(2) * p)
            c2, s2, c3, s3 = load_four(shared, np.int32(2) * p + np.int32(4))
            b = gather(c0, s0, y, shift, b)
            b = gather(c1, s1, y, shift, b)
            b = gather(c2, s2, y, shift, b)
            b = gather(c3, s3, y, shift, b)
            p = np.int32(p + np.int32(4))
        # The tile of the high row, up to its diagonal.
        last = np.int32(high_end - np.int32(4))
        while p <= last:
            c0, s0, c1, s1 = load_four(shared, np.int32(2) * p)
            c2, s2, c3, s3 = load_four(shared, np.int32(2) * p + np.int32(4))
            b = gather_if(p < high, c0, s0, y, shift, b)
            b = gather_if(np.int32(p + np.int32(1)) < high, c1, s1, y, shift, b)
            b = gather_if(np.int32(p + np.int32(2)) < high, c2, s2, y, shift, b)
            b = gather_if(np.int32(p + np.int32(3)) < high, c3, s3, y, shift, b)
            p = np.int32(p + np.int32(4))
        while p < high_end:
            c0, s0, c1, s1 = load_four(shared, np.int32(2) * p)
            b = gather_if(p < high, c0, s0, y, shift, b)
            p = np.int32(p + np.int32(1))
            b = gather_if(p < high, c1, s1, y, shift, b)
            p = np.int32(p + np.int32(1))
        f[0], f[1] = force(x, a), force(y, b)

    return velocity


def make_geometry(real, lanes: int, exact: bool = True) -> Geometry:
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

    return Geometry(1, 2, make_velocity(real, lanes, exact), read, retract, write)
