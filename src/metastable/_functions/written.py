"""Whether a process has what is written: functions may be edited after their import, or set from outside.

`source` reads files. A process computes with what it imported from them, perhaps an hour ago. Here both are compared as far as they can
be: the text with that of the import, the code of functions and the values of constants with what the text says, and names that are
imported from another module with those of that module.
"""

from __future__ import annotations

import ast
import functools
import marshal
import os
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from metastable._functions import modules
from metastable._functions.instructions import codes, instructions
from metastable._functions.reading import function_behind
from metastable._functions.source import Files, full_name, in_words, parsed

PLAIN = (type(None), bool, int, float, complex, str, bytes)
HEADER = 16
"""Bytes of a file with bytecode before the code itself."""


def note(module: str, name: str) -> None:
    """Keep what the files of a function say, which was imported a moment ago: `not_as_written` knows of later edits by that."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if _ASKED.get((module, name)) is not spec:
        _ASKED[module, name] = spec
        for where, _ in Files(modules.package(module)).definitions(module, name):
            _noted(where)


def not_as_written(module: str, name: str) -> str:
    """What of a function in this process is not what its files say ("" where all is)."""
    files = Files(modules.package(module))
    definitions = files.definitions(module, name)
    changing = {name for where, _ in definitions for name in _changed(_now(where) or "")}
    for where, what in definitions:
        noted, now = _noted(where), _now(where)
        if now is None or noted is None:
            continue
        edited = noted != now and parsed(noted).said([what]) != parsed(now).said([what])
        if edited or not _is_as_written(where, what, now, changing):
            return f"{where}:{what}" if what else where
    return ""


_ASKED: dict[tuple[str, str], ModuleSpec | None] = {}
"""Functions that `note` knows."""
_NOTED: dict[str, tuple[ModuleSpec, str]] = {}
"""The text that each module had when it was first asked for, after it was imported (again)."""


def _now(module: str) -> str | None:
    """The text of a module that this process has imported. What other loaders make of one (pytest, of its tests) is not known."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return modules.text_of(spec) if spec is not None and type(spec.loader) is SourceFileLoader else None


def _noted(module: str) -> str | None:
    text = _now(module)
    if text is None:
        return None
    spec = sys.modules[module].__spec__
    if spec is not None and (module not in _NOTED or _NOTED[module][0] is not spec):
        _NOTED[module] = spec, text if _is_imported(spec, text) else ""
    return _NOTED[module][1]


def _is_imported(spec: ModuleSpec, text: str) -> bool:
    """False where the bytecode that the last import has left is not that of the text: it was edited since, by whatever process."""
    place = Path(spec.cached or "")
    if sys.dont_write_bytecode or not spec.cached or not os.access(place.parent, os.W_OK):
        return True
    try:
        made = marshal.loads(place.read_bytes()[HEADER:])
        return _listed(made) == _listed(compile(text, "<text>", "exec", dont_inherit=True))
    except (OSError, ValueError, EOFError, TypeError, SyntaxError, RecursionError):
        return True


def _listed(code: CodeType) -> list[tuple[str, str]]:
    return [(item.co_qualname, instructions(item)) for item in codes(code)]


# ------------------------------------------------------------------------------------------- names of a module


def _is_as_written(module: str, name: str, text: str, changing: Collection[str]) -> bool:
    """True where a global of a module is what its text makes, as far as it can be told. `changing`: names that functions bind."""
    there, place = vars(sys.modules[module]), sys.modules[module].__file__
    if name not in there or name in changing:
        return True
    item, statements = there[name], [parsed(text).statements[number] for number in parsed(text).binds.get(name, ())]
    only = statements[0] if len(statements) == 1 and not parsed(text).stars else None
    if name in _constants(text) and only is not None:
        return isinstance(item, (*PLAIN, tuple)) and _said(item) == _constants(text)[name]
    if isinstance(only, ast.ImportFrom):
        return _is_that_of_its_module(item, only, module)
    written = _codes(text)
    if written is None:
        return True
    found = [*_codes_of(item)]
    if isinstance(only, (ast.FunctionDef, ast.AsyncFunctionDef)) and not only.decorator_list:
        return [code.co_qualname for code in found] == [name] and all(
            code.co_filename == place and (code.co_qualname, instructions(code)) in written for code in found
        )
    return all((code.co_qualname, instructions(code)) in written for code in found if code.co_filename == place)


def _is_that_of_its_module(item: Any, statement: ast.ImportFrom, module: str) -> bool:
    """False for a function or class of a module that was imported again since."""
    source = sys.modules.get(full_name("." * statement.level + (statement.module or ""), module))
    known = getattr(source, "__dict__", {}).get(statement.names[0].name, item)
    if isinstance(item, (FunctionType, type, ModuleType)):
        return known is item
    return _said(known) == _said(item) if isinstance(item, PLAIN) and isinstance(known, PLAIN) else True


@functools.lru_cache(64)
def _changed(text: str) -> frozenset[str]:
    """Names that functions bind, in their own module or as attributes of others."""
    nodes = [node for statement in parsed(text).statements for node in ast.walk(statement)]
    globals_ = (name for node in nodes if isinstance(node, ast.Global) for name in node.names)
    stored = (node.attr for node in nodes if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load))
    return frozenset((*globals_, *stored))


@functools.lru_cache(64)
def _constants(text: str) -> dict[str, str]:
    """Names that are bound to a number or a word (or a tuple of them), and what they are."""
    found: dict[str, str] = {}
    for statement in parsed(text).statements:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                found |= _values(target, statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            found |= _values(statement.target, statement.value)
    return found


def _values(target: ast.expr, value: ast.expr) -> dict[str, str]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return {name: said for pair in zip(target.elts, value.elts) for name, said in _values(*pair).items()}
    try:
        said = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return {}
    plain = all(isinstance(item, PLAIN) for item in (said if isinstance(said, tuple) else (said,)))
    return {target.id: _said(said)} if plain and isinstance(target, ast.Name) else {}


def _said(value: Any) -> str:
    return f"({', '.join(map(_said, value))})" if isinstance(value, tuple) else in_words(value)


def _codes_of(item: Any) -> Iterator[CodeType]:
    """The code of a function, or of the methods of a class."""
    for found in [*vars(item).values()] if isinstance(item, type) else [item]:
        function = function_behind(found)
        while hasattr(function, "__wrapped__") and isinstance(function, FunctionType):
            yield function.__code__
            function = function_behind(function.__wrapped__)
        if isinstance(function, FunctionType):
            yield function.__code__


@functools.lru_cache(64)
def _codes(text: str) -> frozenset[tuple[str, str]] | None:
    """What functions of a text are called, and their instructions; None where that cannot be told (too deep, too long numbers)."""
    try:
        return frozenset(_listed(compile(text, "<text>", "exec", dont_inherit=True)))
    except SyntaxError:
        return frozenset()
    except (RecursionError, ValueError):
        return None
