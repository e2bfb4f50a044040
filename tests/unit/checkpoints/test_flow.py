"""A checkpoint's own layers as a flow: equal to the forward pass, and what each option changes."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import metastable as ms
from metastable import checkpoints
from metastable.checkpoints.flows import blocks
from metastable.errors import (
    CheckpointError,
    ContextLengthError,
    InvalidInputError,
    TimeError,
    TokenError,
    UnknownArchitectureError,
    UnsupportedError,
)
from tests.unit.checkpoints.flow_models import ARCHITECTURES, CONTEXT, DECODER, ENCODER, NEOX, build

IDS = [5, 9, 17, 33, 60, 9, 12, 41, 7, 28, 3, 50]


def forward(model: Any, ids: list[int] = IDS) -> Any:
    """The model's own forward pass."""
    import torch

    with torch.no_grad():
        return model.base_model(torch.tensor([ids]), output_hidden_states=True)


@pytest.fixture(scope="module")
def flows():
    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in made:
            made[name] = checkpoints.flow(build(name))
        return made[name]

    return get


@pytest.fixture(params=list(ARCHITECTURES))
def flow(request, flows) -> Any:
    return flows(request.param)


def test_stack_is_the_forward_pass_bit_for_bit(flow) -> None:
    import torch

    run, truth = flow.run(IDS), forward(flow.model)
    hidden = truth.hidden_states
    assert len(run.times) == len(hidden) == flow.depth + 1
    for layer in range(flow.depth):
        assert (run.hidden[layer] == hidden[layer][0].numpy()).all(), layer
    last = torch.tensor(run.hidden[-1:])
    if flow.final_norm is not None:
        with torch.no_grad():
            last = flow.final_norm(last)
    assert torch.equal(last, truth.last_hidden_state)
    assert run.hidden.dtype == np.float32
    np.testing.assert_allclose(run.states * run.radius[..., None], run.hidden, rtol=1e-12)


def test_kind_and_mask_are_found(flows) -> None:
    for name, (_, _, _, kind, causal) in ARCHITECTURES.items():
        assert (flows(name).kind, flows(name).causal) == (kind, causal), name


def test_nothing_of_the_model_is_left_changed(flow) -> None:
    def hooks(model: Any) -> list[int]:
        return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]

    before, found = flow.run(IDS).hidden, hooks(flow.model)
    state = {name: value.clone() for name, value in flow.model.state_dict().items()}
    for options in (
        {"parts": "attention"},
        {"temperature": 2.0},
        {"null": "gaussian"},
        {"null": "haar"},
        {"layer": 1, "until": 2.0},
    ):
        flow.run(IDS, **options)
    with pytest.raises(RuntimeError, match="stop"), blocks.replaced([(flow.model, "forward", None)]):
        raise RuntimeError("stop")
    assert (flow.run(IDS).hidden == before).all()
    assert all((value == state[name]).all() for name, value in flow.model.state_dict().items())
    assert not any("forward" in module.__dict__ for module in flow.model.modules())
    assert hooks(flow.model) == found


