"""`Run.extend`: the same run, further."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._progress import progress_bar
from metastable.errors import InvalidInputError, TimeError, UnsupportedError
from metastable.integrate import extend, rodas
from metastable.integrate.methods import FIXED_STEP
from metastable.integrate.plan import Plan, Save, Wishes, short
from metastable.integrate.planning import horizon, make
from metastable.integrate.scheduled import ADAPTIVE
from metastable.integrate.solution import Solution
from metastable.integrate.tableau import TABLEAUS
from metastable.kernels.select import EXPLICIT, LONG_HORIZON
from metastable.run import resume as memory

if TYPE_CHECKING:
    from metastable.run.handle import Run

AS_BEFORE = 10.0
"""A run that tried implicit steps and went back to explicit ones goes on with these, to a horizon so many times as long."""
SAME_END = 1e-9
"""Relative difference of two ends that are one, but for the rounding of multiples of a step."""


def extended(
    run: Run,
    until: float | str | None,
    times: Any,
    method: str,
    max_steps: int | None,
    threads: int | None,
    progress: bool | None,
) -> tuple[Plan, Wishes, Solution]:
    """The longer run as its plan, what was asked for, and its solution; see `Run.extend`."""
    earlier = memory.solution_of(run._made)
    _check_can_go_on(run)
    _check_whole(run, earlier)
    _checks.choice(method, "method", ADAPTIVE)
    save = _save(run, until, times, earlier)
    wishes = _wishes(run, save, method)
    steps = _checks.count(run._made.attrs["max_steps"] if max_steps is None else max_steps, "max_steps")
    done = earlier.statistics.accepted + earlier.statistics.rejected
    seed = int(run._made.attrs["seed"])
    plan = make(
        run.models,
        len(run.start),
        save,
        replace(wishes, max_steps=done + steps, threads=threads),
        seed=None if seed < 0 else seed,
    )
    with progress_bar("extend", plan.save.until, progress) as report:
        solution = extend.solve(plan, earlier, plan.packed(np.array(run.start)), report, run.method)
    # The plan to remember is that of a run with as many steps at a time.
    asked = replace(Wishes(), **memory.asked(run._made))
    return replace(plan, accuracy=replace(plan.accuracy, max_steps=steps)), asked, solution


def _check_can_go_on(run: Run) -> None:
    if run.status in ("diverged", "unresolved"):
        raise UnsupportedError(f"this run cannot go on: {run.message}")
    if "schedule" in run._made.attrs:
        raise UnsupportedError(
            "this run follows a Schedule, of which it keeps no more than the pieces that it reached; simulate the Schedule to the "
            "later time instead, the tokens come the same way: metastable.simulate(schedule, run.start, until=...), schedule the one "
            "that made the run (run.schedule where no further model comes)"
        )
    if len(run.models) > 1:
        raise UnsupportedError(
            f"every layer of this run has a model of its own, and all {len(run.models)} of them were applied; simulate the longer list "
            "of layers: metastable.simulate([*run.models, *more], run.start)"
        )


def _check_whole(run: Run, earlier: Solution) -> None:
    """Refuse a part of a run: what comes next is known for its last state only, and there would be a hole between."""
    reached = run.end if earlier.dense is None else float(earlier.dense.end)
    if run.status == "success" and "settled" not in run.notes:
        reached = max(reached, float(run._made.attrs["until"]))
    if run.end < reached * (1.0 - SAME_END):
        raise InvalidInputError(
            f"this is a part of a run: it ends at t = {run.end:g}, and the whole run reached t = {reached:g}, from where it would go "
            "on; extend the whole one, and take the part then"
        )


def _save(run: Run, until: float | str | None, times: Any, earlier: Solution) -> Save:
    """Until when, and which states are kept: all that were kept so far, and the further ones."""
    saved = earlier.times
    wanted = horizon(until, times, "auto")
    if not wanted.settled and wanted.until <= run.end:
        raise TimeError(f"this run has reached t = {run.end:g}; extend it to a later time than until={wanted.until:g}")
    if wanted.times is None:
        if earlier.dense is not None or _every_step(run, earlier):
            return wanted
        if wanted.settled:
            raise TimeError(
                "this run kept chosen times; say which ones to keep beyond them: times=[...] with until='settled'"
            )
        return replace(wanted, times=np.append(saved, wanted.until))
    if wanted.times[0] <= run.end:
        raise TimeError(f"this run has reached t = {run.end:g}; times must be later, not {wanted.times[0]:g}")
    return replace(wanted, times=np.concatenate([saved, wanted.times]))


def _every_step(run: Run, earlier: Solution) -> bool:
    """True when a run without dense output kept every step: of fixed length, or none at all."""
    steps = earlier.statistics.accepted
    return len(earlier.times) == steps + 1 and (steps == 0 or run.method in FIXED_STEP)


def _wishes(run: Run, save: Save, method: str) -> Wishes:
    """How the further part is computed: as the run was, unless that cannot go as far."""
    attrs, asked = run._made.attrs, memory.asked(run._made)
    chosen = _method(run, save, asked, method)
    options = {name: attrs[name] for name in ("rtol", "atol", "dtype")}
    if chosen in FIXED_STEP:
        return Wishes(chosen, run.engine, run.interaction, step=attrs["step"], **options)
    if chosen not in run.method.split("+"):
        # Another method: what "auto" says of engines and interactions is asked again.
        return Wishes(chosen, asked["engine"], asked["interaction"], **options)
    interaction = run.interaction
    if chosen in TABLEAUS and asked["interaction"] == "auto" and save.until > LONG_HORIZON:
        interaction = "auto"
    return Wishes(chosen, run.engine, interaction, **options)


def _method(run: Run, save: Save, asked: dict[str, str], method: str) -> str:
    """The method that goes on. "auto": the one that made the run; explicit steps become implicit ones where those pay."""
    used = run.method
    if used in FIXED_STEP:
        if method != "auto":
            raise InvalidInputError(f"a run made by method={used!r} goes on as it is; leave method out")
        return used
    if method != "auto":
        return method
    segments = run.notes.get("segments")
    last = segments[-1]["method"] if segments else used
    if last == "rodas":
        return "rodas"
    if used not in TABLEAUS and not save.settled and save.until <= AS_BEFORE * run.end:
        return "tsit5"  # implicit steps were tried, and lost
    if asked["method"] in TABLEAUS:
        return asked["method"]
    if asked["engine"] in EXPLICIT:
        return "tsit5"
    refused = rodas.horizon_refusal(run.model, len(run.start), save.until, save.settled)
    explicit = not save.settled and (refused is not None or short(run.model, save.until))
    return "tsit5" if explicit else "rodas"
