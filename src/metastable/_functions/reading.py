"""What functions of users are made of, as plain text: how a function is told from another one of the same name.

Two closures, `functools.partial`s or lambdas may share a name and be different functions, and so are the versions of one that is
edited, wherever and however often they are imported. So a function is read: its instructions, what it holds (closures, defaults,
fields), the globals that it names, and the functions, classes and modules of somebody among all these, in the same way. Numbers, words,
arrays and collections count by what they are; objects of libraries by the name of their type (what is inside of a logger, a lock or a
tree of points differs from process to process). Nothing is called, and nothing imported.

What is read is a flat table, `{".helper.code": ..., ".SETTINGS['radius']": "0.1"}`. What a computation changes (a counter, a table of
results) is no part of it: see `unchanged`.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import operator
import sys
from argparse import Namespace
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from re import Pattern
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from metastable._functions import digest, modules
from metastable._functions.instructions import codes, globals_of, instructions, words_of

Parts = dict[str, str]
"""What is found at each place of a function."""

VERSION = ".".join(map(str, sys.version_info[:2]))
"""Instructions are those of a version of Python."""
DEEPEST = 40
"""Functions, collections and objects within one another that are looked into."""
MOST = 100_000
"""Places of one function."""
LONGEST = 1000
"""Entries of a table with a place each, where they are plain; letters of a text that is no digest."""
REMEMBERING = type(functools.lru_cache(len))
METHODS = (classmethod, staticmethod)
NAMED = (type, FunctionType, BuiltinFunctionType, np.ufunc)
"""What is told by its name where it is that of a library."""
GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
VALUES = (Fraction, Decimal, datetime.date, datetime.time, datetime.timedelta, PurePath, Enum, array, *GETTERS)
"""What is as good as a number or a word."""
HOLDERS = (UserDict, UserList, ChainMap, Namespace)
"""What holds other things, and nothing else."""
COLLECTIONS = (dict, MappingProxyType, list, tuple, deque, set, frozenset, SimpleNamespace)
ARRAYS = frozenset({"numpy", "torch"})
"""Packages whose `__array__` is at hand, and says all."""
PYTHONS_OWN = frozenset(
    {
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__annotations__",
        "__qualname__",
        "__slots__",
        "__firstlineno__",
        "__static_attributes__",
        "__annotate__",
        "__annotations_cache__",
        "__annotate_func__",
        "__classdictcell__",
        "__abstractmethods__",
        "_abc_impl",
        "__orig_bases__",
        "__parameters__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__match_args__",
    }
)
"""What Python itself puts into classes."""


@dataclass(frozen=True)
class Reading:
    """What a function was made of at some moment."""

    parts: Parts = field(default_factory=dict)
    collections: dict[str, str] = field(default_factory=dict)
    """Of the place of each entry of a collection that of the collection."""


def read(function: Any, home: str = "") -> Reading:
    """All that a function, or an object that is used as one, is made of; `home`: the package of whoever wrote it, where it says not."""
    reader = _Reader(home or _home_of(function))
    reader.walk("", function, DEEPEST)
    return reader.reading


_CHANGING: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""Places of functions that computations have changed in this process."""


def unchanged(function: Any, before: Reading, after: Reading) -> Parts:
    """What of a function does not change when it is called, from its readings before and after a computation.

    Where that has put something into a collection, or taken something out, nothing in it counts: it is a table of results. What an
    earlier computation of this process has changed does not count either, so that the next one may find its results there.
    """
    places = {place for place in {**before.parts, **after.parts} if before.parts.get(place) != after.parts.get(place)}
    for reading, other in ((before, after), (after, before)):
        for place in places & reading.collections.keys():
            if place not in other.parts:
                places.add(reading.collections[place])
    with suppress(TypeError):  # what has no hash, or no weak references, is remembered by nobody
        places |= _CHANGING.get(function, set())
        _CHANGING[function] = _highest(places)
    tops = tuple(f"{place}{mark}" for place in _highest(places) for mark in ".[(")
    return {place: text for place, text in before.parts.items() if place not in places and not place.startswith(tops)}


