"""A checkpoint as a model that can be run: float32, eager attention (the only kind that returns attention weights)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from metastable._checks import count, flag
from metastable.checkpoints import arguments
from metastable.checkpoints.adapters import adapter_for
from metastable.checkpoints.cache import convert_gguf
from metastable.checkpoints.library import library
from metastable.checkpoints.sources import open_folder, read_config, resolve
from metastable.errors import CheckpointError, ContextLengthError, InvalidInputError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.txt", "vocab.json")
UNUSED_PARTS = ("pooler",)
"""Parts that hidden states do not pass through: a checkpoint may lack them."""


class LoadedModel(NamedTuple):
    """A transformers model in evaluation mode and its tokenizer (None when the checkpoint has none)."""

    model: Any
    tokenizer: Any


def load_model(source: str | os.PathLike[str], *, revision: str | None = None) -> LoadedModel:
    """Model and tokenizer of a checkpoint, ready for `token_states`.

    A GGUF file is converted once to a folder in the user's cache (see `metastable.checkpoints.cache`). Weights come from
    safetensors only. A checkpoint that leaves parameters of the model unset is refused: transformers would fill them with
    random numbers.

    Args:
        source: a .gguf file, a folder in the transformers layout, `"smollm2"`, `"minilm"`, or a hub id.
        revision: branch, tag or commit of a hub id.
    """
    return load_runnable(source, revision=revision, check=lambda config: adapter_for(config, str(source)))


def load_runnable(
    source: str | os.PathLike[str], *, revision: str | None = None, check: Callable[[dict[str, Any]], Any] | None = None
) -> LoadedModel:
    """`load_model` for any architecture that transformers can build; `check` may refuse its config before the weights are read."""
    transformers = library("running a checkpoint")
    place = resolve(source, revision)
    if place.weights is not None and place.weights.name != "model.safetensors":
        raise CheckpointError(f"to run a model give its folder, {place.path}, with the weights named model.safetensors")
    folder = convert_gguf(place.path) if place.kind == "gguf" else place.path
    config = read_config(folder)
    if check is not None:
        check(config)
    open_folder(folder)
    for builder in _builders(transformers, config.get("architectures") or ()):
        model, report = _build(builder, folder)
        missing = [name for name in report["missing_keys"] if not any(part in name for part in UNUSED_PARTS)]
        if not missing:
            break
    if missing:
        raise CheckpointError(
            f"{source} leaves {len(missing)} parameters unset, first {sorted(missing)[0]!r}; the checkpoint is incomplete, "
            "download it again"
        )
    model = model.float().eval()
    return LoadedModel(model, _tokenizer(folder))


def _builders(transformers: Any, architectures: Iterable[Any]) -> list[Any]:
    """What builds a checkpoint with the head that it was saved with, the first choice first.

    Models saved `ForPreTraining` have a masked language model's head (BERT, ALBERT) or another one (ELECTRA), which is left out.
    """
    names = tuple(str(name) for name in architectures)
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        return [transformers.AutoModelForCausalLM]
    if any(name.endswith("ForMaskedLM") for name in names):
        return [transformers.AutoModelForMaskedLM]
    if any(name.endswith("ForPreTraining") for name in names):
        return [transformers.AutoModelForMaskedLM, transformers.AutoModel]
    return [transformers.AutoModel]


def _build(builder: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The model of a folder, without network and without pickles, and transformers' report on the loading."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return builder.from_pretrained(
            str(folder),
            attn_implementation="eager",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as reason:
        raise CheckpointError(f"{folder} cannot be loaded by transformers: {reason}") from reason
    finally:
        if shown:
            logging.enable_progress_bar()


def _tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, or None when it holds no tokenizer files."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError) as reason:
        raise CheckpointError(f"the tokenizer of {folder} cannot be loaded: {reason}") from reason


def encode(
    model: Any, tokenizer: Any, text: Any, max_tokens: int | None = None, special_tokens: bool = True
) -> list[int]:
    """Token ids of a text (or the ids themselves), checked against the model's context and vocabulary.

    `max_tokens` keeps only the first so many tokens; without it a text that is too long is refused.
    """
    special_tokens = flag(special_tokens, "special_tokens")
    if isinstance(text, str):
        if tokenizer is None:
            raise InvalidInputError("this checkpoint has no tokenizer; give token ids instead of a text")
        # verbose=False: the length is checked below, with a message that says what to do.
        ids = list(tokenizer(text, add_special_tokens=special_tokens, verbose=False)["input_ids"])
    elif isinstance(text, Iterable) and not isinstance(text, (bytes, Mapping)):
        ids = [count(token, "a token id", 0) for token in text]
    else:
        raise InvalidInputError(f"text must be a string or a list of token ids, not {type(text).__name__}")
    if max_tokens is not None:
        ids = ids[: count(max_tokens, "max_tokens")]
    if not ids:
        raise InvalidInputError("the text has no tokens; give a longer one")
    vocabulary = int(model.config.vocab_size)
    outside = [token for token in ids if not 0 <= token < vocabulary]
    if outside:
        raise InvalidInputError(
            f"token id {outside[0]} is outside the vocabulary of {vocabulary}; use this model's tokenizer"
        )
    context = getattr(model.config, "max_position_embeddings", None)
    if context is not None and len(ids) > context:
        raise ContextLengthError(
            f"the text has {len(ids)} tokens, but the model's context holds {context}; shorten it, or read only its beginning: "
            f"max_tokens={context} (on the command line --max-tokens {context})"
        )
    return ids


def perplexity(model: Any, tokenizer: Any, text: Any, *, max_tokens: int | None = None) -> float:
    """exp of the mean negative log-likelihood of each token given those before it.

    A quick test that a checkpoint was read correctly: English prose is in the tens for a small model and in the hundreds when
    a layout is wrong.
    """
    arguments.model(model)
    arguments.tokenizer(tokenizer)
    import torch

    ids = encode(model, tokenizer, text, max_tokens)
    if len(ids) < 2:
        raise InvalidInputError("perplexity needs a text of at least two tokens")
    if model.get_output_embeddings() is None:
        raise InvalidInputError(f"{type(model).__name__} predicts no next token, so it has no perplexity")
    batch = torch.tensor([ids])
    with torch.no_grad():
        logits = model(input_ids=batch, use_cache=False).logits[0, :-1].double()
    return math.exp(torch.nn.functional.cross_entropy(logits, batch[0, 1:]).item())
