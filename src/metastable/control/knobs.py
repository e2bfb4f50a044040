"""Knobs: the scalar numbers of a model that control may turn, each with how it is read and set."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metastable import _checks
from metastable.errors import GoalError, InvalidInputError, MetastableError, ModelError, own_function
from metastable.model import Attention, Frozen
from metastable.model.declare import parameters

SMALLEST, LARGEST = 1e-12, 1e12
"""Bounds of knobs whose declarations have none."""


@dataclass(frozen=True)
class Knob:
    """A positive number that can be turned.

    Fields
    ------
    name : what it is called.
    set : function (model, value) -> `Attention`; None for the number of tokens, which no model holds.
    get : function of a model that returns the value it has; None where there is none yet.
    whole : a whole number.
    low, high : bounds of the value, both > 0: knobs are turned by factors.
    """

    name: str
    set: Callable[[Attention, Any], Attention] | None
    get: Callable[[Attention], float] | None = None
    whole: bool = False
    low: float = SMALLEST
    high: float = LARGEST

    def __post_init__(self) -> None:
        _checks.text(self.name, "Knob.name")
        for function, name in ((self.set, "set"), (self.get, "get")):
            if function is not None and not callable(function):
                raise InvalidInputError(f"Knob.{name} must be a function or None, not {function!r}")
        object.__setattr__(self, "whole", _checks.flag(self.whole, "Knob.whole"))
        low = _checks.number(self.low, "Knob.low", 0.0, strict=True)
        high = _checks.number(self.high, "Knob.high", low, strict=True)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)


def rounded(knob: Knob, value: float) -> float:
    """The value that the knob can have next to this one."""
    value = min(max(value, knob.low), knob.high)
    return float(min(max(round(value), math.ceil(knob.low)), math.floor(knob.high))) if knob.whole else value


def applied(knob: Knob, model: Attention, value: float) -> Attention:
    """The model with the knob at this value (the same one where no model holds it)."""
    if knob.set is None:
        return model
    try:
        found = knob.set(model, int(value) if knob.whole else value)
    except MetastableError:
        raise
    except Exception as reason:
        raise own_function(f"the knob {knob.name!r}", f"set to {value:g}", reason) from reason
    return _checks.instance(found, Attention, f"what {knob.name} sets")


def own_value(knob: Knob, model: Attention) -> float:
    """The value that the model has; 0 where it has none."""
    if knob.get is None:
        return 0.0
    try:
        found = knob.get(model)
    except MetastableError:
        raise
    except Exception as reason:
        raise own_function(f"the knob {knob.name!r}", "asked for its value", reason) from reason
    return _checks.number(found, f"the value of the knob {knob.name!r}")


def narrowed(knob: Knob, low: float, high: float) -> Knob:
    """The same knob with narrower bounds; `GoalError` where nothing is left between them."""
    low, high = max(knob.low, low), min(knob.high, high)
    if not low < high:
        raise GoalError(
            f"no value of the knob {knob.name!r} is left between {low:.4g} and {high:.4g}; give other bounds: between=(low, high)"
        )
    return replace(knob, low=low, high=high)


def value_of(knob: Knob, model: Attention) -> float:
    """The value that the model has; `InvalidInputError` where it has none, or none that factors could change."""
    value = own_value(knob, model)
    if not value > 0.0:
        raise InvalidInputError(
            f"the knob {knob.name!r} is {value:g} in this model; give one where it is greater than 0"
        )
    return value


def knob_of(model: Attention, knob: str | Knob) -> Knob:
    """The `Knob` that a name stands for in this model.

    "beta" (all heads by one factor), "noise", "tokens", "window" (the width that the mask has), "norm" (the number that the norm
    has), "sink" (the total weight of frozen tokens, shared as it is, or equally where it is 0), "gap" (how far the other eigenvalues
    of V are below its largest one, all by one factor).
    """
    if isinstance(knob, Knob):
        return knob
    if not isinstance(knob, str) or knob not in NAMED:
        names = ", ".join(repr(name) for name in NAMED)
        raise InvalidInputError(f"knob must be one of {names}, or a metastable.control.Knob, not {knob!r}")
    return NAMED[knob](model)


def _get_beta(model: Attention) -> float:
    return max(head.beta for head in model.all_heads)


def _set_beta(model: Attention, value: float) -> Attention:
    if model.heads is None:
        return model.replace(beta=value)
    factor = value / _get_beta(model)
    return model.replace(heads=tuple(replace(head, beta=head.beta * factor) for head in model.heads))


def _beta(model: Attention) -> Knob:
    if model.heads is not None and not _get_beta(model) > 0.0:
        raise ModelError("no head has a beta above 0, so no factor turns them; give heads with one")
    return Knob("beta", _set_beta, _get_beta, low=1e-3, high=1e6)


def turns_beta(knob: Knob) -> bool:
    """True for the knob "beta", whatever its bounds: what the laws are about. A knob of one's own has none, whatever its name."""
    return knob.set is _set_beta


