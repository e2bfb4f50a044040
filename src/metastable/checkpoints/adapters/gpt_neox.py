"""GPT-NeoX and Pythia: LayerNorm before attention, rotary embeddings on part of each head, query/key/value fused per head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metastable.checkpoints.adapters.base import (
    Adapter,
    norm_parameters,
    sizes,
    small,
    split_columns,
    whole,
)
from metastable.checkpoints.rope import rope_from_config
from metastable.checkpoints.tensors import TensorStore
from metastable.checkpoints.weights import MOST_LAYERS, AttentionWeights, LayerWeights, Norm


def _read(config: Mapping[str, Any], tensors: TensorStore) -> AttentionWeights:
    dim, heads, head_dim = sizes(config)
    layers = whole(config, "num_hidden_layers", maximum=MOST_LAYERS)
    epsilon = small(config, "layer_norm_eps", 1e-5)

    def load(index: int) -> LayerWeights:
        name = f"layers.{index}."
        attention = name + "attention."
        fused = tensors.read_shaped(f"{attention}query_key_value.weight", 3 * dim, dim).reshape(heads, 3, head_dim, dim)
        biases = tensors.read_optional(f"{attention}query_key_value.bias", 3 * dim)
        per_head = None if biases is None else biases.reshape(heads, 3, head_dim)
        query_bias, key_bias, value_bias = (None,) * 3 if per_head is None else (per_head[:, part] for part in range(3))
        return LayerWeights(
            index=index,
            query=fused[:, 0],
            key=fused[:, 1],
            value=fused[:, 2],
            output=split_columns(tensors.read_shaped(f"{attention}dense.weight", dim, dim), heads),
            norm=Norm("layer", "pre", epsilon, *norm_parameters(tensors, f"{name}input_layernorm", dim)),
            scale=head_dim**-0.5,
            query_bias=query_bias,
            key_bias=key_bias,
            value_bias=value_bias,
            output_bias=tensors.read_optional(f"{attention}dense.bias", dim),
        )

    return AttentionWeights(
        architecture=str(config["model_type"]),
        source=tensors.source,
        dim=dim,
        head_count=heads,
        kv_head_count=heads,
        head_dim=head_dim,
        layer_count=layers,
        causal=True,
        norm_kind="layer",
        norm_place="pre",
        rope=rope_from_config(config, head_dim, default_theta=10000.0, default_fraction=0.25),
        loader=load,
        stored_layer=tuple(range(layers)),
    )


ADAPTER = Adapter(
    model_types=("gpt_neox",),
    prefixes=("gpt_neox.", ""),
    probe="layers.0.attention.query_key_value.weight",
    read=_read,
    final_norm="final_layer_norm",
)
