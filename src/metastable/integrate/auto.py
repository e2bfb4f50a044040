"""`method="auto"`: whatever is cheaper, explicit or implicit steps, found out on the way.

An explicit step costs six right-hand sides. An implicit one costs `work.price` as much: twice as much on the circle, a hundred times in
dimension 64. While accuracy decides about steps the explicit method wins; once clusters have formed its steps are limited by
stability at about 3 over the size of V, while the implicit one lengthens them by decades. The rule:

- horizons up to `plan.SHORT` (in units of the inverse size of V) never come here: they are explicit all the way;
- models that `rodas` refuses: explicit all the way, with a note that says why;
- else explicit in stretches of doubling length until the mean step of a stretch comes near its stability limit, at the latest
  after `LAST_STRETCH`;
- where explicit steps of that length cannot reach the end (too many, or later than `plan.LATEST`), implicit from there on;
- else both are tried (`TRIAL` implicit steps, if the rest is worth them) and the one that gets further for the same work goes on, in
  rounds of doubling length. After each the slower one has another trial, unless it was slower by `DECISIVE`.

Work is counted (`integrate.work`), not timed, so that a run is the same wherever and however often it is made. The steps of a trial are
part of the run, and all trials together cost at most a fourth of the rest.

`Solution.notes["segments"]` lists the methods with the times between which they worked.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import UnsupportedError
from metastable.integrate import explicit, rodas, work
from metastable.integrate.plan import LATEST, Plan, size_of_value, without_settling
from metastable.integrate.solution import Resume, Solution, Statistics, one_after_the_other, out_of_steps, part_of_run

FIRST_STRETCH = 8.0
"""Length of the first explicit stretch."""
LAST_STRETCH = 64.0
"""From here on the implicit method is tried, whatever the steps look like."""
STABLE_STEP = 1.5
"""A mean step from here on (half of the stability limit of Tsit5) says that stability, not accuracy, sets it."""
TRIAL = 8
"""Implicit steps of a trial: they may grow by a factor of ten each."""
PAYS = 4.0
"""A round is so many times as long as the trial after it."""
LOSING = 0.7
"""An implicit round is lost when it got less far than this much of what explicit steps would have: its steps tend to grow."""
DECISIVE = 8.0
"""Who is behind by this factor has no further trial, until the other slows down."""


# ------------------------------------------------------------------------------------------------------------------ the course


@dataclass(frozen=True)
class _Part:
    """A stretch made by one method. Explicit ones have a clock of their own, which starts at `begin`; implicit ones that of the run."""

    method: str
    begin: float
    end: float
    solution: Solution
    work: Statistics
    done: Statistics = Statistics()
    """What `solution` counts besides: the work of implicit parts just before it."""

    @property
    def shift(self) -> float:
        return self.begin if self.method == "tsit5" else 0.0


@dataclass
class _Course:
    """Where a run is, and the parts that it is made of."""

    plan: Plan
    state: FloatArray
    report: Report
    parts: list[_Part] = field(default_factory=list)
    t: float = 0.0
    left: int = 0
    pace: float = 0.0
    """Mean length of an attempted explicit step in the last stretch."""

    @property
    def until(self) -> float:
        return self.plan.save.until

    def _add(self, part: _Part, state: FloatArray | None) -> _Part:
        self.parts.append(part)
        self.t, self.left = part.end, max(1, self.left - part.work.tries)
        if state is not None:
            self.state = state
        return part

    def explicit(self, end: float) -> bool:
        """An explicit stretch; False when it did not get to its end."""
        begin = self.t
        piece = self.plan.piece(begin, end, self.plan.save.within(begin, end), self.left)
        solution = explicit.solve(piece, self.state, self.report)
        done = solution.status == "success"
        reached = end if done else begin + solution.end
        part = self._add(
            _Part("tsit5", begin, reached, solution, solution.statistics), solution.states[-1] if done else None
        )
        self.pace = (reached - begin) / max(1, part.work.tries)
        return done

    def implicit(self, steps: int) -> tuple[bool, float]:
        """So many implicit steps, or fewer to the end: whether there is more to do, and the mean length of an attempted step."""
        begin, times, before = self.t, self.plan.save.times, self.parts[-1]
        resume = before.solution.resume if before.method == "rodas" else None
        if resume is None:
            step = (before.end - before.begin) / max(1, before.work.accepted)
            resume = rodas.begun(begin, self.state, step, Statistics())
        done, budget = resume.statistics, min(steps, self.left)
        solution = rodas.solve(
            self.plan.model,
            self.state,
            replace(self.plan.save, times=None if times is None else times[times > begin]),
            replace(self.plan.accuracy, max_steps=budget + done.tries),
            progress=self.report,
            resume=resume,
        )
        spent, here = solution.statistics - done, solution.resume
        more = solution.status == "max_steps" and spent.tries == budget < self.left
        part = _Part("rodas", begin, solution.notes["reached"], solution, spent, done)
        self._add(part, None if here is None else here.state)
        return more, (part.end - part.begin) / max(1, part.work.tries)


def solve(plan: Plan, start: FloatArray, report: Report) -> Solution:
    """Integrate the packed state `start` from 0 to the end of the plan, or until all tokens have settled (see `rodas.solve`)."""
    model, until = plan.model, plan.save.until
    reason = rodas.horizon_refusal(model, len(start), until, plan.save.settled)
    if plan.save.settled and reason is not None:
        raise UnsupportedError(without_settling(reason))
    if reason is not None:
        solution = explicit.solve(plan, start, report)
        segments = [segment("tsit5", 0.0, until, solution.statistics)]
        message = f"{solution.message}; or go implicitly, which is refused here: {reason}" if solution.message else ""
        notes = {**solution.notes, "segments": segments, "explicit because": reason}
        return replace(solution, message=message, notes=notes)
    size = size_of_value(model)
    # A value matrix of zero moves nobody; any stretch will do.
    unit = 1.0 / size if size > 0 else 1.0
    course = _Course(plan, start, report, left=plan.accuracy.max_steps)
    if _first_stretches(course, unit) and course.t < until:
        if plan.save.settled or not _within_reach(course, unit):
            course.implicit(course.left)
        else:
            _alternate(course, work.price(model, len(start)))
    return _join(course)


def _first_stretches(course: _Course, unit: float) -> bool:
    """Explicit stretches of doubling length, up to where the implicit method may be the better one; False when they ended early."""
    latest = min(course.until, LAST_STRETCH * unit)
    end = min(latest, FIRST_STRETCH * unit)
    while course.explicit(end):
        part = course.parts[-1]
        if end >= latest or part.end - part.begin > STABLE_STEP * unit * max(1, part.work.accepted):
            return True
        end = min(latest, 2.0 * end)
    return False


def _within_reach(course: _Course, unit: float) -> bool:
    """True when explicit steps as long as the last ones reach the end."""
    return course.until <= LATEST * unit and course.until - course.t <= course.left * course.pace


def _alternate(course: _Course, price: float) -> None:
    """The rest of the way, by whichever method gets further for its work; an implicit step costs `price` explicit ones."""
    trial = TRIAL * price
    length = PAYS * trial  # of an explicit round, in steps
    while course.t < course.until:
        if course.until - course.t < length * course.pace:
            course.explicit(course.until)
            return
        steps = TRIAL
        more, gain = course.implicit(steps)
        while more and gain > LOSING * course.pace * price:
            more, gain = course.implicit(steps)
            steps *= 2
            # Explicit steps may have become longer since they were last seen; not by more than stability allows.
            close = gain < DECISIVE * course.pace * price and steps >= PAYS * TRIAL
            if more and close and not course.explicit(min(course.until, course.t + trial * course.pace)):
                return
        if not more or not course.explicit(min(course.until, course.t + length * course.pace)):
            return
        length *= 2.0


# ------------------------------------------------------------------------------------------------------------ one solution of all


def segment(method: str, begin: float, end: float, statistics: Statistics) -> dict[str, Any]:
    """One entry of `notes["segments"]`."""
    return {"method": method, "from": begin, "to": end, "steps": statistics.tries}


def _segments(parts: list[_Part]) -> list[dict[str, Any]]:
    """Stretches of one method after the other are one."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if found and found[-1]["method"] == part.method:
            found[-1] |= {"to": part.end, "steps": found[-1]["steps"] + part.work.tries}
        else:
            found.append(segment(part.method, part.begin, part.end, part.work))
    return found


