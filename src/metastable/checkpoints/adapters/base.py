"""What an adapter is, and the helpers that adapters share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from metastable._checks import FloatArray, count, number
from metastable.checkpoints.tensors import TensorStore
from metastable.checkpoints.weights import LARGEST, AttentionWeights, LayerWeights, Norm
from metastable.errors import CheckpointError, InvalidInputError


@dataclass(frozen=True)
class Adapter:
    """How one architecture family stores its attention.

    `model_types`: values of config.json's model_type. `prefixes`: what may stand before the tensor names (with and without a
    head on top). `probe`: a tensor that every checkpoint of the family has. `read(config, tensors)`: the weights.
    `final_norm`: attribute of the base model that holds the norm after the last block, or None.
    """

    model_types: tuple[str, ...]
    prefixes: tuple[str, ...]
    probe: str
    read: Callable[[Mapping[str, Any], TensorStore], AttentionWeights]
    final_norm: str | None = None

    def __post_init__(self) -> None:
        for name in ("model_types", "prefixes"):
            texts = getattr(self, name)
            if not isinstance(texts, tuple) or not texts or not all(isinstance(text, str) for text in texts):
                raise InvalidInputError(f"{name} must be a tuple of texts, not {texts!r}")
        if not isinstance(self.probe, str) or not callable(self.read):
            raise InvalidInputError(
                "an adapter needs probe, the name of a tensor, and read, a function (config, tensors)"
            )


def entry(config: Mapping[str, Any], *names: str) -> Any:
    """The first of `names` that config.json has."""
    for name in names:
        if config.get(name) is not None:
            return config[name]
    raise CheckpointError(f"config.json lacks {' or '.join(names)}; the checkpoint is incomplete")


def whole(config: Mapping[str, Any], name: str, default: int | None = None, maximum: int = LARGEST) -> int:
    """A setting that is a whole number of at least 1 (2.5 heads are refused, not rounded); None: it must be there."""
    value = config.get(name)
    if value is None and default is not None:
        return default
    return count(entry(config, name), f"config.json: {name}", 1, maximum, error=CheckpointError)


def small(config: Mapping[str, Any], name: str, default: float) -> float:
    """A setting such as the epsilon of a norm: a number from 0 to 1."""
    value = config.get(name)
    return default if value is None else number(value, f"config.json: {name}", 0.0, 1.0, error=CheckpointError)


def switch(config: Mapping[str, Any], name: str, default: bool) -> bool:
    """A setting that is true or false."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json: {name} must be true or false, not {value!r}")
    return value


def sizes(
    config: Mapping[str, Any], *, dim: str = "hidden_size", heads: str = "num_attention_heads"
) -> tuple[int, int, int]:
    """dim, number of heads and dimension of a head."""
    width, head_count = whole(config, dim), whole(config, heads)
    if width % head_count:
        raise CheckpointError(f"config.json: {dim}={width} is not a multiple of {heads}={head_count}")
    return width, head_count, width // head_count


def split_rows(weight: FloatArray, heads: int) -> FloatArray:
    """(heads * head_dim, dim) -> (heads, head_dim, dim)."""
    return weight.reshape(heads, -1, weight.shape[-1])


def split_columns(weight: FloatArray, heads: int) -> FloatArray:
    """(dim, heads * head_dim) -> (heads, dim, head_dim)."""
    return weight.reshape(weight.shape[0], heads, -1).transpose(1, 0, 2)


def split_bias(bias: FloatArray | None, heads: int) -> FloatArray | None:
    """(heads * head_dim,) -> (heads, head_dim)."""
    return None if bias is None else bias.reshape(heads, -1)


def norm_parameters(tensors: TensorStore, name: str, dim: int) -> tuple[FloatArray, FloatArray | None]:
    """Gain and shift of a norm, (dim,), also under the names (gamma, beta) that the oldest checkpoints use."""
    if f"{name}.gamma" in tensors.names:
        return tensors.read_shaped(f"{name}.gamma", dim), tensors.read_optional(f"{name}.beta", dim)
    return tensors.read_shaped(f"{name}.weight", dim), tensors.read_optional(f"{name}.bias", dim)


def separate_maps(
    tensors: TensorStore,
    names: tuple[str, ...],
    *,
    index: int,
    dim: int,
    heads: int,
    head_dim: int,
    norm: Norm,
    kv_heads: int | None = None,
) -> LayerWeights:
    """A layer whose query, key, value and output are four linear maps, stored output by input as `name.weight`, `name.bias`."""
    kv_heads = kv_heads or heads
    *inputs, output = names
    counts = (heads, kv_heads, kv_heads)
    query, key, value = (
        split_rows(tensors.read_shaped(f"{name}.weight", number * head_dim, dim), number)
        for name, number in zip(inputs, counts)
    )
    query_bias, key_bias, value_bias = (
        split_bias(tensors.read_optional(f"{name}.bias", number * head_dim), number)
        for name, number in zip(inputs, counts)
    )
    return LayerWeights(
        index=index,
        query=query,
        key=key,
        value=value,
        output=split_columns(tensors.read_shaped(f"{output}.weight", dim, heads * head_dim), heads),
        norm=norm,
        scale=head_dim**-0.5,
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        output_bias=tensors.read_optional(f"{output}.bias", dim),
    )
