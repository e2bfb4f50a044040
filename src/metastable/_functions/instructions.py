"""Instructions of functions as text, in the version of Python that runs, and the words that every version agrees on."""

from __future__ import annotations

import dis
import importlib.util
from collections.abc import Iterator
from types import CodeType
from typing import Any

LOADS = ("LOAD_CONST", "RETURN_CONST", "LOAD_SMALL_INT")
"""Instructions that have the constants of code; which of them has what depends on the version of Python."""
GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
"""Instructions that read a global."""


def codes(code: CodeType) -> Iterator[CodeType]:
    """The code and that of functions and comprehensions within it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from codes(item)


def instructions(code: CodeType) -> str:
    """Code as text: all but where it stands and what it is called."""
    signature = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
    lines = [f"{item.opname} {_constant(_argument(code, item))}" for item in dis.get_instructions(code)]
    return "\n".join([*map(str, signature), *arguments, *lines, code.co_exceptiontable.hex()])


def _argument(code: CodeType, instruction: dis.Instruction) -> Any:
    """The value of the argument of an instruction; not every version says that of names of arguments."""
    return code.co_consts[instruction.arg or 0] if instruction.opname == "KW_NAMES" else instruction.argval


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return "code"
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"tuple {[*map(_constant, value)]}"
    return f"{type(value).__name__} {value!r}"


def globals_of(code: CodeType) -> Iterator[str]:
    """Names of the globals that code reads."""
    return (item.argval for item in dis.get_instructions(code) if item.opname in GLOBALS)


def constants(code: CodeType) -> Iterator[str]:
    """Numbers and words of code, without its documentation."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("KW_NAMES", *LOADS):
            yield from _words(_argument(code, instruction))


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, (tuple, frozenset)):
        for item in value:
            yield from _words(item)
    elif isinstance(value, slice):
        yield from _words((value.start, value.stop, value.step))
    elif isinstance(value, (int, float, complex, str, bytes)) and not isinstance(value, bool):
        yield repr(value)


def imports(code: CodeType, package: Any) -> Iterator[str]:
    """Full names of the modules that code imports when it is called."""
    loaded: list[Any] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in LOADS:
            loaded.append(instruction.argval)
        elif instruction.opname == "IMPORT_NAME":
            level = loaded[-2] if len(loaded) > 1 and isinstance(loaded[-2], int) else 0
            try:
                yield importlib.util.resolve_name("." * level + str(instruction.argval), package)
            except (ImportError, ValueError):  # which the function will say itself
                continue
