"""`method="auto"`: explicit while that is cheaper, implicit from where it stops paying.

An explicit step costs six right-hand sides, an implicit one about ten, so the explicit method wins as long as accuracy decides
about the step. Once clusters have formed, steps of the explicit method are limited by stability at about 3 over the size of V,
while the implicit one lengthens them by decades. The rule:

- horizons up to `plan.SHORT` (in units of the inverse size of V) never come here: they are explicit all the way;
- models that `rodas` refuses: explicit all the way, with a note that says why;
- else explicit in stretches of doubling length until the mean step of a stretch comes near its stability limit, at the latest
  after `LAST_STRETCH`; implicit from there to the end.

`Solution.notes["segments"]` lists the methods with the times between which they worked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import UnsupportedError
from metastable.integrate import explicit, rodas
from metastable.integrate.plan import Plan, size_of_value
from metastable.integrate.solution import DEGREE, Chart, Dense, Solution, Statistics, out_of_steps, unchart
from metastable.model import Attention

FIRST_STRETCH = 8.0
"""Length of the first explicit stretch."""
LAST_STRETCH = 64.0
"""From here on implicit, whatever the steps look like."""
STABLE_STEP = 1.5
"""A mean step from here on (half of the stability limit of Tsit5) says that stability, not accuracy, sets it."""

Explicit = Callable[[FloatArray, float, FloatArray | None, int], Solution]
"""An explicit solver: (start, until, times, max_steps) -> Solution, from time 0."""


def solve(plan: Plan, start: FloatArray, report: Report) -> Solution:
    """Integrate the packed state `start` from 0 to the end of the plan, or until all tokens have settled (see `rodas.solve`)."""
    model, until, times, max_steps = plan.model, plan.save.until, plan.save.times, plan.accuracy.max_steps

    def march(state: FloatArray, stop: float, output: FloatArray | None, steps: int) -> Solution:
        return explicit.solve(plan.until(stop, output, steps), state, report)

    reason = rodas.horizon_refusal(model, len(start), until, plan.save.settled)
    if plan.save.settled and reason is not None:
        raise UnsupportedError(f"until='settled' needs the implicit method, which refuses this model: {reason}")
    if reason is not None:
        solution = march(start, until, times, max_steps)
        segments = [segment("tsit5", 0.0, until, solution.statistics)]
        message = f"{solution.message}; or go implicitly, which is refused here: {reason}" if solution.message else ""
        notes = {**solution.notes, "segments": segments, "explicit because": reason}
        return replace(solution, message=message, notes=notes)
    size = size_of_value(model)
    # A value matrix of zero moves nobody; any stretch will do.
    unit = 1.0 / size if size > 0 else 1.0
    parts = _explicit_part(march, start, min(until, LAST_STRETCH * unit), unit, times, max_steps)
    last = parts[-1]
    if last.solution.status != "success":
        return _join(model, parts, None, times)
    left = max_steps - sum(_steps(part.solution) for part in parts)
    implicit = rodas.solve(
        model,
        last.solution.states[-1],
        times=None if times is None else times[times > last.end],
        until=until,
        rtol=plan.accuracy.rtol,
        atol=plan.accuracy.atol,
        max_steps=max(1, left),
        settled=plan.save.settled,
        progress=report,
        begin=last.end,
        first_step=(last.end - last.begin) / max(1, last.solution.statistics.accepted),
    )
    if implicit.status == "max_steps":
        # Of all steps, the explicit ones too.
        implicit = replace(implicit, message=out_of_steps(implicit.notes["reached"], max_steps)[1])
    return _join(model, parts, implicit, times)


@dataclass(frozen=True)
class _Stretch:
    """An explicit solution between two times (its own times start at 0)."""

    begin: float
    end: float
    solution: Solution

    def wanted(self, times: FloatArray) -> FloatArray:
        """The output times that fall into this stretch: up to its end, and from 0 on in the first one."""
        return times[(times <= self.end) & ((times > self.begin) | (self.begin == 0.0))]


def _steps(solution: Solution) -> int:
    return solution.statistics.accepted + solution.statistics.rejected


def _explicit_part(
    march: Explicit, start: FloatArray, latest: float, unit: float, times: FloatArray | None, max_steps: int
) -> list[_Stretch]:
    """Explicit stretches up to the switch."""
    parts: list[_Stretch] = []
    begin, end, state, left = 0.0, min(latest, FIRST_STRETCH * unit), start, max_steps
    while True:
        output = None
        if times is not None:
            # The end of the stretch is where the next one starts, so it is saved besides what is wanted.
            inside = times[(times < end) & ((times > begin) | (begin == 0.0))]
            output = np.append(inside - begin, end - begin)
        solution = march(state, end - begin, output, left)
        parts.append(_Stretch(begin, end, solution))
        left = max(1, left - _steps(solution))
        step = (end - begin) / max(1, solution.statistics.accepted)
        if solution.status != "success" or end >= latest or step > STABLE_STEP * unit:
            return parts
        state = solution.states[-1]
        begin, end = end, min(latest, 2.0 * end)


def segment(method: str, begin: float, end: float, statistics: Statistics) -> dict[str, Any]:
    """One entry of `notes["segments"]`."""
    return {"method": method, "from": begin, "to": end, "steps": statistics.accepted + statistics.rejected}


def _join(model: Attention, parts: list[_Stretch], implicit: Solution | None, requested: FloatArray | None) -> Solution:
    """One solution out of the explicit stretches and the implicit rest."""
    times: list[FloatArray] = []
    states: list[FloatArray] = []
    for number, part in enumerate(parts):
        if requested is None:
            skip = 1 if number > 0 else 0
            times.append(part.begin + part.solution.times[skip:])
            states.append(part.solution.states[skip:])
        else:
            wanted = part.wanted(requested)[: len(part.solution.times)]
            times.append(wanted)
            states.append(part.solution.states[: len(wanted)])
    statistics = Statistics()
    for part in parts:
        statistics = statistics + part.solution.statistics
    final, reached = parts[-1].solution, parts[-1].end
    if final.status != "success":
        reached = parts[-1].begin + (float(final.times[-1]) if len(final.times) else 0.0)
    segments = [segment("tsit5", 0.0, reached, statistics)]
    notes: dict[str, Any] = {}
    if implicit is not None:
        skip = 1 if requested is None else 0
        times.append(implicit.times[skip:])
        states.append(implicit.states[skip:])
        segments.append(segment("rodas", reached, implicit.notes["reached"], implicit.statistics))
        statistics = statistics + implicit.statistics
        notes = dict(implicit.notes)
        final = implicit
    notes["segments"] = segments
    dense = _join_dense(model, parts, implicit) if requested is None else None
    resume = None if implicit is None else implicit.resume
    if resume is not None:
        # What is stored counts the explicit steps too.
        before = [part.solution.statistics for part in parts]
        resume = replace(resume, statistics=sum(before, resume.statistics))
    return Solution(
        np.concatenate(times), np.concatenate(states), final.status, statistics, dense, final.message, notes, resume
    )


def _join_dense(model: Attention, parts: list[_Stretch], implicit: Solution | None) -> Dense | None:
    """Dense output of all parts in one chart: that of the implicit part."""
    pieces: list[Dense] = []
    for part in parts:
        dense = part.solution.dense
        if isinstance(dense, Dense):
            pieces.append(replace(dense, start=dense.start + part.begin))
    if implicit is not None and isinstance(implicit.dense, Dense):
        pieces = [in_chart(piece, implicit.dense.chart) for piece in pieces] + [implicit.dense]
    if not pieces:
        return None
    return Dense(
        pieces[0].chart,
        model.dim,
        np.concatenate([piece.start for piece in pieces]),
        np.concatenate([piece.width for piece in pieces]),
        np.concatenate([piece.coefficients for piece in pieces]),
    )


def in_chart(dense: Dense, chart: Chart) -> Dense:
    """Dense output on the circle re-expanded in another chart: the quartic through five points of every step.

    The interpolation error is of fifth order in the step, one more than that of the dense output itself.
    """
    if dense.chart == chart:
        return dense
    nodes = np.arange(DEGREE + 1) / DEGREE
    powers = nodes[:, None] ** np.arange(DEGREE + 1)
    values = unchart(np.einsum("up,spka->suka", powers, dense.coefficients), dense.chart, dense.dim)
    if chart == "angle":
        plane = values[..., 0] + 1j * values[..., 1]
        # Angles relative to the start of the step do not wrap: a step never turns a token by half a circle.
        angles = np.angle(plane[:, :1]) + np.angle(plane * np.conj(plane[:, :1]))
        values = angles[..., None]
    coefficients = np.einsum("pu,suka->spka", np.linalg.inv(powers), values)
    return replace(dense, chart=chart, coefficients=coefficients)
