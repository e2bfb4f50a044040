"""Keyboard alone, a phone, dark and light, downloads, a server that goes away, speed and memory."""

from __future__ import annotations

import io
import os
import re
import time
import tomllib
import zipfile

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

import metastable as ms
from tests.browser.conftest import DESKTOP, PATIENCE, link, rerun, wait_until_done
from tests.browser.test_page import position, reached
from tests.unit.explorer.serving import Server

PLAY_SECONDS = float(os.environ.get("METASTABLE_PLAY_SECONDS", "12"))
"""How long the memory test plays; 120 for the full one."""


def focus(page: Page, selector: str, limit: int = 80) -> None:
    """Reach an element with the Tab key alone."""
    for _ in range(limit):
        if page.evaluate("(selector) => document.activeElement?.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} cannot be reached with the Tab key")


def test_keyboard_alone(visit):
    page = visit("#preset=figure-1c")
    page.keyboard.press("Space")
    expect(page.locator("#play")).to_have_attribute("aria-label", "Play")
    page.keyboard.press("Home")
    assert position(page) == 0
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert position(page) == pytest.approx(2 / 360, abs=1e-3)
    page.keyboard.press("End")
    assert position(page) == 1
    focus(page, "#preset")
    focus(page, "#stages canvas")
    page.keyboard.press(".")
    page.keyboard.press(".")
    expect(page.locator("#tip")).to_contain_text("token 1")
    rerun(page, lambda: page.keyboard.press("Alt+ArrowUp"))
    expect(page.locator("#verdict .news")).to_contain_text("Token 1 was moved.")
    focus(page, "#scrub")
    page.keyboard.press("ArrowRight")
    focus(page, "[name=tokens-slider]")
    rerun(page, lambda: page.keyboard.press("ArrowRight"))
    expect(page.locator(".stage .what").first).to_contain_text("n = 33")
    focus(page, "#spectrum canvas")
    page.keyboard.press(".")
    rerun(page, lambda: page.keyboard.press("ArrowUp"))
    expect(page.locator("#verdict .predicted")).to_have_text("one point rotating in L")
    page.keyboard.press("Escape")
    rerun(page, lambda: page.keyboard.press("a"))
    expect(page.locator(".stage .what").first).to_contain_text("n = 34")
    page.keyboard.press("c")
    expect(page.locator(".stage").nth(1)).to_be_visible()
    wait_until_done(page, 1)


