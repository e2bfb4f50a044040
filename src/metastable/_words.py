"""Words for messages, titles and short forms; imports nothing, so that the command line starts fast."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 token`, `2 tokens`, `0 tokens`: a number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def left_out(early: int, failed: int, whole: str = "") -> str:
    """What is said of `early` members that have no values at some times, of which `failed` have none at all ("": of nobody)."""
    where = f" of {whole}" if whole else ""
    parts = []
    if early > failed:
        parts.append(f"{counted(early - failed, 'member')}{where} stopped early (left out from there on)")
    if failed:
        parts.append(f"{counted(failed, 'member')}{where} could not be drawn or measured (left out)")
    return ", ".join(parts)
