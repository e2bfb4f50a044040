"""The methods by name, and what `simulate` and `ensemble` both ask of them before any work starts."""

from __future__ import annotations

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, TimeError, UnsupportedError
from metastable.model import Attention

METHODS = ("auto", "tsit5", "rodas", "layers", "sde")
FIXED_STEP = ("layers", "sde")
"""Methods that take a step."""
SDE_STEP = 0.01
"""Default step of `method="sde"`."""


def check_noise(model: Attention, method: str) -> None:
    """Only `sde` has noise."""
    if model.noise > 0 and method != "sde":
        raise UnsupportedError(
            f"method={method!r} has no noise (the model has noise={model.noise:g}); use method='sde'"
        )


def engine_for(method: str, engine: str) -> str:
    """`engine`, or the one that a method insists on."""
    if method != "layers":
        return engine
    if engine not in ("auto", "reference"):
        raise UnsupportedError(f"method='layers' runs on engine='reference', not {engine!r}; use engine='auto'")
    return "reference"


def check_step(step: float | None, method: str) -> float:
    """The step of a fixed-step method; 0 for the others, which choose their own."""
    if method not in FIXED_STEP:
        if step is not None:
            raise InvalidInputError(f"method={method!r} chooses its own steps; leave step out (or use method='layers')")
        return 0.0
    if step is not None:
        return _checks.number(step, "step", 0.0, strict=True)
    if method == "layers":
        raise InvalidInputError("method='layers' needs step=, for example step=0.1")
    return SDE_STEP


def whole_steps(times: FloatArray, step: float, method: str) -> int:
    """Steps to the last of `times`, after checking that all of them are whole numbers of steps."""
    count = times / step
    off = np.abs(count - np.rint(count)) > 1e-6 * np.maximum(1.0, count)
    if off.any():
        raise TimeError(
            f"method={method!r} moves in steps of {step:g}, and {times[off][0]:g} is not one of its multiples; "
            "change step, until or times"
        )
    return int(np.rint(count[-1]))
