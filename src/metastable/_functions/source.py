"""The text of functions of users: how a function that can be imported is told from its own edited version, in every process.

`fingerprint("mylab.measures", "height")` is a digest of the statements that define the function, and of those that define whatever they
name, in the modules of somebody: helpers, classes, constants, also across files. Comments, documentation, annotations of arguments and
blank lines do not count, nor does anything that a process puts into a module while it runs; libraries, and files that functions open,
are not looked into. Nothing is imported, and every version of Python reads the same.

That is what is written. `not_as_written` says where a process has something else, since a file was edited after its import.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from metastable._functions import modules
from metastable._functions.instructions import codes, instructions
from metastable._functions.reading import function_behind

Name = tuple[str, str]
"""A module, and a name at its top level."""
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
SCOPES = (*DEFINITIONS, ast.Lambda)
PLAIN = (type(None), bool, int, float, complex, str, bytes)
LEFT_OUT = frozenset({"ctx", "type_comment", "type_ignores", "kind", "returns"})
"""What says nothing of what is computed."""


@dataclass(frozen=True)
class _Text:
    """The statements of a module, by the names that they bind (or change) at its top level."""

    tree: ast.Module
    binds: dict[str, list[ast.stmt]] = field(default_factory=dict)
    everything: list[str] = field(default_factory=list)
    """Modules of which all names are imported, `from lab import *`, by how they are named."""

    def statements(self, name: str) -> list[ast.stmt]:
        """Those that define a name; all where none does (a module may make its names)."""
        return self.binds.get(name, self.tree.body)


def fingerprint(module: str, name: str) -> str:
    """A digest of all that defines what is called so."""
    found = _Files(modules.package(module)).definitions(module, name)
    return _digest({f"{where}:{what}": said for (where, what), said in found.items()})


def note(module: str, name: str) -> None:
    """Keep what the files of a function say, which was imported a moment ago: `not_as_written` knows of later edits by that."""
    if module in _NOTED and _NOTED[module][0] is getattr(sys.modules.get(module), "__spec__", None):
        return
    for where, _ in _Files(modules.package(module)).definitions(module, name):
        _noted(where)


def not_as_written(module: str, name: str) -> str:
    """What of a function in this process is not what its files say ("" where all is): edited after the import, or set from outside."""
    for where, what in _Files(modules.package(module)).definitions(module, name):
        noted, now = _noted(where), _now(where)
        if now is None or noted is None:
            continue
        edited = noted != now and _definition(_parsed(noted), what) != _definition(_parsed(now), what)
        if edited or not _is_as_written(where, what, now):
            return f"{where}:{what}"
    return ""


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
        _NOTED[module] = spec, text
    return _NOTED[module][1]


# --------------------------------------------------------------------------------------------- what is written


class _Files:
    """The modules of somebody, as their files are now."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.texts: dict[str, _Text | None] = {}

    def definitions(self, module: str, name: str) -> dict[Name, str]:
        """Of a name, and of each name of somebody that its definition uses, and so on, a digest of the statements that define it."""
        waiting, found = [(module, name)], dict[Name, str]()
        while waiting:
            where, what = waiting.pop()
            if (where, what) in found or not modules.is_somebodys(where, self.home):
                continue
            text = self.text(where)
            found[where, what] = _of_its_file(where) if text is None else _definition(text, what)
            waiting += () if text is None else self._used(text, where, what)
        return found

    def text(self, module: str) -> _Text | None:
        """The statements of a module; None where there is no text to read, or it is no one's own."""
        if module not in self.texts:
            spec = modules.spec_of(module) if modules.is_somebodys(module, self.home) else None
            text = None if spec is None else modules.text_of(spec)
            self.texts[module] = None if text is None else _parsed(text)
        return self.texts[module]

    def _used(self, text: _Text, module: str, name: str) -> Iterator[Name]:
        """What the definition of a name uses, of its own module or of those that it imports."""
        nodes = [node for statement in text.statements(name) for node in ast.walk(statement)]
        words = {
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }  # getattr(lab, "cut")
        names = words | {node.id for node in nodes if isinstance(node, ast.Name)}
        attributes = words | {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        for used in sorted(names):
            if used in text.binds:
                yield module, used
                nodes += [node for statement in text.binds[used] for node in ast.walk(statement)]
            for source in text.everything if used not in text.binds else ():
                other = self.text(_full(source, module))
                if other is not None and used in other.binds:
                    yield _full(source, module), used
        for node in nodes:
            yield from self._imported(node, module, attributes)

    def _imported(self, node: ast.AST, module: str, attributes: set[str]) -> Iterator[Name]:
        """The names of other modules that an import brings in: of whole modules those among the `attributes`."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                for depth in range(1, len(parts) + 1):
                    yield from self._of_module(".".join(parts[:depth]), attributes)
        elif isinstance(node, ast.ImportFrom):
            source = _full("." * node.level + (node.module or ""), module)
            text = self.text(source)
            for alias in node.names:
                if (text is None and _has_file(source)) or (text is not None and alias.name in text.binds):
                    yield source, alias.name
                else:
                    yield from self._of_module(f"{source}.{alias.name}", attributes)

    def _of_module(self, module: str, attributes: set[str]) -> Iterator[Name]:
        text = self.text(module)
        if text is None and modules.is_somebodys(module, self.home) and _has_file(module):
            yield module, ""
        for name in sorted(attributes.intersection(() if text is None else text.binds)):
            yield module, name


def _definition(text: _Text, name: str) -> str:
    """A digest of the statements that define a name."""
    return _digest([_plain(statement) for statement in text.statements(name)])


def _full(named: str, module: str) -> str:
    """The full name of a module that another one imports as `named`."""
    spec = modules.spec_of(module)
    try:
        return resolve_name(named, None if spec is None else spec.parent)
    except (ImportError, ValueError):
        return named


def _has_file(module: str) -> bool:
    spec = modules.spec_of(module)
    return spec is not None and spec.has_location and spec.submodule_search_locations is None


def _of_its_file(module: str) -> str:
    """A digest of a module that has no text: of its file, where it has one."""
    spec = modules.spec_of(module)
    try:
        return hashlib.blake2b(Path(str(spec.origin if spec else "")).read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return "not found"


@functools.lru_cache(64)
def _parsed(text: str) -> _Text:
    try:
        found = _Text(ast.parse(text))
    except (SyntaxError, ValueError):  # in the middle of an edit
        return _Text(ast.Module([ast.Expr(ast.Constant(text))], []))
    for statement in found.tree.body:
        if _is_for_scripts(statement):
            continue
        for single in _singly(statement):
            for name in sorted(_bound(single)):
                found.binds.setdefault(name, []).append(single)
        if isinstance(statement, ast.ImportFrom) and any(alias.name == "*" for alias in statement.names):
            found.everything.append("." * statement.level + (statement.module or ""))
    return found


def _singly(statement: ast.stmt) -> list[ast.stmt]:
    """An import as one for each name: others that come with it say nothing of it."""
    if isinstance(statement, ast.Import):
        return [ast.Import([alias]) for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [ast.ImportFrom(statement.module, [alias], statement.level) for alias in statement.names]
    return [statement]


def _is_for_scripts(statement: ast.stmt) -> bool:
    """True for `if __name__ == "__main__":`."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top level binds, or whose objects it changes."""
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        names = (alias.asname or alias.name.split(".")[0] for alias in statement.names)
        return {name for name in names if name != "*"}
    found: set[str] = set()
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt):
            found |= _bound(node)
        elif isinstance(node, (ast.ExceptHandler, ast.match_case)):
            found |= {name for inner in node.body for name in _bound(inner)}
        elif not isinstance(node, SCOPES):
            found |= set(_stored(node))
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        found |= {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}  # TABLE.update(more)
    return found


