"""Noise on the sphere: dX = P F dt + sigma P o dB (Stratonovich), i.e. - (sigma^2/2)(d-1) X dt in Ito form.

Stochastic Heun with retraction. It converges to the Stratonovich solution with strong order 1/2 (the noise fields do not commute,
so no method that uses increments alone does better); for sigma = 0 it is Heun's method of order 2. Increments are drawn step
by step from one generator, in token order, so a seed fixes the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate.solution import Solution, Statistics, Status
from metastable.integrate.tsit5 import retract
from metastable.kernels.protocol import RightHandSide


def brownian(seed: int, steps: int, tokens: int, dim: int, step: float) -> Iterator[FloatArray]:
    """Increments of Brownian motion in R^dim for each token, one (tokens, dim) array per step."""
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    for _ in range(steps):
        yield np.sqrt(step) * generator.standard_normal((tokens, dim))


def heun_step(
    rhs: RightHandSide, t: float, y: FloatArray, dim: int, step: float, sigma: float, increment: FloatArray
) -> FloatArray:
    """One step of stochastic Heun on a packed state, retracted to the sphere."""
    slope, trial_slope = np.zeros_like(y), np.zeros_like(y)
    rhs(t, y, slope)
    kick = np.zeros_like(y)
    kick[:, :dim] = sigma * _tangent(y[:, :dim], increment)
    trial = y + step * slope + kick
    retract(trial, dim)
    rhs(t + step, trial, trial_slope)
    trial_kick = np.zeros_like(y)
    trial_kick[:, :dim] = sigma * _tangent(trial[:, :dim], increment)
    new = y + 0.5 * (step * (slope + trial_slope) + kick + trial_kick)
    retract(new, dim)
    return new


def _tangent(x: FloatArray, v: FloatArray) -> FloatArray:
    """P_x v row by row."""
    return v - np.einsum("ij,ij->i", x, v)[:, None] * x


def solve(
    rhs: RightHandSide,
    start: FloatArray,
    dim: int,
    sigma: float,
    step: float,
    increments: Iterable[FloatArray],
    *,
    times: FloatArray | None = None,
    progress: Report | None = None,
) -> Solution:
    """Integrate the packed state `start` (tokens, width) with one step of size `step` per increment.

    `times` None saves after every step; else the multiples of `step` nearest to `times` are saved.
    """
    y = np.array(start)
    wanted = None if times is None else set(np.rint(times / step).astype(int).tolist())
    saved_times, saved_states = [], []
    status: Status = "success"
    message = ""
    done = 0
    if wanted is None or 0 in wanted:
        saved_times.append(0.0)
        saved_states.append(y)
    for number, increment in enumerate(increments, start=1):
        y = heun_step(rhs, (number - 1) * step, y, dim, step, sigma, increment)
        if not np.isfinite(y).all():
            status, message = "diverged", f"the solution left the range of double precision at t = {number * step:.6g}"
            break
        done = number
        if wanted is None or number in wanted:
            saved_times.append(number * step)
            saved_states.append(y)
        if progress is not None:
            progress(number * step)
    return Solution(
        np.array(saved_times, dtype=float),
        np.array(saved_states).reshape(-1, *y.shape),
        status,
        Statistics(accepted=done, evaluations=2 * done),
        message=message,
    )
