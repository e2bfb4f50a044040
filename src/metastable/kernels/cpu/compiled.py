"""How kernels are compiled and called, and memory aligned for vectors.

Kernels are compiled on their own and called through their address: a run compiles the one kernel that it needs, and the
integrators are compiled once for all kernels.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import typeof, types
from numba.core import cgutils

from metastable import _progress
from metastable._jit import KernelCompiler, compile_listeners, njit, part
from metastable.kernels.cpu.vector import LANES, intrinsic

OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}, "nogil": True}
"""Fused multiply-add but no reordering; without the interpreter lock."""

INTERNAL: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

# Kernels work in memory that they are given. Without Numba's run-time system they count no references to it, which would cost
# more than the arithmetic of a short row; they must not make arrays, nor return any to functions that count.
KERNEL: dict[str, Any] = {**OPTIONS, "_nrt": False}

compiled = njit(cache=True, **OPTIONS)
"""For functions called from Python, with on-disk cache."""

parallel = njit(parallel=True, cache=True, **OPTIONS, **INTERNAL)
"""For functions called from compiled code only, with `prange` over threads."""

allocating = part(**OPTIONS)
"""For parts of compiled functions that make arrays."""

inner = part(**KERNEL)
"""For kernels and their parts."""

inlined = part(**KERNEL, forceinline=True)
"""For parts of an inner loop: always merged into the caller."""


# Whoever looks at a progress bar is told why nothing moves.
compile_listeners.append(_progress.tell_compiling)


@cache
def _machine_code(kernel) -> Any:
    """The dispatcher that turns a part into machine code of its own."""
    options = {name: value for name, value in kernel.targetoptions.items() if name != "nopython"}
    counts_references = options.get("_nrt", True)
    return njit(cache=True, **options, **({} if counts_references else {"pipeline_class": KernelCompiler}))(
        kernel.py_func
    )


def address_of(kernel, *arguments) -> int:
    """Address of a part compiled for arguments like these, or of these types (compiled or loaded from the cache if need be)."""
    return _address(kernel, tuple(item if isinstance(item, types.Type) else typeof(item) for item in arguments))


@cache
def _address(kernel, signature: tuple[Any, ...]) -> int:
    """`address_of`; looking it up takes Numba longer than a step of a small system."""
    machine = _machine_code(kernel)
    if signature not in machine.overloads:
        machine.compile(signature)
    result = machine.overloads[signature]
    return result.library.get_pointer_to_function(result.fndesc.llvm_func_name)


@intrinsic(lambda address, *arguments: types.none(types.int64, *map(types.unliteral, arguments)))
def call_address(context, builder, signature, values):
    """Call the kernel at `address`, one that was compiled for `arguments` of these types and returns nothing."""
    kinds = signature.args[1:]
    function_type = context.call_conv.get_function_type(types.none, kinds)
    pointer = builder.inttoptr(values[0], function_type.as_pointer())
    status, _ = context.call_conv.call_function(builder, pointer, types.none, kinds, values[1:])
    with cgutils.if_unlikely(builder, status.is_error):
        context.call_conv.return_status_propagate(builder, status)
    return context.get_dummy_value()


def aligned_array(*shape: int) -> np.ndarray:
    """Zeros that start on a cache line: a vector then never straddles two lines, which would halve the bandwidth."""
    size = math.prod(shape)
    buffer = np.zeros(size + LANES)
    offset = (-buffer.ctypes.data // 8) % LANES
    return buffer[offset : offset + size].reshape(shape)


def vectors(count: int, lines: int | None = None) -> np.ndarray:
    """So many vectors of zeros, at least one; with `lines` as many lines of them."""
    size = max(1, count) * LANES
    return aligned_array(size) if lines is None else aligned_array(lines, size)


@intrinsic(lambda array, index, amount: types.int64(array, types.intp, types.int64))
def fetch_add(context, builder, signature, values):
    """`array[index] += amount` of a one-dimensional int64 array, in one indivisible step; returns the old value."""
    data = context.make_array(signature.args[0])(context, builder, values[0]).data
    return builder.atomic_rmw("add", builder.gep(data, [values[1]]), values[2], "monotonic")
