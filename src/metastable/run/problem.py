"""A call of `simulate`, checked as a whole before any work starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, TimeError, UnsupportedError
from metastable.integrate.methods import FIXED_STEP, METHODS, check_step, engine_for, whole_steps
from metastable.integrate.refusals import check_method
from metastable.kernels import select
from metastable.model import Attention

SETTLED_HORIZON = 1e300
"""How far `until="settled"` may go: double precision ends near here."""
KEEP_EVERYTHING_LIMIT = 200_000
"""Numbers per state (tokens times dim) beyond which every step cannot be kept: `times` must be given."""


@dataclass(frozen=True)
class Problem:
    """A checked call of `simulate`."""

    models: tuple[Attention, ...]
    method: str
    start: FloatArray
    until: float
    settled: bool
    times: FloatArray | None
    choice: select.Backend
    rtol: float
    atol: float
    step: float
    seed: int | None
    max_steps: int

    @property
    def model(self) -> Attention:
        return self.models[0]

    @property
    def packed(self) -> FloatArray:
        """The start as a packed state: with a column of radii, all one, where the norm has a radius."""
        if not self.model.norm.has_radius:
            return self.start
        return np.concatenate([self.start, np.ones((len(self.start), 1))], axis=1)


def check(
    model: Attention | Sequence[Attention],
    start: Any,
    until: float | str | None,
    *,
    times: Any,
    method: str,
    engine: str,
    interaction: str,
    rtol: float,
    atol: float,
    step: float | None,
    seed: int | None,
    max_steps: int,
    threads: int | None,
    dtype: str,
) -> Problem:
    """The arguments of `simulate` as a `Problem`, or a named exception."""
    _checks.choice(method, "method", METHODS)
    single = isinstance(model, Attention)
    if method == "auto" and not single:
        method = "layers"
    models = _models(model, method)
    if method == "auto" and models[0].noise > 0:
        method = "sde"
    if method == "auto" and engine in ("reference", "cuda") and until != "settled":
        method = "tsit5"  # the one adaptive method of those engines
    tokens = models[0].check_tokens(start)
    if method == "layers" and step is None and not single:
        step = 1.0  # one layer after the other, as they are
    step = check_step(step, method)
    output = None if times is None else _checks.output_times(times)
    if until is None and not single:
        until = len(models) * step
    horizon, settled = _horizon(until, output, method)
    if method in FIXED_STEP:
        models = _layers(models, horizon, output, step, method)
    for item in {id(item): item for item in models}.values():
        _refuse(item, method, engine, len(tokens))
    if method == "sde" and seed is None and models[0].noise > 0:
        raise InvalidInputError("a run with noise needs a seed, so that it can be repeated: seed=0")
    if output is None and tokens.size > KEEP_EVERYTHING_LIMIT:
        raise TimeError(
            f"{len(tokens)} tokens are too many to keep every step; say which times to keep, for example times=[1, 10, 100]"
        )
    return Problem(
        models,
        method,
        tokens,
        horizon,
        settled,
        output,
        select.choose(
            models[0],
            len(tokens),
            engine_for(method, engine),
            interaction,
            horizon,
            threads,
            method=method,
            dtype=dtype,
        ),
        _checks.tolerance(rtol),
        _checks.number(atol, "atol", 0.0),
        step,
        None if seed is None else _checks.seed(seed),
        _checks.count(max_steps, "max_steps"),
    )


def _models(model: Attention | Sequence[Attention], method: str) -> tuple[Attention, ...]:
    """One model, or the models of the layers, checked to fit together."""
    if isinstance(model, Attention):
        return (model,)
    if not isinstance(model, Sequence) or not model or not all(isinstance(item, Attention) for item in model):
        raise InvalidInputError(f"model must be an Attention (or a list of them, one per layer), not {model!r}")
    if method != "layers":
        raise UnsupportedError(f"method={method!r} takes one model; a list of models is for method='layers'")
    for number, item in enumerate(model):
        if item.dim != model[0].dim or item.norm.has_radius != model[0].norm.has_radius:
            raise InvalidInputError(f"layer {number} has another dim or kind of norm than layer 0")
    return tuple(model)


def _horizon(until: float | str | None, times: FloatArray | None, method: str) -> tuple[float, bool]:
    """The time to reach, and whether to stop earlier when everything has settled."""
    if until == "settled":
        if method not in ("auto", "rodas"):
            raise UnsupportedError(f"until='settled' needs method='rodas' or 'auto', not {method!r}")
        return (SETTLED_HORIZON if times is None else float(times[-1])), True
    if isinstance(until, str):
        raise TimeError(f"until must be a time or 'settled', not {until!r}")
    if until is None:
        if times is None:
            raise TimeError("say how far to go: until=200.0, until='settled' or times=[...]")
        if times[-1] == 0:
            raise TimeError("times holds only 0, which is the start; give later times")
        return float(times[-1]), False
    horizon = _checks.horizon(until)
    if times is not None and times[-1] > horizon:
        raise TimeError(f"the last of times, {times[-1]:g}, is beyond until={horizon:g}; raise until or drop it")
    if times is not None and times[-1] < horizon:
        raise TimeError(
            f"times ends at {times[-1]:g}, so the state at until={horizon:g} would not be kept; add it to times, or leave until out"
        )
    return horizon, False


def _layers(
    models: tuple[Attention, ...], horizon: float, times: FloatArray | None, step: float, method: str
) -> tuple[Attention, ...]:
    """One model per step, after checking that the horizon and the output times are whole numbers of steps."""
    steps = whole_steps(np.append([] if times is None else times, horizon), step, method)
    if len(models) not in (1, steps):
        raise TimeError(
            f"{len(models)} layers of step {step:g} end at {len(models) * step:g}, not at until={horizon:g}"
        )
    return models * steps if len(models) == 1 and method == "layers" else models


def _refuse(model: Attention, method: str, engine: str, tokens: int) -> None:
    """Combinations that a method cannot do."""
    _checks.choice(engine, "engine", select.ENGINES)
    check_method(model, method, tokens)
    if method in ("auto", "rodas") and engine not in ("auto", "cpu"):
        raise UnsupportedError(f"long horizons (method='rodas') run on engine='cpu', not {engine!r}; use engine='auto'")
