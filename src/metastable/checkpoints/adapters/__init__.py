"""One file per architecture family. To add one, write a module here that defines `ADAPTER` (see `llama.py`), or call
`register(adapter)` from your own code.

An adapter knows how a family names and lays out its attention tensors; everything else in `metastable.checkpoints` works on
the `AttentionWeights` it returns.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from metastable.checkpoints.adapters.base import Adapter
from metastable.checkpoints.tensors import PrefixedTensors, TensorStore
from metastable.checkpoints.weights import AttentionWeights
from metastable.errors import CheckpointError, InvalidInputError, UnknownArchitectureError

__all__ = ["Adapter", "adapter_for", "known_architectures", "read_weights", "register"]

_REGISTERED: dict[str, Adapter] = {}


@cache
def _shipped() -> dict[str, Adapter]:
    """The adapters of this folder, by model type."""
    found: dict[str, Adapter] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name == "base":
            continue
        adapter: Adapter = importlib.import_module(f"{__name__}.{module.name}").ADAPTER
        found.update(dict.fromkeys(adapter.model_types, adapter))
    return found


def register(adapter: Adapter) -> None:
    """Makes `adapter` known to `load_weights`; a registered adapter goes before a shipped one of the same model type."""
    if not isinstance(adapter, Adapter):
        raise InvalidInputError(f"register takes an Adapter, not {type(adapter).__name__}")
    _REGISTERED.update(dict.fromkeys(adapter.model_types, adapter))


def known_architectures() -> tuple[str, ...]:
    """Model types (as in config.json) that have an adapter."""
    return tuple(sorted({**_shipped(), **_REGISTERED}))


def adapter_for(config: Mapping[str, Any], source: str) -> Adapter:
    """The adapter of a config's `model_type`."""
    if not isinstance(config, Mapping):
        raise InvalidInputError(f"config must be a table of settings as in config.json, not {type(config).__name__}")
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise CheckpointError(f"{source}: config.json has no model_type; use a checkpoint in the transformers layout")
    adapter = _REGISTERED.get(kind) or _shipped().get(kind)
    if adapter is None:
        raise UnknownArchitectureError(
            f"{source} has the architecture {kind!r}, which has no adapter; known: {', '.join(known_architectures())}. "
            "To add one, write a file like metastable/checkpoints/adapters/llama.py, or pass an Adapter to "
            "metastable.checkpoints.register"
        )
    return adapter


def read_weights(config: Mapping[str, Any], store: TensorStore) -> AttentionWeights:
    """`AttentionWeights` from a config and its tensors."""
    adapter = adapter_for(config, store.source)
    for prefix in adapter.prefixes:
        if prefix + adapter.probe in store.names:
            try:
                return adapter.read(config, PrefixedTensors(store, prefix))
            except InvalidInputError as reason:
                raise CheckpointError(
                    f"{store.source}: config.json does not describe a transformer: {reason}"
                ) from reason
    wanted = " or ".join(repr(prefix + adapter.probe) for prefix in adapter.prefixes)
    raise CheckpointError(
        f"{store.source} says it is {config.get('model_type')!r} but lacks the tensor {wanted}; it is half downloaded, quantised "
        "in a packed format, or its config.json belongs to another checkpoint"
    )
