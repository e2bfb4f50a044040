"""The two checkpoints that Python packages carry: loaders against transformers' own, and the findings recorded for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metastable import checkpoints
from metastable.checkpoints.cache import converted_folder
from metastable.checkpoints.gguf_file import GgufFile
from metastable.checkpoints.tensors import SafetensorsFile


def test_gguf_weights_equal_transformers_own_loader(smollm2_cache: Path, smollm2) -> None:
    """All tensors, bit for bit: query and key rows un-permuted, quantisation undone."""
    # The part of from_pretrained(gguf_file=...) that reads the file; the rest of it needs accelerate.
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = checkpoints.packaged("smollm2")
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=smollm2.model)["tensors"]
    ours = smollm2.model.state_dict()
    assert len(theirs) == 272
    assert set(ours) == {*theirs, "lm_head.weight"}
    assert (ours["lm_head.weight"] == ours["model.embed_tokens.weight"]).all()
    for name, tensor in theirs.items():
        assert (ours[name] == tensor).all(), name
    stored = SafetensorsFile(converted_folder(path) / "model.safetensors")
    direct = GgufFile(path)
    assert stored.names == direct.names
    for name in (
        "model.layers.7.self_attn.q_proj.weight",
        "model.layers.29.self_attn.k_proj.weight",
        "model.norm.weight",
    ):
        np.testing.assert_array_equal(stored.load(name), direct.load(name))


def test_conversion_is_found_again(smollm2_cache: Path, smollm2, monkeypatch) -> None:
    from metastable.checkpoints import cache as conversions

    def refuse(*arguments):
        raise AssertionError("converted a second time")

    monkeypatch.setattr(conversions, "write_safetensors", refuse)
    folder = conversions.convert_gguf(checkpoints.packaged("smollm2"))
    assert folder.is_relative_to(smollm2_cache)
    assert sorted(file.name for file in folder.glob("*.json"))[:2] == ["config.json", "tokenizer.json"]
    assert not list(smollm2_cache.rglob(".unfinished-*"))
    assert checkpoints.load_weights("smollm2").source.endswith(".gguf")


def test_perplexity_says_that_the_model_was_read_correctly(smollm2) -> None:
    paragraph = checkpoints.sample_text().split("\n\n")[0]
    model, tokenizer = smollm2
    assert checkpoints.perplexity(model, tokenizer, paragraph) < 40
    assert checkpoints.perplexity(model, tokenizer, checkpoints.sample_text(), max_tokens=256) < 40
    words = paragraph.split()
    shuffled = " ".join(np.random.default_rng(0).permutation(words))
    assert checkpoints.perplexity(model, tokenizer, shuffled) > 170


def test_attention_of_smollm2(smollm2, smollm2_states, smollm2_cache: Path) -> None:
    weights = checkpoints.load_weights("smollm2")
    for layer in (0, 7, 29):
        x = smollm2_states["x"].values[layer].astype(np.float64)
        ours = checkpoints.attention_weights(weights, layer, x)
        assert np.abs(ours - smollm2_states["attention"].values[layer]).max() < 1e-5
    layer, head, query = 7, 2, 100
    unit = weights.layer(layer).norm.standardize(smollm2_states["x"].values[layer].astype(np.float64)) / np.sqrt(576)
    logits = np.array(
        [
            unit[query] @ checkpoints.logit_matrix(weights, layer, head, query - key) @ unit[key]
            for key in range(query + 1)
        ]
    )
    weight = np.exp(logits - logits.max())
    weight /= weight.sum()
    assert np.abs(weight - smollm2_states["attention"].values[layer, head, query, : query + 1]).max() < 1e-5


def test_decomposition_of_smollm2(smollm2, smollm2_cache: Path) -> None:
    kept = {}
    hook = smollm2.model.model.layers[7].self_attn.register_forward_hook(
        lambda module, given, result: kept.update(y=result[0][0].double().numpy())
    )
    states = checkpoints.token_states(*smollm2, checkpoints.sample_text(), max_tokens=64, attentions=True)
    hook.remove()
    layer = checkpoints.load_weights("smollm2").layer(7)
    ours = checkpoints.attention_output(layer, states["x"].values[7], states["attention"].values[7])
    assert np.linalg.norm(ours - kept["y"]) < 1e-5 * np.linalg.norm(kept["y"])


def test_spectra_of_smollm2(smollm2_cache: Path) -> None:
    weights = checkpoints.load_weights("smollm2")
    assert (weights.layer_count, weights.dim, weights.head_count, weights.kv_head_count) == (30, 576, 9, 3)
    spectra = checkpoints.ov_spectra(weights)
    counts = checkpoints.count_leading(spectra)
    assert (counts.real_positive, counts.real_negative, counts.complex_positive, counts.complex_negative) == (
        163,
        13,
        93,
        1,
    )
    assert (counts.all_negative, counts.all_positive) == (14, 32)
    null = checkpoints.ov_spectra_null(weights, layers=list(range(0, 30, 3)))
    bound = checkpoints.count_leading(null)
    assert bound.real_negative == bound.complex_negative == 0
    assert bound.sign_score_deviation == pytest.approx(0.024, abs=0.006)
    head = weights.layer(3).fold()
    full = np.linalg.eigvals(head.value_matrix(5))
    full = full[np.argsort(-np.abs(full))][:64]
    ours = spectra["eigenvalue"].values[3, 5]
    np.testing.assert_allclose(np.sort_complex(ours), np.sort_complex(full), atol=1e-10)


def test_spectra_and_temperature_of_minilm() -> None:
    weights = checkpoints.load_weights("minilm")
    counts = checkpoints.count_leading(checkpoints.ov_spectra(weights))
    assert (counts.real_positive, counts.real_negative, counts.complex_positive, counts.complex_negative) == (
        39,
        3,
        28,
        2,
    )
    assert float(checkpoints.inverse_temperature(weights)["beta_F"].median()) == pytest.approx(20, abs=1)


def test_temperature_of_smollm2(smollm2_states, smollm2_cache: Path) -> None:
    result = checkpoints.inverse_temperature(checkpoints.load_weights("smollm2"), smollm2_states)
    assert float(result["beta_F"].median()) == pytest.approx(46, abs=1)
    # 29 at 512 tokens (the documentation's number); shorter texts give less.
    assert 15 < float(result["beta_data"].median()) < 35
    assert float(result["r_squared"].median()) < 0.15


def test_geometry_of_smollm2(smollm2_states) -> None:
    """The sink and the outlier dimensions, which make plain cosines mislead."""
    norms = smollm2_states["norm"].values
    ratio = norms[:, 0] / np.median(norms, axis=1)
    assert ratio[12] > 100
    shares = np.sort(checkpoints.energy_shares(smollm2_states["x"].values[:, 1:]), axis=-1)[:, -3:].sum(axis=-1)
    assert shares[2:].min() > 0.4
    assert shares.max() < 0.75
    every_fifth = smollm2_states.isel(layer=slice(5, 30, 5))
    plain = checkpoints.token_geometry(checkpoints.to_sphere(every_fifth, drop_first=1), [1.0])["mean_cosine"].values
    without = checkpoints.token_geometry(checkpoints.to_sphere(every_fifth, drop_first=1, drop_dims=3), [1.0])
    centred = checkpoints.token_geometry(checkpoints.to_sphere(every_fifth, drop_first=1, center="tokens"), [1.0])
    assert (plain > 0.45).all()
    assert (without["mean_cosine"].values < 0.4).all()
    assert (np.abs(centred["mean_cosine"].values) < 0.06).all()


def test_states_of_minilm() -> None:
    model, tokenizer = checkpoints.load_model("minilm")
    states = checkpoints.token_states(model, tokenizer, "A short sentence.", attentions=True)
    assert list(states["text"].values) == ["[CLS]", "a", "short", "sentence", ".", "[SEP]"]
    weights = checkpoints.load_weights("minilm")
    for layer in range(6):
        ours = checkpoints.attention_weights(weights, layer, states["x"].values[layer])
        assert np.abs(ours - states["attention"].values[layer]).max() < 1e-5
    assert checkpoints.token_states(model, tokenizer, "A b", special_tokens=False).sizes["token"] == 2
