"""States that users bring: caches of other libraries by name, lists of tensors, and what is refused by a name that says the fix."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import metastable as ms
from metastable import checkpoints
from metastable.errors import InvalidInputError, TokenError, UnsupportedError
from tests.unit.checkpoints.flow_models import ENCODER, build

IDS = [5, 9, 17, 33, 60, 9, 12, 41, 7, 28, 3, 50]


@pytest.fixture(scope="module")
def flows():
    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in made:
            made[name] = checkpoints.flow(build(name))
        return made[name]

    return get


def by_module(model: Any, ids: list[int]) -> dict[str, Any]:
    """What hooks on all modules of a model keep, by the modules' own names."""
    import torch

    kept: dict[str, Any] = {}
    hooks = [
        module.register_forward_hook(lambda _module, _given, result, name=name: kept.__setitem__(name, result))
        for name, module in model.named_modules()
        if name
    ]
    with torch.no_grad():
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return kept


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "bert"])
def test_a_cache_of_all_modules_starts_every_layer(name: str, flows) -> None:
    """Every layer starts from what really enters it, the first one too (embeddings, dropout behind positions, a norm)."""
    flow = flows(name)
    run, cache = flow.run(IDS), by_module(flow.model, IDS)
    for layer in range(flow.depth):
        found = flow.run(cache, layer=layer)
        np.testing.assert_array_equal(found.hidden[0], run.hidden[layer], err_msg=f"{name} {layer}")
    given = checkpoints.from_states(cache)
    np.testing.assert_array_equal(given.times, np.arange(1, flow.depth + 1))
    np.testing.assert_array_equal(given.hidden, run.hidden[1:])


def test_words_without_positions_are_no_state_of_gpt2(flows) -> None:
    flow, model = flows("gpt2"), build("gpt2").transformer
    run = flow.run(IDS)
    words, places = model.wte.weight.detach()[IDS][None], model.wpe.weight.detach()[: len(IDS)][None]
    both = flow.run({"hook_embed": words, "hook_pos_embed": places})
    np.testing.assert_array_equal(both.hidden, run.hidden)
    with pytest.raises(InvalidInputError, match=r"hook_pos_embed as well, or blocks\.0\.hook_resid_pre"):
        flow.run({"hook_embed": words})
    with pytest.raises(InvalidInputError, match=r"give blocks\.0\.hook_resid_pre"):
        flows("bert").run({"hook_embed": words, "hook_pos_embed": places})
    # In a model with rotary positions words are all that enters.
    llama = flows("llama")
    np.testing.assert_array_equal(
        llama.run({"hook_embed": build("llama").model.embed_tokens.weight[IDS][None]}).hidden, llama.run(IDS).hidden
    )


def test_modules_that_are_called_several_times_name_no_layer(flows) -> None:
    """ALBERT's cache by module names holds the last of several calls."""
    flow = flows("albert")
    cache = by_module(flow.model, IDS)
    with pytest.raises(InvalidInputError, match=r"calls encoder\S+ \d times; name it blocks\.2\.hook_resid_pre"):
        flow.run(cache, layer=2)
    with pytest.raises(InvalidInputError, match="several layers"):
        checkpoints.from_states(cache)
    run = flow.run(IDS)
    assert (flow.run({"blocks.2.hook_resid_pre": run.hidden[2]}, layer=2).hidden[0] == run.hidden[2]).all()
    # The first layer is entered from one module only.
    assert (flow.run(cache, layer=0).hidden[0] == run.hidden[0]).all()


def states(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 5, 8)).astype(np.float32)


def test_outputs_of_experts_are_no_states() -> None:
    layers = {f"model.layers.{layer}.output": states(layer) for layer in range(3)}
    experts = {f"model.layers.{layer}.mlp.experts.{k}.output": states(50) for layer in range(3) for k in range(6)}
    run = checkpoints.from_states({**experts, **layers, "blocks.1.attn.hook_z": states(9)})
    assert run.times.tolist() == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(run.hidden, np.concatenate([states(layer) for layer in range(3)]))
    with pytest.raises(InvalidInputError, match=r"blocks\.3\.hook_resid_pre.*experts"):
        checkpoints.from_states(experts)
    with pytest.raises(InvalidInputError, match="fewer than two"):
        checkpoints.from_states({"experts.0.output": states(0), "experts.1.output": states(1)})


@pytest.mark.parametrize(
    "names",
    [
        ("encoder.layers.{}.output", "decoder.layers.{}.output"),
        ("encoder.{}.hook_resid_pre", "decoder.{}.hook_resid_pre"),
    ],
)
def test_two_stacks_are_not_one_flow(names: tuple[str, str]) -> None:
    encoder, decoder = ({name.format(layer): states(layer) for layer in range(3)} for name in names)
    with pytest.raises(InvalidInputError, match=r"2 stacks.*startswith\('decoder"):
        checkpoints.from_states({**encoder, **decoder})
    assert len(checkpoints.from_states(encoder).times) == 3


