"""A vector of float64 inside compiled functions, with the arithmetic that the kernels need.

The loop vectoriser of LLVM uses at most 256 bits on processors with AVX-512 and gives up on loops that are not simple, so
the kernels state their vectors: `Vector` is `<LANES x double>`, with `LANES` eight where the processor has AVX-512 and four
elsewhere (one AVX register, two of SSE or NEON; with more, kernels run out of registers). Kernels hold for every power of
two: `METASTABLE_LANES` sets another width, for tests of that. Every operation acts
on each lane alone (except `total` and `largest`, which reduce in a fixed order), so what happens in one lane never depends on its
neighbours: the results are the same for any grouping of work.

Multiplication and addition carry the flag `contract` (they may be fused), nothing else.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core.cgutils import get_or_insert_function
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import models, register_model

from metastable._jit import LANES_CHOSEN, part
from metastable.kernels.cpu.fastmath import (
    C0,
    C1,
    C2,
    C3,
    C4,
    C5,
    E0,
    E1,
    E2,
    E3,
    E4,
    E5,
    E6,
    E7,
    E8,
    E9,
    LOWEST_EXPONENT,
    MAGIC,
    P0,
    P1,
    P2,
    S0,
    S1,
    S2,
    S3,
    S4,
    S5,
    TWO_OVER_PI,
    intrinsic,
)


def _lanes() -> int:
    """Eight where the code is compiled for AVX-512, else four (`NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` are heeded)."""
    if LANES_CHOSEN:
        return LANES_CHOSEN
    chosen = config.CPU_FEATURES  # type: ignore[attr-defined]
    if chosen is None and config.CPU_NAME is None:  # type: ignore[attr-defined]
        return 8 if get_host_cpu_features().get("avx512f", False) else 4
    return 8 if "+avx512f" in (chosen or "") else 4


LANES = _lanes()
"""Numbers in one vector."""

ALIGNMENT = 8
FLAGS = ("contract",)
DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
INTEGERS = ir.VectorType(ir.IntType(64), LANES)
INDICES = ir.IntType(32)


class VectorType(types.Type):
    """Numba type of `LANES` float64."""

    def __init__(self) -> None:
        super().__init__(name="metastable.Vector")


VECTOR = VectorType()


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):
    """A vector is one LLVM value."""

    def __init__(self, manager, frontend_type):
        super().__init__(manager, frontend_type, DOUBLES)


def _spread(builder, value):
    """A scalar LLVM value in every lane; vectors are returned as they are."""
    if value.type == DOUBLES:
        return value
    single = builder.insert_element(ir.Constant(DOUBLES, ir.Undefined), value, ir.Constant(INDICES, 0))
    lanes = ir.Constant(ir.VectorType(INDICES, LANES), [0] * LANES)
    return builder.shuffle_vector(single, ir.Constant(DOUBLES, ir.Undefined), lanes)


def _all(kind, value):
    """A constant vector."""
    return ir.Constant(kind, [value] * LANES)


MIXED = (
    signature(VECTOR, VECTOR, VECTOR),
    signature(VECTOR, VECTOR, types.float64),
    signature(VECTOR, types.float64, VECTOR),
)


def _register_binary(function, method):
    """Type and lower an arithmetic operator for vectors, and for a vector with a scalar."""
    template: Any = infer_global(function)
    template(type(f"Vector_{method}", (ConcreteTemplate,), {"cases": list(MIXED)}))

    def lower(context, builder, sig, arguments):
        left, right = (_spread(builder, value) for value in arguments)
        return getattr(builder, method)(left, right, flags=FLAGS)

    for case in MIXED:
        lower_builtin(function, *case.args)(lower)


for _function, _method in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _register_binary(_function, _method)
# Augmented assignment rebinds the name: a vector is a value.
for _function, _method in ((operator.iadd, "fadd"), (operator.isub, "fsub"), (operator.imul, "fmul")):
    _register_binary(_function, _method)


def _address(context, builder, array_type, array, index):
    """Pointer to entry `index` of a one-dimensional contiguous array, as a pointer to a vector."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index], inbounds=True), DOUBLES.as_pointer())


