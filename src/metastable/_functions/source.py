"""The text of functions of users: how a function that can be imported is told from its own edited version, in every process.

`fingerprint("mylab.measures", "height")` is a digest of the statements that define the function, of those that define whatever they
name, in the modules of somebody (helpers, classes, constants, also across files), and of those that do something when these modules are
imported. Comments, documentation, annotations of functions and blank lines do not count, nor does anything that a process puts into a
module while it runs; libraries, and files that functions open, are not looked into. Nothing is imported, and every version of Python
reads the same. (`written` says whether a process has what is written.)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, NamedTuple

from metastable._functions import digest, modules

Name = tuple[str, str]
"""A module, and a name at its top level."""
DOINGS = ""
"""The name of the statements of a module that do something when it is imported."""
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.arg)
SCOPES = (*DEFINITIONS, ast.Lambda)
IMPORTS = (ast.Import, ast.ImportFrom)
LEFT_OUT = frozenset({"ctx", "type_comment", "type_ignores", "kind", "returns"})
"""What says nothing of what is computed."""
BY_NAME = frozenset({"import_module", "__import__"})
"""What imports modules that are named by words."""
SUBCLASSES = ("__init_subclass__", "__subclasses__")
IDENTIFIER = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def fingerprint(module: str, name: str) -> str:
    """A digest of all that defines what is called so."""
    files = Files(modules.package(module))
    names: dict[str, set[str]] = {}
    for where, what in files.definitions(module, name):
        names.setdefault(where, set()).add(what)
    said: dict[str, Any] = {}
    for where, what in names.items():
        text = files.text(where)
        said[where] = _of_its_file(where) if text is None else text.said(what)
    return digest.of_values(said)


# ------------------------------------------------------------------------------------------------- one module


class Use(NamedTuple):
    """What statements use."""

    names: frozenset[str]
    whole: frozenset[str]
    """Names that are not only asked for their attributes."""
    attributes: frozenset[str]
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    modules: frozenset[str]
    """Words that may be modules to import."""


class Text:
    """The statements of a module at its top level."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError):  # in the middle of an edit
            body = [ast.Expr(ast.Constant(text))]
        self.statements = [single for item in body if not _is_for_scripts(item) for single in _singly(item)]
        self.binds: dict[str, list[int]] = {}
        """The statements that bind a name, by their numbers."""
        self.stars = [
            "." * node.level + (node.module or "")
            for item in self.statements
            for node in _within(item)
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        ]
        """Modules of which all names are imported, by how they are named."""
        for number, statement in enumerate(self.statements):
            for name in sorted(_bound(statement)):
                self.binds.setdefault(name, []).append(number)
        self._said: dict[int, str] = {}
        self._uses: dict[str, Use] = {}

    @cached_property
    def doings(self) -> list[int]:
        """The statements that do something when the module is imported, beside binding names: calls, and changes of objects."""
        own = {
            name
            for name, numbers in self.binds.items()
            if not all(isinstance(self.statements[number], IMPORTS) for number in numbers)
        }
        all_subclasses = any(word in line for line in self.lines for word in SUBCLASSES)
        return [
            number
            for number, item in enumerate(self.statements)
            if any(_does_something(node) for node in _within(item))
            or any(_names(node) & own for node in getattr(item, "decorator_list", ()))
            or (all_subclasses and isinstance(item, ast.ClassDef) and item.bases)
        ]

    def of(self, name: str) -> list[int]:
        """The statements that define a name, those that do something, or all where no statement defines it (a module may make its
        names)."""
        if name == DOINGS:
            return self.doings
        return self.binds.get(name) or ([] if self.stars else [*range(len(self.statements))])

    def said(self, names: Iterable[str]) -> list[str]:
        """Digests of the statements that define these names, in their order."""
        return [self._digest(number) for number in sorted({number for name in names for number in self.of(name)})]

    def _digest(self, number: int) -> str:
        if number not in self._said:
            statement = self.statements[number]
            try:
                self._said[number] = digest.of_values(_plain(statement))
            except RecursionError:  # a formula of a thousand terms
                self._said[number] = digest.of_values(self.lines[statement.lineno - 1 : statement.end_lineno])
        return self._said[number]

    def use(self, name: str) -> Use:
        """What the statements that define a name use."""
        if name not in self._uses:
            nodes = [node for number in self.of(name) for node in ast.walk(self.statements[number])]
            asked = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
            words = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
            words = {word for word in words if len(word) < 100 and IDENTIFIER.fullmatch(word)}
            named = [node for node in nodes if isinstance(node, ast.Name)]
            names = {node.id for node in named}
            attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            self._uses[name] = Use(
                frozenset(names | words),
                frozenset(node.id for node in named if id(node) not in asked),
                frozenset(attributes),
                tuple(node for node in nodes if isinstance(node, IMPORTS)),
                frozenset(words if BY_NAME & (names | attributes) else ()),
            )
        return self._uses[name]


@lru_cache(64)
def parsed(text: str) -> Text:
    """The statements of a text."""
    return Text(text)


def _singly(statement: ast.stmt) -> list[ast.stmt]:
    """An import as one for each name: others that come with it say nothing of it."""
    if isinstance(statement, ast.Import):
        return [ast.Import([alias]) for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [ast.ImportFrom(statement.module, [alias], statement.level) for alias in statement.names]
    return [statement]


def _is_for_scripts(statement: ast.stmt) -> bool:
    """True for `if __name__ == "__main__":`."""
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and isinstance(statement.test, ast.Compare)
        and isinstance(statement.test.left, ast.Name)
        and statement.test.left.id == "__name__"
        and isinstance(statement.test.ops[0], ast.Eq)
    )


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all that is run with it: not what is in functions and classes."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPES):
            waiting += ast.iter_child_nodes(node)


