"""A batch of members on the device: memory, launch and results of the kernel of `members.py`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cuda import circle, device, members, sphere, support
from metastable.kernels.cuda.intrinsics import ARITHMETIC, cuda
from metastable.kernels.minimax import LOG2E
from metastable.model import Attention

BLOCK_SIZES = (64, 128, 256, 512, 1024)
"""Thread blocks are compiled for these sizes; a block of another size runs on the next larger one."""

REGISTER_FILE = 65536
"""Registers of a multiprocessor."""

REGISTERS = {"float32": 96, "float64": 128}
"""Registers per thread that are aimed at on the circle: enough for the pair loops, few enough for several blocks at a time."""

SPHERE_REGISTERS = {"float32": 128, "float64": 168}
"""The same on the sphere (measured for d = 3)."""


@lru_cache(maxsize=64)
def member_kernel(dtype: str, dim: int, angles: bool, threads: int, scheme: members.Scheme, registers: int) -> Any:
    """The compiled kernel for members in blocks of up to `threads`."""
    arithmetic = ARITHMETIC[dtype]
    geometry = circle.make_geometry(arithmetic) if angles else sphere.make_geometry(arithmetic, dim)
    # As many blocks per multiprocessor as have so many registers.
    bounds = threads, max(1, REGISTER_FILE // (registers * threads))
    return members.make_kernel(arithmetic, geometry, scheme, launch_bounds=bounds)


def output_bytes(model: Attention, tokens: int, slots: int, dtype: str) -> int:
    """Device memory for the output of one member."""
    return tokens * model.dim * (slots * np.dtype(dtype).itemsize + np.dtype(np.float64).itemsize)


def largest_batch(model: Attention, tokens: int, slots: int, dtype: str) -> int:
    """Members whose output fits into the free memory of the device at once (refused when not even one does)."""
    each = output_bytes(model, tokens, slots, dtype)
    fix = "use fewer output times or tokens"
    device.require_memory(each, f"one member of {tokens} tokens at {slots} output times", fix)
    return max(1, min(support.MOST_MEMBERS, int(device.MEMORY_SHARE * device.free_bytes()) // each))


class MemberBatch:
    """Members that are integrated together.

    `starts` (members, tokens, dim) unit vectors; `times` (slots,) increasing output times, the last of which ends the
    integration. After `launch`, the `output` is on the device.
    """

    def __init__(
        self,
        model: Attention,
        starts: FloatArray,
        times: FloatArray,
        limits: members.Limits,
        scheme: members.Scheme,
        dtype: str = "float64",
        registers: int | None = None,
    ) -> None:
        real = ARITHMETIC[dtype].real
        self.count, tokens, dim = starts.shape
        angles = support.on_circle(model)
        self.threads = support.block_threads(tokens)
        size = next(size for size in BLOCK_SIZES if size >= self.threads)
        aim = registers if registers is not None else (REGISTERS if angles else SPHERE_REGISTERS)[dtype]
        self.kernel = member_kernel(dtype, dim, angles, size, scheme, aim)
        self.shared = support.shared_bytes(model, tokens, np.dtype(dtype).itemsize)
        self.until = float(times[-1])
        most = min(limits.max_steps, np.iinfo(np.int32).max)
        self.limits = members.Limits(float(limits.tolerance), np.int32(most))
        purpose = f"a batch of {self.count} members of {tokens} tokens at {len(times)} output times"
        fix = "use fewer members at a time or fewer output times"
        with device.allocating(self.count * output_bytes(model, tokens, len(times), dtype), purpose, fix):
            self.starts = cuda.to_device(np.ascontiguousarray(starts, dtype=np.float64))
            self.output = members.Output(
                cuda.to_device(np.ascontiguousarray(times, dtype=np.float64)),
                cuda.device_array((self.count, len(times), tokens, dim), real),
                cuda.device_array((self.count, len(members.STATISTICS)), np.int32),
            )
            matrices = cuda.to_device(support.matrices(model).astype(real))
        self.field = members.Field(np.int32(tokens), real(LOG2E * model.all_heads[0].beta), matrices)

    @property
    def out(self) -> Any:
        """The states on the device, in the precision of the batch."""
        return self.output.states

    def launch(self) -> None:
        """Integrate all members (asynchronously)."""
        launched = self.kernel[self.count, self.threads, 0, self.shared]
        launched(self.starts, self.until, self.field, self.output, self.limits)

    def states(self) -> FloatArray:
        """The output on the host, float64 (NaN at times that were not reached)."""
        return self.out.copy_to_host().astype(np.float64, copy=False)

    def counts(self) -> np.ndarray:
        """The statistics on the host, int64 (members, 4): see `members.STATISTICS`."""
        return self.output.statistics.copy_to_host().astype(np.int64)
