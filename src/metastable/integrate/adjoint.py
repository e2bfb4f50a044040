"""Derivatives of an explicit run: the discrete adjoint of the accepted steps of Tsit5.

An accepted step takes y to R(z), z = y + h sum_j b_j k_j, with the stages k_i = f(t_i, Y_i), Y_i = y + h sum_{j<i} a_ij k_j and the
retraction R to unit rows. The step sizes are numbers: what the run did, not what it might have done. Read backwards, with the
covector w of the new state and the pullback f* of the right-hand side (`kernels.pullback`),

    m = R'(z)^T w = (w - <w, u> u)/|z|,  u = z/|z|,          K_j = h b_j m,          y* = m,
    for i = 5, ..., 0:   v = f*(t_i, Y_i; K_i),   y* += v,   K_j += h a_ij v  for j < i,

and the parameters get the sum of what f* sends them. That is the derivative of the numbers which the run computed, to rounding;
that of the flow it is as far as the steps follow small changes, which `resolved` sees to. States between steps come from the
polynomial of the step (`Tableau.dense`), and so do their derivatives.

Memory. Going forward the states at every `stride`-th step are kept; the stride doubles as the run gets longer. Going backward one
stretch after the other is repeated from its state, its stages kept until it was walked back. Both parts hold O(sqrt(steps)) states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import ConvergenceError
from metastable.integrate import explicit, march, resolved
from metastable.integrate.plan import Plan
from metastable.integrate.solution import DEGREE, Solution
from metastable.integrate.tableau import TSIT5
from metastable.kernels import select
from metastable.kernels.pullback import Parameters, Pullback

FOLLOWED = 1.0
"""h |J| up to which steps are those of `simulate`: their error in what decays fastest is then below 1e-3, and where tokens move
they are shorter. Beyond it they are cut to `resolved.RESOLVED`."""
EXPLODED = 100.0
"""Factor (times the root of the number of tokens) by which no covector grows in one step that follows small changes."""
LAST = TSIT5.stages - 1
"""The stage that the next step begins with."""
BALANCE = 2 * (TSIT5.stages + 1)
"""Kept states for each step of a stretch, at the most: a step that is walked back holds as many states as stages, and its own."""


@dataclass
class Trail(march.Recorder):
    """What is kept of a run to walk it back: its steps, and its states at every `stride`-th of them (`kept`).

    `moments` holds for each output time the step that it lies in (-1: the start) and the fraction of the step.
    """

    starts: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    kept: list[FloatArray] = field(default_factory=list)
    moments: list[tuple[int, float]] = field(default_factory=list)
    stride: int = 1

    def begin(self, t: float, y: FloatArray) -> None:
        super().begin(t, y)
        self.moments += [(-1, 1.0)] * len(self.saved_times)
        self.kept.append(y.copy())

    def wants(self, end: float) -> bool:
        return True

    def step(self, t: float, h: float, end: float, new: FloatArray, polynomial) -> None:
        assert self.times is not None
        number = len(self.starts)
        due = self.times[len(self.saved_times) :]
        self.moments += [(number, 1.0 if time == end else (time - t) / h) for time in due[due <= end]]
        super().step(t, h, end, new, polynomial)
        self.starts.append(t)
        self.widths.append(h)
        if (number + 1) % self.stride == 0:
            self.kept.append(new.copy())
        if len(self.kept) > BALANCE * self.stride:
            self.kept, self.stride = self.kept[::2], 2 * self.stride

    @property
    def steps(self) -> int:
        """Accepted steps."""
        return len(self.starts)

    @property
    def states_held(self) -> int:
        """The most states that are held at a time, going forward and back."""
        return len(self.kept) + (TSIT5.stages + 1) * min(self.stride, self.steps)


@dataclass
class Path:
    """A run of one model that was marched forward and can be walked back. Covectors are packed, like states.

    `depth`: where its time 0 lies in depth (in a `Schedule`). `max_step`: a bound of the steps, where one was asked for.
    """

    plan: Plan
    depth: float
    system: march.Movable
    trail: Trail
    solution: Solution
    pull: Pullback
    max_step: float | None = None

    @property
    def states(self) -> FloatArray:
        """Packed states at the output times of the plan."""
        return self.solution.states

    @property
    def parameters(self) -> Parameters:
        """Derivatives with respect to the parameters; complete when the path was walked back."""
        return self.pull.parameters()

    def back(self, seeds: Sequence[FloatArray]) -> FloatArray:
        """The packed covector of the start, from those of the states at the output times (tokens, width)."""
        trail, waiting = self.trail, {}
        start = np.zeros_like(trail.kept[0])
        for state, seed, (number, fraction) in zip(self.states, seeds, trail.moments):
            inside = self._into_chart(state, seed)
            if number < 0:
                start += inside
            else:
                waiting.setdefault(number, []).append((fraction, inside))
        covector = np.zeros_like(start)
        for number in range(len(trail.kept) - 1, -1, -1):
            covector = self._stretch(number, covector, waiting)
        return self._out_of_chart(trail.packed(trail.kept[0]), covector + start)

    def _stretch(self, number: int, covector: FloatArray, waiting: dict) -> FloatArray:
        """Walk back the steps behind the kept state `number`."""
        trail, first = self.trail, number * self.trail.stride
        last = min(first + trail.stride, trail.steps)
        if first >= last:
            return covector
        states = np.empty((last - first, *trail.kept[number].shape))
        stages = np.empty((last - first, TSIT5.stages, *trail.kept[number].shape))
        self.system.place(trail.kept[number])
        # What the replay ends with is nobody's output: a recorder that keeps nothing.
        nothing = march.Recorder(self.plan.model.dim, np.empty(0), self.trail.chart)
        jumps = {*stops(self.plan, self.depth, self.max_step)}
        for i in range(last - first):
            t, h = trail.starts[first + i], trail.widths[first + i]
            if i == 0 or t in jumps:
                self.system.begin(t)
            states[i] = self.system.state()
            self.system.advance(t, h, resolved.latest_stage(self.plan, self.depth, t))
            stages[i] = self.system.slopes()
            self.system.accept(t, h, t + h, nothing)
        for i in range(last - first - 1, -1, -1):
            at = _Step(trail.starts[first + i], trail.widths[first + i], states[i], stages[i])
            seeds = waiting.get(first + i, [])
            size = sum((float(np.linalg.norm(seed)) for _, seed in seeds), float(np.linalg.norm(covector)))
            covector = self._step_back(at, covector, seeds)
            if np.linalg.norm(covector) > EXPLODED * np.sqrt(len(covector)) * size:
                raise ConvergenceError(
                    f"the steps of this run are too long for its derivative: tokens rest near t = {self.depth + at.t:.6g}, where a "
                    f"step of {at.h:.3g} does not follow small changes of them; bound the steps, for example max_step=0.5"
                )
        return covector

    def _step_back(self, step: _Step, covector: FloatArray, seeds: list[tuple[float, FloatArray]]) -> FloatArray:
        """The covector of the state before a step from that of the state behind it and `seeds` on the way: (fraction, covector)."""
        h, y = step.h, step.y
        pulled, slopes = np.zeros_like(y), np.zeros_like(step.k)
        for fraction, seed in seeds:
            if fraction == 1.0:
                covector = covector + seed
                continue
            weights = h * TSIT5.dense @ fraction ** np.arange(1, DEGREE + 1)
            middle = self._unretract(y + np.tensordot(weights, step.k, 1), seed)
            pulled += middle
            slopes += np.multiply.outer(weights, middle)
        latest, back = resolved.latest_stage(self.plan, self.depth, step.t), np.empty_like(y)
        end = y + h * np.tensordot(TSIT5.a[LAST, :LAST], step.k[:LAST], 1)
        covector = self._unretract(end, covector)
        if slopes[LAST].any():
            self.pull(self._depth(min(step.t + h, latest)), end, slopes[LAST], back)
            covector += back
        pulled += covector
        slopes += np.multiply.outer(h * TSIT5.a[LAST], covector)
        for i in range(LAST - 1, -1, -1):
            place = y + h * np.tensordot(TSIT5.a[i, :i], step.k[:i], 1) if i else y
            self.pull(self._depth(min(step.t + TSIT5.c[i] * h, latest)), place, slopes[i], back)
            pulled += back
            if i:
                slopes[:i] += np.multiply.outer(h * TSIT5.a[i, :i], back)
        return pulled

    def _depth(self, t: float) -> float:
        return self.plan.model.norm.depth_of(self.depth, t)

    def _unretract(self, place: FloatArray, covector: FloatArray) -> FloatArray:
        """R'(place)^T covector; angles as they are."""
        if self.trail.chart == "angle":
            return covector.copy()
        return resolved.through_retraction(place, self.plan.model.dim, covector)

    def _into_chart(self, state: FloatArray, covector: FloatArray) -> FloatArray:
        """A packed covector at a packed state, as one of the chart: in angles, what it gives along (-sin, cos)."""
        if self.trail.chart == "ambient":
            return covector
        return (state[:, 0] * covector[:, 1] - state[:, 1] * covector[:, 0])[:, None]

    def _out_of_chart(self, state: FloatArray, covector: FloatArray) -> FloatArray:
        """The packed covector, its directions tangent to the sphere."""
        if self.trail.chart == "angle":
            return covector * np.stack([-state[:, 1], state[:, 0]], axis=1)
        return self._unretract(state, covector)


