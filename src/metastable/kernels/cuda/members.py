"""Many members at once: one thread block integrates one member from start to end with an adaptive Runge-Kutta method.

The march is the one of `integrate.march` (first step, error norm, controller, dense output, status), written as one loop around a
single evaluation of the velocity, so that the pair loops occur once in the machine code. Each member has its own step size, and
nothing leaves the multiprocessor between steps. Each thread owns two tokens.

States are kept in double precision also where velocities are computed in single precision: adding up many small steps
then loses nothing. Slopes of earlier stages live in thread-local memory, since a stage reads them once while it evaluates
hundreds of pairs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from metastable.kernels.cuda.device import LANES
from metastable.kernels.cuda.intrinsics import ALIGNMENT, Arithmetic, cuda, inlined, kernel, load_four

SUCCESS, MAX_STEPS, DIVERGED = 0, 1, 2
"""Values of the status column of the statistics."""

STATISTICS = ("accepted", "rejected", "evaluations", "status")
"""Columns of the statistics of a member."""

FIRST_SLOPE, PROBE = -2, -1
"""Stages before the first step: the slope at the start, and the trial step that measures curvature."""


class Scheme(NamedTuple):
    """A first-same-as-last method (an `integrate.tableau.Tableau`) and its step control (the constants of `integrate.control`)."""

    tableau: Any
    control: Any


class Field(NamedTuple):
    """What a velocity depends on: the number of tokens, beta log2(e), and the matrices of the heads."""

    tokens: Any
    shift: Any
    matrices: Any


class Output(NamedTuple):
    """Where results go: increasing `times` (slots,), `states` (members, slots, tokens, dim), `statistics` (members, 4)."""

    times: Any
    states: Any
    statistics: Any


class Limits(NamedTuple):
    """When a step is good enough (rtol + atol), and after how many attempts to give up."""

    tolerance: Any
    max_steps: Any


class Geometry(NamedTuple):
    """How tokens are represented inside a block (`circle.py`, `sphere.py`); a thread holds two, low and high, one behind the other.

    - `components`: numbers per token in the state that is integrated, `coordinates`: numbers per token in shared memory.
    - `velocity(z, f, shared, field)`: slopes `f` (2 components,) at the states `z` of all threads.
    - `read(y, at, starts, member, token)`: one token of the start into `y[at:]`.
    - `retract(z)`: put new states back on the sphere.
    - `write(z, at, out, member, slot, token)`: the unit vector of the state `z[at:]` into the output.
    """

    components: int
    coordinates: int
    velocity: Any
    read: Any
    retract: Any
    write: Any


@inlined
def rounded(tokens):
    """The next multiple of four, as `support.padded`."""
    return np.int32((tokens + np.int32(3)) & np.int32(-4))


@inlined
def deal(count):
    """The first rows of the low and of the high tile of this warp, and the lane of this thread.

    A thread gets a row of a tile from the end of the sequence and one of a tile from its beginning, so that every warp has the
    same share of the triangle. Tiles are counted from the last row backwards: the ragged one is the first, where rows are short.
    Rows below zero do not exist.
    """
    tiles = np.int32((count + np.int32(LANES - 1)) // np.int32(LANES))
    thread = np.int32(cuda.threadIdx.x)
    warp = np.int32(thread // np.int32(LANES))
    low = np.int32(count - np.int32(LANES) * np.int32(tiles - warp + np.int32(tiles & np.int32(1))))
    high = np.int32(count - np.int32(LANES) * np.int32(warp + np.int32(1)))
    return low, high, np.int32(thread - warp * np.int32(LANES))


def make_block_sum(arithmetic: Arithmetic):
    """A device function that adds one number per thread over the block, in an order that does not depend on timing.

    The threads of the first warp add up their columns, then every thread adds up the warp. `offset` is a multiple of four.
    """
    zero = arithmetic.real(0)

    @inlined
    def block_sum(value, shared, offset):
        thread, threads = np.int32(cuda.threadIdx.x), np.int32(cuda.blockDim.x)
        cuda.syncthreads()
        shared[offset + thread] = value
        cuda.syncthreads()
        if thread < np.int32(LANES):
            other = np.int32(thread + np.int32(LANES))
            while other < threads:
                value += shared[offset + other]
                other = np.int32(other + np.int32(LANES))
            shared[offset + thread] = value
        cuda.syncthreads()
        a, b, c, d = zero, zero, zero, zero
        for i in range(0, LANES, 4):
            a1, b1, c1, d1 = load_four(shared, np.int32(offset + np.int32(i)))
            a += a1
            b += b1
            c += c1
            d += d1
        return (a + b) + (c + d)

    return block_sum


def make_controller(arithmetic: Arithmetic, control: Any):
    """`accepted_factor(error, previous, after_rejection)` and `rejected_factor(error)` of `integrate.control`, on the device."""
    real, power = arithmetic.real, arithmetic.power
    safety, grow, shrink = real(control.SAFETY), real(control.GROW), real(control.SHRINK)
    proportional, integral, root = real(-control.PROPORTIONAL), real(control.INTEGRAL), real(-1.0 / control.ORDER)
    floor, one = real(control.ERROR_FLOOR), real(1)

    @cuda.jit(device=True)
    def accepted_factor(error, previous, after_rejection):
        factor = safety * power(max(error, floor), proportional) * power(max(previous, floor), integral)
        factor = min(grow, max(shrink, factor))
        return min(factor, one) if after_rejection else factor

    @cuda.jit(device=True)
    def rejected_factor(error):
        if math.isinf(error) or math.isnan(error):
            return shrink
        return max(shrink, safety * power(error, root))

    return accepted_factor, rejected_factor


def make_combine(arithmetic: Arithmetic, scheme: Scheme, width: int):
    """`combine(row, count, k, f)`: f = sum_{j < count} weights[row, j] k_j of the `width` numbers of a thread.

    Rows are those of the tableau; behind the last one stand the weights of the error.
    """
    real, zero = arithmetic.real, arithmetic.real(0)
    table = np.concatenate([scheme.tableau.a, [scheme.tableau.error]]).astype(real)

    @inlined
    def combine(row, count, k, f):
        weights = cuda.const.array_like(table)
        for i in range(width):
            f[i] = zero
        for j in range(count):
            weight = weights[row, j]
            for i in range(width):
                f[i] += weight * k[j * np.int32(width) + i]

    return combine


def make_interpolate(arithmetic: Arithmetic, scheme: Scheme, width: int):
    """`interpolate(k, y, z, step, fraction)`: the dense output of a step from y at the fraction of it, into z."""
    real, stages = arithmetic.real, scheme.tableau.stages
    table = scheme.tableau.dense.astype(real)

    @cuda.jit(device=True)
    def interpolate(k, y, z, step, fraction):
        weights = cuda.const.array_like(table)
        u = real(fraction)
        for i in range(width):
            z[i] = y[i]
        for stage in range(stages):
            weight = u * (weights[stage, 0] + u * (weights[stage, 1] + u * (weights[stage, 2] + u * weights[stage, 3])))
            for i in range(width):
                z[i] += step * np.float64(weight * k[stage * width + i])

    return interpolate


def make_kernel(arithmetic: Arithmetic, geometry: Geometry, scheme: Scheme, **options):
    """The kernel `integrate(starts, until, field, output, limits)`, one member per block: from `starts` (members, tokens, dim) to
    the depth `until`. Dynamic shared memory: `support.shared_bytes`."""
    real, number = arithmetic.real, arithmetic.number
    half, width, coordinates = geometry.components, 2 * geometry.components, geometry.coordinates
    velocity, read, retract, write = geometry.velocity, geometry.read, geometry.retract, geometry.write
    stages, last = scheme.tableau.stages, scheme.tableau.stages - 1
    slopes = stages * width
    block_sum, combine = make_block_sum(arithmetic), make_combine(arithmetic, scheme, width)
    interpolate = make_interpolate(arithmetic, scheme, width)
    accepted_factor, rejected_factor = make_controller(arithmetic, scheme.control)
    zero, one, first_error = real(0), real(1), real(scheme.control.FIRST_ERROR)
    inverse_order = 1.0 / scheme.control.ORDER

    @cuda.jit(device=True)
    def root_mean_square(values, shared, field):
        square = zero
        for i in range(width):
            square += values[i] * values[i]
        behind_coordinates = np.int32(coordinates) * rounded(field.tokens)
        return real(math.sqrt(block_sum(square, shared, behind_coordinates) / real(field.tokens)))

    @cuda.jit(device=True)
    def save(z, output, slot, low, high):
        member = np.int32(cuda.blockIdx.x)
        if low >= np.int32(0):
            write(z, np.int32(0), output.states, member, slot, low)
        if high >= np.int32(0):
            write(z, np.int32(half), output.states, member, slot, high)

    @inlined
    def advance(stage, k, y, step, f, z):
        """z = y + step times the combination of slopes where `stage` is evaluated."""
        combine(stage, stage, k, f)
        for i in range(width):
            z[i] = y[i] + step * np.float64(f[i])

    @kernel(**options)
    def integrate(starts, until, field, output, limits):
        shared = cuda.shared.array(0, number, alignment=ALIGNMENT)
        y, z = cuda.local.array(width, numba.float64), cuda.local.array(width, numba.float64)
        f, k = cuda.local.array(width, number), cuda.local.array(slopes, number)
        member, thread = np.int32(cuda.blockIdx.x), np.int32(cuda.threadIdx.x)
        times, slots = output.times, np.int32(output.times.shape[0])
        low, high, lane = deal(field.tokens)
        low, high = np.int32(low + lane), np.int32(high + lane)
        for i in range(width):
            y[i] = 1.0  # a row that does not exist stands still here
            f[i] = zero
        if low >= np.int32(0):
            read(y, np.int32(0), starts, member, low)
        if high >= np.int32(0):
            read(y, np.int32(half), starts, member, high)
        slot = np.int32(0)
        if slots > np.int32(0) and times[0] <= 0.0:
            save(y, output, slot, low, high)
            slot = np.int32(1)
        for i in range(width):
            z[i] = y[i]
        t, h, step, trial, speed = 0.0, 0.0, 0.0, 0.0, 0.0
        previous = first_error
        accepted, rejected, evaluations, status = np.int32(0), np.int32(0), np.int32(0), np.int32(SUCCESS)
        after_rejection, lands = False, False
        stage = np.int32(FIRST_SLOPE)
        while t < until:
            velocity(z, f, shared, field)
            evaluations += np.int32(1)
            if stage == np.int32(FIRST_SLOPE):
                for i in range(width):
                    k[i] = f[i]
                speed = np.float64(root_mean_square(f, shared, field))
                trial = min(0.01 / speed, until) if speed > 1e-10 else min(1e-6, until)
                for i in range(width):
                    z[i] = y[i] + trial * np.float64(f[i])
                stage = np.int32(PROBE)
                continue
            if stage == np.int32(PROBE):
                for i in range(width):
                    f[i] -= k[i]
                curvature = np.float64(root_mean_square(f, shared, field)) / trial
                largest = max(speed, curvature) / limits.tolerance
                h = math.pow(0.01 / largest, inverse_order) if largest > 1e-15 else max(1e-6, 1e-3 * trial)
                h = min(min(h, 100.0 * trial), until)
                stage = np.int32(0)
            elif stage < np.int32(last):
                for i in range(width):
                    k[stage * np.int32(width) + i] = f[i]
            else:
                for i in range(width):
                    k[last * width + i] = f[i]
                combine(stages, stages, k, f)
                error = root_mean_square(f, shared, field) * real(step / limits.tolerance)
                if error <= one:
                    # z still holds the new state: the last stage was evaluated there.
                    end = until if lands else t + step
                    due = slot
                    while slot < slots and times[slot] < end:
                        interpolate(k, y, z, step, (times[slot] - t) / step)
                        save(z, output, slot, low, high)
                        slot = np.int32(slot + np.int32(1))
                    if slot > due:
                        advance(np.int32(last), k, y, step, f, z)
                    retract(z)
                    if slot < slots and times[slot] == end:
                        save(z, output, slot, low, high)
                        slot = np.int32(slot + np.int32(1))
                    for i in range(width):
                        y[i] = z[i]
                        k[i] = k[last * width + i]
                    t = end
                    accepted += np.int32(1)
                    factor = accepted_factor(error, previous, after_rejection)
                    # A step cut short by the end says nothing against the longer one that was planned.
                    h = max(h, step * np.float64(factor)) if lands and factor >= one else step * np.float64(factor)
                    previous = error
                    after_rejection = False
                else:
                    rejected += np.int32(1)
                    after_rejection = True
                    h = step * np.float64(rejected_factor(error))
                    if not t + h > t:
                        status = np.int32(DIVERGED)
                        break
                stage = np.int32(0)
            if stage == np.int32(0):
                if accepted + rejected >= limits.max_steps and t < until:
                    status = np.int32(MAX_STEPS)
                    break
                # A step that would leave a sliver before the end is stretched onto it.
                lands = t + 1.0001 * h >= until
                step = until - t if lands else h
            stage = np.int32(stage + np.int32(1))
            advance(stage, k, y, step, f, z)
        while slot < slots:
            for i in range(width):
                z[i] = math.nan
            save(z, output, slot, low, high)
            slot = np.int32(slot + np.int32(1))
        if thread == np.int32(0):
            row = output.statistics[member]
            row[0], row[1], row[2], row[3] = accepted, rejected, evaluations, status

    return integrate
