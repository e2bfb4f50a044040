"""Instructions of functions as text, in the version of Python that runs."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
"""Instructions that read a global."""
FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
"""What is said of code beside its instructions (and does not follow from how it was compiled)."""


def codes(code: CodeType) -> Iterator[CodeType]:
    """The code and that of functions and comprehensions within it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from codes(item)


def instructions(code: CodeType) -> str:
    """Code as text: all but where it stands and what it is called."""
    signature = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & FLAGS)
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


def words_of(code: CodeType) -> Iterator[str]:
    """Words among the constants of code, which may be names."""
    for value in code.co_consts:
        for word in value if isinstance(value, (tuple, frozenset)) else (value,):
            if isinstance(word, str):
                yield word
