"""Observables of many tokens at once: how dense they are where, and their energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.analysis.energy import attention_energy, check_energy
from metastable.errors import UnsupportedError
from metastable.model import Attention

CELLS = 72


@dataclass(frozen=True)
class TokenDensity:
    """Tokens per cell of equal measure; made by `density`. `dim` None: the model decides."""

    cells: int
    axis: tuple[float, ...] | None
    dim: int | None = None

    @property
    def dims(self) -> tuple[str, ...]:
        if self.axis is not None:
            return ("band",)
        return ("angle",) if self.dim in (None, 2) else ("height", "angle")

    def for_model(self, model: Attention) -> TokenDensity:
        if self.axis is None and model.dim > 3:
            raise UnsupportedError(
                f"in dimension {model.dim} a density is seen along an axis: density(axis=[1, 0, ...]); cells exist for dim 2 and 3"
            )
        if self.axis is not None:
            _checks.vector(self.axis, "axis", model.dim)
        return replace(self, dim=model.dim)

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        item = self.for_model(model)
        return np.array([item._counts(x, model.masses) for x in np.asarray(states)]).reshape(len(states), *item.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of cells along the dims."""
        return (self.cells,) if len(self.dims) == 1 else (max(1, self.cells // 2), self.cells)

    @property
    def coordinates(self) -> dict[str, np.ndarray]:
        """Middles of the cells in angle, and in height."""
        if self.axis is not None:
            return {}
        *bands, arcs = self.shape
        found = {"angle": _middles(-np.pi, np.pi, arcs)}
        return {"height": _middles(-1.0, 1.0, bands[0]), **found} if bands else found

    def _counts(self, x: FloatArray, masses: FloatArray | None) -> FloatArray:
        weights = np.ones(len(x)) if masses is None else masses
        if self.axis is not None:
            from metastable.sphere import cap_measure

            height = np.clip(x @ np.asarray(self.axis), -1.0, 1.0)
            share = cap_measure(np.arccos(-height), x.shape[1])
            found = np.histogram(share, self.cells, (0.0, 1.0), weights=weights)[0]
        elif x.shape[1] == 2:
            found = np.histogram(np.arctan2(x[:, 1], x[:, 0]), self.cells, (-np.pi, np.pi), weights=weights)[0]
        else:
            edges = ((-1.0, 1.0), (-np.pi, np.pi))
            height, turn = np.clip(x[:, 2], -1.0, 1.0), np.arctan2(x[:, 1], x[:, 0])
            found = np.histogram2d(height, turn, self.shape, edges, weights=weights)[0]
        return found * (found.size / weights.sum())


def _middles(low: float, high: float, cells: int) -> np.ndarray:
    return low + (high - low) * (np.arange(cells) + 0.5) / cells


def density(cells: int = CELLS, axis: Sequence[float] | None = None) -> TokenDensity:
    """How dense tokens are, in cells of equal measure; 1 is the density of uniform tokens.

    On the circle `cells` arcs, from the angle -pi on, dims (angle,). On S^2 cells/2 bands of the height x_3, from -1 on, times `cells`
    angles around, dims (height, angle). With an `axis` (dim,), in any dimension, `cells` bands of <x, axis> that uniform tokens fill
    evenly, from the far pole on, dims (band,). Masses count: a token of mass 2 is two.
    The coordinates `angle` and `height` are those of the middles of the cells.

    For a smooth density see `Run.density`.
    """
    cells = _checks.count(cells, "cells", minimum=2, maximum=8192)
    if axis is None:
        return TokenDensity(cells, None)
    vector = _checks.vector(axis, "axis")
    unit = _checks.tokens(vector[None, :], "axis")[0]
    return TokenDensity(cells, tuple(unit.tolist()))


@dataclass(frozen=True)
class Energy:
    """Energy of all tokens together; made by `energy`."""

    follows_model: ClassVar[bool] = True

    @property
    def dims(self) -> tuple[str, ...]:
        return ()

    def for_model(self, model: Attention) -> Energy:
        """Itself, unless the model has no such energy: an ensemble must not find that out at its end."""
        check_energy(model)
        return self

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        return np.array([attention_energy(model, x) for x in np.asarray(states)])


def energy() -> Energy:
    """Energy of full attention (`metastable.analysis.attention_energy`): SA and USA with Q^T K = V symmetric. It never falls; its steps
    are merges. Masses count.

    Reference: arXiv:2312.10794, section 3; arXiv:2410.06833.
    """
    return Energy()
