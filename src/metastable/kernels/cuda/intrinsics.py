"""The few machine operations that the kernels are built from, each with a counterpart for the CUDA simulator.

- `exp2_single`, `exp2_double`: 2^x in one instruction of the special function unit, and by a polynomial on the double
  precision pipe (the library's double exponential spends a third of its time on cases that cannot occur here).
- `load_two`, `load_four`, `store_four`: 8 to 32 neighbouring bytes in one or two instructions. Coordinates of a token lie side by
  side, so a token of the circle is one load instead of two.

The simulator (NUMBA_ENABLE_CUDASIM=1) runs kernels as Python threads and knows neither inline assembly nor vector
loads; there the same names are plain Python.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import cuda as numba_cuda

from metastable.kernels.cuda.device import SIMULATED
from metastable.kernels.minimax import COS, COS_SINGLE, EXP2, HALF_PI, MAGIC, SIN, SIN_SINGLE, TWO_OVER_PI

cuda: Any = numba_cuda
"""Numba's CUDA module, or its simulator. (Type checkers do not understand the language inside kernels.)"""

ALIGNMENT = None if SIMULATED else 16
"""Alignment of arrays in shared memory that are read by wide loads."""

LOWEST_EXPONENT = -1022
"""Smallest binary exponent of `exp2_double`: below 2^-1022 the result stays there instead of wrapping around."""

E0, E1, E2, E3, E4, E5, E6, E7, E8, E9 = EXP2
P0, P1, P2 = HALF_PI


def inlined(function: Any) -> Any:
    """Compile a device function that is always inlined into its callers."""
    return cuda.jit(device=True)(function) if SIMULATED else cuda.jit(device=True, forceinline=True)(function)


def kernel(**options: Any) -> Any:
    """Decorator for a kernel; `options` (such as launch bounds) are hints for the compiler that the simulator does without."""
    return cuda.jit if SIMULATED else cuda.jit(**options)


if SIMULATED:

    @inlined
    def exp2_single(x):
        with np.errstate(under="ignore", over="ignore"):
            return np.exp2(np.float32(x))

    @inlined
    def log2_single(x):
        return np.log2(np.float32(x))

    @inlined
    def quotient_single(a, b):
        return np.float32(a / b)

    @inlined
    def low_word(shifted):
        return np.int32(shifted - MAGIC if math.isfinite(shifted) else 0)

    @inlined
    def times_power_of_two(power, shifted):
        if not math.isfinite(shifted):
            return shifted
        exponent = max(int(shifted - MAGIC), LOWEST_EXPONENT)
        return math.ldexp(power, exponent) if exponent < 1024 else math.inf

    @inlined
    def load_two(array, index):
        return array[index], array[index + 1]

    @inlined
    def load_four(array, index):
        return array[index], array[index + 1], array[index + 2], array[index + 3]

    @inlined
    def store_four(array, index, a, b, c, d):
        array[index], array[index + 1], array[index + 2], array[index + 3] = a, b, c, d
