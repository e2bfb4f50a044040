"""Which submodules of a layer add to the residual stream: told by what they compute on a probe, not by a table of names.

Three kinds of layer are told apart, with a the attention's share and m the feed-forward part's:

- `"sequential"`: x + a(x) + m(x + a(x)), norms inside a and m (Llama, Qwen, Gemma, OLMo 2, Phi-3, GPT-2)
- `"parallel"`: x + a(x) + m(x) (GPT-NeoX)
- `"post"`: N2(y + m(y)) with y = N1(x + a(x)) (BERT, ALBERT)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from metastable.checkpoints.flows.blocks import ATTENTION_NAMES, MLP_NAMES, Call, first, replaced

Kind = Literal["sequential", "parallel", "post"]

SAME_SUM = 1e-4
"""Sums that agree to this fraction of the largest entry of each feature are the same sum (float32 rounding is 1e-7)."""


UNPACKING = (TypeError, ValueError, AttributeError, IndexError, KeyError)
"""What a layer raises that unpacks or uses more of a part's output than the states and None."""


@dataclass(frozen=True)
class Idle:
    """A module that need not run when its part is off: its path, and how many things it returns (0: a bare tensor)."""

    name: str
    items: int


@dataclass(frozen=True)
class Parts:
    """Paths inside a layer: whose outputs are added to the stream, and what need not run when a part is switched off.

    `attention`, `mlp`: modules whose outputs are the shares a and m. `idle_attention`, `idle_mlp`: modules replaced by zeros when
    that part is off. `middle`: the module whose output is the state between the two parts (`"post"` only).
    """

    kind: Kind
    attention: str
    mlp: str
    idle_attention: tuple[Idle, ...]
    idle_mlp: tuple[Idle, ...]
    middle: str | None = None

    def idle(self, part: str) -> tuple[Idle, ...]:
        """What is replaced by zeros to switch `part` (`"attention"` or `"mlp"`) off."""
        return self.idle_attention if part == "attention" else self.idle_mlp


@dataclass(frozen=True)
class _Trace:
    """What went into and came out of a submodule, and when it ran."""

    name: str
    order: int
    given: Any
    result: Any
    items: int

    @property
    def idle(self) -> Idle:
        return Idle(self.name, self.items)


