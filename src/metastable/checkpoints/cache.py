"""GGUF files converted once to a transformers folder (float32 safetensors, config, tokenizer) in the user's cache.

The folder is METASTABLE_CACHE, else XDG_CACHE_HOME/metastable, else ~/.cache/metastable. Entries are keyed by the content of
the file, written beside their place and moved there when complete, so an interrupted conversion leaves nothing half done.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from metastable import stores
from metastable.checkpoints.gguf_file import GgufFile
from metastable.checkpoints.library import library
from metastable.checkpoints.tensors import write_safetensors
from metastable.errors import CheckpointError, StoreError, StoreExistsError, UnsupportedError

CONVERSION = 1
"""Part of every key: raised when the conversion changes, so that old entries are not used."""


def cache_folder() -> Path:
    """Where conversions are kept; set METASTABLE_CACHE to move it."""
    chosen = os.environ.get("METASTABLE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "metastable"


def converted_folder(path: Path) -> Path:
    """Where the conversion of this GGUF file is, or would be."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return cache_folder() / "gguf" / f"{digest[:32]}-{CONVERSION}"


def convert_gguf(path: Path) -> Path:
    """The transformers folder of a GGUF file, made on the first call and found again later."""
    target = converted_folder(path)
    if target.is_dir():
        return target
    transformers = library("running a GGUF checkpoint")
    store = GgufFile(path)
    config = store.config
    if config["rope_parameters"]["rope_type"] == "factors":
        raise UnsupportedError(
            f"{path} rescales its rotary frequencies by stored factors, which transformers' Llama cannot express; "
            "its weights can be studied (load_weights), but to run it use the safetensors checkpoint of this model"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with stores.new_folder(target) as work:
            (work / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
            write_safetensors(work / "model.safetensors", store.shapes, store.load)
            _copy_tokenizer(transformers.AutoTokenizer, path, work)
    except StoreExistsError:
        pass  # another process finished the same conversion first: its result has the same content
    except (StoreError, OSError) as reason:
        if isinstance(reason, CheckpointError):
            raise
        raise CheckpointError(
            f"the cache {target.parent} cannot be written ({reason}); set METASTABLE_CACHE to a folder that can"
        ) from reason
    return target


def _copy_tokenizer(builder: Any, path: Path, folder: Path) -> None:
    """The tokenizer inside a GGUF file as the files that transformers reads."""
    try:
        tokenizer = builder.from_pretrained(str(path.parent), gguf_file=path.name)
    except Exception as reason:  # transformers' conversion trusts the file: anything can come out of a damaged one
        raise CheckpointError(f"the tokenizer of {path} cannot be read: {type(reason).__name__}: {reason}") from reason
    tokenizer.save_pretrained(str(folder))
