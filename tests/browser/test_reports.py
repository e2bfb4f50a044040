"""The pages of `metastable flow`, `meaning` and `reproduce` on a desktop and on a phone: nothing is wider than the screen."""

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
    # Boxes that scroll reach their ends: the right-hand panel of a picture can be seen.
    reached = page.evaluate(
        "Array.from(document.querySelectorAll('.scroll')).map(box => { box.scrollLeft = 1e5;"
        " const inner = box.firstElementChild.getBoundingClientRect(), outer = box.getBoundingClientRect();"
        " return inner.right - outer.right; })"
    )
    assert reached
    assert max(reached) <= 1
    if name == "meaning":
        # The words of a head are read without scrolling: on a phone they are below one another.
        wide = page.evaluate(
            "(box => box.scrollWidth - box.clientWidth)(document.querySelector('.words').parentElement)"
        )
        assert wide <= (0 if size == "phone" else 400)
        lists = page.evaluate(
            "Array.from(document.querySelectorAll('.words td.w')).map(e => e.getBoundingClientRect().right)"
        )
        assert size == "desktop" or max(lists) <= width
    # Keys beside the picture are for the phone, where only a part of it is seen at a time.
    if name == "flow":
        assert page.locator(".key").first.is_visible() == (size == "phone")
    assert not complaints
    page.close()


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory) -> Path:
    """Two papers of one item each: a figure with two panels and one with a single one, and words that do not break."""
    from metastable.figures import statements
    from metastable.reproduce import Finding, Paper, Recipe, Settings
    from metastable.reproduce.runner import run_papers, select

    def measure(parameters, settings, report):
        import xarray as xr

        return xr.Dataset(attrs={"panels": parameters["panels"]})

    def draw(data):
        plot = statements.Plot("title", "x", "y", [statements.Curve("curve", [0, 1], [0, 1])])
        return statements.plots([plot] * data.attrs["panels"])

    def judge(data):
        return [Finding("e^(-pi^2 m^2/(2 M^2)) " * 9, "0.123456789," * 40, "exact", "disagrees")]

    papers = []
    for panels in (1, 2):
        parameters = {"panels": panels, "a_long_name_of_a_parameter": tuple(range(60))}
        item = Recipe("item", f"Item with {panels}", "says", parameters, measure, judge, draw)
        papers.append(Paper(f"paper-{panels}", f"Paper {panels}", "A. Author", "It says something.", (item,)))
    out = tmp_path_factory.mktemp("reproduced")
    run_papers(select([], papers), Settings(), out, "metastable reproduce --paper all")
    return out


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["index.html", "paper-1/report.html", "paper-2/report.html"])
def test_reproduced_papers_fit_the_screen(name: str, size: str, reproduced: Path, browser: Browser) -> None:
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto((reproduced / name).as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # What is wider than its box says so, and nothing else scrolls.
    moving = page.evaluate(
        "Array.from(document.querySelectorAll('*')).filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth"
        " && ['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX)).map(e => e.tagName)"
    )
    wide = size == "phone" and name.startswith("paper-2")
    assert moving == (["FIGURE"] if wide else [])
    assert page.locator(".hint").count() == int(name.startswith("paper-2"))
    assert not name.startswith("paper-2") or page.locator(".hint").is_visible() == wide
    # A single panel is not blown up to the width of a page, and is seen whole on a phone.
    if name.startswith("paper-1"):
        assert page.evaluate("document.images[0].clientWidth") <= (560 if size == "desktop" else width)
    page.close()
