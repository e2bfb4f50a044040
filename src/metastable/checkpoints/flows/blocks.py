"""The layers of a transformers model as calls that can be repeated: nothing is reimplemented, so replaying them is the model.

A layer is called with more than the hidden states: masks, rotary tables, positions. All of it is recorded during one ordinary
forward pass, call by call, so that layers with different masks (sliding windows) or shared weights (ALBERT) need no special case.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from metastable.errors import UnknownArchitectureError, UnsupportedError

ATTENTION_NAMES = ("self_attn", "attn", "attention", "self_attention", "self_attn_layer")
MLP_NAMES = ("mlp", "feed_forward", "ffn", "feedforward", "block_sparse_moe")


@dataclass(frozen=True)
class Call:
    """One use of a layer in the forward pass: the module, its name, and what it was called with besides the hidden states."""

    module: Any
    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def __call__(self, x: Any) -> Any:
        """The layer's output (1, tokens, dim) for hidden states x of that shape."""
        return first(self.module(x, *self.arguments, **self.keywords))


@dataclass(frozen=True)
class Recording:
    """A forward pass: the calls in order, the states that entered each, the state after the last and what the model returned."""

    calls: tuple[Call, ...]
    states: tuple[Any, ...]
    last: Any
    returned: Any


def first(result: Any) -> Any:
    """The tensor of a module's result, which may be a tuple."""
    return result[0] if isinstance(result, (tuple, list)) else result


def _attention_child(module: Any) -> str | None:
    return next((name for name, _ in module.named_children() if name in ATTENTION_NAMES), None)


def find_layers(model: Any) -> list[tuple[str, Any]]:
    """The layers of a model as (name, module), each once: elements of the list of modules that hold an attention module.

    Raises:
        UnknownArchitectureError: none, or several stacks (encoder and decoder).
    """
    import torch

    base = model.base_model
    stacks: dict[str, list[tuple[str, Any]]] = {}
    for name, module in base.named_modules():
        if not isinstance(module, torch.nn.ModuleList) or not len(module):
            continue
        holders = [(f"{name}.{index}", item) for index, item in enumerate(module) if _attention_child(item)]
        if len(holders) == len(module):
            # ALBERT keeps one such list in each of its groups: the numbers in the path do not tell stacks apart.
            key = ".".join(part for part in name.split(".") if not part.isdigit())
            stacks.setdefault(key, []).extend(holders)
    if not stacks:
        raise UnknownArchitectureError(
            f"{type(model).__name__} has no list of layers with an attention module (named {', '.join(ATTENTION_NAMES)}), so its "
            "residual stream cannot be followed; a flow needs a decoder or an encoder of transformers"
        )
    if len(stacks) > 1:
        raise UnknownArchitectureError(
            f"{type(model).__name__} has {len(stacks)} stacks of layers ({', '.join(stacks)}); a flow needs one: pass its encoder or "
            "decoder alone"
        )
    return next(iter(stacks.values()))


def record(model: Any, layers: Sequence[tuple[str, Any]], ids: Sequence[int]) -> Recording:
    """Run the model on token ids and record every call of a layer, with the states that entered it.

    Raises:
        UnsupportedError: the layers are not a chain, each fed by the one before it.
    """
    calls: list[Call] = []
    entered: list[Any] = []
    left: list[Any] = []
    names = {id(module): name for name, module in layers}

    def before(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        keywords = dict(keywords)
        if arguments:
            x, arguments = arguments[0], arguments[1:]
        else:
            x = keywords.pop("hidden_states")
        calls.append(Call(module, names[id(module)], tuple(arguments), keywords))
        entered.append(x)

    def after(module: Any, arguments: Any, result: Any) -> None:
        left.append(first(result))

    hooks = []
    for _, module in layers:
        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(module.register_forward_hook(after))
    try:
        returned = _forward(model.base_model, ids)
    finally:
        for hook in hooks:
            hook.remove()
    chained = all(_same(out, into) for out, into in zip(left, entered[1:]))
    if not calls or not chained:
        raise UnsupportedError(
            f"the layers of {type(model).__name__} do not feed one another directly, so its depth is not a flow of one state"
        )
    return Recording(tuple(calls), tuple(entered), left[-1], first(returned.to_tuple()))


def find_final_norm(model: Any, layers: Sequence[tuple[str, Any]], ids: Sequence[int], recording: Recording) -> Any:
    """The module that makes of the last layer's state what the model returns, seen in one more pass; None where there is none."""
    import torch

    if torch.equal(recording.last, recording.returned):
        return None
    found: list[Any] = []

    def after(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        given = arguments[0] if arguments else keywords.get("hidden_states")
        if _same(given, recording.last) and _same(first(result), recording.returned):
            found.append(module)

    base = model.base_model
    inside = {id(module) for _, layer in layers for module in layer.modules()}
    outside = [module for module in base.modules() if module is not base and id(module) not in inside]
    hooks = [module.register_forward_hook(after, with_kwargs=True) for module in outside]
    try:
        _forward(base, ids)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def find_entrances(
    model: Any, layers: Sequence[tuple[str, Any]], ids: Sequence[int], recording: Recording
) -> list[str]:
    """Names of the modules outside the layers whose output on `ids` is what enters the first layer, the last of them first."""
    found: list[str] = []

    def watch(name: str) -> Any:
        def after(module: Any, arguments: Any, result: Any) -> None:
            if _same(first(result), recording.states[0]):
                found.append(name)

        return after

    base = model.base_model
    inside = {id(module) for _, layer in layers for module in layer.modules()}
    hooks = [
        module.register_forward_hook(watch(name))
        for name, module in base.named_modules()
        if name and id(module) not in inside
    ]
    try:
        _forward(base, ids)
    finally:
        for hook in hooks:
            hook.remove()
    return found[::-1]


def _same(a: Any, b: Any) -> bool:
    """Equality of every entry; states that have left the numbers are themselves, too."""
    import torch

    if not torch.is_tensor(a) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a is b or torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)


def _forward(base: Any, ids: Sequence[int]) -> Any:
    """What a model without its head returns for token ids."""
    import torch

    options = {"use_cache": False} if "use_cache" in inspect.signature(base.forward).parameters else {}
    with torch.no_grad():
        device = next(base.parameters()).device
        return base(input_ids=torch.tensor([list(ids)], device=device), **options)


@contextmanager
def replaced(changes: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set attributes of modules, (module, name, value) each, and put everything back at the end, also after an error."""
    missing = object()
    before = [(module, name, module.__dict__.get(name, missing)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            module.__dict__[name] = value
        yield
    finally:
        for module, name, value in reversed(before):
            if value is missing:
                module.__dict__.pop(name, None)
            else:
                module.__dict__[name] = value
