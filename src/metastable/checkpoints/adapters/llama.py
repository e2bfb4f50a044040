"""Llama family: RMSNorm before attention, rotary embeddings, grouped key/value heads. Also Mistral, Qwen2 and SmolLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metastable.checkpoints.adapters.base import Adapter, separate_maps, sizes, small, switch, whole
from metastable.checkpoints.rope import rope_from_config
from metastable.checkpoints.tensors import TensorStore
from metastable.checkpoints.weights import MOST_LAYERS, AttentionWeights, LayerWeights, Norm
from metastable.errors import CheckpointError


def _window(config: Mapping[str, Any]) -> int | None:
    """Width of the sliding window when every layer has one; mixed layouts are refused."""
    width = config.get("sliding_window")
    if width is None or (config["model_type"] == "qwen2" and not switch(config, "use_sliding_window", False)):
        return None
    types = config.get("layer_types") or ["sliding_attention"]
    if not isinstance(types, list) or not all(isinstance(kind, str) for kind in types):
        raise CheckpointError(f"config.json: layer_types must be a list of texts, not {types!r}")
    kinds = set(types)
    if kinds == {"full_attention"}:
        return None
    if len(kinds) > 1:
        raise CheckpointError(
            "config.json mixes full and sliding attention layers, which this adapter does not describe"
        )
    return whole(config, "sliding_window")


def _read(config: Mapping[str, Any], tensors: TensorStore) -> AttentionWeights:
    dim, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    kv_heads = whole(config, "num_key_value_heads", heads)
    head_dim = whole(config, "head_dim", 0) or sizes(config)[2]
    layers = whole(config, "num_hidden_layers", maximum=MOST_LAYERS)
    epsilon = small(config, "rms_norm_eps", 1e-6)
    if heads % kv_heads:
        raise CheckpointError(f"config.json: {heads} query heads are not a multiple of {kv_heads} key/value heads")

    def load(index: int) -> LayerWeights:
        name = f"layers.{index}."
        names = tuple(f"{name}self_attn.{part}_proj" for part in "qkvo")
        norm = Norm("rms", "pre", epsilon, tensors.read_shaped(f"{name}input_layernorm.weight", dim))
        return separate_maps(
            tensors, names, index=index, dim=dim, heads=heads, kv_heads=kv_heads, head_dim=head_dim, norm=norm
        )

    return AttentionWeights(
        architecture=str(config["model_type"]),
        source=tensors.source,
        dim=dim,
        head_count=heads,
        kv_head_count=kv_heads,
        head_dim=head_dim,
        layer_count=layers,
        causal=True,
        norm_kind="rms",
        norm_place="pre",
        rope=rope_from_config(config, head_dim, default_theta=10000.0, default_fraction=1.0),
        loader=load,
        stored_layer=tuple(range(layers)),
        window=_window(config),
    )


ADAPTER = Adapter(
    model_types=("llama", "mistral", "qwen2"),
    prefixes=("model.", ""),
    probe="layers.0.self_attn.q_proj.weight",
    read=_read,
    final_norm="norm",
)
