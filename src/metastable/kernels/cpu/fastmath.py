"""Exponential and sine for compiled loops, of numbers and of vectors (`vector`): `exp2`, `sincos`.

Numba as installed by pip has no vectorised mathematics, so `math.exp` in a pair loop costs four to five times the rest of
the pair. The functions here are polynomials without branches.

Only `fastmath={"contract"}` (fused multiply-add) may be switched on inside them. Reassociation would delete the rounding
trick `(y + MAGIC) - MAGIC`, so do not inline them by `inline="always"` into a function compiled with `"reassoc"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global

from metastable._jit import part
from metastable.kernels.minimax import COS, EXP2, HALF_PI, MAGIC, SIN, TWO_OVER_PI


def intrinsic(typing: Callable) -> Any:
    """Decorator for functions that write their own LLVM code: `typing` makes a signature of the types of the arguments, and what is
    decorated gets (context, builder, signature, values).

    Numba's own (`numba.extending.intrinsic`) looks through all its registries whenever a call is typed, which took a twentieth of the
    time to compile.
    """

    def register(generate: Any) -> Any:
        lowered = set()

        def generic(self, arguments, named):
            signature = typing(*arguments)
            if signature.args not in lowered:
                lowered.add(signature.args)
                lower_builtin(generate, *signature.args)(generate)
            return signature

        template: Any = type(generate.__name__, (AbstractTemplate,), {"key": generate, "generic": generic})
        infer_global(generate, types.Function(template))
        return generate

    return register


LOWEST_EXPONENT = -1021.0
"""Smallest exponent that `exp2` distinguishes; below it the result stays at 2^-1021 (about 4e-308)."""

E0, E1, E2, E3, E4, E5, E6, E7, E8, E9 = EXP2
S0, S1, S2, S3, S4, S5 = SIN
C0, C1, C2, C3, C4, C5 = COS
P0, P1, P2 = HALF_PI


def integers(kind):
    """The LLVM type of as many integers as `kind` has numbers."""
    word = ir.IntType(64)
    return ir.VectorType(word, kind.count) if isinstance(kind, ir.VectorType) else word


def every(kind, value):
    """A constant of an LLVM type, the same in every lane of a vector."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


@intrinsic(lambda value, shifted: value(value, shifted))
def _times_power_of_two(context, builder, signature, values):
    """`value * 2^i`, i the integer that MAGIC left in the low bits of `shifted`."""
    kind = integers(values[0].type)
    value, shifted = (builder.bitcast(number, kind) for number in values)
    return builder.bitcast(builder.add(value, builder.shl(shifted, every(kind, 52))), values[0].type)


@intrinsic(lambda shifted, odd, even: odd(shifted, odd, even))
def _if_odd(context, builder, signature, values):
    """`odd` where the integer in `shifted` is odd, else `even`."""
    shifted, odd, even = values
    kind = integers(shifted.type)
    bit = builder.and_(builder.bitcast(shifted, kind), every(kind, 1))
    return builder.select(builder.icmp_signed("!=", bit, every(kind, 0)), odd, even)


@intrinsic(lambda value, shifted: value(value, shifted))
def _flip_by_bit_one(context, builder, signature, values):
    """`-value` where bit 1 of the integer in `shifted` is set, else `value`."""
    kind = integers(values[0].type)
    value, shifted = (builder.bitcast(number, kind) for number in values)
    sign = builder.shl(builder.and_(shifted, every(kind, 2)), every(kind, 62))
    return builder.bitcast(builder.xor(value, sign), values[0].type)


@intrinsic(lambda value: value(value))
def _clamp(context, builder, signature, values):
    """`value`, but at least `LOWEST_EXPONENT`."""
    bound = every(values[0].type, LOWEST_EXPONENT)
    return builder.select(builder.fcmp_ordered(">", values[0], bound), values[0], bound)


elementary = part(fastmath={"contract"}, forceinline=True)


@elementary
def exp2_bounded(y):
    """2^y for y known to lie above -1021: one operation less than `exp2`."""
    shifted = y + MAGIC
    f = y - (shifted - MAGIC)
    # Horner: the fewest operations; neighbouring pairs hide its latency.
    power = 1.0 + f * (
        E0 + f * (E1 + f * (E2 + f * (E3 + f * (E4 + f * (E5 + f * (E6 + f * (E7 + f * (E8 + f * E9))))))))
    )
    return _times_power_of_two(power, shifted)


@elementary
def exp2(y):
    """2^y for y < 1023, relative error below 5e-16; y below -1021 gives 2^-1021.

    y = i + f with |f| <= 1/2; 2^f by a polynomial of degree 10, 2^i by adding i to the exponent bits.
    """
    return exp2_bounded(_clamp(y))


@elementary
def sincos(x):
    """(sin x, cos x) for |x| < 1e6, absolute error below 2e-16.

    x = k pi/2 + r with |r| <= pi/4 (Cody and Waite reduction), polynomials in r, then the quadrant k mod 4.
    """
    shifted = x * TWO_OVER_PI + MAGIC
    k = shifted - MAGIC
    r = x - k * P0
    r = r - k * P1
    r = r - k * P2
    z = r * r
    sine = r + r * z * (S0 + z * (S1 + z * (S2 + z * (S3 + z * (S4 + z * S5)))))
    cosine = 1.0 + z * (-0.5 + z * (C0 + z * (C1 + z * (C2 + z * (C3 + z * (C4 + z * C5))))))
    first = _flip_by_bit_one(_if_odd(shifted, cosine, sine), shifted)
    second = _flip_by_bit_one(_if_odd(shifted, sine, cosine), shifted + 1.0)
    return first, second
