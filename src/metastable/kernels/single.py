"""Which numbers of a model single precision can hold: it ends at 3e38, and what is below 1e-38 is zero there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from metastable.model import ALiBi, Attention, LogitBias, Rule
from metastable.model.heads import BIASES

SMALLEST, LARGEST = 1e-15, 1e15
"""Numbers of a model in single precision: products of two of them, and sums over thousands, stay within 1e-38 to 3e38."""


def _logit_parts(model: Attention) -> Iterator[tuple[str, Any]]:
    """What logits are made of, by name."""
    for number, head in enumerate(model.all_heads):
        with np.errstate(over="ignore"):
            yield f"beta times the query of head {number}", head.beta * (1.0 if head.query is None else head.query)
        yield f"the key of head {number}", 1.0 if head.key is None else head.key
        for name in BIASES[:2]:
            if getattr(head, name) is not None:
                scale = head.beta if name == "query_bias" else 1.0
                yield f"the {name} of head {number}", scale * getattr(head, name)
    if isinstance(model.bias, LogitBias):
        yield "the LogitBias", model.bias.matrix
    elif isinstance(model.bias, ALiBi):
        yield "the slope of ALiBi", max(model.slopes)


def _summed_parts(model: Attention) -> Iterator[tuple[str, Any]]:
    """What is summed and multiplied, by name: these must not vanish either."""
    for number, head in enumerate(model.all_heads):
        for name in ("value", "output", "value_bias"):
            if getattr(head, name) is not None:
                yield f"the {name} of head {number}", getattr(head, name)
    if model.feedforward is not None:
        for name in ("w1", "b1", "w2", "b2"):
            yield f"{name} of the feed-forward layer", getattr(model.feedforward, name)


def _counted_parts(model: Attention) -> Iterator[tuple[str, Any]]:
    """What tokens count, by name: nobody must vanish, for there are those who see nobody else."""
    if model.masses is not None:
        yield "masses", model.masses
    if model.frozen is not None:
        yield "the weights of frozen tokens", np.asarray(model.frozen.weights)


def _broken(model: Attention, tokens: int | None) -> str | None:
    """In what way a model leaves the range."""
    found: list[tuple[str, float]] = []
    for name, numbers in _logit_parts(model):
        # A logit that is too small to be told from zero is zero.
        found.append((name, max(SMALLEST, float(np.abs(numbers).max()))))
    for name, numbers in _summed_parts(model):
        found += [(name, float(np.abs(numbers).max()))] if np.any(numbers) else []
    for name, numbers in _counted_parts(model):
        some = numbers[numbers > 0]
        found += [(name, float(some.min())), (name, float(some.max()))] if some.size else []
    for name, size in found:
        if not SMALLEST <= size <= LARGEST:
            return f"holds numbers from {SMALLEST:g} to {LARGEST:g}, and {name} has {size:.3g}"
    return None


RULE = Rule("single range", _broken, "use dtype='float64'")
"""For engines that have single precision."""
