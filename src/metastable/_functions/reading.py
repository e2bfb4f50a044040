"""What functions of users are made of, as plain text: how a function is told from another one of the same name.

Two closures, `functools.partial`s or lambdas may share a name and be different functions, and so are the versions of one that is
edited, wherever and however often they are imported. So a function is read: its instructions, what it holds (closures, defaults,
fields), the globals that it names, and the functions, classes and modules of somebody among all these, in the same way. Libraries are
known by the names that are used of them; objects of libraries by what they hold, too.

What is read is a flat table, `{".helper.code": ..., ".SETTINGS['radius']": "0.1"}`, so that two of them can be compared place by place:
whatever a computation changes (a counter, a table of results) is not what tells functions apart, and `settled` leaves it out.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np

from metastable._functions.instructions import codes, constants, globals_of, imports, instructions

Parts = dict[str, str]
"""What is found at each place of a function."""


@dataclass(frozen=True)
class Reading:
    """What a function was made of at some moment, and the collections that could have changed since, by their places."""

    parts: Parts
    collections: Mapping[str, Any]


VERSION = ".".join(map(str, sys.version_info[:2]))
"""Instructions are those of a version of Python."""
CODE = ".code"
"""The end of places with instructions."""
DEEPEST = 40
"""Functions, collections and objects within one another that are looked into ..."""
DEEPEST_IN_LIBRARIES = 4
"""... and those within an object of a library, which may hold half of it."""
MOST = 100_000
"""Places of one function."""
LONGEST = 1000
"""Entries of a collection with a place each; longer ones have one for all."""
NEXT = "\n"
COLLECTIONS = (dict, list, set, deque)
METHODS = (classmethod, staticmethod)
NAMED = (type, FunctionType, BuiltinFunctionType, np.ufunc)
"""What is told by its name where it is that of a library."""
LIBRARIES = frozenset({"metastable", "numpy", "scipy", *sys.stdlib_module_names})
"""Packages that nobody writes on the side."""
OF_CLASSES = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__dataclass_fields__", "__qualname__"}
)
OF_CLASSES |= {
    "__dataclass_params__",
    "__match_args__",
    "__slots__",
    "__firstlineno__",
    "__static_attributes__",
    "__annotate__",
}
OF_CLASSES |= {"__annotations_cache__", "__annotate_func__", "__classdictcell__", "__abstractmethods__", "_abc_impl"}
"""What Python itself puts into classes."""
RANDOM = (np.random.Generator, np.random.BitGenerator, np.random.RandomState)
"""Where the next number comes from is another one after each."""


def read(function: Any) -> Reading:
    """All that a function, or an object that is used as one, is made of, as it is now."""
    reader = _Reader(function)
    reader.walk("", function, DEEPEST)
    tables = {place: item for place, item in reader.met.values() if isinstance(item, COLLECTIONS)}
    return Reading(reader.parts, tables)


_FILLED: dict[int, Any] = {}
"""Collections that a computation has filled (or emptied) in this process; they are kept, so that nothing else gets their numbers."""


def settled(before: Reading, after: Reading) -> Parts:
    """What a computation has left as it was, nor has an earlier one filled: tables of results may be full by now."""
    for place, item in after.collections.items():
        if before.parts.get(place) != after.parts[place]:
            _FILLED[id(item)] = item
    filled = [place for place, item in after.collections.items() if id(item) in _FILLED]
    return {
        place: text
        for place, text in before.parts.items()
        if after.parts.get(place) == text
        and not any(place == where or place.startswith(f"{where}[") for where in filled)
    }


def fingerprint(function: Any) -> str:
    """`PYTHON:WORDS:CODE`: a digest of what every version of Python says of a function, and one of its instructions in this version."""
    parts = read(function).parts
    words = {place: text for place, text in parts.items() if not place.endswith(CODE)}
    return ":".join((VERSION, _digest_of(words), _digest_of(parts)))


def same(one: str, other: str) -> bool:
    """True where two fingerprints are those of one function, as far as two versions of Python can tell."""
    first, second = one.split(":"), other.split(":")
    return first[1] == second[1] and (first[0] != second[0] or first[2] == second[2])


class _Reader:
    """Reads a function of somebody, and what it uses of theirs."""

    def __init__(self, function: Any) -> None:
        self.parts: Parts = {}
        while isinstance(function, functools.partial):
            function = function.func
        self.home = _package(getattr(_plainest(function), "__module__", None) or type(function).__module__)
        self.met: dict[int, tuple[str, Any]] = {}
        """Where whatever may be met again was read (and itself, so that nothing else gets its number)."""

    def walk(self, place: str, item: Any, depth: int) -> None:
        """Put down what an item is made of, at `place` and below."""
        item = _plainest(item) if callable(item) else item
        told = _told(item)
        if told is not None:
            self.parts[place] = told
        elif depth <= 0 or len(self.parts) >= MOST:
            self.parts[place] = f"{_name_of(type(item))}, not looked into"
        elif isinstance(item, tuple):
            self._list(place, item, depth)
        elif id(item) in self.met:
            self.parts[place] = f"as {self.met[id(item)][0]!r}"
        else:
            self.met[id(item)] = place, item
            self._inside(place, item, depth)

    def _inside(self, place: str, item: Any, depth: int) -> None:
        if isinstance(item, (dict, MappingProxyType)):
            self._table(place, item, depth)
        elif isinstance(item, (list, deque)):
            self._list(place, item, depth)
        elif isinstance(item, (set, frozenset)):
            self.parts[place] = json.dumps(sorted(self._apart(entry, depth - 1) for entry in item))
        elif isinstance(item, functools.partial):
            self.walk(f"{place}.function", item.func, depth - 1)
            self._list(f"{place}.given", item.args, depth)
            self._table(f"{place}.given", item.keywords, depth)
        elif isinstance(item, MethodType):
            self.walk(place, item.__func__, depth - 1)
            self.walk(f"{place}.self", item.__self__, depth - 1)
        elif isinstance(item, ModuleType):
            self.parts[place] = item.__name__
        elif self._theirs(str(getattr(item, "__module__", None) or type(item).__module__)) or _nameless(item):
            self._code_or_object(place, item, depth)
        elif _name_of(item) is not None and (isinstance(item, NAMED) or not hasattr(item, "__dict__")):
            self.parts[place] = str(_name_of(item))
        else:
            self._object(place, item, depth)

    def _code_or_object(self, place: str, item: Any, depth: int) -> None:
        if isinstance(item, FunctionType):
            self._function(place, item, depth)
        elif isinstance(item, type):
            self._class(place, item, depth)
        else:
            self._object(place, item, depth)

    def _list(self, place: str, items: Any, depth: int) -> None:
        self.parts[place] = f"{type(items).__name__} of {len(items)}"
        if len(items) > LONGEST:
            self.parts[place] += f": {_digest(NEXT.join(self._apart(entry, depth - 1) for entry in items))}"
            return
        for number, entry in enumerate(items):
            self.walk(f"{place}[{number}]", entry, depth - 1)

    def _table(self, place: str, table: Mapping[Any, Any], depth: int) -> None:
        names = [_told(key) or self._apart(key, depth - 1) for key in table]
        if len(names) > LONGEST:
            values = (self._apart(value, depth - 1) for value in table.values())
            self.parts[place] = f"{type(table).__name__} of {len(names)}: {_digest(NEXT.join((*names, *values)))}"
            return
        self.parts[place] = f"{type(table).__name__} of {', '.join(names)}"
        for name, value in zip(names, table.values()):
            self.walk(f"{place}[{name}]", value, depth - 1)

    def _apart(self, item: Any, depth: int) -> str:
        """What an item is made of, as one text: of an entry of a set, which has no place."""
        told = _told(item)
        if told is not None:
            return told
        reader = _Reader(item)
        reader.home, reader.met = self.home, dict(self.met)
        reader.walk("", item, depth)
        return _digest_of(reader.parts)

    # ---------------------------------------------------------------------------------------- code of somebody

    def _function(self, place: str, function: FunctionType, depth: int) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            self.walk(f"{place}.{name}", _content(cell), depth - 1)
        self._list(f"{place}.defaults", function.__defaults__ or (), depth)
        self._table(f"{place}.defaults", function.__kwdefaults__ or {}, depth)
        every = [*codes(function.__code__)]
        names = sorted({name for code in every for name in code.co_names})
        self.parts[f"{place}.names"] = " ".join(names)
        self.parts[f"{place}.constants"] = " ".join(sorted({word for code in every for word in constants(code)}))
        self.parts[place + CODE] = _digest(NEXT.join(instructions(code) for code in every))
        known = function.__globals__
        for name in sorted({name for code in every for name in globals_of(code)}):
            if name in known:
                self._global(f"{place}.{name}", known[name], names, depth)
        for module in sorted({found for code in every for found in imports(code, known.get("__package__"))}):
            if self._theirs(module) and module not in known:
                self._global(f"{place}.{module}", _imported(module), names, depth)

    def _global(self, place: str, value: Any, names: list[str], depth: int) -> None:
        """A global that a function uses; of a module of somebody what has one of the `names`."""
        self.walk(place, value, depth - 1)
        if isinstance(value, ModuleType) and self._theirs(value.__name__) and self.parts[place] == value.__name__:
            for name in names:
                if name in vars(value):
                    self._global(f"{place}.{name}", vars(value)[name], names, depth - 1)

    def _class(self, place: str, made: type, depth: int) -> None:
        """The methods and other attributes of a class of somebody. (What is made for dataclasses says no more than their fields.)"""
        self.parts[place] = made.__qualname__
        for number, parent in enumerate(made.__mro__):
            if not self._theirs(parent.__module__):
                self.parts[f"{place}({number})"] = parent.__qualname__
                continue
            for name, member in sorted(vars(parent).items()):
                generated = is_dataclass(parent) and name.startswith("__") and _is_generated(name, member)
                if name not in OF_CLASSES and not generated and not inspect.ismemberdescriptor(member):
                    self.walk(f"{place}({number}).{name}", _method(member), depth - 1)

    # ----------------------------------------------------------------------------------------------- objects

    def _object(self, place: str, item: Any, depth: int) -> None:
        """What an object holds; of somebody's what its class is made of, too."""
        if self._theirs(type(item).__module__):
            self.walk(f"{place}.class", type(item), depth - 1)
        else:
            self.parts[place] = str(_name_of(type(item)))
            # Those of libraries may hold half of it, but for what somebody makes of numbers.
            depth = depth if is_dataclass(item) else min(depth, DEEPEST_IN_LIBRARIES)
        if hasattr(type(item), "__array__"):  # which may hold more: a mask, labels
            self.parts[f"{place}.array"] = _array_told(item) or "not told"
        held = _held(item)
        if held is not None:
            for name, value in sorted(held.items()):
                self.walk(f"{place}.{name}", value, depth - 1)
            return
        try:
            told = copyreg.dispatch_table.get(type(item), _reduced)(item)
        except Exception:  # whatever cannot be written down
            self.parts[f"{place}.held"] = "not told"
            return
        for number, part in enumerate([told] if isinstance(told, str) else told):
            part = list(part) if isinstance(part, Iterator) else part
            self.walk(f"{place}.held[{number}]", part, depth - 1)

    def _theirs(self, module: str) -> bool:
        """True for modules of whoever wrote the function, and for those that nobody installed."""
        package = _package(module)
        return (package == self.home and package not in LIBRARIES) or not _installed(package)


