"""`Attention`: what is simulated. A frozen, checked description of the dynamics; no loops, no numerics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import ModelError, UnsupportedError
from metastable.model import declare
from metastable.model.biases import ALiBi, Bias
from metastable.model.declare import optional, parameter, parameters
from metastable.model.describe import LONGEST, short, table
from metastable.model.heads import Head, is_identity
from metastable.model.masks import Causal, Mask, Masking
from metastable.model.norms import Norm, PostLN
from metastable.model.parts import ArrayFields, FeedForward, Frozen
from metastable.model.weights import Weights

EXAMPLES = {
    "mask": "an object such as Causal(), Full(), Window(8), Mask(matrix or function)",
    "norm": "an object such as PostLN(), PreLN(), NGPT(0.5)",
    "bias": "None or an object such as ALiBi(0.1), LogitBias(matrix)",
}
MATRICES = ("query", "key", "value")


def _matrix_or_identity(value: Any, name: str, dim: int) -> FloatArray | None:
    """`value` as a dim x dim matrix; the identity, however it was given, is None: one thing has one form."""
    if value is None:
        return None
    matrix = _checks.square(value, name, dim, error=ModelError)
    return None if is_identity(matrix) else _checks.readonly(matrix)


def _weights(value: Any) -> str | Weights:
    """Weights as users see them: the name of a kind without fields, else the object."""
    if isinstance(value, str):
        return _checks.choice(value, "weights", tuple(declare.kinds("weights")), error=ModelError)
    if not declare.is_declared(value, "weights"):
        names = ", ".join(repr(kind) for kind in declare.kinds("weights"))
        raise ModelError(f"weights must be one of {names}, not {value!r}")
    return value if parameters(value) else value.kind


@dataclass(frozen=True, eq=False, repr=False)
class Attention(ArrayFields):
    """Self-attention dynamics of tokens on the unit sphere of R^dim.

        dx_k/dt = P_{x_k} ( (1/Z_k) sum_j exp(beta <Q x_k, K x_j>) V x_j ),     Z_k = sum_j exp(beta <Q x_k, K x_j>),

    sums over the tokens j that `mask` lets k see (arXiv:2411.04990; full attention: arXiv:2312.10794).

    Fields
    ------
    dim : dimension d >= 2 of the tokens.
    beta : inverse temperature (of the single head; leave it out when `heads` is given); below zero tokens attend most
        to those least like them.
    query, key, value : d x d matrices, or None for the identity.
    heads : tuple of `Head` (also of low rank, with biases and rotary positions), summed, instead of the four above.
    mask : `Causal()`, `Full()`, `Window(w)`, `Sink(s, w)`, `Prefix(p)` or `Mask(matrix)`, `Mask(rule)`.
    weights : "softmax"; "unnormalized" (USA: Z_k is the number of visible tokens, or the sum of their masses and exp(bias));
        "hardmax" (mean over the most attended; with Q = K = I every token is its own best match, so let the
        mask leave it out: `Causal(include_self=False)`).
    norm : `PostLN()`, `PreLN()`, `MixLN(tau)`, `PeriLN()`, `NGPT(alpha)` or `SqrtScaling()`.
    feedforward : None or `FeedForward(...)`, a drift added before the projection.
    frozen : None or `Frozen(tokens, weights)`, tokens that never move and that everyone attends to.
    masses : None or n positive weights of the moving tokens: token j counts masses[j] times in every sum.
    noise : sigma >= 0 of a Brownian motion on the sphere: + sigma P dB - (sigma^2/2)(d-1) X dt (Ito); kappa = 2/sigma^2.
    bias : None, `ALiBi(slope)` or `LogitBias(matrix)`, added to the logits.
    tie_tolerance : "hardmax" only: logits within `tie_tolerance * max(1, |largest|)` of the largest count as ties.
    """

    dim: int = parameter("dimension", symbol="d", suggestion=2, minimum=2, whole=True)
    beta: float | None = parameter("inverse temperature", default=None, symbol="β", suggestion=64.0)
    query: FloatArray | None = None
    key: FloatArray | None = None
    value: FloatArray | None = None
    heads: tuple[Head, ...] | None = None
    mask: Masking = Causal()
    weights: str | Weights = "softmax"
    norm: Norm = PostLN()
    feedforward: FeedForward | None = optional("feed-forward layer")
    frozen: Frozen | None = optional("frozen tokens")
    masses: FloatArray | None = optional("masses of moving tokens")
    noise: float = parameter("noise", default=0.0, symbol="σ", minimum=0.0)
    bias: Bias | None = None
    tie_tolerance: float = parameter("tie tolerance", default=1e-12, minimum=0.0)

    def __post_init__(self) -> None:
        for name in ("dim", "noise", "tie_tolerance"):
            self._check_number(name)
        if self.heads is None:
            self._check_single_head()
        else:
            self._check_heads()
        object.__setattr__(self, "weights", _weights(self.weights))
        for name, example in EXAMPLES.items():
            part = getattr(self, name)
            if not (declare.is_declared(part, name) or (name == "bias" and part is None)):
                raise ModelError(f"{name} must be {example}, not {part!r}")
        for name, kind in (("feedforward", FeedForward), ("frozen", Frozen)):
            part = getattr(self, name)
            if part is not None and not isinstance(part, kind):
                raise ModelError(f"{name} must be None or a {kind.__name__}, not {part!r}")
        if self.feedforward is not None and self.feedforward.dim != self.dim:
            raise ModelError(f"feedforward acts on dimension {self.feedforward.dim}, but dim={self.dim}")
        if self.frozen is not None and self.frozen.tokens.shape[1] != self.dim:
            raise ModelError(f"frozen tokens have dimension {self.frozen.tokens.shape[1]}, but dim={self.dim}")
        if self.masses is not None:
            masses = _checks.vector(self.masses, "masses", error=ModelError)
            if not masses.size or masses.min() <= 0 or not masses.max() < np.finfo(float).max / masses.size:
                raise ModelError(
                    "masses must be positive numbers with a finite sum, one for each token (None: all one)"
                )
            object.__setattr__(self, "masses", _checks.readonly(masses))
        if self.bias is not None:
            self.bias.check(len(self.all_heads))

    def _check_number(self, name: str) -> None:
        """Check a field as it is declared."""
        object.__setattr__(self, name, parameters(Attention)[name].check(getattr(self, name), name))

    def _check_single_head(self) -> None:
        if self.beta is None:
            raise ModelError("beta is missing: Attention(dim=2, beta=64.0), or give heads=(Head(...), ...)")
        self._check_number("beta")
        for name in MATRICES:
            object.__setattr__(self, name, _matrix_or_identity(getattr(self, name), name, self.dim))

    def _check_heads(self) -> None:
        if any(getattr(self, name) is not None for name in ("beta", *MATRICES)):
            raise ModelError("give either heads=(Head(...), ...) or beta, query, key, value, not both")
        try:
            heads = () if self.heads is None else tuple(self.heads)
        except TypeError:
            raise ModelError(f"heads must be a tuple of Head, not {self.heads!r}") from None
        if not heads or not all(isinstance(head, Head) for head in heads):
            raise ModelError("heads must be a tuple of at least one metastable.Head(query, key, value, beta)")
        fitted = (head.fitted(self.dim, f"heads[{i}]") for i, head in enumerate(heads))
        object.__setattr__(self, "heads", tuple(fitted))

    @cached_property
    def all_heads(self) -> tuple[Head, ...]:
        """The heads, also when the model was given as `beta, query, key, value`."""
        if self.heads is not None:
            return self.heads
        assert self.beta is not None
        return (Head(self.query, self.key, self.value, self.beta),)

    @cached_property
    def weighting(self) -> Weights:
        """The declared object behind `weights`."""
        return declare.build("weights", self.weights) if isinstance(self.weights, str) else self.weights

    @property
    def slopes(self) -> tuple[float, ...]:
        """ALiBi slope of each head (0 without bias)."""
        heads = len(self.all_heads)
        if self.bias is None:
            return (0.0,) * heads
        if not isinstance(self.bias, ALiBi):
            raise UnsupportedError(f"{self.bias!r} is not a bias with slopes; use engine='reference'")
        return self.bias.slopes(heads)

    @property
    def is_identity(self) -> bool:
        """True for one head with Q = K = V = I."""
        return len(self.all_heads) == 1 and self.all_heads[0].is_identity

    @property
    def width(self) -> int:
        """Columns of a packed state: dim, plus one when tokens carry a radius."""
        return self.dim + (1 if self.norm.has_radius else 0)

    def _repr_html_(self) -> str:
        heads = self.all_heads
        facts = {
            "dimension": str(self.dim),
            "heads": "" if len(heads) == 1 else str(len(heads)),
            "beta": ", ".join(f"{head.beta:g}" for head in heads[:LONGEST]) + (", ..." if len(heads) > LONGEST else ""),
        }
        for name in MATRICES if len(heads) == 1 else ():
            matrix = getattr(heads[0], name)
            facts[name] = "identity" if matrix is None else short(matrix)
        for name in ("output", "rotary", "query_bias", "key_bias", "value_bias") if len(heads) == 1 else ():
            part = getattr(heads[0], name)
            facts[name] = "" if part is None else short(part)
        for name in ("mask", "weights", "norm", "bias", "feedforward", "frozen", "masses"):
            part = getattr(self, name)
            facts[name] = "" if part is None else str(part) if isinstance(part, str) else short(part)
        facts["noise"] = f"{self.noise:g}" if self.noise else ""
        return table("Attention", facts)

    def replace(self, **changes: Any) -> Attention:
        """A copy with some fields changed, checked like a new one."""
        return replace(self, **changes)

    def check_tokens(self, start: Any, name: str = "start") -> FloatArray:
        """`start` as tokens that fit this model (unit rows, dimension, mask size)."""
        x = _checks.tokens(start, name, dim=self.dim)
        self.check_count(len(x))
        return x

    def check_count(self, tokens: int) -> None:
        """Raise `ModelError` when a part of the model is made for another number of tokens."""
        self.mask.check(tokens)
        for number, head in enumerate(self.all_heads):
            if head.rotary is not None:
                head.rotary.check_count(tokens, head.rank(self.dim), f"heads[{number}]")
        if self.bias is not None:
            self.bias.check_count(tokens)
        if self.masses is not None and len(self.masses) != tokens:
            raise ModelError(f"masses has {len(self.masses)} entries for {tokens} tokens; give one for each token")

    def for_tokens(self, tokens: int) -> Attention:
        """The model with a mask that is given by a function written out for so many tokens: the form that can be stored."""
        _checks.count(tokens, "tokens", error=ModelError)
        if isinstance(self.mask, Mask) and self.mask.is_rule:
            return self.replace(mask=Mask(self.mask.matrix(tokens)))
        return self

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain Python values (for JSON and TOML); fields at their default are left out."""
        from metastable.model.serialize import to_dict

        return to_dict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Attention:
        """The model that `to_dict` described."""
        from metastable.model.serialize import from_dict

        return from_dict(data)

    def to_json(self) -> str:
        """The model as JSON; floats survive exactly."""
        import json

        return json.dumps(self.to_dict())

    @staticmethod
    def from_json(text: str) -> Attention:
        """The model that `to_json` wrote."""
        import json

        if not isinstance(text, (str, bytes)):
            raise ModelError(f"from_json takes JSON text, not {type(text).__name__}")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as reason:
            raise ModelError(f"this is not JSON: {reason}") from None
        return Attention.from_dict(data)

    def to_toml(self) -> str:
        """The model as TOML; floats survive exactly."""
        import tomli_w

        return tomli_w.dumps(self.to_dict())

    @staticmethod
    def from_toml(text: str) -> Attention:
        """The model that `to_toml` wrote (or that a person did)."""
        import tomllib

        if not isinstance(text, str):
            raise ModelError(f"from_toml takes TOML text, not {type(text).__name__}")
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError) as reason:
            raise ModelError(f"this is not TOML: {reason}") from None
        return Attention.from_dict(data)
