"""Token states of a running model, layer by layer, and their way onto the unit sphere with every choice written down."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable._checks import FloatArray, choice, count, real_array
from metastable.checkpoints import arguments
from metastable.checkpoints.adapters import adapter_for
from metastable.checkpoints.models import encode
from metastable.checkpoints.weights import AttentionWeights
from metastable.errors import InvalidInputError, TokenError, UnsupportedError

if TYPE_CHECKING:
    import xarray as xr

CENTERS = ("none", "features", "tokens")


def sample_text() -> str:
    """About 800 tokens of English prose, shipped with the package: for tests, examples and `metastable geometry`."""
    return resources.files("metastable.checkpoints").joinpath("data/prose.txt").read_text(encoding="utf-8")


def token_states(
    model: Any,
    tokenizer: Any,
    text: Any,
    *,
    max_tokens: int | None = None,
    special_tokens: bool = True,
    attentions: bool = False,
) -> xr.Dataset:
    """The residual stream of `model` on `text`: embeddings, then the output of every block, the last BEFORE the final norm.

    transformers' own last hidden state is the one after the final norm, which is another cloud of points; it is replaced.

    Args:
        model, tokenizer: from `load_model` (or any transformers model of a known architecture in eager attention).
        text: a string, or token ids.
        max_tokens: keep the first so many tokens. Without it a text longer than the context is refused.
        special_tokens: let the tokenizer add its own ([CLS], [SEP], a beginning of sequence).
        attentions: also keep the attention weights (layer_count x heads x tokens^2 numbers).

    Returns:
        Dataset: `x` (layer, token, feature) float32, `norm` (layer, token) float64, coordinates `text` and `id` (token,),
        and with `attentions` also `attention` (block, head, token, key).
    """
    arguments.model(model)
    arguments.tokenizer(tokenizer)
    attentions = arguments.switch(attentions, "attentions")
    special_tokens = arguments.switch(special_tokens, "special_tokens")
    import torch
    import xarray as xr

    adapter = adapter_for(model.config.to_dict(), type(model).__name__)
    if attentions and getattr(model.config, "_attn_implementation", "eager") != "eager":
        raise UnsupportedError(
            f"attention {model.config._attn_implementation!r} returns no weights; load with load_model, or with "
            "attn_implementation='eager'"
        )
    ids = encode(model, tokenizer, text, max_tokens, special_tokens)
    base = model.base_model
    before_norm: dict[str, Any] = {}
    hook = None
    if adapter.final_norm is not None:
        final = getattr(base, adapter.final_norm)
        hook = final.register_forward_pre_hook(lambda module, given: before_norm.update(x=given[0]))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            options = {"use_cache": False} if adapter.final_norm is not None else {}
            result = base(
                input_ids=torch.tensor([ids], device=base.device),
                output_hidden_states=True,
                output_attentions=attentions,
                **options,
            )
    finally:
        model.train(was_training)
        if hook is not None:
            hook.remove()
    hidden = list(result.hidden_states)
    if before_norm:
        hidden[-1] = before_norm["x"]
    x = np.stack([state[0].float().cpu().numpy() for state in hidden])
    if not np.isfinite(x).all():
        raise TokenError("the model's states hold NaN or infinity; load it in float32 with load_model")
    strings = (
        [str(token) for token in tokenizer.convert_ids_to_tokens(ids)] if tokenizer is not None else [""] * len(ids)
    )
    variables: dict[str, Any] = {
        "x": (("layer", "token", "feature"), x),
        "norm": (("layer", "token"), np.linalg.norm(x.astype(np.float64), axis=-1)),
    }
    if attentions:
        stacked = np.stack([block[0].float().cpu().numpy() for block in result.attentions])
        variables["attention"] = (("block", "head", "token", "key"), stacked)
    digest = hashlib.sha256(np.asarray(ids, dtype=np.int64).tobytes()).hexdigest()[:16]
    return xr.Dataset(
        variables,
        coords={
            "layer": np.arange(len(x)),
            "token": np.arange(len(ids)),
            "text": ("token", np.asarray(strings, dtype=str)),
            "id": ("token", np.asarray(ids, dtype=np.int64)),
        },
        attrs={
            "architecture": str(model.config.model_type),
            "tokens_hash": digest,
            "special_tokens": int(special_tokens),
            "last_layer": "before the final norm" if before_norm else "output of the last block",
        },
    )


def attention_gains(weights: AttentionWeights) -> FloatArray:
    """The gain that multiplies the states entering each layer, shape (layer_count, dim); ones where there is none."""
    ones = np.ones(arguments.weights(weights).dim)
    return np.stack([ones if layer.norm.gain is None else layer.norm.gain for layer in weights.layers()])


def _outliers(x: FloatArray, wanted: int | Sequence[int] | None) -> tuple[int, ...]:
    """Dimensions to drop: the given ones, or the `wanted` with most of the tokens' energy, averaged over layers."""
    size = x.shape[-1]
    if wanted is None:
        return ()
    if isinstance(wanted, (int, np.integer)) and not isinstance(wanted, bool):
        number = count(wanted, "drop_dims", 0, size - 2)
        if number == 0:
            return ()
        energy = energy_shares(x).mean(axis=0)
        return tuple(sorted(int(i) for i in np.argsort(-energy)[:number]))
    if isinstance(wanted, (str, bytes, bool)) or not isinstance(wanted, Iterable):
        raise InvalidInputError(f"drop_dims must be a number of dimensions or a list of them, not {wanted!r}")
    chosen = sorted({count(index, "drop_dims", 0, size - 1) for index in wanted})
    if len(chosen) > size - 2:
        raise InvalidInputError(f"drop_dims leaves fewer than two of the {size} dimensions")
    return tuple(chosen)


