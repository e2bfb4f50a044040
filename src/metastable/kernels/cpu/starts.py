"""Uniform starts of many members in one compiled call, bit for bit those that NumPy draws one by one.

Member i draws from `numpy.random.default_rng(SeedSequence(seed, spawn_key=(i,)))`: its entropy is hashed into a pool of four words
(O'Neill's `seed_seq`), which seeds PCG64 (a linear congruence of 128 bits, output XSL-RR; M. O'Neill, 2014), which drives the
ziggurat of Marsaglia and Tsang (2000) with 256 layers. NumPy promises the first two for ever and the third in practice; its
tables are read from Numba, which has them for its own generators. A short look at the first numbers (`agrees`) says whether this
machine's NumPy still draws them; where it does not, members are drawn by NumPy itself.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from metastable import sphere
from metastable._checks import FloatArray
from metastable._jit import njit, part
from metastable.kernels.cpu.threads import thread_count

try:
    from numba.np.random._constants import fi_double, ki_double, wi_double, ziggurat_nor_inv_r, ziggurat_nor_r

    TABLES = (ki_double, wi_double, fi_double)
    EDGE, INVERSE_EDGE = float(ziggurat_nor_r), float(ziggurat_nor_inv_r)
except ImportError:  # a Numba that keeps them elsewhere
    TABLES, EDGE, INVERSE_EDGE = None, 0.0, 0.0

POOL = 4
"""Words of the pool that entropy is hashed into."""
SHORT_ROW = 8
"""NumPy adds up rows shorter than this from left to right."""
MOST_MEMBERS = 2**32
"""Numbers of members that are one word of entropy."""
_INIT_A, _MULT_A, _INIT_B, _MULT_B = (np.uint32(word) for word in (0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED))
_MIX_L, _MIX_R = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_HALF_WORD = np.uint32(16)
_PCG_HIGH, _PCG_LOW = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
_LOW = np.uint64(0xFFFFFFFF)
_MANTISSA = np.uint64(0x000FFFFFFFFFFFFF)
_ONE, _SMALL, _HALF, _MOST = np.uint64(1), np.uint64(8), np.uint64(32), np.uint64(63)


@part
def _hashed(word, constant, multiplier):
    """A word of entropy, hashed; and the next constant."""
    word = np.uint32(word ^ constant)
    constant = np.uint32(constant * multiplier)
    word = np.uint32(word * constant)
    return np.uint32(word ^ (word >> _HALF_WORD)), constant


@part
def _mixed(x, y):
    """Two words as one."""
    word = np.uint32(np.uint32(_MIX_L * x) - np.uint32(_MIX_R * y))
    return np.uint32(word ^ (word >> _HALF_WORD))


@part
def _seeds(entropy, seeds):
    """Four words of 64 bits out of entropy: `SeedSequence(...).generate_state(4, uint64)`."""
    pool = np.zeros(POOL, np.uint32)
    constant = _INIT_A
    for i in range(POOL):
        pool[i], constant = _hashed(entropy[i], constant, _MULT_A)
    for source in range(POOL):
        for target in range(POOL):
            if source != target:
                word, constant = _hashed(pool[source], constant, _MULT_A)
                pool[target] = _mixed(pool[target], word)
    for source in range(POOL, entropy.size):
        for target in range(POOL):
            word, constant = _hashed(entropy[source], constant, _MULT_A)
            pool[target] = _mixed(pool[target], word)
    constant = _INIT_B
    for i in range(2 * POOL):
        word, constant = _hashed(pool[i % POOL], constant, _MULT_B)
        if i % 2 == 0:
            seeds[i // 2] = np.uint64(word)
        else:
            seeds[i // 2] |= np.uint64(word) << _HALF


@part
def _high_product(a, b):
    """The upper 64 bits of a b."""
    a0, a1, b0, b1 = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    middle = a1 * b0 + ((a0 * b0) >> _HALF)
    other = a0 * b1 + (middle & _LOW)
    return a1 * b1 + (middle >> _HALF) + (other >> _HALF)


@part
def _step(high, low, more_high, more_low):
    """state * multiplier + increment, all of 128 bits, as high and low words."""
    product = low * _PCG_LOW
    carry = _high_product(low, _PCG_LOW) + high * _PCG_LOW + low * _PCG_HIGH
    total = product + more_low
    return carry + more_high + np.uint64(total < product), total


@part
def _begin(seeds):
    """PCG64 with the four words of a seed: its state and its increment, each as high and low words."""
    more_high = (seeds[2] << _ONE) | (seeds[3] >> _MOST)
    more_low = (seeds[3] << _ONE) | _ONE
    low = more_low + seeds[1]  # the first step leads from zero to the increment
    high = more_high + seeds[0] + np.uint64(low < seeds[1])
    high, low = _step(high, low, more_high, more_low)
    return high, low, more_high, more_low


@part
def _word(high, low):
    """64 random bits of a state."""
    word, turn = high ^ low, high >> np.uint64(58)
    return (word >> turn) | (word << ((np.uint64(64) - turn) & _MOST))


@part
def _double(high, low):
    """A number in [0, 1)."""
    return np.float64(_word(high, low) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@part
def _corner(high, low, more_high, more_low, size, layer, x, height):
    """What the ziggurat does beside its layers: (state, number, whether it counts)."""
    high, low = _step(high, low, more_high, more_low)
    if layer > 0:
        between = (height[layer - 1] - height[layer]) * _double(high, low) + height[layer]
        return high, low, x, between < math.exp(-0.5 * x * x)
    while True:
        beyond = -INVERSE_EDGE * math.log1p(-_double(high, low))
        high, low = _step(high, low, more_high, more_low)
        below = -math.log1p(-_double(high, low))
        if below + below > beyond * beyond:
            return high, low, -(EDGE + beyond) if (size >> _SMALL) & _ONE else EDGE + beyond, True
        high, low = _step(high, low, more_high, more_low)


@part
def _normal(high, low, more_high, more_low, tables):
    """The state after a standard normal number, and the number."""
    inside, width, height = tables
    while True:
        high, low = _step(high, low, more_high, more_low)
        word = _word(high, low)
        layer = np.int64(word & np.uint64(0xFF))
        word >>= _SMALL
        size = (word >> _ONE) & _MANTISSA
        x = np.float64(size) * width[layer]
        if word & _ONE:
            x = -x
        if size < inside[layer]:
            return high, low, x
        high, low, x, done = _corner(high, low, more_high, more_low, size, layer, x, height)
        if done:
            return high, low, x


@njit(nogil=True, cache=True)
def _fill(entropy, first, tables, normalised, out):
    """Gaussian rows of the members first, first + 1, ... into `out` (members, tokens, dim), of length one where `normalised`."""
    own, seeds = entropy.copy(), np.zeros(4, np.uint64)
    dim = out.shape[2]
    for member in range(out.shape[0]):
        own[-1] = np.uint32(first + member)
        _seeds(own, seeds)
        high, low, more_high, more_low = _begin(seeds)
        for token in range(out.shape[1]):
            row = out[member, token]
            square = 0.0
            for c in range(dim):
                high, low, row[c] = _normal(high, low, more_high, more_low, tables)
                square += row[c] * row[c]
            if normalised:
                length = math.sqrt(square)
                for c in range(dim):
                    row[c] /= length


def _entropy(seed: int) -> np.ndarray:
    """Words of entropy of a seed, with a last one for the number of a member."""
    words = [0] if seed == 0 else [(seed >> 32 * i) & 0xFFFFFFFF for i in range(-(-seed.bit_length() // 32))]
    words += [0] * (POOL - len(words))
    return np.array([*words, 0], dtype=np.uint32)


def _drawn(seed: int, first: int, members: int, tokens: int, dim: int, threads: int) -> FloatArray:
    out = np.empty((members, tokens, dim))
    entropy, short = _entropy(seed), dim < SHORT_ROW
    if threads == 1 or members < 2 * threads:
        _fill(entropy, first, TABLES, short, out)
    else:
        edges = np.linspace(0, members, threads + 1).astype(int)
        with ThreadPoolExecutor(threads, "metastable-starts") as pool:
            list(pool.map(lambda a, b: _fill(entropy, first + int(a), TABLES, short, out[a:b]), edges[:-1], edges[1:]))
    return out if short else sphere._retract(out)


def _one(seed: int, member: int, tokens: int, dim: int) -> FloatArray:
    """What is drawn, by NumPy."""
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(member,)))
    return sphere.uniform(tokens, dim=dim, seed=generator)


@cache
def agrees() -> bool:
    """True when compiled draws are those of NumPy on this machine: two members, 4096 numbers each, some of them in the tail."""
    return TABLES is not None and all(
        np.array_equal(_drawn(7, member, 1, 2048, 2, 1)[0], _one(7, member, 2048, 2)) for member in (0, 2**32 - 1)
    )


def uniform(seed: int, first: int, members: int, tokens: int, dim: int, threads: int | None = None) -> FloatArray:
    """Uniform starts of the members first, first + 1, ..., shape (members, tokens, dim)."""
    if first + members <= MOST_MEMBERS and agrees():
        available = thread_count(None)
        out = _drawn(seed, first, members, tokens, dim, available if threads is None else min(threads, available))
        if np.isfinite(out[..., 0]).all():  # a row of zeros, which has no direction, is drawn again: as NumPy does it
            return out
    return np.stack([_one(seed, member, tokens, dim) for member in range(first, first + members)])
