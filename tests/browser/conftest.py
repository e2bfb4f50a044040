"""Chromium, a server of the explorer, and pages that must not complain."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.unit.explorer.serving import Server

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-precise-memory-info",
]
DESKTOP = {"width": 1360, "height": 850}
PATIENCE = 120_000
"""Milliseconds to wait for a run: generous, because machines that test are busy."""

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    running = Server().start().warm()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        own = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        started = playwright.chromium.launch(executable_path=own, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport=DESKTOP, accept_downloads=True)
    made.set_default_timeout(PATIENCE)
    yield made
    made.close()


@pytest.fixture
def visit(context: BrowserContext, server: Server) -> Iterator[Callable[..., Page]]:
    """Open the explorer at a link; any complaint of the page fails the test."""
    complaints: list[str] = []

    def go(link: str = "", done: bool = True) -> Page:
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
        page.goto(server.address + link)
        if done:
            wait_until_done(page)
        return page

    yield go
    assert not complaints


def wait_until_done(page: Page, panel: int = 0) -> None:
    """Wait for the run of a panel."""
    expect(page.locator(f".stage[data-panel='{panel}'][data-done]")).to_be_attached()


def rerun(page: Page, act: Callable[[], object], panel: int = 0) -> None:
    """Do something that changes the setting and wait for the run that follows from it."""
    stage = page.locator(f".stage[data-panel='{panel}']")
    before = stage.get_attribute("data-done")
    act()
    for _ in range(PATIENCE // 100):
        now = stage.get_attribute("data-done")
        if now is not None and now != before:
            return
        page.wait_for_timeout(100)
    raise AssertionError("no new run came")


def link(panels: object, clock: object, **view: object) -> str:
    """An address that restores this state."""
    data = json.dumps({"panels": panels, "clock": clock, "view": view}).encode()
    return "#s=" + base64.urlsafe_b64encode(data).decode().rstrip("=")
