"""What is typed, linked and taken back: the page, its controls and its address always say the same.

All on the site without a server, opened as a file.
"""

from __future__ import annotations

import base64
import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

import metastable as ms
from metastable.errors import StoppedEarlyWarning
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


TYPOS = (
    ("[name=value-matrix]", "1 0 0\n0 1 0\n0 0 x", "“x” is not a number"),
    ("#until", "1e999", "“1e999” is too large a number"),
    ("[name=beta]", "1e999", "“1e999” is too large a number"),
    ("[name=seed]", "two", "“two” is not a number"),
)


def test_a_typo_is_said_and_loses_nothing(follow):
    address = link([SMALL], {"until": 20.0}, playing=False, at=0.5)
    page = follow(address)
    # A while after a link was followed the page writes the address in its own words.
    page.wait_for_function("given => location.hash !== given", arg=address)
    for number, (field, text, said) in enumerate(TYPOS, start=2):
        before = saved(page)
        enter(page, field, text)
        expect(page.locator("#notice")).to_contain_text(said)
        expect(page.locator(field)).to_have_attribute("aria-invalid", "true")
        assert saved(page) == before
        rerun(page, lambda seed=str(number): enter(page, "[name=seed]", seed))
        assert page.locator(field).get_attribute("aria-invalid") is None
    for act, seed in (("#undo", "4"), ("#undo", "3"), ("#redo", "4"), ("#redo", "5")):
        rerun(page, lambda act=act: page.click(act))
        expect(page.locator("[name=seed]")).to_have_value(seed)
        assert saved(page)["panels"][0]["start"]["seed"] == int(seed)
    enter(page, *TYPOS[0][:2])
    page.reload()
    wait_until_done(page)
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("[name=seed]")).to_have_value("5")
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
    # A page that is loaded anew knows its place: there is something to undo, and nothing to redo after going there and back.
    page.locator("[name=seed]").blur()
    page.reload()
    wait_until_done(page)
    expect(page.locator("#undo")).to_be_enabled()
    rerun(page, lambda: page.click("#undo"))
    rerun(page, lambda: page.click("#redo"))
    expect(page.locator("#redo")).to_be_disabled()


def test_the_control_of_the_story_follows(follow):
    page = follow(link([CIRCLE], {"until": 20.0}, playing=False, story=1))
    control, shown = page.locator("#story-control"), page.locator("#story .control output")
    box = control.bounding_box()
    across = lambda u: (box["x"] + u * box["width"], box["y"] + box["height"] / 2)  # noqa: E731
    page.mouse.move(*across(0.3))
    rerun(page, lambda: (page.mouse.down(), page.mouse.move(*across(0.8), steps=4), page.mouse.up()))
    assert int(control.input_value()) > 20
    page.go_back()
    expect(what(page)).to_contain_text("n = 12")
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
    # A V that is none of the choices any more: no choice claims to be it, and Back chooses it again.
    page.locator("#story .step").nth(4).click()
    choice = page.get_by_label("pulls alike everywhere")
    expect(choice).to_be_checked()
    wait_until_done(page)
    page.locator("#spectrum canvas").focus()
    rerun(page, lambda: page.keyboard.press("ArrowLeft"))
    expect(choice).not_to_be_checked()
    page.go_back()
    expect(choice).to_be_checked()


@pytest.mark.parametrize("view", [{"active": -1}, {"active": 0.5}, {"story": 3, "active": -1}, {"story": -2}])
def test_a_view_that_cannot_be_is_left_out(follow, view):
    page = follow(link([CIRCLE], {"until": 20.0}, playing=False, **view))
    expect(what(page)).to_contain_text("n = 12")
    rerun(page, lambda: page.evaluate("document.querySelector('#another').click()"))
    assert saved(page)["panels"][0]["start"]["seed"] == 1


def test_every_field_of_a_view_is_checked(follow):
    wrong = {"camera": [1e300, 1, 1, 1], "height": "sideways", "at": 7, "speed": 100, "color": "x", "trails": 1}
    page = follow(link([CIRCLE], {"until": 20.0}, **{**wrong, "playing": False}))
    rerun(page, lambda: page.click("#another"))
    assert set(saved(page)["view"]) <= {"playing", "at"}


