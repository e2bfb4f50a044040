"""What once went wrong in the page, one test each: it must not come back."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect
from websockets.sync.client import connect

import metastable as ms
from tests.browser.conftest import PATIENCE, link, rerun, wait_until_done
from tests.browser.test_page import position, set_range, token_on_screen
from tests.unit.explorer.serving import Server

LOADED = 60_000
"""Milliseconds in which something must happen that used to take for ever."""


def what(page: Page, panel: int = 0):
    return page.locator(".stage .what").nth(panel)


def stage(page: Page) -> dict:
    return page.locator(".stage canvas").first.bounding_box()


# A setting that takes no time.
SMALL = link([{"model": {"dim": 2, "beta": 16.0}, "start": {"tokens": 30}}], {"until": 40.0}, playing=False)


def test_horizons_that_scripts_write_without_a_point(visit):
    page = visit(SMALL)
    for until, shown in (("1e16", "t = 10¹⁶"), ("9e20", "t = 9·10²⁰")):
        rerun(page, lambda until=until: (page.fill("#until", until), page.press("#until", "Enter")))
        page.locator(".stage canvas").first.focus()
        page.keyboard.press("End")
        expect(page.locator("#clock")).to_have_text(shown)


def test_a_slider_that_is_dragged_starves_nothing(visit, context):
    """Pictures keep coming while the slider moves, all at the moment that is looked at, and the last one is what the slider says."""
    page = visit("#preset=figure-2", done=False)
    sent = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda text: sent.append(text)))
    page.reload()
    wait_until_done(page)
    page.keyboard.press("End")
    expect(page.locator(".stage .now").first).to_have_text("t = 200")
    slider, figure = page.locator("[name=beta-slider]").bounding_box(), page.locator(".stage").first
    at = lambda k: (slider["x"] + slider["width"] * (0.6 + 0.01 * (k % 20)), slider["y"] + slider["height"] / 2)  # noqa: E731
    seen = lambda: int(figure.get_attribute("data-seen"))  # noqa: E731
    before, requests, moments = seen(), len([text for text in sent if '"simulate"' in text]), set()
    page.mouse.move(*at(0))
    page.mouse.down()
    for k in range(2000):
        page.mouse.move(*at(k))
        moments.add(page.locator(".stage .now").first.inner_text())
        page.wait_for_timeout(30)
        if seen() >= before + 4:
            break
    assert seen() >= before + 4, "no pictures while the slider moved"
    assert moments == {"t = 200"}, "another moment was shown on the way"
    asked = len([text for text in sent if '"simulate"' in text]) - requests
    assert asked <= seen() - before + 1, "a request was overtaken before its picture was seen"
    page.mouse.up()
    expect(figure).not_to_have_attribute("data-busy", "")
    wait_until_done(page)
    expect(what(page)).to_contain_text(f"β = {page.locator('[name=beta]').input_value()}")


def test_the_attention_chart_follows_the_clock_to_its_end(visit):
    page = visit("#preset=figure-2")
    page.locator(".stage canvas").first.focus()
    for _ in range(3):
        page.keyboard.press("Home")
        page.keyboard.press("Space")
        page.wait_for_timeout(250)
        page.keyboard.press("End")
        expect(page.locator("#attention")).to_have_attribute("data-frame", "360")


def test_delta_and_radius_follow_the_temperature_until_they_are_set(visit):
    page = visit(SMALL)
    expect(page.locator("[name=delta]")).to_have_value("1")
    rerun(page, lambda: (page.fill("[name=beta]", "64"), page.press("[name=beta]", "Enter")))
    expect(page.locator("[name=delta]")).to_have_value("0.5")
    # The radius is that of the command line, and stands over the chart that depends on it.
    radius = ms.analysis.cluster_radius(ms.Attention(dim=2, beta=64.0))
    expect(page.locator("[name=radius]")).to_have_value(f"{radius:g}")
    expect(page.locator("#clusters .key")).to_have_text(f"r = {radius:g}")
    rerun(page, lambda: (page.fill("[name=delta]", "0.3"), page.press("[name=delta]", "Enter")))
    expect(page.locator("[name=delta-auto]")).to_have_attribute("aria-pressed", "false")
    rerun(page, lambda: (page.fill("[name=beta]", "16"), page.press("[name=beta]", "Enter")))
    expect(page.locator("[name=delta]")).to_have_value("0.3")
    rerun(page, lambda: page.click("[name=delta-auto]"))
    expect(page.locator("[name=delta]")).to_have_value("1")
    expect(page.locator("[name=delta-auto]")).to_have_attribute("aria-pressed", "true")


def halted_page(server: Server, stack: contextlib.ExitStack):
    """A page that was opened and never reads again; the system takes little for it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", server.port))
    own = {"origin": f"http://{server.host}", "max_queue": 1, "close_timeout": 0.1, "ping_interval": None}
    return stack.enter_context(connect(server.socket_address, sock=sock, **own))