# ------------------------------------------------------------------------------------------------- what is plain


def _told(item: Any) -> str | None:
    """A number, a word, an array or something like these as text; None for all else."""
    if item is None or item is ... or isinstance(item, (bool, int, float, complex, str, bytes)):
        return repr(item) if type(item).__repr__ is not object.__repr__ else None
    if isinstance(item, np.generic):
        return f"{item.dtype} {item.tolist()!r}"
    if isinstance(item, (range, slice, bytearray, np.dtype)):
        return repr(item)
    if isinstance(item, RANDOM):
        return type(item).__qualname__
    return _array_told(item) if type(item) is np.ndarray else None


def _array_told(item: Any) -> str | None:
    try:
        array = np.asarray(item)
        return None if array.dtype.hasobject else f"{array.dtype} {array.shape} {_digest(array.tobytes())}"
    except Exception:  # whatever somebody's array raises
        return None


def _held(item: Any) -> dict[str, Any] | None:
    """The fields of a dataclass (it may keep what follows from them beside), or all attributes; None where there can be none."""
    if is_dataclass(item):
        names = [field.name for field in fields(item)]
        return {name: getattr(item, name) for name in names if hasattr(item, name)}
    slots = [name for made in type(item).__mro__ for name in _names_of(vars(made).get("__slots__", ()))]
    if not hasattr(item, "__dict__") and not slots:
        return None
    found = {name: getattr(item, name) for name in slots if hasattr(item, name)} | getattr(item, "__dict__", {})
    return {name: value for name, value in found.items() if not name.startswith("__")}


