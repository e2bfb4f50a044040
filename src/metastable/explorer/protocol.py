"""What travels between page and server: checked JSON for control, compact binary for frames.

A binary message is a header of 24 bytes, little-endian, then the payload:

    bytes 0-1   "MS"
    byte  2     kind (`POSITIONS`, `LEADERS` or `ATTENTION`)
    byte  3     panel (0 left, 1 right)
    bytes 4-23  five uint32: run, first frame, frames, tokens, components

| kind | payload |
|---|---|
| `POSITIONS` | float32 (frames, tokens, components), then float32 (frames, tokens): geodesic distance to token 1 |
| `LEADERS` | uint16 (frames, tokens): first token of the cluster that a token is in |
| `ATTENTION` | float32 (components, components): attention weights averaged over heads and over blocks of tokens |
"""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from typing import Any

import numpy as np

from metastable.errors import InvalidInputError
from metastable.explorer import limits

POSITIONS, LEADERS, ATTENTION = 1, 2, 3
HEADER = struct.Struct("<2sBBIIIII")
LONGEST_NUMBER = 400
"""Characters of a number in JSON: generous for float64, and far from where conversion gets slow."""
LARGEST_INTEGER = 2**53
LONGEST_INTEGER = 22
"""Characters of a whole number as scripts write them: 21 digits and a sign."""


class MessageError(InvalidInputError):
    """A message from a page is not what the protocol allows."""


def _integer(text: str) -> int | float:
    """A whole number; beyond 2^53 the real number that a script wrote: it has no point below 1e21 (1e16 is 10000000000000000)."""
    if len(text) <= LONGEST_INTEGER:
        value = int(text)
        if abs(value) <= LARGEST_INTEGER:
            return value
        if int(Decimal(repr(float(text)))) == value:
            return float(text)
    raise MessageError(f"a whole number in the message is too large: {text[:30]}")


def _decimal(text: str) -> float:
    if len(text) > LONGEST_NUMBER:
        raise MessageError("a number in the message is too long")
    value = float(text)
    if not np.isfinite(value):
        raise MessageError(f"a number in the message is too large: {text[:30]}")
    return value


def _constant(text: str) -> float:
    raise MessageError(f"{text} is not a number that can be used here")


def parse(text: str | bytes) -> dict[str, Any]:
    """The JSON object in a message, or `MessageError`: finite numbers only, limited size and depth."""
    if len(text) > limits.MESSAGE_BYTES:
        raise MessageError(f"the message is larger than {limits.MESSAGE_BYTES // 1024} KiB")
    try:
        data = json.loads(text, parse_int=_integer, parse_float=_decimal, parse_constant=_constant)
    except MessageError:
        raise
    except (ValueError, RecursionError) as reason:
        raise MessageError(f"the message is not JSON: {str(reason)[:120]}") from None
    if not isinstance(data, dict):
        raise MessageError("the message must be a JSON object")
    return data


def dumps(message: dict[str, Any]) -> str:
    """A message as compact JSON; a number that is not finite would be a bug and is refused."""
    return json.dumps(message, allow_nan=False, separators=(",", ":"))


def finite(values: Any) -> list[float | None]:
    """Numbers as a list, with None where one is not finite (JSON has no NaN)."""
    return [float(value) if np.isfinite(value) else None for value in np.asarray(values, dtype=float).ravel()]


def _pack(kind: int, panel: int, run: int, first: int, frames: int, tokens: int, components: int, *parts: Any) -> bytes:
    header = HEADER.pack(b"MS", kind, panel, run, first, frames, tokens, components)
    return header + b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


def pack_positions(panel: int, run: int, first: int, positions: np.ndarray, distance: np.ndarray) -> bytes:
    """Frames `positions` (frames, tokens, components) and `distance` (frames, tokens) from frame number `first` on."""
    frames, tokens, components = positions.shape
    return _pack(
        POSITIONS, panel, run, first, frames, tokens, components, positions.astype("<f4"), distance.astype("<f4")
    )


def pack_leaders(panel: int, run: int, first: int, leaders: np.ndarray) -> bytes:
    """First token of the cluster of each token, (frames, tokens), from frame number `first` on."""
    return _pack(LEADERS, panel, run, first, *leaders.shape, 1, leaders.astype("<u2"))


def pack_attention(panel: int, run: int, frame: int, tokens: int, matrix: np.ndarray) -> bytes:
    """The attention matrix (size, size) of one frame."""
    return _pack(ATTENTION, panel, run, frame, 1, tokens, len(matrix), matrix.astype("<f4"))
