"""The loop around steps of one size, for `layers` and `sde`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate.solution import Resume, Solution, Statistics

Advance = Callable[[int, FloatArray], tuple[FloatArray, str]]
"""Packed state before step number 0, 1, ... -> the one behind it, and what is wrong with it (nothing: empty)."""


@dataclass(frozen=True)
class Steps:
    """Steps of a `method`: their size, their number up to the end, and the right-hand sides that each of them costs."""

    method: str
    size: float
    count: int
    evaluations: int

    def made(self, number: int) -> Statistics:
        """The work of so many steps."""
        return Statistics(accepted=number, evaluations=self.evaluations * number)


def solve(
    steps: Steps, advance: Advance, start: FloatArray, times: FloatArray | None, progress: Report | None, first: int
) -> Solution:
    """From the packed state `start` (tokens, width), which has made `first` steps, to the last of the `steps`.

    `times` None saves after every step; else the multiples of the step nearest to `times` are saved.
    """
    y, done, message = np.array(start), first, ""
    wanted = None if times is None else set(np.rint(times / steps.size).astype(int).tolist())
    saved_times, saved_states = [], []
    while True:
        if wanted is None or done in wanted:
            saved_times.append(done * steps.size)
            saved_states.append(y)
        if done >= steps.count:
            break
        y, message = advance(done, y)
        if message:
            break
        done += 1
        if progress is not None:
            progress(done * steps.size)
    return Solution(
        np.array(saved_times, dtype=float),
        np.array(saved_states).reshape(-1, *y.shape),
        "diverged" if message else "success",
        steps.made(done),
        message=message,
        resume=None if message else Resume(steps.method, done * steps.size, y, steps.made(done)),
    )
