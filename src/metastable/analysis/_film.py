"""Clusters at any moment of a run with dense output, and those that are sure to hold through a stretch of time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from metastable._checks import FloatArray
from metastable.analysis.clusters import labels_of_unit_tokens, leaders_of_labels, link_bound
from metastable.analysis.trajectory import DenseOutput, unit_rows

NODES = np.linspace(0.0, 1.0, 5)
"""Where a stretch is looked at: a polynomial of degree 4 is known from five values."""
LEBESGUE = 2.21
"""Such a polynomial exceeds the largest of its values at five equidistant nodes by at most this factor between them."""
SHALLOW = 1e-3
"""Links that open by less than this part of the radius, and close again, may go unseen."""

IntArray = NDArray[np.int64]
Partition = IntArray
Moment = tuple[int, float]
"""A step and a fraction of it."""


def refine(a: Partition, b: Partition) -> Partition:
    """Common refinement: tokens share a label exactly when they do in both."""
    from metastable.analysis import _kernels

    return _kernels.refine(a, b)


def by_first_token(labels: IntArray) -> Partition:
    """Labels (whole numbers from 0 on) renumbered 0, 1, ... by first appearance."""
    from metastable.analysis import _kernels

    return _kernels.by_first_token(labels, int(labels.max()) + 1)


@dataclass(frozen=True)
class Film(ABC):
    """Clusters step by step: moments are fractions u of steps, since late steps are shorter than the spacing of their times.

    start, width : (steps,); radius : tokens closer than this are linked.
    """

    start: FloatArray
    width: FloatArray
    radius: float

    @cached_property
    def _starts(self) -> list[float]:
        return self.start.tolist()

    def locate(self, t: float) -> Moment:
        """Step and fraction of a time; the end for a later one."""
        step = max(0, bisect_right(self._starts, t) - 1)
        u = (t - float(self.start[step])) / float(self.width[step])
        return step, min(1.0, max(0.0, u))

    def last_unsure(self, step: int, asked: NDArray[np.bool_], partition: Partition) -> int:
        """The last step up to this one, among those `asked` for, in which clusters of `partition` are not sure to hold; -1: none."""
        return int(np.max(np.flatnonzero(asked[: step + 1]), initial=-1))

    def last_parting(
        self, together: Partition, leaders: IntArray, begin: Moment, end: Moment, resolution: float
    ) -> tuple[int, float, float]:
        """The last time between two moments at which `leaders` that share a label of `together` were in different clusters: the
        step, and the fractions of it before and after; the step is -1 when they never were.

        A stretch is cut in two until it is sure that no link opens in it, or tokens move so little that its ends tell all.
        """
        for step in range(end[0], begin[0] - 1, -1):
            stretches = [(begin[1] if step == begin[0] else 0.0, end[1] if step == end[0] else 1.0)]
            while stretches:
                low, high = stretches.pop()
                if low >= high:
                    continue
                held, way = self.held(step, low, high)
                if refine(by_first_token(held[leaders]), together).max() == together.max():
                    continue
                if way > SHALLOW * self.radius and high - low > resolution:
                    middle = 0.5 * (low + high)
                    stretches += [(low, middle), (middle, high)]
                elif self._apart(step, low, leaders, together):
                    while high - low > resolution:
                        middle = 0.5 * (low + high)
                        low, high = (middle, high) if self._apart(step, middle, leaders, together) else (low, middle)
                    return step, low, high
        return -1, 0.0, 0.0

    def _apart(self, step: int, u: float, leaders: IntArray, together: Partition) -> bool:
        """Whether leaders that share a label are in different clusters at a moment."""
        return refine(by_first_token(self.look(step, u)[leaders]), together).max() > together.max()

    @abstractmethod
    def look(self, step: int, u: float) -> Partition:
        """Clusters (n,) at a moment."""

    @abstractmethod
    def held(self, step: int, low: float, high: float) -> tuple[Partition, float]:
        """Parts of clusters that hold together from `low` to `high`, and a bound on ways (radians) through which links may change."""


@dataclass(frozen=True)
class RunFilm(Film):
    """The clusters of a run with dense output."""

    dense: DenseOutput
    dim: int

    def tokens(self, step: int, u: float) -> FloatArray:
        """Tokens (n, dim) at a moment."""
        return unit_rows(self.dense.evaluate(step, u), self.dim)

    def look(self, step: int, u: float) -> Partition:
        return labels_of_unit_tokens(self.tokens(step, u), link_bound(self.radius))

    def held(self, step: int, low: float, high: float) -> tuple[Partition, float]:
        """As `Film` says; the way is that of any token from the middle.

        When no token is ever farther than w from where it is in the middle, tokens that are closer than radius - 2 w there are closer
        than the radius throughout. The same holds for their ways as the leader of their cluster sees them, which are much shorter in
        a small cluster that falls as one.
        """
        from metastable.analysis import _kernels

        states = np.stack([self.tokens(step, low + (high - low) * node) for node in NODES])
        middle, bound = states[len(states) // 2], link_bound(self.radius)
        labels = labels_of_unit_tokens(middle, bound)
        leaders = leaders_of_labels(labels)
        chord, seen = _kernels.farthest(states, labels, leaders)
        way = LEBESGUE * 2.0 * math.asin(min(1.0, 0.5 * chord))
        if len(leaders) == len(labels):
            return labels, way
        if 2.0 * way < self.radius and seen.max() >= 0.5 * chord:
            return labels_of_unit_tokens(middle, link_bound(self.radius - 2.0 * way)), way
        firm = 2.0 * LEBESGUE * seen < math.sqrt(bound)
        alone = np.arange(len(labels))
        if not firm.any():
            return alone, way
        parts = labels_of_unit_tokens(middle, (math.sqrt(bound) - 2.0 * LEBESGUE * seen[firm].max()) ** 2)
        return parts if firm.all() else by_first_token(np.where(firm[labels], parts, len(labels) + alone)), way
