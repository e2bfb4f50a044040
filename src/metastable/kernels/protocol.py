"""What an integrator may expect of a right-hand side, whichever engine made it."""

from __future__ import annotations

from typing import Protocol

from metastable._checks import FloatArray


class RightHandSide(Protocol):
    """Velocity on packed states (see the design notes): writes dy/dt at (t, y) into `out`, all of shape (tokens, width)."""

    def __call__(self, t: float, y: FloatArray, out: FloatArray) -> None: ...
