"""Effective inverse temperatures: closed forms at initialisation, and logits that reproduce the model's attention."""

from __future__ import annotations

import numpy as np
import pytest

from metastable import checkpoints
from metastable.errors import InvalidInputError


def test_beta_of_random_initialisation() -> None:
    """beta_F -> sigma^2 d^1.5: |A|_F^2 = (d^2/d_head) |Q^T K|_F^2 with E|Q^T K|_F^2 = sigma^4 d^2 d_head."""
    weights = checkpoints.random_weights(576, 9, 2, kv_head_count=3, deviation=0.02, seed=0)
    result = checkpoints.inverse_temperature(weights)
    expected = 0.02**2 * 576**1.5
    assert expected == pytest.approx(5.53, abs=0.005)
    assert float(result["beta_F"].median()) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", ["llama", "llama3 rope", "mistral"])
def test_softmax_of_the_logit_matrix_is_the_attention_with_rotary_positions(tiny, ids, name: str) -> None:
    model, folder = tiny(name)
    weights = checkpoints.load_weights(folder)
    states = checkpoints.token_states(model, None, ids, attentions=True)
    window = weights.window or len(ids)
    layer, head = 1, 3
    z = weights.layer(layer).norm.standardize(states["x"].values[layer].astype(np.float64))
    unit = z / np.sqrt(weights.dim)
    for query in range(len(ids)):
        keys = range(max(0, query - window + 1), query + 1)
        logits = np.array(
            [unit[query] @ checkpoints.logit_matrix(weights, layer, head, query - key) @ unit[key] for key in keys]
        )
        weight = np.exp(logits - logits.max())
        weight /= weight.sum()
        theirs = states["attention"].values[layer, head, query, keys.start : query + 1]
        assert np.abs(weight - theirs).max() < 1e-5


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "bert"])
def test_temperatures_from_small_matrices_are_those_of_the_large_ones(tiny, name: str) -> None:
    weights = checkpoints.load_weights(tiny(name)[1])
    result = checkpoints.inverse_temperature(weights, lags=(0, 3))
    for layer in (0, weights.layer_count - 1):
        for head in (0, weights.head_count - 1):
            for lag in (0, 3):
                matrix = checkpoints.logit_matrix(weights, layer, head, lag)
                row = result.sel(layer=layer, head=head, lag=lag)
                assert float(row["beta_F"]) == pytest.approx(np.linalg.norm(matrix) / np.sqrt(weights.dim), rel=1e-9)
                assert float(row["beta_op"]) == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-9)
                assert float(row["trace"]) == pytest.approx(np.trace(matrix) / weights.dim, rel=1e-9, abs=1e-12)


def test_data_temperature_of_the_theorys_own_head() -> None:
    """A head with A = beta I has beta_data = slope = beta and R^2 = 1, whatever the tokens."""
    import xarray as xr

    from metastable.checkpoints.weights import AttentionWeights, LayerWeights, Norm

    dim, beta = 16, 7.5
    eye = np.eye(dim)[None]
    layer = LayerWeights(0, beta / dim * eye, eye, eye, eye, Norm("rms", "pre", 0.0), 1.0)
    weights = AttentionWeights(
        "made up", "test", dim, 1, 1, dim, 1, True, "rms", "pre", None, lambda index: layer, (0,)
    )
    x = np.random.default_rng(0).normal(size=(2, 40, dim))
    states = xr.Dataset({"x": (("layer", "token", "feature"), x)})
    result = checkpoints.inverse_temperature(weights, states).isel(layer=0, head=0, lag=0)
    for name in ("beta_F", "beta_op", "trace", "beta_data", "slope"):
        assert float(result[name]) == pytest.approx(beta, rel=1e-9)
    assert float(result["r_squared"]) == pytest.approx(1)
    assert 0 < float(result["sink_mass"]) < 1
    assert 1 <= float(result["attention_perplexity"]) <= 40


def test_states_must_belong_to_the_weights(tiny, ids) -> None:
    weights = checkpoints.load_weights(tiny("llama")[1])
    states = checkpoints.token_states(tiny("gpt_neox")[0], None, ids)
    with pytest.raises(InvalidInputError, match="same model"):
        checkpoints.inverse_temperature(weights, states)
    short = checkpoints.token_states(tiny("llama")[0], None, ids[:5])
    with pytest.raises(InvalidInputError, match="at least 10"):
        checkpoints.inverse_temperature(weights, short)
    with pytest.raises(InvalidInputError, match="lags"):
        checkpoints.inverse_temperature(weights, lags=())