def _highest(places: set[str]) -> set[str]:
    """Those of some places that are not within another one: entries of a table that counts as a whole are many."""
    found: list[str] = []
    for place in sorted(places):
        if not found or not place.startswith((f"{found[-1]}.", f"{found[-1]}[", f"{found[-1]}(")):
            found.append(place)
    return set(found)


class _Reader:
    """Reads a function of somebody, and what it uses of theirs."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.reading = Reading()
        self.met: dict[int, tuple[str, Any]] = {}
        """Where whatever may be met again was read, and itself, so that nothing else gets its number."""
        self.looked: set[tuple[str, str]] = set()
        """Modules of somebody, and what was read of them."""

    def put(self, place: str, text: str) -> None:
        self.reading.parts[place] = text

    def walk(self, place: str, item: Any, depth: int) -> None:
        """Put down what an item is made of, at `place` and below."""
        try:
            item = function_behind(item) if callable(item) else item
            told = _told(item)
            if told is not None:
                self.put(place, told)
            elif depth <= 0:
                self.put(place, f"{_name_of(type(item))}, not looked into")
            elif id(item) in self.met:
                self.put(place, f"as {self.met[id(item)][0]!r}")
            else:
                if not isinstance(item, tuple):  # equal ones may be one object, or not
                    self.met[id(item)] = place, item
                self._inside(place, item, depth)
        except Exception as reason:  # somebody's attributes, representations and lengths may raise whatever they like
            self.put(place, f"not told: {type(reason).__name__}")

    def _each(self, place: str, items: Iterable[tuple[str, Any]], depth: int) -> None:
        for name, value in items:
            if len(self.reading.parts) >= MOST:
                self.put(f"{place}...", "not looked into")
                break
            self.walk(f"{place}{name}", value, depth - 1)

    def _inside(self, place: str, item: Any, depth: int) -> None:
        if isinstance(item, COLLECTIONS):
            self._collection(place, item, depth)
            if self._theirs(type(item).__module__):
                self.walk(f"{place}.class", type(item), depth - 1)
                self._each(place, _attributes(item), depth)
        elif isinstance(item, np.ndarray):  # of objects
            self._collection(place, item.tolist(), depth)
        elif isinstance(item, functools.partial):
            self.walk(f"{place}.function", item.func, depth - 1)
            self._collection(f"{place}.given", item.args, depth)
            self._collection(f"{place}.keywords", item.keywords, depth)
        elif isinstance(item, MethodType):
            self.walk(place, item.__func__, depth - 1)
            self.walk(f"{place}.self", item.__self__, depth - 1)
        elif isinstance(item, FunctionType) and (self._theirs(item.__module__) or "<" in item.__qualname__):
            self._function(place, item, depth)
        elif isinstance(item, type) and self._theirs(item.__module__):
            self._class(place, item, depth)
        elif isinstance(item, ModuleType):
            self.put(place, item.__name__)
        elif isinstance(item, np.vectorize):
            self.walk(f"{place}.function", item.pyfunc, depth - 1)
        elif isinstance(item, NAMED) or (callable(item) and _name_of(item) and not self._theirs(type(item).__module__)):
            self.put(place, str(_name_of(item)))
            held = _word(_attribute(item, "__self__", None))
            if held is not None and held != "None":  # [1.0, 2.0].index
                self.put(f"{place}.self", held)
        else:
            self._object(place, item, depth)

    def _collection(self, place: str, item: Any, depth: int) -> None:
        """One text of a list of plain values, or of a long table of them; otherwise a place for each entry."""
        table = isinstance(item, (dict, MappingProxyType, SimpleNamespace))
        word = _word(item) if not table or (isinstance(item, dict) and len(item) > LONGEST) else None
        if word is not None:
            self.put(place, word)
        elif isinstance(item, (set, frozenset)):
            self.put(place, f"{type(item).__name__} {digest.of_data(chr(10).join(sorted(map(_key, [*item]))))}")
        else:
            items = vars(item) if isinstance(item, SimpleNamespace) else item
            named = [*items.items()] if table else [*enumerate(items)]
            entries = [(f"[{_key(key)}]", value) for key, value in named]
            self.put(place, type(item).__name__)
            self.reading.collections.update((f"{place}{name}", place) for name, _ in entries)
            self._each(place, entries, depth)

    # ---------------------------------------------------------------------------------------- code of somebody

    def _function(self, place: str, function: FunctionType, depth: int) -> None:
        every = [*codes(function.__code__)]
        self.put(f"{place}.code", digest.of_data("\n".join(instructions(code) for code in every)))
        known = function.__globals__
        words = {word for code in every for word in words_of(code)}  # getattr(lab, "cut")
        read = sorted({name for name in words.union(*map(globals_of, every)) if name in known})
        # Functions before values, of which there may be too many.
        read.sort(key=lambda name: not callable(known[name]))
        self._each(place, ((f".{name}", known[name]) for name in read), depth)
        names = sorted(words.union(*(code.co_names for code in every)))
        for name in read:
            self._module(f"{place}.{name}", known[name], names, depth)
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        self._each(place, ((f".{name}", _content(cell)) for name, cell in cells), depth)
        self._collection(f"{place}.defaults", function.__defaults__ or (), depth)
        self._collection(f"{place}.keywords", function.__kwdefaults__ or {}, depth)
        self._each(place, ((f".{name}", value) for name, value in vars(function).items()), depth)

    def _module(self, place: str, module: Any, names: list[str], depth: int) -> None:
        """Of a module of somebody what has one of the `names`."""
        if not isinstance(module, ModuleType) or not self._theirs(module.__name__):
            return
        there = vars(module)
        fresh = [name for name in names if name in there and (module.__name__, name) not in self.looked]
        self.looked |= {(module.__name__, name) for name in fresh}
        self._each(place, ((f".{name}", there[name]) for name in fresh), depth)
        for name in fresh:
            self._module(f"{place}.{name}", there[name], names, depth - 1)

    def _class(self, place: str, made: type, depth: int) -> None:
        """The methods and other attributes of a class of somebody. (What is made for dataclasses says no more than their fields.)"""
        self.put(place, made.__qualname__)
        for number, parent in enumerate(made.__mro__):
            if not self._theirs(parent.__module__):
                self.put(f"{place}({number})", parent.__qualname__)
                continue
            members = [
                (f".{name}", _method(member))
                for name, member in sorted(vars(parent).items())
                if name not in PYTHONS_OWN and not inspect.ismemberdescriptor(member)
                if not (is_dataclass(parent) and name.startswith("__") and _is_generated(name, member))
            ]
            self._each(f"{place}({number})", members, depth)

    # ----------------------------------------------------------------------------------------------- objects

    def _object(self, place: str, item: Any, depth: int) -> None:
        """What an object of somebody, or a dataclass, holds; of others the name of the type."""
        theirs = self._theirs(type(item).__module__)
        if theirs:
            self.walk(f"{place}.class", type(item), depth - 1)
        else:
            self.put(place, str(_name_of(type(item))))
        if modules.package(type(item).__module__) == "xarray":
            self._each(place, _variables(item), depth)
        if theirs or is_dataclass(item) or isinstance(item, HOLDERS):
            self._each(place, _attributes(item), depth)

    def _theirs(self, module: Any) -> bool:
        """True for modules of whoever wrote the function, and for those that nobody installed."""
        return modules.is_somebodys(str(module), self.home)


def _home_of(function: Any) -> str:
    """The package in which a function, or the class of an object, was written."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function_behind(function)
    named = named if isinstance(named, (FunctionType, MethodType, type)) else type(named)
    return modules.package(str(named.__module__))


