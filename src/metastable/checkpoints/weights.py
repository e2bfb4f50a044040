"""Attention weights of a transformer checkpoint, in one shape for every architecture.

A block of a transformer turns the states x (one row per token, the residual stream) into normalised rows n = N(x), and its
attention adds, for query token s,

    y_s = sum_h sum_t a^h_st O_h (W_h n_t + b_V) + b_O,
    a^h_st = softmax_t( scale <R_s (Q_h n_s + b_Q), R_t (K_h n_t + b_K)> ),

with R the rotary rotation (identity where the architecture has none). Query head h reads key and value head
h // (head_count // kv_head_count). The value matrix of a head, in the sense of arXiv:2411.04990 (section 6 and Figures 5, 6),
is V_h = O_h W_h, a dim x dim matrix of rank at most head_dim.

The norm is n = G z + shift with z of unit variance; `LayerWeights.fold` absorbs gain and shift, so that the folded weights
act on z, and the unit tokens of the theory are u = z / sqrt(dim).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from metastable._checks import FloatArray, choice, count, flag, number, real_array, vector
from metastable._checks import seed as check_seed
from metastable.checkpoints.rope import Rope
from metastable.errors import InvalidInputError

NormKind = Literal["rms", "layer", "none"]
NormPlace = Literal["pre", "post"]

LARGEST = 10_000_000
"""Larger than any dimension or number of heads; more is a mistake."""
MOST_LAYERS = 100_000


@dataclass(frozen=True)
class Norm:
    """The normalisation that feeds an attention layer.

    `kind`: `"rms"` (z = x / rms(x)), `"layer"` (z = (x - mean x) / std(x)) or `"none"`. `place`: `"pre"` when the block applies
    it to its input, `"post"` when the states arrive already normalised by the block before. `gain`, `shift`: (dim,) or None.
    """

    kind: NormKind
    place: NormPlace
    epsilon: float = 0.0
    gain: FloatArray | None = None
    shift: FloatArray | None = None

    def __post_init__(self) -> None:
        choice(self.kind, "kind", get_args(NormKind))
        choice(self.place, "place", get_args(NormPlace))
        number(self.epsilon, "epsilon", 0.0)
        for name in ("gain", "shift"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, vector(getattr(self, name), name))

    def standardize(self, states: FloatArray) -> FloatArray:
        """z of shape (..., dim): the normalised states without gain and shift.

        For `"post"` norms the states are G z + shift already, and z is recovered from them; a dimension whose gain is zero
        carries nothing and comes back as zero.
        """
        states = real_array(states, "states")
        for name in ("gain", "shift"):
            wanted = getattr(self, name)
            if wanted is not None and states.shape[-1:] != wanted.shape:
                raise InvalidInputError(f"states must have {wanted.size} features, as {name} has, not {states.shape}")
        if self.kind == "none":
            return states
        if self.place == "post":
            z = states if self.shift is None else states - self.shift
            if self.gain is None:
                return z
            return np.divide(z, self.gain, out=np.zeros_like(z), where=self.gain != 0)
        if self.kind == "layer":
            states = states - states.mean(axis=-1, keepdims=True)
        if states.ndim == 0 or states.shape[-1] == 0:
            raise InvalidInputError(f"states must have shape (..., dim), not {states.shape}")
        with np.errstate(over="ignore"):
            length = np.sqrt(np.mean(states * states, axis=-1, keepdims=True) + self.epsilon)
        if not (np.isfinite(length) & (length > 0)).all():
            raise InvalidInputError("states hold a row that is zero or beyond 1e154, which no norm brings to length 1")
        return states / length


@dataclass(frozen=True)
class LayerWeights:
    """The attention weights of one block, float64, one matrix per head.

    Shapes: `query` (heads, head_dim, dim); `key`, `value` (kv_heads, head_dim, dim); `output` (heads, dim, head_dim);
    `query_bias` (heads, head_dim); `key_bias`, `value_bias` (kv_heads, head_dim); `output_bias` (dim,). Biases may be None.
    `scale` multiplies the logits (usually head_dim^-1/2).
    """

    index: int
    query: FloatArray
    key: FloatArray
    value: FloatArray
    output: FloatArray
    norm: Norm
    scale: float
    query_bias: FloatArray | None = None
    key_bias: FloatArray | None = None
    value_bias: FloatArray | None = None
    output_bias: FloatArray | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.norm, Norm):
            raise InvalidInputError(f"norm must be a Norm, not {self.norm!r}")
        number(self.scale, "scale")
        for name in ("query", "key", "value", "output"):
            array = real_array(getattr(self, name), name)
            if array.ndim != 3 or not array.size:
                raise InvalidInputError(f"{name} must have one matrix per head (three axes), not shape {array.shape}")
            object.__setattr__(self, name, array)
        heads, width, dim = self.query.shape
        kv_heads = len(self.key)
        if heads % kv_heads:
            raise InvalidInputError(f"{heads} query heads are not a multiple of {kv_heads} key and value heads")
        wanted = {"key": (kv_heads, width, dim), "value": (kv_heads, width, dim), "output": (heads, dim, width)}
        wanted |= {"query_bias": (heads, width), "key_bias": (kv_heads, width), "value_bias": (kv_heads, width)}
        for name, shape in {**wanted, "output_bias": (dim,)}.items():
            given = getattr(self, name)
            if given is None and name.endswith("bias"):
                continue
            array = real_array(given, name)
            if array.shape != shape:
                raise InvalidInputError(f"{name} must have shape {shape}, not {array.shape}")
            object.__setattr__(self, name, array)
        for name, array in (("gain", self.norm.gain), ("shift", self.norm.shift)):
            if array is not None and array.shape != (dim,):
                raise InvalidInputError(f"the {name} of the norm must have shape {(dim,)}, not {array.shape}")

    @property
    def head_count(self) -> int:
        """Number of query heads."""
        return self.query.shape[0]

    @property
    def kv_head_count(self) -> int:
        """Number of key and value heads."""
        return self.value.shape[0]

    @property
    def head_dim(self) -> int:
        """Dimension of a head."""
        return self.query.shape[1]

    @property
    def dim(self) -> int:
        """Dimension of a token."""
        return self.query.shape[2]

    def kv_head(self, head: int) -> int:
        """The key and value head that query head `head` reads."""
        head = count(head, "head", 0, self.head_count - 1)
        return head // (self.head_count // self.kv_head_count)

    def fold(self, gain: bool = True, center: bool = False) -> LayerWeights:
        """The same layer acting on z: W -> W G, b -> b + W shift (`gain`), and W -> W (I - 11^T/dim) (`center`).

        `center` is LayerNorm's own projection: since z has mean zero it changes nothing that the layer computes, but it
        removes from the matrices the direction that no token ever has.
        """
        gain, center = flag(gain, "gain"), flag(center, "center")

        def matrix(weight: FloatArray) -> FloatArray:
            folded = weight if self.norm.gain is None or not gain else weight * self.norm.gain
            return folded - folded.mean(axis=-1, keepdims=True) if center else folded

        def bias(vector: FloatArray | None, weight: FloatArray) -> FloatArray | None:
            if not gain or self.norm.shift is None:
                return vector
            moved = weight @ self.norm.shift
            return moved if vector is None else vector + moved

        return replace(
            self,
            query=matrix(self.query),
            key=matrix(self.key),
            value=matrix(self.value),
            query_bias=bias(self.query_bias, self.query),
            key_bias=bias(self.key_bias, self.key),
            value_bias=bias(self.value_bias, self.value),
            norm=replace(self.norm, gain=None, shift=None) if gain else self.norm,
        )

    def value_matrix(self, head: int) -> FloatArray:
        """V_h = O_h W_h, shape (dim, dim); fold first to include the norm's gain."""
        shared = self.kv_head(head)
        return self.output[head] @ self.value[shared]


