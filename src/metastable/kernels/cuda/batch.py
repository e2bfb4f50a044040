"""A batch of members on the device: memory, launch and results of the kernel of `members.py`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cuda import circle, device, members, sphere, support
from metastable.kernels.cuda.engine import REALS
from metastable.kernels.cuda.intrinsics import cuda
from metastable.model import Attention

BLOCK_SIZES = (64, 128, 256, 512, 1024)
"""Thread blocks are compiled for these sizes; a block of another size runs on the next larger one."""

MOST_MEMBERS = 2**15
"""Members per launch: enough to fill any GPU, few enough to report progress."""

REGISTER_FILE = 65536
"""Registers of a multiprocessor."""

REGISTERS = {"float32": 96, "float64": 128}
"""Registers per thread that are aimed at on the circle: enough for the pair loops, few enough for several blocks at a time."""

SPHERE_REGISTERS = {"float32": 128, "float64": 168}
"""The same on the sphere (measured for d = 3)."""


EXACT = {"float32": True, "float64": True}
"""Whether sines are formed pair by pair on the circle (see `circle.py`)."""


def launch_bounds(threads: int, dtype: str, registers: int | None = None) -> tuple[int, int]:
    """Threads per block and blocks per multiprocessor to compile for."""
    wanted = REGISTERS[dtype] if registers is None else registers
    return threads, max(1, REGISTER_FILE // (wanted * threads))


@lru_cache(maxsize=64)
def member_kernel(
    dtype: str, dim: int, angles: bool, threads: int, scheme: members.Scheme, registers: int, exact: bool
) -> Any:
    """The compiled kernel for members in blocks of up to `threads`."""
    real = REALS[dtype]
    geometry = (
        circle.make_geometry(real, device.LANES, exact) if angles else sphere.make_geometry(real, dim, device.LANES)
    )
    bounds = launch_bounds(threads, dtype, registers)
    return members.make_kernel(real, geometry, scheme, device.LANES, launch_bounds=bounds)


def output_bytes(model: Attention, tokens: int, slots: int, dtype: str) -> int:
    """Device memory for the output of one member."""
    return tokens * model.dim * (slots * np.dtype(dtype).itemsize + np.dtype(np.float64).itemsize)


def largest_batch(model: Attention, tokens: int, slots: int, dtype: str) -> int:
    """Members whose output fits into the free memory of the device at once (refused when not even one does)."""
    each = output_bytes(model, tokens, slots, dtype)
    fix = "use fewer output times or tokens"
    device.require_memory(each, f"one member of {tokens} tokens at {slots} output times", fix)
    return max(1, min(MOST_MEMBERS, int(device.MEMORY_SHARE * device.free_bytes()) // each))


class MemberBatch:
    """Members that are integrated together.

    `starts` (members, tokens, dim) unit vectors; `times` (slots,) increasing output times, the last of which ends the
    integration. After `launch`, `out` (members, slots, tokens, dim) and `statistics` (members, 5) are on the device.
    """

    def __init__(
        self,
        model: Attention,
        starts: FloatArray,
        times: FloatArray,
        tolerance: float,
        max_steps: int,
        scheme: members.Scheme,
        dtype: str = "float64",
        registers: int | None = None,
        exact: bool | None = None,
    ) -> None:
        self.real = REALS[dtype]
        self.count, self.tokens, dim = starts.shape
        self.angles = support.on_circle(model)
        self.threads = support.block_threads(self.tokens)
        size = next(size for size in BLOCK_SIZES if size >= self.threads)
        aim = registers if registers is not None else (REGISTERS if self.angles else SPHERE_REGISTERS)[dtype]
        self.kernel = member_kernel(
            dtype, dim, self.angles, size, scheme, aim, EXACT[dtype] if exact is None else exact
        )
        self.shared = support.shared_bytes(model, self.tokens, np.dtype(dtype).itemsize)
        self.shift = self.real(support.LOG2E * model.all_heads[0].beta)
        self.until, self.tolerance, self.max_steps = float(times[-1]), float(tolerance), int(max_steps)
        purpose = f"a batch of {self.count} members of {self.tokens} tokens at {len(times)} output times"
        fix = "use fewer members at a time or fewer output times"
        device.require_memory(self.count * output_bytes(model, self.tokens, len(times), dtype), purpose, fix)
        with device.allocating(purpose, fix):
            self.starts = cuda.to_device(np.ascontiguousarray(starts, dtype=np.float64))
            self.times = cuda.to_device(np.ascontiguousarray(times, dtype=np.float64))
            self.out = cuda.device_array((self.count, len(times), self.tokens, dim), self.real)
            self.statistics = cuda.device_array((self.count, len(members.STATISTICS)), np.int32)
            self.matrices = cuda.to_device(support.matrices(model).astype(self.real))

    def launch(self) -> None:
        """Integrate all members (asynchronously)."""
        self.kernel[self.count, self.threads, 0, self.shared](
            self.starts,
            self.times,
            self.out,
            self.statistics,
            np.int32(self.tokens),
            self.shift,
            self.matrices,
            self.until,
            self.tolerance,
            np.int32(min(self.max_steps, np.iinfo(np.int32).max)),
        )

    def states(self) -> FloatArray:
        """The output on the host, float64 (NaN at times that were not reached)."""
        return self.out.copy_to_host().astype(np.float64, copy=False)

    def counts(self) -> np.ndarray:
        """The statistics on the host, int64 (members, 5): see `members.STATISTICS`."""
        return self.statistics.copy_to_host().astype(np.int64)
