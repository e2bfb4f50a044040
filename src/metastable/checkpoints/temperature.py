"""Effective inverse temperature of real heads.

With unit tokens u = z / sqrt(dim) the logit of a head is u^T A u' (plus terms from biases), where

    A = scale * dim * G Q_h^T R_lag K_h G,

while the theory of arXiv:2411.04990 has A = beta I. Three numbers compare the two: beta_F = |A|_F / sqrt(dim) (the same
rms logit as beta <u, u'> for independent uniform tokens), beta_op = |A|_2 (the largest logit on the sphere), and, on real
tokens, beta_data = rms of row-centred logits over rms of row-centred cosines. The regression slope and its R^2 say how far
a head IS beta times a cosine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable._checks import FloatArray, count, number, vector
from metastable.checkpoints import arguments
from metastable.checkpoints.attention import attention_logits, visible
from metastable.checkpoints.linear import gram_factor
from metastable.checkpoints.weights import AttentionWeights, LayerWeights
from metastable.errors import InvalidInputError, TokenError

if TYPE_CHECKING:
    import xarray as xr


def logit_matrix(weights: AttentionWeights, layer: int, head: int, lag: float = 0.0) -> FloatArray:
    """A, shape (dim, dim): the logit of unit tokens u (query) and u' (key, `lag` positions earlier) is u^T A u'.

    For LayerNorm models A is centred on both sides. Biases are not in A (`attention_logits` has them).
    """
    folded = acting_on_tokens(arguments.weights(weights).layer(layer))
    return folded_logit_matrix(weights, folded, weights.check_head(head), number(lag, "lag"))


def folded_logit_matrix(weights: AttentionWeights, folded: LayerWeights, head: int, lag: float) -> FloatArray:
    """`logit_matrix` of a layer that was read and folded before (by `acting_on_tokens`)."""
    query, key = folded.query[head], folded.key[folded.kv_head(head)]
    if weights.rope is not None and lag != 0:
        key = weights.rope.rotation(lag, weights.head_dim) @ key
    return folded.scale * weights.dim * (query.T @ key)


def acting_on_tokens(layer: LayerWeights) -> LayerWeights:
    """The layer with its gain folded in, and centred where its norm centres."""
    return layer.fold(gain=True, center=layer.norm.kind == "layer")


def _weight_temperatures(
    weights: AttentionWeights, layer: LayerWeights, lags: Sequence[float], rope: bool
) -> FloatArray:
    """(heads, lags, 3): beta_F, beta_op and trace(A)/dim, from head_dim x head_dim matrices only."""
    folded = acting_on_tokens(layer)
    groups = layer.head_count // layer.kv_head_count
    factor = folded.scale * layer.dim
    query_factor = gram_factor(folded.query.transpose(0, 2, 1))
    key_factor = np.repeat(gram_factor(folded.key.transpose(0, 2, 1)), groups, axis=0)
    overlap = np.repeat(folded.key, groups, axis=0) @ folded.query.transpose(0, 2, 1)
    result = np.empty((layer.head_count, len(lags), 3))
    for place, lag in enumerate(lags):
        turn = np.eye(layer.head_dim)
        if rope and weights.rope is not None and lag != 0:
            turn = weights.rope.rotation(lag, layer.head_dim)
        strengths = factor * np.linalg.svd(query_factor @ turn @ key_factor.transpose(0, 2, 1), compute_uv=False)
        result[:, place, 0] = np.sqrt((strengths**2).sum(axis=-1) / layer.dim)
        result[:, place, 1] = strengths[:, 0]
        result[:, place, 2] = factor * np.trace(turn @ overlap, axis1=-2, axis2=-1) / layer.dim
    return result


def _data_temperatures(
    weights: AttentionWeights, layer: LayerWeights, states: FloatArray, drop_first: int, first_row: int, rope: bool
) -> dict[str, FloatArray]:
    """beta_data, slope, r_squared, sink_mass and attention_perplexity of each head on real states (tokens, dim)."""
    logits = attention_logits(layer, states, weights.rope if rope else None)
    seen = visible(weights, len(states))
    shifted = np.where(seen, logits, -np.inf)
    shifted -= shifted.max(axis=-1, keepdims=True)
    attention = np.exp(shifted)
    attention /= attention.sum(axis=-1, keepdims=True)
    unit = layer.norm.standardize(states)
    length = np.linalg.norm(unit, axis=-1, keepdims=True)
    if not length.all():
        raise TokenError(
            f"token {int(length.argmin())} is zero where it enters layer {layer.index}, so it has no direction"
        )
    unit = unit / length
    used = seen.copy()
    used[:, :drop_first] = False
    used[:first_row] = False
    weight = used.sum(axis=-1, keepdims=True).clip(1)

    def centred(values: FloatArray) -> FloatArray:
        values = np.where(used, values, 0.0)
        return np.where(used, values - values.sum(axis=-1, keepdims=True) / weight, 0.0)

    cosine, logits = centred(unit @ unit.T), centred(logits)
    squares = (cosine**2).sum()
    if squares == 0:
        raise TokenError(
            f"all tokens that enter layer {layer.index} point the same way, so no temperature can be read off them"
        )
    cross, own = (logits * cosine).sum(axis=(-2, -1)), (logits**2).sum(axis=(-2, -1))
    entropy = -(attention * np.log(np.where(attention > 0, attention, 1.0))).sum(axis=-1)
    return {
        "beta_data": np.sqrt(own / squares),
        "slope": cross / squares,
        # A head that was switched off has no logits to explain.
        "r_squared": np.divide(cross**2, own * squares, out=np.zeros_like(own), where=own > 0),
        "sink_mass": attention[:, first_row:, 0].mean(axis=-1),
        "attention_perplexity": np.exp(entropy[:, first_row:].mean(axis=-1)),
    }


def inverse_temperature(
    weights: AttentionWeights,
    states: xr.Dataset | None = None,
    *,
    lags: Sequence[float] = (0,),
    drop_first: int = 1,
    first_row: int = 8,
    rope: bool = True,
) -> xr.Dataset:
    """Inverse temperature of every head, from the weights and, when `states` are given, on real tokens.

    Args:
        weights: from `load_weights` (or `random_weights`, where beta_F tends to deviation^2 dim^1.5).
        states: from `token_states` of the same model; row l of `x` is what enters layer l.
        lags: distances query - key at which A is taken (rotary models; elsewhere all lags agree).
        drop_first: keys left out of the regression: the sink would dominate it.
        first_row: queries before this one see too few keys and are left out.
        rope: apply rotary positions.

    Returns:
        Dataset over (layer, head): `beta_F`, `beta_op`, `trace` = tr(A)/dim (.., lag), and with states `beta_data`, `slope`,
        `r_squared`, `sink_mass` (mean attention to token 0) and `attention_perplexity` (exp of the mean entropy: how many
        tokens share the attention).
    """
    import xarray as xr

    arguments.weights(weights)
    lags, rope = vector(lags, "lags").tolist(), arguments.switch(rope, "rope")
    if not lags:
        raise InvalidInputError("lags must hold at least one lag, for example (0,)")
    drop_first, first_row = count(drop_first, "drop_first", 0), count(first_row, "first_row", 0)
    cloud = None if states is None else _check_states(weights, states, drop_first, first_row)
    from_weights, from_data = [], []
    for index, layer in enumerate(weights.layers()):
        from_weights.append(_weight_temperatures(weights, layer, lags, rope))
        if cloud is not None:
            from_data.append(
                _data_temperatures(weights, layer, cloud[index].astype(np.float64), drop_first, first_row, rope)
            )
    table = np.stack(from_weights)
    dims = ("layer", "head")
    variables: dict[str, Any] = {
        name: ((*dims, "lag"), table[..., place]) for place, name in enumerate(("beta_F", "beta_op", "trace"))
    }
    if from_data:
        variables.update({name: (dims, np.stack([row[name] for row in from_data])) for name in from_data[0]})
    return xr.Dataset(
        variables,
        coords={"layer": np.arange(weights.layer_count), "head": np.arange(weights.head_count), "lag": list(lags)},
        attrs={"source": weights.source, "drop_first": drop_first, "first_row": first_row, "rope": int(rope)},
    )


def _check_states(weights: AttentionWeights, states: xr.Dataset, drop_first: int, first_row: int) -> np.ndarray:
    """The array of states, when it fits the weights."""
    cloud = arguments.dataset(states)["x"].values
    if cloud.shape[0] != weights.layer_count + 1 or cloud.shape[2] != weights.dim:
        raise InvalidInputError(
            f"states have {cloud.shape[0]} layers of dimension {cloud.shape[2]}, but the weights imply "
            f"{weights.layer_count + 1} of dimension {weights.dim}; use token_states of the same model, unchanged"
        )
    if cloud.shape[1] < max(drop_first, first_row) + 2:
        raise InvalidInputError(
            f"the text has {cloud.shape[1]} tokens; temperatures need at least {max(drop_first, first_row) + 2}"
        )
    return cloud
