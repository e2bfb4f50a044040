"""Adaptive explicit Runge-Kutta (Tsitouras 5(4), or another `Tableau`) on the sphere, for any engine's right-hand side.

The state is advanced in R^d and retracted to unit rows after every accepted step. Since right-hand sides normalise first
(`f(x) = F(x/|x|)`), retraction moves the state only along directions that f does not see: the order is kept, and the last
stage of one step is exactly the first of the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate import control, march
from metastable.integrate.plan import DEFAULT, Accuracy
from metastable.integrate.tableau import TSIT5, Tableau
from metastable.kernels.protocol import RightHandSide
from metastable.model.norms import Norm


def retract(y: FloatArray, dim: int) -> None:
    """Normalise the direction columns of a packed state in place."""
    direction = y[:, :dim]
    direction /= np.sqrt(np.einsum("ij,ij->i", direction, direction))[:, None]


def in_depth(rhs: RightHandSide, begin: float, norm: Norm) -> RightHandSide:
    """`rhs`, which knows depths, for times that are counted from `begin`."""

    def later(t: float, y: FloatArray, out: FloatArray) -> None:
        rhs(norm.depth_of(begin, t), y, out)

    return later if begin else rhs


@dataclass
class System:
    """A packed state in NumPy arrays; a `march.Movable`."""

    rhs: RightHandSide
    y: FloatArray
    dim: int
    accuracy: Accuracy = DEFAULT
    first: int = 0
    """Tokens below it are not moved and not counted in the error (the right-hand side knows where they are)."""
    tableau: Tableau = TSIT5

    def __post_init__(self) -> None:
        self.y = np.array(self.y)
        self.stages = np.zeros((self.tableau.stages, *self.y.shape))
        self.new = self.y

    def _size(self, change: FloatArray, new: FloatArray) -> float:
        moving, care = slice(self.first, None), self.accuracy
        return control.scaled_error(change[moving], self.y[moving], new[moving], self.dim, care.rtol, care.atol)

    def state(self) -> FloatArray:
        return self.y

    def place(self, state: FloatArray) -> None:
        self.y = np.array(state)

    def slopes(self) -> FloatArray:
        return self.stages

    def begin(self, t: float) -> None:
        self.rhs(t, self.y, self.stages[0])

    def speed(self) -> float:
        return self._size(self.stages[0], self.y)

    def bend(self, trial: float) -> float:
        probe = np.zeros_like(self.y)
        self.rhs(trial, self.y + trial * self.stages[0], probe)
        return self._size(probe - self.stages[0], self.y)

    def advance(self, t: float, step: float, latest: float) -> float:
        for i in range(1, self.tableau.stages):
            self.new = self.y + step * np.einsum("i,i...->...", self.tableau.a[i, :i], self.stages[:i])
            self.rhs(min(t + self.tableau.c[i] * step, latest), self.new, self.stages[i])
        if (self.new[:, self.dim :] <= 0).any():
            return math.nan  # a radius that reaches zero has no direction: the solution ends there
        if self.accuracy.step:
            return 0.0 if np.isfinite(self.new).all() else math.nan
        return self._size(step * np.einsum("i,i...->...", self.tableau.error, self.stages), self.new)

    def accept(self, t: float, step: float, end: float, recorder: march.Recorder) -> None:
        retract(self.new, self.dim)
        polynomial = partial(march.polynomial, self.tableau, self.y, step, self.stages)
        recorder.step(t, step, end, self.new, polynomial)
        self.y = self.new
        self.stages[0] = self.stages[-1]
