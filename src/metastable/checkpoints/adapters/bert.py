"""BERT (MiniLM, and everything that shares its layout): LayerNorm after each block, full attention, absolute positions.

The gain that feeds layer l belongs to the LayerNorm that ends layer l - 1 (layer 0: the embeddings' one).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metastable.checkpoints.adapters.base import (
    Adapter,
    entry,
    norm_parameters,
    sizes,
    split_bias,
    split_columns,
    split_rows,
)
from metastable.checkpoints.tensors import TensorStore
from metastable.checkpoints.weights import AttentionWeights, LayerWeights, Norm
from metastable.errors import CheckpointError


def _read(config: Mapping[str, Any], tensors: TensorStore) -> AttentionWeights:
    dim, heads, head_dim = sizes(config)
    layers = int(entry(config, "num_hidden_layers"))
    epsilon = float(config.get("layer_norm_eps", 1e-12))
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise CheckpointError(
            "config.json: BERT with relative positions adds terms to the logits that are not described here"
        )
    if config.get("is_decoder", False):
        raise CheckpointError(
            "config.json: a BERT decoder is causal or has cross-attention; only the encoder is described"
        )

    def load(index: int) -> LayerWeights:
        name = f"encoder.layer.{index}.attention."
        before = "embeddings.LayerNorm" if index == 0 else f"encoder.layer.{index - 1}.output.LayerNorm"

        def rows(part: str):
            return split_rows(tensors.read_shaped(f"{name}self.{part}.weight", dim, dim), heads)

        def bias(part: str):
            return split_bias(tensors.read_optional(f"{name}self.{part}.bias"), heads)

        return LayerWeights(
            index=index,
            query=rows("query"),
            key=rows("key"),
            value=rows("value"),
            output=split_columns(tensors.read_shaped(f"{name}output.dense.weight", dim, dim), heads),
            norm=Norm("layer", "post", epsilon, *norm_parameters(tensors, before)),
            scale=head_dim**-0.5,
            query_bias=bias("query"),
            key_bias=bias("key"),
            value_bias=bias("value"),
            output_bias=tensors.read_optional(f"{name}output.dense.bias"),
        )

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
