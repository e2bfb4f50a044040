"""Models in one line, and small tables for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from html import escape
from typing import Any

import numpy as np

LONGEST = 8
"""Numbers of a vector that are shown."""


def short(value: Any) -> str:
    """A value in one line: matrices by shape (`diag(1, 0.5)` where they are), short vectors by their numbers."""
    if not isinstance(value, np.ndarray):
        if isinstance(value, tuple) and len(value) > 2 and hasattr(value[0], "__dataclass_fields__"):
            return f"({short(value[0])}, ... {len(value)} in all)"
        return repr(value)
    if value.ndim == 2 and value.shape[0] == value.shape[1] <= LONGEST and value.dtype.kind == "f":
        diagonal = np.diag(value)
        if np.array_equal(value, np.diag(diagonal)):
            return f"diag({', '.join(f'{number:g}' for number in diagonal)})"
    if value.ndim == 1 and value.size <= LONGEST:
        return f"[{', '.join(f'{number:g}' for number in value)}]"
    return f"<array {' x '.join(str(size) for size in value.shape)}>"


def one_line(item: Any) -> str:
    """A dataclass by the fields that differ from their defaults, each in one line.

    >>> from metastable.model import Attention
    >>> Attention(dim=3, beta=9.0, value=[[1, 0, 0], [0, 0.5, 0], [0, 0, -1]])
    Attention(dim=3, beta=9.0, value=diag(1, 0.5, -1))
    """
    shown = []
    for field in fields(item):
        value = getattr(item, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if default is MISSING or isinstance(value, np.ndarray) or value != default:
            shown.append(f"{field.name}={short(value)}")
    return f"{type(item).__name__}({', '.join(shown)})"


def table(title: str, facts: Mapping[str, str]) -> str:
    """A heading and two columns as HTML, empty entries left out, everything escaped."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in facts.items()
        if text
    )
    return f"<div><strong>{escape(title)}</strong><table>{rows}</table></div>"
