"""What an integrator may expect of a right-hand side, whichever engine made it."""

from __future__ import annotations

from typing import Literal, Protocol

from metastable._checks import FloatArray

Interaction = Literal["direct", "series"]
"""How a sum over tokens is made: pair by pair, or by an expansion."""
Steps = Literal["explicit", "implicit", "fixed"]
"""What a method does: adaptive steps, explicit or in the end implicit ones, or steps of one size."""
Precision = Literal["float64", "float32"]


class RightHandSide(Protocol):
    """Velocity on packed states (see the design notes): writes dy/dt at (t, y) into `out`, all of shape (tokens, width)."""

    def __call__(self, t: float, y: FloatArray, out: FloatArray) -> None: ...