def _does_something(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        value = node.value
        printed = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print"
        return not isinstance(value, ast.Constant) and not printed
    stored = isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load)
    return stored or isinstance(node, ast.Delete)


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top level binds."""
    found: set[str] = set()
    for node in _within(statement):
        if isinstance(node, DEFINITIONS):
            found.add(node.name)
        elif isinstance(node, IMPORTS):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names} - {"*"}
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
    return found


def _plain(node: Any) -> Any:
    """A statement as plain values, without what says nothing of what is computed."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {in_words(node.value)}"
    if not isinstance(node, ast.AST):
        return node
    said = []
    # What decorators are told of types may decide who is called.
    typed = isinstance(node, FUNCTIONS) and not getattr(node, "decorator_list", ())
    for name, value in ast.iter_fields(node):
        if name in LEFT_OUT or value is None or value == [] or (typed and name == "annotation"):
            continue
        if name == "body" and isinstance(node, DEFINITIONS):
            value = [item for item in value if not _is_documentation(item)]
        said.append([name, _plain(value)])
    return [type(node).__name__, *said]


def in_words(value: Any) -> str:
    """A constant as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return hex(value)
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _is_documentation(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


# -------------------------------------------------------------------------------------------------- all modules


class Files:
    """The modules of somebody, as their files are now."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.texts: dict[str, Text | None] = {}

    def definitions(self, module: str, name: str) -> list[Name]:
        """A name, each name of somebody that its definition uses, and so on; and what their modules do."""
        waiting, found = [(module, name)], dict[Name, None]()
        waiting += self._defined(module, name, None, set())
        while waiting:
            here = where, what = waiting.pop()
            text = self.text(where)
            if here in found or not modules.is_somebodys(where, self.home):
                continue
            found[here] = None
            if "." in where:  # packages are imported before what is in them
                waiting.append((where.rpartition(".")[0], DOINGS))
            if text is not None:
                waiting += [(where, DOINGS), *self._used(text, where, what)]
        return [*found]

    def text(self, module: str) -> Text | None:
        """The statements of a module; None where there is no text to read, or it is no one's own."""
        if module not in self.texts:
            spec = modules.spec_of(module) if modules.is_somebodys(module, self.home) else None
            text = None if spec is None else modules.text_of(spec)
            self.texts[module] = None if text is None else parsed(text)
        return self.texts[module]

    def _used(self, text: Text, module: str, name: str) -> Iterator[Name]:
        """What the definition of a name uses, of its own module or of those that it imports."""
        use, seen = text.use(name), set[tuple[str, str, bool]]()
        for used in sorted(use.names):
            yield from self._defined(module, used, None if used in use.whole else use.attributes, seen)
        for node in use.imports:
            yield from self._imported(node, module, use.attributes, seen)
        for word in use.modules:
            yield from self._of_module(word, None, seen)

    def _defined(
        self, module: str, name: str, attributes: frozenset[str] | None, seen: set[tuple[str, str, bool]]
    ) -> Iterator[Name]:
        """Where a name of a module is defined: there, in modules of which it imports all names, or as a module itself, of which only
        these `attributes` are used."""
        text, here = self.text(module), (module, name, attributes is None)
        if text is None or here in seen:
            return
        seen.add(here)
        if name in text.binds:
            yield module, name
            for number in text.binds[name]:
                for node in _within(text.statements[number]):
                    if isinstance(node, IMPORTS):
                        yield from self._imported(node, module, attributes, seen)
        for star in text.stars:
            yield from self._defined(full_name(star, module), name, attributes, seen)
        yield from self._of_module(f"{module}.{name}", attributes, seen)

    def _imported(
        self, node: ast.AST, module: str, attributes: frozenset[str] | None, seen: set[tuple[str, str, bool]]
    ) -> Iterator[Name]:
        """The names of other modules that an import brings in."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                for depth in range(1, len(parts) + 1):
                    yield from self._of_module(".".join(parts[:depth]), attributes, seen)
        elif isinstance(node, ast.ImportFrom):
            source = full_name("." * node.level + (node.module or ""), module)
            for alias in node.names:
                if alias.name == "*":
                    yield source, DOINGS
                elif self.text(source) is None and self._has_file(source):
                    yield source, alias.name
                elif self.text(source) is None:  # a package without a file of its own
                    yield from self._of_module(f"{source}.{alias.name}", attributes, seen)
                else:
                    yield source, DOINGS
                    yield from self._defined(source, alias.name, attributes, seen)

    def _of_module(
        self, module: str, attributes: frozenset[str] | None, seen: set[tuple[str, str, bool]]
    ) -> Iterator[Name]:
        text = self.text(module)
        if text is None:
            if self._has_file(module):
                yield module, DOINGS
            return
        yield module, DOINGS
        for name in sorted(text.binds if attributes is None else attributes):
            yield from self._defined(module, name, attributes, seen)

    def _has_file(self, module: str) -> bool:
        """True for modules of somebody that have a file, but perhaps no text."""
        spec = modules.spec_of(module) if modules.is_somebodys(module, self.home) else None
        return spec is not None and spec.has_location and spec.submodule_search_locations is None


def full_name(named: str, module: str) -> str:
    """The full name of a module that another one imports as `named`."""
    spec = modules.spec_of(module)
    try:
        return resolve_name(named, None if spec is None else spec.parent)
    except (ImportError, ValueError):
        return named


def _of_its_file(module: str) -> str:
    """A digest of a module that has no text: of its file, where it has one."""
    spec = modules.spec_of(module)
    try:
        return digest.of_data(Path(str(spec.origin if spec else "")).read_bytes())
    except OSError:
        return "not found"
