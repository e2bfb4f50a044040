"""ALBERT: BERT's block with weights shared across layers, the model of Figures 5 and 6 of arXiv:2411.04990.

Layer 0 sees projected embeddings without a norm of their own; every later layer sees the output of a LayerNorm, the same one in
each layer of a group. `stored_layer` says which layers share their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metastable.checkpoints.adapters.base import Adapter, entry, norm_parameters, separate_maps, sizes
from metastable.checkpoints.tensors import TensorStore
from metastable.checkpoints.weights import AttentionWeights, LayerWeights, Norm


def _read(config: Mapping[str, Any], tensors: TensorStore) -> AttentionWeights:
    dim, heads, head_dim = sizes(config)
    depth = int(entry(config, "num_hidden_layers"))
    groups, inner = int(config.get("num_hidden_groups", 1)), int(config.get("inner_group_num", 1))
    epsilon = float(config.get("layer_norm_eps", 1e-12))
    places = [(step * groups // depth, position) for step in range(depth) for position in range(inner)]

    def load(index: int) -> LayerWeights:
        def name(layer: int) -> str:
            group, position = places[layer]
            return f"encoder.albert_layer_groups.{group}.albert_layers.{position}."

        attention = name(index) + "attention."
        norm = Norm("none", "post")
        if index > 0:
            norm = Norm("layer", "post", epsilon, *norm_parameters(tensors, name(index - 1) + "full_layer_layer_norm"))
        names = tuple(f"{attention}{part}" for part in ("query", "key", "value", "dense"))
        return separate_maps(tensors, names, index=index, dim=dim, heads=heads, head_dim=head_dim, norm=norm)

    return AttentionWeights(
        architecture=str(config["model_type"]),
        source=tensors.source,
        dim=dim,
        head_count=heads,
        kv_head_count=heads,
        head_dim=head_dim,
        layer_count=depth * inner,
        causal=False,
        norm_kind="layer",
        norm_place="post",
        rope=None,
        loader=load,
        stored_layer=tuple(group * inner + position for group, position in places),
    )


ADAPTER = Adapter(
    model_types=("albert",),
    prefixes=("albert.", ""),
    probe="encoder.albert_layer_groups.0.albert_layers.0.attention.query.weight",
    read=_read,
)
