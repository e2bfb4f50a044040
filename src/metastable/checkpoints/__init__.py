"""Real transformer checkpoints under the instruments of the theory: spectra of value matrices, geometry of token clouds,
effective temperatures, and real heads as models that can be simulated.

    from metastable import checkpoints

    weights = checkpoints.load_weights("model.gguf")              # or a folder, a .safetensors file, a hub id, a torch module
    spectra = checkpoints.ov_spectra(weights)                     # Figures 5 and 6 of arXiv:2411.04990
    model, tokenizer = checkpoints.load_model("model.gguf")
    states = checkpoints.token_states(model, tokenizer, text)     # (layer, token, feature)
    cloud = checkpoints.to_sphere(states, drop_first=1, drop_dims=3)
    checkpoints.token_geometry(cloud)

Importing this package needs the core only; torch, transformers and gguf (extra `transformers`) are loaded by the functions that
use them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metastable.checkpoints.adapters import Adapter, known_architectures, register
    from metastable.checkpoints.attention import attention_logits, attention_output, attention_weights
    from metastable.checkpoints.cache import cache_folder
    from metastable.checkpoints.dynamics import UnitTokens, as_model, unit_tokens
    from metastable.checkpoints.flows.flow import Flow
    from metastable.checkpoints.flows.handle import FlowRun, from_states
    from metastable.checkpoints.flows.opening import flow
    from metastable.checkpoints.geometry import (
        capture_curves,
        effective_rank,
        exchangeability_test,
        exchangeable_strong_count,
        token_geometry,
    )
    from metastable.checkpoints.meanings.compare import Comparison, compare_heads
    from metastable.checkpoints.meanings.measure import meaning
    from metastable.checkpoints.models import LoadedModel, load_model, perplexity
    from metastable.checkpoints.rope import Rope
    from metastable.checkpoints.sources import load_weights, packaged
    from metastable.checkpoints.spectra import count_leading, layer_spectra, ov_spectra, ov_spectra_null
    from metastable.checkpoints.states import attention_gains, energy_shares, sample_text, to_sphere, token_states
    from metastable.checkpoints.temperature import inverse_temperature, logit_matrix
    from metastable.checkpoints.weights import AttentionWeights, LayerWeights, Norm, random_weights

_HOMES = {
    "adapters": ("Adapter", "known_architectures", "register"),
    "attention": ("attention_logits", "attention_output", "attention_weights"),
    "cache": ("cache_folder",),
    "dynamics": ("UnitTokens", "as_model", "unit_tokens"),
    "flows.flow": ("Flow",),
    "flows.handle": ("FlowRun", "from_states"),
    "flows.opening": ("flow",),
    "geometry": (
        "capture_curves",
        "effective_rank",
        "exchangeability_test",
        "exchangeable_strong_count",
        "token_geometry",
    ),
    "meanings.compare": ("Comparison", "compare_heads"),
    "meanings.measure": ("meaning",),
    "models": ("LoadedModel", "load_model", "perplexity"),
    "rope": ("Rope",),
    "sources": ("load_weights", "packaged"),
    "spectra": ("count_leading", "layer_spectra", "ov_spectra", "ov_spectra_null"),
    "states": ("attention_gains", "energy_shares", "sample_text", "to_sphere", "token_states"),
    "temperature": ("inverse_temperature", "logit_matrix"),
    "weights": ("AttentionWeights", "LayerWeights", "Norm", "random_weights"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Adapter",
    "AttentionWeights",
    "Comparison",
    "Flow",
    "FlowRun",
    "LayerWeights",
    "LoadedModel",
    "Norm",
    "Rope",
    "UnitTokens",
    "as_model",
    "attention_gains",
    "attention_logits",
    "attention_output",
    "attention_weights",
    "cache_folder",
    "capture_curves",
    "compare_heads",
    "count_leading",
    "effective_rank",
    "energy_shares",
    "exchangeability_test",
    "exchangeable_strong_count",
    "flow",
    "from_states",
    "inverse_temperature",
    "known_architectures",
    "layer_spectra",
    "load_model",
    "load_weights",
    "logit_matrix",
    "meaning",
    "ov_spectra",
    "ov_spectra_null",
    "packaged",
    "perplexity",
    "random_weights",
    "register",
    "sample_text",
    "to_sphere",
    "token_geometry",
    "token_states",
    "unit_tokens",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
