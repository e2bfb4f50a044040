"""`simulate`: the verb that users call."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import progress_bar
from metastable.errors import InvalidInputError, StandstillWarning, TimeError, UnsupportedError
from metastable.integrate.methods import METHODS
from metastable.integrate.plan import ATOL, MAX_STEPS, RTOL, Plan, Save, Wishes
from metastable.integrate.planning import horizon, make
from metastable.kernels.directions import require_directions
from metastable.model import Attention, Schedule
from metastable.model.standstill import standstill
from metastable.run import scheduling
from metastable.run.handle import Run, from_solution, warn_if_early

KEEP_EVERYTHING_LIMIT = 200_000
"""Numbers per state (tokens times dim) beyond which every step cannot be kept: `times` must be given."""


def simulate(
    model: Attention | Sequence[Attention] | Schedule,
    start: Any,
    until: float | str | None = None,
    *,
    times: Any = None,
    method: str = "auto",
    engine: str = "auto",
    interaction: str = "auto",
    rtol: float = RTOL,
    atol: float = ATOL,
    step: float | None = None,
    seed: int | None = None,
    max_steps: int = MAX_STEPS,
    threads: int | None = None,
    dtype: str = "float64",
    progress: bool | None = None,
) -> Run:
    """Move the tokens `start` (tokens, dim) under `model` from depth 0 to `until`.

    Parameters
    ----------
    model : an `Attention`; a `Schedule` of them, piecewise constant in depth, for the adaptive methods; for `method="layers"` also a
        list with one model per layer.
    start : unit vectors, shape (tokens, dim), for example `metastable.sphere.uniform(200, dim=2, seed=0)`. They stand at depth 0 and
        have radius 1: to take a run further, use `run.extend(until=...)`, not `run.final`.
    until : the time to reach; `"settled"` runs until all tokens stopped for good. May be left out when `times` is given.
    times : output times. None keeps every step with dense output, so that `run.at(t)` works for any t.
    method : "tsit5" (explicit, adaptive), "rodas" (implicit, for long horizons), "layers" (x <- N(x + step A(x))),
        "sde" (with noise), or "auto".
    engine : "reference" (NumPy), "cpu" (Numba), "cuda", "torch" (matrix products on CPU or GPU, for large dimensions), or "auto".
    interaction : "direct" sums over pairs, "series" (Fourier or harmonic expansions, O(n) in the tokens), or "auto".
    rtol, atol : tolerances of the adaptive methods; tokens have length one, so they add up.
    step : step of "layers" (required with a single model) and of "sde" (default 0.01, shorter for strong noise in high dimension;
        noise alone is exact at any step, with drift the weak order is 2).
    seed : seed of the noise.
    max_steps : give up after this many steps; the part that was computed is kept. "layers" and "sde", which know their number of
        steps beforehand, refuse to start instead.
    threads : CPU threads (None: all). Results do not depend on it.
    dtype : "float64", or "float32" with engine "cuda" or "torch" for statistics (never for long horizons).
    progress : show a progress bar; None shows one on a terminal.

    Returns a `Run`, whose `status` is "success", "max_steps", "diverged" or "unresolved".

    >>> import metastable as ms
    >>> run = ms.simulate(ms.Attention(dim=2, beta=9.0), ms.sphere.uniform(8, dim=2, seed=0), until=20.0)
    >>> run.status
    'success'
    """
    wishes = Wishes(method, engine, interaction, rtol, atol, step, max_steps, threads, dtype)
    if isinstance(start, Run):
        raise InvalidInputError(
            "start is a run; to take it further use run.extend(until=...), which goes on with its depth, radii and noise; to begin "
            "anew at depth 0 from where it ended, give its tokens: start=run.final"
        )
    if isinstance(model, Schedule):
        whole, plans, tokens = scheduling.plans_of(model, start, until, times, wishes, seed)
        _check_size(whole.save, tokens)
        require_directions(plans[0].model, tokens)
        with progress_bar("simulate", whole.save.until, progress) as report:
            solution = scheduling.solve(whole, plans, whole.packed(tokens), report)
        warn_if_early(solution)
        return from_solution(whole, tokens, scheduling.with_next_joint(model, whole, solution))
    plan, tokens = _plan(model, start, until, times, wishes, seed)
    require_directions(plan.model, tokens)
    reason = standstill(plan.model, len(tokens)) if len(plan.models) == 1 else None
    if reason is not None:
        warnings.warn(reason, StandstillWarning, stacklevel=2)
    with progress_bar("simulate", plan.save.until, progress) as report:
        solution = METHODS[plan.method].solve(plan, plan.packed(tokens), report)
    warn_if_early(solution)
    return from_solution(plan, tokens, solution, wishes)


def _plan(
    model: Attention | Sequence[Attention], start: Any, until: Any, times: Any, wishes: Wishes, seed: int | None
) -> tuple[Plan, FloatArray]:
    """The checked call: its plan and its tokens."""
    single = isinstance(model, Attention)
    if not single:
        # One layer after the other, as they are.
        layered = wishes.method in ("auto", "layers")
        wishes = replace(
            wishes,
            method="layers" if wishes.method == "auto" else wishes.method,
            step=1.0 if layered and wishes.step is None else wishes.step,
        )
    models = _models(model, wishes.method)
    tokens = models[0].check_tokens(start)
    if until is None and not single:
        until = len(models) * _checks.number(wishes.step, "step", 0.0, strict=True)
    save = horizon(until, times, wishes.method)
    _check_size(save, tokens)
    return make(models, len(tokens), save, wishes, seed=seed), tokens


def _check_size(save: Save, tokens: FloatArray) -> None:
    """Refuse to keep every step of a large system."""
    if save.times is None and tokens.size > KEEP_EVERYTHING_LIMIT:
        raise TimeError(
            f"{len(tokens)} tokens are too many to keep every step; say which times to keep, for example times=[1, 10, 100]"
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
