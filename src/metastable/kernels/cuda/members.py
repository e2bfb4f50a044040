"""Many members at once: one thread block integrates one member from start to end with adaptive Tsit5.

The march is the one of `integrate.tsit5` (first step, error norm, controller, dense output, status), written as one loop around a
single evaluation of the velocity, so that the pair loops occur once in the machine code. Each member has its own step size, and
nothing leaves the multiprocessor between steps. Each thread owns two tokens.

States are kept in double precision also where velocities are computed in single precision: adding up many small steps
then loses nothing. Slopes of earlier stages live in thread-local memory, since a stage reads them once while it evaluates
hundreds of pairs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from metastable.kernels.cuda.geometry import Geometry
from metastable.kernels.cuda.intrinsics import (
    ALIGNMENT,
    cuda,
    inlined,
    kernel,
    load_four,
    power_double,
    power_single,
)

SUCCESS, MAX_STEPS, DIVERGED = 0, 1, 2
"""Values of the status column of the statistics."""

STATISTICS = ("accepted", "rejected", "evaluations", "status", "saved")
"""Columns of the statistics of a member."""

FIRST_SLOPE, PROBE = -2, -1
"""Stages before the first step: the slope at the start, and the trial step that measures curvature."""


class Scheme(NamedTuple):
    """A first-same-as-last method and its step control as plain numbers: `integrate.tableau` and `integrate.control`."""

    a: tuple[tuple[float, ...], ...]
    error: tuple[float, ...]
    dense: tuple[tuple[float, ...], ...]
    order: float
    safety: float
    proportional: float
    integral: float
    shrink: float
    grow: float
    error_floor: float
    first_error: float


def make_block_sum(real, lanes: int):
    """A device function that adds one number per thread over the block, in an order that does not depend on timing.

    The threads of the first warp add up their columns, then every thread adds up the warp. `offset` is a multiple of four.
    """
    zero = real(0)

    @inlined
    def block_sum(value, shared, offset):
        thread, threads = np.int32(cuda.threadIdx.x), np.int32(cuda.blockDim.x)
        cuda.syncthreads()
        shared[offset + thread] = value
        cuda.syncthreads()
        if thread < np.int32(lanes):
            other = np.int32(thread + np.int32(lanes))
            while other < threads:
                value += shared[offset + other]
                other = np.int32(other + np.int32(lanes))
            shared[offset + thread] = value
        cuda.syncthreads()
        a, b, c, d = zero, zero, zero, zero
        for i in range(0, lanes, 4):
            a1, b1, c1, d1 = load_four(shared, np.int32(offset + np.int32(i)))
            a += a1
            b += b1
            c += c1
            d += d1
        return (a + b) + (c + d)

    return block_sum


def make_controller(real, scheme: Scheme):
    """`accepted_factor(error, previous, after_rejection)` and `rejected_factor(error)` of `integrate.control`, on the device."""
    safety, grow, shrink = real(scheme.safety), real(scheme.grow), real(scheme.shrink)
    proportional, integral, root = real(-scheme.proportional), real(scheme.integral), real(-1.0 / scheme.order)
    floor, one = real(scheme.error_floor), real(1)
    power = power_single if real is np.float32 else power_double

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


def make_kernel(real, geometry: Geometry, scheme: Scheme, lanes: int, **options):
    """The kernel that integrates one member per block.

    Arguments of the kernel: `starts` (members, tokens, dim), `times` (slots,), `out` (members, slots, tokens, dim), `statistics`
    (members, 5), `tokens`, `shift` (beta log2 e), `matrices` (what the geometry needs), `until`, `tolerance` (rtol + atol),
    `max_steps`. Dynamic shared memory: `shared_bytes`.
    """
    width = 2 * geometry.components
    half_width = geometry.components
    coordinates = geometry.coordinates
    velocity, read, retract, write = geometry.velocity, geometry.read, geometry.retract, geometry.write
    number = numba.float32 if real is np.float32 else numba.float64
    stages = len(scheme.error)
    a_matrix = np.zeros((stages, stages), dtype=real)
    for i, row in enumerate(scheme.a):
        a_matrix[i, : len(row)] = row[:stages]
    error_weights = np.array(scheme.error, dtype=real)
    dense_weights = np.array(scheme.dense, dtype=real)
    last = stages - 1
    slopes = stages * width
    block_sum = make_block_sum(real, lanes)
    accepted_factor, rejected_factor = make_controller(real, scheme)
    zero, one, first_error = real(0), real(1), real(scheme.first_error)
    inverse_order = 1.0 / scheme.order

    @cuda.jit(device=True)
    def root_mean_square(values, shared, offset, tokens):
        square = zero
        for i in range(width):
            square += values[i] * values[i]
        return real(math.sqrt(block_sum(square, shared, offset) / real(tokens)))

    @cuda.jit(device=True)
    def interpolate(k, y, z, step, fraction):
        weights = cuda.const.array_like(dense_weights)
        u = real(fraction)
        for i in range(width):
            z[i] = y[i]
        for stage in range(stages):
            weight = u * (weights[stage, 0] + u * (weights[stage, 1] + u * (weights[stage, 2] + u * weights[stage, 3])))
            for i in range(width):
                z[i] += step * np.float64(weight * k[stage * width + i])

    @cuda.jit(device=True)
    def save(z, out, member, slot, low, high):
        if low >= np.int32(0):
            write(z, np.int32(0), out, member, slot, low)
        if high >= np.int32(0):
            write(z, np.int32(half_width), out, member, slot, high)

    @kernel(**options)
    def integrate(starts, times, out, statistics, tokens, shift, matrices, until, tolerance, max_steps):
        shared = cuda.shared.array(0, number, alignment=ALIGNMENT)
        weights = cuda.const.array_like(a_matrix)
        errors = cuda.const.array_like(error_weights)
        y = cuda.local.array(width, numba.float64)
        z = cuda.local.array(width, numba.float64)
        f = cuda.local.array(width, number)
        k = cuda.local.array(slopes, number)
        member, thread = np.int32(cuda.blockIdx.x), np.int32(cuda.threadIdx.x)
        first = np.int32(tokens & np.int32(1))
        count = np.int32(tokens + first)
        tiles = np.int32((count + np.int32(lanes - 1)) // np.int32(lanes))
        warp = np.int32(thread // np.int32(lanes))
        lane = np.int32(thread - warp * np.int32(lanes))
        high = np.int32(tokens - np.int32(lanes) * np.int32(warp + np.int32(1)) + lane)
        low = np.int32(tokens - np.int32(lanes) * np.int32(tiles - warp + np.int32(tiles & np.int32(1))) + lane)
        offset = np.int32(coordinates) * count
        for i in range(width):
            y[i] = 0.0
            f[i] = zero
        if low >= np.int32(0):
            read(y, np.int32(0), starts, member, low)
        if high >= np.int32(0):
            read(y, np.int32(half_width), starts, member, high)
        slots = np.int32(times.shape[0])
        slot = np.int32(0)
        if slots > np.int32(0) and times[0] <= 0.0:
            save(y, out, member, slot, low, high)
            slot = np.int32(1)
        for i in range(width):
            z[i] = y[i]
        t, h, step, trial, speed = 0.0, 0.0, 0.0, 0.0, 0.0
        previous = first_error
        accepted, rejected, evaluations, status = np.int32(0), np.int32(0), np.int32(0), np.int32(SUCCESS)
        after_rejection, lands = False, False
        stage = np.int32(FIRST_SLOPE)
        while t < until:
            velocity(z, f, shared, tokens, shift, matrices)
            evaluations += np.int32(1)
            if stage == np.int32(FIRST_SLOPE):
                for i in range(width):
                    k[i] = f[i]
                speed = np.float64(root_mean_square(f, shared, offset, tokens))
                trial = min(0.01 / speed, until) if speed > 1e-10 else min(1e-6, until)
                for i in range(width):
                    z[i] = y[i] + trial * np.float64(f[i])
                stage = np.int32(PROBE)
                continue
            if stage == np.int32(PROBE):
                for i in range(width):
                    f[i] -= k[i]
                curvature = np.float64(root_mean_square(f, shared, offset, tokens)) / trial
                largest = max(speed, curvature) / tolerance
                h = math.pow(0.01 / largest, inverse_order) if largest > 1e-15 else max(1e-6, 1e-3 * trial)
                h = min(min(h, 100.0 * trial), until)
                stage = np.int32(0)
            elif stage < np.int32(last):
                for i in range(width):
                    k[stage * np.int32(width) + i] = f[i]
            else:
                for i in range(width):
                    k[last * width + i] = f[i]
                    f[i] = zero
                for j in range(stages):
                    for i in range(width):
                        f[i] += errors[j] * k[j * width + i]
                error = root_mean_square(f, shared, offset, tokens) * real(step / tolerance)
                if error <= one:
                    # z still holds the new state: the last stage was evaluated there.
                    end = until if lands else t + step
                    new_slot = slot
                    while new_slot < slots and times[new_slot] < end:
                        interpolate(k, y, z, step, (times[new_slot] - t) / step)
                        save(z, out, member, new_slot, low, high)
                        new_slot = np.int32(new_slot + np.int32(1))
                    if new_slot > slot:
                        for i in range(width):
                            z[i] = zero
                        for j in range(last):
                            for i in range(width):
                                z[i] += np.float64(weights[last, j] * k[j * width + i])
                        for i in range(width):
                            z[i] = y[i] + step * z[i]
                    retract(z)
                    slot = new_slot
                    if slot < slots and times[slot] == end:
                        save(z, out, member, slot, low, high)
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
                if accepted + rejected >= max_steps and t < until:
                    status = np.int32(MAX_STEPS)
                    break
                # A step that would leave a sliver before the end is stretched onto it.
                lands = t + 1.0001 * h >= until
                step = until - t if lands else h
            stage = np.int32(stage + np.int32(1))
            for i in range(width):
                f[i] = zero
            for j in range(stage):
                weight = weights[stage, j]
                for i in range(width):
                    f[i] += weight * k[j * np.int32(width) + i]
            for i in range(width):
                z[i] = y[i] + step * np.float64(f[i])
        saved = slot
        while slot < slots:
            for i in range(width):
                z[i] = math.nan
            save(z, out, member, slot, low, high)
            slot = np.int32(slot + np.int32(1))
        if thread == np.int32(0):
            statistics[member, 0] = accepted
            statistics[member, 1] = rejected
            statistics[member, 2] = evaluations
            statistics[member, 3] = status
            statistics[member, 4] = saved

    return integrate