def _stored(node: ast.AST) -> Iterator[str]:
    """Names that are assigned to in an expression, or whose entries and attributes are."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Name, ast.Attribute, ast.Subscript)) and not isinstance(inner.ctx, ast.Load):
            root: ast.AST = inner
            while isinstance(root, (ast.Attribute, ast.Subscript)):
                root = root.value
            if isinstance(root, ast.Name):
                yield root.id


def _plain(node: Any) -> Any:
    """A statement as plain values, without what says nothing of what is computed."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {sorted(map(repr, node.value)) if isinstance(node.value, frozenset) else repr(node.value)}"
    if not isinstance(node, ast.AST):
        return node
    said = []
    for name, value in ast.iter_fields(node):
        if name in LEFT_OUT or value is None or value == [] or (name == "annotation" and isinstance(node, ast.arg)):
            continue
        if name == "body" and isinstance(node, (*DEFINITIONS, ast.Module)):
            value = [item for item in value if not _is_words(item)]
        said.append([name, _plain(value)])
    return [type(node).__name__, *said]


def _is_words(node: ast.AST) -> bool:
    """True for documentation."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _digest(said: Any) -> str:
    data = json.dumps(said, sort_keys=True).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


# ------------------------------------------------------------------------------------------- what a process has


def _is_as_written(module: str, name: str, text: str) -> bool:
    """True where a global of a module is what its text makes, as far as it can be told: functions have its code, and constants their
    values."""
    there = vars(sys.modules[module])
    if name not in there:
        return True
    if name in _constants(text):
        return repr(there[name]) == _constants(text)[name]
    place, written = sys.modules[module].__file__, _codes(text)
    return all(
        (code.co_qualname, instructions(code)) in written
        for code in _codes_of(there[name])
        if code.co_filename == place
    )


@functools.lru_cache(64)
def _constants(text: str) -> dict[str, str]:
    """Names that are bound once, to a number or a word (or a tuple of them), and that no function binds, and what they are."""
    parsed, found = _parsed(text), dict[str, str]()
    for statement in parsed.tree.body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                found |= _values(target, statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            found |= _values(statement.target, statement.value)
    changed = {name for node in ast.walk(parsed.tree) if isinstance(node, ast.Global) for name in node.names}
    return {name: value for name, value in found.items() if len(parsed.binds[name]) == 1 and name not in changed}


def _values(target: ast.expr, value: ast.expr) -> dict[str, str]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return {name: said for pair in zip(target.elts, value.elts) for name, said in _values(*pair).items()}
    try:
        said = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError):
        return {}
    plain = all(isinstance(item, PLAIN) for item in (said if isinstance(said, tuple) else (said,)))
    return {target.id: repr(said)} if plain and isinstance(target, ast.Name) else {}


def _codes_of(item: Any) -> Iterator[CodeType]:
    """The code of a function, or of the methods of a class."""
    for found in [*vars(item).values()] if isinstance(item, type) else [item]:
        function = function_behind(found)
        if isinstance(function, FunctionType):
            yield function.__code__


@functools.lru_cache(64)
def _codes(text: str) -> frozenset[tuple[str, str]]:
    """What functions of a text are called, and their instructions."""
    every = codes(compile(text, "<text>", "exec", dont_inherit=True))
    return frozenset((code.co_qualname, instructions(code)) for code in every)
