"""Flags of a model, built from its declarations: `--norm ngpt:0.5`, `--mask sink:1,16`, and their help."""

from __future__ import annotations

from typing import Any

from metastable.errors import ModelError
from metastable.model import Attention
from metastable.model.declare import Parameter, kinds, made_of_numbers, parameters


def in_words(declared: Parameter) -> str:
    """'Inverse temperature β, at least 0.'"""
    text = f"{declared.label[:1].upper()}{declared.label[1:]}"
    if declared.symbol:
        text += f" {declared.symbol}"
    if declared.minimum is not None:
        text += f", {'greater than' if declared.strict else 'at least'} {declared.minimum:g}"
    return text


def field_help(name: str) -> str:
    """Help of a field of the model that is a number."""
    return f"{in_words(parameters(Attention)[name])}."


def _flags(family: str) -> dict[str, tuple[str, ...]]:
    """Kind -> names of its numbers, for the kinds that a flag can say: those made of numbers only."""
    return {kind: tuple(parameters(cls)) for kind, cls in kinds(family).items() if made_of_numbers(cls)}


def _written(kind: str, names: tuple[str, ...]) -> str:
    return f"{kind}:{','.join(name.upper() for name in names)}" if names else kind


def variant_help(family: str, first: str = "") -> str:
    """'Who sees whom: causal, full, window:WIDTH, ...'"""
    listed = ", ".join(_written(kind, names) for kind, names in _flags(family).items())
    return f"{first}{listed}."


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def read_variant(family: str, text: str) -> dict[str, Any]:
    """'window:8' as {"kind": "window", "width": 8}; the names of Python do as well ('PreLN')."""
    flags = _flags(family)
    said, _, rest = text.partition(":")
    kind = next((name for name in flags if _plain(name) == _plain(said)), said)
    if kind not in flags:
        raise ModelError(f"--{family} {text!r}: unknown kind {kind!r}; there are {variant_help(family)[:-1]}")
    names = flags[kind]
    parts = rest.split(",") if rest else []
    if len(parts) != len(names):
        raise ModelError(f"--{family} {text!r} should read {_written(kind, names)!r}")
    declared = parameters(kinds(family)[kind])
    try:
        return {"kind": kind, **{name: declared[name].read(part) for name, part in zip(names, parts)}}
    except ValueError:
        raise ModelError(f"--{family} {text!r}: {rest!r} is not made of numbers") from None
