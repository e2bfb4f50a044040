"""Named tensors behind one small interface, read one at a time: safetensors files (single or sharded) and torch modules.

Nothing here unpickles: the safetensors layout (8 bytes of header length, a JSON header, raw little-endian numbers) is read
directly, so weights can be studied with the core package alone.
"""

from __future__ import annotations

import json
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
        array = np.asarray(self.load(name), dtype=np.float64)
        if not np.isfinite(array).all():
            raise CheckpointError(
                f"{self.source}: the tensor {name!r} holds NaN or infinity; the checkpoint is damaged"
            )
        return array

    def read_optional(self, name: str) -> FloatArray | None:
        """One tensor as float64, or None when the checkpoint has none of that name."""
        return self.read(name) if name in self.names else None

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
    """The entries of a .safetensors file and where its data starts; refuses files that are cut or damaged."""

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
            header = json.loads(file.read(length))
    except OSError as reason:
        if isinstance(reason, CheckpointError):
            raise
        raise CheckpointError(f"{path} cannot be read: {reason}") from reason
    except ValueError as reason:
        raise damaged(f"its header is not JSON ({reason})") from None
    if not isinstance(header, dict):
        raise damaged("its header is not a table")
    header.pop("__metadata__", None)
    start = 8 + length
    for name, entry in header.items():
        try:
            begin, end = entry["data_offsets"]
            items = int(np.prod(entry["shape"], dtype=np.int64))
            width = np.dtype(DTYPES[entry["dtype"]]).itemsize if entry["dtype"] in DTYPES else None
        except (KeyError, TypeError, ValueError):
            raise damaged(f"the entry {name!r} of its header is malformed") from None
        if begin < 0 or end < begin or (width is not None and end - begin != items * width):
            raise damaged(f"the entry {name!r} has {end - begin} bytes for shape {entry['shape']}")
        if start + end > size:
            raise damaged(f"the tensor {name!r} ends at byte {start + end}, but the file has {size}")
    return header, start


class ShardedSafetensors(TensorStore):
    """Several .safetensors files behind a model.safetensors.index.json; each is opened when a tensor of it is asked for."""

    def __init__(self, index: Path) -> None:
        self.source = str(index.parent)
        try:
            table = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            self._map: dict[str, str] = {str(name): str(file) for name, file in table.items()}
        except (ValueError, KeyError, AttributeError, UnicodeDecodeError) as reason:
            raise CheckpointError(f"{index} is not a shard index ({reason}); download it again") from None
        files = sorted(set(self._map.values()))
        outside = [file for file in files if Path(file).name != file]
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
