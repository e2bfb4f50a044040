"""Models that follow one another in depth: piece by piece, each integrated from where the one before it ended.

A joint is a restart: the new model gets a first step of its own, so that a scheduled run is the same, bit for bit, as simulating
from joint to joint, and no step ever spans a jump of the weights. The order of the method and of its dense output is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import UnsupportedError
from metastable.integrate import explicit, march, resolved
from metastable.integrate.plan import Plan
from metastable.integrate.solution import Dense, Solution, Statistics, diverged, in_order, out_of_steps
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
    joints, times, state, left = whole.joints, whole.save.times, start, whole.accuracy.max_steps
    for begin, end, plan, solver in zip(joints, (*joints[1:], whole.save.until), plans, solvers):
        # Behind its beginning (at depth 0: from it on), up to its end.
        wanted = None if times is None else times[(times <= end) & ((times > begin) | (begin == 0.0))]
        output = None if wanted is None else np.unique(np.append(wanted - begin, end - begin))
        piece = plan.until(end - begin, output, max(1, left))
        solution = _from_depth(begin, piece, solver, state, lambda t, begin=begin: report(begin + t))
        parts.append(_kept(solution, begin, end, wanted, first=not parts))
        left -= solution.statistics.tries
        if solution.status != "success":
            parts[-1] = replace(parts[-1], message=_message(begin, solution, whole.accuracy.max_steps))
            break
        state = solution.states[-1]
    return _joined(parts, list(joints))


def _message(begin: float, solution: Solution, max_steps: int) -> str:
    """Why a piece ended early, in the time and the steps of the whole run."""
    reached = begin + (float(solution.times[-1]) if len(solution.times) else 0.0)
    if solution.status == "diverged":
        return diverged(reached)[1]
    if solution.status == "max_steps" and not solution.message.startswith("dense output"):
        return out_of_steps(reached, max_steps)[1]
    return f"{solution.message} (times counted from the joint at t = {begin:g})"


def _from_depth(begin: float, plan: Plan, solver: Solve, state: FloatArray, report: Report) -> Solution:
    """A piece in its own time, which starts at 0; a norm that depends on depth is told the true one."""
    if plan.model.norm.autonomous or begin == 0.0:
        return solver(plan, state, report)
    system, chart = explicit.system_of(plan, state, begin)
    recorder, jumps = march.Recorder(plan.model.dim, plan.save.times, chart), resolved.jumps(plan, begin)
    return march.integrate(system, recorder, plan.save.until, plan.accuracy, breakpoints=jumps, progress=report)


def _kept(solution: Solution, begin: float, end: float, wanted: FloatArray | None, first: bool) -> Solution:
    """What a piece leaves in the run, in the time of the run."""
    if wanted is None:
        skip = 0 if first else 1
        times, states = begin + solution.times[skip:], solution.states[skip:]
        if solution.status == "success":
            times[-1] = end  # not but for rounding
    else:
        count = min(len(wanted), len(solution.times))
        times, states = wanted[:count], solution.states[:count]
    dense = solution.dense
    shifted = replace(dense, start=dense.start + begin) if isinstance(dense, Dense) else None
    return replace(solution, times=times, states=states, dense=shifted)


def _joined(parts: list[Solution], joints: list[float]) -> Solution:
    last = parts[-1]
    statistics = sum((part.statistics for part in parts), Statistics())
    dense = in_order([part.dense for part in parts if isinstance(part.dense, Dense)])
    segments = []
    for begin, part in zip(joints, parts):
        for segment in part.notes.get("segments", []):
            segments.append({**segment, "from": begin + segment["from"], "to": begin + segment["to"]})
    notes = {**last.notes, "joints": joints[: len(parts)]}
    if segments:
        notes["segments"] = segments
    times = np.concatenate([part.times for part in parts])
    states = np.concatenate([part.states for part in parts])
    return Solution(times, states, last.status, statistics, dense, last.message, notes)
