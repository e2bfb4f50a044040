"""What every test leaves as it found it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from metastable.model import declare


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
