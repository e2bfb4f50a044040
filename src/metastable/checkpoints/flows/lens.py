"""Hidden states read as words: the model's own last norm and output embedding applied to any depth (the logit lens)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import UnsupportedError

if TYPE_CHECKING:
    from metastable.checkpoints.flows.flow import Flow


def output_embedding(model: Any) -> Any:
    """The matrix (vocabulary, dim) that turns states into logits; the input embedding where the model has no output; or None."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    module = model.get_input_embeddings() if head is None else head
    return None if module is None else module.weight.detach()


def readable(token: str) -> str:
    """A token as a person reads it: word starts as a space, line breaks visible, pieces of words with a hyphen in front."""
    text = token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "↵").replace("\n", "↵")
    return "-" + text[2:] if text.startswith("##") else text


def names_of(tokenizer: Any, ids: Any) -> tuple[str, ...]:
    """Words of token ids: decoded one by one (byte-level tokens become letters), pieces of words with a hyphen in front."""
    names = []
    for number in ids:
        token = str(tokenizer.convert_ids_to_tokens(int(number)))
        text = token if token.startswith("##") else tokenizer.decode([int(number)], clean_up_tokenization_spaces=False)
        # Half of a letter decodes to the replacement character: then the token itself says more.
        names.append(readable(token if "\ufffd" in text or not text else text))
    return tuple(names)


def scores(flow: Flow, hidden: Any) -> Any:
    """Scores (rows, vocabulary) of hidden states: logits of the model's own head, or cosines with the input embeddings."""
    import torch

    matrix = output_embedding(flow.model)
    if matrix is None or matrix.shape[1] != flow.dim:
        raise UnsupportedError(
            f"{flow.source} has no embedding of its hidden states' dimension, so they cannot be read as words"
        )
    rows = torch.tensor(np.atleast_2d(np.asarray(hidden)), dtype=matrix.dtype, device=matrix.device)
    with torch.no_grad():
        if flow.model.get_output_embeddings() is None:
            lengths = matrix.norm(dim=1).clamp_min(torch.finfo(matrix.dtype).tiny)
            return torch.nn.functional.normalize(rows, dim=1) @ matrix.T / lengths
        return (rows if flow.final_norm is None else flow.final_norm(rows)) @ matrix.T


def read_words(flow: Flow, hidden: Any, count: int) -> list[tuple[str, ...]]:
    """The `count` best words of each row; see `Flow.words`."""
    count = _checks.count(count, "count")
    best = scores(flow, hidden).topk(count, dim=-1).indices.cpu().tolist()
    if flow.tokenizer is None:
        return [tuple(str(token) for token in row) for row in best]
    return [names_of(flow.tokenizer, row) for row in best]


def cluster_words(flow: Flow, hidden: np.ndarray, labels: Any, count: int = 3) -> list[tuple[str, ...]]:
    """Words of each cluster: those of the mean of its hidden states (tokens, dim)."""
    groups = np.asarray(labels)
    means: FloatArray = np.stack([hidden[groups == label].mean(axis=0) for label in range(int(groups.max()) + 1)])
    return read_words(flow, means, count)
