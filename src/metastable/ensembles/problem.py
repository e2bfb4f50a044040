"""A call of `ensemble`, checked as a whole before any work starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks, sphere
from metastable._checks import FloatArray
from metastable.analysis import _balls
from metastable.analysis.observe_own import name_of, required_arguments, required_names, takes_seed
from metastable.errors import InvalidInputError, ModelError, OwnFunctionError, own_function
from metastable.integrate.plan import Plan, Wishes
from metastable.integrate.planning import horizon, make
from metastable.integrate.tableau import TABLEAUS
from metastable.model import Attention
from metastable.stores.membership import DIGEST, WHO

if TYPE_CHECKING:
    from metastable.analysis.observe import Observable

OVERLAPPING_BATCH = 1024
"""Members per batch when measuring overlaps with simulating: few enough to overlap much, enough to keep all lanes busy."""
COMPILED_DRAWS = 2**18
"""Numbers from which drawing starts is worth compiling: NumPy draws fewer in less than a tenth of a second."""
FIRST_MODELS = 32
"""Members among which one is looked for whose model can be drawn."""
Start = Callable[..., Any]
"""A function of a `numpy.random.Generator` (or of generator, tokens and dim) that returns unit tokens."""
DrawModel = Callable[[np.random.Generator], Attention]
MODEL_STREAM = 1
"""The stream of a member's seed that its model is drawn from; its start and its noise have others, so they do not change with it."""


@dataclass(frozen=True)
class Draw:
    """How members are drawn: `function` of a generator, or of generator, tokens and dim (`sized`)."""

    function: Start
    name: str
    sized: bool

    def __call__(self, generator: np.random.Generator, tokens: int, dim: int) -> Any:
        return self.function(generator, tokens, dim) if self.sized else self.function(generator)


