"""What functions of users are made of, as plain values: how a function is told from another one of the same name.

Two closures, `functools.partial`s or lambdas may share a name and be different functions, and so are the versions of one that is
edited, wherever and however often they are imported. They differ in what they hold (closures, defaults, fields), in the numbers and
names of their code, or in those of the functions and globals of somebody that they use. Libraries are known by the names that are
used of them.

Globals may change while a program runs (a table of what was computed before, a counter), so they count in fingerprints only, which are
taken before anything is computed.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

DEEPEST = 6
"""Functions and collections within one another that are looked into."""
LOADS = ("LOAD_CONST", "RETURN_CONST", "LOAD_SMALL_INT")
"""Instructions that have the constants of code; which of them has what depends on the version of Python."""
METHODS = (FunctionType, classmethod, staticmethod, property)
LIBRARIES = frozenset({"metastable", "numpy", "scipy", *sys.stdlib_module_names})
"""Packages that nobody writes on the side."""
CALLED = ("__call__", "__init__", "__post_init__")


def made_of(function: Any) -> Any:
    """Plain values of what a function (or an object that is used as one) is made of: the same in every version of Python.

    These are numbers, words and names, in no order of execution: `a < b` and `a > b` have the same, and so have those that differ in
    the value of a global. Whoever can call the function asks for its values, too; `fingerprint` tells them apart without.
    """
    return _Reader(function).plain(function, DEEPEST)


def fingerprint(function: Any) -> str:
    """`PYTHON:WORDS:CODE`: digests of what a function is made of with globals, and of its instructions, too, which that version has."""
    version = ".".join(map(str, sys.version_info[:2]))
    read = [_Reader(function, values=True, exact=exact).plain(function, DEEPEST) for exact in (False, True)]
    return ":".join((version, *(_digest(json.dumps(item).encode()) for item in read)))


def same(one: str, other: str) -> bool:
    """True where two fingerprints are those of one function, as far as two versions of Python can tell."""
    first, second = one.split(":"), other.split(":")
    return first[1] == second[1] and (first[0] != second[0] or first[2] == second[2])


class _Reader:
    """Reads a function of somebody, and what it uses of theirs."""

    def __init__(self, function: Any, values: bool = False, exact: bool = False) -> None:
        self.values = values
        """Globals that are no functions count."""
        self.exact = exact
        """Instructions count."""
        while isinstance(function, functools.partial):
            function = function.func
        self.home = _package(getattr(_plainest(function), "__module__", None) or type(function).__module__)
        self.open: set[int] = set()
        """What is being read: functions may call themselves."""

    def read(self, item: Any, depth: int) -> list[Any]:
        """What a function or an object is made of."""
        item = _plainest(item)
        if id(item) in self.open:
            return []
        self.open.add(id(item))
        try:
            return [self.plain(part, depth - 1) for part in self._parts(item)]
        finally:
            self.open.discard(id(item))

    def _parts(self, item: Any) -> Iterator[Any]:
        if isinstance(item, functools.partial):
            yield from (item.func, *item.args, *sorted(item.keywords.items()))
        elif isinstance(item, MethodType):
            yield from (item.__func__, item.__self__)
        elif isinstance(item, FunctionType):
            yield from (_content(cell) for cell in item.__closure__ or ())
            yield from (*(item.__defaults__ or ()), *sorted((item.__kwdefaults__ or {}).items()))
            yield from self._of_code(item)
        elif isinstance(item, BuiltinFunctionType):
            yield item.__qualname__
        elif isinstance(item, type):
            yield from self._of_class(item)
        else:
            yield from self._of_class(type(item))
            held = {field.name: getattr(item, field.name) for field in fields(item)} if is_dataclass(item) else None
            held = getattr(item, "__dict__", {}) if held is None else held
            yield from sorted((name, value) for name, value in held.items() if not name.startswith("__"))

    def _of_class(self, made: type) -> Iterator[Any]:
        """The methods of a class of somebody, and its other attributes where values count. (What is made for dataclasses says no more
        than their fields.)"""
        yield made.__qualname__
        for parent in made.__mro__:
            if self._theirs(parent.__module__):
                for name, method in sorted(vars(parent).items()):
                    if isinstance(method, METHODS) and (name in CALLED or not name.startswith("__")):
                        yield from (name, getattr(method, "fget", None) or getattr(method, "__func__", method))
                    elif self.values and not name.startswith("__"):
                        yield from (name, method)

    def _of_code(self, function: FunctionType) -> Iterator[Any]:
        """Numbers, words and names of the code, and what the names are, where that is somebody's own."""
        codes = [*_codes(function.__code__)]
        names = sorted({name for code in codes for name in code.co_names})
        yield names
        yield sorted({word for code in codes for word in _constants(code)})
        if self.exact:
            yield from (_digest(code.co_code) for code in codes)
        known = function.__globals__
        used = [(name, known[name]) for name in names if name in known]
        for name, value in used:
            if isinstance(value, ModuleType):
                there = vars(value) if self._theirs(value.__name__) else {}
                for of in names:
                    if of in there and self._counts(there[of]):
                        yield from (of, there[of])
            elif self._counts(value):
                yield from (name, value)

    def _counts(self, value: Any) -> bool:
        """True for functions and classes, which only an edit changes, and for other globals where values count."""
        made = isinstance(_plainest(value), (FunctionType, BuiltinFunctionType, type))
        return made or (self.values and not isinstance(value, ModuleType))

    def plain(self, part: Any, depth: int) -> Any:
        """A number, a word, an array, a collection of them, or what a function is made of; the name of what is no one's own."""
        if part is None or isinstance(part, (bool, int, float, complex, str, bytes, np.generic)):
            return repr(part.item() if isinstance(part, np.generic) else part)
        if hasattr(type(part), "__array__"):
            array = _array(part)
            if not array.dtype.hasobject:
                return [str(array.dtype), list(array.shape), _digest(array.tobytes())]
            part = array.tolist()
        if depth <= 0:
            return None
        if isinstance(part, dict):
            return [[self.plain(key, depth - 1), self.plain(value, depth - 1)] for key, value in part.items()]
        if isinstance(part, (tuple, list)):
            return [self.plain(item, depth - 1) for item in part]
        if isinstance(part, (set, frozenset)):
            return sorted(json.dumps(self.plain(item, depth - 1)) for item in part)
        module = getattr(_plainest(part), "__module__", None) or type(part).__module__
        function = callable(part) or is_dataclass(part)
        if self._theirs(str(module)) or (function and not _named(part)):
            return self.read(part, depth)
        return getattr(part, "__qualname__", None)

    def _theirs(self, module: str) -> bool:
        """True for modules of whoever wrote the function, and for those that nobody installed."""
        package = _package(module)
        return (package == self.home and package not in LIBRARIES) or not _installed(package)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _plainest(function: Any) -> Any:
    """The Python function behind one that Numba compiles, or whose answers `functools` keeps."""
    function = getattr(function, "py_func", function)
    return function if isinstance(function, FunctionType) else getattr(function, "__wrapped__", function)


