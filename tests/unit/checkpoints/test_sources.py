"""What can go wrong with files: each case is handled, or refused with the fix in the message, and nothing is ever unpickled."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import struct
import tomllib
from pathlib import Path

import numpy as np
import pytest

from metastable import checkpoints
from metastable.checkpoints import cache as conversions
from metastable.checkpoints import library, sources
from metastable.checkpoints.tensors import SafetensorsFile, write_safetensors
from metastable.errors import CheckpointError, InvalidInputError, MissingExtraError, UnknownArchitectureError


class Bomb:
    """An object whose unpickling leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


@pytest.fixture
def copy(tiny, tmp_path: Path) -> Path:
    """A fresh copy of the tiny Llama's folder."""
    return Path(shutil.copytree(tiny("llama")[1], tmp_path / "copy"))


def test_sharded_checkpoint_equals_single_file(tiny, tmp_path: Path) -> None:
    model, folder = tiny("llama")
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    shards = sorted(tmp_path.glob("*-of-*.safetensors"))
    assert len(shards) > 2
    one, many = checkpoints.load_weights(folder), checkpoints.load_weights(tmp_path)
    for a, b in zip(one.layers(), many.layers()):
        np.testing.assert_array_equal(a.query, b.query)
        np.testing.assert_array_equal(a.output, b.output)
    assert checkpoints.load_weights(shards[1]).layer_count == one.layer_count
    assert checkpoints.load_model(tmp_path).model.config.num_hidden_layers == one.layer_count
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=r"half downloaded: 1 of \d+ shards are missing"):
        checkpoints.load_weights(tmp_path)
    (tmp_path / sources.INDEX).unlink()
    with pytest.raises(CheckpointError, match="half downloaded"):
        checkpoints.load_weights(tmp_path)


def test_index_that_points_outside_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "a-00001-of-00001.safetensors")
    (copy / sources.INDEX).write_text(json.dumps({"weight_map": {"x": "../secret.safetensors"}}))
    with pytest.raises(CheckpointError, match="points outside"):
        checkpoints.load_weights(copy)
    (copy / sources.INDEX).write_text("{")
    with pytest.raises(CheckpointError, match="not a shard index"):
        checkpoints.load_weights(copy)


def test_single_file_needs_its_config(copy: Path) -> None:
    file = copy / "model.safetensors"
    renamed = copy / "weights.safetensors"
    file.rename(renamed)
    assert checkpoints.load_weights(renamed).layer_count == 3
    assert checkpoints.load_weights(copy).layer_count == 3
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json.*beside the weights"):
        checkpoints.load_weights(renamed)
    assert checkpoints.load_weights(renamed, config=config).layer_count == 3
    shutil.copy(renamed, copy / "other.safetensors")
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="several checkpoints"):
        checkpoints.load_weights(copy)


@pytest.mark.parametrize("size", [0, 4, 200, -100])
def test_cut_safetensors(copy: Path, size: int) -> None:
    file = copy / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:size])
    for load in (checkpoints.load_weights, checkpoints.load_model):
        with pytest.raises(CheckpointError, match=r"not a complete safetensors file.*download it again"):
            load(copy)


@pytest.mark.parametrize(
    "header",
    [b"not json", b"[]", b'{"a": 3}', b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}'],
)
def test_damaged_safetensors_header(copy: Path, header: bytes) -> None:
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        checkpoints.load_weights(copy)


def test_config_and_weights_that_do_not_belong_together(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 3}))
    with pytest.raises(CheckpointError, match="do not belong together"):
        checkpoints.load_weights(copy).layer(0)
    (copy / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 9}))
    with pytest.raises(CheckpointError, match=r"'layers\.5.* is missing"):
        checkpoints.load_weights(copy).layer(5)
    with pytest.raises(CheckpointError, match=r"leaves \d+ parameters unset"):
        checkpoints.load_model(copy)
    (copy / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(CheckpointError, match="lacks the tensor"):
        checkpoints.load_weights(copy)
    (copy / "config.json").write_text(json.dumps({"hidden_size": 24}))
    with pytest.raises(CheckpointError, match="no model_type"):
        checkpoints.load_weights(copy)
    (copy / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        checkpoints.load_weights(copy)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".pkl"])
