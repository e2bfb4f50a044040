"""What is typed, linked and taken back: the page, its controls and its address always say the same. On the site without a server, as a file."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from metastable.explorer.export_site import export
from tests.browser.conftest import link, rerun, wait_until_done
from tests.browser.test_faults import what

MATRIX = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
SMALL = {"model": {"dim": 3, "beta": 9, "value": MATRIX}, "start": {"tokens": 20, "seed": 1}}
CIRCLE = {"model": {"dim": 2, "beta": 16.0}, "start": {"tokens": 12}}

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A site where every run is computed by the browser."""
    folder: Path = tmp_path_factory.mktemp("plain-site")
    export(folder, lambda text: None, recorded=())
    return (folder / "index.html").as_uri()


@pytest.fixture
def follow(context: BrowserContext, address: str) -> Iterator[Open]:
    """Follow a link; any complaint of the page fails the test."""
    complaints: list[str] = []

    def go(hash_: str, done: bool = True) -> Page:
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
        page.goto(address + hash_)
        if done:
            wait_until_done(page)
        return page

    yield go
    assert not complaints


def saved(page: Page) -> dict:
    """What the address of a page restores."""
    text = page.evaluate("location.hash").removeprefix("#s=")
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def enter(page: Page, field: str, text: str) -> None:
    page.fill(field, text)
    page.locator(field).blur()


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("[name=value-matrix]", "1 0 0\n0 1 0\n0 0 x", "“x” is not a number"),
        ("#until", "1e999", "“1e999” is too large a number"),
        ("[name=beta]", "1e999", "“1e999” is too large a number"),
        ("[name=seed]", "two", "“two” is not a number"),
    ],
)
def test_a_typo_is_said_and_loses_nothing(follow, field, text, said):
    page = follow(link([SMALL], {"until": 20.0}, playing=False, at=0.5))
    rerun(page, lambda: enter(page, "[name=seed]", "2"))
    before = saved(page)
    enter(page, field, text)
    expect(page.locator("#notice")).to_contain_text(said)
    expect(page.locator(field)).to_have_attribute("aria-invalid", "true")
    assert saved(page) == before
    rerun(page, lambda: enter(page, "[name=seed]", "3"))
    assert page.locator(field).get_attribute("aria-invalid") is None
    for act, seed in (("#undo", "2"), ("#undo", "1"), ("#redo", "2"), ("#redo", "3")):
        rerun(page, lambda act=act: page.click(act))
        expect(page.locator("[name=seed]")).to_have_value(seed)
        assert saved(page)["panels"][0]["start"]["seed"] == int(seed)
    page.reload()
    wait_until_done(page)
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("[name=seed]")).to_have_value("3")
    assert saved(page)["panels"][0]["model"] == SMALL["model"]
    assert saved(page)["clock"]["until"] == 20


def test_a_field_with_the_focus_follows_back_and_undo(follow):
    page = follow(link([CIRCLE], {"until": 20.0}, playing=False))
    rerun(page, lambda: (page.fill("[name=tokens]", "50"), page.press("[name=tokens]", "Enter")))
    rerun(page, page.go_back)
    expect(page.locator("[name=tokens]")).to_be_focused()
    expect(page.locator("[name=tokens]")).to_have_value("12")
    expect(what(page)).to_contain_text("n = 12")
    rerun(page, lambda: (page.fill("[name=tokens]", "30"), page.press("[name=tokens]", "Enter")))
    rerun(page, lambda: page.keyboard.press("Control+z"))
    expect(page.locator("[name=tokens]")).to_have_value("12")
    rerun(page, lambda: (page.fill("#until", "50"), page.press("#until", "Enter")))
    rerun(page, page.go_back)
    expect(page.locator("#until")).to_have_value("20")
    # What is being typed is left alone, also when something arrives meanwhile.
    page.locator("[name=seed]").focus()
    page.keyboard.type("7")
    rerun(page, lambda: page.evaluate("document.querySelector('#another').click()"))
    assert "7" in page.input_value("[name=seed]")


def test_the_control_of_the_story_follows(follow):
    page = follow(link([CIRCLE], {"until": 20.0}, playing=False, story=1))
    control, shown = page.locator("#story-control"), page.locator("#story .control output")
    box = control.bounding_box()
    across = lambda u: (box["x"] + u * box["width"], box["y"] + box["height"] / 2)  # noqa: E731
    page.mouse.move(*across(0.3))
    page.mouse.down()
    page.mouse.move(*across(0.8), steps=4)
    rerun(page, page.mouse.up)
    assert int(control.input_value()) > 20
    rerun(page, page.go_back)
    expect(shown).to_have_text("12")
    expect(control).to_have_value("12")
    page.goto(page.url.split("#")[0] + link([CIRCLE], {"until": 1e3, "log": True}, playing=False, story=4))
    page.reload()
    wait_until_done(page)
    box = control.bounding_box()
    page.mouse.click(*across(0.3))
    assert float(control.input_value()) == pytest.approx(0.3, abs=0.05)
    page.keyboard.press("Space")
    page.wait_for_function("Number(document.querySelector('#story-control').value) > 0.5")


@pytest.mark.parametrize("view", [{"active": -1}, {"active": 0.5}, {"story": 3, "active": -1}, {"story": -2}])
def test_a_view_that_cannot_be_is_left_out(follow, view):
    page = follow(link([CIRCLE], {"until": 20.0}, playing=False, **view))
    expect(what(page)).to_contain_text("n = 12")
    rerun(page, lambda: page.click("#another"))
    assert saved(page)["panels"][0]["start"]["seed"] == 1


def test_every_field_of_a_view_is_checked(follow):
    wrong = {"camera": [1e300, 1, 1, 1], "height": "sideways", "at": 7, "speed": 100, "color": "x", "trails": 1}
    page = follow(link([CIRCLE], {"until": 20.0}, **{**wrong, "playing": False}))
    rerun(page, lambda: page.click("#another"))
    assert set(saved(page)["view"]) <= {"playing", "at"}
