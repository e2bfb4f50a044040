"""Observables of the attention matrix: the matrix itself, the entropy of its rows, its rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, UnsupportedError
from metastable.model import EVERY_PART, Attention, Support, require

PROBABILITIES = Support(
    "the entropy of attention",
    norms=None,
    masks=None,
    weights=frozenset({"softmax", "hardmax"}),
    biases=None,
    parts=EVERY_PART,
    use="use weights='softmax', whose rows are probabilities",
)


def _require_attention(model: object) -> None:
    """Refuse a run that something else than an `Attention` moved: the layers of a checkpoint."""
    if not isinstance(model, Attention):
        raise UnsupportedError(
            "attention matrices are made from an Attention, and this run was moved by something else (a checkpoint's layers); the "
            "attention of a language model: checkpoints.token_states(model, tokenizer, text, attentions=True)"
        )


def _require_head(model: Attention, head: int) -> None:
    _require_attention(model)
    if not 0 <= head < len(model.all_heads):
        raise InvalidInputError(f"head must be between 0 and {len(model.all_heads) - 1}, not {head}")


def _matrices(states: FloatArray, model: Attention, head: int) -> Iterator[FloatArray]:
    """Attention weights of one head, (n, n) or (n, n + m) with m frozen tokens behind, at each time."""
    from metastable.kernels.reference import attention_weights

    _require_head(model, head)
    for x in np.asarray(states, dtype=np.float64):
        yield np.concatenate(attention_weights(model, x)[head], axis=1)


@dataclass(frozen=True)
class AttentionMatrix:
    """Attention weights; made by `attention`."""

    follows_model: ClassVar[bool] = True

    head: int

    @property
    def dims(self) -> tuple[str, ...]:
        return ("query_token", "key_token")

    def for_model(self, model: Attention) -> AttentionMatrix:
        """Itself, unless the model has no such head: said before anything moves."""
        _require_head(model, self.head)
        return self

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        return np.array(list(_matrices(states, model, self.head)))


def attention(head: int = 0) -> AttentionMatrix:
    """Attention matrix of one head, dims (query_token, key_token): row k holds the weights with which k sees the others.

    Frozen tokens, which everyone attends to, are the last columns. Memory is n^2 per time.
    """
    return AttentionMatrix(_checks.count(head, "head", minimum=0))


@dataclass(frozen=True)
class AttentionEntropy:
    """Entropy of the attention rows; made by `attention_entropy`."""

    follows_model: ClassVar[bool] = True

    head: int

    @property
    def dims(self) -> tuple[str, ...]:
        return ("token",)

    def for_model(self, model: Attention) -> AttentionEntropy:
        """Itself, unless the model has no such head or no probabilities: said before anything moves."""
        _require_head(model, self.head)
        require(model, PROBABILITIES)
        return self

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        _require_attention(model)
        require(model, PROBABILITIES)
        rows = []
        for matrix in _matrices(states, model, self.head):
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = np.where(matrix > 0, matrix * np.log(matrix), 0.0)
            rows.append(-terms.sum(axis=1) + 0.0)
        return np.array(rows)


def attention_entropy(head: int = 0) -> AttentionEntropy:
    """Entropy -sum_j p_kj ln p_kj of each token's attention, dims (token,): 0 for one target, ln k for k equal ones."""
    return AttentionEntropy(_checks.count(head, "head", minimum=0))


@dataclass(frozen=True)
class AttentionRank:
    """Numerical rank of the attention matrix; made by `attention_rank`."""

    follows_model: ClassVar[bool] = True

    head: int
    tolerance: float

    @property
    def dims(self) -> tuple[str, ...]:
        return ()

    def for_model(self, model: Attention) -> AttentionRank:
        """Itself, unless the model has no such head: said before anything moves."""
        _require_head(model, self.head)
        return self

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        sizes = [np.linalg.svd(matrix, compute_uv=False) for matrix in _matrices(states, model, self.head)]
        return np.array([int(np.sum(size > self.tolerance * size[0])) for size in sizes], dtype=np.int64)


def attention_rank(head: int = 0, tolerance: float = 1e-3) -> AttentionRank:
    """Numerical rank of the attention matrix: singular values above `tolerance` times the largest.

    Tokens in one place attend alike, so the rank falls with the number of clusters (under full attention to it exactly).
    """
    return AttentionRank(
        _checks.count(head, "head", minimum=0), _checks.number(tolerance, "tolerance", 0.0, 1.0, strict=True)
    )
