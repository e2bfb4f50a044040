"""How the attention sum A moves a token x = r theta: the normalisations of arXiv:2510.22026.

A layer adds U = a (t + 1)^-c |A|^-q A per unit of depth, and

    d theta / dt = P_theta U / r^p        dr/dt = rho <theta, U>.

The five numbers (a, c, p, q, rho) are the norm's `Law`; engines read them and know nothing else about it.

| norm | a | c | p | q | rho | in words |
|---|---|---|---|---|---|---|
| `PostLN` | 1 | 0 | 0 | 0 | 0 | P A |
| `PreLN` | 1 | 0 | 1 | 0 | 1 | P A / r, dr/dt = <theta, A> |
| `MixLN(tau)` | | | | | | `PostLN` until t = tau, then `PreLN` |
| `PeriLN` | 1 | 0 | 1 | 1 | 1 | P A / (r abs(A)), dr/dt = <theta, A> / abs(A) |
| `NGPT(alpha)` | alpha | 0 | 0 | 1 | 0 | alpha P A / abs(A) |
| `SqrtScaling` | 1 | 1/2 | 0 | 0 | 0 | P A / sqrt(t + 1) |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from metastable.model.declare import Declared, parameter


class Law(NamedTuple):
    """The numbers of d theta/dt = P_theta U / r^radius_power, dr/dt = radial <theta, U> with
    U = amplitude (t + 1)^-decay |A|^-length_power A. Where A = 0 nothing moves, whatever the powers.
    """

    amplitude: float = 1.0
    decay: float = 0.0
    radius_power: float = 0.0
    length_power: float = 0.0
    radial: float = 0.0

    def depth(self, t: float) -> float:
        """(t + 1)^decay, what an update is divided by at depth t."""
        if self.decay == 0.0:
            return 1.0
        return math.sqrt(t + 1.0) if self.decay == 0.5 else (t + 1.0) ** self.decay


POST = Law()
PRE = Law(radius_power=1.0, radial=1.0)
PERI = Law(radius_power=1.0, length_power=1.0, radial=1.0)


class Norm(Declared, ABC, family="norm"):
    """Base of the normalisations: a law that is constant in depth between `breakpoints`."""

    @abstractmethod
    def law(self, t: float) -> Law:
        """The law at depth t (at a breakpoint: the one behind it)."""

    @property
    def breakpoints(self) -> tuple[float, ...]:
        """Depths at which the law changes; integrators step onto them."""
        return ()

    def depth_of(self, begin: float, t: float) -> float:
        """The depth begin + t, on the side of a breakpoint b on which t is of b - begin: the sum may be rounded onto the other one."""
        depth = begin + t
        for b in self.breakpoints if begin else ():
            if t < b - begin:
                depth = min(depth, math.nextafter(b, -math.inf))
            else:
                depth = max(depth, b)
        return depth

    @property
    def laws(self) -> tuple[Law, ...]:
        """The laws in the order in which they hold."""
        return tuple(self.law(t) for t in (0.0, *self.breakpoints))

    @property
    def has_radius(self) -> bool:
        """True when tokens carry a radius r besides their direction."""
        return any(law.radial != 0 or law.radius_power != 0 for law in self.laws)

    @property
    def autonomous(self) -> bool:
        """False when the right-hand side depends on depth."""
        return not self.breakpoints and all(law.decay == 0 for law in self.laws)


@dataclass(frozen=True)
class PostLN(Norm):
    """Normalise after adding: the paper's system on the sphere."""

    kind: ClassVar[str] = "post_ln"
    label: ClassVar[str] = "Post-LN"

    def law(self, t: float) -> Law:
        return POST


@dataclass(frozen=True)
class PreLN(Norm):
    """Normalise what attention reads; the residual stream keeps its length."""

    kind: ClassVar[str] = "pre_ln"
    label: ClassVar[str] = "Pre-LN"

    def law(self, t: float) -> Law:
        return PRE


@dataclass(frozen=True)
class MixLN(Norm):
    """`PostLN` for t < tau, `PreLN` from then on."""

    kind: ClassVar[str] = "mix_ln"
    label: ClassVar[str] = "Mix-LN"

    tau: float = parameter("change at", symbol="τ", suggestion=5.0, minimum=0.0)

    @property
    def breakpoints(self) -> tuple[float, ...]:
        return (self.tau,)

    def law(self, t: float) -> Law:
        return POST if t < self.tau else PRE


@dataclass(frozen=True)
class PeriLN(Norm):
    """Normalise what attention reads and what it writes.

    A/|A| jumps where A passes through zero. A start where it is zero to rounding is refused (`NumericalRangeError`). A run that
    comes to such a place slides along it, or rests, by many short steps and with errors of some hundred tolerances: compare it with
    one of a smaller `rtol`.
    """

    kind: ClassVar[str] = "peri_ln"
    label: ClassVar[str] = "Peri-LN"

    def law(self, t: float) -> Law:
        return PERI


@dataclass(frozen=True)
class NGPT(Norm):
    """Unit-length updates of size `alpha` on the sphere (normalised transformer). Where A is zero: see `PeriLN`."""

    kind: ClassVar[str] = "ngpt"
    label: ClassVar[str] = "nGPT"

    alpha: float = parameter("update", symbol="α", suggestion=1.0, minimum=0.0, strict=True)

    def law(self, t: float) -> Law:
        return Law(amplitude=self.alpha, length_power=1.0)


@dataclass(frozen=True)
class SqrtScaling(Norm):
    """Updates shrink with depth like 1 / sqrt(t + 1)."""

    kind: ClassVar[str] = "sqrt_scaling"
    label: ClassVar[str] = "√t scaling"

    def law(self, t: float) -> Law:
        return Law(decay=0.5)
