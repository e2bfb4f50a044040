"""What a page asks for, as checked frozen objects (where the tokens begin: `starting`).

The model travels as the dictionary of `Attention.to_dict`, with three abbreviations for matrices so that links stay short:
`{"eigenvalues": [[re, im], ...]}` (a block diagonal real matrix with that spectrum), `{"gaussian": seed}` (independent standard
normal entries) and `null` (the identity). Everything is checked by `Attention.from_dict` in the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.analysis import center_separation, cluster_radius
from metastable.errors import InvalidInputError, ModelError
from metastable.explorer import limits
from metastable.explorer.starting import Start, only
from metastable.integrate.sde import default_step
from metastable.model import Attention

Projection = Literal["auto", "leading", "principal", "coordinates"]
PROJECTIONS = ("auto", "leading", "principal", "coordinates")
MATRICES = ("query", "key", "value")


@dataclass(frozen=True)
class Clock:
    """How far a run goes and how its moments are spaced; shared by runs that are shown side by side."""

    until: float
    log: bool = False

    @staticmethod
    def from_dict(data: Any) -> Clock:
        table = only(data, ("until", "log"), "clock")
        until = _checks.number(table.get("until"), "the horizon", limits.MIN_UNTIL, limits.MAX_UNTIL)
        log = table.get("log", False)
        if not isinstance(log, bool):
            raise InvalidInputError(f"clock.log must be true or false, not {log!r:.40}")
        return Clock(until, log)

    def to_dict(self) -> dict[str, Any]:
        return {"until": self.until, "log": self.log}

    @property
    def first(self) -> float:
        """The first moment after 0 in log time."""
        return min(0.01, self.until / 100)

    def times(self, step: float | None = None) -> FloatArray:
        """The moments that are shown, from 0 to `until`; whole multiples of `step` where a method has a fixed one."""
        if self.log:
            grid = np.concatenate([[0.0], np.geomspace(self.first, self.until, limits.FRAMES - 1)])
            grid[-1] = self.until
        else:
            grid = np.linspace(0.0, self.until, limits.FRAMES)
        return grid if step is None else np.unique(np.rint(grid / step)) * step


@dataclass(frozen=True)
class Setting:
    """One system to be shown: a model, a start, and how it is looked at.

    `table` keeps the model as it was asked for (abbreviations included), which is what links and the Python code show.
    """

    table: Mapping[str, Any]
    start: Start
    delta: float | None = None
    radius: float | None = None
    projection: Projection = "auto"

    @staticmethod
    def from_dict(data: Any) -> Setting:
        fields = only(data, ("model", "start", "delta", "radius", "projection"), "setting")
        table = fields.get("model")
        if not isinstance(table, dict):
            raise ModelError("setting.model must be a table of fields")
        dim = _checks.count(table.get("dim"), "dim", 2, error=ModelError)
        limits.check_size(1, dim)
        delta, radius = (
            None if fields.get(name) is None else _checks.number(fields[name], name, 0.0, np.pi, strict=False)
            for name in ("delta", "radius")
        )
        for name, number in (("delta", delta), ("radius", radius)):
            if number == 0:
                raise InvalidInputError(f"{name} must be greater than 0")
        projection = _checks.choice(fields.get("projection", "auto"), "projection", PROJECTIONS)
        setting = Setting(dict(table), Start.from_dict(fields.get("start"), dim), delta, radius, projection)  # type: ignore[arg-type]
        setting._check_model()
        return setting

    def _check_model(self) -> None:
        """Build the model (every check of `Attention`), then what only a page limits."""
        frozen = self.table.get("frozen")
        anchors = frozen.get("tokens") if isinstance(frozen, dict) else None
        if isinstance(anchors, list) and len(anchors) > limits.MAX_FROZEN:
            raise limits.LimitError(f"the explorer shows up to {limits.MAX_FROZEN} frozen tokens")
        model = self.model
        hottest = max((head.beta for head in model.all_heads), key=abs)
        if abs(hottest) > limits.MAX_BETA:
            raise limits.LimitError(f"the explorer goes up to beta = {limits.MAX_BETA:g}, not {hottest:g}")
        model.check_count(self.start.total)

    def to_dict(self) -> dict[str, Any]:
        table: dict[str, Any] = {"model": dict(self.table), "start": self.start.to_dict()}
        for name in ("delta", "radius"):
            if getattr(self, name) is not None:
                table[name] = getattr(self, name)
        if self.projection != "auto":
            table["projection"] = self.projection
        return table

    @cached_property
    def model(self) -> Attention:
        """The model, with the abbreviations written out."""
        plain = _written_out(self.table, int(self.table["dim"]))
        if isinstance(plain.get("heads"), list):
            plain["heads"] = [
                _written_out(head, int(plain["dim"])) if isinstance(head, dict) else head for head in plain["heads"]
            ]
        return Attention.from_dict(plain)

    @property
    def beta(self) -> float:
        """The largest inverse temperature of the heads: it sets the length scale."""
        return max(head.beta for head in self.model.all_heads)

    @property
    def separation(self) -> float:
        """delta of the Renyi centers."""
        return center_separation(self.model) if self.delta is None else self.delta

    @property
    def cluster_radius(self) -> float:
        """Tokens linked closer than this are one cluster."""
        return cluster_radius(self.model) if self.radius is None else self.radius

    @cached_property
    def positions(self) -> FloatArray:
        """The tokens at depth 0, shape (tokens, dim)."""
        return self.start.positions(self.model.dim)

    @property
    def step(self) -> float | None:
        """The fixed step of a run with noise; None for the adaptive methods."""
        return default_step(self.model) if self.model.noise > 0 else None

    def check_clock(self, clock: Clock) -> None:
        """Refuse what only this combination of model and horizon makes impossible."""
        if self.step is None:
            return
        longest = limits.MAX_NOISE_STEPS * self.step
        if not self.step <= clock.until <= longest:
            raise limits.HorizonError(
                f"with noise the explorer takes steps of {self.step:g} up to t = {longest:g}, not to t = {clock.until:g}",
                min(max(clock.until, self.step), longest),
            )

    def key(self, clock: Clock) -> str:
        """What a run of this setting is known by: everything that changes it, and nothing that only changes its picture."""
        return json.dumps([dict(self.table), self.start.to_dict(), clock.to_dict()], sort_keys=True)

    def times(self, clock: Clock) -> FloatArray:
        """The moments of a run of this setting."""
        return clock.times(self.step)

    def options(self, clock: Clock) -> dict[str, Any]:
        """The keyword arguments of `metastable.simulate` (besides model and start): the one place that decides them."""
        allowed = limits.steps_allowed(self.start.total, self.model.width)
        if self.step is None:
            return {"until": clock.until, "max_steps": allowed}
        return {"times": self.times(clock), "seed": self.start.seed, "max_steps": limits.MAX_NOISE_STEPS}


def _written_out(table: Mapping[str, Any], dim: int) -> dict[str, Any]:
    """A model or a head with whole matrices instead of abbreviations."""
    plain = dict(table)
    for name in MATRICES:
        if isinstance(plain.get(name), dict):
            plain[name] = matrix_from(plain[name], dim, name).tolist()
    return {name: value for name, value in plain.items() if value is not None}


def matrix_from(table: dict[str, Any], dim: int, name: str) -> FloatArray:
    """The matrix that an abbreviation stands for."""
    if set(table) == {"gaussian"}:
        seed = _checks.count(table["gaussian"], f"{name}.gaussian (a seed)", 0, 2**32 - 1, error=ModelError)
        return np.random.default_rng(seed).standard_normal((dim, dim))
    if set(table) == {"eigenvalues"}:
        return from_eigenvalues(table["eigenvalues"], dim, name)
    raise ModelError(
        f"{name} must be a matrix, null, {{'eigenvalues': [[re, im], ...]}} or {{'gaussian': seed}}, "
        f"not a table with {', '.join(map(repr, list(table)[:3])) or 'nothing'}"
    )


def from_eigenvalues(pairs: Any, dim: int, name: str = "value") -> FloatArray:
    """A real matrix (dim, dim) with the given spectrum: its real eigenvalues on the diagonal, in the order given, and one block
    [[a, -b], [b, a]] for each conjugate pair a +- ib, of which only b > 0 is listed or both are.
    """
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ModelError(f"{name}.eigenvalues must be a list of pairs [re, im]")
    if len(pairs) > dim:
        raise ModelError(f"{name} has {len(pairs)} eigenvalues, but the dimension is {dim}")
    numbers = [
        tuple(_checks.number(part, f"an eigenvalue of {name}", -1e6, 1e6, error=ModelError) for part in pair)
        for pair in pairs
    ]
    upper = sorted((re, im) for re, im in numbers if im > 0)
    lower = sorted((re, -im) for re, im in numbers if im < 0)
    if lower and lower != upper:
        raise ModelError(f"the complex eigenvalues of {name} must come in conjugate pairs a + ib, a - ib")
    result = np.zeros((dim, dim))
    row = 0
    for re, im in numbers:
        if im < 0:
            continue
        size = 1 if im == 0 else 2
        if row + size > dim:
            raise ModelError(f"the eigenvalues of {name} need more than {dim} dimensions; a pair takes two")
        result[row : row + size, row : row + size] = [[re]] if size == 1 else [[re, -im], [im, re]]
        row += size
    if row != dim:
        raise ModelError(f"{name} needs {dim} eigenvalues (a conjugate pair counts as two), not {row}")
    return result
