"""What an attention layer computes, from its weights alone: logits, attention and output, exactly as the model does."""

from __future__ import annotations

import numpy as np

from metastable._checks import FloatArray, real_array
from metastable.checkpoints import arguments
from metastable.checkpoints.rope import Rope
from metastable.checkpoints.weights import AttentionWeights, LayerWeights
from metastable.errors import InvalidInputError


def visible(weights: AttentionWeights, tokens: int) -> np.ndarray:
    """Boolean (tokens, tokens): row s says which tokens s attends to."""
    query, key = np.arange(tokens)[:, None], np.arange(tokens)[None, :]
    seen = key <= query if weights.causal else np.ones((tokens, tokens), dtype=bool)
    if weights.window is not None:
        seen = seen & (query - key < weights.window)
    return seen


def _project(matrix: FloatArray, bias: FloatArray | None, z: FloatArray) -> FloatArray:
    """(heads, tokens, head_dim): the rows of z through each head's projection."""
    projected = z @ matrix.transpose(0, 2, 1)
    return projected if bias is None else projected + bias[:, None, :]


def attention_logits(layer: LayerWeights, states: FloatArray, rope: Rope | None) -> FloatArray:
    """Logits (heads, tokens, tokens) of a layer for the states (tokens, dim) of its residual stream, before any mask.

    logit^h_st = scale <R_s (Q_h n_s + b_Q), R_t (K_h n_t + b_K)> with n = N(x), biases and rotary positions included.
    """
    layer, rope = arguments.layer(layer), arguments.rope(rope)
    if rope is not None and rope.rotary_dim > layer.head_dim:
        raise InvalidInputError(f"rope turns {rope.rotary_dim} coordinates, but a head has {layer.head_dim}")
    folded = layer.fold()
    z = layer.norm.standardize(arguments.rows(states, layer.dim))
    query = _project(folded.query, folded.query_bias, z)
    key = _project(folded.key, folded.key_bias, z)
    if rope is not None:
        positions = np.arange(len(z), dtype=np.float64)
        query, key = rope.rotate(query, positions), rope.rotate(key, positions)
    groups = layer.head_count // layer.kv_head_count
    return layer.scale * (query @ np.repeat(key, groups, axis=0).transpose(0, 2, 1))


def attention_weights(weights: AttentionWeights, layer: int, states: FloatArray) -> FloatArray:
    """Attention (heads, tokens, tokens) of layer `layer` for the states (tokens, dim) that enter it; rows sum to one."""
    arguments.weights(weights)
    logits = attention_logits(weights.layer(layer), states, weights.rope)
    logits = np.where(visible(weights, logits.shape[-1]), logits, -np.inf)
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    return logits / logits.sum(axis=-1, keepdims=True)


def attention_output(layer: LayerWeights, states: FloatArray, attention: FloatArray) -> FloatArray:
    """Output (tokens, dim) of a layer's attention: sum_h a^h (W_h n + b_V)^T O_h^T + b_O.

    This is the decomposition into value matrices V_h = O_h W_h that all spectra rest on; `attention` has shape
    (heads, tokens, tokens), as the model or `attention_weights` gives it.
    """
    layer = arguments.layer(layer)
    rows, mix = arguments.rows(states, layer.dim), real_array(attention, "attention")
    if mix.shape != (layer.head_count, len(rows), len(rows)):
        raise InvalidInputError(
            f"attention must have shape {(layer.head_count, len(rows), len(rows))} (heads, tokens, tokens), not {mix.shape}"
        )
    folded = layer.fold()
    z = layer.norm.standardize(rows)
    value = np.repeat(_project(folded.value, folded.value_bias, z), layer.head_count // layer.kv_head_count, axis=0)
    mixed = mix @ value
    result = np.einsum("hse,hde->sd", mixed, layer.output, optimize=True)
    return result if layer.output_bias is None else result + layer.output_bias
