"""Whose a module is: somebody's own, or a library's, which is known by its names; and the text of somebody's."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from pkgutil import get_importer
from typing import Any

LIBRARIES = frozenset({"metastable", "numpy", "scipy"})
"""Packages that nobody writes on the side."""
FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Where installed packages stand, be it of Python, of a user, or of a cluster."""


def package(module: str) -> str:
    """The name of the package that a module belongs to."""
    return module.partition(".")[0]


def is_somebodys(module: str, home: str) -> bool:
    """True for modules of the package `home`, whose functions are read, and for those that nobody installed."""
    name = package(module)
    known = name in LIBRARIES or name in sys.stdlib_module_names
    return (name == home and not known) or not _is_installed(name)


def spec_of(name: str) -> ModuleSpec | None:
    """How a module is loaded; nothing is imported to find out."""
    loaded = getattr(sys.modules.get(name), "__spec__", None)
    if isinstance(loaded, ModuleSpec):
        return loaded
    parent = name.rpartition(".")[0]
    try:
        above = spec_of(parent) if parent else None
        return _within(name, (above and above.submodule_search_locations) or ()) if parent else find_spec(name)
    except (ImportError, ValueError):
        return None


def _within(name: str, places: Iterable[str]) -> ModuleSpec | None:
    """A module of a package that is in these places; it may have several of its own (a package without `__init__.py`)."""
    folders: list[str] = []
    for place in places:
        finder = get_importer(str(place))
        found = None if finder is None else finder.find_spec(name)
        if found is not None and found.loader is not None:
            return found
        folders += (found and found.submodule_search_locations) or ()
    if not folders:
        return None
    package = ModuleSpec(name, None, is_package=True)
    package.submodule_search_locations = folders
    return package


def text_of(spec: ModuleSpec) -> str | None:
    """The text of a module as it is on disk now; None where there is none to read."""
    reads = getattr(spec.loader, "get_source", None)
    try:
        return None if reads is None else reads(spec.name)
    except (ImportError, OSError, SyntaxError):
        return None


def _is_installed(name: str) -> bool:
    """True for packages of Python itself, and for those in its folders of packages."""
    if name == "__main__":
        return False
    place = None if name in LIBRARIES else _place_of(name)
    return place is None or _is_among_packages(place)


@functools.cache
def _is_among_packages(place: str) -> bool:
    path, paths = Path(place), sysconfig.get_paths()
    return not FOLDERS.isdisjoint(path.parts) or any(path.is_relative_to(paths[name]) for name in ("stdlib", "platlib"))


def _place_of(name: str) -> str | None:
    """Where a package stands (a folder, where it has no file of its own); None for what is built in, or cannot be found."""
    module: Any = sys.modules.get(name)
    spec = spec_of(name)
    places = [*(getattr(spec, "submodule_search_locations", None) or ()), getattr(module, "__file__", None)]
    places.append(spec.origin if spec is not None and spec.has_location else None)
    return next((str(place) for place in places if place is not None), None)
