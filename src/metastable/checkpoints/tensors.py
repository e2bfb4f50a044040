"""Named tensors behind one small interface, read one at a time: safetensors files (single or sharded) and torch modules.

Nothing here unpickles: the safetensors layout (8 bytes of header length, a JSON header, raw little-endian numbers) is read
directly. So weights can be studied with the core package alone, and in bfloat16, which the library cannot hand to NumPy; the tests
compare the two readers on whole and on damaged files.
"""

from __future__ import annotations

import json
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import CheckpointError

HEADER_LIMIT = 100_000_000
"""Largest header that the safetensors format allows, in bytes."""

BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits per number of every type of the format."""

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Number formats that can be turned into float64; bfloat16 is the upper half of a float32."""


class TensorStore(ABC):
    """Tensors by name. `read` returns float64."""

    source: str

    @property
    @abstractmethod
    def names(self) -> frozenset[str]:
        """Names of all tensors."""

    @abstractmethod
    def load(self, name: str) -> np.ndarray:
        """One tensor in the precision it is stored in (bfloat16 as float32)."""

    def read(self, name: str) -> FloatArray:
        """One tensor as float64, or an error that says what its absence means."""
        if name not in self.names:
            raise CheckpointError(
                f"{self.source}: the tensor {name!r} is missing; the checkpoint is incomplete or its config.json describes "
                "another architecture. Download it again"
            )
        try:
            array = np.asarray(self.load(name), dtype=np.float64)
        except MemoryError:
            raise CheckpointError(f"{self.source}: the tensor {name!r} does not fit into memory") from None
        if not np.isfinite(array).all():
            raise CheckpointError(
                f"{self.source}: the tensor {name!r} holds NaN or infinity; the checkpoint is damaged"
            )
        return array

    def read_optional(self, name: str, *shape: int) -> FloatArray | None:
        """One tensor (of this shape, where one is given) as float64, or None when the checkpoint has none of that name."""
        if name not in self.names:
            return None
        return self.read_shaped(name, *shape) if shape else self.read(name)

    def read_shaped(self, name: str, *shape: int) -> FloatArray:
        """One tensor, which must have this shape."""
        array = self.read(name)
        if array.shape != shape:
            raise CheckpointError(
                f"{self.source}: the tensor {name!r} has shape {array.shape}, but config.json implies {shape}; "
                "the two files do not belong together"
            )
        return array


class SafetensorsFile(TensorStore):
    """One .safetensors file, memory-mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = str(path)
        self._entries, self._start = _read_header(path)
        self._names = frozenset(self._entries)

    @property
    def names(self) -> frozenset[str]:
        return self._names

    def load(self, name: str) -> np.ndarray:
        entry = self._entries[name]
        kind = entry["dtype"]
        if kind not in DTYPES:
            raise CheckpointError(
                f"{self.source}: the tensor {name!r} is stored as {kind}, which holds packed or quantised numbers; "
                f"use a checkpoint in one of {', '.join(DTYPES)}, or a GGUF file"
            )
        begin, end = entry["data_offsets"]
        with self.path.open("rb") as file:
            file.seek(self._start + begin)
            raw = np.frombuffer(file.read(end - begin), dtype=DTYPES[kind])
        if kind == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.reshape(entry["shape"])


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The entries of a .safetensors file and where its data starts; refuses files that are cut or damaged.

    As strict as the safetensors library: known types, whole shapes, and tensors that fill the rest of the file without gaps or
    overlaps.
    """

    def damaged(reason: str) -> CheckpointError:
        return CheckpointError(f"{path} is not a complete safetensors file: {reason}; download it again")

    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise damaged(f"it has {size} bytes")
            length = struct.unpack("<Q", prefix)[0]
            if length > min(HEADER_LIMIT, size - 8):
                raise damaged(f"its header claims {length} bytes, but the file has {size}")
            header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_without_repetition)
    except OSError as reason:
        if isinstance(reason, CheckpointError):
            raise
        raise CheckpointError(f"{path} cannot be read: {reason}") from reason
    except (ValueError, RecursionError) as reason:
        raise damaged(f"its header is not JSON ({reason})") from None
    if not isinstance(header, dict):
        raise damaged("its header is not a table")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged("its metadata is not a table of texts")
    places = []
    for name, entry in header.items():
        try:
            places.append((*_extent(entry), name))
        except _Malformed as reason:
            raise damaged(f"the entry {name!r} of its header {reason}") from None
    start, reached = 8 + length, 0
    for begin, end, name in sorted(places):
        if begin != reached:
            raise damaged(
                f"the tensor {name!r} begins at byte {begin} of the data, where the one before it ends at {reached}"
            )
        reached = end
    if start + reached != size:
        raise damaged(f"its tensors end at byte {start + reached}, but the file has {size}")
    return header, start