def shares(flow: Any, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input, attention's share and feed-forward part's share of a layer in the forward pass, by hooks that the test sets itself."""
    kept: dict[str, Any] = {}
    module, parts = flow.probe.calls[layer].module, flow.parts[layer]
    hooks = [
        module.get_submodule(getattr(parts, part)).register_forward_hook(
            lambda _module, _given, out, part=part: kept.__setitem__(part, blocks.first(out)[0].numpy())
        )
        for part in ("attention", "mlp")
    ]
    hidden = forward(flow.model).hidden_states
    for hook in hooks:
        hook.remove()
    return hidden[layer][0].numpy(), kept["attention"], kept["mlp"]


@pytest.mark.parametrize("name", [name for name, entry in ARCHITECTURES.items() if entry[3] != "post"])
def test_parts_of_pre_norm_layers(name: str, flows) -> None:
    """Input + shares is the output; with one part off only the other is added; an Euler step adds a fraction of both."""
    flow = flows(name)
    x, attention, mlp = shares(flow, 1)
    whole = flow.run(IDS, layer=1).hidden[-1]
    np.testing.assert_allclose(x + attention + mlp, whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        flow.run(IDS, layer=1, parts="attention").hidden[-1], x + attention, rtol=1e-5, atol=1e-5
    )
    tenth = flow.run(IDS, layer=1, until=0.1, step=0.1).hidden[-1]
    np.testing.assert_allclose(tenth, x + 0.1 * (attention + mlp), rtol=1e-5, atol=1e-5)
    alone = flow.run(IDS, layer=1, parts="mlp").hidden[-1]
    if flow.kind == "parallel":
        np.testing.assert_allclose(alone, x + mlp, rtol=1e-5, atol=1e-5)
    else:
        assert np.abs(alone - x - mlp).max() > 1e-3
        middle = flow.run(IDS, layer=1, middle=True)
        assert middle.times.tolist() == [0.0, 0.5, 1.0]
        np.testing.assert_allclose(middle.hidden[1], x + attention, rtol=1e-5, atol=1e-5)
        assert (middle.hidden[2] == whole).all()


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_parts_of_post_norm_layers(name: str, flows) -> None:
    import torch

    flow = flows(name)
    last = flow.depth - 1  # of a shared layer the last call is what the hooks of this test see
    module = flow.probe.calls[last].module
    x, attention, mlp = shares(flow, last)
    inner = module.attention.output.LayerNorm if name == "bert" else module.attention.LayerNorm
    outer = module.output.LayerNorm if name == "bert" else module.full_layer_layer_norm
    with torch.no_grad():
        middle = inner(torch.tensor(x + attention))
        without = outer(middle).numpy()
        whole = outer(middle + torch.tensor(mlp)).numpy()
    run = flow.run(IDS, layer=last, middle=True)
    np.testing.assert_allclose(run.hidden[1], middle.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(run.hidden[2], whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(flow.run(IDS, layer=last, parts="attention").hidden[-1], without, rtol=1e-5, atol=1e-5)
    half = flow.run(IDS, layer=last, substeps=2, until=0.5).hidden[-1]
    np.testing.assert_allclose(half, 0.5 * (x + whole), rtol=1e-5, atol=1e-5)


def test_temperature_scales_logits(flow) -> None:
    """At a huge temperature attention is uniform over the visible tokens; at temperature 1 nothing changes."""
    run = flow.run(IDS, parts="attention", layer=0, temperature=1e9)
    weights: list[Any] = []

    def keep(module: Any, given: Any, result: Any) -> None:
        if isinstance(result, tuple) and len(result) > 1 and getattr(result[1], "ndim", 0) == 4:
            weights.append(result[1])

    module = flow.probe.calls[0].module
    scaled = [item for item in module.modules() if isinstance(getattr(item, "scaling", None), float)]
    before = [item.scaling for item in scaled]
    hooks = [item.register_forward_hook(keep) for item in module.modules()]
    try:
        for item in scaled:
            item.scaling = 0.0
        truth = flow.run(IDS, parts="attention", layer=0).hidden[-1]
    finally:
        for item, value in zip(scaled, before):
            item.scaling = value
        for hook in hooks:
            hook.remove()
    row = weights[-1][0, 0, -1]
    visible = row[row > 0]
    assert float(visible.max() - visible.min()) < 1e-6
    np.testing.assert_allclose(run.hidden[-1], truth, atol=1e-5)
    assert (flow.run(IDS, temperature=1.0).hidden == flow.run(IDS).hidden).all()


@pytest.mark.parametrize("name", ["gemma2", "llama"])
def test_temperature_against_a_loop_written_by_hand(name: str) -> None:
    """Logits of every pair of tokens one by one: scaled, capped (Gemma 2, with a cap that bites), divided by T, then the softmax."""
    import torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model = copy.deepcopy(build(name))
    cap = 0.4
    if name == "gemma2":
        for layer in model.model.layers:
            layer.self_attn.attn_logit_softcapping = cap
    flow = checkpoints.flow(model)
    temperature, place = 2.5, 1
    run = flow.run(IDS, layer=place, parts="attention", temperature=temperature)
    layer = model.model.layers[place]
    attention = layer.self_attn
    with torch.no_grad():
        x = torch.tensor(run.hidden[0][None])
        y = layer.input_layernorm(x)
        heads, size, n = 4, attention.head_dim, len(IDS)
        q = attention.q_proj(y).view(1, n, heads, size).transpose(1, 2)
        k, v = (part(y).view(1, n, 2, size).transpose(1, 2) for part in (attention.k_proj, attention.v_proj))
        q, k = apply_rotary_pos_emb(q, k, *model.model.rotary_emb(y, torch.arange(n)[None]))
        out = torch.zeros(1, n, heads * size)
        for head in range(heads):
            for i in range(n):
                logits = [float(q[0, head, i] @ k[0, head // 2, j]) * attention.scaling for j in range(i + 1)]
                logits = [cap * np.tanh(logit / cap) for logit in logits] if name == "gemma2" else logits
                first = 0 if name == "llama" or place % 2 else max(0, i - 3)  # Gemma 2: every other layer has a window
                weights = np.exp(np.array(logits[first:]) / temperature)
                weights /= weights.sum()
                for j, weight in enumerate(weights, first):
                    out[0, i, head * size : (head + 1) * size] += weight * v[0, head // 2, j]
        share = attention.o_proj(out)
        share = layer.post_attention_layernorm(share) if name == "gemma2" else share
    np.testing.assert_allclose(run.hidden[-1], (x + share)[0].numpy(), rtol=1e-4, atol=1e-4)
    assert np.abs(run.hidden[-1] - flow.run(IDS, layer=place, parts="attention").hidden[-1]).max() > 1e-3


def test_substeps_converge_to_the_flow_of_a_layer(flows) -> None:
    """Euler's error is of first order, and Tsit5 agrees with its limit (float64 where the model's modules allow)."""
    flow = checkpoints.flow(build("gpt2"), dtype="float64")
    best = flow.run(IDS, layer=1, until=1.0, rtol=1e-9).hidden[-1]
    errors = [np.abs(flow.run(IDS, layer=1, until=1.0, substeps=k).hidden[-1] - best).max() for k in (16, 32, 64)]
    assert errors[0] > errors[1] > errors[2]
    assert 1.7 < errors[0] / errors[1] < 2.3
    assert 1.8 < errors[1] / errors[2] < 2.2
    assert build("gpt2").dtype.itemsize == 4
    loose = flow.run(IDS, layer=1, until=1.0, rtol=1e-4)
    assert np.abs(loose.hidden[-1] - best).max() < 1e-2
    assert loose.stats.evaluations < 64 * 2


def test_adaptive_output_lies_on_the_solution(flows) -> None:
    flow = flows("llama")
    run = flow.run(IDS, layer=1, until=3.0, times=[0.0, 0.7, 1.9, 3.0], rtol=1e-4)
    assert run.method == "tsit5"
    for place, time in enumerate(run.times[1:], 1):
        direct = flow.run(IDS, layer=1, until=float(time), rtol=1e-4).hidden[-1]
        assert np.abs(run.hidden[place] - direct).max() < 2e-3 * np.abs(direct).max()
    assert (run.hidden[0] == flow.run(IDS).hidden[1]).all()


def test_range_looped_and_continuous_depth(flows) -> None:
    flow = flows("llama")
    once = flow.run(IDS, layers=[0, 1]).hidden
    twice = flow.run(IDS, layers=range(2), until=4.0).hidden
    again = flow.run(once[-1], layers=range(2)).hidden[-1]
    assert (twice[2] == once[-1]).all()
    assert (twice[-1] == again).all()
    fine = flow.run(IDS, layers=slice(0, 2), substeps=4, until=2.0)
    start = flow.run(IDS, layer=0, substeps=4, until=1.0).hidden[-1]
    np.testing.assert_allclose(fine.hidden[np.isclose(fine.times, 1.0)][0], start, rtol=1e-5, atol=1e-5)


def test_on_the_sphere(flows) -> None:
    flow = flows("llama")
    for options in ({}, {"layer": 1, "until": 3.0, "step": 0.25}, {"layer": 1, "until": 3.0}):
        run = flow.run(IDS, project="sphere", **options)
        np.testing.assert_allclose(run.radius, np.broadcast_to(run.radius[0], run.radius.shape), rtol=1e-5)
    # The flow on the sphere is the projected one: same direction of motion at the start.
    x = flow.run(IDS, layer=1, until=1e-3, step=1e-3, project="sphere")
    free = flow.run(IDS, layer=1, until=1e-3, step=1e-3)
    np.testing.assert_allclose(x.final, free.final, atol=1e-6)


def test_causality_and_order(flows) -> None:
    """Appending tokens changes nothing before them in a decoder; permuting the tokens of layer 0 of a Llama permutes the text."""
    flow = flows("llama")
    options = {"layer": 1, "until": 2.0, "step": 0.5}
    np.testing.assert_allclose(flow.run(IDS, **options).hidden[:, :8], flow.run(IDS[:8], **options).hidden, atol=1e-5)
    permuted = flow.run(IDS, permute=3)
    assert sorted(permuted.dataset["id"].values) == sorted(IDS)
    assert permuted.dataset["id"].values[0] == IDS[0]
    assert list(permuted.dataset["id"].values) != IDS
    assert (permuted.hidden == flow.run(permuted.dataset["id"].values.tolist()).hidden).all()
    shuffled = flow.run(IDS, null="text", seed=3)
    assert (shuffled.hidden == permuted.hidden).all()
    # In a model with absolute positions the two differ: the states carry the positions they had.
    other = flows("gpt2")
    assert np.abs(other.run(IDS, permute=3).hidden[0] - other.run(IDS, null="text", seed=3).hidden[0]).max() > 0.01


def test_nulls_keep_what_they_say(flows) -> None:
    """Haar: singular values of every V_h stay, its position does not. Gaussian: spread of every matrix stays."""
    from metastable.checkpoints.flows.nulls import random_layers

    for name in ("llama", "gpt2", "gpt_neox", "bert", "albert", "mistral"):
        flow = flows(name)
        layers = flow._layers(flow.probe.calls, range(flow.depth))
        trained = [checkpoints.load_weights(flow.model).layer(1).value_matrix(head) for head in range(4)]
        with random_layers(layers, "haar", flow.dim, 0):
            drawn = [checkpoints.load_weights(flow.model).layer(1).value_matrix(head) for head in range(4)]
        for old, new in zip(trained, drawn):
            singular = [np.linalg.svd(matrix, compute_uv=False)[:4] for matrix in (old, new)]
            np.testing.assert_allclose(*singular, rtol=1e-4)
            assert abs((old * new).sum()) < 0.6 * (old * old).sum()
    flow = flows("phi3")
    layers = flow._layers(flow.probe.calls, range(flow.depth))
    fused = flow.model.model.layers[1].self_attn.qkv_proj.weight
    before = fused.detach().clone()
    with random_layers(layers, "haar", flow.dim, 0):
        assert (fused[:36] == before[:36]).all()
        np.testing.assert_allclose(np.linalg.svd(fused[36:].detach())[1], np.linalg.svd(before[36:])[1], rtol=1e-4)
        assert (fused[36:] - before[36:]).abs().max() > 0.1
    flow = flows("llama")
    weight = flow.model.model.layers[2].mlp.up_proj.weight
    before = weight.detach().clone()
    layers = flow._layers(flow.probe.calls, range(flow.depth))
    with random_layers(layers, "gaussian", flow.dim, 0):
        assert float(weight.detach().std() / before.std()) == pytest.approx(1.0, abs=0.12)
        assert abs(np.corrcoef(weight.detach().ravel(), before.ravel())[0, 1]) < 0.15
    one, two = flow.run(IDS, null="gaussian", seed=1), flow.run(IDS, null="gaussian", seed=2)
    assert (one.hidden[0] == two.hidden[0]).all()
    assert np.abs(one.final - two.final).max() > 0.1
    assert (flow.run(IDS, null="gaussian", seed=1).hidden == one.hidden).all()


def test_hidden_states_and_caches(flows, tmp_path: Path) -> None:
    flow = flows("llama")
    run = flow.run(IDS)
    given = flow.run(run.hidden[1], layers=slice(1, None))
    assert (given.hidden == run.hidden[1:]).all()
    lens = {"hook_embed": run.hidden[0][None], "blocks.1.hook_resid_pre": run.hidden[1][None]}
    assert (flow.run(lens, layers=slice(1, None)).hidden == run.hidden[1:]).all()
    nnsight = {"model.layers.0.output": (run.hidden[1][None],)}
    assert (flow.run(nnsight, layers=slice(1, None)).hidden == run.hidden[1:]).all()
    with pytest.raises(InvalidInputError, match=r"blocks\.2\.hook_resid_pre"):
        flow.run(lens, layer=2)
    with pytest.raises(TokenError, match="24"):
        flow.run(np.zeros((4, 7), dtype=np.float32))
    with pytest.raises(TokenError, match="NaN"):
        flow.run(np.full((4, 24), np.nan))
    with pytest.raises(ContextLengthError, match="context"):
        flow.run(np.ones((CONTEXT + 1, 24)))
    with pytest.raises(InvalidInputError, match="permute"):
        flow.run(run.hidden[1], layer=1, null="text")
    states = checkpoints.from_states(run.hidden, text=[str(i) for i in IDS])
    np.testing.assert_array_equal(states.states, run.states)
    cache = {f"blocks.{layer}.hook_resid_post": run.hidden[layer + 1][None] for layer in range(3)}
    cache["blocks.1.hook_resid_mid"] = run.hidden[1][None]
    assert checkpoints.from_states(cache).times.tolist() == [1.0, 1.5, 2.0, 3.0]
    run.save(tmp_path / "run.zarr")
    loaded = checkpoints.FlowRun.load(tmp_path / "run.zarr")
    assert (loaded.hidden == run.hidden).all()
    assert loaded.model.dim == 24
    assert ms.load(tmp_path / "run.zarr").states.shape == run.states.shape


def test_result_is_a_run_for_analysis_and_figures(flows, tmp_path: Path) -> None:
    run = flows("llama").run(IDS, layer=1, until=20.0, step=0.5, parts="attention")
    assert run.status == "success"
    cloud = run.drop_first(1)
    assert len(cloud.start) == len(IDS) - 1
    tree = ms.merge_tree(cloud, radius=0.3)
    assert tree.tokens == len(IDS) - 1
    assert tree.count(20.0) == ms.cluster_labels(cloud.final, radius=0.3).max() + 1
    with pytest.raises(UnsupportedError, match="radius="):
        ms.merge_tree(cloud)
    assert cloud.observe(ms.observe.mean_cosine()).values[0] == pytest.approx(
        checkpoints.token_geometry(cloud.dataset)["mean_cosine"].values[0]
    )
    assert 0 <= float(checkpoints.capture_curves(cloud.dataset, 0.5)["consumed"][-1]) <= 1
    assert len(ms.renyi_centers(cloud.start, 0.5)) >= 1
    assert ms.figures.draw_run(cloud) is not None
    cloud.animate(tmp_path / "film.gif", seconds=0.2, frames_per_second=10)
    assert (tmp_path / "film.gif").stat().st_size > 1000
    assert cloud.plot() is not None
    assert (run.engine, run.interaction, run.notes) == ("torch", "direct", {})
    assert "observable" in cloud.observe(ms.observe.clusters(0.3)).attrs
    np.testing.assert_array_equal(run.at(20.0), run.final)
    np.testing.assert_array_equal(run.at([0.0, 20.0])[1], run.final)
    with pytest.raises(TimeError, match="times="):
        run.at(0.123)
    with pytest.raises(ValueError, match="read-only"):
        run.states[0] = 0


def test_words(flows) -> None:
    flow = flows("llama")
    run = flow.run(IDS)
    import torch

    with torch.no_grad():
        best = flow.model(torch.tensor([IDS])).logits[0].argmax(-1).tolist()
    assert [row[0] for row in flow.words(run.hidden[-1], 2)] == [str(token) for token in best]
    assert len(flows("bert").words(flows("bert").run(IDS).hidden[-1])) == len(IDS)
    with pytest.raises(UnsupportedError, match="dimension"):
        flows("albert").words(np.ones((1, 24)))


def test_words_are_those_of_the_models_own_head() -> None:
    """Heads with a bias, with a transform and an activation in front, with a cap: words of the last state are the predictions."""
    import torch
    import transformers

    for name, options in (
        ("Bert", {**ENCODER, "pad_token_id": None}),
        ("Albert", {**ENCODER, "pad_token_id": None, "embedding_size": 12}),
        ("Phi", {**NEOX, "pad_token_id": None}),
        ("Gemma2", {**DECODER, "head_dim": 8, "final_logit_softcapping": 2.0}),
    ):
        kind = "ForMaskedLM" if name in ("Bert", "Albert") else "ForCausalLM"
        torch.manual_seed(0)
        model = getattr(transformers, name + kind)(getattr(transformers, f"{name}Config")(**options)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
            truth = model(torch.tensor([IDS])).logits[0].topk(3).indices.tolist()
        flow = checkpoints.flow(model)
        found = flow.words(flow.run(IDS).hidden[-1], 3)
        assert [list(map(int, row)) for row in found] == truth, name
        assert not model.base_model._forward_hooks


def test_final_norm_is_the_module_that_makes_the_last_state(flows) -> None:
    names = {name: flows(name) for name in ("llama", "gpt2", "gpt_neox", "bert")}
    modules = {
        "llama": names["llama"].model.model.norm,
        "gpt2": names["gpt2"].model.transformer.ln_f,
        "gpt_neox": names["gpt_neox"].model.gpt_neox.final_layer_norm,
        "bert": None,
    }
    assert all(flow.final_norm is modules[name] for name, flow in names.items())
    # A state that something else than one module made is not read as if nothing had.
    broken = dataclasses.replace(names["llama"], final_norm=None)
    with pytest.raises(UnsupportedError, match="not one module"):
        broken.words(np.ones((1, 24)))


def test_only_what_unpacking_raises_is_taken_for_an_answer() -> None:
    """Parts that cannot be told apart are one thing, a machine without memory another."""
    from metastable.checkpoints.flows import parts

    flow = checkpoints.flow(build("llama"))
    call, x = flow.probe.calls[0], flow.probe.states[0]

    def failing(error: Exception) -> blocks.Call:
        calls: list[int] = []

        def module(*given: Any, **more: Any) -> Any:
            calls.append(1)
            raise error

        return dataclasses.replace(call, module=_Stub(call.module, module))

    assert parts._can_be_switched(failing(TypeError("cannot unpack")), x, flow.parts[0]) is False
    for error in (MemoryError(), RuntimeError("CUDA error")):
        with pytest.raises(type(error)):
            parts._can_be_switched(failing(error), x, flow.parts[0])


class _Stub:
    """A layer with the submodules of another and a call of its own."""

    def __init__(self, module: Any, call: Any) -> None:
        self.module, self.call = module, call

    def get_submodule(self, name: str) -> Any:
        return self.module.get_submodule(name)

    def __call__(self, *given: Any, **more: Any) -> Any:
        return self.call(*given, **more)


def test_wrong_words(flows) -> None:
    flow = flows("llama")
    state = np.ones((2, 24))
    for hidden, count in (
        (state, 65),
        (state, 0),
        (state, 1.5),
        (np.ones((2, 23)), 1),
        (np.ones((1, 2, 24)), 1),
        (np.zeros((0, 24)), 1),
        ("words", 1),
        (None, 1),
        (np.full((1, 24), np.nan), 1),
    ):
        with pytest.raises(InvalidInputError):
            flow.words(hidden, count)
    assert len(flow.words(state[0], 64)[0]) == 64
    import torch

    assert flow.words(torch.ones(2, 24, requires_grad=True)) == flow.words(state)


def test_special_tokens_stay_where_they_are(flows) -> None:
    """Shuffling a text moves its words: [CLS] and [SEP] stay, and an unknown word is a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"] + [f"w{i}" for i in range(4, 64)]
    made = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk")}
    flow = checkpoints.flow(build("bert"), tokenizer=PreTrainedTokenizerFast(tokenizer_object=made, **special))
    text = " ".join(f"w{i}" for i in range(10, 20)) + " unknown"
    plain = flow.run(text, layer=0).text
    assert (plain[0], plain[-1], plain[-2]) == ("[CLS]", "[SEP]", "[UNK]")
    moved = set()
    for seed in range(6):
        for options in ({"null": "text", "seed": seed}, {"permute": seed}):
            found = flow.run(text, layer=0, **options).text
            assert (found[0], found[-1]) == ("[CLS]", "[SEP]")
            assert sorted(found) == sorted(plain)
            assert found != plain
            moved.add(found.index("[UNK]"))
    assert len(moved) > 1


