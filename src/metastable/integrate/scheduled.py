"""Models that follow one another in depth: piece by piece, each integrated from where the one before it ended.

A joint is a restart: the new model gets a first step of its own, so that a scheduled run is the same, bit for bit, as simulating
from joint to joint, and no step ever spans a jump of the weights. The order of the method and of its dense output is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import UnsupportedError
from metastable.integrate import explicit, march, resolved
from metastable.integrate.plan import Plan
from metastable.integrate.solution import Solution, diverged, one_after_the_other, out_of_steps, part_of_run
from metastable.integrate.tableau import TABLEAUS

Solve = Callable[[Plan, FloatArray, Report], Solution]

ADAPTIVE = ("auto", *TABLEAUS, "rodas")
"""Adaptive methods: they can stop anywhere."""


def check(plan: Plan) -> None:
    """Raise `UnsupportedError` for a piece that cannot be part of a schedule."""
    if plan.method not in ADAPTIVE:
        why = "layers have a model each: give a list of models" if plan.method == "layers" else "leave noise out"
        raise UnsupportedError(f"method={plan.method!r} takes no Schedule; {why}")
    if not plan.model.norm.autonomous and plan.method not in TABLEAUS:
        raise UnsupportedError(
            f"a Schedule with {plan.model.norm!r}, which depends on depth, is for method='tsit5', not {plan.method!r}"
        )


def solve(whole: Plan, plans: list[Plan], solvers: list[Solve], start: FloatArray, report: Report) -> Solution:
    """One solution out of the plans of the pieces, each in its own time; `whole` says when they begin and what is kept.

    `plans[i]` is integrated by `solvers[i]` from the packed state where the one before it ended.
    """
    parts: list[Solution] = []
    joints, state, left = whole.joints, start, whole.accuracy.max_steps
    for begin, end, plan, solver in zip(joints, (*joints[1:], whole.save.until), plans, solvers):
        wanted = whole.save.within(begin, end)
        piece = plan.piece(begin, end, wanted, max(1, left))
        solution = _from_depth(begin, piece, solver, state, lambda t, begin=begin: report(begin + t))
        ended = end if solution.status == "success" else begin + solution.end
        parts.append(part_of_run(solution, begin, ended, wanted, first=not parts))
        left -= solution.statistics.tries
        if solution.status != "success":
            parts[-1] = replace(parts[-1], message=_message(begin, solution, whole.accuracy.max_steps))
            break
        state = solution.states[-1]
    return _joined(parts, list(joints))


def _message(begin: float, solution: Solution, max_steps: int) -> str:
    """Why a piece ended early, in the time and the steps of the whole run."""
    reached = begin + solution.end
    if solution.status == "diverged":
        return diverged(reached)[1]
    if solution.steps_ran_out is not None:
        return out_of_steps(reached, max_steps, solution.steps_ran_out)[1]
    return f"{solution.message} (times counted from the joint at t = {begin:g})"


def _from_depth(begin: float, plan: Plan, solver: Solve, state: FloatArray, report: Report) -> Solution:
    """A piece in its own time, which starts at 0; a norm that depends on depth is told the true one."""
    if plan.model.norm.autonomous or begin == 0.0:
        return solver(plan, state, report)
    system, chart = explicit.system_of(plan, state, begin)
    recorder, jumps = march.Recorder(plan.model.dim, plan.save.times, chart), resolved.jumps(plan, begin)
    return march.integrate(system, recorder, plan.save.until, plan.accuracy, breakpoints=jumps, progress=report)


def _joined(parts: list[Solution], joints: list[float]) -> Solution:
    whole = one_after_the_other(parts)
    segments = []
    for begin, part in zip(joints, parts):
        for segment in part.notes.get("segments", []):
            segments.append({**segment, "from": begin + segment["from"], "to": begin + segment["to"]})
    notes = {**whole.notes, "joints": joints[: len(parts)]}
    if segments:
        notes["segments"] = segments
    return replace(whole, notes=notes, resume=None)
