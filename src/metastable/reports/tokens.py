"""Whether a text has enough tokens for what is to be measured, asked as early as it can be known."""

from __future__ import annotations

from typing import Any

from metastable._checks import count
from metastable.checkpoints.models import encode
from metastable.errors import InvalidInputError

MEASURED = 2
"""Tokens that must be left to be measured: there is a cosine between two."""


def check_options(max_tokens: int, drop_first: int) -> None:
    """Refuse, before a model is loaded, to leave out as many tokens as are read."""
    most = count(max_tokens, "--max-tokens", MEASURED)
    if count(drop_first, "--drop-first", 0) > most - MEASURED:
        raise InvalidInputError(
            f"--drop-first {drop_first} leaves fewer than {MEASURED} of --max-tokens {max_tokens} tokens to be measured; lower one or "
            "raise the other"
        )


def check_text(model: Any, tokenizer: Any, text: str, max_tokens: int, drop_first: int) -> None:
    """Refuse, before a model is run, a text that is too short for `drop_first`."""
    tokens = len(encode(model, tokenizer, text, max_tokens))
    if tokens - drop_first < MEASURED:
        raise InvalidInputError(
            f"the text has {tokens} tokens, and --drop-first {drop_first} leaves fewer than {MEASURED} to be measured; give a longer "
            "text" + (f", or at most --drop-first {tokens - MEASURED}" if tokens >= MEASURED else "")
        )
