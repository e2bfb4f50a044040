"""Clusters at any moment of a run with dense output, and those that are sure to hold through a stretch of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metastable._checks import FloatArray
from metastable.analysis.clusters import labels_of_unit_tokens, link_bound
from metastable.analysis.trajectory import DenseOutput, unit_rows

NODES = np.linspace(0.0, 1.0, 5)
"""Where a stretch is looked at: a polynomial of degree 4 is known from five values."""
LEBESGUE = 2.21
"""Such a polynomial exceeds the largest of its values at five equidistant nodes by at most this factor between them."""
SHALLOW = 1e-3
"""Links that open by less than this part of the radius, and close again, may go unseen."""

IntArray = NDArray[np.int64]
Partition = IntArray


def refine(a: Partition, b: Partition) -> Partition:
    """Common refinement: tokens share a label exactly when they do in both."""
    from metastable.analysis import _kernels

    return _kernels.refine(a, b)


def by_first_token(labels: IntArray) -> Partition:
    """Labels renumbered 0, 1, ... by first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[inverse]


@dataclass(frozen=True)
class Film:
    """The clusters of a run: moments are fractions u of steps, since late steps are shorter than the spacing of their times."""

    dense: DenseOutput
    dim: int
    radius: float

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.dense.start)

    def time(self, step: int, u: float) -> float:
        """The time at a fraction of a step."""
        return float(self.dense.start[step]) + u * float(self.dense.width[step])

    def locate(self, t: float) -> tuple[int, float]:
        """Step and fraction of a time; the end of the run for a later one."""
        step = max(0, int(np.searchsorted(self.dense.start, t, side="right")) - 1)
        u = (t - float(self.dense.start[step])) / float(self.dense.width[step])
        return step, min(1.0, max(0.0, u))

    def tokens(self, step: int, u: float) -> FloatArray:
        """Tokens (n, dim) at a moment."""
        return unit_rows(self.dense.evaluate(step, u), self.dim)

    def look(self, step: int, u: float) -> Partition:
        """Clusters (n,) at a moment."""
        return labels_of_unit_tokens(self.tokens(step, u), link_bound(self.radius))

    def held(self, step: int, low: float, high: float) -> tuple[Partition, float]:
        """Parts of clusters that hold together from `low` to `high`, and a bound on the way (radians) of any token from the middle.

        When no token is ever farther than w from where it is in the middle, tokens that are closer than radius - 2 w there are closer
        than the radius throughout.
        """
        states = [self.tokens(step, low + (high - low) * node) for node in NODES]
        middle = states[len(states) // 2]
        chord = max(float(np.linalg.norm(state - middle, axis=1).max()) for state in states)
        way = LEBESGUE * 2.0 * float(np.arcsin(min(1.0, 0.5 * chord)))
        if 2.0 * way >= self.radius:
            return np.arange(len(middle)), way
        return labels_of_unit_tokens(middle, link_bound(self.radius - 2.0 * way)), way
