"""Whose a module is: somebody's own, or a library's, which is known by its names."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

LIBRARIES = frozenset({"metastable", "numpy", "scipy", *sys.stdlib_module_names})
"""Packages that nobody writes on the side."""
FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Where installed packages stand, be it of Python, of a user, or of a cluster."""


def package(module: str) -> str:
    """The name of the package that a module belongs to."""
    return module.partition(".")[0]


def is_somebodys(module: str, home: str) -> bool:
    """True for modules of the package `home`, whose functions are read, and for those that nobody installed."""
    name = package(module)
    return (name == home and name not in LIBRARIES) or not _is_installed(name)


def imported(module: str) -> Any:
    """A module that a function imports when it is called; None where it cannot be imported, which the function will say."""
    try:
        return importlib.import_module(module)
    except Exception:  # importing runs somebody's code
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
    module = sys.modules.get(name)
    try:
        spec = getattr(module, "__spec__", None) or importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    places = [*(getattr(spec, "submodule_search_locations", None) or ()), getattr(module, "__file__", None)]
    places.append(spec.origin if spec is not None and spec.has_location else None)
    return next((str(place) for place in places if place is not None), None)
