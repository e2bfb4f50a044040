"""The methods by name, and what `simulate`, `ensemble` and sweeps ask of them before any work starts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, NumericalRangeError, TimeError, UnsupportedError
from metastable.kernels import select
from metastable.model import Attention

METHODS = ("auto", "tsit5", "rodas", "layers", "sde")
FIXED_STEP = ("layers", "sde")
"""Methods that take a step."""
SDE_STEP = 0.01
"""Default step of `method="sde"`; halved until sigma^2 (d-1) step is at most `SDE_FORGETTING`."""
SDE_FORGETTING = 1.0
"""sigma^2 (d-1) step up to which the default step goes: the answer to a constant drift is then off by at most 1 %."""
SDE_FORGETTING_LIMIT = 2.0
"""sigma^2 (d-1) step beyond which a step is refused: the answer to a constant drift would be off by more than 4 %."""


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


def check_engine(method: str, engine: str) -> None:
    """Long horizons are made by compiled code only."""
    if method == "rodas" and engine not in ("auto", "cpu"):
        raise UnsupportedError(f"long horizons (method='rodas') run on engine='cpu', not {engine!r}; use engine='auto'")


def check_step(step: float | None, method: str, model: Attention) -> float:
    """The step of a fixed-step method; 0 for the others, which choose their own."""
    if method not in FIXED_STEP:
        if step is not None:
            raise InvalidInputError(f"method={method!r} chooses its own steps; leave step out (or use method='layers')")
        return 0.0
    if step is not None:
        step = _checks.number(step, "step", 0.0, strict=True)
        if method == "sde":
            _check_forgetting(model, step)
        return step
    if method == "layers":
        raise InvalidInputError("method='layers' needs step=, for example step=0.1")
    return default_sde_step(model)


def _forgetting_rate(model: Attention) -> float:
    """sigma^2 (d-1), twice the rate at which noise forgets a direction; 0 without a drift, which leaves nothing to be split."""
    still = all(head.value is not None and not head.value.any() for head in model.all_heads)
    if still and model.feedforward is None:
        return 0.0
    rate = model.noise * model.noise * (model.dim - 1)
    if not math.isfinite(rate):
        raise NumericalRangeError(f"noise={model.noise:g} is too large: its square leaves double precision; lower it")
    return rate


def default_sde_step(model: Attention) -> float:
    """0.01, halved until noise and drift can be taken in turns: sigma^2 (d-1) step <= `SDE_FORGETTING`."""
    rate = _forgetting_rate(model)
    if rate * SDE_STEP <= SDE_FORGETTING:
        return SDE_STEP
    return SDE_STEP * 2.0 ** -math.ceil(math.log2(rate * SDE_STEP / SDE_FORGETTING))


def _check_forgetting(model: Attention, step: float) -> None:
    """Refuse a step over which noise forgets what the drift has done."""
    rate = _forgetting_rate(model)
    if rate * step > SDE_FORGETTING_LIMIT:
        x = 0.25 * rate * step
        answer = 2.0 * x * math.exp(-x) / -math.expm1(-2.0 * x)  # x/sinh(x)
        raise InvalidInputError(
            f"step={step:g} is too long for noise={model.noise:g} in dimension {model.dim}: the drift would act with "
            f"{100 * answer:.3g} % of its strength; use step={SDE_FORGETTING_LIMIT / rate:.3g} or less, or leave it out"
        )


def whole_steps(times: FloatArray, step: float, method: str, max_steps: int) -> int:
    """Steps to the last of `times`, after checking that all of them are different whole numbers of steps and not too many."""
    with np.errstate(over="ignore"):
        count = times / step
    if count[-1] > max_steps + 0.5:
        raise TimeError(
            f"method={method!r} would take {count[-1]:.6g} steps of {step:g} to t = {times[-1]:g}, more than "
            f"max_steps={max_steps}; raise max_steps, or change step or until"
        )
    whole = np.rint(count)
    off = np.abs(count - whole) > 1e-6 * np.maximum(1.0, count)
    off |= (whole == 0) & (times > 0)
    if off.any():
        raise TimeError(
            f"method={method!r} moves in steps of {step:g}, and {times[off][0]:g} is not one of its multiples; "
            "change step, until or times"
        )
    same = np.flatnonzero(np.diff(whole) == 0)
    if same.size:
        raise TimeError(
            f"method={method!r} moves in steps of {step:g}, and {times[same[0]]:.17g} and {times[same[0] + 1]:.17g} are the same step; "
            "leave one of them out"
        )
    return int(whole[-1])


class Solver(NamedTuple):
    """A method for the members of an ensemble with its engine and its control, checked against the model."""

    method: str
    choice: select.Choice
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
    _checks.choice(engine, "engine", select.ENGINES)
    method = _resolve(model, tokens, _checks.choice(method, "method", METHODS), horizon, engine)
    size = check_step(step, method, model)
    max_steps = _checks.count(max_steps, "max_steps")
    if method in FIXED_STEP:
        whole_steps(times, size, method, max_steps)
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
    control = _checks.tolerance(rtol), _checks.number(atol, "atol", 0.0), size, max_steps
    return Solver(method, choice, *control)


def _resolve(model: Attention, tokens: int, method: str, horizon: float, engine: str) -> str:
    from metastable.integrate import auto, rodas

    if method == "auto":
        if model.noise > 0:
            return "sde"
        long = horizon > select.LONG_HORIZON and engine in ("auto", "cpu")  # the others have one adaptive method: tsit5
        return "rodas" if long and auto.implicit_refusal(model, tokens, horizon, settled=False) is None else "tsit5"
    check_noise(model, method)
    check_engine(method, engine)
    if method == "rodas":
        reason = rodas.refusal(model, tokens)
        if reason is not None:
            raise UnsupportedError(reason)
        rodas.check_range(model)
    return method
