"""How kernels are compiled and called, and memory aligned for vectors.

Numba optimises a function together with everything it calls, again at every level of the call tree. So the kernels are
compiled on their own and called through their address: a run compiles the one kernel that it needs, and the integrators are
compiled once for all kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import typeof, types
from numba.core import cgutils

from metastable._jit import njit
from metastable.kernels.cpu.vector import LANES, intrinsic

OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "fastmath": {"contract"}, "nogil": True}
INTERNAL: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

compiled = njit(**OPTIONS)
"""For functions called from Python: on-disk cache, fused multiply-add but no reordering, without the interpreter lock."""

compiled_parallel = njit(parallel=True, **OPTIONS)
"""The same, with `prange` over threads."""

allocating = njit(**OPTIONS, **INTERNAL)
"""For functions called from compiled code only: the same, without the (long) code that unpacks Python arguments."""

parallel = njit(parallel=True, **OPTIONS, **INTERNAL)
"""The same as `allocating`, with `prange` over threads."""

# Kernels work in memory that they are given. Without Numba's run-time system they count no references to it, which would cost
# more than the arithmetic of a short row; they must not make arrays, nor return any to functions that count.
KERNEL: dict[str, Any] = {**OPTIONS, **INTERNAL, "_nrt": False}

inner = njit(**KERNEL)
"""For kernels and their parts."""

inlined = njit(**KERNEL, forceinline=True)
"""For parts of an inner loop: always merged into the caller."""


def address_of(kernel, *arguments) -> int:
    """Address of a kernel compiled for arguments like these (compiled or loaded from the cache if need be)."""
    signature = tuple(typeof(argument) for argument in arguments)
    kernel.compile(signature)
    result = kernel.overloads[signature]
    return result.library.get_pointer_to_function(result.fndesc.llvm_func_name)


def generate_call(context, builder, signature, arguments):
    """Call the function at the address `arguments[0]` with the other arguments; it returns nothing."""
    kinds = signature.args[1:]
    function_type = context.call_conv.get_function_type(types.none, kinds)
    pointer = builder.inttoptr(arguments[0], function_type.as_pointer())
    status, _ = context.call_conv.call_function(builder, pointer, types.none, kinds, arguments[1:])
    with cgutils.if_unlikely(builder, status.is_error):
        context.call_conv.return_status_propagate(builder, status)
    return context.get_dummy_value()


@intrinsic
def call_members(typing_context, address, problem, time, y, work, out):
    """Call a kernel of `members`."""
    return types.none(types.int64, problem, time, y, work, out), generate_call


@intrinsic
def call_piece(typing_context, address, phase, piece, problem, time, y, buffers, out):
    """Call a kernel of `system`."""
    kinds = (types.int64, types.int64, types.int64, problem, types.float64, y, buffers, out)
    return types.none(*kinds), generate_call


@compiled
def aligned(size):
    """`size` zeros that start on a cache line: a vector then never straddles two lines, which would halve the bandwidth."""
    buffer = np.zeros(size + LANES)
    offset = (LANES - (buffer.ctypes.data // 8) % LANES) % LANES
    return buffer[offset : offset + size]


def aligned_array(size: int) -> np.ndarray:
    """`aligned`, for callers outside compiled code."""
    buffer = np.zeros(size + LANES)
    offset = (-buffer.ctypes.data // 8) % LANES
    return buffer[offset : offset + size]


@intrinsic
def fetch_add(typing_context, array, index, amount):
    """`array[index] += amount` of a one-dimensional int64 array, in one indivisible step; returns the old value."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [arguments[1]]), arguments[2], "monotonic")

    return types.int64(array, types.intp, types.int64), generate