def test_pages_that_do_not_read_starve_nobody(visit, server):
    setting = {"model": {"dim": 2, "beta": 4.0}, "start": {"tokens": 600}}
    order = {"type": "simulate", "panel": 0, "run": 1, "setting": setting, "clock": {"until": 1.0}}
    with contextlib.ExitStack() as stack:
        for _ in range(server.workers):
            halted_page(server, stack).send(json.dumps(order))
        page = visit("#preset=figure-1f", done=False)
        expect(page.locator(".stage[data-done]").first).to_be_attached(timeout=LOADED)


def test_the_keys_of_a_slider_are_its_own(visit):
    page = visit(SMALL)
    set_range(page, "#scrub", 0.4)
    page.locator("[name=beta-slider]").focus()
    rerun(page, lambda: page.keyboard.press("End"))
    expect(page.locator("[name=beta]")).to_have_value("1000")
    rerun(page, lambda: page.keyboard.press("Home"))
    expect(page.locator("[name=beta]")).to_have_value("0.1")
    assert position(page) == pytest.approx(0.4)


def test_nothing_is_announced_while_it_plays(visit):
    page = visit("#preset=figure-2")
    watch = """() => { window.said = 0;
        const live = [...document.querySelectorAll('output, [aria-live]:not([aria-live=off]), [role=status], [role=alert]')];
        const observer = new MutationObserver((changes) => { window.said += changes.length; });
        for (const node of live) observer.observe(node, { childList: true, characterData: true, subtree: true });
        return live.length; }"""
    assert page.evaluate(watch) > 0
    before = position(page)
    page.wait_for_timeout(600)
    assert position(page) > before
    assert page.evaluate("window.said") == 0
    page.locator(".stage canvas").first.focus()
    page.keyboard.press("Space")
    expect(page.locator("#announce")).to_have_text(re.compile(r"Paused at t = [\d.]+, \d+ clusters?"))


def test_noise_shortens_the_horizon_and_gives_it_back(visit):
    page = visit(link([{"model": {"dim": 2, "beta": 16.0}, "start": {"tokens": 8}}], {"until": 1000.0, "log": True}))
    rerun(page, lambda: (page.fill("[name=noise]", "0.1"), page.press("[name=noise]", "Enter")))
    expect(page.locator(".stage .problem").first).to_be_hidden()
    expect(page.locator("#until")).to_have_value("200")
    expect(page.locator("#notice")).to_contain_text("the horizon was shortened")
    rerun(page, lambda: (page.fill("[name=noise]", "0"), page.press("[name=noise]", "Enter")))
    expect(page.locator("#until")).to_have_value("1000")


def test_tips_go_with_what_they_are_about(visit):
    page = visit("#preset=figure-1c")
    page.keyboard.press("Home")
    page.locator(".stage canvas").first.focus()
    tip = page.locator("#tip")
    page.keyboard.press(".")
    expect(tip).to_have_text("token 0")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    x, y = token_on_screen(page)
    expect(tip).to_be_visible()
    page.mouse.down()
    page.mouse.move(x + 60, y + 50, steps=4)
    expect(tip).to_be_hidden()
    page.mouse.up()
    page.mouse.move(stage(page)["x"] + 3, stage(page)["y"] + 3)
    expect(tip).to_be_hidden()


def test_ticks_of_the_enlarged_chart_are_numbers(visit):
    page = visit("#preset=figure-2")
    page.locator("#clusters .enlarge").click()
    chart = page.frame_locator("#large iframe")
    expect(chart.locator(".ytick text").first).to_be_visible()
    ticks = [float(text) for text in chart.locator(".ytick text").all_text_contents()]
    assert len(ticks) > 1
    assert ticks == sorted(ticks)


