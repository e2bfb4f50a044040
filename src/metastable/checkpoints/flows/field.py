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
    """A call of a layer, its parts where they can be told apart, and the number by which its random weights are drawn.

    `number`: the first layer of the model that calls this module (ALBERT calls one module several times).
    """

    call: Call
    parts: Parts | None
    number: int

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


CAPS = ("attn_logit_softcapping",)
"""Where attention modules keep the bound c of logits c tanh(logit / c) (Gemma 2)."""
CLOSE = 1e-4
"""Attention weights of a probe that agree to this are the same (float32)."""


def attention_factors(module: Any, temperature: float) -> list[tuple[Any, str, float]]:
    """Changes (module, attribute, value) of a layer that divide by `temperature` the logits that enter its softmax.

    The factor `scaling` of a logit l is divided; so is a cap c, because (c/T) tanh((l/T) / (c/T)) = c tanh(l/c) / T.
    """
    changes = []
    for submodule in module.modules():
        if isinstance(getattr(submodule, "scaling", None), float):
            names = ("scaling", *(name for name in CAPS if isinstance(getattr(submodule, name, None), (int, float))))
            changes += [(submodule, name, float(getattr(submodule, name)) / temperature) for name in names]
    return changes


def _attention_weights(layer: Layer, x: Any, temperature: float) -> list[Any]:
    """Attention weights (1, heads, tokens, tokens) that the modules of a layer return on the way."""
    import torch

    found: list[Any] = []

    def keep(module: Any, arguments: Any, result: Any) -> None:
        if isinstance(result, (tuple, list)):
            found.extend(item for item in result[1:] if hasattr(item, "ndim") and item.ndim == 4)

    hooks = [module.register_forward_hook(keep) for module in layer.module.modules()]
    try:
        with torch.no_grad(), replaced(attention_factors(layer.module, temperature)):
            layer.call(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def check_temperature(layers: Sequence[Layer], states: Sequence[Any]) -> None:
    """Refuse a temperature where logits cannot be scaled: at temperature T weights must be w^(1/T) / sum w^(1/T), here for T = 2.

    `layers`, `states`: calls of a short probe text and what entered them.
    """
    for layer, x in zip(layers, states):
        plain, warm = (_attention_weights(layer, x, temperature) for temperature in (1.0, 2.0))
        roots = [weights.sqrt() for weights in plain]
        wanted = [root / root.sum(dim=-1, keepdim=True) for root in roots]
        agree = all(float((w - v).abs().max()) <= CLOSE for w, v in zip(wanted, warm))
        if not plain or len(plain) != len(warm) or not agree:
            raise UnsupportedError(
                f"{layer.call.name}: its attention shows no factor of the logits that can be changed, so temperature= is not possible; "
                "leave it out, or load the model with attn_implementation='eager'"
            )


@contextmanager
def prepared(layers: Sequence[Layer], parts: str, temperature: float, dim: int) -> Iterator[Field]:
    """The field of these layers with `parts` on (`"all"`, `"attention"`, `"mlp"`) and the softmax's logits divided by `temperature`.

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
                stack.enter_context(replaced(attention_factors(layer.module, temperature)))
        try:
            yield result
        finally:
            for hook in hooks:
                hook.remove()
            result.shares.clear()
