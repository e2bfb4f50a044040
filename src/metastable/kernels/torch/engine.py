"""Velocities as matrix products in torch: all heads of one shape in one product, in blocks of rows.

Memory is O(n (d + block)) numbers for every head: the weights of a block of rows at a time, never those of all pairs of a long
sequence. What a block needs to know of mask and bias is laid out once, when the velocity is made. On a GPU a velocity that is asked
for again and again is recorded once (`recorded`), because launching its kernels one by one takes as long as short ones run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from metastable._checks import FloatArray
from metastable.kernels import reference
from metastable.kernels.reference import Rows
from metastable.kernels.torch.heads import Group, Sums, Tensor, groups
from metastable.kernels.torch.recorded import Recording
from metastable.model import ALiBi, Attention, Causal, FeedForward, Full, Law, LogitBias

REAL = {"float64": torch.float64, "float32": torch.float32}
LOG_MAX = {"float64": 709.0, "float32": 88.0}
"""exp of anything larger leaves the precision."""
HELD = {"cpu": 2**17, "cuda": 2**23, "mps": 2**23}
"""Weights that are held at a time, of all heads of a group: on the CPU what stays in the cache, on a GPU what keeps it busy. (More
blocks save more of the work under a causal mask, up to half of it; each costs its launches. Measured on an H200: see
docs/performance-gpu.md.)"""
FEWEST = {"cpu": 16, "cuda": 256, "mps": 256}
"""Rows of a block, at least."""
FUSED_RANK = 128
"""Longest queries for which torch's own product on a GPU makes no matrix of all pairs."""
FUSED_ROWS = 2**14
"""Rows of all heads from which torch's own product fills a GPU: it hands out 64 of them at a time, and a large GPU takes some 250 of
these. With fewer, blocks of a plain product are faster."""
RECORD_AFTER = 3
"""Evaluations after which a velocity on a GPU is recorded: who wants only one does not pay for that."""


def choose_device(dtype: str) -> torch.device:
    """CUDA where there is one; else MPS, which has single precision only; else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if dtype == "float32" and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """So many threads of torch on the CPU within (None: as many as it has)."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Block(NamedTuple):
    """A block of rows: whom it may see at all (`rows.columns`), and within these `hidden` (rows, some), True for who is not seen, from
    column `begin` on (None: all are seen); `lonely` (rows, 1), True for tokens that see nobody (None: there are none)."""

    rows: Rows
    begin: int
    hidden: Tensor | None
    lonely: Tensor | None


