"""What a run of a flow was asked for, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.checkpoints.flows.field import PARTS
from metastable.checkpoints.flows.nulls import NULLS
from metastable.checkpoints.flows.solve import spread_times, step_numbers
from metastable.errors import InvalidInputError, TimeError

SAVED = 100
"""States kept by default when a layer is looped (and the start); a stack keeps every layer."""
OFF_GRID = 1e-6
"""Fraction of a step by which a time may miss the grid of fixed steps."""
RTOL = 1e-3
"""Error per adaptive step, relative to each token's length, unless something else is asked for."""
FLOAT32_RTOL = 1e-6
"""Tolerances below this ask for more than a float32 model can resolve."""


LISTED = 8
"""Layers that a description lists one by one."""
LARGEST_STEP_NUMBER = 2**53
"""Beyond this the number of a step is not exact in double precision."""


@dataclass(frozen=True)
class Wish:
    """What `Flow.run` was asked for, unchecked; its arguments say what each means."""

    parts: Any = "all"
    layers: Any = None
    layer: Any = None
    until: Any = None
    step: Any = None
    substeps: Any = None
    times: Any = None
    temperature: Any = 1.0
    permute: Any = None
    project: Any = None
    null: Any = None
    seed: Any = 0
    middle: Any = False
    rtol: Any = RTOL
    max_steps: Any = 100_000


@dataclass(frozen=True)
class Plan:
    """One run: which layers, for how long, in which steps, kept when. `step` None: adaptive."""

    layers: tuple[int, ...]
    parts: str
    until: float
    step: float | None
    times: FloatArray
    rtol: float
    temperature: float
    permute: int | None
    project: str | None
    null: str | None
    seed: int
    middle: bool
    max_steps: int

    @property
    def method(self) -> str:
        """ "layers", "euler" or "tsit5"."""
        return "tsit5" if self.step is None else "layers" if self.step == 1.0 else "euler"

    @property
    def steps(self) -> int:
        """Number of fixed steps."""
        return 0 if self.step is None else round(self.until / self.step)

    @property
    def wanted(self) -> set[int]:
        """Numbers of the steps whose ends are kept."""
        return set() if self.step is None else step_numbers(self.times, self.step)[0]

    def layer_of(self, number: int) -> int:
        """Which of the chosen layers moves the tokens in step `number`."""
        return int(number * (self.step or 1.0) + OFF_GRID) % len(self.layers)

    def describe(self) -> str:
        """One line: what was run."""
        changes = [
            name_layers(self.layers),
            {"all": "all parts", "attention": "attention only", "mlp": "feed-forward only"}[self.parts],
        ]
        if self.temperature != 1.0:
            changes.append(f"temperature {self.temperature:g}")
        if self.permute is not None:
            changes.append(f"order permuted ({self.permute})")
        if self.project is not None:
            changes.append("on the sphere")
        if self.null is not None:
            changes.append(f"null: {self.null} ({self.seed})")
        return ", ".join(changes)


