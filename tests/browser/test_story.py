"""The story and the glossary: every step, served and from a folder, by mouse and by keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from metastable.explorer.export_site import export
from tests.browser.conftest import rerun, wait_until_done
from tests.unit.explorer.serving import Server

TITLES = (
    "Attention pulls",
    "Tokens gather",
    "Leaders hold",
    "Clusters merge",
    "The value matrix decides",
    "A real sentence in a real model",
)


def count(page: Page) -> str:
    return page.locator(".stage .count").first.inner_text()


def to_end(page: Page) -> None:
    page.locator("#scrub").evaluate("(node) => { node.value = 1; node.dispatchEvent(new Event('input')); }")


def at_step(page: Page, number: int) -> None:
    expect(page.locator(f"body.telling[data-step='{number}'] .stage[data-panel='0'][data-done]")).to_be_attached()
    expect(page.locator("#story h2")).to_have_text(TITLES[number - 1])
    expect(page.locator("#story h2")).to_be_focused()
    if page.evaluate("innerWidth > 1180"):  # all of a step is seen at once
        beyond = """() => [...document.querySelectorAll("#story h2, #story-next, #play, .chart.told, .chart.told .note")]
          .filter((node) => {
            const { top, bottom, right, width } = node.getBoundingClientRect();
            return top < 0 || bottom > innerHeight || right > innerWidth || !width;
          }).map((node) => node.id || node.className)"""
        assert page.evaluate(beyond) == []


def walk(page: Page) -> None:
    """Through all steps with the control of each."""
    expect(page.locator("#offer")).to_be_visible()
    page.click("#offer-yes")
    at_step(page, 1)
    expect(page.locator("#offer")).to_be_hidden()
    rerun(page, lambda: page.locator("#story-control").fill("20"))
    expect(page.locator(".stage .what").first).to_contain_text("n = 20")
    page.click("#story-next")
    at_step(page, 2)
    to_end(page)
    rerun(page, lambda: page.locator("#story-control").fill("0.2"))
    expect(page.locator(".stage .what").first).to_contain_text("β = 7.61")
    page.click("#story-next")
    at_step(page, 3)
    rerun(page, lambda: page.click("#story-control"))
    page.click("#story-next")
    at_step(page, 4)
    page.locator("#story-control").fill("0.9")
    expect(page.locator("#clock")).to_contain_text("10⁴²")
    expect(page.locator(".stage .count").first).to_have_text("2 clusters")
    page.locator("#story-control").fill("1")
    expect(page.locator(".stage .count").first).to_have_text("1 cluster")
    page.click("#story-next")
    at_step(page, 5)
    rerun(page, lambda: page.get_by_label("two opposite points").check())
    to_end(page)
    expect(page.locator(".stage .count").first).to_have_text("2 clusters")
    page.click("#story-next")
    at_step(page, 6)
    assert page.locator("#story .row").evaluate(
        "(row) => row.lastChild.offsetLeft + row.lastChild.offsetWidth <= row.offsetLeft + row.offsetWidth"
    )
    to_end(page)
    expect(page.locator("#clock")).to_have_text("layer 30 of 30")
    expect(page.locator(".stage .count").first).to_have_text("1 cluster")
    rerun(page, lambda: page.get_by_label("the whole model").check())
    to_end(page)
    expect(page.locator(".stage .count").first).to_have_text("19 clusters")
    page.click("#python")
    expect(page.locator("#code code")).to_contain_text('checkpoints.flow("smollm2")')
    page.locator("#code .close").click()
    page.go_back()
    expect(page.get_by_label("attention alone")).to_be_checked()
    page.click("#story-next")
    expect(page.locator("#story")).to_be_hidden()
    expect(page.locator("#form")).to_be_visible()
    expect(page.locator("#tell")).to_be_focused()
    wait_until_done(page)


def test_story_served(visit: Callable[..., Page]) -> None:
    page = visit()
    page.set_viewport_size({"width": 1280, "height": 720})  # a small laptop
    walk(page)
    page.reload()
    wait_until_done(page)
    expect(page.locator("#offer")).to_be_hidden()


def test_story_from_a_folder_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    """On a desktop it is walked through above: what the page shows does not depend on who computes."""
    export(tmp_path / "site", lambda text: None, recorded=())
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
    page.goto((tmp_path / "site" / "index.html").as_uri())
    wait_until_done(page)
    walk(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()
    assert not complaints


def test_glossary_by_keyboard_and_pointer(visit: Callable[..., Page]) -> None:
    page = visit()
    page.click("#tell")
    at_step(page, 1)
    page.keyboard.press("Tab")  # the first word of the text that has a meaning
    word, meaning = page.locator("#story .term").first, page.locator("#gloss")
    expect(word).to_be_focused()
    expect(meaning).to_be_visible()
    expect(meaning).to_contain_text("A piece of text")
    expect(word).to_have_attribute("aria-describedby", "gloss")
    page.keyboard.press("Escape")
    expect(meaning).to_be_hidden()
    expect(page.locator("#story")).to_be_visible()
    page.keyboard.press("Enter")
    expect(meaning).to_be_visible()
    page.click("#story-leave")
    expect(meaning).to_be_hidden()
    page.hover("#legend-strong")
    expect(meaning).to_contain_text("no earlier token at all within δ")
    page.mouse.move(700, 300)
    expect(meaning).to_be_hidden()
    playing = page.locator("#play").get_attribute("aria-label")
    page.locator("#form .term", has_text="inv. temp.").focus()
    expect(meaning).to_contain_text("How picky attention is")
    page.keyboard.press(" ")
    expect(meaning).to_be_hidden()
    assert page.locator("#play").get_attribute("aria-label") == playing
    # Every field, chart and line of the page has a word that explains itself.
    without = """() => [...document.querySelectorAll("#form .field, .chart:not(#lines-b) figcaption, #legend li, #verdict dt, .until")]
      .filter((node) => !node.matches(".field") || node.querySelector("span:not(.sr)"))
      .filter((node) => !node.matches(".term") && !node.querySelector(".term")).map((node) => node.textContent)"""
    assert page.evaluate(without) == []
    meanings = {
        "#verdict .term >> text=Predicted": "before anything is computed",
        "#verdict .term >> text=Reached": "when the run ends",
        "#form .term >> text=heads": "Several attentions at once",
        "#form .term >> text=weights": "How much each token that is seen counts",
        "#clusters figcaption .term >> text=Clusters": "how many theory expects",
    }
    for place, text in meanings.items():
        page.locator(place).first.focus()
        expect(meaning).to_contain_text(text)
        page.locator("#tell").focus()
        page.locator(place).first.hover()
        expect(meaning).to_contain_text(text)
    # The picture alone on the screen: its words explain themselves there too, and what is said is seen.
    page.click("#fullscreen")
    expect(page.locator("#look > #notice")).to_be_attached()
    page.hover("#legend-first")
    expect(meaning).to_contain_text("Under the causal mask")
    page.keyboard.press("Delete")
    expect(page.locator("#notice")).to_contain_text("Choose a token first")
    inside = "['#gloss', '#notice'].every((name) => document.fullscreenElement.contains(document.querySelector(name)))"
    assert page.evaluate(inside)
    page.click("#fullscreen")
    expect(page.locator("body > #notice")).to_be_attached()
    page.click("#help")
    page.click("#about .open-glossary")
    for name in (
        "Rényi center",
        "β",
        "δ",
        "Captured",
        "Strong center",
        "Cluster",
        "Metastable",
        "Merge",
        "Value matrix",
    ):
        expect(page.locator("#glossary dt", has_text=re.compile(f"^{name}")).first).to_be_visible()


def test_story_on_a_phone_on_its_side(browser: Browser, server: Server) -> None:
    """The picture and its clock stand beside the text, not over it."""
    context = browser.new_context(viewport={"width": 844, "height": 390}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(server.address)
    page.click("#tell")
    at_step(page, 1)
    for step in (1, 4):
        page.locator("#story .step").nth(step - 1).tap()
        at_step(page, step)
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        story, clock, picture = (page.locator(name).bounding_box() for name in ("#story", "#transport", "#stages"))
        assert story is not None
        assert clock is not None
        assert picture is not None
        assert max(box["x"] + box["width"] for box in (clock, picture)) <= story["x"]
        assert picture["height"] > 190
        assert 0 <= clock["y"] <= 390 - clock["height"]
    context.close()