else:
    from llvmlite import ir
    from numba import types
    from numba.cuda import extending

    intrinsic: Any = extending.intrinsic
    WORD, LONG, SINGLE = ir.IntType(32), ir.IntType(64), ir.FloatType()

    def _instruction(text, count):
        """How one machine instruction on `count` float32 numbers is typed and written."""
        kind = ir.FunctionType(SINGLE, [SINGLE] * count)

        def generate(context, builder, signature, arguments):
            return builder.call(ir.InlineAsm(kind, text, ",".join(["=f"] + ["f"] * count)), arguments)

        return types.float32(*[types.float32] * count), generate

    @intrinsic
    def exp2_single(typing_context, x):
        """2^x of a float32 by the special function unit; results below 2^-126 are zero."""
        return _instruction("ex2.approx.ftz.f32 $0, $1;", 1)

    @intrinsic
    def log2_single(typing_context, x):
        """log2 of a float32 by the special function unit, absolute error about 1e-7."""
        return _instruction("lg2.approx.ftz.f32 $0, $1;", 1)

    @intrinsic
    def quotient_single(typing_context, a, b):
        """a / b in float32 to two units in the last place, for b between 2^-126 and 2^126."""
        return _instruction("div.approx.ftz.f32 $0, $1, $2;", 2)

    @intrinsic
    def low_word(typing_context, shifted):
        """The integer that `MAGIC` left in the low bits of a float64."""

        def generate(context, builder, signature, arguments):
            return builder.trunc(builder.bitcast(arguments[0], LONG), WORD)

        return types.int32(types.float64), generate

    @intrinsic
    def times_power_of_two(typing_context, power, shifted):
        """`power * 2^i` with i the integer that `MAGIC` left in `shifted`, by integer arithmetic on the exponent."""

        def generate(context, builder, signature, arguments):
            power, shifted = (builder.bitcast(argument, LONG) for argument in arguments)
            lowest = ir.Constant(WORD, LOWEST_EXPONENT)
            exponent = builder.trunc(shifted, WORD)
            exponent = builder.select(builder.icmp_signed(">", exponent, lowest), exponent, lowest)
            exponent = builder.shl(builder.zext(exponent, LONG), ir.Constant(LONG, 52))
            return builder.bitcast(builder.add(power, exponent), ir.DoubleType())

        return types.float64(types.float64, types.float64), generate

    def _vectors(context, builder, array_type, arguments, count):
        """Pointers to the vectors that make up `count` neighbours of an array: (pointer, vector type, bytes of a vector).

        One instruction moves at most 16 bytes. `arguments` begin with the array and the index of the first neighbour.
        """
        data = context.make_array(array_type)(context, builder, arguments[0]).data
        bytes_each = array_type.dtype.bitwidth // 8
        width = min(count, 16 // bytes_each)
        vector = ir.VectorType(context.get_data_type(array_type.dtype), width)
        for offset in range(0, count, width):
            place = builder.add(arguments[1], ir.Constant(arguments[1].type, offset))
            pointer = builder.gep(data, [place], inbounds=True)
            yield builder.bitcast(pointer, ir.PointerType(vector, data.type.addrspace)), vector, width * bytes_each

    def _loader(count):
        """An intrinsic that loads `count` neighbours at an index that is a multiple of `count` (or of 16 bytes)."""

        def load(typing_context, array, index):
            def generate(context, builder, signature, arguments):
                found = []
                for pointer, vector, size in _vectors(context, builder, signature.args[0], arguments, count):
                    loaded = builder.load(pointer, align=size)
                    lanes = range(vector.count)
                    found += [builder.extract_element(loaded, ir.Constant(WORD, lane)) for lane in lanes]
                return context.make_tuple(builder, signature.return_type, found)

            return types.UniTuple(array.dtype, count)(array, types.int32), generate

        return intrinsic(load)

    @intrinsic
    def store_four(typing_context, array, index, a, b, c, d):
        """Store four neighbours at an index that is a multiple of four."""

        def generate(context, builder, signature, arguments):
            values = list(arguments[2:])
            for pointer, vector, size in _vectors(context, builder, signature.args[0], arguments, 4):
                packed = ir.Constant(vector, ir.Undefined)
                for lane in range(vector.count):
                    packed = builder.insert_element(packed, values.pop(0), ir.Constant(WORD, lane))
                builder.store(packed, pointer, align=size)
            return context.get_dummy_value()

        return types.void(array, types.int32, *[array.dtype] * 4), generate

    load_two = _loader(2)
    load_four = _loader(4)


@inlined
def exp2_double(y):
    """2^y for y < 1023, relative error below 5e-16: y = i + f with |f| <= 1/2, 2^f by a polynomial of degree 10."""
    shifted = y + MAGIC
    f = y - (shifted - MAGIC)
    # Written out: a loop here keeps the compiler from unrolling the loops over tokens around it.
    power = E8 + f * E9
    power = E7 + f * power
    power = E6 + f * power
    power = E5 + f * power
    power = E4 + f * power
    power = E3 + f * power
    power = E2 + f * power
    power = E1 + f * power
    power = E0 + f * power
    power = 1.0 + f * power
    return times_power_of_two(power, shifted)


@inlined
def power_single(base, exponent):
    """base^exponent in float32 for positive base, relative error about 1e-6: enough for step sizes."""
    return exp2_single(exponent * log2_single(base))


class Arithmetic(NamedTuple):
    """A precision: its type (as NumPy and as Numba know it) and the operations that depend on it."""

    real: Any
    number: Any
    exp2: Any
    quotient: Any
    power: Any


ARITHMETIC = {
    "float64": Arithmetic(np.float64, numba.float64, exp2_double, operator.truediv, math.pow),
    "float32": Arithmetic(np.float32, numba.float32, exp2_single, quotient_single, power_single),
}
"""The two precisions by name; kernels are made for one of them."""


def make_sincos(real):
    """A device function `sincos(x)` of a float64 angle, |x| < 1e6: (sin x, cos x) in the precision `real`.

    x = k pi/2 + r with |r| <= pi/4, reduced in double precision; polynomials in r, then the quadrant k mod 4.
    """
    sine_terms = tuple(real(c) for c in (SIN if real is np.float64 else SIN_SINGLE))
    cosine_terms = tuple(real(c) for c in (COS if real is np.float64 else COS_SINGLE))
    terms = len(sine_terms)
    one, half = real(1), real(0.5)

    @inlined
    def sincos(x):
        shifted = x * TWO_OVER_PI + MAGIC
        k = shifted - MAGIC
        r = real(((x - k * P0) - k * P1) - k * P2)
        z = r * r
        sine, cosine = sine_terms[terms - 1], cosine_terms[terms - 1]
        for i in range(terms - 1):
            sine = sine_terms[terms - 2 - i] + z * sine
            cosine = cosine_terms[terms - 2 - i] + z * cosine
        sine = r + r * z * sine
        cosine = one + z * (z * cosine - half)
        quadrant = low_word(shifted)
        swap = (quadrant & np.int32(1)) != np.int32(0)
        a = cosine if swap else sine
        b = sine if swap else cosine
        a = -a if (quadrant & np.int32(2)) != np.int32(0) else a
        b = -b if ((quadrant + np.int32(1)) & np.int32(2)) != np.int32(0) else b
        return a, b

    return sincos