def _resume(parts: list[_Part]) -> Resume | None:
    """Where the run can be taken up: the clock and the work are those of all parts."""
    last = parts[-1]
    here = last.solution.resume
    if here is None or (last.method == "tsit5" and last.solution.status != "success"):
        return None
    before = sum((part.work for part in parts[:-1]), Statistics())
    return replace(here, t=last.shift + here.t, statistics=before + (here.statistics - last.done))


def _other_way(course: _Course) -> str:
    """Advice for who ran out of implicit steps, nobody knows why, before an end that explicit ones may reach: theirs may be fewer."""
    size = size_of_value(course.plan.model)
    far = course.plan.save.settled or course.until * size > LATEST
    return "" if far or course.parts[-1].method != "rodas" else ", or try method='tsit5'"


def _join(course: _Course) -> Solution:
    """One solution out of the parts."""
    kept = []
    for part in course.parts:
        wanted = course.plan.save.within(part.begin, part.end)
        solution = part_of_run(part.solution, part.shift, part.end, wanted, first=not kept)
        kept.append(replace(solution, statistics=part.work))
    whole = one_after_the_other(kept)
    message, reason = whole.message, whole.steps_ran_out
    if reason is not None:
        # Of all steps, those of the other parts too.
        message = out_of_steps(course.t, course.plan.accuracy.max_steps, reason)[1] + (
            "" if reason else _other_way(course)
        )
    notes = {**whole.notes, "segments": _segments(course.parts)}
    return replace(whole, message=message, notes=notes, resume=_resume(course.parts))