def _reduced(item: Any) -> Any:
    return item.__reduce_ex__(4)


def _names_of(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _digest(text: str | bytes) -> str:
    return hashlib.blake2b(
        text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text, digest_size=8
    ).hexdigest()


def _digest_of(parts: Parts) -> str:
    return _digest(json.dumps(parts, sort_keys=True))


def _plainest(function: Any) -> Any:
    """The Python function behind one that Numba compiles, or whose answers `functools` keeps."""
    function = getattr(function, "py_func", function)
    return function if isinstance(function, FunctionType) else getattr(function, "__wrapped__", function)


def _name_of(item: Any) -> str | None:
    """How something that is defined at the top of a module is called."""
    name = getattr(item, "__qualname__", None) or getattr(item, "__name__", None)
    return name if isinstance(name, str) else None


def _nameless(item: Any) -> bool:
    """True for a function that is made within another one."""
    return isinstance(item, FunctionType) and "<" in item.__qualname__


def _is_generated(name: str, member: Any) -> bool:
    """True for what `dataclasses` writes (`__repr__` by a detour)."""
    written = isinstance(member, FunctionType) and member.__code__.co_filename != "<string>"
    return not written or name in ("__repr__", "__replace__")


def _method(member: Any) -> Any:
    """The function, or functions, behind what stands in a class."""
    if isinstance(member, property):
        return (member.fget, member.fset)
    if isinstance(member, functools.cached_property):
        return member.func
    return getattr(member, "__func__", member) if isinstance(member, METHODS) else member


# ------------------------------------------------------------------------------------------------------- modules


def _package(module: str) -> str:
    return module.partition(".")[0]


def _installed(package: str) -> bool:
    """True for packages of Python itself, and for those in its folders of packages."""
    if package == "__main__":
        return False
    path = None if package in LIBRARIES else _file_of(package)
    return path is None or _among_packages(path)


@functools.cache
def _among_packages(path: str) -> bool:
    places = sysconfig.get_paths()
    return any(Path(path).is_relative_to(places[name]) for name in ("stdlib", "purelib", "platlib"))


def _file_of(package: str) -> str | None:
    """Where a package stands (a folder where it has no file of its own); None for what is built in, or cannot be found."""
    module = sys.modules.get(package)
    try:
        spec = getattr(module, "__spec__", None) or importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    places = [*(getattr(spec, "submodule_search_locations", None) or ()), getattr(module, "__file__", None)]
    places.append(spec.origin if spec is not None and spec.has_location else None)
    return next((str(place) for place in places if place is not None), None)


def _imported(module: str) -> Any:
    """A module that a function imports when it is called."""
    try:
        return importlib.import_module(module)
    except Exception:  # importing runs somebody's code
        return None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None