# ------------------------------------------------------------------------------------------------- what is plain


def _told(item: Any) -> str | None:
    """A number, a word, an array or something like these as text; None for all else."""
    if item is None or item is ... or isinstance(item, (bool, int, float, complex, str, bytes, bytearray)):
        return repr(item) if type(item).__repr__ is not object.__repr__ else None
    if isinstance(item, np.generic):
        return f"{item.dtype} {item.tolist()!r}"
    if isinstance(item, (range, slice, np.dtype)) or (
        isinstance(item, VALUES) and type(item).__repr__ is not object.__repr__
    ):
        return repr(item)
    if isinstance(item, Pattern):
        return f"{item.pattern!r} {item.flags}"
    package = modules.package(type(item).__module__)
    if package == "pandas" and hasattr(type(item), "to_numpy"):
        return _frame_told(item)
    return _array_told(item) if package in ARRAYS and hasattr(type(item), "__array__") else None


def _word(item: Any, known: dict[int, tuple[Any, str | None]] | None = None) -> str | None:
    """A number or a word, or a collection of such, as text (a digest where that is long); None for all else.

    `known`: what has been told already, and itself, so that nothing else gets its number; None for what is being told.
    """
    known = {} if known is None else known
    if id(item) in known:
        return known[id(item)][1]
    if type(item) not in (list, tuple, set, frozenset, deque, dict):
        return _told(item)
    known[id(item)] = item, None
    words = [_word(entry, known) for entry in (item.items() if isinstance(item, dict) else item)]
    if None not in words:
        texts = [str(word) for word in words]
        text = f"{type(item).__name__}({', '.join(sorted(texts) if isinstance(item, (set, frozenset)) else texts)})"
        known[id(item)] = (
            item,
            text if len(text) < LONGEST else f"{type(item).__name__} of {len(item)}: {digest.of_data(text)}",
        )
    return known[id(item)][1]


