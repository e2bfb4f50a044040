"""Hidden states read as words: the model's own last norm and output embedding applied to any depth (the logit lens)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray, real_array
from metastable.checkpoints.flows.beginnings import as_array
from metastable.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from metastable.checkpoints.flows.flow import Flow


def has_head(model: Any) -> bool:
    """Whether a model turns states into logits itself."""
    return model.base_model is not model and getattr(model, "get_output_embeddings", lambda: None)() is not None


def check_final_norm(flow: Flow) -> None:
    """Refuse a model that does something to its last state that no module of it does alone."""
    import torch

    if flow.final_norm is None and not torch.equal(flow.probe.last, flow.probe.returned):
        raise UnsupportedError(
            f"what {flow.source} does to its last state before the head is not one module, so states cannot be read as words"
        )


def head_logits(flow: Flow, returned: Any) -> Any:
    """Logits (rows, vocabulary) that the model's own head makes of what its base model returns, rows (rows, dim).

    The model runs on a single token, and the rows take the place of what its base returns: biases, transforms and caps of any head are
    in.
    """
    import torch

    reached: list[Any] = []

    def put(module: Any, given: Any, output: Any) -> Any:
        reached.append(module)
        if isinstance(output, tuple):
            return (returned[None], *output[1:])
        output["last_hidden_state"] = returned[None]
        return output

    hook = flow.model.base_model.register_forward_hook(put)
    try:
        with torch.no_grad():
            result = flow.model(input_ids=torch.tensor([[flow.plain_id]], device=returned.device))
    finally:
        hook.remove()
    if not reached:
        raise UnsupportedError(
            f"the head of {flow.source} ({type(flow.model).__name__}) is not fed by its base model, so states cannot be read as words"
        )
    return (result[0] if isinstance(result, tuple) else result.logits)[0]


def direct_output(flow: Flow) -> Any:
    """The output embedding (vocabulary, dim) where the model's head applies it to the returned states themselves; else None."""
    import torch

    if not has_head(flow.model):
        return None
    module = flow.model.get_output_embeddings()
    seen: list[Any] = []
    hook = module.register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    try:
        head_logits(flow, flow.probe.returned[0])
    finally:
        hook.remove()
    same = seen and seen[0].shape[-1] == flow.dim and torch.equal(seen[0].reshape(-1, flow.dim), flow.probe.returned[0])
    return module.weight.detach() if same else None


def readable(token: str) -> str:
    """A token as a person reads it: word starts as a space, breaks and controls visible, pieces of words with a hyphen in front."""
    text = token.replace("▁", " ").replace("\n", "↵").replace("\t", "⇥")
    text = "-" + text[2:] if text.startswith("##") else text
    # What has no glyph would be an empty box.
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def names_of(tokenizer: Any, ids: Any) -> tuple[str, ...]:
    """Words of token ids: decoded one by one (byte-level tokens become letters), pieces of words with a hyphen in front."""
    names = []
    for number in ids:
        token = str(tokenizer.convert_ids_to_tokens(int(number)))
        text = token if token.startswith("##") else tokenizer.decode([int(number)], clean_up_tokenization_spaces=False)
        # Half of a letter decodes to the replacement character: then its bytes say more.
        names.append(readable(_bytes_shown(token) if "\ufffd" in text or not text else text))
    return tuple(names)


@cache
def _byte_letters() -> dict[str, int]:
    """The letters that byte-level tokenizers write for bytes: those that can be seen for themselves, the others from 256 on in order.

    Reference: A. Radford et al., Language models are unsupervised multitask learners (GPT-2), 2019.
    """
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _bytes_shown(token: str) -> str:
    r"""A token of a byte-level tokenizer with the letters that it holds whole, and \xe2 for the bytes that are part of one."""
    letters = _byte_letters()
    if not token or not set(token) <= set(letters):
        return token
    return bytes(letters[letter] for letter in token).decode("utf-8", errors="backslashreplace")


def scores(flow: Flow, hidden: Any) -> Any:
    """Scores (rows, vocabulary) of hidden states (rows, dim): logits of the model's own head, or cosines with the input embeddings.

    Raises:
        InvalidInputError: not rows of numbers of the model's dimension.
        UnsupportedError: the model has no head, and embeddings of another dimension.
    """
    import torch

    array = real_array(as_array(hidden, "hidden"), "hidden")
    array = array[None] if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[1] != flow.dim or not len(array):
        raise InvalidInputError(f"hidden must be states of shape (rows, {flow.dim}), not {array.shape}")
    rows = torch.tensor(array, dtype=flow.probe.last.dtype, device=flow.probe.last.device)
    with torch.no_grad():
        if has_head(flow.model):
            check_final_norm(flow)
            return head_logits(flow, rows if flow.final_norm is None else flow.final_norm(rows))
        matrix = flow.model.get_input_embeddings().weight.detach()
        if matrix.shape[1] != flow.dim:
            raise UnsupportedError(
                f"{flow.source} has no embedding of its hidden states' dimension, so they cannot be read as words"
            )
        lengths = matrix.norm(dim=1).clamp_min(torch.finfo(matrix.dtype).tiny)
        return torch.nn.functional.normalize(rows, dim=1) @ matrix.T / lengths


ROWS_AT_ONCE = 256
"""States that are read together: logits over a large vocabulary take memory."""


def read_words(flow: Flow, hidden: Any, count: int) -> list[tuple[str, ...]]:
    """The `count` best words of each row; see `Flow.words`."""
    count = _checks.count(count, "count", 1, int(flow.model.config.vocab_size))
    array = as_array(hidden, "hidden")
    parts = (
        [array]
        if array.ndim != 2
        else [array[i : i + ROWS_AT_ONCE] for i in range(0, max(len(array), 1), ROWS_AT_ONCE)]
    )
    best = [row for part in parts for row in scores(flow, part).topk(count, dim=-1).indices.cpu().tolist()]
    if flow.tokenizer is None:
        return [tuple(str(token) for token in row) for row in best]
    return [names_of(flow.tokenizer, row) for row in best]


def cluster_words(flow: Flow, hidden: np.ndarray, labels: Any, count: int = 3) -> list[tuple[str, ...]]:
    """Words of each cluster: those of the mean of its hidden states (tokens, dim)."""
    groups = np.asarray(labels)
    means: FloatArray = np.stack([hidden[groups == label].mean(axis=0) for label in range(int(groups.max()) + 1)])
    return read_words(flow, means, count)
