"""Llama family: RMSNorm before attention, rotary embeddings, grouped key/value heads. Also Mistral, Qwen2 and SmolLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metastable.checkpoints.adapters.base import Adapter, entry, separate_maps
from metastable.checkpoints.rope import rope_from_config
from metastable.checkpoints.tensors import TensorStore
from metastable.checkpoints.weights import AttentionWeights, LayerWeights, Norm
from metastable.errors import CheckpointError


def _window(config: Mapping[str, Any]) -> int | None:
    """Width of the sliding window when every layer has one; mixed layouts are refused."""
    width = config.get("sliding_window")
    if width is None or (config["model_type"] == "qwen2" and not config.get("use_sliding_window", False)):
        return None
    kinds = set(config.get("layer_types") or ["sliding_attention"])
    if kinds == {"full_attention"}:
        return None
    if len(kinds) > 1:
        raise CheckpointError(
            "config.json mixes full and sliding attention layers, which this adapter does not describe"
        )
    return int(width)


def _read(config: Mapping[str, Any], tensors: TensorStore) -> AttentionWeights:
    dim, heads = int(entry(config, "hidden_size")), int(entry(config, "num_attention_heads"))
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or dim // heads)
    layers = int(entry(config, "num_hidden_layers"))
    epsilon = float(config.get("rms_norm_eps", 1e-6))
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
