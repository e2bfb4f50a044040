"""What every test leaves as it found it; and tests that run side by side compile a function once."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from metastable.model import declare


def pytest_configure(config: pytest.Config) -> None:
    """Two workers that want the same function compiled: one does it, the other waits and reads the cache."""
    # Tests of Ctrl-C send it: a shell that starts them in the background has them, and all that they start, ignore it.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    compile_now = Dispatcher.compile

    def compile_once(self: Any, signature: Any) -> Any:
        store = getattr(self._cache, "_cache_file", None)  # none: a part of others, which is not kept
        if store is None:
            return compile_now(self, signature)
        kind = hashlib.sha256(str(signature).encode()).hexdigest()[:16]
        # Numba's own lock first, as whoever compiles has it: two threads that took them in either order would wait for each other.
        with global_compiler_lock, FileLock(f"{store._index_path}.{kind}.lock"):
            return compile_now(self, signature)

    Dispatcher.compile = compile_once


@pytest.fixture(scope="session")
def smollm2_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of our own, so that tests neither use nor fill the user's: SmolLM2 is in it, converted once for all workers."""
    from metastable.checkpoints import packaged
    from metastable.checkpoints.cache import convert_gguf

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "metastable-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METASTABLE_CACHE", str(folder))
        with FileLock(f"{folder}.lock"):
            convert_gguf(packaged("smollm2"))
        yield folder


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Kinds of norms, masks, weights and biases that a test makes are forgotten after it."""
    before = {family: dict(kinds) for family, kinds in declare.REGISTRY.items()}
    yield
    for family, kinds in before.items():
        declare.REGISTRY[family].clear()
        declare.REGISTRY[family].update(kinds)


@pytest.fixture(autouse=True)
def figures() -> Iterator[None]:
    """Figures that a test leaves open are closed after it."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