class Velocity:
    """The right-hand side of one system; a `RightHandSide` on NumPy arrays, `evaluate` on tensors of the device."""

    def __init__(self, model: Attention, tokens: int, first: int, threads: int | None, dtype: str) -> None:
        self.model, self.tokens, self.first, self.threads, self.dtype = model, tokens, first, threads, dtype
        self.device, self.real = choose_device(dtype), REAL[dtype]
        # MPS has no double precision, so states live on the CPU there.
        self.home = torch.device("cpu") if self.device.type == "mps" else self.device
        law = model.weighting.law
        assert law is not None
        self.law = law
        with limited(threads):
            self.groups = groups(model, tokens, first, self.device, self.real)
            self.plain = self._is_plain()
            self.blocks = [[] if self._is_fused(group) else self._blocks(len(group.numbers)) for group in self.groups]
            self.masses = None if model.masses is None else self._tensor(model.masses)
            self.mass = None if model.frozen is None else self._tensor(model.frozen.weights)
            self.place = torch.arange(tokens, device=self.device, dtype=self.real)
            self.counts = [self._counts(group) for group in self.groups] if law.total == "visible" else []
            self.biases = [] if model.bias is None else [self._bias(group) for group in self.groups]
            layer = model.feedforward
            self.layer = None if layer is None else [self._tensor(w) for w in (layer.w1, layer.b1, layer.w2, layer.b2)]
        self.evaluations, self.recordings = 0, {}

    def _tensor(self, array: Any) -> Tensor:
        return torch.tensor(np.asarray(array), device=self.device, dtype=self.real)

    # ---------------------------------------------------------------------------------------- what is laid out once

    def _blocks(self, heads: int) -> list[Block]:
        """The blocks of rows for a product of so many heads."""
        kind, left = self.device.type, self.tokens - self.first
        held, fewest = HELD[kind] // heads, FEWEST[kind]
        if kind != "cpu":  # of equal heights: a small last one would cost as many launches as the others
            fewest = max(fewest, held // self.tokens)
            fewest = -(-left // -(-left // fewest))
            held = 0
        return [self._block(rows) for rows in reference.blocks(self.model.mask, self.tokens, self.first, held, fewest)]

    def _block(self, rows: Rows) -> Block:
        hidden = np.logical_not(self.model.mask.rows(self.tokens, rows.start, rows.stop)[:, rows.columns])
        lonely = None
        frozen = self.model.frozen
        alone = np.all(hidden, axis=1, keepdims=True)
        if alone.any() and (frozen is None or not np.any(frozen.weights)):
            lonely = torch.tensor(alone, device=self.device)
        some = np.flatnonzero(hidden.any(axis=0))
        if not some.size:
            return Block(rows, 0, None, lonely)
        part = np.ascontiguousarray(hidden[:, some[0] : some[-1] + 1])
        return Block(rows, int(some[0]), torch.tensor(part, device=self.device), lonely)

    def _bias(self, group: Group) -> Tensor:
        """The bias of the heads of a group: their slopes (heads, 1, 1), or their part of the matrix (heads or 1, n, n)."""
        bias = self.model.bias
        if isinstance(bias, LogitBias):
            matrix = np.asarray(bias.matrix)
            return self._tensor(matrix[None] if matrix.ndim == 2 else matrix[group.numbers])
        assert isinstance(bias, ALiBi)
        return self._tensor(self.model.slopes)[group.numbers, None, None]

    def _counts(self, group: Group) -> Tensor:
        """Logarithm of what unnormalised weights of a group are divided by, shape (heads, tokens, 1)."""
        return self._tensor(reference.log_divisors(self.model, self.tokens)[group.numbers, :, None])

    def _is_plain(self) -> bool:
        """True for causal or full softmax attention with nothing added: what torch has a product of its own for."""
        model = self.model
        plain = model.bias is None and model.masses is None and model.frozen is None and self.first == 0
        return plain and model.weights == "softmax" and model.mask in (Causal(), Full())

    def _is_fused(self, group: Group) -> bool:
        """True where torch's own product holds no matrix of all pairs and is the faster one: queries as long as values (on a GPU short
        ones in single precision, and many rows)."""
        same = group.rank == group.value_rank
        many = self.tokens * len(group.numbers) >= FUSED_ROWS
        short = self.device.type == "cpu" or (self.dtype == "float32" and group.rank <= FUSED_RANK and many)
        return self.plain and same and short and self.device.type in ("cpu", "cuda")

    # ------------------------------------------------------------------------------------------------ attention

    def _logits(self, group: Group, sums: Sums, block: Block) -> tuple[Tensor, int]:
        """Logits (heads, rows, m + columns), frozen tokens first, minus infinity where nobody is seen; and m."""
        rows, columns = block.rows, block.rows.columns
        own = slice(rows.start - self.first, rows.stop - self.first)
        moving = sums.queries[:, own] @ sums.keys[:, columns].transpose(1, 2)
        if len(moving) < len(group.numbers):  # all read the same; what is added may differ
            moving = moving.expand(len(group.numbers), -1, -1).contiguous()
        if self.model.bias is not None:
            moving += self._added(group, rows)
        if block.hidden is not None:
            moving[:, :, block.begin : block.begin + block.hidden.shape[1]].masked_fill_(block.hidden, -torch.inf)
        if sums.fixed_keys is None or self.mass is None:
            return moving, 0
        fixed = sums.plain[:, own] @ sums.fixed_keys.transpose(1, 2)
        fixed = fixed.masked_fill(self.mass == 0, -torch.inf)
        return torch.cat([fixed.expand(len(moving), -1, -1), moving], dim=2), len(self.mass)

    def _added(self, group: Group, rows: Rows) -> Tensor:
        """What the bias adds to the logits of a block, (heads or 1, rows, columns)."""
        bias = self.biases[self.groups.index(group)]
        if isinstance(self.model.bias, LogitBias):
            return bias[:, rows.start : rows.stop, rows.columns]
        return -bias * (self.place[rows.start : rows.stop, None] - self.place[rows.columns]).abs()

    def _weights(self, logits: Tensor, fixed: int, block: Block) -> tuple[Tensor, Tensor | None]:
        """Weights (heads, rows, m + columns) by the declared law, and the largest logit where it must stay in range (from which the
        logarithm of a divisor that is known beforehand is taken already)."""
        counts = self._masses(fixed, block.rows.columns)
        if self.law.score == "exponential" and self.law.total == "weights" and counts is None:
            weights = torch.softmax(logits, dim=2)
            return weights if block.lonely is None else weights.masked_fill_(block.lonely, 0.0), None
        top = logits.amax(dim=2, keepdim=True)
        top = torch.where(torch.isneginf(top), 0.0, top)
        if self.law.score == "largest":
            weights = (logits >= top - self.model.tie_tolerance * top.abs().clamp(min=1.0)).to(self.real)
        elif self.law.total == "weights":
            weights = logits.sub_(top).exp_()
        else:
            weights = logits.exp_()
        if counts is not None:
            weights *= counts
        if self.law.total == "visible":
            return weights, top.max() if self.law.score == "exponential" else None
        total = weights.sum(dim=2, keepdim=True)
        return weights / torch.where(total == 0, 1.0, total), None

    def _masses(self, fixed: int, columns: slice) -> Tensor | None:
        """How often the tokens of a block count, (m + columns,); None: once each."""
        if self.masses is None and not fixed:
            return None
        moving = torch.ones_like(self.place[columns]) if self.masses is None else self.masses[columns]
        return moving if not fixed or self.mass is None else torch.cat([self.mass, moving])

    def _fused(self, group: Group, sums: Sums) -> Tensor:
        """The weighted sums of values (heads, n, s) by torch's own product."""
        heads = len(group.numbers)
        q, k, v = (
            side[None] if len(side) == heads else side[None].expand(1, heads, -1, -1)
            for side in (sums.queries, sums.keys, sums.values)
        )
        causal = isinstance(self.model.mask, Causal)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=1.0)[0]

    def _block_sum(self, group: Group, sums: Sums, block: Block, tops: list[Tensor]) -> Tensor:
        """What a group adds to A for the rows of a block, (rows, d); a largest logit that must stay in range goes onto `tops`."""
        logits, fixed = self._logits(group, sums, block)
        if self.counts:
            logits = logits - self.counts[self.groups.index(group)][:, block.rows.start : block.rows.stop]
        weights, top = self._weights(logits, fixed, block)
        tops += [] if top is None else [top]
        summed = weights[:, :, fixed:] @ sums.values[:, block.rows.columns]
        if fixed and sums.fixed_values is not None:
            summed += weights[:, :, :fixed] @ sums.fixed_values
        return group.combine(summed)

    def attention_sum(self, x: Tensor) -> Tensor:
        """A of the tokens from `first` on, (rows, d), of unit tokens x (n, d) in the precision of the sums."""
        total: Tensor | None = None
        tops = []
        for group, blocks in zip(self.groups, self.blocks):
            sums = group.sums(x)
            if self._is_fused(group):
                part = group.combine(self._fused(group, sums))
            else:
                found = [self._block_sum(group, sums, block, tops) for block in blocks]
                part = found[0] if len(found) == 1 else torch.cat(found)
            total = part if total is None else total.add_(part)
        assert total is not None
        if tops:
            self._check_range(float(torch.stack(tops).max()))
        if self.layer is not None:
            w1, b1, w2, b2 = self.layer
            assert self.model.feedforward is not None
            total += activate(self.model.feedforward, x[self.first :] @ w1.T + b1) @ w2.T + b2
        return total

    def _check_range(self, top: float) -> None:
        if top > LOG_MAX[self.dtype]:
            precision = "double" if self.dtype == "float64" else "single"
            raise reference.overflow(top, LOG_MAX[self.dtype], precision)

    # --------------------------------------------------------------------------------------------- right-hand side

    def _can_record(self, law: Law) -> bool:
        """True on a GPU for what never waits for a number to come back and does not depend on depth."""
        return self.device.type == "cuda" and law.decay == 0 and self.law.total == "weights"

    def evaluate(self, t: float, y: Tensor, out: Tensor) -> None:
        """dy/dt of the packed state y (tokens, width) into `out`, both double precision at `home`, but for the rows below `first`."""
        law = self.model.norm.law(t)
        self.evaluations += 1
        if self.evaluations <= RECORD_AFTER or not self._can_record(law):
            self.compute(t, y, out)
            return
        if law not in self.recordings:
            self.recordings[law] = Recording(lambda state, result: self.compute(t, state, result), y)
        out[self.first :] = self.recordings[law](y)[self.first :]

    def compute(self, t: float, y: Tensor, out: Tensor) -> None:
        """The same, kernel by kernel."""
        with torch.no_grad(), limited(self.threads):
            dim, first = self.model.dim, self.first
            x = y[:, :dim].to(self.device, self.real)
            x = x / torch.linalg.vector_norm(x, dim=1, keepdim=True)
            A, moving = self.attention_sum(x), x[first:]
            along = torch.linalg.vecdot(moving, A)[:, None]
            law = self.model.norm.law(t)
            factor = law.amplitude / _divisor(law, A, t)
            tangent = torch.addcmul(A, along, moving, value=-1.0)
            if self.model.norm.has_radius:
                radius = y[first:, dim:].to(self.device, self.real)
                out[first:, dim:] = (law.radial * factor * along).to(self.home)
                factor = factor / radius**law.radius_power
            # A plain number (1, in most models) costs no pass over the tokens where it changes nothing.
            scaled = tangent if isinstance(factor, float) and factor == 1.0 else factor * tangent
            out[first:, :dim] = scaled.to(self.home)

    def __call__(self, t: float, y: FloatArray, out: FloatArray) -> None:
        if self.home.type == "cpu" and y.flags.writeable:  # torch takes no read-only array as it is
            self.evaluate(t, torch.from_numpy(y), torch.from_numpy(out))
            return
        state = torch.tensor(y, device=self.home)
        result = torch.empty_like(state)
        self.evaluate(t, state, result)
        out[self.first :] = result[self.first :].cpu().numpy()


def _divisor(law: Law, A: Tensor, t: float) -> Any:
    """(t + 1)^decay |A|^length_power, as in the reference engine: a number or a column; rows of zeros are divided by 1."""
    if not law.length_power:
        return law.depth(t)
    largest = A.abs().amax(dim=1, keepdim=True)
    largest = torch.where(largest == 0, 1.0, largest)
    length = largest * torch.linalg.vector_norm(A / largest, dim=1, keepdim=True)
    return law.depth(t) * torch.where(length == 0, 1.0, length) ** law.length_power


def activate(layer: FeedForward, z: Tensor) -> Tensor:
    """The activation functions of `FeedForward`."""
    known = {"relu": torch.relu, "tanh": torch.tanh, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}
    return z if layer.activation == "identity" else known[layer.activation](z)
