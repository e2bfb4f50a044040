"""What a flow is given, sorted out before it runs: one sequence at a time, whatever it comes in, or a refusal that says the fix."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metastable import checkpoints
from metastable.checkpoints.flows import blocks, solve
from metastable.checkpoints.flows.plan import Wish, check_plan
from metastable.errors import InvalidInputError, TokenError, UnsupportedError
from tests.unit.checkpoints.flow_models import DECODER, build

IDS = [5, 9, 17, 33, 60, 9, 12, 41, 7, 28, 3, 50]


@pytest.fixture(scope="module")
def llama() -> Any:
    return checkpoints.flow(build("llama"))


def test_several_sequences_are_refused(llama, monkeypatch) -> None:
    """Not the first of them taken: layers' states in a list, two texts, two lists of ids; before the model runs."""
    import torch

    hidden = llama.run(IDS).hidden
    monkeypatch.setattr(blocks, "record", lambda *given: pytest.fail("the model was run"))
    for states in (list(hidden), tuple(hidden), [state[None] for state in hidden], list(torch.tensor(hidden))):
        with pytest.raises(InvalidInputError, match=r"of 4 arrays.*states\[2\] with layer=2.*from_states"):
            llama.run(states, layer=2)
    with pytest.raises(InvalidInputError, match="of 2 arrays"):  # what a layer returned
        llama.run((torch.tensor(hidden[1:2]), torch.zeros(1, 4, 12, 12)), layer=1)
    for ids in ([IDS, IDS[::-1]], [IDS, IDS[:3]], [np.array(IDS), np.array(IDS)]):
        with pytest.raises(InvalidInputError, match="2 lists of token ids"):
            llama.run(ids)
    with pytest.raises(InvalidInputError, match="2 texts"):
        llama.run(["one text", "another"])
    with pytest.raises(TokenError, match="one sequence at a time"):
        llama.run(hidden, layer=2)


def test_one_sequence_comes_in_many_forms(llama) -> None:
    import torch
    from transformers import BatchEncoding

    wanted = llama.run(IDS).hidden
    forms: list[Any] = [
        np.array(IDS),
        np.array([IDS]),
        torch.tensor(IDS),
        torch.tensor([IDS]),
        [IDS],
        [torch.tensor(IDS)],
    ]
    encoded = {"input_ids": torch.tensor([IDS]), "attention_mask": torch.ones(1, len(IDS), dtype=torch.long)}
    forms += [{"input_ids": IDS}, {"input_ids": np.array([IDS])}, encoded, BatchEncoding(encoded)]
    for form in forms:
        np.testing.assert_array_equal(llama.run(form).hidden, wanted)
        np.testing.assert_array_equal(checkpoints.token_states(llama.model, None, form)["x"].values[0], wanted[0])
    for states in (wanted[1], wanted[1][None], [wanted[1]], wanted[1].tolist(), list(wanted[1])):
        np.testing.assert_array_equal(llama.run(states, layer=1).hidden[0], wanted[1])
    hiding = {**encoded, "attention_mask": torch.tensor([[1] * 11 + [0]])}
    with pytest.raises(InvalidInputError, match="attention_mask hides"):
        llama.run(hiding)
    with pytest.raises(InvalidInputError, match="2 sequences"):
        llama.run({"input_ids": [IDS, IDS]})


class ActivationCache:
    """As that of TransformerLens: keys and items, no mapping; short names are understood, so `[]` takes what `keys()` does not list."""

    def __init__(self, states: dict[str, Any]) -> None:
        self.states = states

    def keys(self) -> Any:
        return self.states.keys()

    def __getitem__(self, name: Any) -> Any:
        return self.states[name]


def test_a_cache_need_not_be_a_mapping(llama) -> None:
    hidden = llama.run(IDS).hidden
    cache = ActivationCache({f"blocks.{layer}.hook_resid_pre": hidden[layer][None] for layer in range(3)})
    np.testing.assert_array_equal(llama.run(cache, layer=2).hidden[0], hidden[2])
    np.testing.assert_array_equal(checkpoints.from_states(cache).hidden, hidden[:3])
    with pytest.raises(InvalidInputError, match=r"it has blocks\.0"):
        llama.run(ActivationCache({"blocks.0.attn.hook_z": hidden[0]}), layer=1)


def test_a_zero_vector_is_refused_before_the_loop(llama, monkeypatch) -> None:
    hidden = llama.run(IDS).hidden[1].copy()
    hidden[3] = 0.0
    monkeypatch.setattr(solve, "adaptive", lambda *given, **more: pytest.fail("the layer was looped"))
    with pytest.raises(TokenError, match="token 3 is the zero vector at t = 0"):
        llama.run(hidden, layer=1, until=5.0)


def test_a_mixture_of_experts_is_causal() -> None:
    """Its first token's state moves by rounding when a later token changes: experts compute other tokens along with it."""
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    for seed in range(6):
        torch.manual_seed(seed)
        config = MixtralConfig(**{**DECODER, "num_local_experts": 4, "hidden_size": 64, "intermediate_size": 96})
        model = MixtralForCausalLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        assert checkpoints.flow(model.eval()).causal


def test_temperature_of_fused_attention_says_what_to_call() -> None:
    model = copy.deepcopy(build("llama"))
    model.set_attn_implementation("sdpa")
    flow = checkpoints.flow(model)
    with pytest.raises(UnsupportedError, match=r'model\.set_attn_implementation\("eager"\) and make the flow again'):
        flow.run(IDS, temperature=2.0)
    model.set_attn_implementation("eager")
    again = checkpoints.flow(model).run(IDS, temperature=2.0)
    np.testing.assert_array_equal(again.hidden, checkpoints.flow(build("llama")).run(IDS, temperature=2.0).hidden)


def test_words_without_tokenizer_say_where_to_give_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"checkpoints\.flow\(model, tokenizer=tokenizer\)"):
        checkpoints.meaning(build("llama"))
    with pytest.raises(InvalidInputError, match=r"flow\(model, tokenizer=\.\.\.\)"):
        checkpoints.flow(build("llama")).run("a text")
    build("llama").save_pretrained(tmp_path)
    with pytest.raises(InvalidInputError, match=r"tokenizer\.json .* to the folder"):
        checkpoints.meaning(tmp_path)


def test_layers_that_take_their_states_by_another_name_are_refused() -> None:
    """As an error of ours, not a KeyError."""
    model = copy.deepcopy(build("llama"))
    for layer in model.model.layers:
        inner = layer.forward
        layer.forward = lambda *given, inner=inner, stream=None, **more: inner(stream, **more)
    forward = model.model.layers[0].__class__.__call__
    for layer in model.model.layers:
        layer.__class__ = type(
            "Renamed", (layer.__class__,), {"__call__": lambda self, x, **more: forward(self, stream=x, **more)}
        )
    with pytest.raises(UnsupportedError, match=r"layers\.0 \(Renamed\) is called without its states.*stream"):
        checkpoints.flow(model)


def test_steps_know_their_layer_after_any_number_of_them() -> None:
    """Three layers in 3 million substeps each: every border is where whole numbers put it."""
    k = 3_000_000
    plan = check_plan(3, Wish(substeps=k, max_steps=10**8), single_precision=True)
    for layer in range(3):
        assert plan.layer_of(layer * k) == layer
        assert plan.layer_of((layer + 1) * k - 1) == layer
    small = check_plan(3, Wish(substeps=7, until=30.0), single_precision=True)
    assert [small.layer_of(number) for number in range(7 * 30)] == [(number // 7) % 3 for number in range(7 * 30)]
