"""What an adapter is, and the helpers that adapters share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from metastable._checks import FloatArray
from metastable.checkpoints.tensors import TensorStore
from metastable.checkpoints.weights import AttentionWeights, LayerWeights, Norm
from metastable.errors import CheckpointError


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


def entry(config: Mapping[str, Any], *names: str) -> Any:
    """The first of `names` that config.json has."""
    for name in names:
        if config.get(name) is not None:
            return config[name]
    raise CheckpointError(f"config.json lacks {' or '.join(names)}; the checkpoint is incomplete")


def sizes(
    config: Mapping[str, Any], *, dim: str = "hidden_size", heads: str = "num_attention_heads"
) -> tuple[int, int, int]:
    """dim, number of heads and dimension of a head."""
    width, head_count = int(entry(config, dim)), int(entry(config, heads))
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


def norm_parameters(tensors: TensorStore, name: str) -> tuple[FloatArray, FloatArray | None]:
    """Gain and shift of a norm, also under the names (gamma, beta) that the oldest checkpoints use."""
    if f"{name}.gamma" in tensors.names:
        return tensors.read(f"{name}.gamma"), tensors.read_optional(f"{name}.beta")
    return tensors.read(f"{name}.weight"), tensors.read_optional(f"{name}.bias")


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
        split_rows(tensors.read_shaped(f"{name}.weight", count * head_dim, dim), count)
        for name, count in zip(inputs, counts)
    )
    query_bias, key_bias, value_bias = (
        split_bias(tensors.read_optional(f"{name}.bias"), count) for name, count in zip(inputs, counts)
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
        output_bias=tensors.read_optional(f"{output}.bias"),
    )