class _Malformed(Exception):
    """What is wrong with an entry of a header."""


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON table whose names are different and can be written as UTF-8."""
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name is there twice")
    for name in table:
        name.encode()
    return table


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _extent(entry: Any) -> tuple[int, int]:
    """The offsets of an entry, after checking that they fit its type and shape."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _Malformed("does not have a dtype, a shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in BITS:
        raise _Malformed(f"has the unknown dtype {kind!r}")
    if not isinstance(shape, list) or not all(map(_whole, shape)):
        raise _Malformed(f"has the shape {shape!r}, which is no list of whole numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_whole, offsets)) or offsets[0] > offsets[1]:
        raise _Malformed(f"has the data_offsets {offsets!r}, which are no begin and end")
    bits = math.prod(shape) * BITS[kind]
    if bits != 8 * (offsets[1] - offsets[0]):
        raise _Malformed(f"has {offsets[1] - offsets[0]} bytes for shape {shape} of {kind}")
    return offsets[0], offsets[1]


class ShardedSafetensors(TensorStore):
    """Several .safetensors files behind a model.safetensors.index.json; each is opened when a tensor of it is asked for."""

    def __init__(self, index: Path) -> None:
        self.source = str(index.parent)
        try:
            table = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            self._map: dict[str, str] = {str(name): str(file) for name, file in table.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as reason:
            raise CheckpointError(f"{index} is not a shard index ({reason}); download it again") from None
        files = sorted(set(self._map.values()))
        outside = [file for file in files if not file or Path(file).name != file or "\\" in file or "\0" in file]
        if outside:
            raise CheckpointError(f"{index} points outside its folder ({outside[0]}); this is not a valid checkpoint")
        missing = [file for file in files if not (index.parent / file).is_file()]
        if missing:
            raise CheckpointError(
                f"{index.parent} is half downloaded: {len(missing)} of {len(files)} shards are missing, first {missing[0]}; "
                "download the checkpoint again"
            )
        self._folder = index.parent
        self._open: dict[str, SafetensorsFile] = {}
        self._names = frozenset(self._map)

    @property
    def names(self) -> frozenset[str]:
        return self._names

    def load(self, name: str) -> np.ndarray:
        file = self._map[name]
        if file not in self._open:
            self._open[file] = SafetensorsFile(self._folder / file)
        shard = self._open[file]
        if name not in shard.names:
            raise CheckpointError(f"{shard.path} lacks the tensor {name!r} that the index promises; download it again")
        return shard.load(name)


class ModuleTensors(TensorStore):
    """The parameters of a torch module that is already in memory."""

    def __init__(self, module: Any) -> None:
        self.source = type(module).__name__
        self._state = module.state_dict()
        self._names = frozenset(self._state)

    @property
    def names(self) -> frozenset[str]:
        return self._names

    def load(self, name: str) -> np.ndarray:
        tensor = self._state[name]
        if tensor.is_meta:
            raise CheckpointError(f"{self.source}: {name!r} has no data (device 'meta'); load the weights first")
        if not tensor.is_floating_point():
            raise CheckpointError(f"{self.source}: {name!r} is quantised ({tensor.dtype}); load the model in float32")
        return tensor.detach().double().cpu().numpy()


class PrefixedTensors(TensorStore):
    """A store seen without a common prefix of its names ('model.', 'transformer.', ...)."""

    def __init__(self, store: TensorStore, prefix: str) -> None:
        self.source = store.source
        self._store, self._prefix = store, prefix
        self._names = frozenset(name[len(prefix) :] for name in store.names if name.startswith(prefix))

    @property
    def names(self) -> frozenset[str]:
        return self._names

    def load(self, name: str) -> np.ndarray:
        return self._store.load(self._prefix + name)


def write_safetensors(path: Path, shapes: Mapping[str, tuple[int, ...]], read: Any) -> None:
    """Writes a float32 .safetensors file tensor by tensor: `read(name)` is called once each, so memory stays small."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name, shape in shapes.items():
            array = np.ascontiguousarray(read(name), dtype="<f4")
            if array.shape != tuple(shape):
                raise CheckpointError(f"the tensor {name!r} has shape {array.shape}, not {tuple(shape)} as announced")
            file.write(array.tobytes())
