"""Models as plain dictionaries: exact round trips through dict, JSON and TOML.

Objects become tables with a `kind`; arrays become nested lists (repr of a float64 is exact, so nothing is lost); fields at
their default are left out. TOML has no null, and none is needed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from metastable.errors import InvalidInputError, ModelError, VariantError
from metastable.model.attention import Attention
from metastable.model.declare import REGISTRY, Declared
from metastable.model.heads import Head, Rotary
from metastable.model.parts import FeedForward, Frozen

FAMILIES = tuple(REGISTRY)
"""Fields of a model that hold a declared variant."""
UNNAMED = {"bias": "alibi"}
"""Kinds that are written without their name: what a table without `kind` means."""
ARRAY = "array"
"""The one key of a table that stands for an array kept elsewhere."""
ARRAYS = "model_array"
"""What the names of arrays that are kept elsewhere begin with; a number follows."""
TEXT_LIMIT = 64
"""Numbers of an array up to which it stands in the text of a stored model, where people can read it."""
PARTS: dict[str, type[FeedForward] | type[Frozen]] = {"feedforward": FeedForward, "frozen": Frozen}


Write = Callable[[np.ndarray], Any]
"""What an array is written as: nested lists, unless somebody keeps arrays elsewhere."""


def _plain(value: Any, write: Write = np.ndarray.tolist) -> Any:
    """Arrays, tuples and numbers as plain Python values."""
    if isinstance(value, np.ndarray):
        return write(value)
    if isinstance(value, (tuple, list)):
        return [_plain(item, write) for item in value]
    if isinstance(value, Rotary):
        return _table(value, write)
    if callable(value):
        raise ModelError(
            "a mask that is given by a function cannot be written; write it out for a number of tokens: model.for_tokens(n)"
        )
    return value


def _table(part: Any, write: Write = np.ndarray.tolist) -> dict[str, Any]:
    """A dataclass as a table of its fields that differ from their default."""
    table: dict[str, Any] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        default = field.default
        if value is None or (default is not MISSING and not isinstance(value, np.ndarray) and value == default):
            continue
        table[field.name] = _plain(value, write)
    return table


def variant(part: Any, write: Write = np.ndarray.tolist) -> dict[str, Any] | str:
    """A declared variant as a table with its `kind`; kinds of weights without fields are their name."""
    table = _table(part, write)
    if part.family == "weights" and not table:
        return part.kind
    return table if part.kind == UNNAMED.get(part.family) else {"kind": part.kind, **table}


def to_dict(model: Attention, write: Write = np.ndarray.tolist) -> dict[str, Any]:
    """`model` as a dictionary of plain Python values; its arrays as `write` writes them."""
    table = {
        field.name: _plain(getattr(model, field.name), write)
        for field in fields(model)
        if field.name not in ("heads", *FAMILIES, *PARTS)
        and not (field.default is not MISSING and getattr(model, field.name) is field.default)
        and not (isinstance(field.default, (int, float, str)) and getattr(model, field.name) == field.default)
    }
    for field in fields(model):
        part = getattr(model, field.name)
        if field.name in FAMILIES and part is not None and part != field.default:
            table[field.name] = part if isinstance(part, str) else variant(part, write)
        if field.name in PARTS and part is not None:
            table[field.name] = _table(part, write)
    if model.heads is not None:
        # `beta` is always written: a head without it reads as an accident.
        table["heads"] = [{**_table(head, write), "beta": head.beta} for head in model.heads]
    return table


def _build(cls: type, data: Any, where: str) -> Any:
    """Make a dataclass from a table, refusing unknown and missing fields by name."""
    if not isinstance(data, dict):
        raise ModelError(f"{where} must be a table, not {data!r}")
    error = VariantError if Declared in cls.__mro__ else ModelError
    known = [field.name for field in fields(cls)]
    unknown = [name for name in data if name not in known]
    if unknown:
        raise error(f"{where} has no field {unknown[0]!r}; its fields are: {', '.join(known) or 'none'}")
    required = [field.name for field in fields(cls) if field.default is MISSING]
    missing = [name for name in required if name not in data]
    if missing:
        raise error(f"{where} needs the field {missing[0]!r}")
    return cls(**data)


def build_variant(family: str, data: Any) -> Any:
    """The variant that a table with a `kind` (or a bare name) describes."""
    kinds = REGISTRY[family]
    if isinstance(data, str):
        data = {"kind": data}
    kind = data.get("kind", UNNAMED.get(family)) if isinstance(data, dict) else data
    if not isinstance(data, dict) or not isinstance(kind, str) or kind not in kinds:
        raise VariantError(
            f"{family}: unknown kind {kind!r}; known kinds are: {', '.join(kinds)}, and those of your own once the module that defines "
            "them is imported"
        )
    rest = {name: value for name, value in data.items() if name != "kind"}
    return _build(kinds[kind], rest, f"{family} {kind!r}")


def _head(data: Any, where: str) -> Head:
    """A head from its table."""
    if isinstance(data, dict) and data.get("rotary") is not None:
        data = {**data, "rotary": _build(Rotary, data["rotary"], f"{where}.rotary")}
    return _build(Head, data, where)


def from_dict(data: Any) -> Attention:
    """The model that `to_dict` described."""
    if not isinstance(data, dict):
        raise ModelError(f"a model must be a table of fields, not {data!r}")
    data = dict(data)
    try:
        for family in FAMILIES:
            if data.get(family) is not None:
                data[family] = build_variant(family, data[family])
        for name, cls in PARTS.items():
            if data.get(name) is not None:
                data[name] = _build(cls, data[name], name)
        if data.get("heads") is not None:
            if not isinstance(data["heads"], (list, tuple)):
                raise ModelError(f"heads must be a list of tables, not {data['heads']!r}")
            data["heads"] = tuple(_head(head, f"heads[{i}]") for i, head in enumerate(data["heads"]))
        return _build(Attention, data, "a model")
    except TypeError as reason:
        raise InvalidInputError(f"a model cannot be made from this: {reason}") from None


# ------------------------------------------------------------------------------------------- arrays beside the text


def to_text(models: Attention | Sequence[Attention], tokens: int) -> tuple[str, dict[str, np.ndarray]]:
    """One model, or several, as JSON, and their larger arrays by name (equal ones once): what a store of a run keeps.

    Masks that are given by a function are written as the matrix of this length.
    """
    arrays: dict[str, np.ndarray] = {}
    names: dict[tuple, str] = {}

    def write(array: np.ndarray) -> Any:
        if array.size <= TEXT_LIMIT:
            return array.tolist()
        key = (array.shape, array.dtype.str, hashlib.blake2b(np.ascontiguousarray(array).tobytes()).digest())
        name = names.setdefault(key, f"{ARRAYS}{len(names)}")
        arrays[name] = array
        return {ARRAY: name}

    if isinstance(models, Attention):
        return json.dumps(to_dict(models.for_tokens(tokens), write)), arrays
    return json.dumps([to_dict(model.for_tokens(tokens), write) for model in models]), arrays


def is_array(name: str) -> bool:
    """True for the name of an array that `to_text` keeps beside the text."""
    return name.startswith(ARRAYS) and name.removeprefix(ARRAYS).isdigit()


def from_text(text: str, array: Callable[[str], np.ndarray]) -> tuple[Attention, ...]:
    """The models that `to_text` wrote; `array` gives an array by its name."""
    data = _with_arrays(json.loads(text), array)
    return tuple(from_dict(item) for item in (data if isinstance(data, list) else [data]))


def _with_arrays(data: Any, array: Callable[[str], np.ndarray]) -> Any:
    """Tables with the arrays in their places."""
    if isinstance(data, dict):
        if set(data) == {ARRAY}:
            return array(data[ARRAY])
        return {name: _with_arrays(item, array) for name, item in data.items()}
    # Lists of numbers hold no tables.
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return [_with_arrays(item, array) for item in data]
    return data
