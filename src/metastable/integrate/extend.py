"""A finished integration taken further: the longer one, of which only the new part is computed.

Every method says where it can be taken up (`Solution.resume`): the state, the time, the work done and what its step control remembers
just before its end first decided about a step. From there a longer integration makes the same steps:

- `layers` and `sde`: the same numbers, bit for bit (the noise of a step depends on its number alone);
- explicit methods and `rodas`: the same sequence of steps, equal to rounding;
- a change of method (explicit steps up to here, implicit ones from here on), or an earlier solution that does not say where it can be
  taken up: a new sequence of steps from its last state, equal to the tolerance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import auto, rodas
from metastable.integrate.methods import METHODS
from metastable.integrate.plan import Plan
from metastable.integrate.solution import Dense, JoinedDense, Resume, Solution, in_order, join
from metastable.integrate.tableau import TABLEAUS

FIRST_STEP = 1e-3
"""First step of an integration that does not know the last one of the earlier; step control takes it from there."""
STEP_NAMES = {**dict.fromkeys(TABLEAUS, "step"), "rodas": "h"}
"""What the memory of each adaptive method calls the next step."""


def taken_up(earlier: Solution, method: str, start: FloatArray) -> Resume:
    """Where `method` takes up an earlier solution: where that one says, else at its last state (the packed `start` without one)."""
    said = earlier.resume
    if said is not None and said.method == method:
        return said
    if said is None:
        at_start = not len(earlier.times)
        t, state = (0.0, start) if at_start else (float(earlier.times[-1]), earlier.states[-1])
        widths = np.empty(0) if earlier.dense is None else earlier.dense.width[-3:]
        said = Resume("", t, state, earlier.statistics, {"": float(widths.max(initial=0.0)) or FIRST_STEP})
        step = said.control[""]
    else:
        step = said.control.get(STEP_NAMES.get(said.method, ""), FIRST_STEP)
    if method not in STEP_NAMES:
        return replace(said, method=method, control={})
    if method == "rodas":
        return rodas.begun(said.t, said.state, step, said.statistics)
    return replace(said, method=method, control={STEP_NAMES[method]: step})


def solve(plan: Plan, earlier: Solution, start: FloatArray, report: Report, made_by: str) -> Solution:
    """The earlier solution, which the method `made_by` made from the packed state `start`, up to the end of the plan.

    `plan.save.times` holds all times to be kept, those of the earlier solution too; None keeps every step. With chosen times each state
    that was kept stays as it is: the step that was cut short to end on time is made anew, but the earlier end is exact, and the new
    step would have to be interpolated there.
    """
    resume = taken_up(earlier, plan.method, start)
    times = plan.save.times
    if plan.method in TABLEAUS and resume.statistics.accepted == 0:
        # Nothing was done but to choose a first step that fits the end, which is another one now.
        anew = METHODS[plan.method].solve(replace(plan, resume=None), start, report)
        known = len(earlier.times)
        if times is None or len(anew.times) < known:
            return anew
        return replace(anew, states=np.concatenate([earlier.states, anew.states[known:]]))
    kept = None if times is None else times[times > max(resume.t, earlier.times.max(initial=resume.t))]
    further = replace(plan, save=replace(plan.save, times=kept), resume=resume)
    later = METHODS[plan.method].solve(further, resume.state, report)
    return _joined(earlier, later, resume, plan, made_by)


def _joined(earlier: Solution, later: Solution, resume: Resume, plan: Plan, made_by: str) -> Solution:
    """One solution: the earlier one up to where it was taken up, then the later one."""
    every_step = plan.save.times is None
    # With every step kept, the later one begins with the state where it was taken up.
    before = earlier.times < resume.t if every_step else np.ones(len(earlier.times), dtype=bool)
    dense = None
    if every_step and earlier.dense is not None and isinstance(later.dense, Dense):
        # Late in a merge steps do not move the clock: they are told apart by their number.
        undone = earlier.statistics.accepted - resume.statistics.accepted
        dense = _joined_dense(earlier.dense, undone, later.dense)
    elif every_step:
        dense = earlier.dense if later.dense is None else later.dense
    notes: dict[str, Any] = {**earlier.notes, **later.notes}
    notes |= _segments(earlier, later, resume, plan, made_by)
    if "settled" not in later.notes:
        notes.pop("settled", None)
    return replace(
        later,
        times=np.concatenate([earlier.times[before], later.times]),
        states=np.concatenate([earlier.states[before], later.states]),
        dense=dense,
        notes=notes,
    )


def _joined_dense(earlier: Dense | JoinedDense, undone: int, later: Dense) -> Dense | JoinedDense | None:
    """Dense output of both, in the chart of the later one; tokens that were appended keep their own grid of steps."""
    parts: list[Dense] = []
    first = 0
    for part in earlier.parts:
        tokens = slice(first, first + part.coefficients.shape[2])
        first = tokens.stop
        steps = slice(0, part.start.size - undone)
        cut = replace(part, start=part.start[steps], width=part.width[steps], coefficients=part.coefficients[steps])
        further = replace(later, coefficients=later.coefficients[:, :, tokens])
        joined = in_order([cut, further], later.chart)
        assert joined is not None
        parts.append(joined)
    return join(parts)


def _segments(earlier: Solution, later: Solution, resume: Resume, plan: Plan, made_by: str) -> dict[str, Any]:
    """The methods with the times between which they worked, where there were several (as `integrate.auto` notes them)."""
    said = earlier.resume
    first = said.method if said is not None else made_by
    known = earlier.notes.get("segments")
    segments = [dict(entry) for entry in known or [auto.segment(first, 0.0, resume.t, resume.statistics)]]
    end = float(later.notes.get("reached", later.times[-1] if len(later.times) else resume.t))
    work = later.statistics - resume.statistics
    segments[-1]["to"] = resume.t
    if segments[-1]["method"] == plan.method:
        undone = earlier.statistics.tries - resume.statistics.tries
        segments[-1]["to"] = end
        segments[-1]["steps"] += work.tries - (undone if known else 0)
    else:
        segments.append(auto.segment(plan.method, resume.t, end, work))
    return {"segments": segments} if known or len(segments) > 1 else {}