def _key(item: Any) -> str:
    """A key of a table, or an entry of a set, as text."""
    if isinstance(item, tuple):
        return f"({', '.join(map(_key, item))})"
    if isinstance(item, frozenset):
        return f"frozenset({', '.join(sorted(map(_key, item)))})"
    if is_dataclass(item) and not isinstance(item, type):
        return f"{_name_of(type(item))}({', '.join(name + _key(value) for name, value in _attributes(item))})"
    return _word(item) or str(_name_of(item if isinstance(item, NAMED) else type(item)))


def _frame_told(item: Any) -> str:
    """A table of pandas, or a column or index of one, as text."""
    hashes = sys.modules["pandas"].util.hash_pandas_object(item)
    return f"{_name_of(type(item))} {item.shape} {digest.of_data(hashes.to_numpy())} {[*getattr(item, 'columns', ())]}"


def _array_told(item: Any) -> str | None:
    """An array of numbers or words as text; None for one of objects."""
    item = item.detach() if hasattr(item, "detach") else item  # of PyTorch
    array = np.ascontiguousarray(item)
    if array.dtype.hasobject:
        return None
    masked = digest.of_data(np.ma.getmaskarray(item).tobytes()) if isinstance(item, np.ma.MaskedArray) else ""
    return f"{array.dtype} {array.shape} {digest.of_data(array.reshape(-1).view(np.uint8))}{masked}"


def _variables(item: Any) -> list[tuple[str, Any]]:
    """What an object of xarray holds, where it is in memory."""
    every = item.coords if hasattr(item, "coords") else {}
    held = [*every.items(), *(item.data_vars.items() if hasattr(item, "data_vars") else [("", item)])]
    return [
        (f"[{name!r}]", (variable.dims, variable.to_numpy() if variable.variable._in_memory else None))
        for name, variable in held
    ]


def _attributes(item: Any) -> list[tuple[str, Any]]:
    """The attributes of an object, as (".name", value), in order; of dataclasses of libraries their fields."""
    declared = [field.name for field in fields(item)] if is_dataclass(item) else []
    slots = [name for made in type(item).__mro__ for name in _names_of(vars(made).get("__slots__", ()))]
    found = {name: getattr(item, name) for name in (*declared, *slots) if hasattr(item, name)}
    if not declared or modules.package(type(item).__module__) not in modules.LIBRARIES:
        found |= getattr(item, "__dict__", {})
    return [(f".{name}", value) for name, value in sorted(found.items()) if not name.startswith("__")]


def _names_of(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def function_behind(function: Any) -> Any:
    """The Python function behind one that Numba compiles, or whose answers `functools` keeps."""
    compiled = _attribute(function, "py_func", None)
    if isinstance(compiled, FunctionType):
        return compiled
    return function.__wrapped__ if isinstance(function, REMEMBERING) else function


def _attribute(item: Any, name: str, otherwise: Any) -> Any:
    """An attribute of something that may answer anything when it is asked."""
    try:
        return getattr(item, name, otherwise)
    except Exception:
        return otherwise


def _name_of(item: Any) -> str | None:
    """How something that is defined at the top of a module is called."""
    name = _attribute(item, "__qualname__", None) or _attribute(item, "__name__", None)
    return name if isinstance(name, str) else None


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


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None