def _named(part: Any) -> bool:
    """True for what is defined at the top of a module, and so known by its name."""
    return "<" not in getattr(part, "__qualname__", "<") and not isinstance(part, functools.partial)


def _package(module: str) -> str:
    return module.partition(".")[0]


@functools.cache
def _installed(package: str) -> bool:
    """True for packages of Python itself, and for those in its folders of packages."""
    path = getattr(sys.modules.get(package), "__file__", None)
    if package == "__main__":
        return False
    if package in LIBRARIES or path is None:
        return True
    places = sysconfig.get_paths()
    return any(Path(path).is_relative_to(places[name]) for name in ("stdlib", "purelib", "platlib"))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code and that of functions and comprehensions within it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from _codes(item)


def _constants(code: CodeType) -> Iterator[str]:
    """Numbers and words of code, without its documentation."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "KW_NAMES":  # of which not every version says the value
            yield from _words(code.co_consts[instruction.arg or 0])
        elif instruction.opname in LOADS:
            yield from _words(instruction.argval)


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, (tuple, frozenset)):
        for item in value:
            yield from _words(item)
    elif isinstance(value, slice):
        yield from _words((value.start, value.stop, value.step))
    elif isinstance(value, (int, float, complex, str, bytes)) and not isinstance(value, bool):
        yield repr(value)


def _array(part: Any) -> np.ndarray:
    """What can be an array, as one; its type where it cannot just now."""
    try:
        return np.asarray(part)
    except Exception:  # whatever somebody's array raises
        return np.asarray(type(part).__qualname__)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None
