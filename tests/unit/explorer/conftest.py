from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.explorer.serving import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests of a session (per worker process of the test runner)."""
    running = Server().start().warm()
    yield running
    running.stop()