def test_a_state_between_the_parts_that_leaves_the_numbers_ends_the_run(flows, monkeypatch) -> None:
    """Also where the layer comes back from it."""
    from metastable.checkpoints.flows.field import Field

    inner = Field.middle

    def middle(self: Field, index: int, x: Any) -> tuple[Any, Any]:
        halfway, out = inner(self, index, x)
        return (halfway * float("inf") if index == 1 else halfway), out

    monkeypatch.setattr(Field, "middle", middle)
    run = flows("bert").run(IDS, middle=True)
    assert run.status == "diverged"
    assert run.times.tolist() == [0.0, 0.5, 1.0]
    assert np.isfinite(run.hidden).all()
    with pytest.raises(TokenError, match="not finite"):
        flows("bert").decompose(IDS)


def test_states_that_enter_are_numbers(flows) -> None:
    """Finite weights whose states are not: a named error, not a run of NaN."""
    import torch

    model = copy.deepcopy(build("llama"))
    with torch.no_grad():
        for part in (model.model.layers[0].mlp.down_proj, model.model.layers[0].mlp.up_proj):
            part.weight.mul_(1e30)
        flow = dataclasses.replace(checkpoints.flow(build("llama")), model=model)
    with pytest.raises(TokenError, match="layer 1 are not finite"):
        flow.run(IDS, layer=1)
    run = flow.run(IDS)
    assert (run.status, run.end) == ("diverged", 0.0)
    with pytest.raises(CheckpointError, match="not finite"):
        checkpoints.flow(model)


