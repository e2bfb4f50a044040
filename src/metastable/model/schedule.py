"""`Schedule`: models that follow one another in depth, each constant for a while."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable import _checks
from metastable.errors import ModelError, TimeError
from metastable.model.attention import Attention


@dataclass(frozen=True)
class Schedule:
    """Weights that are piecewise constant in depth: `Schedule([(0.0, model), (5.0, other)])` is `model` up to depth 5, then `other`.

    The first piece begins at 0, later ones at increasing depths; all have one dimension, and norms with a radius or without.
    At a joint the model behind it holds.
    """

    pieces: tuple[tuple[float, Attention], ...]

    def __post_init__(self) -> None:
        pieces = self.pieces
        if isinstance(pieces, (str, bytes)) or not isinstance(pieces, Iterable):
            raise ModelError(f"Schedule takes a list of (depth, model), not {pieces!r}")
        object.__setattr__(self, "pieces", tuple(_piece(item) for item in pieces))
        if not self.pieces or self.pieces[0][0] != 0.0:
            raise TimeError("a Schedule begins at depth 0: Schedule([(0.0, model), (5.0, other)])")
        if (np.diff(self.joints) <= 0).any():
            raise TimeError(f"the depths of a Schedule must increase, not {list(self.joints)}")
        first = self.models[0]
        for number, model in enumerate(self.models):
            if model.dim != first.dim or model.norm.has_radius != first.norm.has_radius:
                raise ModelError(f"model {number} of the Schedule has another dim or kind of norm than the first")

    @property
    def joints(self) -> tuple[float, ...]:
        """Depths at which the models begin; the first is 0."""
        return tuple(begin for begin, _ in self.pieces)

    @property
    def models(self) -> tuple[Attention, ...]:
        """The models in order."""
        return tuple(model for _, model in self.pieces)

    def index(self, t: float) -> int:
        """Number of the piece that holds at depth t (at a joint: the one behind it)."""
        depth = _checks.number(t, "t", 0.0, error=TimeError)
        return int(np.searchsorted(self.joints, depth, side="right")) - 1

    def at(self, t: float) -> Attention:
        """The model at depth t (at a joint: the one behind it)."""
        return self.models[self.index(t)]

    def until(self, end: float) -> Schedule:
        """The pieces that begin before `end`."""
        end = _checks.horizon(end, "end")
        return Schedule(tuple(piece for piece in self.pieces if piece[0] < end or piece[0] == 0.0))


def _piece(item: Any) -> tuple[float, Attention]:
    """A depth and a model."""
    if not isinstance(item, Sequence) or len(item) != 2 or not isinstance(item[1], Attention):
        raise ModelError(f"each piece of a Schedule is (depth, Attention), not {item!r}")
    return _checks.number(item[0], "the depth of a piece of a Schedule", 0.0, error=TimeError), item[1]
