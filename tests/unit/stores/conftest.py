import os

import pytest

from tests.unit.stores.breaking import Breaker


@pytest.fixture(scope="session")
def hook() -> Breaker:
    """One for all tests: audit hooks cannot be taken back."""
    return Breaker()


@pytest.fixture
def breaker(hook, monkeypatch) -> Breaker:
    monkeypatch.setattr(os, "fsync", hook.fsync)
    return hook
