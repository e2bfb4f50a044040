"""Hidden states in a cache that another library filled: a mapping of names to arrays.

Understood are the names of TransformerLens (`blocks.3.hook_resid_pre`, `hook_resid_mid`, `hook_resid_post`; `encoder.3....` and
`decoder.3....` in a model with two stacks) and those of modules, as nnsight and hooks use them (`model.layers.3.input`,
`model.layers.3.output`, or the bare name of a module for what it returned). Everything else that a cache holds (attention
patterns, outputs of experts) is no state of the residual stream and is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from metastable.checkpoints.flows.beginnings import one_sequence
from metastable.errors import InvalidInputError, TokenError

HOOKS = {"hook_resid_pre": 0.0, "hook_resid_mid": 0.5, "hook_resid_post": 1.0}
SIDES = {"input": 0.0, "output": 1.0, "": 1.0}
"""Where in a layer a name is, in layers from its front; the bare name of a module is what it returned."""
LISTS = ("layers", "layer", "h", "blocks", "block")
"""What models call the list of their layers."""
CONTAINERS = frozenset({"model", "transformer", "module", "base_model", "language_model", "backbone", "_orig_mod"})
"""What may stand in front of the name of a module in a cache, apart from the model's own prefix."""
AGREE = 1e-3
"""Output of a layer and input of the next are one state: they may differ by this fraction of the largest entry (half precision)."""

_HOOK = re.compile(
    r"^(?P<stack>(?:.*\.)?(?:blocks|encoder|decoder))\.(?P<layer>\d+)\.(?P<place>hook_resid_(?:pre|mid|post))$"
)
_MODULE = re.compile(rf"^(?P<stack>(?:.*\.)?(?:{'|'.join(LISTS)}))\.(?P<layer>\d+)(?:\.(?P<place>input|output))?$")
_SHARED = re.compile(r"(?:^|\.)albert_layer_groups\.\d+\.albert_layers\.\d+(?:\.(?:input|output))?$")
NAMES = "blocks.3.hook_resid_pre, blocks.3.hook_resid_post or model.layers.3.output"


def _place(name: str) -> tuple[str, float] | None:
    """Stack and depth of a name, or None where it is no state of the residual stream."""
    found = _HOOK.match(name) or _MODULE.match(name)
    if found is None or any(part.isdigit() for part in found["stack"].split(".")):
        return None
    return found["stack"], int(found["layer"]) + {**HOOKS, **SIDES}[found["place"] or ""]


def all_from_cache(cache: Mapping[Any, Any]) -> tuple[list[float], list[np.ndarray]]:
    """All residual states of a cache in order of depth: whole times before each layer, half times for `hook_resid_mid`.

    Raises:
        InvalidInputError: fewer than two states, states of several stacks, or of modules that a model calls several times.
        TokenError: shapes that differ, or two states of one depth that do.
    """
    shared = next((str(key) for key in cache if _SHARED.search(str(key))), None)
    if shared is not None:
        raise InvalidInputError(
            f"{shared} is the name of a module that ALBERT calls in several layers, so it does not say which layer's state this is; "
            "give an array (layers, tokens, dim), for example the model's hidden_states, or names such as blocks.3.hook_resid_pre"
        )
    stacks: dict[str, dict[float, tuple[str, np.ndarray]]] = {}
    for key, value in cache.items():
        place = _place(str(key))
        if place is None:
            continue
        stack, time = place
        state, there = one_sequence(value, str(key)), stacks.setdefault(stack, {})
        if time in there:
            _compare(there[time], (str(key), state))
        else:
            there[time] = (str(key), state)
    if len(stacks) > 1:
        listed = ", ".join(sorted(stacks))
        raise InvalidInputError(
            f"the cache holds states of {len(stacks)} stacks of layers ({listed}), which are not one flow; give one of them: "
            f"{{name: state for name, state in cache.items() if name.startswith({min(stacks)!r})}}"
        )
    found = next(iter(stacks.values()), {})
    if len(found) < 2:
        raise InvalidInputError(
            f"the cache holds fewer than two residual states; names such as {NAMES} are understood; it has {_listed(cache)}"
        )
    shapes = {state.shape for _, state in found.values()}
    if len(shapes) > 1:
        raise TokenError(f"the states of the cache have different shapes: {', '.join(map(str, sorted(shapes)))}")
    times = sorted(found)
    return times, [found[time][1] for time in times]


