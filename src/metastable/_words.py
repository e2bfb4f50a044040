"""Words for messages, titles and short forms; imports nothing, so that the command line starts fast."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 token`, `2 tokens`, `0 tokens`: a number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
