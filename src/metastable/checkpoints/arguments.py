"""What the functions of `metastable.checkpoints` are given, checked: weights, layers, states of tokens, models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metastable._checks import FloatArray, real_array
from metastable.checkpoints.rope import Rope
from metastable.checkpoints.weights import AttentionWeights, LayerWeights
from metastable.errors import InvalidInputError, TokenError

if TYPE_CHECKING:
    import xarray as xr


def weights(value: Any) -> AttentionWeights:
    """`value` if it is what `load_weights` returns."""
    if not isinstance(value, AttentionWeights):
        raise InvalidInputError(f"weights must come from load_weights or random_weights, not {type(value).__name__}")
    return value


def layer(value: Any) -> LayerWeights:
    """`value` if it is one layer of the weights."""
    if not isinstance(value, LayerWeights):
        raise InvalidInputError(
            f"layer must be one of weights.layers(), for example weights.layer(0), not {type(value).__name__}"
        )
    return value


def rope(value: Any) -> Rope | None:
    """`value` if it is a `Rope` or None."""
    if value is not None and not isinstance(value, Rope):
        raise InvalidInputError(f"rope must be a Rope, for example weights.rope, or None, not {type(value).__name__}")
    return value


def rows(value: Any, dim: int, name: str = "states") -> FloatArray:
    """`value` as the states of one layer, (tokens, dim), at least one token."""
    array = real_array(value, name, TokenError)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] != dim:
        raise TokenError(f"{name} must have shape (tokens, {dim}), as states['x'].values[layer] has, not {array.shape}")
    return array


def dataset(value: Any, name: str = "states") -> xr.Dataset:
    """`value` if it is a dataset with finite numbers `x` (layer, token, feature), or (time, token, coord) as in a run; not empty."""
    import xarray as xr

    if not isinstance(value, xr.Dataset):
        raise InvalidInputError(f"{name} must be a dataset of token_states or to_sphere, not {type(value).__name__}")
    if "x" not in value or value["x"].dims not in (("layer", "token", "feature"), ("time", "token", "coord")):
        raise InvalidInputError(
            f"{name} must hold x (layer, token, feature), as token_states returns it, or x (time, token, coord) of a run"
        )
    array = value["x"].values
    if array.dtype.kind not in "fiu" or not array.size:
        raise TokenError(f"{name}['x'] must hold numbers, not {array.size} of type {array.dtype}")
    if not np.isfinite(array).all():
        raise TokenError(f"{name}['x'] holds NaN or infinity; load the model in float32 with load_model")
    return value


def distances(value: Any) -> FloatArray:
    """`value` as the matrix of distances between tokens, (tokens, tokens)."""
    array = real_array(value, "distances")
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size or (array < 0).any():
        raise InvalidInputError(
            f"distances must be a matrix (tokens, tokens) of numbers from 0 on, not of shape {array.shape}"
        )
    return array


def model(value: Any) -> Any:
    """`value` if it looks like a transformers model."""
    if not all(hasattr(value, name) for name in ("config", "base_model", "eval")) or not hasattr(
        value.config, "to_dict"
    ):
        raise InvalidInputError(
            f"model must be a transformers model, for example load_model(...).model, not {type(value).__name__}"
        )
    return value


def tokenizer(value: Any) -> Any:
    """`value` if it can be a tokenizer (None where there is none)."""
    if value is not None and not (callable(value) and hasattr(value, "convert_ids_to_tokens")):
        raise InvalidInputError(
            f"tokenizer must be that of load_model, or None when token ids are given, not {type(value).__name__}"
        )
    return value


def switch(value: Any, name: str) -> bool:
    """`value` if it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidInputError(f"{name} must be True or False, not {value!r}")
    return bool(value)
