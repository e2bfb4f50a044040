"""`simulate` for a `Schedule` of models: one plan for each piece, one run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metastable._checks import FloatArray
from metastable.errors import UnsupportedError
from metastable.integrate import scheduled
from metastable.integrate.methods import METHODS
from metastable.integrate.plan import Plan, Save, Wishes
from metastable.integrate.planning import horizon, make
from metastable.integrate.solution import Solution
from metastable.model import Schedule


def plans_of(
    schedule: Schedule, start: Any, until: Any, times: Any, wishes: Wishes, seed: int | None
) -> tuple[Plan, list[Plan], FloatArray]:
    """The plan of the whole run, those of its pieces (each in its own time), and the tokens; all checked before work starts."""
    if isinstance(until, str) and until == "settled":
        raise UnsupportedError(
            "until='settled' takes one model; simulate the Schedule up to its last joint, then that model"
        )
    save = horizon(until, times, wishes.method)
    pieces = schedule.until(save.until)
    tokens = schedule.models[0].check_tokens(start)
    plans = []
    ends = (*pieces.joints[1:], save.until)
    for begin, end, model in zip(pieces.joints, ends, pieces.models):
        model.check_count(len(tokens))
        plan = make((model,), len(tokens), Save(end - begin), wishes, seed=seed)
        scheduled.check(plan)
        plans.append(plan)
    engines, methods = ("+".join(dict.fromkeys(names)) for names in zip(*((p.backend.engine, p.method) for p in plans)))
    backend = replace(plans[0].backend, engine=engines)  # type: ignore[arg-type]
    whole = replace(plans[0], models=pieces.models, joints=pieces.joints, save=save, backend=backend, method=methods)
    return whole, plans, tokens


def solve(whole: Plan, plans: list[Plan], start: FloatArray, report: Any) -> Solution:
    """The pieces one after the other."""
    solvers = [METHODS[plan.method].solve for plan in plans]
    return scheduled.solve(whole, plans, solvers, start, report)


def with_next_joint(schedule: Schedule, whole: Plan, solution: Solution) -> Solution:
    """The solution with the note `next_joint`, where models come behind the end: a run holds those only that it reached."""
    further = schedule.joints[len(whole.joints) :]
    return replace(solution, notes={**solution.notes, "next_joint": further[0]}) if further else solution
