"""Results of tasks as bytes: one record per task, each with a checksum of its own.

    record = MAGIC | length of header (4 bytes) | header (JSON) | arrays (raw, little endian) | checksum (16 bytes)

The checksum (BLAKE2b) covers header and arrays and is computed where the task ran, so it also guards the way from the worker
to the disk. A damaged record is recognised and skipped; the others of the same file stay readable.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable.errors import IncompleteStoreError
from metastable.sweep.tasks import Variable

MAGIC = b"\x89MSREC1\n"
_LENGTH = struct.Struct("<I")
_CHECKSUM = 16
DONE, FAILED = "done", "failed"
LONGEST_HEADER = 1 << 24


@dataclass(frozen=True)
class Record:
    """A record in a file: its header, and where it lies."""

    header: dict[str, Any]
    offset: int
    length: int

    @property
    def key(self) -> str:
        return self.header["key"]

    @property
    def done(self) -> bool:
        return self.header["status"] == DONE


@dataclass(frozen=True)
class Damage:
    """Bytes of a file that are not a record with the right checksum; `key` names the task where it can still be read."""

    offset: int
    key: str | None


def encode(header: dict[str, Any], variables: Sequence[Variable] = ()) -> bytes:
    """A record; `header` has at least `key` and `status`."""
    blocks = [np.ascontiguousarray(variable.values, dtype="<f8").tobytes() for variable in variables]
    arrays = [
        {"name": v.name, "dims": list(v.dims), "shape": list(v.values.shape), "coordinate": v.coordinate}
        for v in variables
    ]
    text = json.dumps({**header, "arrays": arrays}).encode()
    body = _LENGTH.pack(len(text)) + text + b"".join(blocks)
    return MAGIC + body + hashlib.blake2b(body, digest_size=_CHECKSUM).digest()


def decode(data: bytes | memoryview) -> tuple[dict[str, Any], list[Variable]]:
    """Header and arrays of the record that starts `data`; raises `IncompleteStoreError` when it is damaged."""
    found = next(scan(data), None)
    if not isinstance(found, Record) or found.offset != 0:
        raise IncompleteStoreError("this record is damaged: its checksum is wrong; run the sweep again")
    return found.header, arrays(data, found)


def arrays(data: bytes | memoryview, record: Record) -> list[Variable]:
    """The arrays of a record of `data` whose checksum was verified by `scan`."""
    start = record.offset + len(MAGIC)
    (size,) = _LENGTH.unpack_from(data, start)
    place = start + _LENGTH.size + size
    result = []
    for entry in record.header["arrays"]:
        shape = tuple(entry["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        values = np.frombuffer(data, dtype="<f8", count=count, offset=place).reshape(shape)
        result.append(Variable(entry["name"], tuple(entry["dims"]), values, bool(entry["coordinate"])))
        place += 8 * count
    return result


def scan(data: bytes | memoryview) -> Iterator[Record | Damage]:
    """Every record of `data`, and every place where one is damaged."""
    view, whole = memoryview(data), bytes(data)
    position = 0
    while position < len(whole):
        header, end = _frame(whole, position)
        if header is not None and end is not None and end + _CHECKSUM <= len(whole):
            body = view[position + len(MAGIC) : end]
            if hashlib.blake2b(body, digest_size=_CHECKSUM).digest() == whole[end : end + _CHECKSUM]:
                yield Record(header, position, end + _CHECKSUM - position)
                position = end + _CHECKSUM
                continue
        yield Damage(position, None if header is None else header.get("key"))
        position = whole.find(MAGIC, position + 1)
        if position < 0:
            return


def _frame(data: bytes, position: int) -> tuple[dict[str, Any] | None, int | None]:
    """Header of the record at `position` and the offset of its checksum; None where they cannot be read."""
    start = position + len(MAGIC)
    if data[position:start] != MAGIC or start + _LENGTH.size > len(data):
        return None, None
    (size,) = _LENGTH.unpack_from(data, start)
    first = start + _LENGTH.size
    if size > LONGEST_HEADER:
        return None, None
    try:
        header = json.loads(data[first : first + size])
        numbers = sum(int(np.prod(entry["shape"], dtype=np.int64)) for entry in header["arrays"])
        if not isinstance(header["key"], str) or header["status"] not in (DONE, FAILED) or numbers < 0:
            return None, None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None, None
    return header, first + size + 8 * numbers