@dataclass(frozen=True)
class AttentionWeights:
    """All attention layers of a checkpoint. Layers are read when asked for: `layer(i)` or `for layer in weights.layers()`.

    `stored_layer[i]` is the index of the weights that layer i uses (ALBERT shares them: then entries repeat). `window` is the
    number of tokens a query sees under sliding-window attention, or None.
    """

    architecture: str
    source: str
    dim: int
    head_count: int
    kv_head_count: int
    head_dim: int
    layer_count: int
    causal: bool
    norm_kind: NormKind
    norm_place: NormPlace
    rope: Rope | None
    loader: Callable[[int], LayerWeights] = field(repr=False, compare=False)
    stored_layer: tuple[int, ...] = ()
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("dim", "head_count", "kv_head_count", "head_dim", "layer_count"):
            count(getattr(self, name), name)
        if self.head_count % self.kv_head_count:
            raise InvalidInputError(
                f"head_count={self.head_count} must be a multiple of kv_head_count={self.kv_head_count}"
            )
        choice(self.norm_kind, "norm_kind", get_args(NormKind))
        choice(self.norm_place, "norm_place", get_args(NormPlace))
        if not callable(self.loader):
            raise InvalidInputError(f"loader must be a function that reads a layer, not {self.loader!r}")
        if self.rope is not None and not isinstance(self.rope, Rope):
            raise InvalidInputError(f"rope must be a Rope or None, not {self.rope!r}")
        if self.rope is not None and self.rope.rotary_dim > self.head_dim:
            raise InvalidInputError(f"rope turns {self.rope.rotary_dim} coordinates, but a head has {self.head_dim}")
        if self.window is not None:
            count(self.window, "window")

    def layer(self, index: int) -> LayerWeights:
        """The weights of layer `index` (0 is the first; negative counts from the end)."""
        return self.loader(self.check_layer(index))

    def layers(self) -> Iterator[LayerWeights]:
        """All layers, one at a time, so that a large checkpoint never has to fit into memory."""
        for index in range(self.layer_count):
            yield self.loader(index)

    def check_layer(self, index: int) -> int:
        """`index` as a layer number from 0, or an error that says which exist."""
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
            raise InvalidInputError(f"layer must be a whole number, not {index!r}")
        if not -self.layer_count <= index < self.layer_count:
            raise InvalidInputError(
                f"layer {index} does not exist: {self.source} has layers 0 to {self.layer_count - 1}"
            )
        return int(index) % self.layer_count

    def check_head(self, index: int) -> int:
        """`index` as a head number from 0, or an error that says which exist."""
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
            raise InvalidInputError(f"head must be a whole number, not {index!r}")
        if not -self.head_count <= index < self.head_count:
            raise InvalidInputError(f"head {index} does not exist: {self.source} has heads 0 to {self.head_count - 1}")
        return int(index) % self.head_count