@dataclass(frozen=True)
class _Step:
    """A step from t of length h: its state and its stages."""

    t: float
    h: float
    y: FloatArray
    k: FloatArray


def stops(plan: Plan, depth: float, max_step: float | None) -> list[float]:
    """Times that the march steps onto: jumps of the norm, and, to bound the steps, every `max_step`."""
    found = resolved.jumps(plan, depth)
    if max_step is not None:
        found += np.linspace(0.0, plan.save.until, int(np.ceil(plan.save.until / max_step)) + 1)[1:-1].tolist()
    return found


def walk(
    plan: Plan, start: FloatArray, report: Report | None = None, depth: float = 0.0, max_step: float | None = None
) -> Path:
    """March `plan` (method "tsit5", with output times) from the packed state `start`.

    The steps are those of `explicit.solve`, unless they are bounded by `max_step` or do not follow small changes (`resolved`).
    """
    assert plan.save.times is not None
    system, chart = explicit.system_of(plan, start, depth)
    trail = Trail(plan.model.dim, plan.save.times, chart)
    bounds = stops(plan, depth, max_step)
    solution = resolved.solve(plan, start, system, trail, report, depth, followed=FOLLOWED, stops=bounds)
    pull = select.pullback(plan.model, len(start), plan.backend, chart)
    return Path(plan, depth, system, trail, solution, pull, max_step)
