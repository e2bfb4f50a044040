"""What was asked, once: the `Plan` that `simulate`, `ensemble` and sweeps make and that every method reads.

    Plan(models, method, save, accuracy, backend, seed)

`Wishes` are the same things as the user said them; `planning.make` turns them into a plan. Defaults are written here and nowhere
else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate.solution import Resume
from metastable.integrate.tableau import TABLEAUS, TSIT5, Tableau
from metastable.kernels import select
from metastable.model import Attention

RTOL = 1e-6
ATOL = 1e-9
MAX_STEPS = 100_000
SDE_STEP = 0.01
"""Default step of `method="sde"`; shorter for strong noise in high dimension (`sde.default_step`)."""
SETTLED_HORIZON = 1e300
"""How far `until="settled"` may go: double precision ends near here."""
LATEST = 1e6
"""Beyond this time (in units of the inverse size of V) rounding errors of explicit steps move clusters at rest: implicit ones only."""
SHORT = 1e3
"""Horizons up to this (times the size of V) are explicit: some hundred steps of stable length."""
SHORT_DENSE = 3e4
"""The same for unnormalised weights, whose implicit steps factor a matrix of all tokens (and whose speed is exp(beta))."""


@dataclass(frozen=True)
class Accuracy:
    """How carefully: the tolerances of adaptive methods, the step of the others, and when to give up."""

    rtol: float = RTOL
    atol: float = ATOL
    max_steps: int = MAX_STEPS
    step: float = 0.0

    @property
    def tolerance(self) -> float:
        """Tokens have length one: the relative and the absolute tolerance add up."""
        return self.rtol + self.atol


DEFAULT = Accuracy()
"""As carefully as always."""


@dataclass(frozen=True)
class Save:
    """What is kept, and until when: the states at `times`, or every step with dense output (None)."""

    until: float
    times: FloatArray | None = None
    settled: bool = False
    """Stop earlier, when all tokens have stopped for good."""

    def within(self, begin: float, end: float) -> FloatArray | None:
        """The times behind `begin` (at depth 0: from it on) up to `end`; None for every step."""
        times = self.times
        return None if times is None else times[(times <= end) & ((times > begin) | (begin == 0.0))]


@dataclass(frozen=True)
class Plan:
    """A checked call of `simulate` or `ensemble`, less the starts. `models` holds one model, or one per layer, or those
    of a `Schedule`."""

    models: tuple[Attention, ...]
    method: str
    save: Save
    accuracy: Accuracy = DEFAULT
    backend: select.Backend = select.Backend("reference")
    seed: int | None = None
    joints: tuple[float, ...] = ()
    """Depths at which the models of a `Schedule` begin; empty for one model, and for layers."""
    resume: Resume | None = None
    """Where an earlier integration is taken up; then the start of a solver is its state."""

    @property
    def model(self) -> Attention:
        """The model (of the first layer)."""
        return self.models[0]

    @property
    def steps(self) -> int:
        """Steps of a fixed-step method to the end."""
        return int(np.rint(self.save.until / self.accuracy.step))

    @property
    def steps_done(self) -> int:
        """Steps that a fixed-step method has made before it is taken up."""
        return 0 if self.resume is None else self.resume.statistics.accepted

    @property
    def tableau(self) -> Tableau:
        """The explicit method that it is or begins with."""
        return TABLEAUS.get(self.method, TSIT5)

    def packed(self, start: FloatArray) -> FloatArray:
        """Tokens (..., tokens, dim) as packed states: with a column of radii, all one, where the norm has a radius."""
        if start.shape[-1] == self.model.width:
            return start
        return np.concatenate([start, np.ones((*start.shape[:-1], 1))], axis=-1)

    def piece(self, begin: float, end: float, wanted: FloatArray | None, max_steps: int) -> Plan:
        """The same plan from `begin` to `end`, in a time of its own. The end, where the next piece starts, is saved besides the times
        that are `wanted` (None: every step)."""
        times = None if wanted is None else np.unique(np.append(wanted, end) - begin)
        return replace(self, save=Save(end - begin, times), accuracy=replace(self.accuracy, max_steps=max_steps))


@dataclass(frozen=True)
class Wishes:
    """The arguments that `simulate`, `ensemble` and sweeps share, as the user gave them; see `metastable.simulate`."""

    method: str = "auto"
    engine: str = "auto"
    interaction: str = "auto"
    rtol: float = RTOL
    atol: float = ATOL
    step: float | None = None
    max_steps: int = MAX_STEPS
    threads: int | None = None
    dtype: str = "float64"


def size_of_value(model: Attention) -> float:
    """Sum over the heads of the largest speeds, the inverse of the shortest time scale: the norm of V, for unnormalised weights times
    the largest weight exp(beta |Q^T K|)."""
    if model.weighting.kind != "unnormalized":
        return sum(head.value_size for head in model.all_heads)
    largest = [min(abs(head.beta) * head.bilinear_size, 700.0) for head in model.all_heads]
    return sum(head.value_size * math.exp(logit) for head, logit in zip(model.all_heads, largest))


def short(model: Attention, until: float) -> bool:
    """True for horizons that explicit steps reach easily."""
    limit = SHORT_DENSE if model.weighting.kind == "unnormalized" else SHORT
    return until * size_of_value(model) <= limit


def without_settling(reason: str) -> str:
    """What to do instead of `until="settled"` where the implicit method is refused for this reason."""
    return f"until='settled' needs the implicit method; give a horizon, such as until=1000.0, to a model that it refuses: {reason}"