def test_decomposition(flow) -> None:
    result = flow.decompose(IDS, beta=2.0, drop_first=0)
    run = flow.run(IDS, middle=True) if flow.kind != "parallel" else flow.run(IDS)
    assert result.sizes == {"layer": flow.depth, "part": 2}
    if flow.kind == "parallel":
        x, attention, mlp = (array.astype(float) for array in shares(flow, 1))
        for part, share in (("attention", attention), ("mlp", mlp)):
            angle = ms.sphere.distance(ms.sphere.normalize(x), ms.sphere.normalize(x + share))
            assert float(result["angle"].sel(layer=1, part=part)) == pytest.approx(np.median(angle), rel=1e-3)
        return
    assert len(run.times) == 2 * flow.depth + 1
    for layer in range(flow.depth):
        for number, part in enumerate(("attention", "mlp")):
            before, after = run.states[2 * layer + number], run.states[2 * layer + number + 1]
            row = result.sel(layer=layer, part=part)
            assert float(row["angle"]) == pytest.approx(np.median(ms.sphere.distance(before, after)), abs=1e-6)
            change = ms.analysis.global_energy(after, 2.0) - ms.analysis.global_energy(before, 2.0)
            assert float(row["energy_change"]) == pytest.approx(change, abs=1e-7)
    cosine = run.observe(ms.observe.mean_cosine()).values
    total = result["mean_cosine_change"].sum().item()
    assert total == pytest.approx(cosine[-1] - cosine[0], abs=1e-6)


