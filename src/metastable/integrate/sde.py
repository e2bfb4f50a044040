"""Noise on the sphere: dX = P F dt + sigma P o dB (Stratonovich), i.e. - (sigma^2/2)(d-1) X dt in Ito form.

One step is the symmetric composition (Strang) of half a step of Brownian motion, a step of the drift (Heun, order 2, retracted) and
half a step of Brownian motion. What is exact and what is not:

- The Brownian motion alone has the exact law at any step (`brownian`): E cos(angle) = exp(-sigma^2 (d-1) t/2), and so on.
- Expectations of functions of the tokens (weak error) have order 2 in the step. With x = sigma^2 (d-1) step/4, noise that forgets in a
  time 2/(sigma^2 (d-1)) answers a constant drift with x/sinh(x) of what it should: relative error x^2/6. `check_step` keeps x small.
- Paths under one realisation of the noise (strong error) converge with order 1/2: the noise fields do not commute, so no method that
  uses increments alone does better. On the circle it is order 1/2 too: increments are those of the plane, not of the angle.
- For sigma = 0 it is Heun's method of order 2.

The noise of token k in step i depends on the seed, i and k alone: a longer run, or one with more tokens behind, has the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import InvalidInputError, NumericalRangeError
from metastable.integrate import fixed
from metastable.integrate.brownian import move
from metastable.integrate.plan import SDE_STEP, Plan
from metastable.integrate.solution import Solution
from metastable.integrate.tsit5 import retract
from metastable.kernels.protocol import RightHandSide
from metastable.model import Attention

Normals = Callable[[int], FloatArray]
"""Standard normal numbers of step i = 0, 1, ...: shape (tokens, 2, dim), one row for each half step."""


FORGETTING = 1.0
"""sigma^2 (d-1) step up to which the default step goes: the answer to a constant drift is then off by at most 1 %."""
FORGETTING_LIMIT = 2.0
"""sigma^2 (d-1) step beyond which a step is refused: the answer to a constant drift would be off by more than 4 %."""


def _forgetting_rate(model: Attention) -> float:
    """sigma^2 (d-1), twice the rate at which noise forgets a direction; 0 without a drift, which leaves nothing to be split."""
    still = all(head.value_size == 0.0 for head in model.all_heads)
    if still and model.feedforward is None:
        return 0.0
    rate = model.noise * model.noise * (model.dim - 1)
    if not math.isfinite(rate):
        raise NumericalRangeError(f"noise={model.noise:g} is too large: its square leaves double precision; lower it")
    return rate


def default_step(model: Attention) -> float:
    """0.01, halved until noise and drift can be taken in turns: sigma^2 (d-1) step <= `FORGETTING`."""
    rate = _forgetting_rate(model)
    if rate * SDE_STEP <= FORGETTING:
        return SDE_STEP
    return SDE_STEP * 2.0 ** -math.ceil(math.log2(rate * SDE_STEP / FORGETTING))


def check_step(model: Attention, step: float) -> None:
    """Refuse a step over which noise forgets what the drift has done."""
    rate = _forgetting_rate(model)
    if rate * step > FORGETTING_LIMIT:
        x = 0.25 * rate * step
        answer = 2.0 * x * math.exp(-x) / -math.expm1(-2.0 * x)  # x/sinh(x)
        raise InvalidInputError(
            f"step={step:g} is too long for noise={model.noise:g} in dimension {model.dim}: the drift would act with "
            f"{100 * answer:.3g} % of its strength; use step={FORGETTING_LIMIT / rate:.3g} or less, or leave it out"
        )


def normals(seed: int, tokens: int, dim: int) -> Normals:
    """The noise that belongs to a seed, step by step in any order (a counter-based generator: Philox)."""
    bits = np.random.Philox(key=np.random.SeedSequence(seed).generate_state(2, np.uint64))
    generator = np.random.Generator(bits)
    fresh = bits.state  # nothing drawn: setting it forgets what was, and costs less than a new generator

    def draw(number: int) -> FloatArray:
        fresh["state"]["counter"] = np.array([0, 0, 0, number], dtype=np.uint64)
        bits.state = fresh
        return generator.standard_normal((tokens, 2, dim))

    return draw


def drift_step(rhs: RightHandSide, t: float, y: FloatArray, dim: int, step: float) -> FloatArray:
    """One step of Heun's method on a packed state, retracted to the sphere."""
    slope, new = np.zeros_like(y), np.zeros_like(y)
    rhs(t, y, slope)
    rhs(t + step, y + step * slope, new)  # right-hand sides normalise what they are given
    new += slope
    new *= 0.5 * step
    new += y
    retract(new, dim)
    return new


def _until(rhs: RightHandSide, jump: float) -> RightHandSide:
    """`rhs` as it is before the depth `jump`."""
    last = float(np.nextafter(jump, 0.0))

    def before(t: float, y: FloatArray, out: FloatArray) -> None:
        rhs(min(t, last), y, out)

    return before


def drift_over(
    rhs: RightHandSide, t: float, y: FloatArray, dim: int, step: float, breakpoints: Sequence[float]
) -> FloatArray:
    """The drift over a step: Heun's method from one of `breakpoints`, where the right-hand side jumps, to the next."""
    for jump in (b for b in breakpoints if t < b <= t + step):
        y = drift_step(_until(rhs, jump), t, y, dim, jump - t)
        t, step = jump, t + step - jump
    return drift_step(rhs, t, y, dim, step) if step > 0 else y


def strang_step(
    rhs: RightHandSide,
    t: float,
    y: FloatArray,
    dim: int,
    step: float,
    sigma: float,
    normal: FloatArray,
    breakpoints: Sequence[float] = (),
) -> FloatArray:
    """One step on a packed state: noise over step/2, drift over step, noise over step/2; `normal` (tokens, 2, dim)."""
    variance = 0.5 * step * sigma * sigma
    if variance == 0:
        return drift_over(rhs, t, y, dim, step, breakpoints)
    new = drift_over(rhs, t, _shake(y, normal[:, 0], dim, variance), dim, step, breakpoints)
    return _shake(new, normal[:, 1], dim, variance)


def _shake(y: FloatArray, normal: FloatArray, dim: int, variance: float) -> FloatArray:
    """A packed state with its directions moved by noise; a radius stays."""
    if y.shape[1] == dim:
        return move(y, normal, variance)
    return np.concatenate([move(y[:, :dim], normal, variance), y[:, dim:]], axis=1)


def solve(plan: Plan, rhs: RightHandSide, start: FloatArray, normals: Normals, progress: Report | None) -> Solution:
    """Integrate the packed state `start` (tokens, width) to the end of the plan with the given noise.

    The multiples of the step nearest to the times of the plan are saved, or all of them. No slope is taken across a depth at which the
    norm jumps.
    """
    dim, sigma, step = plan.model.dim, plan.model.noise, plan.accuracy.step
    breakpoints = sorted(plan.model.norm.breakpoints)

    def advance(number: int, y: FloatArray) -> tuple[FloatArray, str]:
        new = strang_step(rhs, number * step, y, dim, step, sigma, normals(number), breakpoints)
        if not np.isfinite(new).all():
            return new, f"the solution left the range of double precision at t = {(number + 1) * step:.6g}"
        lost = np.flatnonzero((new[:, dim:] <= 0).any(axis=1))
        if lost.size:
            return (
                new,
                f"token {lost[0]} reached radius zero, which has no direction, near t = {(number + 1) * step:.6g}",
            )
        return new, ""

    steps = fixed.Steps("sde", step, plan.steps, 2)
    return fixed.solve(steps, advance, start, plan.save.times, progress, plan.steps_done)
