"""What a sweep names: observables and starts of the package by their kind, of one's own by where they are imported from; and the fields
that may be said once only.

Tasks are plain values, so that they can be hashed, written to files and sent to workers: a function is `"package.module:name"`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from metastable import starts
from metastable._functions import source, written
from metastable.errors import InvalidInputError, SweepError

if TYPE_CHECKING:
    from metastable.sweep.specification import Sweep

Versions = Mapping[str, tuple[str, ...]]
"""Fingerprints of functions of one's own by their import path: of all versions whose results count."""
UNKNOWN = ""
"""The version of results that do not say which: of earlier releases."""
UNIFORM = "uniform"
"""The start that sweeps have when they say nothing."""


def is_path(kind: Any) -> bool:
    """True for `"package.module:name"`."""
    return isinstance(kind, str) and ":" in kind


_stored: ContextVar[bool] = ContextVar("stored", default=False)


@contextmanager
def as_stored() -> Iterator[None]:
    """While the description of a stored sweep is read: its functions were there when it was made; to look at results needs none, and
    what earlier versions took for a sweep can be looked at."""
    token = _stored.set(True)
    try:
        yield
    finally:
        _stored.reset(token)


def reads_stored() -> bool:
    """True while the description of a stored sweep is read."""
    return _stored.get()


def load(path: str, what: str) -> Any:
    """What `"package.module:name"` names."""
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as reason:
        raise SweepError(
            f"{what} {path!r} cannot be loaded: {reason}; put the module beside the sweep file, install it, or name its folder in "
            "PYTHONPATH"
        ) from reason
    except Exception as reason:  # importing runs somebody's code
        raise SweepError(f"{what} {path!r} cannot be loaded: {type(reason).__name__}: {reason}") from reason
    written.note(module, name)
    return found


def path_of(function: Callable[..., Any], where: str) -> str:
    """Where a function, or a class, can be imported from."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    path = f"{module}:{name}"
    if module in ("", "__main__", None) or not name.isidentifier() or load(path, where) is not function:
        raise SweepError(
            f"{where}: workers import functions and classes by name, and {name or function!r} cannot be imported; define it at the top "
            "of a module (not in a notebook or a script) and give it as such, or as 'package.module:name'"
        )
    return path


def fingerprints(sweep: Sweep) -> dict[str, str]:
    """Of each function (object, class) of one's own that a sweep names: what tells it from one that is edited."""
    return {path: fingerprint(path) for path in names(sweep)}


def names(sweep: Sweep) -> list[str]:
    """Import paths of the functions (objects, classes) of one's own that a sweep names."""
    named = [*(table["kind"] for table in sweep.observe.values()), sweep.start]
    return list(dict.fromkeys(item for item in named if is_path(item)))


def fingerprint(path: str) -> str:
    """What tells the function (object, class) that a path names from one that is edited."""
    module, _, name = path.partition(":")
    return source.fingerprint(module, name)


def not_as_written(path: str) -> str:
    """What this process has of a function that is not what its files say now; "" where all is."""
    module, _, name = path.partition(":")
    load(path, "the function")
    return written.not_as_written(module, name)


def check_as_written(sweep: Sweep) -> None:
    """Refuse functions that are other ones in this process than in their files: results would be kept under the name of these."""
    for path in names(sweep):
        other = not_as_written(path)
        if other:
            raise SweepError(
                f"{other}, which {path} uses, is not what its file says: it was edited after this process imported it, or set from "
                "outside; import it again (importlib.reload) or start Python again, give numbers that vary as arguments of the "
                "observable, or say edited='keep' (--edited keep) when it changes no result"
            )


def edited(functions: Mapping[str, str], versions: Versions) -> set[str]:
    """Names of functions that are none of the versions that count."""
    return {path for path, found in functions.items() if path in versions and found not in versions[path]}


def counts(functions: Mapping[str, str], versions: Versions) -> bool:
    """True for a result that versions that count have made; one that says nothing counts where `UNKNOWN` does."""
    return all(functions.get(path, UNKNOWN) in known for path, known in versions.items())


# -------------------------------------------------------------------------------------------------- observables


def kinds() -> list[str]:
    """The kinds of observables: the functions of `metastable.observe` that make them."""
    from metastable.analysis import observe as module

    return sorted(item for item in module.__all__ if item.islower() and item != "own")