def test_a_foreign_stack_is_not_taken_for_the_models_own(flows) -> None:
    flow = flows("llama")
    hidden = flow.run(IDS).hidden
    with pytest.raises(InvalidInputError, match=r"layers\.1\.input"):
        flow.run({"vision_tower.layers.0.output": hidden[1]}, layer=1)
    assert (flow.run({"language_model.model.layers.0.output": hidden[1]}, layer=1).hidden[0] == hidden[1]).all()


def test_two_states_of_one_place_must_be_the_same() -> None:
    cache = {
        f"blocks.{layer}.hook_resid_{side}": states(layer + (side == "post"))
        for layer in range(3)
        for side in ("pre", "post")
    }
    assert checkpoints.from_states(cache).times.tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(TokenError, match=r"blocks\.0\.hook_resid_post and blocks\.1\.hook_resid_pre"):
        checkpoints.from_states({**cache, "blocks.1.hook_resid_pre": 2 * states(1)})


def test_lists_of_tensors_become_a_run() -> None:
    """As `hidden_states` of transformers: a tuple, with gradients, or in bfloat16."""
    import torch

    tensors = tuple(torch.tensor(states(layer), requires_grad=True) for layer in range(3))
    wanted = np.concatenate([states(layer) for layer in range(3)])
    np.testing.assert_array_equal(checkpoints.from_states(tensors).hidden, wanted)
    np.testing.assert_array_equal(checkpoints.from_states([tensor.detach()[0] for tensor in tensors]).hidden, wanted)
    rough = checkpoints.from_states(tuple(tensor.bfloat16() for tensor in tensors)).hidden
    np.testing.assert_allclose(rough, wanted, rtol=2**-8)


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        (np.zeros((3, 0, 4)), {}, "hold nothing"),
        (np.zeros((2, 3, 0)), {}, "hold nothing"),
        (np.zeros((0, 3, 4)), {}, "hold nothing"),
        ([], {}, "shape"),
        ((np.ones((5, 8)), np.ones((6, 8))), {}, "not an array"),
        (np.ones((2, 3, 4)), {"text": 5}, "text must be a list"),
        (np.ones((2, 3, 4)), {"text": "abc"}, "text must be a list"),
        (np.ones((2, 3, 4)), {"text": ["a", None, "c"]}, "text"),
        (np.ones((2, 3, 4)), {"text": ["a"]}, "names 1 tokens"),
        (np.ones((2, 3, 4)), {"causal": "maybe"}, "causal"),
    ],
)
def test_given_states_are_checked(given: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        checkpoints.from_states(given, **options)


def test_arguments_are_checked_by_name(flows) -> None:
    flow = flows("llama")
    for call in (flow.run, flow.decompose):
        with pytest.raises(InvalidInputError, match="special_tokens"):
            call(IDS, special_tokens="no")
    with pytest.raises(InvalidInputError, match="tokenizer"):
        checkpoints.flow(build("llama"), tokenizer=5)
    with pytest.raises(TokenError, match="drop_first=1 leaves fewer than 2"):
        flow.decompose([3])
    with pytest.raises(TokenError, match="drop_first=10 at most"):
        flow.decompose(IDS, drop_first=11)
    with pytest.raises(TypeError, match="parts"):
        flow.decompose(IDS, parts="attention")  # as for any function: it has no such argument
    with pytest.raises(InvalidInputError, match="hidden states have no words"):
        checkpoints.meaning("no such model", text=np.ones((4, 24)))
    run = flow.run(IDS)
    for observable in (ms.observe.attention(), ms.observe.attention_entropy(), ms.observe.attention_rank()):
        with pytest.raises(UnsupportedError, match="attentions=True"):
            run.observe(observable)
    for observable in (ms.observe.clusters(), ms.observe.consumed()):
        with pytest.raises(UnsupportedError, match=r"radius=0\.3"):
            run.observe(observable)


def test_the_callers_model_stays_where_it_is(monkeypatch) -> None:
    """`device=` moves a copy; so does another precision, also that of a buffer."""
    import torch

    from metastable.checkpoints.flows import opening

    model = copy.deepcopy(build("llama"))
    assert checkpoints.flow(model).model is model
    assert checkpoints.flow(model, device="cpu").model is model
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.bfloat16()
    other = checkpoints.flow(model).model
    assert other is not model
    assert model.model.rotary_emb.inv_freq.dtype == torch.bfloat16
    with pytest.raises(InvalidInputError, match="meta"):
        checkpoints.flow(model, device="meta")
    monkeypatch.setattr(opening, "_device", lambda device: torch.device("meta"))
    with pytest.raises((NotImplementedError, RuntimeError)):
        checkpoints.flow(model, device="elsewhere")
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_random_layers_belong_to_their_number(flows) -> None:
    """Layer 2 with random weights is the same alone, in a list, in any order; other layers are others. ALBERT: by module."""
    from metastable.checkpoints.flows.nulls import random_layers

    flow = flows("llama")

    def drawn(chosen: list[int], null: str) -> np.ndarray:
        with random_layers(flow._layers(flow.probe.calls, chosen), null, flow.dim, 7):
            return flow.model.model.layers[2].self_attn.v_proj.weight.detach().numpy().copy()

    for null in ("gaussian", "haar"):
        alone = drawn([2], null)
        for chosen in ([0, 1, 2], [2, 1], [1, 2, 0]):
            np.testing.assert_array_equal(drawn(chosen, null), alone)
    hidden = flow.run(IDS).hidden[2]
    runs = [flow.run(hidden, layer=layer, null="gaussian").hidden[-1] for layer in (1, 2)]
    assert np.abs(runs[0] - runs[1]).max() > 0.1
    albert = flows("albert")
    numbers = [layer.number for layer in albert._layers(albert.probe.calls, range(albert.depth))]
    modules = [id(call.module) for call in albert.probe.calls]
    assert numbers == [modules.index(module) for module in modules]
    assert len(set(numbers)) < albert.depth


def test_random_orders_belong_to_their_layer() -> None:
    import xarray as xr

    x = ms.sphere.normalize(np.random.default_rng(0).standard_normal((4, 12, 6)))
    cloud = xr.Dataset({"x": (("layer", "token", "feature"), x)}, coords={"layer": np.arange(4)})
    every = checkpoints.exchangeability_test(cloud, permutations=50)
    one = checkpoints.exchangeability_test(cloud.isel(layer=[3]), permutations=50)
    assert float(one["null_deviation"][0]) == float(every["null_deviation"][3])


def test_geometry_of_a_loop_is_over_time(flows) -> None:
    run = flows("llama").run(IDS, layer=1, until=4.0, times=[0.0, 0.5, 4.0])
    for found in (
        checkpoints.token_geometry(run.dataset),
        checkpoints.capture_curves(run.dataset, 0.5),
        checkpoints.exchangeability_test(run.dataset, permutations=9),
    ):
        assert found["time"].values.tolist() == [0.0, 0.5, 4.0]
        assert "layer" not in found.dims


def masked(kind: str, tmp_path: Path) -> tuple[Any, Path]:
    import torch
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.BertConfig(**ENCODER)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    return model, tmp_path


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForPreTraining"])
def test_a_masked_language_model_keeps_its_head(kind: str, tmp_path: Path) -> None:
    """Read from a folder, its words are its own predictions and not the nearest embeddings."""
    import torch

    model, folder = masked(kind, tmp_path)
    flow = checkpoints.flow(folder)
    with torch.no_grad():
        truth = model(torch.tensor([IDS]))[0][0].topk(3).indices.tolist()
    found = flow.words(flow.run(IDS).hidden[-1], 3)
    assert [list(map(int, row)) for row in found] == truth
    assert checkpoints.load_model(folder).model.get_output_embeddings() is not None


def test_a_discriminator_has_no_words_of_its_own(tmp_path: Path) -> None:
    """ELECTRA's pre-training head is no language model: the encoder is read without it."""
    import transformers

    sizes = {**ENCODER, "embedding_size": 24}
    transformers.ElectraForPreTraining(transformers.ElectraConfig(**sizes)).eval().save_pretrained(tmp_path)
    flow = checkpoints.flow(tmp_path)
    assert type(flow.model).__name__ == "ElectraModel"
    assert flow.run(IDS).status == "success"


def test_states_from_a_later_layer_on_begin_there(tmp_path: Path) -> None:
    """Nothing is said of depths before the first state, neither in words nor in pictures."""
    from metastable.analysis.trajectory import saved_grid
    from metastable.figures import moments

    generator = np.random.default_rng(0)
    cache = {f"model.layers.{layer}.output": generator.normal(size=(5, 3)) for layer in (2, 3)}
    run = checkpoints.from_states(cache)
    assert run.times.tolist() == [3.0, 4.0]
    assert run.begin == 3.0
    assert "t = 3..4" in repr(run)
    np.testing.assert_array_equal(run.start, run.states[0])
    assert saved_grid(run)[0].tolist() == [3.0, 4.0]
    assert moments.saved_states(run) == 2
    run.save(tmp_path / "run.zarr")
    assert checkpoints.FlowRun.load(tmp_path / "run.zarr").begin == 3.0
    whole = checkpoints.from_states(generator.normal(size=(2, 5, 3)))
    assert whole.begin == 0.0
    assert "t = 0..1" in repr(whole)
