"""Screenshots for docs/explorer.md and the README: `python docs/explorer_images.py` (needs Chromium and the extra `dev`)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
SIZE = {"width": 1440, "height": 900}
PATIENCE = 120_000
"""Milliseconds to wait for a run."""
SCENES = (
    ("explorer-sphere", "sphere", "dark", 0.61),
    ("explorer-circle", "figure-2", "light", 0.27),
    ("explorer-cascade", "cascade", "light", 0.45),
    ("explorer-compare", "norms", "dark", 0.63),
)
"""Name, preset, colours, and place of the clock."""
DONE = ".stage[data-panel='{}'][data-done]"
"""A panel whose run is complete."""
STORY = 4
"""The step of the story that is shown."""


def show(page: Page, address: str, preset: str, at: float) -> None:
    """The page with the finished run of a preset by the package's own engine, the clock at a fraction of its horizon."""
    for _ in range(20):
        page.goto("about:blank")
        page.goto(f"{address}#preset={preset}")
        page.wait_for_selector(DONE.format(0), state="attached", timeout=PATIENCE)
        if page.locator(".stage").nth(1).is_visible():
            page.wait_for_selector(DONE.format(1), state="attached", timeout=PATIENCE)
        if "engine browser" not in page.inner_text("#verdict"):
            break
        page.wait_for_timeout(3000)  # the engine is still being compiled, and the browser stood in for it
    page.locator("#scrub").evaluate(
        "(node, at) => { node.value = at; node.dispatchEvent(new Event('input', { bubbles: true })); }", at
    )
    page.wait_for_selector("#attention[data-frame]", state="attached", timeout=PATIENCE)
    page.wait_for_timeout(1500)


def draw(browser: Browser, address: str) -> None:
    """All pictures, from the server at `address`."""
    for name, preset, colors, at in SCENES:
        page = browser.new_page(viewport=SIZE, color_scheme=colors)  # type: ignore[arg-type]
        show(page, address, preset, at)
        page.screenshot(path=IMAGES / f"{name}.png")
        if name == "explorer-circle":
            page.locator("#lines .enlarge").click()
            page.wait_for_selector("#large .drawing[data-drawn]", timeout=PATIENCE)
            page.wait_for_timeout(500)
            page.screenshot(path=IMAGES / "explorer-chart.png")
        page.close()
    page = browser.new_page(viewport=SIZE, color_scheme="light")
    page.goto(address)
    page.click("#tell")
    page.locator("#story .step").nth(STORY - 1).click()
    page.wait_for_selector(f"body[data-step='{STORY}'] .stage[data-done]", state="attached", timeout=PATIENCE)
    page.locator("#story-control").fill("0.4")
    page.wait_for_timeout(1500)
    page.screenshot(path=IMAGES / "explorer-story.png")


def main() -> None:
    command = [sys.executable, "-m", "metastable", "explore", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        try:
            assert server.stdout is not None
            address = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            draw(browser, address)
            browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
