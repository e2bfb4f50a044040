"""Observables of members while their states are still on the device, so that states need not be copied to the host.

The comparisons are those of the host: two tokens are near when their squared chord is at most a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numba
import numpy as np

from metastable.kernels.cuda.device import SIMULATED
from metastable.kernels.cuda.intrinsics import cuda

THREADS = 8 if SIMULATED else 128

MOST_TOKENS = 4096
"""Largest number of tokens whose labels fit into shared memory."""


@dataclass(frozen=True)
class Capture:
    """Fraction of tokens near a Renyi center of the start (`metastable.observe.consumed`).

    `center_bound`, `bound`: squared chords up to which a token is too near to a center to be one itself, and is captured by one.
    `moving`: near the present position of a center, not where it started.
    """

    center_bound: float
    bound: float
    strong: bool = False
    moving: bool = True


@dataclass(frozen=True)
class Components:
    """Number of clusters: connected components of the tokens with squared chords up to `bound` (`observe.clusters`)."""

    bound: float


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, Any, Any]:
    @cuda.jit(device=True)
    def chord(x, i, y, j):
        square = 0.0
        for c in range(x.shape[1]):
            difference = np.float64(x[i, c]) - np.float64(y[j, c])
            square += difference * difference
        return square

    @cuda.jit
    def centers(starts, bound, strong, taken, indices, counts):
        """Indices of the centers, one block per member; `taken` marks tokens near an earlier center (token, if strong)."""
        member, thread = cuda.blockIdx.x, cuda.threadIdx.x
        x, flags = starts[member], taken[member]
        tokens = x.shape[0]
        k = thread
        while k < tokens:
            flags[k] = 0
            k += THREADS
        for center in range(tokens):
            cuda.syncthreads()
            if strong or flags[center] == 0:
                k = center + 1 + thread
                while k < tokens:
                    if chord(x, k, x, center) <= bound:
                        flags[k] = 1
                    k += THREADS
        cuda.syncthreads()
        if thread == 0:
            count = 0
            for token in range(tokens):
                if flags[token] == 0:
                    indices[member, count] = token
                    count += 1
            counts[member] = count

    @cuda.jit
    def captured(out, starts, indices, counts, bound, moving, result):
        """result[member, slot]: fraction of tokens near a center, one block per member and slot."""
        near = cuda.shared.array(THREADS, numba.int32)
        member, slot, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
        x, begin = out[member, slot], starts[member]
        tokens = x.shape[0]
        count = np.int32(0)
        k = thread
        while k < tokens:
            for number in range(counts[member]):
                center = indices[member, number]
                distance = chord(x, k, x, center) if moving else chord(x, k, begin, center)
                if distance <= bound:
                    count += np.int32(1)
                    break
            k += THREADS
        near[thread] = count
        cuda.syncthreads()
        if thread == 0:
            total = 0
            for i in range(THREADS):
                total += near[i]
            # A state that was not reached is NaN, and so is what is measured on it.
            result[member, slot] = total / tokens if x[0, 0] == x[0, 0] else np.nan

    @cuda.jit
    def components(out, bound, result):
        """result[member, slot]: number of connected components, by spreading the smallest label."""
        labels = cuda.shared.array(MOST_TOKENS, numba.int32)
        member, slot, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
        x = out[member, slot]
        tokens = x.shape[0]
        k = thread
        while k < tokens:
            labels[k] = k
            k += THREADS
        again = True
        while again:
            cuda.syncthreads()
            changed = 0
            k = thread
            while k < tokens:
                smallest = labels[k]
                for j in range(tokens):
                    if labels[j] < smallest and chord(x, k, x, j) <= bound:
                        smallest = labels[j]
                if smallest < labels[k]:
                    labels[k] = smallest
                    changed = 1
                k += THREADS
            again = cuda.syncthreads_or(changed) != 0
        if thread == 0:
            roots = 0
            for i in range(tokens):
                if labels[i] == i:
                    roots += 1
            result[member, slot] = float(roots) if x[0, 0] == x[0, 0] else np.nan

    return centers, captured, components


def measure(wanted: Capture | Components, starts: Any, out: Any) -> np.ndarray:
    """An observable of the device states `out` (members, slots, tokens, dim): host array (members, slots), NaN if not reached."""
    centers, captured, components = _kernels()
    members, slots, tokens = out.shape[0], out.shape[1], out.shape[2]
    result = cuda.device_array((members, slots), np.float64)
    if isinstance(wanted, Components):
        components[(members, slots), THREADS](out, wanted.bound, result)
    else:
        taken = cuda.device_array((members, tokens), np.int8)
        indices, counts = cuda.device_array((members, tokens), np.int32), cuda.device_array(members, np.int32)
        centers[members, THREADS](starts, wanted.center_bound, wanted.strong, taken, indices, counts)
        captured[(members, slots), THREADS](out, starts, indices, counts, wanted.bound, wanted.moving, result)
    return result.copy_to_host()
