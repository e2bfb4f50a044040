"""Real heads as models of the theory: their attention sum is the layer's output, and they can be simulated."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest

import metastable as ms
from metastable import checkpoints, errors
from metastable.kernels.reference import attention_sum
from metastable.model import Causal, Full, PostLN, PreLN

from .conftest import FAMILIES


@pytest.fixture(scope="module")
def gpt2():
    """A tiny GPT-2 whose query bias is zero, the one term that matrices alone cannot express."""
    import torch

    from .conftest import randomised

    model = randomised(FAMILIES["gpt2"].build(), seed=3)
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.bias[:24] = 0.0
            block.ln_1.bias.zero_()
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_the_layers_own(tiny, ids, family) -> None:
    """Low rank, shared keys, rotary positions and all biases are kept: the update is the layer's own, and nothing is dropped."""
    model, folder = tiny(family)
    weights = checkpoints.load_weights(folder)
    states = checkpoints.token_states(model, None, ids)
    for layer in range(weights.layer_count):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            attention = checkpoints.as_model(weights, layer, radius=2.0)
        stored = weights.layer(layer)
        x = states["x"].values[layer].astype(np.float64)
        z = stored.norm.standardize(x)
        truth = checkpoints.attention_output(stored, x, checkpoints.attention_weights(weights, layer, x))
        radius = 2.0
        if stored.norm.kind == "layer":
            truth = truth - truth.mean(axis=-1, keepdims=True)
        if stored.norm.place == "post" and stored.norm.gain is not None:
            radius *= float(np.sqrt(np.mean(stored.norm.gain**2)))
        ours = radius * np.sqrt(weights.dim) * attention_sum(attention, z / np.sqrt(weights.dim), 0)
        # Behind a norm the model's float32 states have mean zero up to float32's rounding only.
        np.testing.assert_allclose(ours, truth, atol=1e-6 if stored.norm.place == "post" else 1e-9)
        for head, one in enumerate(attention.all_heads):
            assert one.value.shape == (weights.head_dim, weights.dim)
            expected = np.linalg.norm(checkpoints.logit_matrix(weights, layer, head, 0)) / np.sqrt(weights.dim)
            assert one.beta == pytest.approx(expected, rel=1e-12)
        assert ms.Attention.from_dict(attention.to_dict()) == attention


def _in_double(model, rope) -> None:
    """A model of transformers in double precision, tables of rotary positions (which it keeps in single) included."""
    import torch

    model.double()
    for module in model.modules():
        if not type(module).__name__.endswith("RotaryEmbedding"):
            continue

        def tables(x, position_ids, *_, **__):
            angle = np.outer(position_ids[0].numpy(), rope.frequencies)
            both = np.concatenate([angle, angle], axis=1)
            return torch.tensor(np.cos(both))[None], torch.tensor(np.sin(both))[None]

        module.forward = tables


@pytest.mark.parametrize("family", FAMILIES)
def test_models_are_transformers_own_attention(family, ids) -> None:
    """To 1e-12 in double precision: what the modules of transformers make of what they read."""
    import torch

    from .conftest import randomised

    model = randomised(FAMILIES[family].build(), seed=5)
    weights = checkpoints.load_weights(model.double())
    _in_double(model, weights.rope)
    model.set_attn_implementation("sdpa")  # the eager one makes its softmax in single precision
    layers = sorted(set(weights.stored_layer))
    read, written = {}, {}

    def reads(_, args, options, layer):
        read.setdefault(layer, args[0] if args else options["hidden_states"])

    def writes(_, __, out, layer):
        written.setdefault(layer, out[0] if isinstance(out, tuple) else out)

    for layer in layers:
        module, attention = _attention_modules(model, FAMILIES[family].output.format(layer))
        module.register_forward_hook(partial(writes, layer=layer))
        attention.register_forward_pre_hook(partial(reads, layer=layer), with_kwargs=True)
    with torch.no_grad():
        model(torch.tensor([ids]))
    for layer in layers:
        number = weights.stored_layer.index(layer)
        norm = weights.layer(number).norm
        hidden, theirs = (item[layer].reshape(len(ids), -1).numpy() for item in (read, written))
        z = (hidden - (0.0 if norm.shift is None else norm.shift)) / (1.0 if norm.gain is None else norm.gain)
        radius = float(np.sqrt(np.mean(norm.gain**2))) if norm.place == "post" and norm.gain is not None else 1.0
        if norm.kind == "layer":
            theirs = theirs - theirs.mean(axis=-1, keepdims=True)
        ours = (
            radius
            * np.sqrt(weights.dim)
            * attention_sum(checkpoints.as_model(weights, number), z / np.sqrt(weights.dim))
        )
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())


def _attention_modules(model, name: str):
    """The module `name`, which writes what attention makes, and the one that reads its input: the same, or the one around it."""
    outer = name[: name.index(".attention") + len(".attention")] if name.endswith("dense") else name
    return model.get_submodule(name), model.get_submodule(outer)