def random_weights(
    dim: int,
    head_count: int,
    layer_count: int = 1,
    *,
    head_dim: int | None = None,
    kv_head_count: int | None = None,
    deviation: float = 0.02,
    causal: bool = False,
    rope: Rope | None = None,
    seed: int = 0,
) -> AttentionWeights:
    """Attention at initialisation: independent Gaussian entries of standard deviation `deviation`, no gain, no bias.

    With dim = 2048 and 16 heads these are the sizes of albert-xlarge-v2, whose initial spectrum is Figure 5 of
    arXiv:2411.04990. Layer l uses its own child of `seed`, so layers can be read in any order.
    """
    dim, head_count = count(dim, "dim", 2, LARGEST), count(head_count, "head_count", 1, LARGEST)
    layer_count, seed_value = count(layer_count, "layer_count", 1, MOST_LAYERS), check_seed(seed)
    kv_heads = head_count if kv_head_count is None else count(kv_head_count, "kv_head_count")
    deviation = number(deviation, "deviation", 0.0, strict=True)
    if not isinstance(causal, bool):
        raise InvalidInputError(f"causal must be True or False, not {causal!r}")
    if head_count % kv_heads:
        raise InvalidInputError(f"head_count={head_count} must be a multiple of kv_head_count={kv_heads}")
    if head_dim is None and dim % head_count:
        raise InvalidInputError(f"dim={dim} is not a multiple of head_count={head_count}; give head_dim")
    width = dim // head_count if head_dim is None else count(head_dim, "head_dim", 1, LARGEST)

    def load(index: int) -> LayerWeights:
        generator = np.random.default_rng(np.random.SeedSequence(seed_value, spawn_key=(index,)))

        def draw(heads: int) -> FloatArray:
            return generator.normal(0.0, deviation, (heads, width, dim))

        output = generator.normal(0.0, deviation, (head_count, dim, width))
        return LayerWeights(
            index, draw(head_count), draw(kv_heads), draw(kv_heads), output, Norm("none", "pre"), width**-0.5
        )

    return AttentionWeights(
        architecture="random",
        source=f"Gaussian initialisation, standard deviation {deviation:g}, seed {seed_value}",
        dim=dim,
        head_count=head_count,
        kv_head_count=kv_heads,
        head_dim=width,
        layer_count=layer_count,
        causal=causal,
        norm_kind="none",
        norm_place="pre",
        rope=rope,
        loader=load,
        stored_layer=tuple(range(layer_count)),
    )