def test_pickles_are_never_opened(copy: Path, tmp_path: Path, suffix: str) -> None:
    trace = tmp_path / "exploded"
    pickled = copy / f"pytorch_model{suffix}"
    pickled.write_bytes(pickle.dumps(Bomb(trace)))
    (copy / "model.safetensors").unlink()
    for load in (checkpoints.load_weights, checkpoints.load_model):
        for source in (pickled, copy):
            with pytest.raises(CheckpointError, match=r"not opened.*save_pretrained"):
                load(source)
    assert not trace.exists()


def test_pickle_beside_safetensors_is_ignored(copy: Path, tmp_path: Path) -> None:
    trace = tmp_path / "exploded"
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(trace)))
    assert checkpoints.load_weights(copy).layer_count == 3
    checkpoints.load_model(copy)
    assert not trace.exists()


def test_missing_places(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no file or folder"):
        checkpoints.load_weights(tmp_path / "nothing.gguf")
    with pytest.raises(CheckpointError, match="no file or folder"):
        checkpoints.load_weights("a/b/c")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match=r"no \.safetensors weights"):
        checkpoints.load_weights(tmp_path)
    link = tmp_path / "model.safetensors"
    link.symlink_to(tmp_path / "blob-that-never-came")
    with pytest.raises(CheckpointError, match="half downloaded"):
        checkpoints.load_weights(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoints.load_weights(link)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CheckpointError, match="neither"):
        checkpoints.load_weights(tmp_path / "notes.txt")
    with pytest.raises(InvalidInputError, match="empty"):
        checkpoints.load_weights("")
    with pytest.raises(InvalidInputError, match="smollm2, minilm"):
        checkpoints.packaged("gpt5")


def hub_layout(folder: Path, root: Path, name: str) -> Path:
    """A hub cache that holds `folder` as repository `name`: blobs, a snapshot of links, and the ref of its branch."""
    repository = root / ("models--" + name.replace("/", "--"))
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for number, file in enumerate(sorted(folder.iterdir())):
        blob = repository / "blobs" / f"{number:040x}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(blob)
    return snapshot


def test_hub_id_from_the_local_cache(tiny, tmp_path: Path, monkeypatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = hub_layout(tiny("gpt2")[1], tmp_path, "someone/tiny-gpt2")
    weights = checkpoints.load_weights("someone/tiny-gpt2")
    assert weights.architecture == "gpt2"
    assert checkpoints.load_model("someone/tiny-gpt2").model.config.n_layer == 3
    (snapshot / "model.safetensors").resolve().unlink()
    with pytest.raises(CheckpointError, match="half downloaded"):
        checkpoints.load_weights("someone/tiny-gpt2")
    with pytest.raises(CheckpointError, match="hf download someone/else"):
        checkpoints.load_weights("someone/else")


def test_half_precision_and_quantised_tensors(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    wanted = torch.randn(5, 3)
    path = tmp_path / "a.safetensors"
    save_file(
        {"b": wanted.bfloat16(), "h": wanted.half(), "d": wanted.double(), "q": torch.zeros(4, dtype=torch.int8)}, path
    )
    file = SafetensorsFile(path)
    np.testing.assert_array_equal(file.read("b"), wanted.bfloat16().double().numpy())
    np.testing.assert_array_equal(file.read("h"), wanted.half().double().numpy())
    np.testing.assert_array_equal(file.read("d"), wanted.double().numpy())
    with pytest.raises(CheckpointError, match="quantised"):
        file.read("q")
    save_file({"n": torch.tensor([1.0, float("nan")])}, path)
    with pytest.raises(CheckpointError, match="NaN"):
        SafetensorsFile(path).read("n")


def test_written_safetensors_are_read_by_the_library(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b.c": np.ones(1, dtype=np.float32)}
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {name: array.shape for name, array in arrays.items()}, arrays.__getitem__)
    loaded = load_file(path)
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
    with pytest.raises(CheckpointError, match="announced"):
        write_safetensors(path, {"a": (3, 3)}, arrays.__getitem__)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 20])
