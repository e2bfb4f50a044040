"""ALBERT: BERT's block with weights shared across layers, the model of Figures 5 and 6 of arXiv:2411.04990.

Layer 0 sees projected embeddings without a norm of their own; every later layer sees the output of a LayerNorm, the same one in
each layer of a group. `stored_layer` says which layers share their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metastable.checkpoints.adapters.base import (
    Adapter,
    norm_parameters,
    separate_maps,
    sizes,
    small,
    whole,
)
from metastable.checkpoints.tensors import TensorStore
from metastable.checkpoints.weights import MOST_LAYERS, AttentionWeights, LayerWeights, Norm
from metastable.errors import CheckpointError


def _read(config: Mapping[str, Any], tensors: TensorStore) -> AttentionWeights:
    dim, heads, head_dim = sizes(config)
    depth = whole(config, "num_hidden_layers", maximum=MOST_LAYERS)
    groups, inner = whole(config, "num_hidden_groups", 1), whole(config, "inner_group_num", 1, maximum=100)
    if groups > depth:
        raise CheckpointError(f"config.json: {groups} groups of layers are more than the {depth} layers")
    epsilon = small(config, "layer_norm_eps", 1e-12)
    places = [(step * groups // depth, position) for step in range(depth) for position in range(inner)]

    def load(index: int) -> LayerWeights:
        def name(layer: int) -> str:
            group, position = places[layer]
            return f"encoder.albert_layer_groups.{group}.albert_layers.{position}."

        attention = name(index) + "attention."
        norm = Norm("none", "post")
        if index > 0:
            norm = Norm(
                "layer", "post", epsilon, *norm_parameters(tensors, name(index - 1) + "full_layer_layer_norm", dim)
            )
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
