"""GPT-2: LayerNorm before attention, absolute positions, one fused Conv1D (weights stored input by output)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metastable.checkpoints.adapters.base import (
    Adapter,
    norm_parameters,
    sizes,
    small,
    split_bias,
    split_columns,
    split_rows,
    switch,
    whole,
)
from metastable.checkpoints.tensors import TensorStore
from metastable.checkpoints.weights import MOST_LAYERS, AttentionWeights, LayerWeights, Norm


def _read(config: Mapping[str, Any], tensors: TensorStore) -> AttentionWeights:
    dim, heads, head_dim = sizes(config, dim="n_embd", heads="n_head")
    layers = whole(config, "n_layer", maximum=MOST_LAYERS)
    epsilon = small(config, "layer_norm_epsilon", 1e-5)

    def load(index: int) -> LayerWeights:
        name = f"h.{index}."
        query, key, value = tensors.read_shaped(f"{name}attn.c_attn.weight", dim, 3 * dim).T.reshape(3, dim, dim)
        biases = tensors.read_optional(f"{name}attn.c_attn.bias", 3 * dim)
        query_bias, key_bias, value_bias = (None,) * 3 if biases is None else biases.reshape(3, dim)
        scale = head_dim**-0.5 if switch(config, "scale_attn_weights", True) else 1.0
        if switch(config, "scale_attn_by_inverse_layer_idx", False):
            scale /= index + 1
        return LayerWeights(
            index=index,
            query=split_rows(query, heads),
            key=split_rows(key, heads),
            value=split_rows(value, heads),
            output=split_columns(tensors.read_shaped(f"{name}attn.c_proj.weight", dim, dim).T, heads),
            norm=Norm("layer", "pre", epsilon, *norm_parameters(tensors, f"{name}ln_1", dim)),
            scale=scale,
            query_bias=split_bias(query_bias, heads),
            key_bias=split_bias(key_bias, heads),
            value_bias=split_bias(value_bias, heads),
            output_bias=tensors.read_optional(f"{name}attn.c_proj.bias", dim),
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
        rope=None,
        loader=load,
        stored_layer=tuple(range(layers)),
    )


ADAPTER = Adapter(
    model_types=("gpt2",),
    prefixes=("transformer.", ""),
    probe="h.0.attn.c_attn.weight",
    read=_read,
    final_norm="ln_f",
)