@intrinsic
def load(typing_context, array, index):
    """`array[index : index + LANES]` of a one-dimensional contiguous float64 array, without bounds check."""

    def generate(context, builder, sig, arguments):
        pointer = _address(context, builder, sig.args[0], *arguments)
        return builder.load(pointer, align=ALIGNMENT, typ=DOUBLES)

    return VECTOR(array, types.intp), generate


@intrinsic
def store(typing_context, array, index, value):
    """`array[index : index + LANES] = value`, without bounds check."""

    def generate(context, builder, sig, arguments):
        target, position, vector = arguments
        pointer = _address(context, builder, sig.args[0], target, position)
        builder.store(vector, pointer, align=ALIGNMENT)
        return context.get_dummy_value()

    return types.void(array, types.intp, VECTOR), generate


@intrinsic
def spread(typing_context, array, index):
    """`array[index]` in every lane, without bounds check and without the test for negative indices."""

    def generate(context, builder, sig, arguments):
        data = context.make_array(sig.args[0])(context, builder, arguments[0]).data
        return _spread(builder, builder.load(builder.gep(data, [arguments[1]], inbounds=True)))

    return VECTOR(array, types.intp), generate


@intrinsic
def fill(typing_context, value):
    """A scalar in every lane."""

    def generate(context, builder, sig, arguments):
        return _spread(builder, arguments[0])

    return VECTOR(types.float64), generate


@intrinsic
def first(typing_context, value):
    """The first lane."""

    def generate(context, builder, sig, arguments):
        return builder.extract_element(arguments[0], ir.Constant(INDICES, 0))

    return types.float64(VECTOR), generate


@intrinsic
def maximum(typing_context, left, right):
    """Lane by lane, the larger one."""

    def generate(context, builder, sig, arguments):
        left, right = arguments
        return builder.select(builder.fcmp_ordered(">", left, right), left, right)

    return VECTOR(VECTOR, VECTOR), generate


@intrinsic
def keep(typing_context, value, count):
    """The first `count` lanes, zero in the others."""

    def generate(context, builder, sig, arguments):
        vector, number = arguments
        limit = builder.insert_element(ir.Constant(INTEGERS, ir.Undefined), number, ir.Constant(INDICES, 0))
        zeros = ir.Constant(ir.VectorType(INDICES, LANES), [0] * LANES)
        limit = builder.shuffle_vector(limit, ir.Constant(INTEGERS, ir.Undefined), zeros)
        inside = builder.icmp_signed("<", ir.Constant(INTEGERS, list(range(LANES))), limit)
        return builder.select(inside, vector, _all(DOUBLES, 0.0))

    return VECTOR(VECTOR, types.intp), generate


@intrinsic
def where(typing_context, mask, yes, no):
    """`yes` in the lanes where `mask` is not zero, else `no`."""

    def generate(context, builder, sig, arguments):
        mask, yes, no = arguments
        return builder.select(builder.fcmp_unordered("!=", mask, _all(DOUBLES, 0.0)), yes, no)

    return VECTOR(VECTOR, VECTOR, VECTOR), generate


@intrinsic
def lanes(typing_context):
    """The vector 0, 1, ..., LANES - 1."""

    def generate(context, builder, sig, arguments):
        return ir.Constant(DOUBLES, [float(i) for i in range(LANES)])

    return VECTOR(), generate


def _reduce(builder, vector, combine):
    """Fold halves onto each other until one lane is left."""
    width = LANES
    while width > 1:
        width //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        positions = ir.VectorType(INDICES, width)
        low = builder.shuffle_vector(vector, undefined, ir.Constant(positions, list(range(width))))
        high = builder.shuffle_vector(vector, undefined, ir.Constant(positions, list(range(width, 2 * width))))
        vector = combine(low, high)
    return builder.extract_element(vector, ir.Constant(INDICES, 0))


@intrinsic
def total(typing_context, value):
    """Sum of the lanes, in a fixed order."""

    def generate(context, builder, sig, arguments):
        return _reduce(builder, arguments[0], builder.fadd)

    return types.float64(VECTOR), generate


