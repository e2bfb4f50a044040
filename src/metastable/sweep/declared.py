"""Observables that are given as objects: written down as the tables of a sweep, and made again of them.

`metastable.observe.clusters(radius=0.1)` is the table `{kind = "clusters", radius = 0.1}`; a frozen dataclass of one's own is
`{kind = "package.module:Class", FIELD = number, ...}`. What cannot be made again as it was is refused.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from metastable.errors import SweepError
from metastable.sweep import axes, own


def is_observable(value: Any) -> bool:
    """True for an object with `dims` and `measure` (a plain function, or a class, has none of its own)."""
    from metastable.analysis.observe import Observable

    return not isinstance(value, type) and isinstance(value, Observable)


def table_of(item: Any, where: str) -> dict[str, Any]:
    """The table that an observable is made again of: its `kind`, and its fields as plain values."""
    if not _is_frozen(type(item)):
        raise _unwritable(item, where, "only frozen dataclasses say all that they are by their fields")
    ours = _of_a_kind(item)
    if ours is not None:
        return ours
    held = {name: value for name, value in _fields(item).items() if value is not None}
    for name, value in held.items():
        if name in ("kind", "family", "label"):
            raise _unwritable(item, where, f"its field {name} has the name of something else in a table")
        if not _is_plain(value):
            raise _unwritable(
                item,
                where,
                f"its field {name} is {value!r}, and tables hold finite numbers, True and False, and lists of them",
            )
    path = own.path_of(type(item), where)
    table = {"kind": path, **axes.plain(held)}
    if _remade(type(item), table) != item:
        for field in fields(item):
            if field.init and getattr(item, field.name) is None and field.default is not None:
                raise _unwritable(
                    item, where, f"its field {field.name} is None, which tables cannot say, and not by default"
                )
        raise _unwritable(item, where, f"{type(item).__name__} of the same fields is another one")
    return table


def make(where: str, kind: type, arguments: Mapping[str, Any]) -> Any:
    """The observable of a class of one's own with these fields; lists are tuples there, as frozen objects have them."""
    try:
        made = kind(**{name: _tuples(value) for name, value in arguments.items()})
    except Exception as reason:  # making it runs somebody's code
        raise SweepError(f"{where}: {kind.__name__} cannot be made: {type(reason).__name__}: {reason}") from reason
    if not is_observable(made):
        raise SweepError(
            f"{where}: {kind.__name__} is no observable: it needs dims and measure (metastable.observe.Observable)"
        )
    return made


def check_fields(where: str, kind: type, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that a class does not take (their values may be formulas, which have none yet)."""
    try:
        inspect.signature(kind).bind(**arguments)
    except (TypeError, ValueError) as reason:
        raise SweepError(f"{where}: {kind.__name__}: {reason}") from None


def _of_a_kind(item: Any) -> dict[str, Any] | None:
    """The table with a kind of `metastable.observe` that makes an equal object; None where there is no such kind."""
    if not type(item).__module__.startswith("metastable."):
        return None
    for kind in own.kinds():
        maker = own.maker("", kind)
        known = inspect.signature(maker).parameters
        held = {name: value for name, value in _fields(item).items() if name in known and value != known[name].default}
        table = {"kind": kind, **axes.plain({name: value for name, value in held.items() if value is not None})}
        if _remade(maker, table) == item:
            return table
    return None


def _remade(maker: Any, table: Mapping[str, Any]) -> Any:
    """What is made of a table, or None where nothing is."""
    arguments = {name: _tuples(value) for name, value in table.items() if name != "kind"}
    try:
        return maker(**arguments)
    except Exception:  # making it may run somebody's code
        return None


def _is_frozen(kind: type) -> bool:
    return is_dataclass(kind) and getattr(kind, "__dataclass_params__").frozen  # noqa: B009


def _fields(item: Any) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in fields(item) if field.init}


def _is_plain(value: Any) -> bool:
    """True for what a table gives back as it was: finite numbers, True and False, tuples of them. Text would be a formula."""
    if isinstance(value, tuple):
        return all(_is_plain(entry) for entry in value)
    value = value.item() if isinstance(value, np.generic) else value
    return isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(entry) for entry in value) if isinstance(value, list) else value


def _unwritable(item: Any, where: str, why: str) -> SweepError:
    """The error for an object that no table says, with the way that is left."""
    return SweepError(
        f"{where}: {item!r} cannot be written into the description of a sweep: {why}. Give it a name at the top of a module, and here "
        f"that name: {{'kind': 'package.module:NAME'}}"
    )