def test_corrupt_gguf(tmp_path: Path, smollm2_cache: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    for load in (checkpoints.load_weights, checkpoints.load_model):
        with pytest.raises(CheckpointError, match=r"not a complete GGUF file.*download it again"):
            load(path)


def test_cut_gguf(tmp_path: Path, smollm2_cache: Path) -> None:
    real = checkpoints.packaged("smollm2")
    path = tmp_path / "cut.gguf"
    with real.open("rb") as file:
        path.write_bytes(file.read(4_000_000))
    with pytest.raises(CheckpointError, match="download it again"):
        checkpoints.load_weights(path)
    assert not list(smollm2_cache.rglob(".unfinished-*"))


def write_gguf(
    path: Path, architecture: str, tensors: dict[str, np.ndarray], factors: np.ndarray | None = None
) -> None:
    """A small GGUF file."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_context_length(32)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    shapes = {"attn_q": (16, 16), "attn_k": (8, 16), "attn_v": (8, 16), "attn_output": (16, 16)}
    tensors = {
        f"blk.0.{name}.weight": generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()
    }
    return {**tensors, "blk.0.attn_norm.weight": np.ones(16, dtype=np.float32)}


def test_gguf_of_other_architectures_and_layouts(tmp_path: Path, smollm2_cache: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "mamba", gguf_tensors())
    with pytest.raises(UnknownArchitectureError, match=r"'mamba'.*llama"):
        checkpoints.load_weights(tmp_path / "a.gguf")
    experts = {**gguf_tensors(), "blk.0.ffn_gate_exps.weight": np.ones((2, 2), dtype=np.float32)}
    write_gguf(tmp_path / "b.gguf", "llama", experts)
    with pytest.raises(UnknownArchitectureError, match="ffn_gate_exps"):
        checkpoints.load_weights(tmp_path / "b.gguf")
    write_gguf(tmp_path / "c.gguf", "llama", gguf_tensors())
    assert checkpoints.load_weights(tmp_path / "c.gguf").kv_head_count == 1
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match="GGUF files; give one of them"):
        checkpoints.load_weights(tmp_path)


def test_gguf_frequency_factors(tmp_path: Path, smollm2_cache: Path) -> None:
    from metastable.errors import UnsupportedError

    factors = np.array([1.0, 1.0, 2.0, 4.0], dtype=np.float32)
    write_gguf(tmp_path / "a.gguf", "llama", gguf_tensors(), factors)
    rope = checkpoints.load_weights(tmp_path / "a.gguf").rope
    assert rope is not None
    np.testing.assert_allclose(rope.frequencies, 10000.0 ** (-np.arange(0, 8, 2) / 8) / factors)
    with pytest.raises(UnsupportedError, match="factors"):
        checkpoints.load_model(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("package", "call"), [("gguf", "load_weights"), ("transformers", "load_model"), ("torch", "load_model")]
)
def test_missing_extra_names_it(tmp_path: Path, monkeypatch, package: str, call: str) -> None:
    import sys

    for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(MissingExtraError, match=r"metastable\[(transformers|weights)\]"):
        getattr(checkpoints, call)(path)


def test_missing_hub_library(monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"metastable\[(transformers|weights)\]"):
        checkpoints.load_weights("someone/something")


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METASTABLE_CACHE", str(tmp_path / "own"))
    assert conversions.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("METASTABLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert conversions.cache_folder() == tmp_path / "metastable"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert conversions.cache_folder() == Path.home() / ".cache" / "metastable"


def test_cache_that_cannot_be_written_says_so(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("METASTABLE_CACHE", str(tmp_path / "file"))
    write_gguf(tmp_path / "a.gguf", "llama", gguf_tensors())
    with pytest.raises(CheckpointError, match="METASTABLE_CACHE"):
        checkpoints.load_model(tmp_path / "a.gguf")


def test_an_old_transformers_is_refused_before_any_work(monkeypatch, tmp_path):
    """Versions below the promised one build other models than the checkpoint (a default rotary base): never silently."""
    import transformers

    for version in ("4.57.6", "5.5.4"):
        monkeypatch.setattr(transformers, "__version__", version)
        with pytest.raises(MissingExtraError, match=rf"5\.6 or newer, not {re.escape(version)}.*pip install --upgrade"):
            checkpoints.load_model(tmp_path / "nothing")


def test_the_promised_transformers_is_the_one_that_is_asked_for():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    promised = next(
        line for line in project["project"]["optional-dependencies"]["transformers"] if "transformers>" in line
    )
    assert promised == f"transformers>={'.'.join(map(str, library.LOWEST))}"