def maker(where: str, kind: Any) -> Callable[..., Any]:
    """The function of `metastable.observe` that makes a kind of observable."""
    from metastable.analysis import observe as module

    if kind not in kinds():
        raise SweepError(
            f"{where}: unknown kind {kind!r}; known observables are: {', '.join(kinds())}; one of your own is "
            "'package.module:name'"
        )
    return getattr(module, kind)


def observable(where: str, path: str, arguments: Mapping[str, Any]) -> Any:
    """An observable of one's own: a function (with these arguments given by name), an object, or a class (with these fields)."""
    from metastable.analysis.observe_own import as_observable
    from metastable.sweep import declared

    found = load(path, f"{where}: the observable")
    if isinstance(found, type):
        return declared.make(where, found, arguments)
    if arguments:
        if not callable(found):
            raise SweepError(f"{where}: {path!r} is no function, so it takes no arguments ({', '.join(arguments)})")
        try:
            inspect.signature(found).bind_partial(**arguments)
        except TypeError as reason:
            raise SweepError(f"{where}: {path!r}: {reason}") from None
    try:
        return as_observable(partial(found, **arguments) if arguments else found, where)
    except InvalidInputError as reason:
        raise SweepError(f"{where}: {reason}") from None


def check_arguments(where: str, table: Mapping[str, Any]) -> None:
    """Refuse an unknown kind and unknown arguments (their values may be formulas, which have none yet)."""
    from metastable.sweep import declared

    arguments = {name: value for name, value in table.items() if name != "kind"}
    if is_path(table["kind"]):
        if reads_stored():
            return
        found = load(table["kind"], f"{where}: the observable")
        if isinstance(found, type):
            declared.check_fields(where, found, arguments)
        else:
            observable(where, table["kind"], arguments)
    else:
        _bind(where, maker(where, table["kind"]), arguments)


def _bind(where: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as reason:
        raise SweepError(f"{where}: {reason}") from None


# ------------------------------------------------------------------------------------------------------- starts


def start_table(described: Any) -> str | dict[str, Any]:
    """How members start, as plain values."""
    from metastable.sweep import axes

    if callable(described):
        return path_of(described, "start")
    if isinstance(described, Mapping):
        table = axes.plain(described)
        kind = table.get("kind")
        if kind not in starts.__all__:
            raise SweepError(f"start: unknown kind {kind!r}; known starts are: uniform, {', '.join(starts.__all__)}")
        _bind("start", getattr(starts, kind), {"tokens": 1, "dim": 2, "seed": 0, **_parameters(table)})
        return table
    if described == UNIFORM or is_path(described):
        return described
    raise SweepError(
        f"start must be 'uniform', a table such as {{kind = 'von_mises_fisher', concentration = 5.0}}, or a function by its import "
        f"path 'package.module:name', not {described!r}"
    )


def _parameters(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != "kind"}


def check_start(described: str | Mapping[str, Any]) -> None:
    """Refuse a start that cannot be made."""
    if not reads_stored():
        start(described)


def start(described: str | Mapping[str, Any]) -> Any:
    """What `metastable.ensemble` takes for `start`."""
    if isinstance(described, Mapping):
        sampler = getattr(starts, described["kind"])

        def drawn(generator: Any, tokens: int, dim: int) -> Any:
            return sampler(tokens, dim, generator, **_parameters(described))

        return drawn
    return load(described, "the start") if is_path(described) else described


# ---------------------------------------------------------------------------------------------------- conflicts


def check_conflicts(sweep: Sweep) -> None:
    """Refuse a field that is said twice: in [model] (or as `tokens`) and by an axis that always sets it, or by two axes."""
    from metastable.sweep.points import MODEL_FIELDS

    said = {name: f"model.{name}" for name in sweep.model}
    said |= {"tokens": "tokens"} if sweep.tokens is not None else {}
    by_axis: dict[str, str] = {}
    for item in sweep.axes:
        bundled = item.name not in MODEL_FIELDS and item.name != "tokens"
        tables = [
            set(value) - {"label"} if bundled and isinstance(value, dict) else {item.name} for value in item.values
        ]
        for name in sorted(set.union(*tables)):
            if name in by_axis:
                raise SweepError(
                    f"{name} is set by two axes, grid.{by_axis[name]} and grid.{item.name}; leave one of them out"
                )
            by_axis[name] = item.name
            if name in said and all(name in table for table in tables):
                raise SweepError(f"{name} is set twice, by {said[name]} and by grid.{item.name}; leave one of them out")
