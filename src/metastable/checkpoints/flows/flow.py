"""`Flow`: a language model's own layers, to be run as they are or as they are not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._progress import Report, progress_bar
from metastable._words import counted
from metastable.checkpoints.flows import beginnings, blocks, caches, nulls, solve
from metastable.checkpoints.flows.field import Field, Layer, check_temperature, prepared
from metastable.checkpoints.flows.flow_run import FlowRun, make
from metastable.checkpoints.flows.parts import Parts
from metastable.checkpoints.flows.plan import RTOL, Plan, Wish, check_plan
from metastable.checkpoints.models import encode
from metastable.errors import ContextLengthError, InvalidInputError, TokenError, UnsupportedError

if TYPE_CHECKING:
    import xarray as xr

    from metastable.integrate.solution import Solution


@dataclass(frozen=True)
class _Beginning:
    """The tokens of a run: hidden states (1, tokens, dim), the calls that move them, and their names."""

    states: Any
    calls: tuple[blocks.Call, ...]
    text: tuple[str, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Flow:
    """A checkpoint's own layers as a vector field; made by `flow`.

    `architecture`, `depth` (layers), `dim`, `causal`; `kind` of its layers: `"sequential"`, `"parallel"`, `"post"`, or `"whole"` where
    the parts of some layer cannot be told apart (then only `parts="all"` runs).
    """

    model: Any
    tokenizer: Any
    source: str
    probe: blocks.Recording
    parts: tuple[Parts | None, ...]
    final_norm: Any
    causal: bool

    def __repr__(self) -> str:
        return (
            f"<Flow: {self.source}, {self.architecture}, {counted(self.depth, f'{self.kind} layer')} of dim {self.dim}>"
        )

    @property
    def architecture(self) -> str:
        return str(self.model.config.model_type)

    @property
    def depth(self) -> int:
        return len(self.probe.calls)

    @property
    def dim(self) -> int:
        return int(self.probe.last.shape[-1])

    @property
    def kind(self) -> str:
        kinds = {"whole" if part is None else part.kind for part in self.parts}
        return next(iter(kinds)) if len(kinds) == 1 else "whole" if "whole" in kinds else "mixed"

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names of the modules, in the order in which they are called."""
        return tuple(call.name for call in self.probe.calls)

    def _layers(self, calls: Sequence[blocks.Call], chosen: Iterable[int]) -> tuple[Layer, ...]:
        """The chosen layers among recorded calls, each with its parts and the first layer that calls its module."""
        first: dict[int, int] = {}
        for number, call in enumerate(calls):
            first.setdefault(id(call.module), number)
        return tuple(Layer(calls[index], self.parts[index], first[id(calls[index].module)]) for index in chosen)

    def run(
        self,
        text: Any,
        *,
        parts: str = "all",
        layers: Any = None,
        layer: int | None = None,
        until: float | None = None,
        step: float | str | None = None,
        substeps: int | None = None,
        times: Any = None,
        temperature: float = 1.0,
        permute: int | None = None,
        project: str | None = None,
        null: str | None = None,
        seed: int = 0,
        middle: bool = False,
        rtol: float = RTOL,
        max_tokens: int | None = None,
        special_tokens: bool = True,
        max_steps: int = 100_000,
        progress: bool | None = None,
    ) -> FlowRun:
        """Move tokens by the model's layers: the whole stack as it is, or what if.

        Time is depth, one layer is one unit. Between t = k and k + 1 the field dx/dt = F(x) - x is that of the (k mod m)-th of the m
        chosen layers, which start from the states that the model itself has there. With no options this is the model's forward
        pass, bit for bit; the last state is the one before the final norm.

        Args:
            text: a text, token ids (also a batch of one, or what a tokenizer returns), hidden states (tokens, dim) that enter the
                first chosen layer, or a cache of such (a mapping of names to arrays, as TransformerLens and nnsight fill them).
            parts: `"all"`, `"attention"` (feed-forward part off) or `"mlp"` (attention off). Norms stay where they are.
            layers, layer: several (a range, slice or list) or one; default all.
            until: loop the chosen layers up to this time. Default: once through.
            step, substeps: fixed steps of length `step` = 1/`substeps`; `"adaptive"`: Tsit5 with error control, for one looped layer.
                Default: whole layers; adaptive when one layer is looped.
            times: when to keep states. Default: every layer; when looped, 101 times.
            temperature: the logits that enter the softmax are divided by it (behind a cap, where a model has one).
            permute: seed of a random order of the tokens that enter (the first and special tokens stay where they are).
            project: `"sphere"`: tokens keep the length they start with. Default: lengths go where the layers send them.
            null: `"gaussian"` (random weights of the same shapes and spread), `"haar"` (value matrices with random frames) or `"text"`
                (the words of the text shuffled; special tokens stay), drawn with `seed`. A looped layer is random, the states that
                enter it are not.
            middle: also keep the states between attention and feed-forward part, at half times.
            rtol: error per adaptive step, relative to each token's length.
            max_tokens, special_tokens: as in `token_states`.

        Returns:
            A `FlowRun`. A run that left the range of numbers or ran out of steps says so in `status` and keeps what it reached.
        """
        wish = Wish(
            parts,
            layers,
            layer,
            until,
            step,
            substeps,
            times,
            temperature,
            permute,
            project,
            null,
            seed,
            middle,
            rtol,
            max_steps,
        )
        _checks.progress(progress)
        plan = check_plan(self.depth, wish, single_precision=self._dtype_name == "float32")
        self._refuse(plan)
        beginning = self._begin(text, plan, max_tokens, special_tokens)
        chosen = self._layers(beginning.calls, plan.layers)
        with (
            nulls.random_layers(chosen, plan.null, self.dim, plan.seed),
            prepared(chosen, plan.parts, plan.temperature, self.dim) as field,
            progress_bar("flow", plan.until, progress) as report,
        ):
            solution = _solve(plan, field, beginning.states, report)
        return make(
            solution,
            solve.to_array(beginning.states),
            text=beginning.text,
            ids=beginning.ids,
            description=self._description(plan),
            attributes=self._attributes(plan),
        )

    def decompose(
        self,
        text: Any,
        *,
        beta: float = 1.0,
        drop_first: int = 1,
        max_tokens: int | None = None,
        special_tokens: bool = True,
    ) -> xr.Dataset:
        """What attention and feed-forward part each do in every layer; see `metastable.checkpoints.flows.decompose`."""
        from metastable.checkpoints.flows.decompose import decompose

        return decompose(
            self, text, beta=beta, drop_first=drop_first, max_tokens=max_tokens, special_tokens=special_tokens
        )

    def words(self, hidden: Any, count: int = 3) -> list[tuple[str, ...]]:
        """The `count` words that hidden states (rows, dim) stand for, likeliest first: the model's own last norm and head, with
        all that belongs to it, applied to them (logit lens); for a model without a head the input embeddings nearest in direction.
        """
        from metastable.checkpoints.flows.lens import read_words

        return read_words(self, hidden, count)

    @property
    def _dtype_name(self) -> str:
        return str(self.probe.last.dtype).removeprefix("torch.")

    def _refuse(self, plan: Plan) -> None:
        """Refuse, before anything runs, what these layers cannot do."""
        untold = [index for index in plan.layers if self.parts[index] is None]
        if untold and (plan.parts != "all" or plan.middle):
            call = self.probe.calls[untold[0]]
            raise UnsupportedError(
                f"the parts of {call.name} ({type(call.module).__name__}) cannot be told apart, so only whole layers can be run: "
                "leave parts= and middle= out"
            )
        kinds = {part.kind for index in plan.layers if (part := self.parts[index]) is not None}
        if plan.middle and "parallel" in kinds:
            raise UnsupportedError(
                "attention and feed-forward part run side by side in these layers: there is no state between them"
            )
        if plan.temperature != 1.0:
            chosen = self._layers(self.probe.calls, plan.layers)
            check_temperature(chosen, [self.probe.states[index] for index in plan.layers])

    def _begin(self, given: Any, plan: Plan, max_tokens: int | None, special_tokens: bool) -> _Beginning:
        """The states that enter the first chosen layer, and the calls for that many tokens."""
        import torch

        first = plan.layers[0]
        special_tokens = _checks.flag(special_tokens, "special_tokens")
        layers = blocks.find_layers(self.model)
        if beginnings.is_text(given):
            ids = encode(self.model, self.tokenizer, given, max_tokens, special_tokens)
            special = beginnings.special_places(ids, self.tokenizer)
            if plan.null == "text":
                ids = [ids[place] for place in beginnings.order_of(len(ids), plan.seed, special)]
            recording = blocks.record(self.model, layers, ids)
            states, text = recording.states[first], self._names(ids)
            if not bool(torch.isfinite(states).all()):
                raise TokenError(
                    f"the states that enter layer {first} are not finite: the model leaves the range of {self._dtype_name} on this "
                    "text; try dtype='float64'"
                )
        else:
            if plan.null == "text":
                raise InvalidInputError(
                    "null='text' shuffles a text, but hidden states were given; use permute=seed for their order"
                )
            array = (
                self._cached(given, first, layers)
                if beginnings.is_mapping(given)
                else beginnings.one_sequence(given, "hidden states", self.dim)
            )
            array = array if max_tokens is None else array[: _checks.count(max_tokens, "max_tokens")]
            self._check_length(len(array))
            ids, text, special = [-1] * len(array), ("",) * len(array), []
            recording = blocks.record(self.model, layers, [self.plain_id] * len(array))
            states = torch.tensor(array[None], dtype=self.probe.last.dtype, device=self.probe.last.device)
        # A token without a direction is refused here, not at the end of the run.
        beginnings.lengths(solve.to_array(states).astype(np.float64)[None], [0.0])
        if plan.permute is not None:
            order = beginnings.order_of(len(ids), plan.permute, special)
            states, text, ids = states[:, order], [text[place] for place in order], [ids[place] for place in order]
        return _Beginning(states, recording.calls, tuple(text), tuple(ids))

    def _cached(self, cache: Any, layer: int, layers: Sequence[tuple[str, Any]]) -> Any:
        """The states that enter a layer, from a cache; how the first layer is reached is seen on two tokens and their swap."""
        names: dict[str, Any] = {"prefix": str(getattr(self.model, "base_model_prefix", ""))}
        if layer == 0:
            padding = getattr(self.model.config, "pad_token_id", None)
            pair = [token for token in range(self.plain_id, self.plain_id + 3) if token != padding][:2]
            recording = blocks.record(self.model, layers, pair)
            names["entrances"] = blocks.find_entrances(self.model, layers, pair, recording)
            one, two = recording.states[0][0]
            two_first, one_second = blocks.record(self.model, layers, pair[::-1]).states[0][0]
            names["words_alone"] = bool((one == one_second).all() and (two == two_first).all())
            # Word + place: what a swap of the words adds in front it takes away behind.
            size = float(recording.states[0].abs().max())
            gap = float(((one - two_first) + (two - one_second)).abs().max())
            names["words_and_places"] = self.kind != "post" and gap <= 1e-5 * size
        return caches.from_cache(cache, layer, self.layer_names, self.dim, **names)

    @property
    def plain_id(self) -> int:
        """A token id that is not padding: what stands in for the text when hidden states are given."""
        return 1 if getattr(self.model.config, "pad_token_id", None) in (None, 0) else 0

    def _check_length(self, tokens: int) -> None:
        context = getattr(self.model.config, "max_position_embeddings", None)
        if context is not None and tokens > context:
            raise ContextLengthError(
                f"there are {tokens} hidden states, but the model's context holds {context}; pass max_tokens={context}"
            )

    def _names(self, ids: list[int]) -> tuple[str, ...]:
        if self.tokenizer is None:
            return ("",) * len(ids)
        from metastable.checkpoints.flows.lens import names_of

        return names_of(self.tokenizer, ids)

    def _description(self, plan: Plan) -> dict[str, Any]:
        return {
            "architecture": self.architecture,
            "source": self.source,
            "dim": self.dim,
            "heads": int(getattr(self.model.config, "num_attention_heads", 0)),
            "causal": self.causal,
            "layer_kind": self.kind,
            "layers": list(plan.layers),
            "what": plan.describe(),
        }

    def _attributes(self, plan: Plan) -> dict[str, Any]:
        return {
            "flow": plan.describe(),
            "source": self.source,
            "method": plan.method,
            "dtype": self._dtype_name,
            "parts": plan.parts,
            "layers": list(plan.layers),
            "until": plan.until,
            "step": 0.0 if plan.step is None else plan.step,
            "rtol": plan.rtol if plan.step is None else 0.0,
            "atol": 0.0,
            "temperature": plan.temperature,
            "permute": -1 if plan.permute is None else plan.permute,
            "project": plan.project or "",
            "null": plan.null or "",
            "seed": plan.seed,
            "middle": int(plan.middle),
            "max_steps": plan.max_steps,
        }


def _solve(plan: Plan, field: Field, start: Any, report: Report) -> Solution:
    """The march that a plan asks for."""
    sphere = solve.Sphere(start.norm(dim=-1, keepdim=True) if plan.project == "sphere" else None)
    if plan.step is None:
        return solve.adaptive(
            field,
            start,
            plan.until,
            times=plan.times,
            rtol=plan.rtol,
            sphere=sphere,
            max_steps=plan.max_steps,
            report=report,
        )
    if plan.method == "layers":
        return solve.stack(
            field,
            start,
            plan.steps,
            middle=plan.middle,
            sphere=sphere,
            wanted=plan.wanted,
            max_steps=plan.max_steps,
            report=report,
        )
    return solve.euler(
        field,
        start,
        plan.steps,
        plan.step,
        layer_of=plan.layer_of,
        sphere=sphere,
        wanted=plan.wanted,
        max_steps=plan.max_steps,
        report=report,
    )
