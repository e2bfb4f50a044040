"""The pages of `metastable flow` and `metastable meaning` on a desktop and on a phone: nothing is wider than the screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

SIZES = {"desktop": (1360, 850), "phone": (390, 844)}


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    from transformers import LlamaConfig, LlamaForCausalLM

    from metastable.cli.flow import flow
    from metastable.cli.meaning import meaning
    from tests.unit.checkpoints.flow_models import DECODER
    from tests.unit.checkpoints.test_flow_shown import byte_level

    place, tokenizer = tmp_path_factory.mktemp("pages"), byte_level()
    model = LlamaForCausalLM(LlamaConfig(**{**DECODER, "num_hidden_layers": 24, "vocab_size": len(tokenizer)}))
    for part in (model, tokenizer):
        part.save_pretrained(place / "tiny")
    text = place / "text.txt"
    text.write_text("it’s a page that is read on a phone", encoding="utf-8")
    flow(str(place / "tiny"), text=text, max_tokens=32, until=5.0, out=place / "flow")
    meaning(str(place / "tiny"), out=place / "meaning")
    return {"flow": place / "flow" / "report.html", "meaning": place / "meaning" / "meaning.html"}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["flow", "meaning"])
def test_a_page_fits_the_screen(name: str, size: str, pages: dict[str, Path], browser: Browser) -> None:
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(pages[name].as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # What is wider scrolls in a box of its own, and letters stay large enough to be read.
    small = page.evaluate(
        "Array.from(document.querySelectorAll('p, td, li')).filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length"
    )
    assert small == 0
    images = page.evaluate("Array.from(document.images).map(image => [image.naturalWidth > 0, image.clientWidth])")
    assert images
    assert all(there and wide >= min(width, 640) - 40 for there, wide in images)
    # Keys beside the picture are for the phone, where only a part of it is seen at a time.
    if name == "flow":
        assert page.locator(".key").first.is_visible() == (size == "phone")
    assert not complaints
    page.close()