def energy_shares(x: FloatArray) -> FloatArray:
    """Share of each dimension in the tokens' energy, mean over tokens of x_i^2/|x|^2: (layer, token, dim) -> (layer, dim)."""
    cloud = real_array(x, "x", TokenError)
    if cloud.ndim < 2 or not cloud.size:
        raise TokenError(f"x must have shape (layer, token, dim) or (token, dim), not {cloud.shape}")
    # Scaled first: squares of numbers beyond 1e154 overflow.
    largest = np.abs(cloud).max(axis=-1, keepdims=True)
    if not largest.all():
        raise TokenError("a token is zero, so it has no energy to share; drop it")
    squares = (cloud / largest) ** 2
    return (squares / squares.sum(axis=-1, keepdims=True)).mean(axis=-2)


def to_sphere(
    states: xr.Dataset,
    *,
    gain: Any = None,
    center: str = "none",
    drop_first: int = 0,
    drop_dims: int | Sequence[int] | None = None,
) -> xr.Dataset:
    """Unit vectors from token states. Each choice changes what cosines mean, so all are recorded in the attributes.

    In this order: the first `drop_first` tokens are left out (the attention sink), then `drop_dims` dimensions (a number:
    those with most energy; or their indices), then the mean over features or over tokens is subtracted, then the gain is
    applied, then each token is scaled to length one.

    Args:
        states: dataset with `x` (layer, token, feature), from `token_states`.
        gain: None, (dim,) for all layers, or (layer, dim), for example `attention_gains(weights)` with
            `states.isel(layer=slice(0, -1))`: the last states enter no attention layer.
        center: `"none"`, `"features"` (each token minus the mean of its features, as LayerNorm does) or `"tokens"` (minus
            the mean token of the layer: removes the direction that all tokens share).
        drop_first: how many leading tokens to leave out.
        drop_dims: dimensions to leave out.
    """
    import xarray as xr

    choice(center, "center", CENTERS)
    tokens = arguments.dataset(states).sizes["token"]
    drop_first = count(drop_first, "drop_first", 0, tokens - 1)
    x = states["x"].values[:, drop_first:].astype(np.float64)
    dropped = _outliers(x, drop_dims)
    kept = np.setdiff1d(np.arange(x.shape[-1]), dropped)
    if gain is not None:
        gain = real_array(gain, "gain")
        if gain.shape not in ((x.shape[-1],), (x.shape[0], x.shape[-1])):
            raise InvalidInputError(
                f"gain must have shape {(x.shape[-1],)} or {(x.shape[0], x.shape[-1])} (layer, feature), not {gain.shape}"
            )
        gain = np.broadcast_to(gain, (x.shape[0], x.shape[-1]))[:, None, kept]
    x = x[..., kept]
    if center != "none":
        x = x - x.mean(axis=-1 if center == "features" else 1, keepdims=True)
    if gain is not None:
        x = x * gain
    length = np.sqrt(np.einsum("ltf,ltf->lt", x, x))
    if not length.all():
        layer, token = (int(i) for i in np.argwhere(length == 0)[0])
        raise TokenError(
            f"token {token + drop_first} of layer {layer} is zero after these choices, so it has no direction"
        )
    result = xr.Dataset(
        {"x": (("layer", "token", "feature"), x / length[..., None])},
        coords=dict(states.isel(token=slice(drop_first, None)).coords),
        attrs={
            **states.attrs,
            "gain": "none" if gain is None else "given",
            "center": center,
            "drop_first": drop_first,
            "drop_dims": list(dropped),
        },
    )
    return result.assign_coords(feature=kept)
