"""What functions of users are made of, as plain text: how a function is told from another one of the same name.

Two closures, `functools.partial`s or lambdas may share a name and be different functions, and so are the versions of one that is
edited, wherever and however often they are imported. So a function is read: its instructions, what it holds (closures, defaults,
fields), the globals that it names, and the functions, classes and modules of somebody among all these, in the same way. Libraries are
known by the names that are used of them; objects of libraries by what they hold, too.

What is read is a flat table, `{".helper.code": ..., ".SETTINGS['radius']": "0.1"}`. What a computation changes (a counter, a table of
results) tells no functions apart: who computes says so (`note_changes`), and as long as nobody else changes it, it is read as it was
before.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import inspect
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np

from metastable._functions import modules
from metastable._functions.instructions import codes, constants, globals_of, imports, instructions

Parts = dict[str, str]
"""What is found at each place of a function."""

VERSION = ".".join(map(str, sys.version_info[:2]))
"""Instructions are those of a version of Python."""
CODE = ".code"
"""The end of places with instructions."""
ORDER = "#order"
"""The end of places with the order of a collection, which follows from what is in it."""
DEEPEST = 40
"""Functions, collections and objects within one another that are looked into ..."""
DEEPEST_IN_LIBRARIES = 4
"""... and those within an object of a library, which may hold half of it."""
MOST = 100_000
"""Places of one function."""
LONGEST = 1000
"""Entries of a collection with a place each; longer ones have one for all."""
NEXT = "\n"
COLLECTIONS = (dict, MappingProxyType, list, tuple, deque, set, frozenset)
METHODS = (classmethod, staticmethod)
NAMED = (type, FunctionType, BuiltinFunctionType, np.ufunc)
"""What is told by its name where it is that of a library."""
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
        "__dataclass_fields__",
        "__dataclass_params__",
        "__match_args__",
    }
)
"""What Python itself puts into classes."""
RANDOM = (np.random.Generator, np.random.BitGenerator, np.random.RandomState)
"""Where the next number comes from is another one after each."""


@dataclass(frozen=True)
class Reading:
    """What a function was made of at some moment."""

    parts: Parts = field(default_factory=dict)
    owners: dict[str, tuple[Any, str]] = field(default_factory=dict)
    """Of places at which something else could be put: in which object, and under which name."""
    within: dict[str, str] = field(default_factory=dict)
    """Of every place the innermost of these that holds it."""
    actual: dict[str, Parts] = field(default_factory=dict)
    """What is there now (relative places), where computations have changed it."""


def read(function: Any, home: str = "") -> Reading:
    """All that a function, or an object that is used as one, is made of; `home`: the package of whoever wrote it, where it says not."""
    reader = _Reader(home or _home_of(function))
    reader.walk("", function, DEEPEST)
    return reader.reading


_CHANGED: dict[int, tuple[Any, dict[str, tuple[Parts, Parts]]]] = {}
"""What computations have changed in this process: in which object (kept, so that no other gets its number), under which name, what was
there before the first of them, and after the last one."""
GONE = object()
"""What is not in a collection any more."""


def note_changes(before: Reading, after: Reading) -> None:
    """What differs between two readings was changed by what was computed in between."""
    changed = [
        place
        for place in {**before.parts, **after.parts}
        if before.parts.get(place) != after.parts.get(place) and not place.endswith(ORDER)
    ]
    tops: list[str] = []
    for place in sorted(changed, key=len):
        if any(_is_within(place, top) for top in tops):
            continue
        top = (after if place in after.parts else before).within[place]
        owner, name = after.owners.get(top) or before.owners.get(top) or (None, "")
        if owner is not None:
            tops.append(top)
            now = after.actual.get(top, _subtree(after.parts, top))
            _CHANGED.setdefault(id(owner), (owner, {}))[1][name] = _subtree(before.parts, top), now


@contextmanager
def watched(functions: Iterable[Any]) -> Iterator[None]:
    """What is computed within notes what it changes of these functions."""
    known = [(function, read(function)) for function in functions]
    try:
        yield
    finally:
        for function, before in known:
            note_changes(before, read(function))


def fingerprint(function: Any, home: str = "") -> str:
    """`PYTHON:WORDS:CODE`: a digest of what every version of Python says of a function, and one of its instructions in this version."""
    parts = read(function, home).parts
    words = {place: text for place, text in parts.items() if not place.endswith(CODE)}
    return ":".join((VERSION, _digest_of(words), _digest_of(parts)))


def same(one: str, other: str) -> bool:
    """True where two fingerprints are those of one function, as far as two versions of Python can tell."""
    first, second = one.split(":"), other.split(":")
    return first[1:2] == second[1:2] and (first[0] != second[0] or first[2:] == second[2:])


class _Reader:
    """Reads a function of somebody, and what it uses of theirs."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.reading = Reading()
        self.top = ""
        """The innermost place, of those that are being read, at which something else could be put."""
        self.met: dict[int, tuple[str, int, Any]] = {}
        """Where whatever may be met again was read, how deep it was looked into, and itself, so that nothing else gets its number."""
        self.looked: set[tuple[str, str]] = set()
        """Modules of somebody, and what was read of them."""

    def put(self, place: str, text: str) -> None:
        self.reading.parts[place] = text
        self.reading.within[place] = self.top

    def walk(self, place: str, item: Any, depth: int) -> None:
        """Put down what an item is made of, at `place` and below."""
        item = _plainest(item) if callable(item) else item
        told = _told(item)
        where, looked, _ = self.met.get(id(item), ("", 0, None))
        if told is not None:
            self.put(place, told)
        elif depth <= 0 or len(self.reading.parts) >= MOST:
            self.put(place, f"{_name_of(type(item))}, not looked into")
        elif isinstance(item, ModuleType):
            self.put(place, item.__name__)
        elif looked > DEEPEST_IN_LIBRARIES or looked >= depth:
            self.put(place, f"as {where!r}")
        else:
            if not isinstance(item, tuple):
                self.met[id(item)] = place, depth, item
            self._inside(place, item, depth)

    def held_by(self, owner: Any, items: Iterable[tuple[str, str, Any]], depth: int) -> list[str]:
        """Read what an object holds: (name, place, value). What is as a computation has left it is read as it was before. Returns the
        names of what is there."""
        changed = _CHANGED.get(id(owner), (None, {}))[1]
        names, outside = [], self.top
        for name, place, value in items:
            self.top = place
            self.reading.owners[place] = owner, name
            known = len(self.reading.parts)
            if value is not GONE:
                self.walk(place, value, depth - 1)
            if name not in changed or self._as_before(place, known, *changed[name]):
                names.append(name)
        self.top = outside
        return names

    def _as_before(self, place: str, known: int, before: Parts, after: Parts) -> bool:
        """Put what was there before a computation to what was read at `place` (behind the first `known` places) where that is what it
        has left; returns whether anything is there."""
        parts = self.reading.parts
        actual = {where[len(place) :]: parts.pop(where) for where in [*parts][known:]}
        self.reading.actual[place] = actual
        told = before if actual == after else actual
        for where, text in told.items():
            self.put(place + where, text)
        return bool(told)

    def _inside(self, place: str, item: Any, depth: int) -> None:
        if isinstance(item, COLLECTIONS):
            self._collection(place, item, depth)
            if self._theirs(type(item).__module__):
                self._object(place, item, depth)
        elif isinstance(item, functools.partial):
            self.walk(f"{place}.function", item.func, depth - 1)
            self._list(f"{place}.given", item.args, depth)
            self._table(f"{place}.keywords", item.keywords, depth)
        elif isinstance(item, MethodType):
            self.walk(place, item.__func__, depth - 1)
            self.walk(f"{place}.self", item.__self__, depth - 1)
        elif isinstance(item, FunctionType) and (self._theirs(item.__module__) or "<" in item.__qualname__):
            self._function(place, item, depth)
        elif isinstance(item, type) and self._theirs(item.__module__):
            self._class(place, item, depth)
        elif _name_of(item) is not None and (isinstance(item, NAMED) or not hasattr(item, "__dict__")):
            self.put(place, str(_name_of(item)))
        else:
            self._object(place, item, depth)

    def _collection(self, place: str, item: Any, depth: int) -> None:
        if isinstance(item, (dict, MappingProxyType)):
            self._table(place, item, depth)
        elif isinstance(item, (list, tuple, deque)):
            self._list(place, item, depth)
        else:
            self.put(place, json.dumps(sorted(self._apart(entry, depth - 1) for entry in item)))

    def _list(self, place: str, items: Any, depth: int) -> None:
        if len(items) > LONGEST:
            every = NEXT.join(self._apart(entry, depth - 1) for entry in items)
            self.put(place, f"{type(items).__name__} of {len(items)}: {_digest(every)}")
            return
        self.put(place, type(items).__name__)
        self._entries(place, items, {str(number): entry for number, entry in enumerate(items)}, depth)

    def _table(self, place: str, table: Mapping[Any, Any], depth: int) -> None:
        named = {_told(key) or self._apart(key, depth - 1): value for key, value in table.items()}
        if len(named) > LONGEST:
            values = (self._apart(value, depth - 1) for value in named.values())
            self.put(place, f"{type(table).__name__} of {len(named)}: {_digest(NEXT.join((*named, *values)))}")
            return
        self.put(place, type(table).__name__)
        self.put(place + ORDER, ", ".join(self._entries(place, table, named, depth)))

    def _entries(self, place: str, owner: Any, named: Mapping[str, Any], depth: int) -> list[str]:
        """The entries of a collection, and those that a computation has taken out of it."""
        gone = [name for name in _CHANGED.get(id(owner), (None, {}))[1] if name not in named]
        items = [*named.items(), *((name, GONE) for name in gone)]
        return self.held_by(owner, [(name, f"{place}[{name}]", value) for name, value in items], depth)

    def _apart(self, item: Any, depth: int) -> str:
        """What an item is made of, as one text: of an entry of a set, which has no place."""
        told = _told(item)
        if told is not None:
            return told
        reader = _Reader(self.home)
        reader.met = dict(self.met)
        reader.walk("", item, depth)
        return _digest_of(reader.reading.parts)

    # ---------------------------------------------------------------------------------------- code of somebody

    def _function(self, place: str, function: FunctionType, depth: int) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            self.held_by(cell, [("", f"{place}.{name}", _content(cell))], depth)
        self._list(f"{place}.defaults", function.__defaults__ or (), depth)
        self._table(f"{place}.keywords", function.__kwdefaults__ or {}, depth)
        every = [*codes(function.__code__)]
        names = sorted({name for code in every for name in code.co_names})
        self.put(f"{place}.names", " ".join(names))
        self.put(f"{place}.constants", " ".join(sorted({word for code in every for word in constants(code)})))
        self.put(place + CODE, _digest(NEXT.join(instructions(code) for code in every)))
        known = function.__globals__
        read = sorted({name for code in every for name in globals_of(code) if name in known})
        self.held_by(known, [(name, f"{place}.{name}", known[name]) for name in read], depth)
        used = [(f"{place}.{name}", known[name]) for name in read if isinstance(known[name], ModuleType)]
        for name in sorted({found for code in every for found in imports(code, known.get("__package__"))}):
            if self._theirs(name):
                used.append((f"{place}.{name}", modules.imported(name)))
        for where, module in used:
            self._module(where, module, names, depth)

    def _module(self, place: str, module: Any, names: list[str], depth: int) -> None:
        """Of a module of somebody what has one of the `names`."""
        if not isinstance(module, ModuleType) or not self._theirs(module.__name__):
            return
        there = vars(module)
        fresh = [name for name in names if name in there and (module.__name__, name) not in self.looked]
        self.looked |= {(module.__name__, name) for name in fresh}
        self.held_by(there, [(name, f"{place}.{name}", there[name]) for name in fresh], depth)
        for name in fresh:
            self._module(f"{place}.{name}", there[name], names, depth - 1)

    def _class(self, place: str, made: type, depth: int) -> None:
        """The methods and other attributes of a class of somebody. (What is made for dataclasses says no more than their fields.)"""
        self.put(place, made.__qualname__)
        for number, parent in enumerate(made.__mro__):
            if not self._theirs(parent.__module__):
                self.put(f"{place}({number})", parent.__qualname__)
                continue
            members = {
                name: _method(member)
                for name, member in sorted(vars(parent).items())
                if name not in PYTHONS_OWN and not inspect.ismemberdescriptor(member)
                if not (is_dataclass(parent) and name.startswith("__") and _is_generated(name, member))
            }
            self.held_by(parent, [(name, f"{place}({number}).{name}", item) for name, item in members.items()], depth)

    # ----------------------------------------------------------------------------------------------- objects

    def _object(self, place: str, item: Any, depth: int) -> None:
        """What an object holds; of somebody's what its class is made of, too."""
        if self._theirs(type(item).__module__):
            self.walk(f"{place}.class", type(item), depth - 1)
        else:
            self.put(place, str(_name_of(type(item))))
            # Those of libraries may hold half of it, but for what somebody makes of numbers.
            depth = depth if is_dataclass(item) else min(depth, DEEPEST_IN_LIBRARIES)
        if hasattr(type(item), "__array__"):  # which may hold more: a mask, labels
            self.put(f"{place}.array", _array_told(item) or "not told")
        held = _held(item)
        if held is not None or isinstance(item, COLLECTIONS):
            held = held or {}
            self.held_by(item, [(name, f"{place}.{name}", value) for name, value in sorted(held.items())], depth)
            return
        try:
            told = copyreg.dispatch_table.get(type(item), _reduced)(item)
        except Exception:  # whatever cannot be written down
            self.put(f"{place}.held", "not told")
            return
        for number, part in enumerate([told] if isinstance(told, str) else told):
            part = list(part) if isinstance(part, Iterator) else part
            self.walk(f"{place}.held[{number}]", part, depth - 1)

    def _theirs(self, module: Any) -> bool:
        """True for modules of whoever wrote the function, and for those that nobody installed."""
        return modules.is_somebodys(str(module), self.home)


def _home_of(function: Any) -> str:
    """The package in which a function, or the class of an object, was written."""
    while isinstance(function, functools.partial):
        function = function.func
    named = _plainest(function)
    named = named if isinstance(named, (FunctionType, MethodType, type)) else type(named)
    return modules.package(str(named.__module__))


def _is_within(place: str, top: str) -> bool:
    return place == top or place.startswith((f"{top}.", f"{top}[", f"{top}(", f"{top}#"))


def _subtree(parts: Parts, top: str) -> Parts:
    return {place[len(top) :]: text for place, text in parts.items() if _is_within(place, top)}


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
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _digest_of(parts: Parts) -> str:
    return _digest(json.dumps(parts, sort_keys=True))


def _plainest(function: Any) -> Any:
    """The Python function behind one that Numba compiles, or whose answers `functools` keeps."""
    function = _attribute(function, "py_func", function)
    return function if isinstance(function, FunctionType) else _attribute(function, "__wrapped__", function)


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
