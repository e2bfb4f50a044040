"""Wishes into a `Plan`: checked as a whole, before any work starts, and every "auto" turned into a name."""

from __future__ import annotations

from typing import Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, NumericalRangeError, TimeError, UnsupportedError
from metastable.integrate import rodas, sde
from metastable.integrate.methods import FIXED_STEP, METHODS
from metastable.integrate.plan import (
    SETTLED_HORIZON,
    Accuracy,
    Plan,
    Save,
    Wishes,
    short,
    size_of_value,
    without_settling,
)
from metastable.kernels import reference, select
from metastable.model import Attention

EXPLICIT_ERROR = 1e-9
"""What explicit steps err by at least, in all: `atol`, or rounding."""
SIDE = 1e-2
"""Time over the time at which tokens are as near as that to a rest of a Jordan block, up to which they stay on their side of it (seen:
0.1 is too much for blocks of four)."""


def make(
    models: tuple[Attention, ...],
    tokens: int,
    save: Save,
    wishes: Wishes,
    *,
    members: int | None = None,
    seed: int | None = None,
) -> Plan:
    """The plan for one system of this many tokens (`members` None) or many, or a named exception that says what cannot be done."""
    model = models[0]
    _checks.choice(wishes.engine, "engine", select.ENGINES)
    method = _resolve(model, tokens, save, wishes, members is not None)
    if members is not None and METHODS[method].solve_members is None:
        raise UnsupportedError(f"method={method!r} is for single systems, not for ensembles; use method='auto'")
    accuracy = Accuracy(
        _checks.tolerance(wishes.rtol),
        _checks.number(wishes.atol, "atol", 0.0),
        _checks.count(wishes.max_steps, "max_steps"),
        step_size(wishes.step, method, model),
    )
    for item in {id(item): item for item in models}.values():
        reference.check_range(item)
        _check(item, tokens, method, wishes.engine, seed, save.settled)
        _check_side(item, tokens, method, save, accuracy)
    if method in FIXED_STEP:
        _check_layers(models, save, accuracy, method)
    backend = select.choose(
        model,
        tokens,
        _engine_for(method, wishes.engine),
        wishes.interaction,
        save.until,
        wishes.threads,
        members=members or 1,
        steps=METHODS[method].steps,
        dtype=wishes.dtype,
    )
    return Plan(models, method, save, accuracy, backend, None if seed is None else _checks.seed(seed))


def _resolve(model: Attention, tokens: int, save: Save, wishes: Wishes, many: bool) -> str:
    """What "auto" stands for.

    "sde" with noise; "tsit5" for short horizons and on engines that have nothing else. Beyond that implicit steps pay: a single
    system keeps "auto", which begins explicitly and switches (`integrate.auto`); members are implicit from the start.
    """
    method = _checks.choice(wishes.method, "method", tuple(METHODS))
    if method != "auto":
        return method
    if model.noise > 0:
        return "sde"
    if not save.settled and (wishes.engine in select.EXPLICIT or short(model, save.until)):
        return "tsit5"
    if not many:
        return "auto"
    return "rodas" if rodas.horizon_refusal(model, tokens, save.until, save.settled) is None else "tsit5"


def step_size(step: float | None, method: str, model: Attention) -> float:
    """The step of a fixed-step method; 0 for the others, which choose their own."""
    if method not in FIXED_STEP:
        if step is not None:
            raise InvalidInputError(f"method={method!r} chooses its own steps; leave step out (or use method='layers')")
        return 0.0
    if step is not None:
        step = _checks.number(step, "step", 0.0, strict=True)
        if method == "sde":
            sde.check_step(model, step)
        return step
    if method != "sde":
        raise InvalidInputError(f"method={method!r} needs step=, for example step=0.1")
    return sde.default_step(model)


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
    # Decimal steps are rounded, and so are their multiples: a few units in the last place are nobody's mistake.
    off = np.abs(count - whole) > np.minimum(1e-6 + 8.0 * np.spacing(count), 0.25)
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


