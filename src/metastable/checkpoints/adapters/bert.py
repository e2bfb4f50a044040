"""BERT (MiniLM, and everything that shares its layout): LayerNorm after each block, full attention, absolute positions.

The gain that feeds layer l belongs to the LayerNorm that ends layer l - 1 (layer 0: the embeddings' one).
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
    switch,
    whole,
)
from metastable.checkpoints.tensors import TensorStore
from metastable.checkpoints.weights import MOST_LAYERS, AttentionWeights, LayerWeights, Norm
from metastable.errors import CheckpointError


def _read(config: Mapping[str, Any], tensors: TensorStore) -> AttentionWeights:
    dim, heads, head_dim = sizes(config)
    layers = whole(config, "num_hidden_layers", maximum=MOST_LAYERS)
    epsilon = small(config, "layer_norm_eps", 1e-12)
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise CheckpointError(
            "config.json: BERT with relative positions adds terms to the logits that are not described here"
        )
    if switch(config, "is_decoder", False):
        raise CheckpointError(
            "config.json: a BERT decoder is causal or has cross-attention; only the encoder is described"
        )

    def load(index: int) -> LayerWeights:
        name = f"encoder.layer.{index}.attention."
        before = "embeddings.LayerNorm" if index == 0 else f"encoder.layer.{index - 1}.output.LayerNorm"
        names = tuple(f"{name}{part}" for part in ("self.query", "self.key", "self.value", "output.dense"))
        norm = Norm("layer", "post", epsilon, *norm_parameters(tensors, before, dim))
        return separate_maps(tensors, names, index=index, dim=dim, heads=heads, head_dim=head_dim, norm=norm)

    return AttentionWeights(
        architecture=str(config["model_type"]),
        source=tensors.source,
        dim=dim,
        head_count=heads,
        kv_head_count=heads,
        head_dim=head_dim,
        layer_count=layers,
        causal=False,
        norm_kind="layer",
        norm_place="post",
        rope=None,
        loader=load,
        stored_layer=tuple(range(layers)),
    )


ADAPTER = Adapter(
    model_types=("bert",),
    prefixes=("bert.", ""),
    probe="encoder.layer.0.attention.self.query.weight",
    read=_read,
)
