"""`Head`: what one attention head does, as the factors that it is given by; and `Rotary`, positions that turn queries and keys.

With q_k = Q x_k + b_Q and k_j = K x_j + b_K (r numbers each) and v_j = V x_j + b_V (s numbers) a head adds

    A_k = O sum_j w_kj v_j,     logit of w_kj = beta <R_k q_k, R_j k_j>,

R_k the rotation of position k (the identity without `rotary`). Frozen tokens have no position: with them nothing is turned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import ModelError, UnsupportedError
from metastable.model.declare import parameter, parameters
from metastable.model.parts import ArrayFields

MATRICES = ("query", "key", "value", "output")
BIASES = ("query_bias", "key_bias", "value_bias")
LARGEST_ANGLE = 1e10
"""Rotary positions turn by no more: the cosine of a larger angle is off by more than 1e-6, and soon by anything."""


def is_identity(matrix: FloatArray) -> bool:
    """True for exactly the identity."""
    return bool(np.array_equal(matrix, np.eye(len(matrix))))


@dataclass(frozen=True)
class Rotary:
    """Rotary positions (arXiv:2104.09864): position k turns pair i of the first `dims` numbers of a query or key by k base^(-2i/dims).

    The logit becomes <R_k Q x_k, R_j K x_j>, positions 0..n-1, which depends on positions by k - j alone. Pair i is made of the
    numbers i and i + dims/2 (halves, as in Llama and GPT-NeoX) or, when `interleaved`, 2i and 2i + 1 (neighbours, as in GPT-J).
    `dims` is even; None: all numbers of a query. What is behind the first `dims` is not turned. `frequencies` (dims / 2 numbers)
    stand in place of base^(-2i/dims) for models that rescaled them for long texts.
    """

    base: float = parameter("base", default=10000.0, symbol="b", minimum=0.0, strict=True)
    dims: int | None = None
    interleaved: bool = False
    frequencies: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", parameters(Rotary)["base"].check(self.base, "Rotary.base"))
        object.__setattr__(self, "interleaved", _checks.flag(self.interleaved, "Rotary.interleaved", error=ModelError))
        if self.dims is not None:
            dims = _checks.count(self.dims, "Rotary.dims", minimum=2, error=ModelError)
            if dims % 2:
                raise ModelError(f"Rotary.dims must be even, for numbers are turned in pairs, not {dims}")
            object.__setattr__(self, "dims", dims)
        if self.frequencies is not None:
            numbers = _checks.vector(self.frequencies, "Rotary.frequencies", error=ModelError)
            if not numbers.size or self.dims not in (None, 2 * numbers.size):
                raise ModelError(f"Rotary.frequencies has {numbers.size} numbers: one a pair, for dims={self.dims}")
            object.__setattr__(self, "frequencies", tuple(numbers.tolist()))
            object.__setattr__(self, "dims", 2 * numbers.size)

    def turned(self, rank: int) -> int:
        """How many of the `rank` numbers of a query are turned; `ModelError` where they are too few or odd."""
        dims = rank if self.dims is None else self.dims
        if dims > rank:
            raise ModelError(f"Rotary.dims={dims} is more than the {rank} numbers of a query; lower it")
        if dims % 2:
            raise ModelError(f"rotary positions turn pairs, but a query has {rank} numbers; give Rotary(dims=...) even")
        return dims

    def angles(self, positions: FloatArray, rank: int) -> FloatArray:
        """Angles of the pairs at these positions, shape (positions, dims / 2)."""
        dims = self.turned(rank)
        if self.frequencies is not None:
            return np.outer(positions, self.frequencies)
        return np.outer(positions, self.base ** (-np.arange(0, dims, 2) / dims))

    def check_count(self, tokens: int, rank: int, name: str) -> None:
        """Raise `ModelError` where a sequence of this length turns by angles that double precision does not know; `name`: whose."""
        largest = _largest_angle(self, tokens, rank)
        if not largest <= LARGEST_ANGLE:
            raise ModelError(
                f"{name}.rotary turns the last of {tokens} tokens by {largest:.3g} radians, and double precision knows the cosine of "
                f"angles up to {LARGEST_ANGLE:g}; give a larger base, or lower frequencies"
            )

    def pairs(self, rank: int) -> tuple[slice, slice]:
        """The first and the second numbers of the pairs among the `rank` numbers of a query, as slices."""
        dims = self.turned(rank)
        if self.interleaved:
            return slice(0, dims, 2), slice(1, dims, 2)
        return slice(0, dims // 2), slice(dims // 2, dims)


@lru_cache(maxsize=64)  # asked at every evaluation
def _largest_angle(rotary: Rotary, tokens: int, rank: int) -> float:
    """The angle that the last of so many tokens is turned by."""
    with np.errstate(over="ignore"):
        return float(np.abs(rotary.angles(np.array([tokens - 1.0]), rank)).max())


@dataclass(frozen=True, eq=False, repr=False)
class Head(ArrayFields):
    """One attention head; `beta` is its inverse temperature (below zero tokens repel).

    Fields
    ------
    query, key : r x dim, of the same rank r (None: the identity).
    value : s x dim (None: the identity). s must be dim where there is no `output`.
    output : dim x s, what is done to the weighted sum of the values (None: nothing).
    rotary : None or `Rotary(...)`: positions turn queries and keys.
    query_bias, key_bias, value_bias : r, r and s numbers added to queries, keys and values (None: nothing).

    Factors stay factors: no dim x dim product is made of a head of low rank.
    """

    query: FloatArray | None = None
    key: FloatArray | None = None
    value: FloatArray | None = None
    beta: float = parameter("inverse temperature", default=1.0, symbol="β")
    output: FloatArray | None = None
    rotary: Rotary | None = None
    query_bias: FloatArray | None = None
    key_bias: FloatArray | None = None
    value_bias: FloatArray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", parameters(Head)["beta"].check(self.beta, "beta"))
        for name in MATRICES:
            given = getattr(self, name)
            if given is not None:
                matrix = _checks.matrix(given, name, error=ModelError)
                if not matrix.size:
                    raise ModelError(f"{name} is empty, of shape {matrix.shape}; a head has rank 1 or more")
                object.__setattr__(self, name, _checks.readonly(matrix))
        for name in BIASES:
            given = getattr(self, name)
            if given is not None:
                array = _checks.vector(given, name, error=ModelError)
                # One thing has one form: adding nothing is having no bias.
                object.__setattr__(self, name, _checks.readonly(array) if array.any() else None)
        if self.rotary is not None and not isinstance(self.rotary, Rotary):
            raise ModelError(f"rotary must be None or a metastable.Rotary(...), not {self.rotary!r}")
        self._check_shapes()

    def _check_shapes(self) -> None:
        """Raise `ModelError` where the parts do not fit one another (whether they fit the tokens, the model says)."""
        dims = {name: self._tokens_of(name) for name in self._matrices}
        if len(set(dims.values())) > 1:
            found = ", ".join(f"{name} {dim}" for name, dim in dims.items())
            raise ModelError(f"the matrices of a head act on tokens of one dimension, but they are made for: {found}")
        for name, other in (("query", "key"), ("key", "query")):
            matrix, partner = getattr(self, name), getattr(self, other)
            if matrix is None:
                continue
            rows, columns = matrix.shape
            rank = columns if partner is None else len(partner)
            if rows != rank:
                raise ModelError(
                    f"{name} is {rows} x {columns}, but {other} makes {rank} numbers of a token: their rows must be as many "
                    f"({other}=None, the identity, needs a square matrix)"
                )
        if self.output is None and self.value is not None and len(self.value) != self.value.shape[1]:
            shape = self.value.shape
            raise ModelError(
                f"value must be a square matrix, not of shape {shape}, or come with output, {shape[1]} x {shape[0]}"
            )
        if self.output is not None and self.output.shape[1] != (
            len(self.output) if self.value is None else len(self.value)
        ):
            made = "the tokens themselves" if self.value is None else f"value, which makes {len(self.value)} numbers"
            raise ModelError(f"output has {self.output.shape[1]} columns, which do not fit {made}; transpose it?")

    def _tokens_of(self, name: str) -> int:
        """The dimension of the tokens that a matrix acts on (`output`: makes)."""
        matrix = getattr(self, name)
        return matrix.shape[0] if name == "output" else matrix.shape[1]

    @property
    def _matrices(self) -> list[str]:
        return [name for name in MATRICES if getattr(self, name) is not None]

    def fitted(self, dim: int, name: str) -> Head:
        """The head for tokens of dimension `dim`, identities as None, or `ModelError`; `name` is how the head is called."""
        for matrix in self._matrices:
            if self._tokens_of(matrix) != dim:
                side, shape = "rows" if matrix == "output" else "columns", getattr(self, matrix).shape
                raise ModelError(f"{name}.{matrix} must have {dim} {side} for tokens of dimension {dim}, not {shape}")
        for bias, wanted in zip(BIASES, (self.rank(dim), self.rank(dim), self.value_rank(dim))):
            given = getattr(self, bias)
            if given is not None and given.size != wanted:
                raise ModelError(f"{name}.{bias} must hold {wanted} numbers, not {given.size}")
        if self.rotary is not None:
            self.rotary.turned(self.rank(dim))
        plain = {m: None for m in self._matrices if self._is_square(m, dim) and is_identity(getattr(self, m))}
        return replace(self, **plain) if plain else self

    def _is_square(self, name: str, dim: int) -> bool:
        return getattr(self, name).shape == (dim, dim)

    def rank(self, dim: int) -> int:
        """r, how many numbers a query has."""
        given = self.query if self.query is not None else self.key
        return dim if given is None else len(given)

    def value_rank(self, dim: int) -> int:
        """s, how many numbers a value has."""
        if self.value is not None:
            return len(self.value)
        return dim if self.output is None else self.output.shape[1]

    @property
    def has_factors(self) -> bool:
        """True for a head of low rank (rectangular query and key), or one with an output."""
        given = self.query if self.query is not None else self.key
        return self.output is not None or (given is not None and given.shape[0] != given.shape[1])

    @property
    def has_biases(self) -> bool:
        """True when something is added to queries, keys or values."""
        return any(getattr(self, name) is not None for name in BIASES)

    @property
    def is_bilinear(self) -> bool:
        """True when the logit is `beta x^T M y` with a dim x dim matrix M (`bilinear`): no low rank, no positions, no biases."""
        given = self.query if self.query is not None else self.key
        square = given is None or given.shape[0] == given.shape[1]
        return square and self.rotary is None and self.query_bias is None and self.key_bias is None

    @cached_property
    def bilinear(self) -> FloatArray | None:
        """`M = Q^T K` with `<Q x, K y> = x^T M y`; None for the identity. Only M matters, never Q and K alone."""
        if not self.is_bilinear:
            raise UnsupportedError(
                "this head has no single matrix Q^T K: low rank, rotary positions and biases stay factors; read query and key"
            )
        if self.query is None:
            form = self.key
        else:
            form = np.ascontiguousarray(self.query.T if self.key is None else self.query.T @ self.key)
        return None if form is None or is_identity(form) else _checks.readonly(form)

    @property
    def is_identity(self) -> bool:
        """True for Q^T K = I and V = I, exactly."""
        plain = self.is_bilinear and not self.has_factors and not self.has_biases
        return plain and self.bilinear is None and self.value is None

    @cached_property
    def value_size(self) -> float:
        """Spectral norm of O V, plus the length of O b_V: the fastest that this head moves a token. Made of s x s matrices only."""
        if self.value is None and self.output is None:
            size = 1.0
        elif self.value is None or self.output is None:
            size = _norm(self.output if self.value is None else self.value)
        else:
            left, right = (np.asarray(np.linalg.qr(m, mode="r")) for m in (self.output, self.value.T))
            size = _norm(left @ right.T)
        if self.value_bias is None:
            return size
        return size + float(np.linalg.norm(self.value_bias if self.output is None else self.output @ self.value_bias))

    @cached_property
    def bilinear_size(self) -> float:
        """Spectral norm of Q^T K: logits of unit tokens reach |beta| times as much. Of factors the bound |Q| |K| (Frobenius), without
        their biases."""
        if self.is_bilinear:
            return 1.0 if self.bilinear is None else _norm(self.bilinear)
        query, key = (1.0 if part is None else float(np.linalg.norm(part)) for part in (self.query, self.key))
        return query * key

    def value_matrix(self, dim: int) -> FloatArray:
        """O V as a dim x dim matrix: for spectra, never for sums."""
        factors = [matrix for matrix in (self.output, self.value) if matrix is not None]
        return np.eye(dim) if not factors else factors[0] if len(factors) == 1 else factors[0] @ factors[1]


def _norm(matrix: Any) -> float:
    return float(np.linalg.norm(matrix, 2))