def test_another_number_of_tokens_keeps_those_added_by_hand(visit):
    page = visit(SMALL)
    page.locator(".stage canvas").first.focus()
    rerun(page, lambda: page.keyboard.press("a"))
    expect(what(page)).to_contain_text("n = 31")
    rerun(page, lambda: (page.fill("[name=tokens]", "40"), page.press("[name=tokens]", "Enter")))
    expect(what(page)).to_contain_text("n = 41")
    rerun(page, lambda: (page.fill("[name=tokens]", "20"), page.press("[name=tokens]", "Enter")))
    expect(what(page)).to_contain_text("n = 21")
    rerun(page, lambda: (page.fill("[name=dim]", "3"), page.press("[name=dim]", "Enter")))
    expect(page.locator("#notice")).to_contain_text("Undo brings them back")
    rerun(page, lambda: page.click("#undo"))
    expect(what(page)).to_contain_text("n = 21 · d = 2")


# ------------------------------------------------------------------------------------------------------------- colours

DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)
"""Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB."""
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])


def lab(color: str, eyes: np.ndarray) -> np.ndarray:
    srgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(eyes @ linear, 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_clusters_are_told_apart_by_all_eyes(visit):
    """Last clusters have colours of their own, which differ (CIE76, at least 14) with and without deuteranopia; and numbers."""
    page = visit(SMALL)
    # Ten clusters of three tokens each, led by tokens whose preferred colours collide.
    find = """async (dark) => { const { tokenColors } = await import('/static/colors.js');
        const leaders = Uint16Array.from({ length: 30 }, (_, k) => 10 * ((k % 10) % 3) + Math.floor((k % 10) / 3));
        const run = { tokens: 30, components: 2, frames: 1, labelled: 1, leaders, facts: { centers: [] },
            positions: Float32Array.from({ length: 60 }, (_, i) => Math.cos((i >> 1) / 4 - (i % 2) * Math.PI / 2)) };
        run.frames = run.labelled = 7; run.leaders = new Uint16Array(7 * 30);
        for (let f = 0; f < 7; f++) run.leaders.set(leaders, f * 30);
        const colors = tokenColors(run, 'cluster', dark);
        return [...new Set(leaders)].map((k) => colors[k]); }"""
    for dark in (False, True):
        colors = page.evaluate(find, dark)
        assert len(set(colors)) == len(colors) == 10
        for eyes in (np.eye(3), DEUTERANOPIA):
            places = np.array([lab(color, eyes) for color in colors])
            apart = np.linalg.norm(places[:, None] - places[None], axis=-1)[np.triu_indices(10, 1)]
            assert apart.min() > 14
    # Twenty clusters for a moment, then four of which one is gone at the end: the four that are seen for long differ.
    long_lived = """async () => { const { tokenColors } = await import('/static/colors.js');
        const tokens = 40, frames = 61, last = [0, 2, 3], leaders = new Uint16Array(frames * tokens);
        for (let f = 0; f < frames; f++) for (let k = 0; k < tokens; k++)
            leaders[f * tokens + k] = f < 7 ? k % 20 : k % 4 === 3 && f < 40 ? 14 : last[k % 3];
        const positions = Float32Array.from({ length: 2 * tokens }, (_, i) => Math.cos((i >> 1) / 3 - (i % 2) * Math.PI / 2));
        const centers = Array.from({ length: 20 }, (_, k) => k);
        const run = { tokens, components: 2, frames, labelled: frames, leaders, facts: { centers }, positions };
        const colors = tokenColors(run, 'cluster', false);
        return [...last, 14].map((k) => colors[k]); }"""
    assert len(set(page.evaluate(long_lived))) == 4
    expect(page.locator("[name=numbers]")).to_be_checked()


# --------------------------------------------------------------------------------------------------- servers and links


def test_a_server_that_freezes_is_noticed_and_the_label_stays_with_its_picture(context):
    server = Server(workers=1).start()
    page = context.new_page()
    page.goto(server.address + SMALL)
    wait_until_done(page)
    expect(
        page.locator("#notice")
    ).to_be_hidden()  # while its engine starts, the browser computes, and waits for nobody
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        page.fill("[name=beta]", "7")
        page.press("[name=beta]", "Enter")
        expect(page.locator("#notice")).to_contain_text("not answering", timeout=LOADED)
        expect(what(page)).to_contain_text("β = 16")
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    expect(what(page)).to_contain_text("β = 7")
    expect(page.locator("#notice")).to_be_hidden()
    page.close()
    server.stop()


@pytest.mark.parametrize(
    "address",
    ["#s=eyJub25zZW5zZSI6MX0", "#s=%%%", "#preset=nobody", link([{"model": {"dim": 2}, "start": {"tokens": 3}}], None)],
    ids=["fields", "letters", "preset", "clock"],
)
def test_a_link_that_cannot_be_read_says_so(visit, address):
    page = visit(address, done=False)
    expect(page.locator("#notice")).to_contain_text(re.compile("cannot be read|There is no preset"))
    expect(page.locator("#notice")).to_contain_text("A sphere of tokens")
    expect(page.locator("#preset")).to_have_value("sphere")


def garbled(**fields):
    """A link whose setting has other things where the page reads numbers and lists."""
    model = {"dim": 2, "beta": 4.0} | {name: value for name, value in fields.items() if name != "tokens"}
    return link([{"model": model, "start": {"tokens": fields.get("tokens", 5)}}], {"until": 1.0})


def test_links_with_other_things_in_them(visit, server):
    """Nothing throws, whatever stands where a number should; how it is looked at falls back to what can be."""
    page = visit(SMALL)

    def go(address):
        page.goto("about:blank")
        page.goto(server.address + address)

    others = [{"beta": "x"}, {"value": {"eigenvalues": "q"}}, {"mask": 5}, {"heads": [None]}, {"tokens": "7"}]
    for address in ("#preset=%E0%A4%A", *(garbled(**fields) for fields in others)):
        go(address)
        expect(page.locator("#preset")).to_have_value(
            "sphere"
        )  # and the page goes on as if nobody had asked for anything
    panels = [{"model": {"dim": 2, "beta": 4.0}, "start": {"tokens": 5}}]
    go(link(panels, {"until": 1.0}, speed=-3, color="none", active=7))
    wait_until_done(page)
    expect(page.locator("#speed")).to_have_value("1")
    expect(page.locator("[name=color]")).to_have_value("cluster")
    # On a page that is open already: what is on show stays, and so does its address; one that can be read is a step of its own.
    for address, said in (("#s=abc", "cannot be read"), ("#preset=nobody", "There is no preset"), ("#stages", None)):
        page.evaluate("(hash) => { location.hash = hash; }", address)
        if said:
            expect(page.locator("#notice")).to_contain_text(said)
        page.wait_for_function("location.hash.startsWith('#s=eyJ')")
        expect(page.locator("#undo")).to_be_disabled()
        expect(what(page)).to_contain_text("n = 5 ")
    rerun(page, lambda: page.evaluate("(hash) => { location.hash = hash; }", "#preset=figure-1c"))
    expect(what(page)).to_contain_text("n = 32 ")
    rerun(page, lambda: page.click("#undo"))
    expect(what(page)).to_contain_text("n = 5 ")
    expect(page.locator("#undo")).to_be_disabled()


# ------------------------------------------------------------------------------------------------------ smaller things


def test_words_and_sizes(visit, browser, server):
    page = visit(SMALL)
    expect(page.locator(".field", has=page.locator("[name=beta]")).locator("span").first).to_contain_text("temp")
    page.select_option("[name=value]", "matrix")
    page.fill("[name=value-matrix]", "1 x\n0 1")
    page.locator("[name=value-matrix]").blur()
    expect(page.locator("#notice")).to_contain_text("“x” is not a number")
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "the page is taller than its window"
    page.click("#undo")
    page.set_viewport_size({"width": 1200, "height": 700})
    page.wait_for_timeout(200)
    canvas = page.locator("#marks")
    marks = canvas.evaluate("node => [node.width, 2 * node.getBoundingClientRect().width]")
    assert marks[0] == pytest.approx(marks[1], abs=1)
    with page.expect_download(timeout=PATIENCE) as waiting:
        page.click("#download")
        page.click("#download-menu [data-format=png]")
    with open(waiting.value.path(), "rb") as file:
        assert Image.open(io.BytesIO(file.read())).size[0] >= 3 * stage(page)["width"]


TOO_SMALL = """(within) => {
  // What a finger of 44 pixels does not find: its box, with its label, or what lies around its middle. Words within a sentence are as
  // high as their line, at least 24 pixels.
  const finger = 44 / 2 - 0.5, kinds = "button, select, textarea, input, [role=button], canvas[tabindex], a[href]:not(.skip)";
  const found = (node, x, y) => {
    const hit = document.elementFromPoint(x, y);
    return hit && (node.contains(hit) || hit.closest("label")?.contains(node));
  };
  const wide = (node) => {
    const box = (node.closest("label") ?? node).getBoundingClientRect();
    if (node.closest("p")) return box.width >= 24 && box.height >= 24;
    if (box.width >= 43.9 && box.height >= 43.9) return true;
    return ["center", "end", "start"].some((block) => {
      node.scrollIntoView({ block, behavior: "instant" });
      const { left, top, width, height } = node.getBoundingClientRect(), [x, y] = [left + width / 2, top + height / 2];
      return [[-finger, 0], [finger, 0], [0, -finger], [0, finger]].every(([dx, dy]) => found(node, x + dx, y + dy));
    });
  };
  return [...document.querySelector(within ?? "body").querySelectorAll(kinds)]
    .filter((node) => node.checkVisibility() && !wide(node)).map((node) => node.id || node.name || node.textContent || node.className);
}"""


@pytest.mark.parametrize(("width", "height"), [(390, 844), (844, 390)], ids=["upright", "on its side"])
def test_fingers_and_a_phone_on_its_side(browser, server, width, height):
    context = browser.new_context(viewport={"width": width, "height": height}, is_mobile=True, has_touch=True)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(server.address + SMALL)
    wait_until_done(page)
    assert stage(page)["height"] >= min(250, 0.6 * height)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(TOO_SMALL) == []
    page.click("#download")
    assert page.evaluate(TOO_SMALL, "#download-menu") == []
    page.keyboard.press("Escape")
    page.click("#compare")
    page.select_option("[name=heads]", "2")
    wait_until_done(page, 1)
    assert page.evaluate(TOO_SMALL) == []
    page.click("#compare")
    page.click("#help")
    assert page.evaluate(TOO_SMALL, "#about") == []
    page.locator("#about .close").click()
    if height > width:  # whom a finger chooses says who it is
        box = stage(page)
        for k in range(60):
            page.touchscreen.tap(
                box["x"] + box["width"] * (0.2 + k / 100), box["y"] + box["height"] * (0.3 + 0.4 * ((0.618 * k) % 1))
            )
            if page.locator("#tip").is_visible():
                break
        expect(page.locator("#tip")).to_contain_text("token")
        page.locator("[name=noise]").scroll_into_view_if_needed()
        expect(page.locator("body")).to_have_class(re.compile("mini"))
        box = stage(page)
        assert box["y"] >= 0
        assert box["y"] + box["height"] < height / 2
    page.click("#tell")
    for step in range(6):
        page.locator("#story .step").nth(step).tap()
        expect(page.locator(f"body[data-step='{step + 1}']")).to_be_attached()
        assert page.evaluate(TOO_SMALL) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_borders_can_be_seen(visit):
    """3:1 between the border of a control and what is behind it, light and dark."""
    page = visit(SMALL)
    measure = """() => { const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
        const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        const light = (c) => 0.05 + c.reduce((sum, v, i) => sum + linear(v / 255) * [0.2126, 0.7152, 0.0722][i], 0);
        const ratio = (a, b) => { const [x, y] = [light(rgb(a)), light(rgb(b))]; return Math.max(x, y) / Math.min(x, y); };
        const style = (selector) => getComputedStyle(document.querySelector(selector));
        const panel = style('#setting').backgroundColor;
        return ['[name=beta]', '[name=mask]', '#append'].map((name) => ratio(style(name).borderTopColor, panel)); }"""
    for _ in range(2):
        page.wait_for_timeout(300)
        assert min(page.evaluate(measure)) >= 3
        page.click("#theme")


def test_the_clock_begins_where_tokens_move(visit):
    page = visit("", done=False)
    page.evaluate(
        """() => { window.shown = []; new MutationObserver(() => window.shown.push(document.querySelector('#clock').textContent))
            .observe(document.querySelector('#clock'), { childList: true, characterData: true, subtree: true }); }"""
    )
    page.reload()
    page.evaluate(
        """() => { window.shown = []; new MutationObserver(() => window.shown.push(document.querySelector('#clock').textContent))
            .observe(document.querySelector('#clock'), { childList: true, characterData: true, subtree: true }); }"""
    )
    wait_until_done(page)
    times = [
        float(text.removeprefix("t = ")) for text in page.evaluate("window.shown") if re.fullmatch(r"t = [\d.]+", text)
    ]
    later = [time for time in times if time > 0]
    assert later[0] >= 0.05, "the first moments, in which nothing moves, were shown"
