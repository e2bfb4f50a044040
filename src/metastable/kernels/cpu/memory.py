"""Named memory: named tuples of numbers and arrays that compiled functions get by reference.

By value a tuple of twenty arrays is more than a hundred arguments in every call, which take longer to compile than the work. So a
tuple is written down once (`Reference`) and functions get the address. They read `memory.field` as they would read the
tuple's; a tuple within a tuple is a reference too. Only what the arrays hold ever changes, so reading a field leaves the loop
that it stands in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import typeof, types
from numba.core import cgutils
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import NativeValue, models, register_model, unbox
from numba.np.arrayobj import populate_array

from metastable.kernels.cpu.compiled import compiled
from metastable.kernels.cpu.fastmath import intrinsic

WORD = ir.IntType(64)
_NUMBER, _BITS = struct.Struct("d"), struct.Struct("q")


def _title(kind: Any) -> str:
    """The name of a type, by which Numba tells types apart: two tuples of one name may have other fields of the same types."""
    if not isinstance(kind, types.BaseNamedTuple):
        return str(kind)
    named: Any = kind
    fields = ", ".join(f"{name}: {_title(field)}" for name, field in zip(named.fields, named.types))
    return f"{named.instance_class.__name__}({fields})"


class ReferenceType(types.Type):
    """Numba type of a named tuple in memory."""

    def __init__(self, target: Any) -> None:
        self.target = target
        super().__init__(name=f"metastable.Reference({_title(target)})")

    def field(self, name: str) -> Any:
        """The type of a field: as in the tuple, and tuples are referred to."""
        kind = self.target.types[self.target.fields.index(name)]
        return ReferenceType(kind) if isinstance(kind, types.BaseTuple) else kind


@register_model(ReferenceType)
class ReferenceModel(models.PrimitiveModel):
    """A reference is an address."""

    def __init__(self, manager, frontend_type):
        super().__init__(manager, frontend_type, WORD.as_pointer())


class Reference:
    """A named tuple in memory: handed to compiled functions in place of the tuple, and kept as long as they may use it."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        words: list[int] = []
        self.kind = self._numba_type_ = _type_by(_write(memory, words), memory)
        self._words = np.array(words, dtype=np.int64)
        self.address = self._words.ctypes.data

    def field(self, name: str) -> Any:
        """The type that compiled code sees in a field."""
        return self._numba_type_.field(name)


_TYPES: dict[Any, ReferenceType] = {}
"""Types by what tells them apart (Numba takes long to find out the type of a tuple)."""


def _type_by(kind: Any, memory: Any) -> ReferenceType:
    """The type of references to `memory`, which `kind` tells from others."""
    if kind not in _TYPES:
        _TYPES[kind] = ReferenceType(typeof(memory))
    return _TYPES[kind]


def reference_type(memory: Any) -> ReferenceType:
    """The type of references to a named tuple."""
    return _type_by(_write(memory, None), memory)


CONTIGUOUS, WRITEABLE = 0x1, 0x400
"""Bits of NumPy's flags of an array."""


def _write(value: Any, words: list[int] | None) -> Any:
    """Append a value in words of 64 bits: a number; the place and the shape of an array; the fields of a tuple. What tells its type,
    which is all that is asked for without words.

    Every run has some hundreds of fields: the likely kinds come first.
    """
    kind = type(value)
    if kind is np.ndarray:
        flags = value.flags.num
        if flags & CONTIGUOUS:
            if words is not None:
                words.append(value.__array_interface__["data"][0])
                words.extend(value.shape)
            return value.dtype.char, value.ndim, flags & WRITEABLE
    elif kind is int or issubclass(kind, np.integer):
        if words is not None:
            words.append(int(value))
        return int
    elif issubclass(kind, tuple):
        return kind, tuple([_write(item, words) for item in value])
    elif issubclass(kind, float):
        if words is not None:
            words.append(_BITS.unpack(_NUMBER.pack(value))[0])
        return float
    raise TypeError(f"compiled code is given integers, floats and contiguous arrays, not {value!r}")


def _size(kind: Any) -> int:
    """Words of a type."""
    fields = getattr(kind, "types", None)
    if fields is not None:
        return sum(map(_size, fields))
    return 1 + kind.ndim if isinstance(kind, types.Array) else 1


@infer_getattr
class ReferenceAttributes(AttributeTemplate):
    """Fields have the types that they have in the tuple; tuples are referred to."""

    key = ReferenceType

    def generic_resolve(self, reference, name):
        return reference.field(name) if name in reference.target.fields else None


def _word(builder, value, offset, wanted=WORD):
    """One of the words at an address."""
    place = builder.gep(value, [ir.Constant(WORD, offset)], inbounds=True)
    loaded = builder.load(builder.bitcast(place, wanted.as_pointer()), typ=wanted)
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded


def _array(context, builder, kind, data, shape):
    """A contiguous array without an owner."""
    size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    strides = [size]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    array = context.make_array(kind)(context, builder)
    populate_array(array, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
    return array._getvalue()


@lower_getattr_generic(ReferenceType)
def _read(context, builder, reference, value, name):
    position = reference.target.fields.index(name)
    kinds = reference.target.types
    kind = kinds[position]
    first = sum(_size(item) for item in kinds[:position])
    if isinstance(kind, types.BaseTuple):
        return builder.gep(value, [ir.Constant(WORD, first)], inbounds=True)
    if not isinstance(kind, types.Array):
        return _word(builder, value, first, context.get_value_type(kind))
    shape = [_word(builder, value, first + 1 + axis) for axis in range(kind.ndim)]
    data = _word(builder, value, first, context.get_data_type(kind.dtype).as_pointer())
    return _array(context, builder, kind, data, shape)


def _entry(kind):
    """The type of an entry of an array, or of a number as it is."""
    return kind.copy(ndim=kind.ndim - 1) if isinstance(kind, types.Array) else kind


@cache
def line_type(lines: ReferenceType) -> Any:
    """The type of a line of a named tuple in memory."""
    return types.BaseTuple.from_types(tuple(_entry(kind) for kind in lines.target.types), lines.target.instance_class)


@intrinsic(lambda lines, i: line_type(lines)(lines, types.intp))
def line_of(context, builder, signature, values):
    """Line i of a named tuple in memory, as a tuple of the same name: the i-th entry of every array, and numbers as they are."""
    lines, found = signature.args[0], []
    for name, kind in zip(lines.target.fields, lines.target.types):
        value = _read(context, builder, lines, values[0], name)
        if isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder, value)
            shape = cgutils.unpack_tuple(builder, array.shape)[1:]
            place = values[1]
            for length in shape:
                place = builder.mul(place, length)
            value = _array(context, builder, _entry(kind), builder.gep(array.data, [place], inbounds=True), shape)
        found.append(value)
    return context.make_tuple(builder, signature.return_type, found)


@unbox(ReferenceType)
def _unbox(kind, instance, c):
    number = c.pyapi.object_getattr_string(instance, "address")
    address = c.pyapi.long_as_longlong(number)
    c.pyapi.decref(number)
    return NativeValue(c.builder.inttoptr(address, c.context.get_value_type(kind)))


def by_reference(function: Callable) -> Callable:
    """A function, compiled, whose first argument is a named tuple (or a reference to one) and travels by reference."""
    machine = compiled(function)
    return lambda memory, *others: machine(memory if isinstance(memory, Reference) else Reference(memory), *others)
