"""Who can do what: allow-lists, and the one function that reads them.

Whoever computes something for a model (an engine, a series, a method, the atlas, the energies) holds a `Support`: the kinds and
parts that it knows. `why_not` compares a model with it. Whatever is not on a list is refused, so a variant that was added
yesterday is never taken for one that was there before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metastable.errors import ModelError, UnsupportedError
from metastable.model.attention import Attention
from metastable.model.declare import Declared, kinds, optionals
from metastable.model.norms import Norm

PROBE = 4
"""Length of the sequence at which a mask is asked where nobody said how long it is."""


class Part(NamedTuple):
    """A part of a model that not everybody can do: `present` says whether a model has it (tokens None: length unknown), `words` how
    it is called behind "has no", `fix` what to use instead where that is the same for everybody."""

    present: Callable[[Attention, int | None], bool]
    words: Callable[[Attention], str]
    fix: str = ""


def _blind(model: Attention, tokens: int | None) -> bool:
    """True when some token does not see itself."""
    return not model.mask.sees_self(tokens or model.mask.fixed_length or PROBE)


def _lonely(model: Attention, tokens: int | None) -> bool:
    """True when some token sees nobody at all, frozen tokens included."""
    if model.frozen is not None and np.any(model.frozen.weights):
        return False
    return not model.mask.sees_somebody(tokens or model.mask.fixed_length or PROBE)


def _optional(name: str, words: str) -> Part:
    """The part that a field declares by itself (`declare.optional`)."""
    return Part(lambda model, tokens: getattr(model, name) is not None, lambda model: words)


IDENTITY = "is not I, and it needs Q = K = V = I"


PARTS: dict[str, Part] = {
    "heads": Part(
        lambda model, tokens: len(model.all_heads) > 1,
        lambda model: f"sum over several heads, only one head (the model has {len(model.all_heads)})",
    ),
    "repulsion": Part(
        lambda model, tokens: any(head.beta < 0 for head in model.all_heads),
        lambda model: f"repulsion (beta = {min(head.beta for head in model.all_heads):g} is below zero)",
    ),
    "factors": Part(
        lambda model, tokens: any(head.has_factors for head in model.all_heads),
        lambda model: "heads of low rank or with an output matrix, only dim x dim matrices query, key and value",
    ),
    "rotary": Part(
        lambda model, tokens: any(head.rotary is not None for head in model.all_heads),
        lambda model: "rotary positions",
    ),
    "head_biases": Part(
        lambda model, tokens: any(head.has_biases for head in model.all_heads),
        lambda model: "biases of queries, keys or values",
    ),
    "bilinear": Part(
        lambda model, tokens: any(not head.is_bilinear or head.bilinear is not None for head in model.all_heads),
        lambda model: f"query and key: Q^T K {IDENTITY}",
    ),
    "value": Part(
        lambda model, tokens: any(head.value is not None or head.output is not None for head in model.all_heads),
        lambda model: f"value matrix: V {IDENTITY}",
    ),
    **{name: _optional(name, words) for name, words in optionals(Attention).items()},
    "noise": Part(
        lambda model, tokens: model.noise > 0,
        lambda model: f"noise (the model has noise={model.noise:g})",
        fix="use method='sde'",
    ),
    "radius": Part(
        lambda model, tokens: model.norm.has_radius,
        lambda model: f"norm with a radius ({type(model.norm).__name__})",
    ),
    "depth": Part(
        lambda model, tokens: any(law.decay != 0 for law in model.norm.laws),
        lambda model: f"norm that depends on depth ({type(model.norm).__name__})",
    ),
    "jumps": Part(
        lambda model, tokens: bool(model.norm.breakpoints),
        lambda model: f"norm that changes at a depth ({type(model.norm).__name__})",
    ),
    "blind": Part(_blind, lambda model: f"mask under which a token does not see itself ({_shown(model.mask)})"),
    "lonely": Part(_lonely, lambda model: f"mask under which a token sees nobody ({_shown(model.mask)})"),
}
"""Every part that somebody may lack. Kinds of norms, masks, weights and biases are on lists of their own."""

EVERY_PART = frozenset(PARTS)
"""For those who leave the sums to the reference engine, which must know every part, also those to come. Everybody else lists theirs."""

FIELDS: dict[str, str | None] = {
    "dim": "dims",
    "beta": "repulsion",
    "query": "bilinear",
    "key": "bilinear",
    "value": "value",
    "heads": "heads",
    "mask": "masks",
    "weights": "weights",
    "norm": "norms",
    "noise": "noise",
    "bias": "biases",
    "tie_tolerance": None,
    "output": "factors",
    "rotary": "rotary",
    "query_bias": "head_biases",
    "key_bias": "head_biases",
    "value_bias": "head_biases",
    **{name: name for name in optionals(Attention)},
}
"""Every field of `Attention` and `Head` with the list or part that guards it (None: everybody reads it). A test holds it complete."""


class Rule(NamedTuple):
    """A further condition: `broken` says in what way a model (and a number of tokens) breaks it, or None; `fix` what to use instead
    where that differs from the `Support`'s own."""

    name: str
    broken: Callable[[Attention, int | None], str | None]
    fix: str = ""