@intrinsic
def largest(typing_context, value):
    """Largest of the lanes."""

    def generate(context, builder, sig, arguments):
        def larger(low, high):
            return builder.select(builder.fcmp_ordered(">", low, high), low, high)

        return _reduce(builder, arguments[0], larger)

    return types.float64(VECTOR), generate


@intrinsic
def root(typing_context, value):
    """Square root of each lane."""

    def generate(context, builder, sig, arguments):
        kind = ir.FunctionType(DOUBLES, [DOUBLES])
        return builder.call(get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{LANES}f64"), arguments)

    return VECTOR(VECTOR), generate


@intrinsic
def _times_power_of_two(typing_context, value, shifted):
    """`value * 2^i`, i the integer that MAGIC left in the low bits of `shifted`."""

    def generate(context, builder, sig, arguments):
        value, shifted = (builder.bitcast(argument, INTEGERS) for argument in arguments)
        exponent = builder.shl(shifted, _all(INTEGERS, 52))
        return builder.bitcast(builder.add(value, exponent), DOUBLES)

    return VECTOR(VECTOR, VECTOR), generate


@intrinsic
def _if_odd(typing_context, shifted, odd, even):
    """`odd` in the lanes where the integer in `shifted` is odd, else `even`."""

    def generate(context, builder, sig, arguments):
        integer = builder.bitcast(arguments[0], INTEGERS)
        bit = builder.and_(integer, _all(INTEGERS, 1))
        return builder.select(builder.icmp_signed("!=", bit, _all(INTEGERS, 0)), arguments[1], arguments[2])

    return VECTOR(VECTOR, VECTOR, VECTOR), generate


@intrinsic
def _flip_by_bit_one(typing_context, value, shifted, offset):
    """`-value` where bit 1 of the integer in `shifted` plus `offset` is set, else `value`."""

    def generate(context, builder, sig, arguments):
        value, shifted, offset = arguments
        single = builder.insert_element(ir.Constant(INTEGERS, ir.Undefined), offset, ir.Constant(INDICES, 0))
        zeros = ir.Constant(ir.VectorType(INDICES, LANES), [0] * LANES)
        offsets = builder.shuffle_vector(single, ir.Constant(INTEGERS, ir.Undefined), zeros)
        integer = builder.add(builder.bitcast(shifted, INTEGERS), offsets)
        sign = builder.shl(builder.and_(integer, _all(INTEGERS, 2)), _all(INTEGERS, 62))
        return builder.bitcast(builder.xor(builder.bitcast(value, INTEGERS), sign), DOUBLES)

    return VECTOR(VECTOR, VECTOR, types.int64), generate


@part(forceinline=True)
def exp2_bounded(y):
    """2^y in each lane, for y known to lie above -1021: one operation less than `exp2`."""
    shifted = y + MAGIC
    f = y - (shifted - MAGIC)
    # Horner: the fewest operations; neighbouring pairs hide its latency.
    power = 1.0 + f * (
        E0 + f * (E1 + f * (E2 + f * (E3 + f * (E4 + f * (E5 + f * (E6 + f * (E7 + f * (E8 + f * E9))))))))
    )
    return _times_power_of_two(power, shifted)


@part(forceinline=True)
def exp2(y):
    """2^y in each lane: `fastmath.exp2`."""
    return exp2_bounded(maximum(y, fill(LOWEST_EXPONENT)))


@part(forceinline=True)
def sincos(x):
    """(sin x, cos x) in each lane: `fastmath.sincos`."""
    shifted = x * TWO_OVER_PI + MAGIC
    k = shifted - MAGIC
    r = x - k * P0
    r = r - k * P1
    r = r - k * P2
    z = r * r
    sine = r + r * z * (S0 + z * (S1 + z * (S2 + z * (S3 + z * (S4 + z * S5)))))
    cosine = 1.0 + z * (-0.5 + z * (C0 + z * (C1 + z * (C2 + z * (C3 + z * (C4 + z * C5))))))
    first = _flip_by_bit_one(_if_odd(shifted, cosine, sine), shifted, 0)
    second = _flip_by_bit_one(_if_odd(shifted, sine, cosine), shifted, 1)
    return first, second
