"""Axes of a grid: lists, ranges, log ranges, families of matrices, and bundles of several fields that vary together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable import _checks
from metastable.errors import SweepError
from metastable.sweep import families, own

RESERVED = ("time", "member", "statistic", "token", "coord", "quantile", "head", "task_status")
"""Names of dims of the results, which no axis may take."""
LONGEST = 1_000_000
"""Most values of one axis."""


@dataclass(frozen=True)
class Axis:
    """One axis of the grid: its `values` as they enter the model, and their `labels` as coordinates of the results."""

    name: str
    values: tuple[Any, ...]
    labels: tuple[float, ...] | tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def numeric(self) -> bool:
        """True when the labels are numbers."""
        return not isinstance(self.labels[0], str)


def axis(name: str, description: Any) -> Axis:
    """The axis `name` from its entry in the grid."""
    where = f"grid.{name}"
    if not name.isidentifier() or name in RESERVED:
        raise SweepError(f"{where}: an axis needs the name of a field or of its own (letters), not {name!r}")
    values = expand(description, where)
    labels = _labels(name, values)
    seen: dict[Any, int] = {}
    for place, label in enumerate(labels):
        if label in seen:
            raise SweepError(
                f"{where}: entries {seen[label]} and {place} are both called {label!r}; drop one or give it another label"
            )
        seen[label] = place
    return Axis(name, values, labels)


def expand(description: Any, where: str) -> tuple[Any, ...]:
    """The values of `[...]`, `{range = [first, last], count = n}` (or `step`), `{log_range = [first, last], count = n}`."""
    if isinstance(description, Mapping):
        values = _range(dict(description), where)
    elif isinstance(description, (list, tuple, range, np.ndarray)):
        values = tuple(plain(item) for item in description)
    else:
        raise SweepError(
            f"{where} must be a list or a range such as {{range = [0, 10], count = 11}}, not {description!r}"
        )
    if not values:
        raise SweepError(f"{where} is empty; give at least one value")
    if len(values) > LONGEST:
        raise SweepError(f"{where} has {len(values)} values; the most is {LONGEST}")
    return values


def plain(value: Any) -> Any:
    """NumPy values as Python ones, sequences as lists, tables as dictionaries: what TOML and JSON can hold."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [plain(item) for item in value]
    return value


def _range(table: dict[str, Any], where: str) -> tuple[Any, ...]:
    kinds = [kind for kind in ("range", "log_range") if kind in table]
    if len(kinds) != 1 or not set(table) <= {kinds[0], "count", "step", "integer"}:
        raise SweepError(
            f"{where}: a range is {{range = [first, last], count = n}}, {{range = [first, last], step = s}} or "
            f"{{log_range = [first, last], count = n}} (integer = true rounds to whole numbers), not {table}"
        )
    ends = table[kinds[0]]
    if not isinstance(ends, Sequence) or isinstance(ends, str) or len(ends) != 2:
        raise SweepError(f"{where}: {kinds[0]} must be [first, last], not {ends!r}")
    first, last = (_checks.number(end, f"{where}.{kinds[0]}", error=SweepError) for end in ends)
    if last < first or ("step" in table) == ("count" in table):
        raise SweepError(f"{where}: a range runs from a smaller to a larger number, with either count or step")
    if kinds[0] == "log_range":
        if first <= 0 or "step" in table:
            raise SweepError(f"{where}: log_range needs positive ends and a count")
        values = np.geomspace(first, last, _count(table, where, first, last))
    elif "step" in table:
        step = _checks.number(table["step"], f"{where}.step", 0.0, strict=True, error=SweepError)
        # Half a step of slack, so that 0..1 in steps of 0.1 has eleven values whatever the rounding.
        size = (last - first) / step + 0.5
        values = first + step * np.arange(_checks.count(int(size) + 1, where, 1, LONGEST, error=SweepError))
        whole = all(isinstance(number, int) for number in (*ends, table["step"]))
        return tuple(int(v) for v in values) if whole or table.get("integer") else tuple(tidy(float(v)) for v in values)
    else:
        values = np.linspace(first, last, _count(table, where, first, last))
    if table.get("integer"):
        return tuple(dict.fromkeys(round(v) for v in values.tolist()))
    return tuple(tidy(v) for v in values.tolist())


def tidy(value: float) -> float:
    """`value` to twelve digits: 8.0 instead of 7.999999999999999, so that results can be looked up by the number meant."""
    return float(f"{value:.12g}")


def _count(table: Mapping[str, Any], where: str, first: float, last: float) -> int:
    count = _checks.count(table["count"], f"{where}.count", 1, LONGEST, error=SweepError)
    if count == 1 and first != last and not own.reads_stored():
        raise SweepError(
            f"{where}: count = 1 would leave {last:g} out of a range from {first:g} to {last:g}; say count = 2 or more, or [{first:g}] "
            "(a sweep that was begun with it then goes on with --extend)"
        )
    return count


def _labels(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """Coordinates of an axis: numbers where all values are numbers, short names otherwise."""
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return tuple(values) if all(isinstance(v, int) for v in values) else tuple(float(v) for v in values)
    return tuple(_label(name, value, place) for place, value in enumerate(values))


def _label(name: str, value: Any, place: int) -> str:
    if isinstance(value, dict) and "label" in value:
        return str(value["label"])
    if name in families.FIELDS and families.is_family(value):
        return families.label(value)
    if isinstance(value, dict) and "kind" in value:
        rest = [f"{v:g}" if isinstance(v, float) else str(v) for k, v in value.items() if k != "kind"]
        return f"{value['kind']}({', '.join(rest)})" if rest else str(value["kind"])
    if isinstance(value, dict):
        return ", ".join(f"{k} = {v if not isinstance(v, dict) else json.dumps(v)}" for k, v in value.items())
    if isinstance(value, list):
        return f"{name}_{place}"
    return str(value)