def test_the_spectrum_of_several_heads_is_that_of_their_sum(follow):
    """Picture and number are of one matrix, which is named: the page of a single V with the same spectrum draws the same."""
    heads = [{"beta": 4.0}, {"beta": 4.0, "value": [[2, 0], [0, -1.5]]}]
    start, clock = {"tokens": 10}, {"until": 5.0}
    several = follow(link([{"model": {"dim": 2, "heads": heads}, "start": start}], clock, playing=False))
    single = follow(
        link([{"model": {"dim": 2, "beta": 4.0, "value": [[3, 0], [0, -0.5]]}, "start": start}], clock, playing=False)
    )
    # All but the lower edge, where it is said which matrix it is.
    picture = """(() => {
      const canvas = document.querySelector("#spectrum canvas"), { width, height } = canvas;
      return canvas.getContext("2d").getImageData(0, 0, width, Math.round(0.75 * height)).data.join();
    })()"""
    expect(several.locator("#spectrum")).to_have_attribute("data-of", "sum of 2 heads")
    expect(single.locator("#spectrum")).to_have_attribute("data-of", "")
    for page in (several, single):
        page.wait_for_timeout(200)
    assert several.evaluate(picture) == single.evaluate(picture)
    rerun(several, lambda: several.click("#compare"), 1)
    expect(several.locator("#spectrum")).to_have_attribute("data-of", "right: sum of 2 heads")


