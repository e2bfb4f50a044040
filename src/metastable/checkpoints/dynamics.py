"""A real head, or all heads of a layer, as an `Attention` of the theory, and real token states as its unit vectors.

One layer of a pre-norm transformer adds sum_h a^h V_h z to the residual stream x = |x| u, with z = sqrt(dim) u. In units of
r = |x| / sqrt(dim) this is one step of length one of

    d(r u)/dt = sum_h sum_t a^h_st V_h u_t,      a^h_s. = softmax_t(beta <u_s, M_h u_t>),

which is `Attention` with `PreLN`, bilinear form beta M_h = A (see `metastable.checkpoints.temperature`) and value V_h. Heads keep
their low rank, rotary positions and biases, so this is the layer's own attention but for the epsilon of its norm. The feed-forward
block is not included.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from metastable._checks import FloatArray, count, number
from metastable.checkpoints import arguments
from metastable.checkpoints.temperature import acting_on_tokens, folded_logit_matrix
from metastable.checkpoints.weights import AttentionWeights, LayerWeights
from metastable.errors import DroppedPartWarning, InvalidInputError
from metastable.model import Attention, Causal, FeedForward, Full, Head, Masking, PostLN, PreLN, Window

if TYPE_CHECKING:
    import xarray as xr


class UnitTokens(NamedTuple):
    """Tokens as the theory wants them: `x` (tokens, dim) of unit length, and their radii |x| / sqrt(dim), (tokens,)."""

    x: FloatArray
    radius: FloatArray


def unit_tokens(weights: AttentionWeights, states: xr.Dataset, layer: int, *, drop_first: int = 0) -> UnitTokens:
    """The tokens that enter layer `layer`, as its own norm sees them (LayerNorm: centred), on the unit sphere."""
    index = arguments.weights(weights).check_layer(layer)
    cloud = arguments.dataset(states)["x"].values
    drop_first = count(drop_first, "drop_first", 0, cloud.shape[1] - 1)
    if cloud.shape[0] <= index or cloud.shape[2] != weights.dim:
        raise InvalidInputError(
            f"states of shape {cloud.shape} do not belong to these weights; use token_states of the same model, unchanged"
        )
    rows = cloud[index, drop_first:].astype(np.float64)
    norm = weights.layer(index).norm
    if norm.place == "post":
        rows = norm.standardize(rows)
    if norm.kind == "layer":
        rows = rows - rows.mean(axis=-1, keepdims=True)
    length = np.linalg.norm(rows, axis=1)
    if not length.all():
        raise InvalidInputError(f"token {int(length.argmin()) + drop_first} of layer {index} is zero; drop it")
    return UnitTokens(rows / length[:, None], length / np.sqrt(weights.dim))


def as_model(
    weights: AttentionWeights, layer: int, head: int | None = None, *, lag: float | None = None, radius: float = 1.0
) -> Attention:
    """Head `head` of layer `layer` (None: all heads, summed) as an `Attention`; one layer of the model is one unit of time.

    Each `Head` has the rank, the rotary positions and the biases of the model's head, with the norm's gain folded in. Its beta is
    beta_F at lag 0, the head's effective inverse temperature, and its queries and keys are scaled alike so that the logits are
    the model's. The bias of the output projection becomes a `FeedForward` without weights (all heads only). The feed-forward block
    of the layer is not included.

    Args:
        lag: freeze rotary positions at this distance query - key. Heads are then the matrices `key` = A / beta_F and `value` = V_h of
            size dim x dim, which the atlas and the compiled engines read; where the checkpoint has query biases, the part of the
            logits that comes from them, <b_Q, K x_j>, is dropped, with a `DroppedPartWarning`. None: positions as they are.
        radius: typical |x| / sqrt(dim) of the tokens (`unit_tokens(...).radius`); values are divided by it, because simulated
            tokens start with radius one.

    Returns:
        `Attention` with the model's mask and `PreLN` or `PostLN`. For post-norm models the residual also carries the gain;
        it is taken as its root mean square.
    """
    index = arguments.weights(weights).check_layer(layer)
    lag = None if lag is None else number(lag, "lag")
    radius = number(radius, "radius", 0.0, strict=True)
    stored = weights.layer(index)
    if stored.norm.place == "post" and stored.norm.gain is not None:
        radius = radius * float(np.sqrt(np.mean(stored.norm.gain**2)))
    chosen = range(weights.head_count) if head is None else [weights.check_head(head)]
    folded = acting_on_tokens(stored)
    if lag is None:
        heads = tuple(_head(weights, folded, place, radius) for place in chosen)
        drift = np.zeros(folded.dim) if folded.output_bias is None else _centered(folded, folded.output_bias)
    else:
        _warn_of_query_biases(folded, index)
        heads = tuple(_frozen_head(weights, folded, place, lag, radius) for place in chosen)
        drift = _drift(folded)
    drift = drift / (np.sqrt(weights.dim) * radius)
    return Attention(
        dim=weights.dim,
        heads=heads,
        mask=_mask(weights),
        norm=PreLN() if weights.norm_place == "pre" else PostLN(),
        feedforward=_constant(drift) if head is None and drift.any() else None,
    )


def _head(weights: AttentionWeights, folded: LayerWeights, head: int, radius: float) -> Head:
    """One head of a folded layer. Its logit is scale <R (sqrt(dim) Q u + b_Q), R (sqrt(dim) K u + b_K)>."""
    shared, size = folded.kv_head(head), np.sqrt(weights.dim)
    query, key = folded.query[head], folded.key[shared]
    query_bias, key_bias, value_bias = (
        None if bias is None else bias[place] / size
        for bias, place in ((folded.query_bias, head), (folded.key_bias, shared), (folded.value_bias, shared))
    )
    # |A|_F of A = scale dim Q^T K, by way of matrices of the head's rank.
    overlap = float(((query @ query.T) * (key @ key.T)).sum())
    strength = folded.scale * weights.dim
    beta = abs(strength) * np.sqrt(max(overlap, 0.0)) / size
    if beta == 0.0:
        # Where biases make logits, they need some temperature to count.
        beta = float(any(bias is not None and bias.any() for bias in (query_bias, key_bias)))
    # All on the side of the query: heads of a group go on sharing their keys.
    factor = strength / beta if beta else 1.0
    return Head(
        factor * query,
        key,
        folded.value[shared],
        beta,
        output=_centered(folded, folded.output[head]) / radius,
        rotary=None if weights.rope is None else weights.rope.as_rotary(),
        query_bias=None if query_bias is None else factor * query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
    )


def _warn_of_query_biases(folded: LayerWeights, index: int) -> None:
    if folded.query_bias is not None and np.any(folded.query_bias):
        warnings.warn(
            f"layer {index} has query biases, which matrices with positions frozen at one lag cannot express: the part of the logits "
            "that comes from them, <b_Q, K x>, is left out; as_model without lag keeps it",
            DroppedPartWarning,
            stacklevel=3,
        )


def _frozen_head(weights: AttentionWeights, folded: LayerWeights, head: int, lag: float, radius: float) -> Head:
    """One head as dim x dim matrices, positions frozen at `lag`: unit-temperature key matrix and the value of a folded layer."""
    bilinear = folded_logit_matrix(weights, folded, head, lag)
    beta = float(np.linalg.norm(bilinear) / np.sqrt(weights.dim))
    value = _centered(folded, folded.value_matrix(head)) / radius
    if beta == 0.0:
        return Head(key=np.eye(weights.dim), value=value, beta=0.0)
    return Head(key=bilinear / beta, value=value, beta=beta)


def _centered(folded: LayerWeights, output: FloatArray) -> FloatArray:
    """Columns without their mean where the norm centres: what is written along (1, ..., 1) is never read."""
    return output - output.mean(axis=0, keepdims=True) if folded.norm.kind == "layer" else output


def _drift(folded: LayerWeights) -> FloatArray:
    """sum_h O_h b_V + b_O, shape (dim,): what the layer adds to every token alike, since attention rows sum to one."""
    drift = np.zeros(folded.dim)
    if folded.value_bias is not None:
        groups = folded.head_count // folded.kv_head_count
        drift = np.einsum("hde,he->d", folded.output, np.repeat(folded.value_bias, groups, axis=0))
    if folded.output_bias is not None:
        drift = drift + folded.output_bias
    return _centered(folded, drift)


def _constant(drift: FloatArray) -> FeedForward:
    """A feed-forward part that adds the same vector to every token."""
    dim = drift.size
    return FeedForward(np.zeros((1, dim)), np.zeros(1), np.zeros((dim, 1)), drift, "identity")


def _mask(weights: AttentionWeights) -> Masking:
    """Who sees whom."""
    if weights.window is not None:
        return Window(weights.window)
    return Causal() if weights.causal else Full()