def test_errors_come_before_work(flows, tmp_path: Path, monkeypatch) -> None:
    flow = flows("llama")
    monkeypatch.setattr(blocks, "record", lambda *given: pytest.fail("work was done"))
    for options, error, words in (
        ({"parts": "attn"}, InvalidInputError, "'attention'"),
        ({"layer": 3}, InvalidInputError, "layers 0 to 2"),
        ({"layer": 0, "layers": [1]}, InvalidInputError, "not both"),
        ({"layers": []}, InvalidInputError, "no layer"),
        ({"step": 0.5, "substeps": 2}, InvalidInputError, "not both"),
        ({"layers": [0, 1], "step": "adaptive"}, InvalidInputError, "one looped layer"),
        ({"layers": [0, 1], "step": 0.3}, TimeError, "1/k"),
        ({"layer": 0, "until": 1.05, "step": 0.1}, TimeError, "whole number of steps"),
        ({"layer": 0, "until": 1.0, "step": 0.1, "times": [0.25]}, TimeError, "multiples"),
        ({"layer": 0, "until": 1.0, "times": [2.0]}, TimeError, "ends at 1"),
        ({"layer": 0, "until": 1.0, "rtol": 1e-9}, InvalidInputError, "float32"),
        ({"temperature": 0.0}, InvalidInputError, "temperature"),
        ({"project": "plane"}, InvalidInputError, "sphere"),
        ({"null": "noise"}, InvalidInputError, "haar"),
        ({"substeps": 2, "middle": True}, InvalidInputError, "whole layers"),
        ({"step": 5e-324}, TimeError, "too short"),
        ({"layer": 0, "until": 1e300, "step": 1e-10}, TimeError, "too many steps"),
        ({"substeps": 2**60}, InvalidInputError, "substeps"),
        ({"layers": slice("a", None)}, InvalidInputError, "slice"),
        ({"layers": slice(None, None, 0)}, InvalidInputError, "slice"),
        ({"layers": [[0, 1]]}, InvalidInputError, "whole number"),
        ({"middle": "yes"}, InvalidInputError, "middle"),
    ):
        with pytest.raises(error, match=words):
            flow.run(IDS, **options)
    with pytest.raises(InvalidInputError, match="tokenizer"):
        flow.run("a text")
    with pytest.raises(ContextLengthError, match="max_tokens=32"):
        flow.run(list(range(1, 40)))
    with pytest.raises(InvalidInputError, match="vocabulary"):
        flow.run([1, 2, 64])
    with pytest.raises(InvalidInputError, match="token ids"):
        flow.run(np.zeros((2, 2, 2, 2)))


