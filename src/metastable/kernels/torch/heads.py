"""The heads of a model as batches of matrices on a device: heads of one shape are one product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from metastable._checks import FloatArray
from metastable.model import Attention, Head
from metastable.model.heads import BIASES, MATRICES

Tensor = torch.Tensor


@dataclass(frozen=True)
class Side:
    """x -> x W^T + b for all heads of a group at once: `weight` (heads r, d) stacked, or None for `scale` (heads, 1, 1) times the
    identity; `bias` (heads, 1, r)."""

    heads: int
    weight: Tensor | None
    bias: Tensor | None
    scale: Tensor | None

    def __call__(self, x: Tensor, product: Tensor | None = None) -> Tensor:
        """Rows (n, d) as (heads, n, r); (1, n, d) where all heads read the rows as they are. `product` is x W^T, where it is known."""
        if self.weight is None:
            out = x[None] if self.scale is None else x * self.scale
        else:
            rows = x @ self.weight.T if product is None else product
            out = rows.unflatten(1, (self.heads, -1)).transpose(0, 1)
        return out if self.bias is None else out + self.bias


@dataclass(frozen=True)
class Sums:
    """What one group makes of the tokens: `queries` (heads, rows, r) turned to their positions, `plain` the same not turned, `keys`
    (heads, n, r), `values` (heads, n, s), and keys and values of the frozen tokens."""

    queries: Tensor
    plain: Tensor
    keys: Tensor
    values: Tensor
    fixed_keys: Tensor | None
    fixed_values: Tensor | None


class Group:
    """Heads of the same shape; `numbers` are their places among all heads."""

    def __init__(self, model: Attention, numbers: list[int], tokens: int, first: int, device: Any, dtype: Any) -> None:
        heads = [model.all_heads[number] for number in numbers]
        self.numbers, self.first = numbers, first
        self._place = {"device": device, "dtype": dtype}
        one = heads[0]
        self.rank, self.value_rank = one.rank(model.dim), one.value_rank(model.dim)
        biases = [None if head.query_bias is None else head.beta * head.query_bias for head in heads]
        self.query = self._side([_query(head) for head in heads], biases, [head.beta for head in heads])
        self.key = self._side([None if head.is_bilinear else head.key for head in heads], [h.key_bias for h in heads])
        self.value = self._side([head.value for head in heads], [head.value_bias for head in heads])
        outputs = [head.output for head in heads]
        self.output = None if one.output is None else self._tensor(np.concatenate(outputs, axis=1).T)  # type: ignore[arg-type]
        self.rotary = one.rotary
        if one.rotary is not None:
            angles = one.rotary.angles(np.arange(tokens, dtype=float), self.rank)
            self.cosine, self.sine = self._tensor(np.cos(angles)), self._tensor(np.sin(angles))
            self.pairs = one.rotary.pairs(self.rank)
        self.frozen = None if model.frozen is None else self._tensor(model.frozen.tokens)
        # One product of all sides is faster than one of each.
        weights = [side.weight for side in (self.query, self.key, self.value) if side.weight is not None]
        self.joint = torch.cat(weights).T if len(weights) > 1 and first == 0 else None

    def _tensor(self, array: Any) -> Tensor:
        return torch.tensor(np.asarray(array), **self._place)

    def _side(self, matrices: list[Any], biases: list[Any], scale: list[float] | None = None) -> Side:
        """`scale` is what the matrices hold already, for identities, which cannot."""
        weight = None if matrices[0] is None else self._tensor(np.concatenate(matrices))
        bias = None if biases[0] is None else self._tensor(np.array(biases)[:, None, :])
        scaled = None if weight is not None or scale is None else self._tensor(np.array(scale)[:, None, None])
        return Side(len(matrices), weight, bias, scaled)

    def _turned(self, rows: Tensor, start: int) -> Tensor:
        """Rows (heads, n, r) turned to the positions from `start` on."""
        a, b = self.pairs
        stop = start + rows.shape[1]
        cosine, sine = self.cosine[start:stop], self.sine[start:stop]
        out = rows.clone()
        out[..., a] = rows[..., a] * cosine - rows[..., b] * sine
        out[..., b] = rows[..., b] * cosine + rows[..., a] * sine
        return out

    def _sides(self, x: Tensor, product: Tensor) -> list[Tensor]:
        """Queries, keys and values from the product of all their matrices."""
        found, begin = [], 0
        for side in (self.query, self.key, self.value):
            end = begin + (0 if side.weight is None else len(side.weight))
            found.append(side(x, product[:, begin:end]))
            begin = end
        return found

    def sums(self, x: Tensor) -> Sums:
        """Queries of the tokens from `first` on, keys and values of all of them."""
        if self.joint is None:
            plain, keys, values = self.query(x[self.first :]), self.key(x), self.value(x)
        else:
            plain, keys, values = self._sides(x, x @ self.joint)
        queries = plain
        if self.rotary is not None:
            queries, keys = self._turned(plain, self.first), self._turned(keys, 0)
        fixed = (None, None) if self.frozen is None else (self.key(self.frozen), self.value(self.frozen))
        return Sums(queries, plain, keys, values, *fixed)

    def combine(self, summed: Tensor) -> Tensor:
        """Weighted sums of values (heads, rows, s) as what the group adds to A, (rows, d)."""
        if self.output is None:
            return summed[0] if len(summed) == 1 else summed.sum(dim=0)
        return summed.transpose(0, 1).reshape(summed.shape[1], -1) @ self.output


def groups(model: Attention, tokens: int, first: int, device: Any, dtype: Any) -> list[Group]:
    """The heads of a model, those of one shape together."""
    found: dict[tuple, list[int]] = {}
    for number, head in enumerate(model.all_heads):
        present = tuple(getattr(head, name) is None for name in (*MATRICES, *BIASES))
        plain = head.is_bilinear and head.bilinear is None
        shape = (head.rank(model.dim), head.value_rank(model.dim), head.rotary, head.is_bilinear, plain)
        # Of a head with one matrix Q^T K only that one is read.
        found.setdefault((*(present[2:] if head.is_bilinear else present), *shape), []).append(number)
    return [Group(model, numbers, tokens, first, device, dtype) for numbers in found.values()]


def _query(head: Head) -> FloatArray | None:
    """beta Q, or beta (Q^T K)^T where there is such a matrix; None for the identity."""
    matrix = head.query if not head.is_bilinear else None if head.bilinear is None else head.bilinear.T
    return None if matrix is None else head.beta * matrix
