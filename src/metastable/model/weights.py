"""How logits become the weights of attention: the kinds of `Attention.weights`.

Users name them ("softmax", "unnormalized", "hardmax"); inside each is a declared object whose law says what it does:

    A_k = sum_j w_kj V x_j / Z_k,     w_kj = `score` of the logit l_kj,     Z_k = `total`

over the tokens that k sees and the frozen ones (whose weight counts in w and in Z).
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from metastable.model.declare import Declared


class WeightsLaw(NamedTuple):
    """`score`: "exponential" (exp l) or "largest" (1 for logits within the tie tolerance of the largest, else 0). `total`:
    "weights" (Z_k is the sum of the weights: rows are probabilities) or "visible" (Z_k is the number of visible
    tokens, or the sum of mass exp(bias) over them).
    """

    score: Literal["exponential", "largest"]
    total: Literal["weights", "visible"]


class Weights(Declared, ABC, family="weights"):
    """Base of the kinds of weights."""

    law: ClassVar[WeightsLaw | None] = None
    """What the weights are; None where two words cannot say it: then only engines that list the kind can do it."""


@dataclass(frozen=True)
class Softmax(Weights):
    """exp(logit) divided by the sum of them."""

    kind: ClassVar[str] = "softmax"
    label: ClassVar[str] = "softmax"
    law: ClassVar[WeightsLaw | None] = WeightsLaw("exponential", "weights")


@dataclass(frozen=True)
class Unnormalized(Weights):
    """exp(logit) divided by the number of visible tokens (USA of arXiv:2312.10794), or the sum of mass exp(bias) over them."""

    kind: ClassVar[str] = "unnormalized"
    label: ClassVar[str] = "unnormalised"
    law: ClassVar[WeightsLaw | None] = WeightsLaw("exponential", "visible")


@dataclass(frozen=True)
class Hardmax(Weights):
    """Equal weights on the most attended tokens: softmax at infinite beta. With Q = K = I tokens that see themselves see no other.

    A_k jumps wherever another token becomes the most attended one. Steps of adaptive methods reach over such a moment, with errors of
    some hundred tolerances: of 25 tokens in d = 3 at t = 5, eight draws were off by 1.5e-4 to 4.4e-4 at rtol = 1e-6 (softmax: 3e-7), by
    3e-3 to 9e-2 at 1e-4, and by less than 2e-5 at 1e-8. Compare a run with one of a smaller `rtol`.
    """

    kind: ClassVar[str] = "hardmax"
    label: ClassVar[str] = "hardmax"
    law: ClassVar[WeightsLaw | None] = WeightsLaw("largest", "weights")