def _check_layers(models: tuple[Attention, ...], save: Save, accuracy: Accuracy, method: str) -> None:
    """The horizon and the output times are whole numbers of steps, and there is one model, or one for each of them."""
    times = np.array([save.until]) if save.times is None else save.times
    steps = whole_steps(times, accuracy.step, method, accuracy.max_steps)
    if len(models) not in (1, steps):
        raise TimeError(
            f"{len(models)} layers of step {accuracy.step:g} end at {len(models) * accuracy.step:g}, not at until={save.until:g}"
        )


def _engine_for(method: str, engine: str) -> str:
    """`engine`, or the one that a method insists on."""
    if method != "layers":
        return engine
    if engine not in ("auto", "reference"):
        raise UnsupportedError(f"method='layers' runs on engine='reference', not {engine!r}; use engine='auto'")
    return "reference"


def _check(model: Attention, tokens: int, method: str, engine: str, seed: int | None, settled: bool) -> None:
    """What a method cannot do; "auto" chooses among the methods and refuses nothing."""
    reason = METHODS[method].refusal(model, tokens)
    if reason is not None:
        raise UnsupportedError(without_settling(reason) if settled else reason)
    if METHODS[method].steps == "implicit" and engine not in ("auto", "cpu"):
        raise UnsupportedError(f"long horizons (method='rodas') run on engine='cpu', not {engine!r}; use engine='auto'")
    if method == "rodas":
        rodas.check_range(model)
    if model.noise > 0 and settled:
        raise UnsupportedError("tokens with noise never settle; say how far to go: until=200.0")
    if model.noise > 0 and seed is None:
        raise InvalidInputError("a run with noise needs a seed, so that it can be repeated: seed=0")


def _check_side(model: Attention, tokens: int, method: str, save: Save, accuracy: Accuracy) -> None:
    """Where tokens are nearer to a rest that attracts from one side only than explicit steps err, these carry them over to the other
    side, from which they leave for the antipode."""
    if save.settled or METHODS[method].steps == "fixed" or method == "rodas":
        return
    error = max(accuracy.atol, EXPLICIT_ERROR)
    if save.until * size_of_value(model) * error <= SIDE:
        return
    coupling = rodas.one_sided(model)
    refused = rodas.horizon_refusal(model, tokens, save.until, False)
    if save.until * coupling * error <= SIDE or (method == "auto" and refused is None):
        return
    latest = SIDE / (coupling * error)
    if method == "auto" and rodas.refusal(model, tokens) is None:
        latest = rodas.dense_horizon(model)
    way = (
        f"; method='rodas' tells the side, but {refused}"
        if refused
        else ", or use method='rodas', which tells the side"
    )
    raise NumericalRangeError(
        f"until = {save.until:g} is too far: Jordan blocks of V have rests that attract from one side only, tokens come as near to "
        f"them as 1/t, and from about t = {latest:.3g} on errors of steps decide on which side they are; shorten the horizon{way}"
    )


def horizon(until: Any, times: Any, method: str) -> Save:
    """`until` (a time, "settled" or None) and `times` (or None) as a `Save`; named exceptions where they contradict."""
    output = None if times is None else _checks.output_times(times)
    if isinstance(until, str) and until == "settled":
        if method not in ("auto", "rodas"):
            raise UnsupportedError(f"until='settled' needs method='rodas' or 'auto', not {method!r}")
        return Save(SETTLED_HORIZON if output is None else float(output[-1]), output, True)
    if isinstance(until, str):
        raise TimeError(f"until must be a time or 'settled', not {until!r}")
    if until is None:
        if output is None:
            raise TimeError("say how far to go: until=200.0, until='settled' or times=[...]")
        if output[-1] == 0:
            raise TimeError("times holds only 0, which is the start; give later times")
        return Save(float(output[-1]), output)
    end = _checks.horizon(until)
    if output is not None and output[-1] > end:
        raise TimeError(f"the last of times, {output[-1]:g}, is beyond until={end:g}; raise until or drop it")
    if output is not None and output[-1] < end:
        raise TimeError(
            f"times ends at {output[-1]:g}, so the state at until={end:g} would not be kept; add it to times, or leave until out"
        )
    return Save(end, output)
