"""Files that lie about themselves: refused by name, at once, and without filling the memory."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metastable import checkpoints
from metastable.checkpoints.gguf_layout import MOST_ITEMS
from metastable.checkpoints.tensors import SafetensorsFile, write_safetensors
from metastable.errors import CheckpointError, MetastableError
from tests.unit.checkpoints.test_sources import gguf_tensors, write_gguf

FUZZ = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def refusal(call: Callable[[], Any]) -> str | None:
    """The message of the named exception that `call` ends with, or None; any other exception goes through."""
    try:
        call()
    except MetastableError as error:
        return str(error)
    return None


# ------------------------------------------------------------------------------------------------------------- GGUF


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(entries: bytes = b"", count: int = 0, tensors: bytes = b"", tensor_count: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensor_count, count) + entries + tensors


def array(kind: int, length: int, data: bytes = b"") -> bytes:
    return text("a") + struct.pack("<IIQ", 9, kind, length) + data


def tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0, name: str = "t") -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


LIES = {
    "an array of 2^40 numbers": gguf(array(4, 2**40), 1),
    "an array of 2^40 bytes": gguf(array(0, 2**40), 1),
    "an array of 2^40 texts": gguf(array(8, 2**40), 1),
    "an array of 2^40 arrays": gguf(array(9, 2**40), 1),
    "an array of 2^63 numbers": gguf(array(12, 2**63), 1),
    "arrays in arrays in arrays": gguf(text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 2000, 1),
    "a name of 2^40 letters": gguf(struct.pack("<Q", 2**40), 1),
    "a text of 2^40 letters": gguf(text("a") + struct.pack("<IQ", 8, 2**40), 1),
    "2^40 entries": gguf(b"", 2**40),
    "2^40 tensors": gguf(b"", 0, b"", 2**40),
    "2^32 dimensions": gguf(tensors=text("t") + struct.pack("<I", 2**32 - 1) + bytes(64), tensor_count=1),
    "a tensor of 2^40 numbers": gguf(tensors=tensor((2**40,)) + bytes(64), tensor_count=1),
    "a shape that overflows": gguf(tensors=tensor((2**32, 2**32, 2)) + bytes(64), tensor_count=1),
    "an empty tensor": gguf(tensors=tensor((0,)) + bytes(64), tensor_count=1),
    "an unknown type of tensor": gguf(tensors=tensor((1,), kind=4321) + bytes(64), tensor_count=1),
    "a tensor far away": gguf(tensors=tensor((1,), offset=2**40) + bytes(64), tensor_count=1),
    "a tensor in between": gguf(tensors=tensor((1,), offset=3) + bytes(64), tensor_count=1),
    "two tensors in one place": gguf(
        tensors=tensor((8,), name="a") + tensor((8,), name="b") + bytes(99), tensor_count=2
    ),
    "two tensors of one name": gguf(tensors=tensor((8,)) + tensor((8,), offset=32) + bytes(99), tensor_count=2),
    "two entries of one name": gguf((text("a") + struct.pack("<IB", 0, 1)) * 2, 2),
    "an unknown type": gguf(text("a") + struct.pack("<I", 77) + bytes(8), 1),
    "no alignment": gguf(text("general.alignment") + struct.pack("<II", 4, 0), 1),
    "another version": gguf(version=9),
}


@pytest.mark.parametrize("lie", LIES)
def test_gguf_that_lies(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "lie.gguf"
    path.write_bytes(LIES[lie])
    checkpoints.load_weights  # noqa: B018  (imports what it needs before memory is counted)
    import gguf as library  # noqa: F401

    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="not a complete GGUF file"):
            checkpoints.load_weights(path)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_gguf_with_more_items_than_a_vocabulary(tmp_path: Path) -> None:
    """An honest array can fill the memory as well: the library makes an object of every item."""
    path = tmp_path / "large.gguf"
    path.write_bytes(gguf(array(0, MOST_ITEMS + 1, bytes(MOST_ITEMS + 1)), 1))
    with pytest.raises(CheckpointError, match="no vocabulary has"):
        checkpoints.load_weights(path)


@pytest.fixture(scope="module")
def small_gguf(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    write_gguf(path, "llama", gguf_tensors())
    return path.read_bytes()


def read_all(path: Path) -> None:
    """Everything that reading weights can do with a file."""
    weights = checkpoints.load_weights(path)
    for layer in weights.layers():
        assert np.isfinite(layer.query).all()


@FUZZ
@given(data=st.data())
def test_gguf_with_damaged_bytes(tmp_path: Path, small_gguf: bytes, data) -> None:
    """Bytes of a small file are replaced (most of them in its header), cut or added."""
    content = bytearray(small_gguf)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 700)) % len(content)
        piece = data.draw(
            st.sampled_from([b"\xff", b"\0", b"\xff" * 8, b"\0" * 8, b"\x02\0\0\0\0\0\0\0", b"\x01", b"\x09\0\0\0"])
        )
        content[place : place + len(piece)] = piece
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(bytes(content))
    message = refusal(lambda: read_all(path))
    assert message is None or len(message) > 20


# ------------------------------------------------------------------------------------------------------ safetensors


def safetensors(header: Any, data: bytes = bytes(64)) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def one(dtype: Any = "F32", shape: Any = (16,), offsets: Any = (0, 64), **more: Any) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}


HEADERS = {
    "a long header": struct.pack("<Q", 2**40) + b"{}",
    "a longer header": struct.pack("<Q", 2**64 - 1) + b"{}",
    "no text": safetensors(b"\xff\xfe"),
    "deep": safetensors(b"[" * 100_000),
    "a list": safetensors([]),
    "a number": safetensors(3),
    "no entry": safetensors({"a": None}),
    "an entry that is a list": safetensors({"a": [1, 2]}),
    "an entry that is empty": safetensors({"a": {}}),
    "something more": safetensors(one(extra=1)),
    "metadata that is a number": safetensors({"__metadata__": 3, **one()}),
    "metadata of numbers": safetensors({"__metadata__": {"a": 3}, **one()}),
    "an unknown dtype": safetensors(one("F31")),
    "a dtype that is a list": safetensors(one(["F32"])),
    "no dtype": safetensors(one(None)),
    "a shape that is a number": safetensors(one(shape=16)),
    "a shape that is a text": safetensors(one(shape="16")),
    "a broken shape": safetensors(one(shape=[2.5, 6.4])),
    "a negative shape": safetensors(one(shape=[-4, -4])),
    "a true shape": safetensors(one(shape=[True, 16])),
    "a shape that overflows": safetensors(one(shape=[2**32, 2**32], offsets=[0, 0])),
    "a huge shape": safetensors(one(shape=[10**40])),
    "offsets that are texts": safetensors(one(offsets=["0", "64"])),
    "three offsets": safetensors(one(offsets=[0, 64, 64])),
    "no offsets": safetensors(one(offsets=None)),
    "backward offsets": safetensors(one(offsets=[64, 0])),
    "negative offsets": safetensors(one(offsets=[-64, 0])),
    "broken offsets": safetensors(one(offsets=[0.0, 64.0])),
    "too few bytes": safetensors(one(offsets=[0, 32])),
    "beyond the end": safetensors(one(offsets=[64, 128])),
    "a gap": safetensors(one(shape=[8], offsets=[32, 64])),
    "bytes that nobody has": safetensors(one(shape=[8], offsets=[0, 32])),
    "an overlap": safetensors({**one(), "b": {"dtype": "F32", "shape": [8], "data_offsets": [32, 64]}}),
    "the same twice": safetensors(b'{"a":%b,"a":%b}' % ((json.dumps(one()["a"]).encode(),) * 2)),
    "half a letter": safetensors(b'{"\\ud800":%b}' % json.dumps(one()["a"]).encode()),
    "not a number": safetensors(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,64]}}'),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_safetensors_that_lie(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lie.safetensors"
    path.write_bytes(HEADERS[kind])
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="not a complete safetensors file"):
            checkpoints.load_weights(path)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def accepted_by_the_library(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            return True
    except (SafetensorError, OSError):
        return False


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 80),
    st.integers(2**31, 2**70),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 9), max_size=3),
    st.just({}),
)


@FUZZ
@given(data=st.data())
def test_headers_are_read_as_the_library_reads_them(tmp_path: Path, data) -> None:
    """Where this reader accepts a damaged header, so does the safetensors library, and the tensors are the same."""
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, dtype=np.float32)}
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {name: value.shape for name, value in arrays.items()}, arrays.__getitem__)
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    for _ in range(data.draw(st.integers(0, 2))):
        entry = header[data.draw(st.sampled_from(["a", "b"]))]
        if not isinstance(entry, dict):
            continue
        field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        change = data.draw(st.sampled_from(["replace", "drop", "inside", "type"]))
        if change == "replace":
            entry[field] = data.draw(ANYTHING)
        elif change == "drop":
            entry.pop(field, None)
        elif change == "type":
            entry["dtype"] = data.draw(st.sampled_from(["F64", "BF16", "I8", "F8_E4M3", "F4", "BOOL", "f32"]))
        elif isinstance(entry.get(field), list) and entry[field]:
            entry[field][0] = data.draw(ANYTHING)
    damaged = json.dumps(header).encode()
    cut = data.draw(st.sampled_from([0, 0, 0, 1, 4, 8]))
    body = content[8 + length :]
    path.write_bytes(struct.pack("<Q", len(damaged)) + damaged + body[: len(body) - cut])
    message = refusal(lambda: SafetensorsFile(path))
    if message is not None:
        assert "download it again" in message
        return
    assert accepted_by_the_library(path)
    file = SafetensorsFile(path)
    for name in sorted(file.names):
        message = refusal(partial(file.read, name))
        assert message is None or "quantised" in message or "NaN" in message


def test_the_library_refuses_the_same_headers(tmp_path: Path) -> None:
    """The table above is not stricter than the format."""
    lenient = {"something more", "a true shape", "the same twice"}
    for kind, content in HEADERS.items():
        path = tmp_path / "lie.safetensors"
        path.write_bytes(content)
        assert not accepted_by_the_library(path) or kind in lenient, kind


# ------------------------------------------------------------------------------------------------------ config.json

SETTINGS = {
    "llama": (
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "num_hidden_layers",
        "rms_norm_eps",
    ),
    "mistral": ("sliding_window", "num_attention_heads"),
    "qwen2": ("use_sliding_window", "layer_types", "num_attention_heads"),
    "gpt2": (
        "n_embd",
        "n_head",
        "n_layer",
        "layer_norm_epsilon",
        "scale_attn_weights",
        "scale_attn_by_inverse_layer_idx",
    ),
    "gpt_neox": ("hidden_size", "num_attention_heads", "num_hidden_layers", "layer_norm_eps", "rotary_pct"),
    "bert": ("hidden_size", "num_attention_heads", "num_hidden_layers", "layer_norm_eps", "is_decoder"),
    "albert": ("hidden_size", "num_attention_heads", "num_hidden_layers", "num_hidden_groups", "inner_group_num"),
}
ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "max_position_embeddings")
SIZES = {
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_hidden_layers",
    "n_embd",
    "n_head",
    "n_layer",
}
SIZES |= {"num_hidden_groups", "inner_group_num"}


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def read_folder(folder: Path, config: dict[str, Any]) -> None:
    for layer in checkpoints.load_weights(folder, config=config).layers():
        layer.fold()


@pytest.mark.parametrize("family", SETTINGS)
def test_settings_that_make_no_sense(tiny, family: str) -> None:
    _, folder = tiny(family)
    config = config_of(folder)
    for name in (*SETTINGS[family], "model_type", *(ROPE if family in ("llama", "gpt_neox") else ())):
        for value in (0, -4, 2.5, "4", [], [4], {}, {"a": 1}, True, 10**30, 10**400, math.nan, math.inf):
            message = refusal(partial(read_folder, folder, {**config, name: value}))
            # Sizes are never rounded, guessed or ignored.
            assert len(message) > 20 if message is not None else name not in SIZES, (name, value)


def test_heads_are_not_rounded(tiny) -> None:
    folder = tiny("llama")[1]
    config = config_of(folder)
    with pytest.raises(CheckpointError, match=r"num_attention_heads must be a whole number, not 2\.5"):
        checkpoints.load_weights(folder, config={**config, "num_attention_heads": 2.5})
    with pytest.raises(CheckpointError, match=r"num_hidden_layers must be between 1 and 100000"):
        checkpoints.load_weights(folder, config={**config, "num_hidden_layers": 10**12})


@FUZZ
@given(data=st.data())
def test_settings_of_rotary_embeddings(tiny, data) -> None:
    folder = tiny("llama")[1]
    keys = ["rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "factors"]
    keys += ["original_max_position_embeddings", "partial_rotary_factor"]
    kinds = st.sampled_from(["default", "linear", "llama3", "factors", "yarn"])
    table = data.draw(st.dictionaries(st.sampled_from(keys), st.one_of(ANYTHING, kinds, st.floats(0.1, 9)), max_size=6))
    config = {**config_of(folder), data.draw(st.sampled_from(["rope_parameters", "rope_scaling"])): table}

    def use() -> None:
        weights = checkpoints.load_weights(folder, config=config)
        assert np.isfinite(checkpoints.logit_matrix(weights, 0, 0, lag=3)).all()

    message = refusal(use)
    assert message is None or len(message) > 20


INDICES = [
    "[]",
    "3",
    "null",
    "{",
    "[" * 100_000,
    '{"weight_map": 3}',
    '{"weight_map": {"a": ""}}',
    '{"weight_map": {"a": 3}}',
]


@pytest.mark.parametrize("content", INDICES)
def test_indices_of_shards_that_are_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError):
        checkpoints.load_weights(tmp_path)