@dataclass(frozen=True)
class Problem:
    """A checked call of `ensemble`."""

    plan: Plan
    """Of every member, or of the first one where each has a model of its own."""
    tokens: int
    members: int
    times: FloatArray
    seed: int
    observables: dict[str, Observable]
    draw: Draw | None
    memory: int
    draw_model: DrawModel | None = None
    wishes: Wishes = Wishes()
    first: int = 0
    """The first member whose model could be drawn."""

    @property
    def model(self) -> Attention:
        return self.plan.model

    @property
    def model_json(self) -> str:
        """The model, or how it was drawn, for the dataset."""
        if self.draw_model is None:
            return self.model.for_tokens(self.tokens).to_json()
        first = self.model.for_tokens(self.tokens).to_dict()
        return json.dumps({"kind": "drawn", "by": name_of(self.draw_model), "first": first})

    def member_plan(self, member: int) -> Plan:
        """The plan of one member."""
        if self.draw_model is None or member == self.first:
            return self.plan
        model = drawn_model(self.draw_model, self.seed, member)
        if model.dim != self.model.dim:
            raise ModelError(
                f"model(generator) drew dim={model.dim} for member {member} and dim={self.model.dim} for member {self.first}; "
                "all members have the same dimension"
            )
        model.check_count(self.tokens)
        return make((model,), self.tokens, self.plan.save, self.wishes, members=1, seed=self.seed)

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
        if self.draw_model is not None:
            return 1
        fits = self.memory // (8 * self.times.size * self.tokens * self.model.dim)
        return max(1, min(fits // 2, OVERLAPPING_BATCH) if self.overlap else fits)

    @property
    def device_batch(self) -> int:
        """Members per batch that is measured on the GPU, which leaves no states here, only starts."""
        from metastable.kernels.cuda.support import MOST_MEMBERS

        return max(1, min(self.memory // (8 * self.tokens * self.model.dim), MOST_MEMBERS))

    @cached_property
    def on_device(self) -> dict[str, Any]:
        """The observables as the GPU measures them, if it can measure them all; else empty."""
        if (
            self.draw_model is not None
            or self.plan.backend.engine != "cuda"
            or self.plan.method not in TABLEAUS
            or self.plan.backend.interaction == "series"
        ):
            return {}
        from metastable.kernels.cuda import support

        if support.fused_refusal(self.model, self.tokens, self.plan.backend.dtype) is not None:
            return {}
        translated = {name: _device_observable(item) for name, item in self.observables.items()}
        return translated if all(item is not None for item in translated.values()) else {}

    def uniform_starts(self, members: range) -> FloatArray:
        """Uniform starts (members, tokens, dim): those of `start`, many of them in one compiled call."""
        if len(members) * self.tokens * self.model.dim < COMPILED_DRAWS:
            return np.stack([self.start(member) for member in members])
        from metastable.kernels.cpu import starts

        threads = self.plan.backend.threads
        return starts.uniform(self.seed, members.start, len(members), self.tokens, self.model.dim, threads)

    def named(self, member: int) -> str:
        """A member, for messages."""
        return _named(self.seed, member)

    def start(self, member: int) -> FloatArray:
        """Start of one member, from its own child of the seed; `OwnFunctionError` where the function that draws it raises."""
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(member,)))
        if self.draw is None:
            return sphere.uniform(self.tokens, dim=self.model.dim, seed=generator)
        dim = self.model.dim
        try:
            given = self.draw(generator, self.tokens, dim)
        except Exception as reason:  # whatever a function of somebody raises
            raise own_function(f"the start {self.draw.name!r}", self.named(member), reason) from reason
        drawn = _checks.tokens(given, "start(generator)", dim=dim)
        if len(drawn) != self.tokens:
            raise InvalidInputError(f"start(generator) returned {len(drawn)} tokens, but tokens={self.tokens}")
        return drawn


def _named(seed: int, member: int) -> str:
    return f"member {member} of seed {seed}"


def drawn_model(draw: DrawModel, seed: int, member: int) -> Attention:
    """The model of one member, from a stream of its own of the member's seed; `OwnFunctionError` where `draw` raises."""
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(member, MODEL_STREAM)))
    try:
        model = draw(generator)
    except Exception as reason:  # whatever a function of somebody raises
        raise own_function(f"the model {name_of(draw)!r}", _named(seed, member), reason) from reason
    if not isinstance(model, Attention):
        raise InvalidInputError(f"model(generator) must return an Attention, not {model!r}")
    return model


def check(
    model: Attention | DrawModel,
    tokens: int,
    members: int,
    times: Any,
    seed: int,
    observe: Any,
    start: str | Start,
    memory: int,
    wishes: Wishes,
) -> Problem:
    """The arguments of `ensemble` as a `Problem`, or a named exception."""
    draw_model: DrawModel | None = None
    first = 0
    if not isinstance(model, Attention):
        if not callable(model) or isinstance(model, type):
            raise InvalidInputError(
                f"model must be an Attention, or a function of a numpy.random.Generator that returns one, not {model!r}"
            )
        draw_model = model
        first, model = _first_model(model, _checks.seed(seed), _checks.count(members, "members"))
    save = horizon(None, times, wishes.method)
    assert save.times is not None
    count = _checks.count(tokens, "tokens")
    model.check_count(count)
    size = _checks.count(members, "members")
    _checks.room((count, model.dim), "the tokens of a member")
    _checks.room((size, save.times.size), "one number per member and time")
    together = 1 if draw_model is not None else size
    plan = make((model,), count, save, wishes, members=together, seed=_checks.seed(seed))
    return Problem(
        plan,
        count,
        size,
        save.times,
        _checks.seed(seed),
        _observables(observe, model if draw_model is None else None),
        _start(start),
        _checks.count(memory, "memory"),
        draw_model,
        wishes,
        first,
    )


def _first_model(draw: DrawModel, seed: int, members: int) -> tuple[int, Attention]:
    """The first member whose model can be drawn, and this; what the first one raised where the first `FIRST_MODELS` cannot."""
    reasons: list[OwnFunctionError] = []
    for member in range(min(members, FIRST_MODELS)):
        try:
            return member, drawn_model(draw, seed, member)
        except OwnFunctionError as reason:
            reasons.append(reason)
    raise reasons[0]


