"""A call of `ensemble`, checked as a whole before any work starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks, sphere
from metastable._checks import FloatArray
from metastable.analysis import _balls
from metastable.errors import InvalidInputError
from metastable.integrate.plan import Plan, Wishes
from metastable.integrate.planning import horizon, make
from metastable.model import Attention

if TYPE_CHECKING:
    from metastable.analysis.observe import Observable

OVERLAPPING_BATCH = 1024
"""Members per batch when measuring overlaps with simulating: few enough to overlap much, enough to keep all lanes busy."""
Start = Callable[[np.random.Generator], Any]


@dataclass(frozen=True)
class Problem:
    """A checked call of `ensemble`."""

    plan: Plan
    tokens: int
    members: int
    times: FloatArray
    seed: int
    observables: dict[str, Observable]
    draw: Start | None
    memory: int

    @property
    def model(self) -> Attention:
        return self.plan.model

    @cached_property
    def overlap(self) -> bool:
        """True when a batch is measured while the next one is simulated: on the CPU, with more than one thread."""
        if self.plan.backend.engine != "cpu":
            return False
        from metastable.kernels.cpu.threads import thread_count

        return thread_count(self.plan.backend.threads) > 1

    @property
    def batch(self) -> int:
        """Members per batch: as many as fit into the memory bound, at least one; two batches overlap in smaller ones."""
        fits = self.memory // (8 * self.times.size * self.tokens * self.model.dim)
        return max(1, min(fits // 2, OVERLAPPING_BATCH) if self.overlap else fits)

    @cached_property
    def on_device(self) -> dict[str, Any]:
        """The observables as the GPU measures them, if it can measure them all; else empty."""
        if (
            self.plan.backend.engine != "cuda"
            or self.plan.method != "tsit5"
            or self.plan.backend.interaction == "series"
        ):
            return {}
        from metastable.kernels.cuda import support

        if support.fused_refusal(self.model, self.tokens, self.plan.backend.dtype) is not None:
            return {}
        translated = {name: _device_observable(item) for name, item in self.observables.items()}
        return translated if all(item is not None for item in translated.values()) else {}

    def start(self, member: int) -> FloatArray:
        """Start of one member, from its own child of the seed."""
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(member,)))
        if self.draw is None:
            return sphere.uniform(self.tokens, dim=self.model.dim, seed=generator)
        drawn = _checks.tokens(self.draw(generator), "start(generator)", dim=self.model.dim)
        if len(drawn) != self.tokens:
            raise InvalidInputError(f"start(generator) returned {len(drawn)} tokens, but tokens={self.tokens}")
        return drawn


def check(
    model: Attention,
    tokens: int,
    members: int,
    times: Any,
    seed: int,
    observe: Mapping[str, Observable] | None,
    start: str | Start,
    memory: int,
    wishes: Wishes,
) -> Problem:
    """The arguments of `ensemble` as a `Problem`, or a named exception."""
    if not isinstance(model, Attention):
        raise InvalidInputError(f"model must be an Attention, not {model!r}")
    save = horizon(None, times, wishes.method)
    assert save.times is not None
    count = _checks.count(tokens, "tokens")
    model.check_count(count)
    size = _checks.count(members, "members")
    _checks.room((count, model.dim), "the tokens of a member")
    _checks.room((size, save.times.size), "one number per member and time")
    plan = make((model,), count, save, wishes, members=size, seed=_checks.seed(seed))
    return Problem(
        plan,
        count,
        size,
        save.times,
        _checks.seed(seed),
        _observables(observe, model),
        _start(start),
        _checks.count(memory, "memory"),
    )


def _observables(observe: Mapping[str, Observable] | None, model: Attention) -> dict[str, Observable]:
    from metastable.analysis import observe as known

    if observe is None:
        return {"x": known.state()}
    if not isinstance(observe, Mapping) or not observe:
        raise InvalidInputError(
            'observe must be a dictionary such as {"clusters": metastable.observe.clusters(radius=0.1)}'
        )
    for name, observable in observe.items():
        known.check_observable(observable, f"observe[{name!r}]")
        if name in ("status", "accepted", "rejected", "evaluations", "member", "time"):
            raise InvalidInputError(f"observe: the name {name!r} is taken by the dataset itself; choose another")
    return {name: known.for_model(observable, model) for name, observable in observe.items()}


def _start(start: str | Start) -> Start | None:
    """How members are drawn: a function, or None for the uniform distribution."""
    if isinstance(start, str) and start == "uniform":
        return None
    if not callable(start):
        raise InvalidInputError(
            f"start must be 'uniform' or a function of a numpy.random.Generator, not {type(start).__name__}; the same tokens for "
            "every member: start=lambda generator: x"
        )
    return start


def _device_observable(observable: Observable) -> Any:
    """What the GPU measures in place of an observable, or None."""
    from metastable.analysis import observe as known
    from metastable.kernels.cuda.measure import Capture, Components

    if isinstance(observable, known.Consumed):
        assert observable.delta is not None  # both were filled in by `_observables`
        assert observable.radius is not None
        bounds = _balls.within_or_at(observable.delta), _balls.within_or_at(observable.radius)
        return Capture(*bounds, strong=observable.strong, moving=observable.moving)
    if isinstance(observable, known.Clusters):
        assert observable.radius is not None
        return Components(_balls.closer_than(observable.radius))
    return None
