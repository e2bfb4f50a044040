"""`flow(source)`: load a model, look at its layers on a short probe, and refuse what cannot be followed."""

from __future__ import annotations

import copy
import math
import os
from typing import Any

import numpy as np

from metastable import _checks
from metastable.checkpoints import arguments
from metastable.checkpoints.flows import blocks
from metastable.checkpoints.flows.flow import Flow
from metastable.checkpoints.flows.parts import Parts, find_parts
from metastable.checkpoints.models import load_runnable
from metastable.errors import CheckpointError, InvalidInputError, missing_extra

DTYPES = ("float32", "float64")
PROBE_TOKENS = 5


def flow(
    source: Any,
    *,
    tokenizer: Any = None,
    dtype: str = "float32",
    device: str | None = None,
    revision: str | None = None,
) -> Flow:
    """A language model's own layers as a flow.

    The model's modules are called as they are: masks, positions, norms and biases included. Any decoder or encoder of transformers with
    one residual stream will do; which parts of a layer add to it is found on a short probe, not in a table of names.

    Args:
        source: a .gguf file, a folder in the transformers layout, `"smollm2"`, `"minilm"`, a hub id, a transformers model in memory,
            or what `load_model` returned.
        tokenizer: for a model in memory.
        dtype: `"float32"` or `"float64"`. Many modules of transformers compute norms and softmax in float32 whatever they are given; in
            float64 the residual stream and the projections are exact, these are not.
        device: where to run, for example `"cuda"`. Default: the CPU, or where a given model is. A model in memory that has another
            precision or is elsewhere is copied: the one that was given stays as it is.
        revision: branch, tag or commit of a hub id.

    Raises:
        CheckpointError: missing, incomplete or damaged, or with weights that are not numbers.
        UnknownArchitectureError, UnsupportedError: the model has no single chain of layers.
    """
    try:
        import torch
    except ImportError:
        raise missing_extra("torch", "transformers", "running a checkpoint's layers") from None
    _checks.choice(dtype, "dtype", DTYPES)
    arguments.tokenizer(tokenizer)
    where = _device(device)
    if isinstance(source, (str, os.PathLike)):
        model, own = load_runnable(source, revision=revision)
        name = os.fspath(source)
    else:
        model: Any
        model, own = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
        if not hasattr(model, "base_model") or not hasattr(model, "config"):
            raise InvalidInputError(
                f"source must be a path, a hub id or a transformers model, not {type(model).__name__}"
            )
        if model.training:
            raise InvalidInputError(
                "the model is in training mode, where dropout makes layers random; call model.eval() first"
            )
        if _must_change(model, getattr(torch, dtype), where):
            model = copy.deepcopy(model)  # the caller's model stays as it is, and where it is
        name = type(model).__name__
    model = model.to(dtype=getattr(torch, dtype), device=where)
    _check_finite(model, name)
    layers = blocks.find_layers(model)
    ids = _probe_ids(model)
    recording = blocks.record(model, layers, ids)
    if not bool(recording.returned.isfinite().all() and recording.last.isfinite().all()):
        raise CheckpointError(
            f"{name}: its states are not finite on a text of {len(ids)} tokens; the checkpoint is damaged, or needs dtype='float64'"
        )
    found: dict[int, Parts | None] = {}
    for call, x in zip(recording.calls, recording.states):
        if id(call.module) not in found:
            found[id(call.module)] = find_parts(call, x)
    return Flow(
        model=model,
        tokenizer=own if tokenizer is None else tokenizer,
        source=name,
        probe=recording,
        parts=tuple(found[id(call.module)] for call in recording.calls),
        final_norm=blocks.find_final_norm(model, layers, ids, recording),
        causal=_is_causal(recording),
    )


def _must_change(model: Any, dtype: Any, where: Any) -> bool:
    """Whether a parameter or buffer of the model has another precision than `dtype`, or is elsewhere than `where` (None: anywhere)."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_floating_point() and tensor.dtype != dtype for tensor in tensors):
        return True
    # "cuda" is whichever GPU: only an index tells two of them apart.
    return where is not None and any(
        tensor.device.type != where.type or where.index not in (None, tensor.device.index) for tensor in tensors
    )


def _device(device: str | None) -> Any:
    """`device` as torch has it, refused where it is not there."""
    import torch

    if device is None:
        return None
    try:
        where = torch.device(device)
        float(torch.zeros(1, device=where))
    except (RuntimeError, AssertionError, TypeError, ValueError, OverflowError, NotImplementedError) as reason:
        raise InvalidInputError(f"device {device!r} cannot be used here: {str(reason).splitlines()[0]}") from None
    return where


def _check_finite(model: Any, name: str) -> None:
    """Refuse weights that are NaN or infinite: one of them makes every state NaN."""
    for path, parameter in model.named_parameters():
        values = parameter.detach()
        # The sum is finite unless an entry is not (or it overflows, which the second look tells apart).
        if not math.isfinite(float(values.sum())) and not bool(values.isfinite().all()):
            raise CheckpointError(f"{name}: {path} holds NaN or infinity; the checkpoint is damaged, download it again")


def _probe_ids(model: Any) -> list[int]:
    """A few token ids that are not padding, spread over the vocabulary."""
    padding = getattr(model.config, "pad_token_id", None)
    size = int(model.config.vocab_size)
    tokens = min(PROBE_TOKENS, int(getattr(model.config, "max_position_embeddings", PROBE_TOKENS) or PROBE_TOKENS))
    ids = [int(i) for i in np.linspace(1, size - 1, tokens + 1)]
    return [i for i in ids if i != padding][:tokens]


def _is_causal(recording: blocks.Recording) -> bool:
    """Whether a change of the last token leaves the first one's next state as it is."""
    import torch

    x = recording.states[0]
    changed = x.clone()
    changed[:, -1] += x.abs().max()
    with torch.no_grad():
        before, after = recording.calls[0](x), recording.calls[0](changed)
    return torch.equal(before[:, 0], after[:, 0])
