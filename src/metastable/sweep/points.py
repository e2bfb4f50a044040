"""From a grid point to its task: fields put over the model, formulas evaluated, matrices and the seed drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable.errors import SweepError
from metastable.model import Attention
from metastable.model.declare import REGISTRY, parameters
from metastable.sweep import expressions, families, own
from metastable.sweep.tasks import Task, canonical, digest

if TYPE_CHECKING:
    from metastable.sweep.specification import Sweep

MODEL_FIELDS = tuple(item.name for item in fields(Attention))
NUMERIC_FIELDS = tuple(parameters(Attention))
"""Fields of the model that are numbers: they may be formulas, and formulas may use them."""
REPLICATE = "draw"
"""The axis of replicates: it changes random matrices and starts, and nothing else."""

_WORDS = ("kind", "family", "label")
_WORD_FIELDS = (*REGISTRY, "activation")
"""Fields whose values may be names: of a variant, of an activation."""


def formulas(value: Any, where: str = "", name: str = "") -> Iterator[tuple[str, str]]:
    """Every string that is a formula, with its place."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _WORDS:
                yield from formulas(item, f"{where}.{key}" if where else key, key)
    elif isinstance(value, (list, tuple)):
        for item in value:
            if not (isinstance(item, str) and name in (*_WORD_FIELDS, *families.FIELDS)):
                yield from formulas(item, where, name)
    elif isinstance(value, str) and name not in (*_WORD_FIELDS, *families.FIELDS):
        yield where, value


def resolve(value: Any, scope: Mapping[str, Any], where: str, name: str = "") -> Any:
    """`value` with its formulas replaced by numbers."""
    if isinstance(value, Mapping):
        return {
            key: item if key in _WORDS else resolve(item, scope, f"{where}.{key}", key)
            for key, item in value.items()
            if key != "label"
        }
    if isinstance(value, (list, tuple)):
        return [resolve(item, scope, where, name) for item in value]
    if isinstance(value, str) and name not in _WORD_FIELDS:
        return expressions.evaluate(value, scope, where)
    return value


def corner_lines(sweep: Sweep) -> Iterator[Task]:
    """The tasks along each axis through the first and through the last of all: whatever an axis changes changes among them."""
    for corner in (0, -1):
        for place, length in enumerate(sweep.shape):
            for along in range(length):
                index = [along if axis == place else corner % size for axis, size in enumerate(sweep.shape)]
                yield sweep.task(int(np.ravel_multi_index(index, sweep.shape)))
    if not sweep.axes:
        yield sweep.task(0)


def task(sweep: Sweep, number: int, index: tuple[int, ...], point: dict[str, Any]) -> Task:
    """The task at one grid point: settings put over the model, formulas evaluated, matrices and the seed drawn."""
    settings: dict[str, Any] = {"tokens": sweep.tokens, **sweep.model}
    for item, place in zip(sweep.axes, index):
        value = item.values[place]
        bundle = item.name not in MODEL_FIELDS and item.name != "tokens" and isinstance(value, dict)
        settings |= {k: v for k, v in value.items() if k != "label"} if bundle else {item.name: value}
    free = {name: value for name, value in settings.items() if name not in MODEL_FIELDS and name != "tokens"}
    for name, value in free.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise SweepError(
                f"{name} = {value!r} is neither a field of the model nor a number that a formula could use"
            )
    scope = dict(free)
    for name in ("tokens", *NUMERIC_FIELDS):
        if settings.get(name) is not None:
            settings[name] = resolve(settings[name], free, name)
            scope[name] = settings[name]
    if settings["tokens"] is None:
        raise SweepError("tokens is missing: give tokens = 200, or an axis grid.tokens")
    tokens = _whole(settings["tokens"], "tokens", 1)
    if "dim" not in settings:
        raise SweepError("dim is missing: give it in [model] or as an axis")
    draw = _whole(free.get(REPLICATE, 0), REPLICATE, 0)
    table = {name: value for name, value in settings.items() if name in MODEL_FIELDS and value is not None}
    _fill_matrices(table, scope, sweep.seed, draw)
    rest = {name: resolve(v, scope, name, name) for name, v in table.items() if name not in families.FIELDS}
    model = Attention.from_dict({**rest, **{n: v for n, v in table.items() if n in families.FIELDS}}).to_dict()
    observe = {name: resolve(v, scope, f"observe.{name}") for name, v in sweep.observe.items()}
    options = dict(sweep.options)
    if _varies(sweep, "noise") and not model.get("noise") and options.get("method", "auto") == "auto":
        options.pop("step", None)  # it is that of the points with noise; the others choose their own
    start = sweep.start if isinstance(sweep.start, str) else resolve(sweep.start, scope, "start")
    described = [model, tokens, sweep.members, list(sweep.times), observe, options, draw]
    content = canonical(described if start == own.UNIFORM else [*described, start])
    if sweep.starts == "shared":
        entropy = [sweep.seed, draw]
    else:
        entropy = [sweep.seed, int(digest(content), 16)]
    seed = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return Task(
        number,
        index,
        point,
        model,
        tokens,
        sweep.members,
        sweep.times,
        observe,
        options,
        seed,
        sweep.keep,
        start=start,
    )


def _varies(sweep: Sweep, field: str) -> bool:
    """True when a field of the model is an axis of the grid, or part of one."""
    return any(
        item.name == field or any(isinstance(value, dict) and field in value for value in item.values)
        for item in sweep.axes
    )


def _whole(value: Any, name: str, minimum: int) -> int:
    """A whole number; who has a range of others in its place is told how they stay whole."""
    try:
        return _checks.count(value, name, minimum, error=SweepError)
    except SweepError as reason:
        hint = "; in a range of whole numbers say integer = true" if isinstance(value, float) else ""
        raise SweepError(f"{reason}{hint}") from None


def _fill_matrices(table: dict[str, Any], scope: Mapping[str, Any], seed: int, draw: int) -> None:
    """Replace families by matrices; `tied` keys copy the query."""
    dim = _whole(table["dim"], "dim", 2)
    for name in ("query", "value", "key"):
        item = table.get(name)
        if isinstance(item, Mapping) and "family" not in item:
            raise SweepError(
                f"{name}: a table says by the key family what kind of matrix it is, as "
                f'{name} = {{family = "spectrum", values = [1.0, 0.5]}}; known families are: {", ".join(families.PARAMETERS)}'
            )
        if item is None or not families.is_family(item):
            continue
        family = resolve(families.table(item, name), scope, name)
        if family["family"] == "tied":
            if name != "key":
                raise SweepError(f"{name}: family 'tied' is for key, which it makes equal to query")
            table["key"] = table.get("query")
        else:
            drawn = families.matrix(family, name, dim, seed, draw, name)
            table[name] = None if drawn is None else drawn.tolist()
    for name in families.FIELDS:
        if table.get(name) is None:
            table.pop(name, None)
