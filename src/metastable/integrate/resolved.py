"""Runs whose steps follow small changes of their tokens: what a derivative of a run is made of.

The error control of a run looks at where the tokens go. Where they rest, or only drift, it allows steps of any length; a small
change of the tokens moves by exp(h J), J the Jacobian of the velocity, and a step of Tsit5 makes of it a polynomial of h J that
has nothing to do with exp where h |J| is large. So runs that are differentiated are marched with one more rule: the rate |J| is
measured on the way, and steps with h |J| beyond what is to be followed are made shorter. Elsewhere they are the steps of
`explicit.solve`.

The rate is that of a power iteration, one round for each step, from round to round with the vector of the last one:

    w -> (f(t, y + e w) - f(t, y))/e,        rate = |J w|/|w|,

an evaluation of the velocity for each step. A tenth of the vector is drawn anew each time, so that modes that were not there
before are seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import ConvergenceError, NumericalRangeError
from metastable.integrate import explicit, march
from metastable.integrate.plan import Plan
from metastable.integrate.solution import Solution

RESOLVED = 0.5
"""h |J| of a step that was made shorter: what decays (or grows) does so at a rate that is right to about 3e-5."""
PROBE = 1e-7
"""Length e by which tokens are moved to see how their velocities change."""
FRESH = 0.1
"""Part of the vector that is drawn anew in each round."""
FIRST_ROUNDS = 4
"""Rounds before the first step, whose vector knows nothing."""


@dataclass
class Rates:
    """Measures |J| along a run, and says which step may be taken there: `march.integrate` asks (`limit`).

    `system` is marched, `probe` is another one of the same kind, to evaluate velocities elsewhere. `followed`: h |J| up to which
    steps are as they are; longer ones become `RESOLVED`, or as much as that.
    """

    system: march.Movable
    probe: march.Movable
    followed: float
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng([23, 2411, 4990]))
    vector: FloatArray | None = None
    rate: float = 0.0

    def __call__(self, t: float, step: float) -> float:
        """The step from t that may be taken instead of `step`."""
        if self.vector is None:
            for _ in range(FIRST_ROUNDS):
                self._round(t)
        earlier = self.rate
        self.rate = self._round(t)
        rate = max(self.rate, earlier)
        return min(RESOLVED, self.followed) / rate if np.isfinite(rate) and step * rate > self.followed else step

    def _round(self, t: float) -> float:
        """One round of the iteration at the state of the system."""
        y, velocity = self.system.state(), self.system.slopes()[0]
        fresh = self.generator.standard_normal(y.shape)
        vector = fresh if self.vector is None else self.vector + FRESH * fresh
        vector /= np.sqrt(np.mean(vector * vector))
        self.probe.place(y + PROBE * vector)
        self.probe.begin(t)
        image = (self.probe.slopes()[0] - velocity) / PROBE
        size = float(np.sqrt(np.mean(image * image)))
        self.vector = image / size if np.isfinite(size) and size > 0.0 else None
        return size


def solve(
    plan: Plan,
    start: FloatArray,
    system: march.Movable,
    recorder: march.Recorder,
    report: Report | None,
    depth: float,
    *,
    followed: float,
    stops: list[float],
) -> Solution:
    """March `plan` (method "tsit5", with output times) in steps with h |J| up to `followed`.

    `system` is that of `explicit.system_of(plan, start, depth)` and stands at the packed state `start`. `stops`: times that are
    stepped onto. Raises `ConvergenceError` where the run needs more than `max_steps` and `NumericalRangeError` where it diverges:
    a derivative of half a run is none of the run.
    """
    probe, _ = explicit.system_of(plan, start, depth)
    solution = march.integrate(
        system,
        recorder,
        plan.save.until,
        plan.accuracy,
        breakpoints=stops,
        progress=report,
        limit=Rates(system, probe, followed),
    )
    if solution.status == "diverged":
        raise NumericalRangeError(f"there is no derivative: {solution.message}")
    if solution.status != "success":
        raise ConvergenceError(
            f"there is no derivative of a run that did not arrive: {solution.message} (where tokens rest, the steps of a "
            "derivative are half the fastest time scale)"
        )
    return solution


def through_retraction(place: FloatArray, dim: int, vectors: FloatArray) -> FloatArray:
    """R'(place) of vectors (tokens, width, ...), R the retraction of packed states: across the direction, over its length; radii as
    they are. It is symmetric: vectors of a step and covectors that are walked back go through it alike."""
    length = np.sqrt(np.einsum("ij,ij->i", place[:, :dim], place[:, :dim]))[:, None]
    unit, moved = place[:, :dim] / length, vectors.reshape(*place.shape, -1).copy()
    along = np.einsum("kav,ka->kv", moved[:, :dim], unit)
    moved[:, :dim] = (moved[:, :dim] - unit[:, :, None] * along[:, None, :]) / length[:, :, None]
    return moved.reshape(vectors.shape)


def jumps(plan: Plan, depth: float) -> list[float]:
    """Times of the plan at which the norm jumps."""
    return [b - depth for b in plan.model.norm.breakpoints]


def latest_stage(plan: Plan, depth: float, t: float) -> float:
    """The latest time of a stage of the step from t, as in `march.integrate`: just before the next jump of the norm."""
    ahead = [b for b in jumps(plan, depth) if t < b < plan.save.until]
    return float(np.nextafter(min(ahead), 0.0)) if ahead else plan.save.until
