"""Runs as recordings: everything that the page is told about a run, small enough to travel with the page.

A recording is one compressed text: the messages as JSON, then per frame and token the shown coordinates (16 bits between -1 and 1: a
thirtieth of a pixel), the distance to token 1 (the upper half of a float32) and the first token of the cluster. Numbers are
differences from the frame before, lower bytes apart from upper ones, which is what makes them compress.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from metastable.explorer import job, protocol
from metastable.explorer.session import beginning
from metastable.explorer.setting import Clock, Setting

UNIT = 32767
KEPT = ("begin", "facts", "view", "curves", "end")


def record(setting: dict[str, Any], clock: dict[str, Any]) -> str:
    """The run of a setting as the server would send it, recorded."""
    checked, moments = Setting.from_dict(setting), Clock.from_dict(clock)
    order = {"kind": "simulate", "panel": 0, "run": 0, "setting": checked.to_dict(), "clock": moments.to_dict()}
    return recording({"type": "begin", **beginning(checked, moments)}, job.perform(order))


def recording(begin: dict[str, Any], messages: Iterable[dict[str, Any] | bytes]) -> str:
    """A recording of the messages of one run."""
    told: dict[str, Any] = {"begin": begin}
    frames: dict[int, dict[int, tuple[np.ndarray, ...]]] = {protocol.POSITIONS: {}, protocol.LEADERS: {}}
    for message in messages:
        if isinstance(message, bytes):
            kind, first, parts = _unpacked(message)
            frames[kind][first] = parts
        else:
            told[message["type"]] = message
    told["end"] = {**told["end"], "engine": f"{told['end']['engine']} (recorded)"}
    positions, distance = (
        np.concatenate([frames[protocol.POSITIONS][first][part] for first in _order(frames[protocol.POSITIONS])])
        for part in (0, 1)
    )
    leaders = np.concatenate([frames[protocol.LEADERS][first][0] for first in _order(frames[protocol.LEADERS])])
    count, tokens, components = positions.shape
    head = {
        "frames": count,
        "tokens": tokens,
        "components": components,
        "messages": {name: _untagged(told[name]) for name in KEPT},
    }
    text = protocol.dumps(head).encode()
    half = (distance.astype("<f4").view("<u4") + 0x8000 >> 16).astype(np.uint16)
    numbers = (np.rint(positions * UNIT).astype(np.int16).view(np.uint16), half, leaders.astype(np.uint16))
    body = struct.pack("<I", len(text)) + text + b"".join(_planes(part.reshape(count, -1)) for part in numbers)
    return base64.b64encode(zlib.compress(body, 9)).decode()


def _unpacked(message: bytes) -> tuple[int, int, tuple[np.ndarray, ...]]:
    """Kind, first frame and arrays of a message with frames (`protocol`)."""
    _, kind, _, _, first, frames, tokens, components = protocol.HEADER.unpack_from(message)
    body = message[protocol.HEADER.size :]
    if kind == protocol.LEADERS:
        return kind, first, (np.frombuffer(body, "<u2").reshape(frames, tokens),)
    split = 4 * frames * tokens * components
    shape = (frames, tokens, components)
    return (
        kind,
        first,
        (np.frombuffer(body[:split], "<f4").reshape(shape), np.frombuffer(body[split:], "<f4").reshape(frames, tokens)),
    )


def _order(chunks: dict[int, tuple[np.ndarray, ...]]) -> list[int]:
    """The first frames of chunks that follow one another from 0 on; a preview that was sent again is left out."""
    found, at = [], 0
    while at in chunks:
        found.append(at)
        at += len(chunks[at][0])
    return found


def _planes(values: np.ndarray) -> bytes:
    """Differences of uint16 (frames, numbers) from the frame before, all lower bytes, then all upper ones."""
    change = np.diff(values, axis=0, prepend=np.zeros((1, values.shape[1]), np.uint16)).astype("<u2")
    return np.ascontiguousarray(change.view(np.uint8).reshape(-1, 2).T).tobytes()


def _untagged(message: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps({name: item for name, item in message.items() if name not in ("panel", "run")}))
