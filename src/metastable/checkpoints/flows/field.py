"""Layers as maps and as velocities, with parts switched off and logits scaled.

A layer maps the states x of all tokens to F(x). As a vector field it is dx/dt = F(x) - x, so that one Euler step of length one
is the layer itself. Where a layer adds shares to its input the difference is taken from the shares, which loses no digits:
a(x) + m(x + a(x)), or a(x) + m(x) for parallel layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from metastable.checkpoints.flows.blocks import Call, first, replaced
from metastable.checkpoints.flows.parts import Parts, switched
from metastable.errors import UnsupportedError

PARTS = ("all", "attention", "mlp")


@dataclass(frozen=True)
class Layer:
    """A call of a layer, and its parts where they can be told apart."""

    call: Call
    parts: Parts | None

    @property
    def module(self) -> Any:
        return self.call.module


@dataclass
class Field:
    """The layers of a run, made ready by `prepared`: `shares` holds what the last call added, by part."""

    layers: tuple[Layer, ...]
    active: tuple[str, ...]
    shares: dict[str, Any] = field(default_factory=dict)

    def apply(self, index: int, x: Any) -> Any:
        """F(x) of layer `index`, x of shape (1, tokens, dim): the module's own result."""
        return self.layers[index].call(x)

    def velocity(self, index: int, x: Any) -> Any:
        """F(x) - x of layer `index`."""
        layer = self.layers[index]
        if layer.parts is None or layer.parts.kind == "post":
            return layer.call(x) - x
        layer.call(x)
        return sum((self.shares[part] for part in self.active[1:]), self.shares[self.active[0]])

    def middle(self, index: int, x: Any) -> tuple[Any, Any]:
        """State after the attention of layer `index`, and after the whole layer."""
        parts = self.layers[index].parts
        result = self.layers[index].call(x)
        if parts is not None and parts.kind == "post":
            return self.shares["middle"], result
        return (x + self.shares["attention"] if "attention" in self.active else x), result


def attention_scalings(module: Any) -> list[tuple[Any, float]]:
    """Attention modules inside a layer that hold the factor of their logits in `scaling`, with its value."""
    return [
        (submodule, float(submodule.scaling))
        for submodule in module.modules()
        if isinstance(getattr(submodule, "scaling", None), float)
    ]


def _attention_weights(layer: Layer, x: Any) -> list[Any]:
    """Attention weights (1, heads, tokens, tokens) that the modules of a layer return on the way."""
    found: list[Any] = []

    def keep(module: Any, arguments: Any, result: Any) -> None:
        if isinstance(result, (tuple, list)):
            found.extend(item for item in result[1:] if hasattr(item, "ndim") and item.ndim == 4)

    hooks = [module.register_forward_hook(keep) for module in layer.module.modules()]
    try:
        layer.call(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def check_temperature(layers: Sequence[Layer], states: Sequence[Any]) -> None:
    """Refuse a temperature where logits cannot be scaled: with the factor zero, attention over visible tokens must be uniform.

    `layers`, `states`: calls of a short probe text and what entered them.
    """
    import torch

    for layer, x in zip(layers, states):
        scalings = attention_scalings(layer.module)
        with torch.no_grad(), replaced([(module, "scaling", 0.0) for module, _ in scalings]):
            weights = _attention_weights(layer, x)
        spread = [float((w - w.amax(-1, keepdim=True))[w > 0].abs().max()) for w in weights]
        if not scalings or not weights or max(spread) > 1e-6:
            raise UnsupportedError(
                f"{layer.call.name}: its attention shows no factor of the logits that can be changed, so temperature= is not possible; "
                "leave it out, or load the model with attn_implementation='eager'"
            )


@contextmanager
def prepared(layers: Sequence[Layer], parts: str, temperature: float, dim: int) -> Iterator[Field]:
    """The field of these layers with `parts` on (`"all"`, `"attention"`, `"mlp"`) and logits divided by `temperature`.

    Everything that is changed on the model's modules is put back at the end.
    """
    import torch

    active = ("attention", "mlp") if parts == "all" else (parts,)
    off = tuple(part for part in ("attention", "mlp") if part not in active)
    result = Field(tuple(layers), active)

    def keep(part: str) -> Any:
        def hook(module: Any, arguments: Any, out: Any) -> None:
            result.shares[part] = first(out)

        return hook

    hooks = []
    with ExitStack() as stack, torch.no_grad():
        for layer in {id(layer.module): layer for layer in layers}.values():
            if layer.parts is not None:
                stack.enter_context(switched(layer.module, layer.parts, off, dim))
                wanted = {part: getattr(layer.parts, part) for part in active}
                if layer.parts.middle is not None:
                    wanted["middle"] = layer.parts.middle
                for part, name in wanted.items():
                    hooks.append(layer.module.get_submodule(name).register_forward_hook(keep(part)))
            if temperature != 1.0:
                scalings = attention_scalings(layer.module)
                stack.enter_context(replaced([(module, "scaling", value / temperature) for module, value in scalings]))
        try:
            yield result
        finally:
            for hook in hooks:
                hook.remove()
            result.shares.clear()
