"""Where the tokens of a page begin: a distribution of `metastable.starts`, and what was changed in it by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metastable import _checks, sphere, starts
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, TokenError
from metastable.explorer import limits


def _kind(kind: str, label: str, *fields: tuple[str, str, str, float]) -> dict[str, Any]:
    names = ("name", "label", "symbol", "suggestion")
    return {"kind": kind, "label": label, "fields": [dict(zip(names, entry)) for entry in fields]}


STARTS = [
    _kind("uniform", "uniform"),
    _kind("equally_spaced", "evenly spaced"),
    _kind("von_mises_fisher", "around one point", ("concentration", "tightness", "κ", 4.0)),
    _kind("mixture", "several topics", ("centers", "topics", "m", 5), ("concentration", "tightness", "κ", 30.0)),
    _kind("correlated", "alike", ("correlation", "correlation", "ρ", 0.5)),
    _kind("chain", "a chain: like the one before", ("correlation", "correlation", "ρ", 0.95)),
]
"""What a page offers, in the form of `model.declare.catalogue`: functions of `metastable.starts` and their numbers."""
FIELDS = {item["kind"]: tuple(entry["name"] for entry in item["fields"]) for item in STARTS}
COUNTS = ("centers",)
"""Parameters that are whole numbers."""


def only(data: Any, allowed: tuple[str, ...], where: str) -> dict[str, Any]:
    """`data` as a table with no other keys than `allowed`."""
    if not isinstance(data, dict):
        raise InvalidInputError(f"{where} must be a table of fields, not {type(data).__name__}")
    unknown = [key for key in data if key not in allowed]
    if unknown:
        raise InvalidInputError(f"{where} has no field {unknown[0]!r:.60}; its fields are: {', '.join(allowed)}")
    return data


@dataclass(frozen=True)
class Start:
    """Tokens of a seed, some moved by hand (`placed`: index -> position), some appended behind them, some taken out (`removed`).

    Indices count the drawn tokens and the appended ones, before anything is taken out. `kind` and its `numbers` are a function of
    `metastable.starts`.
    """

    tokens: int
    seed: int = 0
    placed: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    appended: tuple[tuple[float, ...], ...] = ()
    removed: tuple[int, ...] = ()
    kind: str = "uniform"
    numbers: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def from_dict(data: Any, dim: int) -> Start:
        if not isinstance(data, dict):
            raise InvalidInputError(f"start must be a table of fields, not {type(data).__name__}")
        kind = _checks.choice(data.get("kind", "uniform"), "start.kind", tuple(FIELDS))
        own = ("tokens", "seed", "placed", "appended", "removed", "kind")
        table = only(data, (*own, *FIELDS[kind]), "start")
        count = _checks.count(table.get("tokens"), "the number of tokens")
        limits.check_size(count, dim)
        seed = _checks.count(table.get("seed", 0), "seed", 0, 2**32 - 1)
        lists = {name: table.get(name, []) for name in ("appended", "placed", "removed")}
        for name, items in lists.items():
            if not isinstance(items, list) or len(items) > limits.MAX_APPENDED:
                raise limits.LimitError(f"start.{name} must be a list of at most {limits.MAX_APPENDED} tokens")
        limits.check_size(count + len(lists["appended"]), dim)
        behind = tuple(
            _position(item, dim, f"appended token {number}") for number, item in enumerate(lists["appended"])
        )
        total = count + len(behind)
        moved: dict[int, tuple[float, ...]] = {}
        for item in lists["placed"]:
            if not isinstance(item, list) or len(item) != 2:
                raise TokenError("start.placed must hold pairs [index, position]")
            index = _checks.count(item[0], "the index of a moved token", 0, total - 1)
            moved[index] = _position(item[1], dim, f"token {index + 1}")
        out = {
            _checks.count(item, "the index of a token that was taken out", 0, total - 1) for item in lists["removed"]
        }
        if len(out) >= total:
            raise TokenError("every token was taken out; at least one must stay")
        numbers = {name: _number(table.get(name), name, count) for name in FIELDS[kind]}
        start = Start(count, seed, moved, behind, tuple(sorted(out)), kind, numbers)
        if kind != "uniform":
            start.positions(dim)  # whatever the distribution refuses is refused here
        return start

    def to_dict(self) -> dict[str, Any]:
        table: dict[str, Any] = {"tokens": self.tokens, "seed": self.seed}
        if self.kind != "uniform":
            table |= {"kind": self.kind, **self.numbers}
        if self.placed:
            table["placed"] = [[index, list(position)] for index, position in self.placed.items()]
        if self.appended:
            table["appended"] = [list(position) for position in self.appended]
        if self.removed:
            table["removed"] = list(self.removed)
        return table

    @property
    def total(self) -> int:
        """Tokens in all."""
        return self.tokens + len(self.appended) - len(self.removed)

    @property
    def indices(self) -> np.ndarray:
        """The index of each token, by which it is known whatever else is taken out, shape (total,)."""
        return np.setdiff1d(np.arange(self.tokens + len(self.appended)), self.removed)

    @property
    def by_hand(self) -> bool:
        """True where the tokens are not just a draw."""
        return bool(self.placed or self.appended or self.removed)

    def draw(self, dim: int) -> FloatArray:
        """The tokens before anything was changed by hand, shape (tokens, dim)."""
        if self.kind == "uniform":
            return sphere.uniform(self.tokens, dim=dim, seed=self.seed)
        return getattr(starts, self.kind)(self.tokens, dim=dim, seed=self.seed, **self.numbers)

    def positions(self, dim: int) -> FloatArray:
        """The tokens at depth 0, shape (total, dim)."""
        x = self.draw(dim)
        if self.appended:
            x = np.concatenate([x, sphere.normalize(np.array(self.appended))])
        for index, position in self.placed.items():
            x[index] = sphere.normalize(np.array(position))
        return np.delete(x, self.removed, axis=0) if self.removed else x


def _number(value: Any, name: str, tokens: int) -> float:
    if name in COUNTS:
        return _checks.count(value, name, 1, tokens)
    return _checks.number(value, name, -1e6, 1e6)


def _position(value: Any, dim: int, name: str) -> tuple[float, ...]:
    """A direction given by hand: any non-zero vector."""
    if not isinstance(value, list) or len(value) != dim:
        raise TokenError(f"{name} must be a list of {dim} numbers")
    vector = _checks.vector(value, name, dim, error=TokenError)
    if not 1e-6 < np.abs(vector).max() < 1e6:
        raise TokenError(f"{name} must be a direction, not (nearly) zero or huge: {value}")
    return tuple(float(number) for number in vector)