def name_layers(layers: Sequence[int]) -> str:
    """Layers in words: "layer 3", "layers 0 to 5" where none is missing and they are in order, else "layers 0, 5" (a few of many)."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if list(layers) == list(range(layers[0], layers[0] + len(layers))):
        return f"layers {layers[0]} to {layers[-1]}"
    shown = [str(layer) for layer in layers]
    return "layers " + ", ".join(shown if len(shown) <= LISTED else [*shown[: LISTED - 2], "...", shown[-1]])


def check_layers(layer: Any, layers: Any, depth: int) -> tuple[int, ...]:
    """The chosen layers, counted from 0, from `layer=` or `layers=` (a range, a slice or a list; None: all)."""
    if layer is not None and layers is not None:
        raise InvalidInputError("give layer= (one) or layers= (several), not both")
    if layer is not None:
        layers = [layer]
    if layers is None:
        return tuple(range(depth))
    if isinstance(layers, slice):
        try:
            layers = range(depth)[layers]
        except (TypeError, ValueError) as reason:
            raise InvalidInputError(f"layers={layers!r} is not a slice of whole numbers: {reason}") from None
    if isinstance(layers, (str, bytes)) or not isinstance(layers, (Sequence, np.ndarray)):
        raise InvalidInputError(f"layers must be a range, a slice or a list of layer numbers, not {layers!r}")
    chosen = []
    for item in layers:
        number = _checks.count(item, "layer", minimum=-depth)
        if number >= depth:
            raise InvalidInputError(f"layer {number} does not exist: the model has layers 0 to {depth - 1}")
        chosen.append(number % depth)
    if not chosen:
        raise InvalidInputError("layers holds no layer")
    return tuple(chosen)


def _step(step: Any, substeps: Any, looped: bool, layers: int) -> float | None:
    """Length of fixed steps, or None for adaptive ones."""
    if step is not None and substeps is not None:
        raise InvalidInputError("give step= or substeps= (step = 1/substeps), not both")
    if substeps is not None:
        return 1.0 / _checks.count(substeps, "substeps", 1, LARGEST_STEP_NUMBER)
    if step is None:
        return None if looped and layers == 1 else 1.0
    if isinstance(step, str):
        _checks.choice(step, "step", ("adaptive",))
        if layers > 1:
            raise InvalidInputError(
                f"step='adaptive' is for one looped layer, and {layers} are chosen; give layer=, or substeps= for several"
            )
        return None
    length = _checks.number(step, "step", 0.0, strict=True, error=TimeError)
    if 1.0 / length > LARGEST_STEP_NUMBER:
        raise TimeError(f"step={length:g} is too short to be counted; use {1.0 / LARGEST_STEP_NUMBER:.1g} or more")
    if layers > 1 and abs(round(1.0 / length) * length - 1.0) > OFF_GRID:
        raise TimeError(f"with several layers a layer must end on a step: step={length:g} is not 1/k; use substeps=k")
    return length


def _kept_times(wish: Wish, horizon: float, length: float | None, layers: int) -> FloatArray:
    """When states are kept."""
    if wish.times is None:
        if wish.until is None and length is not None:
            return np.arange(layers + 1, dtype=np.float64)
        return spread_times(horizon, length, SAVED)
    kept = _checks.output_times(wish.times)
    if kept[-1] > horizon * (1 + 1e-12):
        raise TimeError(f"times go to {kept[-1]:g}, but the run ends at {horizon:g}")
    if length is not None and step_numbers(kept, length)[1] > OFF_GRID:
        raise TimeError(f"times must be ends of steps, multiples of {length:g}")
    return kept


def check_plan(depth: int, wish: Wish, *, single_precision: bool) -> Plan:
    """The plan for a wish; raises before any work."""
    _checks.choice(wish.parts, "parts", PARTS)
    chosen = check_layers(wish.layer, wish.layers, depth)
    length = _step(wish.step, wish.substeps, wish.until is not None, len(chosen))
    horizon = float(len(chosen)) if wish.until is None else _checks.horizon(wish.until)
    if wish.project is not None:
        _checks.choice(wish.project, "project", ("sphere",))
    if wish.null is not None:
        _checks.choice(wish.null, "null", NULLS)
    if length is not None and horizon / length > LARGEST_STEP_NUMBER:
        raise TimeError(f"until={horizon:g} is too many steps of {length:g} to be counted; use longer steps")
    if length is not None and step_numbers([horizon], length)[1] > OFF_GRID:
        raise TimeError(f"until={horizon:g} is not a whole number of steps of {length:g}")
    kept = _kept_times(wish, horizon, length, len(chosen))
    middle = _checks.flag(wish.middle, "middle")
    if middle and (length != 1.0 or wish.times is not None):
        raise InvalidInputError(
            "middle=True is for whole layers (step 1, no substeps) and keeps all of them; leave times= out"
        )
    tolerance = _checks.tolerance(wish.rtol)
    if length is None and single_precision and tolerance < FLOAT32_RTOL:
        raise InvalidInputError(
            f"rtol={tolerance:g} is below what float32 resolves; use 1e-5 or more, or dtype='float64'"
        )
    return Plan(
        layers=chosen,
        parts=wish.parts,
        until=horizon,
        step=length,
        times=kept,
        rtol=tolerance,
        temperature=_checks.number(wish.temperature, "temperature", 0.0, strict=True),
        permute=None if wish.permute is None else _checks.seed(wish.permute, "permute"),
        project=wish.project,
        null=wish.null,
        seed=_checks.seed(wish.seed),
        middle=middle,
        max_steps=_checks.count(wish.max_steps, "max_steps"),
    )