def test_models_that_are_refused() -> None:
    import torch
    from transformers import T5Config, T5Model

    broken = copy.deepcopy(build("llama"))
    with torch.no_grad():
        broken.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        checkpoints.flow(broken)
    with pytest.raises(InvalidInputError, match="eval"):
        checkpoints.flow(copy.deepcopy(build("llama")).train())
    with pytest.raises(InvalidInputError, match="transformers model"):
        checkpoints.flow(42)
    with pytest.raises(InvalidInputError, match="device"):
        checkpoints.flow(build("llama"), device="nowhere")
    small = T5Config(d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2, vocab_size=16)
    with pytest.raises(UnknownArchitectureError, match="layers"):
        checkpoints.flow(T5Model(small).eval())


def test_layers_that_cannot_be_told_apart_run_whole() -> None:
    """A layer that weighs its shares is no sum of them: whole layers only, and it says so."""
    import torch

    model = copy.deepcopy(build("llama"))
    layer = model.model.layers[1]
    inner = layer.forward
    layer.forward = lambda x, *given, **more: x + 0.5 * (inner(x, *given, **more) - x)
    flow = checkpoints.flow(model)
    assert flow.kind == "whole"
    assert flow.parts[0] is not None
    run = flow.run(IDS)
    with torch.no_grad():
        truth = model.model(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    assert (run.hidden[2] == truth[2][0].numpy()).all()
    flow.run(IDS, layer=1, until=2.0, step=0.5)
    flow.run(IDS, layer=0, parts="attention")
    with pytest.raises(UnsupportedError, match="whole layers"):
        flow.run(IDS, parts="attention")
    with pytest.raises(UnsupportedError, match="told apart"):
        flow.decompose(IDS)


def test_a_run_that_leaves_the_numbers_says_so(flows) -> None:
    flow = flows("llama")
    run = flow.run(IDS, layer=1, until=3e38, step=1e38)
    assert run.status == "diverged"
    assert run.times.tolist() == [0.0]
    assert np.isfinite(run.states).all()
    stopped = flow.run(IDS, layer=1, until=5.0, step=0.5, max_steps=3)
    assert (stopped.status, stopped.end) == ("max_steps", 1.5)
    assert "3" in stopped.message


def test_other_attention_than_eager() -> None:
    """The flow is the model's own forward pass in any attention; only a temperature needs the kind that shows its weights."""
    model = copy.deepcopy(build("qwen3"))
    model.set_attn_implementation("sdpa")
    flow = checkpoints.flow(model)
    run, truth = flow.run(IDS), forward(model).hidden_states
    assert all((run.hidden[layer] == truth[layer][0].numpy()).all() for layer in range(flow.depth))
    assert flow.kind == "sequential"
    with pytest.raises(UnsupportedError, match="eager"):
        flow.run(IDS, temperature=2.0)


def test_parts_that_share_a_module_are_not_told_apart() -> None:
    """Phi sends attention and MLP through one dropout: switching one off would take the other along, silently."""
    from transformers import PhiConfig, PhiForCausalLM

    config = PhiConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, resid_pdrop=0.0
    )
    model = PhiForCausalLM(config).eval()
    flow = checkpoints.flow(model, tokenizer=None)
    with pytest.raises(UnsupportedError):
        flow.run(IDS, parts="attention")


def test_a_head_that_bypasses_the_base_model_is_refused() -> None:
    """OPT's head calls the decoder itself: states put in place of what the base returns would never reach it."""
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {"hidden_size": 24, "ffn_dim": 32, "word_embed_proj_dim": 24, "vocab_size": 64}
    config = OPTConfig(num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=CONTEXT, **sizes)
    flow = checkpoints.flow(OPTForCausalLM(config).eval())
    with pytest.raises(UnsupportedError, match="base model"):
        flow.words(np.ones((2, 24)))


def test_tokens_are_dropped_from_a_copy(tmp_path):
    """The run itself could not be saved any more: its attributes were those of the copy."""
    run = checkpoints.from_states(np.random.default_rng(0).standard_normal((4, 6, 3)), text=list("abcdef"))
    assert [len(run.drop_first(count).start) for count in (2, 1)] == [4, 5]
    run.save(tmp_path / "run.zarr")
    assert len(type(run)(run.dataset).start) == 6
