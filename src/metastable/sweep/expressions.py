"""Small formulas in sweep files: `radius = "0.5 / sqrt(beta)"`.

Numbers, names of the grid point (`beta`, `dim`, `tokens`, free axes), `+ - * / // % **`, parentheses, and the functions and
constants of `FUNCTIONS` and `CONSTANTS`. Nothing else is understood, so a sweep file can be run without being trusted.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from metastable.errors import SweepError

Number = int | float

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "cos": math.cos,
    "sin": math.sin,
    "acos": math.acos,
    "abs": abs,
    "min": min,
    "max": max,
    "round": round,
}
CONSTANTS = {"pi": math.pi}

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
MAXIMUM_LENGTH = 200
"""Longest formula, in characters."""


def evaluate(text: str, scope: Mapping[str, Number], where: str) -> Number:
    """The value of the formula `text` with the names of `scope`; `where` says in errors which entry it belongs to.

    >>> evaluate("0.5 / sqrt(beta)", {"beta": 64.0}, "radius")
    0.0625
    """
    tree = _parse(text, where)
    try:
        value = _value(tree, scope, text, where)
    except (ArithmeticError, ValueError) as reason:
        given = ", ".join(f"{name} = {scope[name]}" for name in sorted(names(text, where) & set(scope)))
        raise SweepError(f"{where}: {text!r} has no value{f' at {given}' if given else ''}: {reason}") from None
    if isinstance(value, complex) or not math.isfinite(value):
        raise SweepError(f"{where}: {text!r} is {value}, which is not a finite real number")
    return value


def names(text: str, where: str) -> set[str]:
    """Names that the formula needs from the grid point."""
    found = {node.id for node in ast.walk(_parse(text, where)) if isinstance(node, ast.Name)}
    return found - set(FUNCTIONS) - set(CONSTANTS)


def _parse(text: str, where: str) -> ast.expr:
    if len(text) > MAXIMUM_LENGTH:
        raise SweepError(f"{where}: a formula may have {MAXIMUM_LENGTH} characters, this one has {len(text)}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise SweepError(f"{where}: {text!r} is not a formula such as '0.5 / sqrt(beta)'") from None


def _value(node: ast.expr, scope: Mapping[str, Number], text: str, where: str) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.Name):
        if node.id in scope:
            return scope[node.id]
        if node.id in CONSTANTS:
            return CONSTANTS[node.id]
        known = ", ".join(sorted({*scope, *CONSTANTS}))
        raise SweepError(f"{where}: {text!r} uses {node.id!r}, which is not known here; known names: {known}")
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left, scope, text, where), _value(node.right, scope, text, where)
        if isinstance(node.op, ast.Pow):
            # Whole-number powers can be arbitrarily long; a float overflows at once and says so.
            left = float(left)
        return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand, scope, text, where))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in FUNCTIONS
        and not node.keywords
    ):
        arguments = [_value(argument, scope, text, where) for argument in node.args]
        try:
            return FUNCTIONS[node.func.id](*arguments)
        except TypeError as reason:
            raise SweepError(f"{where}: {text!r}: {reason}") from None
    raise SweepError(
        f"{where}: {text!r} is not understood; a formula has numbers, names, + - * / // % **, parentheses and "
        f"{', '.join(FUNCTIONS)}"
    )
