"""Attention on the sphere S^2 in O(tokens degree^2) on the GPU: spherical harmonics, by the formulas of `kernels.harmonics`.

With the sums A_lm + i B_lm = sum_j q_lm(z_j) (x_j + i y_j)^m over whom a token sees, its weights add up to

    Z = sum_lm q_lm(z) Re[(x - i y)^m (A_lm + i B_lm)],

and the attention sum is the tangent part of the gradient of Z over beta. Norms that ask for the part along the token need
sum_j w_j <x, x_j>: t exp(beta (t - 1)) has the coefficients h_l = l g_{l-1}/(2 l - 1) + (l + 1) g_{l+1}/(2 l + 3) where
exp(beta (t - 1)) has g_l, so that each degree counts h_l/g_l times more (`lift`).

Tokens that see one another wholly share one total. Under a causal mask there are prefix sums between chunks of tokens, and
direct sums inside them, as on the circle (`series`). All three kernels walk through the harmonics in one order: m = 0..L, and within
each m l = m..L.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import NumericalRangeError
from metastable.kernels.cuda.device import SIMULATED
from metastable.kernels.cuda.intrinsics import ALIGNMENT, ARITHMETIC, Arithmetic, cuda, inlined, load_four, load_two
from metastable.kernels.cuda.support import LARGEST_DEGREE
from metastable.kernels.cuda.tables import BATCH, CHUNK, LINE, QUARTERS, STORAGE, VALUES, make_fold
from metastable.kernels.harmonics import SMALLEST_BETA, harmonic_sums, sphere_series
from metastable.kernels.minimax import LOG2E

PAD = 4
"""Numbers per token in device memory."""

ROWS = 2 if SIMULATED else 4
"""Tokens per thread where sums are formed."""

BLOCK = ROWS * CHUNK
"""Tokens to a line of the table, and threads per block where a causal mask is evaluated."""

PAIR = 2
"""Tokens per thread where all see the same total: they share the loads of sums and coefficients."""

DEGREE_TOLERANCE = {"float64": 1e-15, "float32": 1e-10}
"""Sum of the coefficients that are cut off, by precision: below the rounding of a pair."""


def coefficients(beta: float, dtype: str) -> tuple[int, int, FloatArray, FloatArray]:
    """Degree L, the number of harmonics, `rise` and `fall` of each (one after the other), and `lift`; with zeros behind them to
    whole batches."""
    degree, _, rise, fall = sphere_series(beta, 1, DEGREE_TOLERANCE[dtype])
    if degree > LARGEST_DEGREE[dtype]:
        raise NumericalRangeError(
            f"a series for beta = {beta:g} needs degree {degree}, but harmonics above degree {LARGEST_DEGREE[dtype]} leave {dtype}; "
            "use interaction='direct' or dtype='float64'"
        )
    from scipy.special import ive

    size, l = max(beta, SMALLEST_BETA), np.arange(degree + 2)
    bessel = ive(l + 0.5, size)
    # g_l is proportional to (2 l + 1) I_{l+1/2}: h_l / g_l = (l I_{l-1/2} + (l + 1) I_{l+3/2}) / ((2 l + 1) I_{l+1/2}).
    below, own, above = np.append(0.0, bessel[:-2]), bessel[:-1], bessel[1:]
    ratio = np.divide(l[:-1] * below + l[1:] * above, (2 * l[:-1] + 1) * own, out=np.zeros(degree + 1), where=own > 0)
    room = -(-rise.size // BATCH) * BATCH
    series, lift = np.zeros((room, 2)), np.zeros(room)
    series[: rise.size, 0], series[: rise.size, 1] = rise, fall
    lift[: rise.size] = np.concatenate([ratio[m:] for m in range(degree + 1)])
    return degree, rise.size, series.ravel(), lift


class Power(NamedTuple):
    """(x + i y)^m of a token, and behind it (x + i y)^(m - 1)."""

    real: Any
    imaginary: Any
    real_old: Any
    imaginary_old: Any


class Climb(NamedTuple):
    """q_lm and its derivative in z, and behind them those of l - 1."""

    value: Any
    slope: Any
    value_old: Any
    slope_old: Any


class Order(NamedTuple):
    """Sums over the degrees of one order m, times A_lm (`even`) and B_lm (`odd`): of q_lm, of its derivative, and of q_lm lifted."""

    even: Any
    odd: Any
    even_slope: Any
    odd_slope: Any
    even_lift: Any
    odd_lift: Any


class Found(NamedTuple):
    """The sum of weights of a token, its gradient, and the sum of weights times cosines."""

    weight: Any
    x: Any
    y: Any
    z: Any
    along: Any


def make_walk(arithmetic: Arithmetic, lengths: bool):
    """A part of kernels: `walk(one, two, sums, degree, series, lift)` finds Z and its gradient at two points (x, y, z), which share
    the loads of `sums` (A and B of each harmonic) and of `series` (rise and fall of each). The sum along the point needs `lengths`."""
    real = arithmetic.real
    zero, unit = real(0), real(1)

    @inlined
    def climbed(q, z, rise, fall):
        up = z * rise
        slope = up * q.slope + (rise * q.value - fall * q.slope_old)
        return Climb(up * q.value - fall * q.value_old, slope, q.value, q.slope)

    @inlined
    def with_degree(order, q, a, b, lift):
        even, odd = order.even + q.value * a, order.odd + q.value * b
        even_slope, odd_slope = order.even_slope + q.slope * a, order.odd_slope + q.slope * b
        if lengths:
            lifted = lift * q.value
            return Order(even, odd, even_slope, odd_slope, order.even_lift + lifted * a, order.odd_lift + lifted * b)
        return Order(even, odd, even_slope, odd_slope, zero, zero)

    @inlined
    def with_order(found, order, power, m):
        c, s, old_c, old_s = power.real, power.imaginary, power.real_old, power.imaginary_old
        return Found(
            found.weight + (order.even * c + order.odd * s),
            found.x + m * (order.even * old_c + order.odd * old_s),
            found.y + m * (order.odd * old_c - order.even * old_s),
            found.z + (order.even_slope * c + order.odd_slope * s),
            found.along + (order.even_lift * c + order.odd_lift * s),
        )

    @inlined
    def turned(power, token):
        c, s = power.real, power.imaginary
        return Power(c * token[0] - s * token[1], c * token[1] + s * token[0], c, s)

    @inlined
    def walk(one, two, sums, degree, series, lift):
        power_1 = power_2 = Power(unit, zero, zero, zero)
        found_1 = found_2 = Found(zero, zero, zero, zero, zero)
        place = np.int32(0)
        for m in range(degree + 1):
            q1 = q2 = Climb(zero, zero, -unit, zero)
            order_1 = order_2 = Order(zero, zero, zero, zero, zero, zero)
            for _ in range(m, degree + 1):
                rise, fall = load_two(series, np.int32(2 * place))
                a, b = load_two(sums, np.int32(2 * place))
                lifting = lift[place] if lengths else zero
                q1, q2 = climbed(q1, one[2], rise, fall), climbed(q2, two[2], rise, fall)
                order_1, order_2 = with_degree(order_1, q1, a, b, lifting), with_degree(order_2, q2, a, b, lifting)
                place = np.int32(place + np.int32(1))
            found_1 = with_order(found_1, order_1, power_1, real(m))
            found_2 = with_order(found_2, order_2, power_2, real(m))
            power_1, power_2 = turned(power_1, one), turned(power_2, two)
        return found_1, found_2

    return walk


def make_finish(lengths: bool):
    """A part of kernels: `finish(token, at, pull, along, divisor, drift)` writes the attention sum of the token with this number: the
    tangent part of `pull` and, with `lengths`, the part along the token."""

    @inlined
    def finish(token, at, pull, along, divisor, drift):
        radial = pull[0] * token[0] + pull[1] * token[1] + pull[2] * token[2]
        for i in range(3):
            value = pull[i] - radial * token[i]
            if lengths:
                value += along * token[i]
            drift[at, i] = value / divisor

    return finish


def make_token(arithmetic: Arithmetic):
    """A part of kernels: `token(x, at, present)` is the point with this number, or the north pole."""
    zero, unit = arithmetic.real(0), arithmetic.real(1)

    @inlined
    def token(x, at, present):
        if present:
            a, b, c, _ = load_four(x, np.int32(at * np.int32(PAD)))
            return a, b, c
        return zero, zero, unit

    return token


@lru_cache(maxsize=2)
def make_gather(arithmetic: Arithmetic) -> Any:
    """Kernel `gather(x, last, degree, harmonics, series, table)`: sums of q_lm (x + i y)^m over blocks of `BLOCK` of the first `last`
    tokens, two columns for each harmonic. A thread adds up its `ROWS` tokens before anything is written to shared memory."""
    real, number = arithmetic.real, arithmetic.number
    fold, token_at = make_fold(arithmetic), make_token(arithmetic)

    @cuda.jit
    def gather(x, last, degree, harmonics, series, table):
        shared = cuda.shared.array(STORAGE, number)
        quarters = cuda.shared.array((VALUES, QUARTERS), number)
        xs, ys, zs = cuda.local.array(ROWS, number), cuda.local.array(ROWS, number), cuda.local.array(ROWS, number)
        c, s = cuda.local.array(ROWS, number), cuda.local.array(ROWS, number)
        q, q_old = cuda.local.array(ROWS, number), cuda.local.array(ROWS, number)
        thread, block = np.int32(cuda.threadIdx.x), np.int32(cuda.blockIdx.x)
        for r in range(ROWS):
            at = np.int32(block * np.int32(BLOCK) + r * CHUNK + thread)
            xs[r], ys[r], zs[r] = token_at(x, at, at < last)
            c[r], s[r], q[r], q_old[r] = real(0), real(0), real(0), real(-1)
            if at < last:
                c[r] = real(1)
        place, order, l = np.int32(0), np.int32(0), np.int32(0)
        while place < harmonics:
            for b in range(BATCH):
                if l > degree:
                    order = np.int32(order + np.int32(1))
                    l = order
                    for r in range(ROWS):
                        turned = c[r] * xs[r] - s[r] * ys[r]
                        s[r] = c[r] * ys[r] + s[r] * xs[r]
                        c[r] = turned
                        q[r], q_old[r] = real(0), real(-1)
                rise, fall = load_two(series, np.int32(2 * (place + b)))
                reals, imaginaries = real(0), real(0)
                for r in range(ROWS):
                    value = (zs[r] * rise) * q[r] - fall * q_old[r]
                    q_old[r] = q[r]
                    q[r] = value
                    reals += value * c[r]
                    imaginaries += value * s[r]
                shared[np.int32(2 * b * LINE) + thread] = reals
                shared[np.int32((2 * b + 1) * LINE) + thread] = imaginaries
                l = np.int32(l + np.int32(1))
            cuda.syncthreads()
            fold(shared, quarters, thread, place, harmonics, table[block])
            place = np.int32(place + np.int32(BATCH))

    return gather


@lru_cache(maxsize=8)
def make_total(arithmetic: Arithmetic, lengths: bool) -> Any:
    """Kernel `evaluate(x, total, degree, series, lift, inverse, fixed, first, last, drift)`: the attention sums of the tokens
    first..last-1, who all see the `total` (2 harmonics,); `inverse` is 1/beta, `fixed` what to divide by, or 0: the sum of weights."""
    real = arithmetic.real
    walk, finish, token_at = make_walk(arithmetic, lengths), make_finish(lengths), make_token(arithmetic)

    @cuda.jit
    def evaluate(x, total, degree, series, lift, inverse, fixed, first, last, drift):
        at_1 = np.int32(first + cuda.blockIdx.x * np.int32(PAIR * CHUNK) + cuda.threadIdx.x)
        at_2 = np.int32(at_1 + np.int32(CHUNK))
        one, two = token_at(x, at_1, at_1 < last), token_at(x, at_2, at_2 < last)
        found_1, found_2 = walk(one, two, total, degree, series, lift)
        if at_1 < last:
            pull = inverse * found_1.x, inverse * found_1.y, inverse * found_1.z
            finish(one, at_1, pull, found_1.along, fixed if fixed > real(0) else found_1.weight, drift)
        if at_2 < last:
            pull = inverse * found_2.x, inverse * found_2.y, inverse * found_2.z
            finish(two, at_2, pull, found_2.along, fixed if fixed > real(0) else found_2.weight, drift)

    return evaluate


@lru_cache(maxsize=8)
def make_causal(arithmetic: Arithmetic, lengths: bool) -> Any:
    """Kernel `evaluate(x, table, degree, series, lift, inverse, shift, first, drift)`: the attention sums of the tokens from `first` on
    under a causal mask; `table` (chunks, 2 harmonics) holds sums over the chunks before each, `shift` is beta log2(e).

    A thread has a token from the beginning of the chunk and one from its end: all have as many pairs inside it.
    """
    real, number, exp2 = arithmetic.real, arithmetic.number, arithmetic.exp2
    walk, finish, token_at = make_walk(arithmetic, lengths), make_finish(lengths), make_token(arithmetic)
    storage = PAD * BLOCK

    @inlined
    def finish_row(token, thread, shared, found, inverse, shift, at, drift):
        x, y, z = inverse * found.x, inverse * found.y, inverse * found.z
        weight, along = found.weight + real(1), found.along + real(1)
        for j in range(thread):
            a, b, c, _ = load_four(shared, np.int32(j * PAD))
            cosine = a * token[0] + b * token[1] + c * token[2]
            w = exp2(shift * cosine - shift)
            weight += w
            # Differences: what a token shares with its neighbours is never added up.
            x += w * (a - token[0])
            y += w * (b - token[1])
            z += w * (c - token[2])
            if lengths:
                along += w * cosine
        finish(token, at, (x, y, z), along, weight, drift)

    @cuda.jit
    def evaluate(x, table, degree, series, lift, inverse, shift, first, drift):
        shared = cuda.shared.array(storage, number, alignment=ALIGNMENT)
        thread, chunk = np.int32(cuda.threadIdx.x), np.int32(cuda.blockIdx.x)
        other = np.int32(np.int32(BLOCK - 1) - thread)
        base, tokens = np.int32(chunk * np.int32(BLOCK)), np.int32(drift.shape[0])
        at_1, at_2 = np.int32(base + thread), np.int32(base + other)
        one, two = token_at(x, at_1, at_1 < tokens), token_at(x, at_2, at_2 < tokens)
        for i in range(3):
            shared[thread * np.int32(PAD) + i] = one[i]
            shared[other * np.int32(PAD) + i] = two[i]
        cuda.syncthreads()
        found_1, found_2 = walk(one, two, table[chunk], degree, series, lift)
        if first <= at_1 and at_1 < tokens:
            finish_row(one, thread, shared, found_1, inverse, shift, at_1, drift)
        if first <= at_2 and at_2 < tokens:
            finish_row(two, other, shared, found_2, inverse, shift, at_2, drift)

    return evaluate


class Harmonics:
    """Series on the sphere as `engine.SeriesSums` asks for them: `columns` numbers in a sum, `chunk` (`block`) tokens to a line of
    the table of prefix sums (of a total)."""

    pad, chunk, block = PAD, BLOCK, BLOCK

    def __init__(self, beta: float, dtype: str, lengths: bool) -> None:
        degree, harmonics, series, lift = coefficients(beta, dtype)
        self.arithmetic, self.lengths = ARITHMETIC[dtype], lengths
        real = self.arithmetic.real
        self.degree, self.harmonics, self.columns = np.int32(degree), np.int32(harmonics), 2 * harmonics
        self.terms = series
        self.series, self.lift = cuda.to_device(series.astype(real)), cuda.to_device(lift.astype(real))
        self.inverse, self.shift = real(1.0 / max(beta, SMALLEST_BETA)), real(LOG2E * beta)

    def constant(self, tokens: FloatArray, weights: FloatArray) -> FloatArray:
        """What frozen tokens add to a total, (columns,)."""
        rise, fall = self.terms[0 : self.columns : 2], self.terms[1 : self.columns : 2]
        return harmonic_sums(tokens, weights, rise, fall).ravel()

    def sums(self, x: Any, table: Any) -> None:
        """Sums over the chunks."""
        self.gather(x, np.int32(len(x) // PAD), table)

    def evaluate(self, x: Any, table: Any, first: np.int32, drift: Any) -> None:
        """Attention sums of the tokens from `first` on, from sums over the chunks before each one."""
        kernel = make_causal(self.arithmetic, self.lengths)
        given = self.degree, self.series, self.lift, self.inverse, self.shift
        kernel[len(table), BLOCK // PAIR](x, table, *given, first, drift)

    def gather(self, x: Any, last: np.int32, table: Any) -> None:
        """Sums over blocks of the first `last` tokens."""
        kernel = make_gather(self.arithmetic)
        kernel[len(table), CHUNK](x, last, self.degree, self.harmonics, self.series, table)

    def evaluate_total(self, x: Any, total: Any, count: Any, fixed: Any, rows: tuple[Any, Any], drift: Any) -> None:
        """Attention sums of the tokens rows[0]..rows[1]-1, who all see the total (which holds their number, too)."""
        kernel, (first, last) = make_total(self.arithmetic, self.lengths), rows
        given = self.degree, self.series, self.lift, self.inverse
        kernel[-(-int(last - first) // (PAIR * CHUNK)), CHUNK](x, total, *given, fixed, first, last, drift)
