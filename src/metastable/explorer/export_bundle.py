"""The page's modules as one classic script, because pages under file: may load neither modules nor workers.

The modules are our own and plain: `import { a, b as c } from "./x.js"`, `export` in front of declarations, no cycles, no default
exports, no exported variables that change. Whatever else is met is refused, so that a page is never silently another one.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from metastable.errors import InvalidInputError

IMPORT = re.compile(r'^import\s*\{([^}]*)\}\s*from\s*"([^"]+)";[^\S\n]*$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const)\b)", re.MULTILINE)
LEFT = re.compile(r"^(?:import|export)\b.*$|\bimport\(|\bimport\.meta\b|^await\b", re.MULTILINE)


def bundle(modules: Mapping[str, str], entry: str) -> str:
    """The script that does what the module `entry` does; `modules`: path -> source, of all that may be imported."""
    order: list[str] = []
    _visit(modules, entry, (), order)
    wanted: dict[str, set[str]] = {path: set() for path in order}
    for path in order:
        for names, source in _imports(modules[path], path):
            wanted[source] |= {name for name, _ in names}
    return '(() => {\n"use strict";\nconst modules = {};\n' + "".join(
        _wrapped(modules[path], path, sorted(wanted[path])) for path in order
    ) + "})();\n"  # fmt: skip


def _imports(text: str, path: str) -> list[tuple[list[tuple[str, str]], str]]:
    """Per import of a module: its names (there, here), and the path of the module they come from."""
    found = []
    for match in IMPORT.finditer(text):
        pairs = [piece.split(" as ") for piece in (part.strip() for part in match[1].split(",")) if piece]
        names = [(pair[0].strip(), pair[-1].strip()) for pair in pairs]
        found.append((names, posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))))
    return found


def _visit(modules: Mapping[str, str], path: str, above: tuple[str, ...], order: list[str]) -> None:
    """Modules in the order in which they can run: the imported ones first."""
    if path in above:
        raise InvalidInputError(
            f"the modules {' -> '.join((*above, path))} import one another; a bundle needs an order"
        )
    if path in order:
        return
    if path not in modules:
        raise InvalidInputError(f"{above[-1] if above else 'the page'} imports {path}, which is not there")
    for _, source in _imports(modules[path], path):
        _visit(modules, source, (*above, path), order)
    order.append(path)


def _wrapped(text: str, path: str, exported: list[str]) -> str:
    """One module as a function that runs at once and leaves what others import."""

    def taken(match: re.Match[str]) -> str:
        ((names, source),) = _imports(match[0], path)
        pieces = ", ".join(there if there == here else f"{there}: {here}" for there, here in names)
        return f"const {{ {pieces} }} = modules[{source!r}];"

    body = EXPORT.sub("", IMPORT.sub(taken, text))
    left = LEFT.search(body)
    if left is not None:
        raise InvalidInputError(f"{path} has a line that cannot be bundled: {left[0][:80]!r}")
    return f"modules[{path!r}] = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();\n"