def test_focus_is_visible_and_everything_has_a_name(visit):
    page = visit("#preset=figure-2")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, textarea, canvas[tabindex]')]
            .filter((node) => !(node.getAttribute('aria-label') || node.textContent.trim() || node.closest('label')))
            .map((node) => node.outerHTML)"""
    )
    assert nameless == []
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize("preset", ["figure-2", "full-causal"])
def test_on_a_phone(browser, server, preset):
    context = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(f"{server.address}#preset={preset}")
    wait_until_done(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator(".stage canvas").first.bounding_box()
    assert box["width"] > 300
    assert box["height"] > 250
    page.locator("#play").tap()
    expect(page.locator("#play")).to_have_attribute("aria-label", "Play")
    page.locator("[name=beta]").scroll_into_view_if_needed()
    rerun(page, lambda: (page.fill("[name=beta]", "20"), page.press("[name=beta]", "Enter")))
    expect(page.locator(".stage .what").first).to_contain_text("β = 20")
    if preset == "full-causal":  # the small pictures over the settings stand as the large ones do
        left, right = (page.locator(f".stage[data-panel='{panel}']").bounding_box() for panel in (0, 1))
        assert left["x"] + left["width"] <= right["x"]
        assert right["x"] + right["width"] <= 390
    context.close()


def test_light_and_dark(visit, browser, server):
    page = visit("#preset=figure-1c")
    light = page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor") != light
    context = browser.new_context(color_scheme="dark", reduced_motion="reduce")
    dark = context.new_page()
    dark.goto(f"{server.address}#preset=figure-2")
    wait_until_done(dark)
    expect(dark.locator("html")).to_have_attribute("data-theme", "dark")
    # Who asked for less motion starts the film by hand.
    assert position(dark) == 0
    context.close()


def download(page: Page, kind: str) -> tuple[str, bytes]:
    with page.expect_download(timeout=4 * PATIENCE) as waiting:
        page.click("#download")
        page.click(f"#download-menu [data-format={kind}]")
    with open(waiting.value.path(), "rb") as file:
        return waiting.value.suggested_filename, file.read()


def test_downloads_arrive_and_open(visit, tmp_path):
    page = visit("#preset=figure-1c")
    name, body = download(page, "png")
    assert name == "metastable.png"
    assert Image.open(io.BytesIO(body)).size[0] > 800
    name, body = download(page, "csv")
    table = np.genfromtxt(io.BytesIO(body), delimiter=",", names=True)
    assert set(table["token"]) == set(range(32))
    name, body = download(page, "zarr")
    zipfile.ZipFile(io.BytesIO(body)).extractall(tmp_path)
    run = ms.load(tmp_path / "run.zarr")
    last = table[table["time"] == 5000.0]
    np.testing.assert_allclose(np.column_stack([last[f"x{k}"] for k in (1, 2, 3)]), run.final, atol=1e-12)
    name, body = download(page, "toml")
    assert ms.Attention.from_dict(tomllib.loads(body.decode())["model"]) == run.model
    name, body = download(page, "mp4")
    assert name == "run.mp4"
    assert body[4:8] == b"ftyp"
    assert len(body) > 10_000


def test_a_server_that_goes_away_and_comes_back(context):
    server = Server(workers=1).start()
    page = context.new_page()
    page.goto(f"{server.address}#preset=figure-2")
    wait_until_done(page)
    server.stop()
    expect(page.locator("#notice")).to_contain_text("not answering")
    page.keyboard.press("Home")
    assert position(page) == 0
    before = page.locator(".stage").first.get_attribute("data-done")
    server.start()
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator(".stage").first).not_to_have_attribute("data-done", before)
    wait_until_done(page)
    rerun(page, lambda: (page.fill("[name=beta]", "30"), page.press("[name=beta]", "Enter")))
    expect(reached(page)).to_contain_text("clusters")
    page.close()
    server.stop()


def test_several_pages_at_once(visit):
    pages = [visit(f"#preset={name}", done=False) for name in ("figure-2", "figure-1c", "figure-1d")]
    for page, words in zip(pages, ("7 clusters", "two points", "a cloud")):
        wait_until_done(page)
        expect(reached(page)).to_contain_text(words)


def test_pictures_and_memory_while_playing(visit, context):
    page = visit("#preset=sphere")
    rerun(page, lambda: (page.fill("[name=tokens]", "500"), page.press("[name=tokens]", "Enter")))
    client = context.new_cdp_session(page)

    def heap() -> float:
        client.send("HeapProfiler.collectGarbage")
        return client.send("Runtime.getHeapUsage")["usedSize"] / 2**20

    page.select_option("#speed", "2")
    rates, sizes, pictures, places = [], [], [], []
    page.locator("#stages canvas").first.focus()
    end = time.monotonic() + PLAY_SECONDS
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    while time.monotonic() < end:
        page.wait_for_timeout(1500)
        rates.append(float(page.locator("html").get_attribute("data-fps") or 0))
        sizes.append(heap())
        pictures.append(page.locator("#stages canvas").first.screenshot())
        places.append(position(page))
        if page.locator("#play").get_attribute("aria-label") == "Play":
            page.keyboard.press("Space")
    print(f"\nn = 500: {np.median(rates):.0f} frames per second (median), {min(rates):.0f} at the least")
    print(
        f"heap {sizes[0]:.1f} MiB at first, {sizes[-1]:.1f} MiB after {PLAY_SECONDS:g} s, {max(sizes):.1f} MiB at the most"
    )
    # It plays: the clock moves and so does the picture (the run may end, and wait for the next look, now and then).
    assert len(set(places)) > len(places) / 2
    assert len(set(pictures)) > len(pictures) / 2
    assert sizes[-1] < sizes[0] + 10


def test_reads_well_at_any_width(visit):
    page = visit("#preset=figure-2")
    for width in (360, 600, 900, 1100, DESKTOP["width"], 2000):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator(".stage canvas").first.bounding_box()["height"] > 150
    assert re.search("t = ", page.locator("#clock").inner_text())


def test_twenty_tabs(visit):
    """All of them are served by the same two workers, and each shows its own run."""
    setting = lambda k: {"model": {"dim": 2, "beta": 16.0}, "start": {"tokens": 10 + k}}  # noqa: E731
    pages = [visit(link([setting(k)], {"until": 10.0}, playing=False), done=False) for k in range(20)]
    for k, page in enumerate(pages):
        wait_until_done(page)
        expect(page.locator(".stage .what").first).to_contain_text(f"n = {10 + k} ")