def test_a_long_run_stops_where_the_package_stops_and_says_why(follow):
    """The implicit method refuses beta above 350: its weights underflow."""
    model, until = {"dim": 2, "beta": 400.0}, 1e30
    page = follow(link([{"model": model, "start": {"tokens": 8}}], {"until": until, "log": True}, playing=False, at=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoppedEarlyWarning)
        run = ms.simulate(
            ms.Attention.from_dict(model), ms.sphere.uniform(8, dim=2, seed=0), until=until, max_steps=20_000
        )
    said = page.locator("#verdict .fine").first.inner_text()
    number = re.compile(r"t = ([\d.e+]+);")
    mine, theirs = number.search(said), number.search(run.message)
    assert mine, said
    assert theirs, run.message
    assert float(mine[1]) == pytest.approx(float(theirs[1]), rel=1e-2)
    assert number.sub("", run.message) in number.sub("", said)


def test_back_to_a_step_of_the_story_brings_its_view_back(follow):
    page = follow(link([CIRCLE], {"until": 20.0}, playing=False, story=1, centers=False, numbers=False))
    page.click("button.step >> nth=2")
    expect(page.locator("#story h2")).to_have_text("Leaders hold")
    expect(what(page)).to_contain_text("n = 200")
    assert "centers" not in saved(page)["view"]
    page.go_back()
    expect(what(page)).to_contain_text("n = 12")
    expect(page.locator("body")).to_have_attribute("data-step", "1")
    page.wait_for_timeout(400)  # the address is written soon, not at once
    assert saved(page)["view"]["centers"] is False
    assert saved(page)["view"]["numbers"] is False


def test_an_imaginary_part_that_is_typed_makes_a_pair(follow):
    table = {"dim": 3, "beta": 4.0, "value": {"eigenvalues": [[1.0, 0.0], [0.5, 0.0], [-1.0, 0.0]]}}
    page = follow(link([{"model": table, "start": {"tokens": 10}}], {"until": 5.0}, playing=False))
    values = lambda: saved(page)["panels"][0]["model"]["value"]["eigenvalues"]  # noqa: E731
    rerun(page, lambda: enter(page, "[name=eigen-0-imaginary]", "2"))
    assert values() == [[1, 2], [-1, 0]]
    expect(page.locator("[name=eigen-1-real]")).to_have_value("-1")
    enter(page, "[name=eigen-1-imaginary]", "1")
    expect(page.locator("#notice")).to_contain_text("comes with its conjugate")
    assert values() == [[1, 2], [-1, 0]]
    rerun(page, lambda: enter(page, "[name=eigen-0-imaginary]", "0"))
    assert values() == [[1, 0], [1, 0], [-1, 0]]


def test_the_horizon_that_noise_shortened_comes_back(follow):
    page = follow(link([CIRCLE], {"until": 1000.0, "log": True}, playing=False))
    until = page.locator("#until")
    enter(page, "[name=noise]", "0.3")
    expect(page.locator("#notice")).to_contain_text("the horizon was shortened")
    short = until.input_value()
    assert float(short) < 1000
    page.click("#undo")
    expect(until).to_have_value("1000")
    page.click("#redo")
    expect(until).to_have_value(short)
    page.reload()
    expect(until).to_have_value(short)
    enter(page, "[name=noise]", "0")
    expect(until).to_have_value("1000")


def test_a_horizon_that_is_shortened_while_a_slider_is_held_amends_no_entry(follow):
    page = follow(link([CIRCLE], {"until": 1000.0, "log": True}, playing=False))
    until, slider = page.locator("#until"), page.locator("[name=noise-slider]")
    slider.evaluate("(node) => { node.value = 300; node.dispatchEvent(new Event('input', { bubbles: true })); }")
    expect(page.locator("#notice")).to_contain_text("the horizon was shortened")
    short = until.input_value()
    assert float(short) < 1000
    slider.dispatch_event("change")
    page.click("#undo")
    expect(until).to_have_value("1000")
    expect(page.locator("[name=noise]")).to_have_value("0")
    expect(page.locator("#undo")).to_be_disabled()
    page.click("#redo")
    expect(until).to_have_value(short)


def test_a_change_right_after_a_link_was_followed_can_be_redone(context, address):
    """Timers come late on a busy machine: the first entry of the history must have its place before anything can change."""
    context.add_init_script(
        "const soon = window.setTimeout; window.setTimeout = (act, wait, ...more) => soon(act, wait >= 200 ? 1e6 : wait, ...more);"
    )
    page = context.new_page()
    page.goto(address + link([CIRCLE], {"until": 1000.0}, playing=False))
    wait_until_done(page)
    enter(page, "#until", "500")
    page.click("#undo")
    expect(page.locator("#until")).to_have_value("1000")
    page.click("#redo", timeout=10_000)
    expect(page.locator("#until")).to_have_value("500")


def test_a_reload_forgets_nothing_that_can_be_redone(follow):
    page = follow(link([CIRCLE], {"until": 1000.0}, playing=False))
    until = page.locator("#until")
    for text in ("500", "400", "300"):
        enter(page, "#until", text)
    for text in ("400", "500"):
        page.click("#undo")
        expect(until).to_have_value(text)
    page.reload()
    expect(until).to_have_value("500")
    for text in ("400", "300"):
        page.click("#redo")
        expect(until).to_have_value(text)
    expect(page.locator("#redo")).to_be_disabled()
    page.click("#undo")
    expect(until).to_have_value("400")
    enter(page, "#until", "350")  # ends what could be redone
    page.reload()
    expect(until).to_have_value("350")
    expect(page.locator("#undo")).to_be_enabled()
    expect(page.locator("#redo")).to_be_disabled()


KEYLESS = "Object.defineProperty(globalThis, 'navigation', { value: undefined });"
FORGETFUL = """
for (const how of ["pushState", "replaceState"]) {
    const write = history[how].bind(history);
    history[how] = (state, ...rest) => write(null, ...rest);
}
"""


@pytest.mark.parametrize("keys", [True, False])
def test_undo_knows_where_it_leads(context, address, keys):
    """Also where the browser has lost all that was written into the entry."""
    context.add_init_script(
        ("" if keys else KEYLESS)
        + "globalThis.lose = history.replaceState.bind(history); history.replaceState = () => {};"
    )
    page = context.new_page()
    page.goto(address + link([CIRCLE], {"until": 1000.0}, playing=False))
    wait_until_done(page)
    page.evaluate("(hash) => lose(null, '', hash)", link([CIRCLE], {"until": 1000.0}, playing=False, at=0.5))
    until = page.locator("#until")
    enter(page, "#until", "500")
    page.click("#undo")
    expect(until).to_have_value("1000")
    page.click("#redo")
    expect(until).to_have_value("500")
    page.click("#undo")
    expect(until).to_have_value("1000")
    expect(page.locator("#undo")).to_be_disabled()


def test_two_clicks_at_once_undo_no_more_than_there_is(follow):
    page = follow(link([CIRCLE], {"until": 1000.0}, playing=False))
    until = page.locator("#until")
    enter(page, "#until", "500")
    page.evaluate("() => { const undo = document.querySelector('#undo'); undo.click(); undo.click(); }")
    expect(until).to_have_value("1000")
    enter(page, "#until", "400")
    enter(page, "#until", "300")
    page.evaluate("() => { const undo = document.querySelector('#undo'); undo.click(); undo.click(); undo.click(); }")
    expect(until).to_have_value("1000")
    page.evaluate("() => { const redo = document.querySelector('#redo'); redo.click(); redo.click(); }")
    expect(until).to_have_value("300")
    expect(page.locator("#redo")).to_be_disabled()


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("anew", [False, True])
def test_entries_that_the_browser_forgot_are_known_by_their_key_or_address(context, address, anew, keys):
    """Back to them is no address that somebody typed, and ends nothing that could be redone."""
    context.add_init_script(FORGETFUL if keys else FORGETFUL + KEYLESS)
    page = context.new_page()
    page.goto(address + link([CIRCLE], {"until": 1000.0}, playing=False))
    wait_until_done(page)
    until, redo = page.locator("#until"), page.locator("#redo")
    for text in ("500", "400"):
        enter(page, "#until", text)
    page.click("#undo")
    expect(until).to_have_value("500")
    if anew:
        page.reload()
        wait_until_done(page)
    expect(redo).to_be_enabled()
    page.go_back()
    expect(until).to_have_value("1000")
    expect(page.locator("#undo")).to_be_disabled()
    for text in ("500", "400"):
        page.click("#redo")
        expect(until).to_have_value(text)
    expect(redo).to_be_disabled()


@pytest.mark.parametrize("before", [["77"], []])
def test_an_address_that_is_typed_is_the_next_entry(follow, before):
    """Also one that was on show before (and where one step could be redone, it is a neighbour's, and the number of entries stays): what
    could be redone is gone, and undo leads back."""
    page = follow(link([CIRCLE], {"until": 1000.0}, playing=False))
    until, first = page.locator("#until"), page.evaluate("location.hash")
    for text in ("500", "400"):
        enter(page, "#until", text)
    page.click("#undo")
    expect(until).to_have_value("500")
    typed = [(text, link([CIRCLE], {"until": float(text)}, playing=False)) for text in before]
    for text, hash_ in [*typed, ("1000", first)]:
        page.evaluate("(hash) => { location.hash = hash; }", hash_)
        expect(until).to_have_value(text)
        expect(page.locator("#redo")).to_be_disabled()
    for text in (*before, "500", "1000"):
        page.click("#undo")
        expect(until).to_have_value(text)
    expect(page.locator("#undo")).to_be_disabled()


def test_what_is_taken_away_says_the_layer(follow):
    page = follow(link([CIRCLE], {"until": 20.0}, playing=False, story=1))
    page.click("button.step >> nth=5")
    expect(page.locator("#clock")).to_contain_text("layer")
    page.click("#download")
    with page.expect_download() as waiting:
        page.click("#download-menu [data-format=svg]")
    drawing = waiting.value.path().read_text(encoding="utf-8")
    assert "of 30" in drawing
    assert "t = " not in drawing


def test_on_a_phone_everything_is_in_reach(browser, address):
    phone = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = phone.new_page()
    page.goto(address + link([CIRCLE], {"until": 20.0}, playing=False))
    wait_until_done(page)
    box = lambda name: page.locator(name).first.bounding_box()  # noqa: E731
    now, bar = box(".stage .now"), box("#transport")
    assert now["y"] + now["height"] <= bar["y"] or now["y"] >= bar["y"] + bar["height"]
    page.click("#download")
    menu = box("#download-menu")
    assert menu["x"] >= 0
    assert menu["x"] + menu["width"] <= 390
    page.keyboard.press("Escape")
    page.click("#help")
    assert page.evaluate("document.querySelector('#about').scrollTop") == 0
    page.click(".open-glossary")
    assert page.evaluate("document.querySelector('#glossary').scrollTop") == 0
    phone.close()


def test_an_enlarged_matrix_stays_square(follow):
    page = follow(link([CIRCLE], {"until": 20.0}, playing=False, at=1))
    page.locator("#attention .enlarge").click()
    drawn = page.locator("#large .plot canvas").first.bounding_box()
    assert drawn["width"] == pytest.approx(drawn["height"], rel=0.02)
    assert drawn["height"] > 300