def _noise(model: Attention) -> Knob:
    return Knob("noise", lambda model, value: model.replace(noise=value), lambda model: model.noise, low=1e-6, high=1e3)


def _tokens(model: Attention) -> Knob:
    return Knob("tokens", None, whole=True, low=1.0, high=1e6)


def _declared(model: Attention, part: str, field: str | None, name: str) -> Knob:
    """The one declared number of a norm or a mask."""
    item: Any = getattr(model, part)
    declared = parameters(item)
    wanted = [field] if field in declared else list(declared) if field is None else []
    if len(wanted) != 1:
        example = "mask=Window(16)" if part == "mask" else "norm=NGPT(0.5)"
        raise ModelError(f"{item!r} has no number that the knob {name!r} could turn; give a model with {example}")
    number = declared[wanted[0]]

    def set_number(model: Attention, value: Any) -> Attention:
        return model.replace(**{part: replace(getattr(model, part), **{wanted[0]: value})})

    low = SMALLEST if not number.minimum else number.minimum
    high = LARGEST if number.maximum is None else number.maximum
    return Knob(name, set_number, lambda model: getattr(getattr(model, part), wanted[0]), number.whole, low, high)


def _sink(model: Attention) -> Knob:
    if model.frozen is None:
        raise ModelError(
            "the knob 'sink' is the weight of frozen tokens, and this model has none; give frozen=Frozen(...)"
        )

    def total(model: Attention) -> float:
        assert model.frozen is not None
        assert model.frozen.weights is not None
        return float(model.frozen.weights.sum())

    def set_total(model: Attention, value: float) -> Attention:
        assert model.frozen is not None
        assert model.frozen.weights is not None
        weights, whole = model.frozen.weights, total(model)
        shares = weights / whole if whole > 0.0 else np.full(len(weights), 1.0 / len(weights))
        return model.replace(frozen=Frozen(model.frozen.tokens, value * shares))

    return Knob("sink", set_total, total)


def _gap(model: Attention) -> Knob:
    """V = a I + s B with a the largest real part of the spectrum: the knob is s times the smallest distance of the others from a."""
    if len(model.all_heads) != 1 or model.heads is not None or model.value is None:
        raise ModelError("the knob 'gap' is the gap of V, and this model has V = I (or several heads); give value=")

    def parts(model: Attention) -> tuple[float, float]:
        assert model.value is not None
        spectrum = np.linalg.eigvals(model.value).real
        top = float(spectrum.max())
        below = top - spectrum[spectrum < top - 1e-9 * np.abs(spectrum).max()]
        return top, float(below.min()) if below.size else 0.0

    if parts(model)[1] <= 0.0:
        raise ModelError("all eigenvalues of V have one real part: there is no gap to turn")

    def set_gap(model: Attention, value: float) -> Attention:
        top, gap = parts(model)
        identity = np.eye(model.dim)
        return model.replace(value=top * identity + (value / gap) * (np.asarray(model.value) - top * identity))

    return Knob("gap", set_gap, lambda model: parts(model)[1])


NAMED: dict[str, Callable[[Attention], Knob]] = {
    "beta": _beta,
    "noise": _noise,
    "tokens": _tokens,
    "window": lambda model: _declared(model, "mask", "width", "window"),
    "norm": lambda model: _declared(model, "norm", None, "norm"),
    "sink": _sink,
    "gap": _gap,
}
"""Name -> the knob of a model, or `ModelError` where it has none."""
