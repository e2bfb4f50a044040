"""What the machine offers: is there a GPU, is everything installed that Numba needs, and how much memory is free.

Nothing here imports Numba before it is asked to.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from metastable.errors import DeviceMemoryError

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
"""True when Numba simulates CUDA on the CPU (slow; for tests). Numba reads the variable when it is imported."""

LANES = 4 if SIMULATED else 32
"""Threads of a warp. The simulator runs every thread as a Python thread: small blocks keep it bearable."""

THREADS = 8 if SIMULATED else 256
"""Threads per block of kernels that work token by token."""

SHARED_BYTES = 48 * 1024
"""Shared memory that every GPU gives a block without asking."""

MEMORY_SHARE = 0.8
"""Share of the free device memory that one call may take."""

OUT_OF_MEMORY = 2
"""The driver's code for a failed allocation."""

INSTALL = 'pip install "metastable[cuda]"'


@lru_cache(maxsize=1)
def missing() -> str | None:
    """What is missing for engine='cuda' on this machine, and how to get it; None when nothing is."""
    try:
        from numba import cuda
    except Exception as reason:
        return f"engine='cuda' needs Numba-CUDA, which cannot be imported here ({reason}); install it with: {INSTALL}"
    # Few tokens make few blocks, and somebody who asked for that has no use for a lecture about occupancy at every launch.
    warnings.filterwarnings("ignore", message=r".*Grid size \d+ will likely result in GPU under-utilization")
    if SIMULATED:
        return None
    try:
        import numba_cuda  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return f"engine='cuda' needs the package 'numba-cuda', which is not installed; install it with: {INSTALL}"
    try:
        if not cuda.is_available():
            from numba.cuda.cudadrv.driver import driver

            reason = getattr(driver, "initialization_error", None) or "the driver reports no device"
            text = " ".join(str(reason).split())[:200]
            return f"engine='cuda' needs an NVIDIA GPU with its driver, and none was found ({text}); use engine='cpu'"
        cuda.get_current_device()
    except Exception as reason:
        return f"engine='cuda' cannot use the GPU of this machine: {reason}; use engine='cpu'"
    try:
        from numba.cuda.cudadrv import nvvm

        nvvm.NVVM()
    except Exception as reason:
        text = " ".join(str(reason).split())[:200]
        return f"engine='cuda' cannot find NVIDIA's compiler library NVVM ({text}); install it with: {INSTALL}"
    return None


def blocks(items: int) -> int:
    """Blocks of `THREADS` that cover so many items."""
    return max(1, -(-items // THREADS))


def multiprocessors() -> int:
    """Multiprocessors of the current GPU."""
    if SIMULATED:
        return 1
    from numba import cuda

    return int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def free_bytes() -> int:
    """Free memory of the current GPU."""
    if SIMULATED:
        return 2**30
    from numba import cuda

    return int(cuda.current_context().get_memory_info().free)


def require_memory(wanted: int, purpose: str, fix: str) -> None:
    """Refuse, before anything is allocated, what does not fit into the GPU's memory."""
    free = free_bytes()
    if wanted > free:
        raise DeviceMemoryError(
            f"{purpose} needs {wanted / 2**30:.1f} GiB of GPU memory, but {free / 2**30:.1f} GiB are free; {fix}"
        )


@contextmanager
def allocating(wanted: int, purpose: str, fix: str) -> Iterator[None]:
    """Allocate so many bytes inside: refused ahead when they do not fit, and the driver's out-of-memory error becomes a
    `DeviceMemoryError`; the device stays usable."""
    require_memory(wanted, purpose, fix)
    try:
        yield
    except Exception as reason:
        if getattr(reason, "code", None) == OUT_OF_MEMORY or "OUT_OF_MEMORY" in str(reason):
            raise DeviceMemoryError(f"{purpose} does not fit into the GPU's memory ({reason}); {fix}") from None
        raise
