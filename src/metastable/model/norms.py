"""How the attention sum A moves a token x = r theta: the normalisations of arXiv:2510.22026.

    d theta / dt = P_theta A / s        dr/dt = rate

| norm | s | dr/dt |
|---|---|---|
| `PostLN` | 1 | (no radius) |
| `PreLN` | r | <theta, A> |
| `MixLN(tau)` | `PostLN` until t = tau, then `PreLN` | |
| `PeriLN` | r abs(A) | <theta, A> / abs(A) |
| `NGPT(alpha)` | abs(A) / alpha | (no radius) |
| `SqrtScaling` | sqrt(t + 1) | (no radius) |
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

from metastable import _checks
from metastable.errors import ModelError


class Norm(ABC):
    """Base of the normalisations."""

    has_radius: ClassVar[bool] = False
    """True when tokens carry a radius r besides their direction."""
    autonomous: ClassVar[bool] = True
    """False when the right-hand side depends on time."""

    @property
    def breakpoints(self) -> tuple[float, ...]:
        """Times at which the right-hand side jumps; integrators step onto them."""
        return ()


@dataclass(frozen=True)
class PostLN(Norm):
    """Normalise after adding: the paper's system on the sphere."""


@dataclass(frozen=True)
class PreLN(Norm):
    """Normalise what attention reads; the residual stream keeps its length."""

    has_radius: ClassVar[bool] = True


@dataclass(frozen=True)
class MixLN(Norm):
    """`PostLN` for t < tau, `PreLN` from then on."""

    tau: float

    has_radius: ClassVar[bool] = True
    autonomous: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", _checks.number(self.tau, "MixLN.tau", 0.0, error=ModelError))

    @property
    def breakpoints(self) -> tuple[float, ...]:
        return (self.tau,)


@dataclass(frozen=True)
class PeriLN(Norm):
    """Normalise what attention reads and what it writes."""

    has_radius: ClassVar[bool] = True


@dataclass(frozen=True)
class NGPT(Norm):
    """Unit-length updates of size `alpha` on the sphere (normalised transformer)."""

    alpha: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", _checks.number(self.alpha, "NGPT.alpha", 0.0, strict=True, error=ModelError))


@dataclass(frozen=True)
class SqrtScaling(Norm):
    """Updates shrink with depth like 1 / sqrt(t + 1)."""

    autonomous: ClassVar[bool] = False
