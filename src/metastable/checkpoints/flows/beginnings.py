"""Where a run of a flow starts: from a text, token ids, or hidden states in an array (`caches`: that another library filled)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from metastable._checks import FloatArray, real_array, refuse_masked
from metastable.errors import InvalidInputError, TokenError


def is_mapping(given: Any) -> TypeGuard[Mapping[Any, Any]]:
    """Whether something maps names to values: a mapping, or what has keys and items of its own (a cache of TransformerLens)."""
    return isinstance(given, Mapping) or (
        callable(getattr(given, "keys", None)) and hasattr(type(given), "__getitem__") and not isinstance(given, type)
    )


def is_text(given: Any) -> bool:
    """True for a string, token ids or what a tokenizer returns (see `models.encode`), False for hidden states.

    Raises:
        InvalidInputError: neither, or several sequences at once.
    """
    if isinstance(given, str):
        return True
    if is_mapping(given):
        return "input_ids" in list(given.keys())
    _refuse_several(given)
    array = as_array(given, "text")
    if array.dtype.kind in "iu" and (array.ndim == 1 or (array.ndim == 2 and array.shape[0] == 1)):
        return True
    if array.ndim in (2, 3) and array.dtype.kind == "f":
        return False
    raise InvalidInputError(
        f"give a text, a list of token ids, hidden states of shape (tokens, dim), or a cache that maps names to such arrays, not an "
        f"array of {array.dtype} of shape {array.shape}"
    )


def _refuse_several(given: Any) -> None:
    """Refuse a list of sequences: taking the first of them would be a guess."""
    if not isinstance(given, (list, tuple)) or len(given) < 2:
        return
    if all(isinstance(item, str) for item in given):
        raise InvalidInputError(f"text holds {len(given)} texts; a run takes one at a time: run each of them")
    if any(getattr(item, "ndim", 0) >= 2 for item in given):
        raise InvalidInputError(
            f"a {type(given).__name__} of {len(given)} arrays was given; a run starts from one sequence of states (tokens, dim): "
            "give the one that enters the first chosen layer, for example states[2] with layer=2; for all layers that you have use "
            "checkpoints.from_states(states)"
        )
    rows = [
        as_array(item, "text") for item in given if isinstance(item, (list, tuple)) or getattr(item, "ndim", 0) == 1
    ]
    if len(rows) == len(given) and all(row.ndim == 1 and row.dtype.kind in "iu" for row in rows):
        raise InvalidInputError(
            f"text holds {len(given)} lists of token ids; a run takes one at a time: run each of them"
        )


def as_array(value: Any, name: str) -> np.ndarray:
    """`value` as an array; torch tensors, alone or in a list, may need their gradient, hold bfloat16 or live on a GPU."""
    if isinstance(value, (list, tuple)):
        parts: Any = [as_array(item, name) if hasattr(item, "detach") else item for item in value]
        return _stacked(parts, name)
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    if hasattr(value, "value") and not isinstance(value, np.ndarray):  # a proxy of nnsight that was saved
        return as_array(value.value, name)
    return _stacked(value, name)


def _stacked(value: Any, name: str) -> np.ndarray:
    refuse_masked(value, name)
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as reason:
        raise InvalidInputError(f"{name} is not an array of numbers: {reason}") from None


def one_sequence(value: Any, name: str, dim: int | None = None) -> np.ndarray:
    """Hidden states as (tokens, dim); a batch of one loses its batch axis."""
    array = as_array(value, name)
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 2 or (dim is not None and array.shape[1] != dim):
        wanted = "(tokens, dim)" if dim is None else f"(tokens, {dim})"
        raise TokenError(f"{name} must have shape {wanted}, one sequence at a time, not {array.shape}")
    if array.shape[0] < 1:
        raise TokenError(f"{name} holds no token")
    real_array(array, name, TokenError)
    return array


def special_places(ids: Sequence[int], tokenizer: Any) -> list[int]:
    """Places of special tokens ([CLS], [SEP], ends of text) among token ids; an unknown word is a word."""
    special = set(getattr(tokenizer, "all_special_ids", ()))
    others = [getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "cls", "sep", "pad", "mask")]
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown not in others:
        special.discard(unknown)
    return [place for place, token in enumerate(ids) if token in special]


def order_of(tokens: int, seed: int, kept: Sequence[int] = ()) -> np.ndarray:
    """A random order of the tokens that leaves the first (the attention sink) and those at the places `kept` where they are."""
    generator = np.random.default_rng(seed)
    order = np.arange(tokens)
    free = np.setdiff1d(order, [0, *kept])
    order[free] = free[generator.permutation(len(free))]
    return order


def lengths(states: FloatArray, times: Any) -> FloatArray:
    """Lengths |x| (times, tokens) of states (times, tokens, dim); refuses a token without a direction."""
    size = np.sqrt(np.einsum("tnd,tnd->tn", states, states))
    if states.size and not size.all():
        time, token = (int(index) for index in np.argwhere(size == 0)[0])
        raise TokenError(f"token {token} is the zero vector at t = {times[time]:g}, which has no direction")
    return size
