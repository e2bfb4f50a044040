"""Whatever the functions of `metastable.checkpoints` are given, they work or raise a named exception that says what was wrong."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from metastable import checkpoints, observe, sweep
from metastable.errors import InvalidInputError, MetastableError, ModelError, SweepError
from metastable.model import Attention

DIM, HEADS, LAYERS, TOKENS = 6, 2, 2, 5
HUGE = 10**30


@pytest.fixture(scope="module")
def good() -> dict:
    """For every public function, arguments that it accepts."""
    weights = checkpoints.random_weights(DIM, HEADS, LAYERS, seed=1)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(LAYERS + 1, TOKENS, DIM))
    states = xr.Dataset(
        {"x": (("layer", "token", "feature"), x)}, coords={"layer": range(LAYERS + 1), "token": range(TOKENS)}
    )
    cloud = checkpoints.to_sphere(states)
    attention = np.full((HEADS, TOKENS, TOKENS), 1 / TOKENS)
    distances = np.arccos(np.clip(cloud.x.values[0] @ cloud.x.values[0].T, -1, 1))
    layer = weights.layer(0)
    return {
        "as_model": {"weights": weights, "layer": 0, "head": 0, "lag": 0.0, "radius": 1.0},
        "attention_gains": {"weights": weights},
        "attention_logits": {"layer": layer, "states": x[0], "rope": None},
        "attention_output": {"layer": layer, "states": x[0], "attention": attention},
        "attention_weights": {"weights": weights, "layer": 0, "states": x[0]},
        "capture_curves": {"states": cloud, "delta": 0.5, "radius": 0.1, "strong": False, "null_samples": 3, "seed": 0},
        "count_leading": {"spectra": checkpoints.ov_spectra(weights)},
        "effective_rank": {"x": x[0]},
        "energy_shares": {"x": x},
        "exchangeability_test": {"states": cloud, "permutations": 5, "seed": 0},
        "exchangeable_strong_count": {"distances": distances, "delta": 0.5},
        "from_states": {"states": x},
        "inverse_temperature": {"weights": weights, "states": states, "lags": (0,), "drop_first": 1, "first_row": 1},
        "layer_spectra": {"weights": weights, "fold_gain": True, "center": None, "layers": [0]},
        "logit_matrix": {"weights": weights, "layer": 0, "head": 0, "lag": 0.0},
        "ov_spectra": {"weights": weights, "fold_gain": True, "center": None, "layers": [0]},
        "ov_spectra_null": {"weights": weights, "kind": "haar", "samples": 1, "seed": 0, "layers": [0]},
        "random_weights": {"dim": 6, "head_count": 2, "layer_count": 1, "head_dim": 3, "deviation": 0.1, "seed": 0},
        "to_sphere": {"states": states, "gain": None, "center": "none", "drop_first": 0, "drop_dims": 1},
        "token_geometry": {"states": cloud, "deltas": [0.5]},
        "unit_tokens": {"weights": weights, "states": states, "layer": 0, "drop_first": 0},
        "Norm": {"kind": "rms", "place": "pre", "epsilon": 1e-6, "gain": np.ones(3), "shift": None},
        "Rope": {"theta": 1e4, "rotary_dim": 2, "kind": "linear", "parameters": (("factor", 2.0),)},
        "Adapter": {"model_types": ("a",), "prefixes": ("",), "probe": "x", "read": print},
        "LayerWeights": {
            "index": 0,
            "query": layer.query,
            "key": layer.key,
            "value": layer.value,
            "output": layer.output,
            "norm": layer.norm,
            "scale": 1.0,
            "query_bias": np.zeros((HEADS, DIM // HEADS)),
        },
    }


NEED_FILES = {
    "cache_folder",
    "compare_heads",
    "flow",
    "known_architectures",
    "load_model",
    "load_weights",
    "meaning",
    "packaged",
    "perplexity",
    "register",
    "sample_text",
    "token_states",
}
"""Tested below, or without arguments."""
RESULTS = {"AttentionWeights", "Comparison", "Flow", "FlowRun", "LoadedModel", "UnitTokens"}

WRONG = [
    None,
    "text",
    b"",
    -1,
    0,
    2.5,
    HUGE,
    float("nan"),
    float("inf"),
    True,
    [],
    [[]],
    {},
    object(),
    np.empty(0),
    np.empty((0, DIM)),
    np.full((TOKENS, DIM), np.nan),
    np.zeros((TOKENS, DIM)),
    np.ones((2, 2, 2, 2)),
    np.ones((TOKENS, DIM), dtype=complex),
    np.array(["a", "b"]),
    xr.Dataset(),
    xr.Dataset({"x": (("layer", "token", "feature"), np.empty((0, 3, 2)))}),
    xr.Dataset({"x": (("layer", "token", "feature"), np.full((3, 5, 6), np.nan))}),
    xr.Dataset({"x": (("layer", "token", "feature"), np.zeros((3, 5, 6)))}),
    xr.Dataset({"x": (("layer", "token", "feature"), np.full((3, 5, 6), "a"))}),
    xr.Dataset({"x": ("layer", np.ones(3))}),
]


def test_every_public_name_is_tried(good):
    assert set(good) | NEED_FILES | RESULTS == set(checkpoints.__all__)
    for name, arguments in good.items():
        getattr(checkpoints, name)(**arguments)


def names() -> list[str]:
    return sorted(set(checkpoints.__all__) - NEED_FILES - RESULTS)


@pytest.mark.parametrize("name", names())
def test_wrong_arguments(good, name):
    """Each argument in turn is replaced by each wrong value: the call works, or its exception has a name and a sentence."""
    refused = 0
    for argument in good[name]:
        for value in WRONG:
            try:
                getattr(checkpoints, name)(**{**good[name], argument: value})
            except MetastableError as error:
                refused += len(str(error)) > 15
            except Exception as error:
                pytest.fail(f"{name}({argument}={value!r}) raises {type(error).__name__}: {error}")
    assert refused >= len(WRONG) // 2


@pytest.mark.parametrize(
    "value", [None, 3, 2.5, b"", b"smollm2", [], {}, object, object(), "a\0b", "~nobody-at-all/x", "a" * 5000]
)
def test_sources_that_are_none(value):
    for function in (checkpoints.load_weights, checkpoints.load_model, checkpoints.packaged):
        with pytest.raises(MetastableError):
            function(value)


def test_wrong_settings_of_sources(tmp_path):
    with pytest.raises(InvalidInputError, match="config must be a table"):
        checkpoints.load_weights(tmp_path, config=3)
    with pytest.raises(InvalidInputError, match="revision"):
        checkpoints.load_weights("someone/something", revision=3)
    with pytest.raises(InvalidInputError, match="takes an Adapter"):
        checkpoints.register(None)


def test_wrong_models_and_texts(tiny, ids):
    model = tiny("gpt2")[0]
    for value in (None, 3, "gpt2", object(), np.ones(3)):
        with pytest.raises(InvalidInputError, match="transformers model"):
            checkpoints.token_states(value, None, ids)
        with pytest.raises(InvalidInputError, match="transformers model"):
            checkpoints.perplexity(value, None, ids)
    for tokenizer in (3, "gpt2", object()):
        with pytest.raises(InvalidInputError, match="tokenizer"):
            checkpoints.token_states(model, tokenizer, ids)
    for text in (None, 3, b"abc", {}, [], [1.5], [None], ["a"], [-1], [HUGE], "a text", np.ones((2, 2))):
        with pytest.raises(InvalidInputError):
            checkpoints.token_states(model, None, text)
    for limit in (0, -1, 2.5, "all", True):
        with pytest.raises(InvalidInputError, match="max_tokens"):
            checkpoints.token_states(model, None, ids, max_tokens=limit)
    with pytest.raises(InvalidInputError, match="attentions"):
        checkpoints.token_states(model, None, ids, attentions="yes")


def test_text_that_is_none(tmp_path: Path):
    """Readers of text elsewhere, which had the same gap."""
    for value in (None, 3, [], object()):
        with pytest.raises(ModelError, match="from_toml takes"):
            Attention.from_toml(value)
        with pytest.raises(ModelError, match="from_json takes"):
            Attention.from_json(value)
        with pytest.raises(SweepError, match="from_toml takes"):
            sweep.Sweep.from_toml(value)
        with pytest.raises(SweepError, match="from_file takes"):
            sweep.Sweep.from_file(value)
    for value in ([], [[]], np.empty((3, 0)), None, "x", 1.0):
        with pytest.raises(InvalidInputError, match="subspace"):
            observe.distance_to(value)


def test_docstrings_are_there():
    for name in checkpoints.__all__:
        assert inspect.getdoc(getattr(checkpoints, name)), name