@contextmanager
def _traced(module: Any, shape: tuple[int, ...]) -> Iterator[list[_Trace]]:
    """Traces of all submodules that return hidden states, in the order in which they finish."""
    import torch

    found: list[_Trace] = []

    def hook(name: str) -> Any:
        def keep(submodule: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
            out = first(result)
            given = arguments[0] if arguments else keywords.get("hidden_states")
            if torch.is_tensor(out) and out.shape == shape:
                items = len(result) if isinstance(result, (tuple, list)) else 0
                found.append(_Trace(name, len(found), given, out, items))

        return keep

    hooks = [
        submodule.register_forward_hook(hook(name), with_kwargs=True)
        for name, submodule in module.named_modules()
        if name
    ]
    try:
        yield found
    finally:
        for handle in hooks:
            handle.remove()


def _close(a: Any, b: Any) -> bool:
    import torch

    if not torch.is_tensor(a) or a.shape != b.shape:
        return False
    # Feature by feature: a few of them may be a thousand times larger than the others.
    size = b.abs().flatten(end_dim=-2).amax(dim=0)
    return bool(((a - b).abs() <= SAME_SUM * size).all())


def _nothing(items: int, dim: int) -> Any:
    """A stand-in for a module's `forward` that returns zeros (..., dim), in the form that its caller unpacks."""
    import torch

    def forward(*arguments: Any, **keywords: Any) -> Any:
        x = arguments[0] if arguments else keywords["hidden_states"]
        zeros = torch.zeros(*x.shape[:-1], dim, dtype=x.dtype, device=x.device)
        return (zeros, *[None] * (items - 1)) if items else zeros

    return forward


def find_parts(call: Call, x: Any) -> Parts | None:
    """The parts of a layer, found on the probe states x (1, tokens, dim); None where they cannot be told apart."""
    import torch

    with torch.no_grad(), _traced(call.module, tuple(x.shape)) as traces:
        out = call(x)
    found = _added_before_norm(call, x, out, traces) or _added_inside_norms(x, out, traces)
    return found if found is not None and _can_be_switched(call, x, found) else None


def _child(call: Call, names: tuple[str, ...]) -> str | None:
    return next((name for name, _ in call.module.named_children() if name in names), None)


def _added_before_norm(call: Call, x: Any, out: Any, traces: list[_Trace]) -> Parts | None:
    """Parts of a layer that adds two shares to its input, by the first pair of children whose outputs do."""
    import torch

    attention, mlp = _child(call, ATTENTION_NAMES), _child(call, MLP_NAMES)
    children = {trace.name: trace for trace in traces if "." not in trace.name}
    if attention not in children or mlp not in children:
        return None
    start, middle = children[attention].order, children[mlp].order
    for p in children.values():
        for q in children.values():
            in_order = start <= p.order < middle <= q.order or middle <= q.order < start <= p.order
            if in_order and _close(x + p.result + q.result, out):
                idle_attention = tuple(dict.fromkeys((children[attention].idle, p.idle)))
                idle_mlp = tuple(dict.fromkeys((children[mlp].idle, q.idle)))
                found = Parts("sequential", p.name, q.name, idle_attention, idle_mlp)
                dim = x.shape[-1]
                with (
                    torch.no_grad(),
                    switched(call.module, found, ("attention",), dim),
                    _traced(call.module, tuple(x.shape)) as alone,
                ):
                    call(x)
                again = next((trace.result for trace in alone if trace.name == q.name), None)
                parallel = again is not None and torch.equal(again, q.result)
                return Parts("parallel" if parallel else "sequential", p.name, q.name, idle_attention, idle_mlp)
    return None


def _added_inside_norms(x: Any, out: Any, traces: list[_Trace]) -> Parts | None:
    """Parts of a layer whose shares are added in front of two norms, the second of which ends the layer."""
    for end in (trace for trace in traces if _close(trace.result, out)):
        for turn in traces:
            if turn.order >= end.order or turn.given is None:
                continue
            # A wrapper of the norm has the same output; the norm itself is the one that is given the sum.
            p = next((t for t in traces if t.order < turn.order and _close(x + t.result, turn.given)), None)
            q = next(
                (t for t in traces if turn.order < t.order < end.order and _close(turn.result + t.result, end.given)),
                None,
            )
            if p is not None and q is not None:
                return Parts("post", p.name, q.name, (p.idle,), (q.idle,), turn.name)
    return None


def _can_be_switched(call: Call, x: Any, parts: Parts) -> bool:
    """Whether the layer still runs with either part off, and without both adds nothing."""
    import torch

    results = []
    try:
        for off in (("attention",), ("mlp",), ("attention", "mlp")):
            with torch.no_grad(), switched(call.module, parts, off, x.shape[-1]):
                results.append(call(x))
    except UNPACKING:  # then only whole layers are offered
        return False
    if parts.kind == "post":
        return True
    # Off means off, and only the part that was named: a module that both share (one dropout for two sums) would take the other along.
    return torch.equal(results[-1], x) and not any(torch.equal(result, x) for result in results[:2])


@contextmanager
def switched(module: Any, parts: Parts, off: tuple[str, ...], dim: int) -> Iterator[None]:
    """The layer with the parts named in `off` (`"attention"`, `"mlp"`) adding nothing; their modules do not run."""
    idle = [item for part in off for item in parts.idle(part)]
    with replaced([(module.get_submodule(item.name), "forward", _nothing(item.items, dim)) for item in idle]):
        yield
