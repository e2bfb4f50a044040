"""Rotating is not editing, and edits can be taken back; views know of one another; pictures to take away."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.browser.conftest import link, rerun, wait_until_done
from tests.browser.test_everywhere import download
from tests.browser.test_faults import stage, what
from tests.browser.test_page import set_range, token_on_screen

SPHERE = {"model": {"dim": 3, "beta": 16.0}, "start": {"tokens": 24}}
CIRCLE = {"model": {"dim": 2, "beta": 16.0}, "start": {"tokens": 30}}


def state(page: Page) -> dict:
    """What the link of a page restores."""
    return page.evaluate("(async () => structuredClone((await import('/static/store.js')).store.state))()")


def test_a_drag_rotates_and_changes_nothing(visit):
    """Also where a token is under the pointer nearly everywhere: twelve drags over a ball of 400."""
    crowd = {"model": {"dim": 3, "beta": 4.0}, "start": {"tokens": 400}}
    page = visit(link([crowd], {"until": 2.0}, playing=False, at=0.5))
    box, before = stage(page), state(page)
    for k in range(12):
        x, y = box["x"] + box["width"] * (0.4 + 0.02 * k), box["y"] + box["height"] * (0.35 + 0.025 * k)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + 40, y + 25, steps=3)
        page.mouse.up()
    after = state(page)
    assert after["panels"] == before["panels"]
    assert after["view"]["at"] == before["view"]["at"] == 0.5
    assert after["view"]["camera"] is not None


def test_a_chosen_token_moves_and_time_stays(visit):
    page = visit(link([SPHERE], {"until": 20.0}, playing=False, at=0.6, origin="figure-1a"))
    x, y = token_on_screen(page)
    page.mouse.click(x, y)
    expect(page.locator("#delete")).to_be_enabled()
    page.mouse.down()
    page.mouse.move(x + 30, y + 20, steps=4)
    rerun(page, lambda: (page.mouse.move(x + 60, y + 40, steps=4), page.mouse.up()))
    now = state(page)
    assert len(now["panels"][0]["start"]["placed"]) == 1
    assert now["view"]["at"] == pytest.approx(0.6)
    expect(page.locator("#clock")).to_have_text("t = 12")
    expect(page.locator("#verdict .news")).to_contain_text(re.compile(r"Token \d+ was moved\."))
    expect(page.locator("#legend-ghost")).to_be_visible()
    expect(page.locator("#caption")).to_contain_text("Changed from “V = I: one point”")
    # Undo and redo by keys and by the browser's own buttons; the whole movement is one step.
    page.locator(".stage canvas").first.focus()
    rerun(page, lambda: page.keyboard.press("Control+z"))
    assert "placed" not in state(page)["panels"][0]["start"]
    assert state(page)["view"]["at"] == pytest.approx(0.6)
    rerun(page, lambda: page.keyboard.press("Control+Shift+Z"))
    assert state(page)["panels"] == now["panels"]
    rerun(page, page.go_back)
    assert "placed" not in state(page)["panels"][0]["start"]
    rerun(page, lambda: page.click("#reset"))
    expect(page.locator("#preset")).to_have_value("figure-1a")
    expect(what(page)).to_contain_text("n = 32")


def test_tokens_are_added_and_taken_out_where_one_edits(visit):
    page = visit(link([SPHERE], {"until": 10.0}, playing=False, at=0.3))
    page.click("#edit")
    expect(page.locator("#edit-hint")).to_be_visible()
    box = stage(page)
    for k in range(200):
        x, y = box["x"] + box["width"] * (0.4 + 0.2 * ((k * 0.618) % 1)), box["y"] + box["height"] * (0.4 + k / 1000)
        page.mouse.move(x, y)
        if "hand" not in (page.locator(".stage canvas").first.get_attribute("class") or ""):
            break
    rerun(page, lambda: page.mouse.click(x, y))
    expect(what(page)).to_contain_text("n = 25")
    expect(page.locator("#verdict .news")).to_contain_text("One token was appended. The 24 before")
    x, y = token_on_screen(page)
    page.mouse.click(x, y)
    expect(page.locator("#delete")).to_be_enabled()
    rerun(page, lambda: page.keyboard.press("Delete"))
    expect(what(page)).to_contain_text("n = 24")
    expect(page.locator("#verdict .news")).to_contain_text("One token was taken out.")
    rerun(page, lambda: page.click("#undo"))
    expect(what(page)).to_contain_text("n = 25")
    page.keyboard.press("Escape")
    expect(page.locator("#edit")).to_have_attribute("aria-pressed", "false")
    # The story is not a place to edit, and what has no button there has no key.
    page.click("#edit")
    page.click("#tell")
    expect(page.locator("#story h2")).to_be_focused()
    wait_until_done(page)
    for key in ("e", "a", "c", "t"):
        page.keyboard.press(key)
    page.wait_for_timeout(300)
    expect(page.locator("body")).not_to_have_class(re.compile("editing|pair"))
    assert state(page)["panels"][0]["start"] == {"tokens": 8, "seed": 0}
    assert not state(page)["clock"]["log"]


FARTHEST_FROM_THE_TOKEN = """async () => {
  // Lines of tokens that rest, drift, jump and change their cluster at any moment: how many pixels are they away from the tokens?
  const { Lines } = await import("/static/lines.js"), frames = 60;
  let points = [], worst = 0;
  const note = (x, y) => { points.push([x, y]); };
  const ctx = { beginPath: () => { points = []; }, moveTo: note, lineTo: note, stroke: () => {
    for (let i = 1; i < points.length; i++) for (let f = Math.ceil(points[i - 1][0]); f <= points[i][0]; f++) {
      const [[a, p], [b, q]] = [points[i - 1], points[i]];
      worst = Math.max(worst, Math.abs((a === b ? q : p + ((f - a) / (b - a)) * (q - p)) - values[f]));
    }
  } };
  let values, seed = 1;
  const random = () => { seed = (seed * 16807) % 2147483647; return seed / 2147483647; };
  for (let trial = 0; trial < 200; trial++) {
    let height = 100 * random(), leader = 0;
    const drift = 0.1 * random(), leaders = [];
    values = Array.from({ length: frames }, () => {
      if (random() < 0.06) height = 100 * random();
      if (random() < 0.06) leader = 1 - leader;
      leaders.push(leader);
      height += drift;
      return height;
    });
    const run = { tokens: 1, components: 1, frames, have: frames, positions: values, leader: (f) => leaders[f] };
    Lines.prototype.line.call({ ctx, inner: { x: 0, width: frames - 1 }, kind: "x1", y: (value) => value }, run, 0, () => "", 1, 1);
  }
  return worst;
}"""


SIDES_OF_A_TRAIL = """async () => {
  // A token that has gone around the ball: what is drawn in front of it, and what behind? Here the upper half is in front.
  const { drawTrails } = await import("/static/sphere.js"), frames = 24, up = 0.3, deep = Math.sqrt(1 - up * up);
  const at = (f) => { const a = (2 * Math.PI * f) / frames + 1; return [Math.cos(a), up * Math.sin(a), deep * Math.sin(a)]; };
  const positions = Array.from({ length: frames }, (_, f) => at(f)).flat(), last = at(frames - 1);
  const geometry = { cx: 0, cy: 0, R: 100, camera: { matrix: [1, 0, 0, 0, 1, 0, 0, 0, 1] } };
  return [true, false].map((front) => {
    const heights = [], note = (x, y) => { heights.push(y); };
    const ctx = { beginPath() {}, stroke() {}, moveTo: note, lineTo: note };
    const run = { tokens: 1, components: 3, dim: 3, positions }, place = { frame: frames - 1 };
    drawTrails(ctx, geometry, run, place, [100 * last[0], -100 * last[1], last[2]], () => "", frames, front);
    return heights.length > 8 && heights.every((y) => (front ? y <= 1e-9 : y >= -1e-9));
  });
}"""


def test_views_know_of_one_another(visit):
    """A token that is pointed at is shown everywhere: its row of attention, its line, its cluster."""
    page = visit(
        link(
            [CIRCLE, {**CIRCLE, "model": {**CIRCLE["model"], "mask": {"kind": "full"}}}], {"until": 20.0}, playing=False
        )
    )
    wait_until_done(page, 1)
    expect(page.locator("#energy")).to_be_visible()
    page.click("#compare")
    expect(page.locator(".stage").nth(1)).to_be_hidden()
    lines = page.locator("#lines .over")
    plain = lines.evaluate("canvas => canvas.toDataURL()")
    box = lines.bounding_box()
    for k in range(60):
        page.mouse.move(box["x"] + 60, box["y"] + 20 + 3 * k)
        if page.locator("#tip").is_visible():
            break
    token = re.match(r"token (\d+)", page.locator("#tip").inner_text())
    assert token
    expect(page.locator("#attention .key")).to_have_text(f"token {token[1]}")
    assert lines.evaluate("canvas => canvas.toDataURL()") != plain
    matrix = page.locator("#attention canvas").bounding_box()
    page.mouse.move(matrix["x"] + matrix["width"] / 2, matrix["y"] + 5.5 / 30 * matrix["height"])
    expect(page.locator("#tip")).to_contain_text("token 5")
    assert page.evaluate(FARTHEST_FROM_THE_TOKEN) < 1
    assert page.evaluate(SIDES_OF_A_TRAIL) == [True, True]


def test_other_starts_and_several_heads(visit):
    page = visit(link([CIRCLE], {"until": 5.0}, playing=False))
    rerun(page, lambda: page.select_option("[name=start]", "chain"))
    expect(page.locator("[name=start-chain-correlation]")).to_have_value("0.95")
    expect(what(page)).to_contain_text("start: a chain")
    rerun(page, lambda: page.select_option("[name=heads]", "2"))
    expect(what(page)).to_contain_text("2 heads")
    rerun(page, lambda: page.select_option("[name=head-1-value]", "eigenvalues"))
    expect(page.locator(".stage .problem").first).to_be_hidden()
    rerun(page, lambda: page.select_option("[name=heads]", "1"))
    expect(what(page)).to_contain_text("β = 16")
    # Tokens are taken out one by one, each once, until one is left.
    page.locator(".stage canvas").first.focus()
    twice = """() => [".", "Delete", ".", "Delete"]
      .forEach((key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })))"""
    rerun(page, lambda: page.evaluate(twice))
    expect(what(page)).to_contain_text("n = 29 ")
    assert state(page)["panels"][0]["start"]["removed"] == [0]
    rerun(page, lambda: (page.fill("[name=tokens]", "3"), page.press("[name=tokens]", "Enter")))
    page.locator(".stage canvas").first.focus()
    page.keyboard.press(".")
    rerun(page, lambda: page.keyboard.press("Delete"))
    expect(what(page)).to_contain_text("n = 1 ")
    page.keyboard.press(".")
    page.keyboard.press("Delete")
    expect(page.locator("#notice")).to_contain_text("The last token stays")
    expect(page.locator(".stage .problem").first).to_be_hidden()


def test_pictures_to_take_away(visit):
    page = visit(link([SPHERE], {"until": 20.0}, playing=False, at=0.5))
    name, body = download(page, "svg")
    assert name == "metastable.svg"
    drawing = ElementTree.fromstring(body)
    assert len(drawing.findall(".//{http://www.w3.org/2000/svg}path")) > 24
    assert b"t = 10" in body
    name, body = download(page, "gif")
    film = Image.open(io.BytesIO(body))
    assert film.n_frames == 60
    first = film.convert("RGB")
    film.seek(59)
    assert first.tobytes() != film.convert("RGB").tobytes()
    page.click("#download")
    page.click("#download-menu [data-format=embed]")
    expect(page.locator("#embed code")).to_contain_text("<iframe src=")
    page.keyboard.press("Escape")
    page.click("#fullscreen")
    expect(page.locator("#fullscreen")).to_have_attribute("aria-pressed", "true")
    page.click("#fullscreen")
    expect(page.locator("#fullscreen")).to_have_attribute("aria-pressed", "false")
    # A film is of one run: where another takes its place it is not finished, and that is said.
    page.evaluate(
        """() => {
          document.querySelector("#download-menu [data-format=gif]").click();
          Object.assign(document.querySelector("#preset"), { value: "figure-1c" }).dispatchEvent(new Event("change"));
        }"""
    )
    expect(page.locator("#notice")).to_contain_text("its film was not finished")


def test_a_change_of_the_clock_keeps_the_moment(visit):
    page = visit(link([CIRCLE], {"until": 40.0}, playing=False))
    set_range(page, "#scrub", 0.5)
    rerun(page, lambda: page.click("#log"))
    expect(page.locator("#clock")).to_have_text("t = 20")
    rerun(page, lambda: (page.fill("#until", "80"), page.press("#until", "Enter")))
    expect(page.locator("#clock")).to_have_text("t = 20")