def test_attention_sum_is_the_layers_output(gpt2, ids) -> None:
    """Without rotary positions and query biases the model's attention update IS that of matrices, exactly."""
    weights = checkpoints.load_weights(gpt2)
    states = checkpoints.token_states(gpt2, None, ids, attentions=True)
    for layer in range(weights.layer_count):
        model = checkpoints.as_model(weights, layer, lag=0)
        tokens = checkpoints.unit_tokens(weights, states, layer)
        x = states["x"].values[layer].astype(np.float64)
        stored = weights.layer(layer)
        z = stored.norm.standardize(x)
        # The model's own norm divides by sqrt(var + epsilon): its tokens are shorter than unit by 1e-5 or so.
        assert np.abs(z / np.sqrt(weights.dim) - tokens.x).max() < 1e-3
        truth = checkpoints.attention_output(stored, x, checkpoints.attention_weights(weights, layer, x))
        truth = truth - truth.mean(axis=-1, keepdims=True)
        ours = np.sqrt(weights.dim) * attention_sum(model, z / np.sqrt(weights.dim), 0)
        np.testing.assert_allclose(ours, truth, atol=1e-9)
        assert isinstance(model.norm, PreLN)
        assert isinstance(model.mask, Causal)
        np.testing.assert_allclose(
            tokens.radius * np.sqrt(weights.dim), np.linalg.norm(x - x.mean(-1, keepdims=True), axis=1)
        )


def test_one_head_carries_its_temperature_and_value(tiny) -> None:
    weights = checkpoints.load_weights(tiny("llama")[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it has no query biases, so nothing is dropped
        model = checkpoints.as_model(weights, 1, 4, lag=2, radius=3.0)
    (head,) = model.all_heads
    expected = checkpoints.logit_matrix(weights, 1, 4, 2)
    assert head.bilinear is not None
    assert head.value is not None
    np.testing.assert_allclose(head.beta * head.bilinear, expected, atol=1e-12)
    assert head.beta == pytest.approx(float(checkpoints.inverse_temperature(weights, lags=(2,))["beta_F"][1, 4, 0]))
    np.testing.assert_allclose(head.value, weights.layer(1).fold().value_matrix(4) / 3.0, atol=1e-12)
    assert len(checkpoints.as_model(weights, 1).all_heads) == 6


def test_encoders_are_full_and_post_norm(tiny, ids) -> None:
    model, folder = tiny("bert")
    weights = checkpoints.load_weights(folder)
    with pytest.warns(errors.DroppedPartWarning, match="query biases"):
        attention = checkpoints.as_model(weights, 0, lag=0)
    assert isinstance(attention.mask, Full)
    assert isinstance(attention.norm, PostLN)
    tokens = checkpoints.unit_tokens(weights, checkpoints.token_states(model, None, ids), 0, drop_first=1)
    assert tokens.x.shape == (len(ids) - 1, weights.dim)
    np.testing.assert_allclose(np.linalg.norm(tokens.x, axis=1), 1)
    np.testing.assert_allclose(tokens.x.mean(axis=1), 0, atol=1e-12)


def test_a_dead_head_has_temperature_zero() -> None:
    weights = checkpoints.random_weights(8, 2, seed=0)
    from dataclasses import replace

    layer = weights.layer(0)
    dead = replace(layer, query=np.zeros_like(layer.query))
    model = checkpoints.as_model(replace(weights, loader=lambda index: dead), 0, 1)
    assert model.all_heads[0].beta == 0
    assert checkpoints.as_model(replace(weights, loader=lambda index: dead), 0, 1, lag=0).all_heads[0].beta == 0
    # A bias of the query alone still makes logits.
    seeing = replace(dead, query_bias=np.ones(dead.query.shape[:2]))
    seeing_weights = replace(weights, loader=lambda index: seeing)
    x = np.random.default_rng(0).normal(size=(7, weights.dim))
    truth = checkpoints.attention_output(seeing, x, checkpoints.attention_weights(seeing_weights, 0, x))
    unit = seeing.norm.standardize(x) / np.sqrt(weights.dim)
    ours = np.sqrt(weights.dim) * attention_sum(checkpoints.as_model(seeing_weights, 0), unit, 0)
    if seeing.norm.kind == "layer":
        truth = truth - truth.mean(axis=-1, keepdims=True)
    np.testing.assert_allclose(ours, truth, atol=1e-9)


def test_real_states_can_be_simulated_side_by_side(gpt2, ids) -> None:
    """A stack of layers, one unit of depth each, as the attention-only shadow of the model."""
    weights = checkpoints.load_weights(gpt2)
    states = checkpoints.token_states(gpt2, None, ids)
    tokens = checkpoints.unit_tokens(weights, states, 0)
    radius = float(np.median(tokens.radius))
    layers = [checkpoints.as_model(weights, layer, radius=radius) for layer in range(weights.layer_count)]
    run = ms.simulate(layers, tokens.x, method="layers", step=1.0, engine="reference")
    assert run.status == "success"
    assert run.final.shape == tokens.x.shape
    np.testing.assert_allclose(np.linalg.norm(run.final, axis=1), 1)
    head = ms.simulate(checkpoints.as_model(weights, 0, 0, radius=radius), tokens.x, until=1.0, engine="reference")
    assert head.status == "success"
    prediction = ms.predict(checkpoints.as_model(weights, 0, 0, lag=0).replace(norm=PostLN()))
    spectra = checkpoints.ov_spectra(weights)
    assert (prediction.row or 0) == int(spectra["atlas_row_with_kernel"][0, 0])