def _compare(one: tuple[str, np.ndarray], other: tuple[str, np.ndarray]) -> None:
    """Refuse two states of one depth that are not the same state."""
    (name, a), (again, b) = one, other
    if a.shape != b.shape or np.abs(a.astype(np.float64) - b).max() > AGREE * np.abs(a).max():
        raise TokenError(
            f"{name} and {again} are the same place of the residual stream, but the states differ; leave one of them out"
        )


def _listed(cache: Mapping[Any, Any]) -> str:
    names = [str(key) for key in cache]
    return (", ".join(names[:6]) + (", ..." if len(names) > 6 else "")) or "nothing"


def _keys(cache: Mapping[Any, Any], name: str, prefix: str) -> list[Any]:
    """Keys of a cache that are `name`, or `name` behind what may stand in front of a module's name."""
    allowed = CONTAINERS | {prefix}
    found = []
    for key in cache:
        text = str(key)
        front = text.removesuffix(name)
        if text.endswith(name) and (not front or (front.endswith(".") and set(front[:-1].split(".")) <= allowed)):
            found.append(key)
    return found


def from_cache(
    cache: Mapping[Any, Any],
    layer: int,
    layer_names: Sequence[str],
    dim: int,
    *,
    prefix: str = "",
    entrances: Iterable[str] = (),
    words_alone: bool = False,
    words_and_places: bool = False,
) -> np.ndarray:
    """The states (tokens, dim) that enter layer `layer`, from a mapping of names to arrays.

    Args:
        layer_names: names of the model's layers, call by call; `prefix`: what the model puts in front of them.
        entrances: modules whose output enters the first layer.
        words_alone, words_and_places: whether `hook_embed`, or its sum with `hook_pos_embed`, is what enters the first layer.

    Raises:
        InvalidInputError: the cache does not hold them, or by the name of a module that the model calls more than once.
    """
    wanted = [f"blocks.{layer}.hook_resid_pre"] + ([f"blocks.{layer - 1}.hook_resid_post"] if layer else [])
    for name in wanted:
        for key in _keys(cache, name, prefix):
            return one_sequence(cache[key], str(key), dim)
    modules = [f"{layer_names[layer]}.input"]
    before = [layer_names[layer - 1]] if layer else list(entrances)
    modules += [name for module in before for name in (f"{module}.output", module)]
    for name in modules:
        for key in _keys(cache, name, prefix):
            _refuse_shared(str(key), name.removesuffix(".input").removesuffix(".output"), layer_names, wanted[0])
            return one_sequence(cache[key], str(key), dim)
    if layer == 0 and "hook_embed" in cache:
        return _embedded(cache, dim, words_alone, words_and_places)
    listed = ", ".join([*wanted, *modules][:4])
    raise InvalidInputError(
        f"the cache does not hold the states that enter layer {layer}: looked for {listed}; it has {_listed(cache)}"
    )


def _refuse_shared(key: str, module: str, layer_names: Sequence[str], instead: str) -> None:
    calls = list(layer_names).count(module)
    if calls > 1:
        raise InvalidInputError(
            f"{key} does not say which state it holds: the model calls {module} {calls} times; name it {instead}, or give the array "
            "itself"
        )


def _embedded(cache: Mapping[Any, Any], dim: int, words_alone: bool, words_and_places: bool) -> np.ndarray:
    """What enters the first layer, from the embeddings of TransformerLens."""
    words = one_sequence(cache["hook_embed"], "hook_embed", dim)
    if words_alone:
        return words
    if words_and_places and "hook_pos_embed" in cache:
        places = one_sequence(cache["hook_pos_embed"], "hook_pos_embed", dim)
        if places.shape != words.shape:
            raise TokenError(f"hook_pos_embed has shape {places.shape}, but hook_embed {words.shape}")
        return words + places
    more = "hook_pos_embed as well, or blocks.0.hook_resid_pre" if words_and_places else "blocks.0.hook_resid_pre"
    raise InvalidInputError(
        f"hook_embed alone is not what enters layer 0 of this model, which adds positions to its words; give {more}"
    )