@dataclass(frozen=True)
class Support:
    """What somebody can do: an allow-list.

    Fields
    ------
    who : who says so, as the subject of a sentence: "engine='cpu'".
    norms, masks, weights, biases : kinds; None means every kind, for who reads nothing but the declared law. A model without a
        bias needs no kind of bias.
    parts : names of `PARTS`.
    dims : dimensions; None means all.
    use : what to use instead, "use engine='reference'"; empty where there is nothing.
    rules : further conditions, asked last.
    verb : between `who` and what is missing.
    """

    who: str
    norms: frozenset[str] | None = frozenset()
    masks: frozenset[str] | None = frozenset()
    weights: frozenset[str] | None = frozenset()
    biases: frozenset[str] | None = frozenset()
    parts: frozenset[str] = frozenset()
    dims: frozenset[int] | None = None
    use: str = ""
    rules: tuple[Rule, ...] = ()
    verb: str = "has"

    def __post_init__(self) -> None:
        """A name that nobody has declared would refuse in silence what it was meant to allow."""
        listed = {"norm": self.norms, "mask": self.masks, "weights": self.weights, "bias": self.biases}
        for family, allowed in listed.items():
            _declared(allowed or (), kinds(family), f"{family} kinds", self.who)
        _declared(self.parts, PARTS, "parts", self.who)


def _declared(names: Iterable[str], known: Iterable[str], what: str, who: str) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ModelError(
            f"the Support of {who} lists unknown {what} {', '.join(unknown)}; there are {', '.join(known)}"
        )


def why_not(model: Attention, support: Support, tokens: int | None = None) -> str | None:
    """Why `support` does not cover the model (on so many tokens), as a sentence that ends with the fix; None if it does."""
    use = support.use
    if support.dims is not None and model.dim not in support.dims:
        listed = " and ".join(str(dim) for dim in sorted(support.dims))
        return _sentence(f"{support.who} exists in dimension {listed}, not for dim={model.dim}", use)
    for variant, allowed in (
        (model.weighting, support.weights),
        (model.norm, support.norms),
        (model.mask, support.masks),
        (model.bias, support.biases),
    ):
        if variant is not None and allowed is not None and variant.kind not in allowed:
            return _sentence(f"{support.who} {support.verb} no {_missing(variant, allowed, support)}", use)
    for name, part in PARTS.items():
        if name not in support.parts and part.present(model, tokens):
            return _sentence(f"{support.who} {support.verb} no {part.words(model)}", use and (part.fix or use))
    for rule in support.rules:
        broken = rule.broken(model, tokens)
        if broken is not None:
            return _sentence(f"{support.who} {broken}", use and (rule.fix or use))
    return None


def require(model: Attention, support: Support, tokens: int | None = None) -> None:
    """Raise `UnsupportedError` with the sentence of `why_not` where there is one."""
    reason = why_not(model, support, tokens)
    if reason is not None:
        raise UnsupportedError(reason)


def _sentence(reason: str, fix: str) -> str:
    return f"{reason}; {fix}" if fix else reason


def _shown(variant: Declared) -> str:
    """A variant in a sentence: as it is written in Python, but no matrices."""
    return f"{type(variant).__name__}(matrix)" if variant.kind in ("matrix", "logits") else repr(variant)


def _missing(variant: Declared, allowed: frozenset[str], support: Support) -> str:
    """'hardmax weights (only softmax)', 'mask Full() (only Causal)', 'positional bias'."""
    if variant.family == "bias" and not allowed:
        return "positional bias"
    known = kinds(variant.family)
    if variant.family == "weights":
        return f"{variant.kind} weights (only {', '.join(kind for kind in known if kind in allowed)})"
    word = variant.family
    if isinstance(variant, Norm) and variant.has_radius and "radius" not in support.parts:
        word = "norm with a radius:"
    return f"{word} {_shown(variant)} (only {', '.join(known[kind].__name__ for kind in known if kind in allowed)})"
