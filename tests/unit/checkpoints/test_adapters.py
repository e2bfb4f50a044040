"""Every adapter against the model it describes: tiny random models, saved and read back through the real loaders."""

from __future__ import annotations

import numpy as np
import pytest

from metastable import checkpoints
from metastable.errors import ContextLengthError, InvalidInputError, UnknownArchitectureError

from .conftest import FAMILIES

NAMES = tuple(FAMILIES)


def hooked_states(model, ids, pattern: str, layers: int):
    """token_states, and the output of every layer's attention (sublayer by sublayer where weights are shared)."""
    outputs, hooks = [], []

    def keep(module, given, result):
        outputs.append((result[0] if isinstance(result, tuple) else result)[0].double().numpy())

    for layer in range(layers):
        try:
            hooks.append(model.get_submodule(pattern.format(layer)).register_forward_hook(keep))
        except AttributeError:
            break
    states = checkpoints.token_states(model, None, ids, attentions=True)
    for hook in hooks:
        hook.remove()
    return states, outputs


@pytest.mark.parametrize("name", NAMES)
def test_decomposition_into_value_matrices_is_the_attention_output(tiny, ids, name: str) -> None:
    model, folder = tiny(name)
    weights = checkpoints.load_weights(folder)
    states, outputs = hooked_states(model, ids, FAMILIES[name].output, weights.layer_count)
    assert states.sizes["layer"] == weights.layer_count + 1
    assert len(outputs) == weights.layer_count
    for layer in weights.layers():
        x = states["x"].values[layer.index].astype(np.float64)
        attention = states["attention"].values[layer.index]
        ours = checkpoints.attention_output(layer, x, attention)
        assert np.abs(ours - outputs[layer.index]).max() < 1e-5 * max(1.0, np.abs(outputs[layer.index]).max())
        if layer.value_bias is None and layer.output_bias is None:
            z = layer.norm.standardize(x)
            by_hand = sum(
                attention[h].astype(np.float64) @ z @ layer.fold().value_matrix(h).T for h in range(layer.head_count)
            )
            np.testing.assert_allclose(by_hand, ours, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_attention_weights_are_the_models(tiny, ids, name: str) -> None:
    model, folder = tiny(name)
    weights = checkpoints.load_weights(folder)
    states = checkpoints.token_states(model, None, ids, attentions=True)
    for layer in range(weights.layer_count):
        ours = checkpoints.attention_weights(weights, layer, states["x"].values[layer])
        assert np.abs(ours - states["attention"].values[layer]).max() < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_module_folder_and_reloaded_model_agree(tiny, ids, name: str) -> None:
    model, folder = tiny(name)
    from_module, from_folder = checkpoints.load_weights(model), checkpoints.load_weights(folder)
    assert from_module.architecture == from_folder.architecture == model.config.model_type
    for one, two in zip(from_module.layers(), from_folder.layers()):
        for field in ("query", "key", "value", "output", "query_bias", "value_bias", "output_bias"):
            a, b = getattr(one, field), getattr(two, field)
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_array_equal(a, b)
    reloaded, tokenizer = checkpoints.load_model(folder)
    assert tokenizer is None
    ours = checkpoints.token_states(reloaded, None, ids)
    np.testing.assert_allclose(ours["x"].values, checkpoints.token_states(model, None, ids)["x"].values, atol=1e-5)


def test_albert_shares_layers(tiny) -> None:
    weights = checkpoints.load_weights(tiny("albert")[1])
    assert weights.stored_layer == (0, 0, 1, 1)
    first, second = weights.layer(0), weights.layer(1)
    np.testing.assert_array_equal(first.query, second.query)
    assert first.norm.kind == "none"
    assert second.norm.kind == "layer"


def test_mistral_window_is_kept(tiny) -> None:
    from metastable.model import Window

    weights = checkpoints.load_weights(tiny("mistral")[1])
    assert weights.window == 5
    assert checkpoints.as_model(weights, 0).mask == Window(5)


def test_last_states_are_before_the_final_norm(tiny, ids) -> None:
    import torch

    model, _ = tiny("gpt2")
    states = checkpoints.token_states(model, None, ids)
    with torch.no_grad():
        after = model.transformer(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
        normed = model.transformer.ln_f(torch.tensor(states["x"].values[-1]))
    assert np.abs(normed.numpy() - after.numpy()).max() < 1e-5
    assert np.abs(states["x"].values[-1] - after.numpy()).max() > 0.1


def test_unknown_architecture_says_what_is_known_and_how_to_add_one() -> None:
    from transformers import OPTConfig, OPTForCausalLM

    model = OPTForCausalLM(
        OPTConfig(
            hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=8, word_embed_proj_dim=16
        )
    )
    with pytest.raises(UnknownArchitectureError, match=r"'opt'.*known: albert, bert.*register"):
        checkpoints.load_weights(model)


def test_registered_adapter_is_used(tiny, monkeypatch) -> None:
    from metastable.checkpoints import adapters

    monkeypatch.setattr(adapters, "_REGISTERED", {})
    shipped = adapters.adapter_for({"model_type": "llama"}, "test")
    own = checkpoints.Adapter(("my_llama",), shipped.prefixes, shipped.probe, shipped.read, shipped.final_norm)
    checkpoints.register(own)
    assert "my_llama" in checkpoints.known_architectures()
    model, _ = tiny("llama")
    config = {**model.config.to_dict(), "model_type": "my_llama"}
    assert checkpoints.load_weights(model, config=config).architecture == "my_llama"
    with pytest.raises(InvalidInputError, match="Adapter"):
        checkpoints.register("llama")  # type: ignore[arg-type]


def test_text_longer_than_the_context_is_refused_with_the_fix(tiny) -> None:
    model, _ = tiny("bert")
    long = [1] * 40
    with pytest.raises(ContextLengthError, match=r"40 tokens.*holds 32.*max_tokens=32"):
        checkpoints.token_states(model, None, long)
    assert checkpoints.token_states(model, None, long, max_tokens=32).sizes["token"] == 32


def test_bad_calls_say_the_fix(tiny, ids) -> None:
    model, folder = tiny("llama")
    weights = checkpoints.load_weights(folder)
    with pytest.raises(InvalidInputError, match="no tokenizer"):
        checkpoints.token_states(model, None, "some text")
    with pytest.raises(InvalidInputError, match="outside the vocabulary"):
        checkpoints.token_states(model, None, [1000])
    with pytest.raises(InvalidInputError, match="layers 0 to 2"):
        weights.layer(3)
    with pytest.raises(InvalidInputError, match="heads 0 to 5"):
        checkpoints.as_model(weights, 0, 6)
    with pytest.raises(InvalidInputError, match="torch module"):
        checkpoints.load_weights(3)
    with pytest.raises(InvalidInputError, match="no perplexity"):
        checkpoints.perplexity(tiny("bert")[0], None, ids)


def test_yarn_is_refused_only_where_it_is_needed(tiny, ids) -> None:
    from metastable.errors import UnsupportedError

    model, _ = tiny("llama")
    config = {**model.config.to_dict(), "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}
    weights = checkpoints.load_weights(model, config=config)
    assert checkpoints.ov_spectra(weights).sizes["head"] == 6
    states = checkpoints.token_states(model, None, ids)
    with pytest.raises(UnsupportedError, match="yarn"):
        checkpoints.inverse_temperature(weights, states, first_row=2)


def test_importing_needs_the_core_only() -> None:
    import subprocess
    import sys

    code = (
        "import sys, metastable.checkpoints as c; c.ov_spectra; c.load_weights; c.token_states; "
        "heavy = {'torch', 'transformers', 'gguf', 'safetensors', 'huggingface_hub', 'matplotlib'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