def _observables(observe: Any, model: Attention | None) -> dict[str, Observable]:
    from metastable.analysis import observe as known

    if observe is None:
        return {"x": known.state()}
    if callable(observe) and name_of(observe).isidentifier():
        observe = {name_of(observe): observe}  # a function of one's own: its name is that of the result
    if callable(observe):
        raise InvalidInputError(
            'observe: this function has no name to call its result by (a lambda); give it one, observe={"height": f}'
        )
    if not isinstance(observe, Mapping) or not observe:
        raise InvalidInputError(
            'observe must be a dictionary such as {"clusters": metastable.observe.clusters(radius=0.1)}'
        )
    checked: dict[str, Observable] = {}
    for name, observable in observe.items():
        if not isinstance(name, str) or not name.strip(". ") or {"/", "\\"} & {*name}:
            raise InvalidInputError(f"observe: {name!r} cannot be the name of a result; use letters, digits and _")
        item: Any = known.as_observable(observable, f"observe[{name!r}]", name)
        if name in (*WHO, DIGEST, "time"):
            raise InvalidInputError(f"observe: the name {name!r} is taken by the dataset itself; choose another")
        # With one model for all, its lengths are filled in (and shown by the dataset); else member by member.
        checked[name] = item if model is None else known.for_model(item, model)
    for name, owner in names_of_lengths(checked).items():
        if name in checked:
            raise InvalidInputError(
                f"observe: {name!r} is where the dataset says what length {owner!r} had for each member, whose model sets it; choose "
                f"another name, or give that length to {owner!r} yourself"
            )
    return checked


def names_of_lengths(observables: Mapping[str, Any]) -> dict[str, str]:
    """Variables such as `clusters_radius` that a dataset has for lengths which each member's own model sets -> whose length it is."""
    from metastable.analysis.observe import lengths_left

    return {f"{name}_{length}": name for name, item in observables.items() for length in lengths_left(item)}


def _start(start: str | Start) -> Draw | None:
    """How members are drawn: a function, or None for the uniform distribution."""
    if isinstance(start, str) and start == "uniform":
        return None
    if not callable(start):
        raise InvalidInputError(
            f"start must be 'uniform' or a function of a numpy.random.Generator, not {type(start).__name__}; the same tokens for "
            "every member: start=lambda generator: x"
        )
    needed, missing = required_arguments(start), required_names(start)
    if takes_seed(start):
        raise InvalidInputError(
            f"start is called as f(generator) or f(generator, tokens, dim), and {name_of(start)!r} takes a number of tokens first and "
            f"the generator as its seed; say start=lambda generator, tokens, dim: {name_of(start)}(tokens, dim, seed=generator, ...)"
        )
    if missing:
        raise InvalidInputError(
            f"start is called as f(generator) or f(generator, tokens, dim), and {name_of(start)!r} needs {', '.join(missing)} by name; "
            "give it with functools.partial(f, name=value)"
        )
    if needed not in (None, 1, 3):
        raise InvalidInputError(
            f"start must be a function of a generator, or of (generator, tokens, dim), and {name_of(start)!r} needs {needed} "
            "arguments; fix the others with functools.partial(f, name=value)"
        )
    return Draw(start, name_of(start), needed == 3)


def _device_observable(observable: Observable) -> Any:
    """What the GPU measures in place of an observable, or None."""
    from metastable.analysis import observe as known
    from metastable.kernels.cuda.observables import Capture, Components

    if isinstance(observable, known.Consumed):
        assert observable.delta is not None  # both were filled in by `_observables`
        assert observable.radius is not None
        bounds = _balls.within_or_at(observable.delta), _balls.within_or_at(observable.radius)
        return Capture(*bounds, strong=observable.strong, moving=observable.moving)
    if isinstance(observable, known.Clusters):
        assert observable.radius is not None
        return Components(_balls.closer_than(observable.radius))
    return None
