"""How many finished pictures a second the explorer shows while a slider is dragged: `python -m benchmarks.drag [tokens] [seconds]`.

A server with two workers and Chromium; beta is dragged to and fro at the end of a run of Figure 2 (t = 200). A picture counts when it
is drawn at the moment that is looked at, with its clusters.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time

from playwright.sync_api import sync_playwright

from tests.unit.explorer.serving import Server


def measure(tokens: int, seconds: float) -> tuple[int, int]:
    """Pictures and requests while beta is dragged for so many seconds."""
    server = Server().start().warm()
    sent: list[str] = []
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1360, "height": 850})
            page.on("websocket", lambda socket: socket.on("framesent", lambda text: sent.append(str(text))))
            page.goto(f"{server.address}#preset=figure-2")
            page.wait_for_selector(".stage[data-done]", state="attached")
            page.fill("[name=tokens]", str(tokens))
            page.press("[name=tokens]", "Enter")
            page.wait_for_timeout(2000)
            page.wait_for_selector(".stage[data-done]", state="attached")
            page.locator(".stage canvas").first.focus()
            page.keyboard.press("End")
            slider = page.locator("[name=beta-slider]").bounding_box()
            assert slider is not None
            middle = slider["y"] + slider["height"] / 2
            seen = lambda: int(page.locator(".stage").first.get_attribute("data-seen") or 0)  # noqa: E731
            page.mouse.move(slider["x"] + 0.6 * slider["width"], middle)
            page.mouse.down()
            before, asked, began = seen(), len(sent), time.monotonic()
            while (now := time.monotonic() - began) < seconds:
                page.mouse.move(slider["x"] + slider["width"] * (0.6 + 0.15 * math.sin(1.5 * now)), middle)
                page.wait_for_timeout(16)
            result = seen() - before, sum('"simulate"' in text for text in sent[asked:])
            page.mouse.up()
            browser.close()
            return result
    finally:
        server.stop()


def main() -> None:
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
    pictures, requests = measure(tokens, seconds)
    rate, load = pictures / seconds, os.getloadavg()[0]
    print(
        f"n = {tokens}: {pictures} pictures of {requests} requests in {seconds:g} s, {rate:.1f} a second (load {load:.1f})"
    )


if __name__ == "__main__":
    main()
