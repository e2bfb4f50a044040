"""The methods by name, and what `simulate`, `ensemble` and sweeps ask of them before any work starts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, TimeError, UnsupportedError
from metastable.integrate.refusals import check_method
from metastable.kernels import select
from metastable.model import Attention

METHODS = ("auto", "tsit5", "rodas", "layers", "sde")
FIXED_STEP = ("layers", "sde")
"""Methods that take a step."""
SDE_STEP = 0.01
"""Default step of `method="sde"`."""


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


class Solver(NamedTuple):
    """A method for the members of an ensemble with its engine and its control, checked against the model."""

    method: str
    choice: select.Backend
    rtol: float
    atol: float
    step: float
    max_steps: int


def check_solver(
    model: Attention,
    tokens: int,
    times: FloatArray,
    *,
    method: str = "auto",
    engine: str = "auto",
    interaction: str = "auto",
    rtol: float = 1e-6,
    atol: float = 1e-9,
    step: float | None = None,
    max_steps: int = 100_000,
    threads: int | None = None,
    members: int = 1,
    dtype: str = "float64",
) -> Solver:
    """The method that "auto" stands for, or the named one if it can do the model; else a named exception."""
    horizon = float(times[-1])
    method = _resolve(model, tokens, _checks.choice(method, "method", METHODS), horizon)
    size = check_step(step, method)
    if method in FIXED_STEP:
        whole_steps(times, size, method)
    choice = select.choose(
        model,
        tokens,
        engine_for(method, engine),
        interaction,
        horizon,
        threads,
        members=members,
        method=method,
        dtype=dtype,
    )
    control = _checks.tolerance(rtol), _checks.number(atol, "atol", 0.0), size, _checks.count(max_steps, "max_steps")
    return Solver(method, choice, *control)


def _resolve(model: Attention, tokens: int, method: str, horizon: float) -> str:
    from metastable.integrate import auto, rodas

    if method == "auto":
        if model.noise > 0:
            return "sde"
        long = horizon > select.LONG_HORIZON
        return "rodas" if long and auto.implicit_refusal(model, tokens, horizon, settled=False) is None else "tsit5"
    check_method(model, method, tokens)
    if method == "rodas":
        rodas.check_range(model)
    return method
