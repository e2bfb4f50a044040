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
from functools import partial
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core.cgutils import get_or_insert_function
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import models, register_model

from metastable._jit import FIRST, LANES_CHOSEN
from metastable.kernels.cpu.fastmath import every, integers, intrinsic
from metastable.kernels.cpu.fastmath import exp2 as exp2
from metastable.kernels.cpu.fastmath import exp2_bounded as exp2_bounded
from metastable.kernels.cpu.fastmath import sincos as sincos


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
    if isinstance(value.type, ir.VectorType):
        return value
    nothing = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    single = builder.insert_element(nothing, value, ir.Constant(INDICES, 0))
    return builder.shuffle_vector(single, nothing, every(ir.VectorType(INDICES, LANES), 0))


def _alike(builder, kinds, arguments):
    """LLVM values of these Numba types as vectors where any of them is one."""
    return [_spread(builder, value) for value in arguments] if VECTOR in kinds else arguments


def _joint(*kinds):
    """The type of what is computed from these: a vector where any of them is one."""
    return VECTOR if VECTOR in kinds else types.float64


MIXED = (
    signature(VECTOR, VECTOR, VECTOR),
    signature(VECTOR, VECTOR, types.float64),
    signature(VECTOR, types.float64, VECTOR),
)


def _register_binary(function, method):
    """Type and lower an arithmetic operator for vectors, and for a vector with a scalar."""
    template: Any = infer_global(function)
    meaning = {"cases": list(MIXED), "metadata": FIRST}
    template(type(f"Vector_{method}", (ConcreteTemplate,), meaning))

    def lower(context, builder, sig, arguments):
        left, right = (_spread(builder, value) for value in arguments)
        return getattr(builder, method)(left, right, flags=FLAGS)

    for case in MIXED:
        lower_builtin(function, *case.args)(lower)


for _name, _method in {"add": "fadd", "sub": "fsub", "mul": "fmul", "truediv": "fdiv"}.items():
    # Augmented assignment rebinds the name: a vector is a value.
    for _function in (getattr(operator, _name), getattr(operator, f"i{_name}")):
        _register_binary(_function, _method)


def _address(context, builder, array_type, array, index):
    """Pointer to entry `index` of a one-dimensional contiguous array, as a pointer to a vector."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index], inbounds=True), DOUBLES.as_pointer())


@intrinsic(lambda array, index: VECTOR(array, types.intp))
def load(context, builder, signature, values):
    """`array[index : index + LANES]` of a one-dimensional contiguous float64 array, without bounds check."""
    pointer = _address(context, builder, signature.args[0], *values)
    return builder.load(pointer, align=ALIGNMENT, typ=DOUBLES)


@intrinsic(lambda array, index, value: types.void(array, types.intp, VECTOR))
def store(context, builder, signature, values):
    """`array[index : index + LANES] = value`, without bounds check."""
    pointer = _address(context, builder, signature.args[0], *values[:2])
    builder.store(values[2], pointer, align=ALIGNMENT)
    return context.get_dummy_value()


@intrinsic(lambda array, index: VECTOR(array, types.intp))
def spread(context, builder, signature, values):
    """`array[index]` in every lane, without bounds check and without the test for negative indices."""
    data = context.make_array(signature.args[0])(context, builder, values[0]).data
    return _spread(builder, builder.load(builder.gep(data, [values[1]], inbounds=True)))


@intrinsic(lambda value: VECTOR(types.float64))
def fill(context, builder, signature, values):
    """A scalar in every lane."""
    return _spread(builder, values[0])


def _larger(builder, left, right):
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


@intrinsic(lambda left, right: _joint(left, right)(left, right))
def maximum(context, builder, signature, values):
    """The larger one, lane by lane (numbers, vectors or one of each)."""
    return _larger(builder, *_alike(builder, signature.args, values))


@intrinsic(lambda value, count: VECTOR(VECTOR, types.intp))
def keep(context, builder, signature, values):
    """The first `count` lanes, zero in the others."""
    places = ir.Constant(integers(DOUBLES), list(range(LANES)))
    inside = builder.icmp_signed("<", places, _spread(builder, values[1]))
    return builder.select(inside, values[0], every(DOUBLES, 0.0))


@intrinsic(lambda mask, yes, no: _joint(mask, yes, no)(mask, yes, no))
def where(context, builder, signature, values):
    """`yes` in the lanes where `mask` is not zero, else `no` (numbers, vectors or some of each)."""
    mask, yes, no = _alike(builder, signature.args, values)
    return builder.select(builder.fcmp_unordered("!=", mask, every(mask.type, 0.0)), yes, no)


@intrinsic(lambda: VECTOR())
def lanes(context, builder, signature, values):
    """The vector 0, 1, ..., LANES - 1."""
    return ir.Constant(DOUBLES, [float(i) for i in range(LANES)])


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


@intrinsic(lambda value: types.float64(VECTOR))
def total(context, builder, signature, values):
    """Sum of the lanes, in a fixed order."""
    return _reduce(builder, values[0], builder.fadd)


@intrinsic(lambda value: types.float64(VECTOR))
def largest(context, builder, signature, values):
    """Largest of the lanes."""
    return _reduce(builder, values[0], partial(_larger, builder))


@intrinsic(lambda value: value(value))
def root(context, builder, signature, values):
    """Square root of a number, or of each lane."""
    kind = values[0].type
    name = f"llvm.sqrt.v{LANES}f64" if kind == DOUBLES else "llvm.sqrt.f64"
    return builder.call(get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name), values)
