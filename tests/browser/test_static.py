"""Pages without a server: the exported site, runs as single pages, and the browser that stands in while the engine is compiled."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

import metastable as ms
from metastable.explorer.export_site import export
from metastable.explorer.session import WARMING, beginning, greeting
from metastable.explorer.setting import Clock, Setting
from tests.browser.conftest import PATIENCE, rerun, wait_until_done
from tests.browser.test_page import position, reached
from tests.unit.explorer.serving import Server

RECORDED = ("sphere", "figure-1c", "cascade", "full-causal", "sixteen")
LARGEST_PAGE = 1.5e6

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    export(folder, lambda text: None, recorded=RECORDED)
    return folder


@pytest.fixture
def open_page(context: BrowserContext) -> Iterator[Open]:
    """Open an address; any complaint of the page, and any request to somewhere else, fails the test."""
    complaints: list[str] = []

    def go(address: str, done: bool = True, **options: Any) -> Page:
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
        origin = address.split("#")[0].rsplit("/", 1)[0]
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith((origin, "blob:", "data:")) else complaints.append(request.url)
            ),
        )
        page.goto(address, **options)
        if done:
            wait_until_done(page)
        return page

    yield go
    assert not complaints


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def host(site: Path) -> Iterator[tuple[str, http.server.ThreadingHTTPServer]]:
    """A plain file server: the address of the site on it, and the server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/", server
    server.shutdown()
    server.server_close()


def set_beta(page: Page, value: str) -> None:
    page.fill("[name=beta]", value)
    page.press("[name=beta]", "Enter")


def fine_print(page: Page) -> Any:
    return page.locator("#verdict .fine").first


def test_the_site_is_small_and_all_its_addresses_are_relative(site: Path) -> None:
    sizes = {path.relative_to(site).as_posix(): path.stat().st_size for path in site.rglob("*") if path.is_file()}
    own = sum(size for name, size in sizes.items() if not name.startswith("recorded/"))
    print(
        f"\nthe page {own / 1e6:.2f} MB, recorded {(sum(sizes.values()) - own) / 1e6:.2f} MB in {len(RECORDED)} presets"
    )
    assert own < LARGEST_PAGE
    assert {f"recorded/{name}.js" for name in RECORDED} <= set(sizes)
    page = (site / "index.html").read_text()
    assert "/static" not in page
    assert 'type="module"' not in page


def test_from_a_folder(site: Path, open_page: Open) -> None:
    page = open_page(f"file://{site}/index.html")
    expect(page.locator("#where")).to_contain_text("Computed in this browser")
    expect(fine_print(page)).to_contain_text("engine cpu (recorded)")
    expect(reached(page)).to_contain_text("10 clusters at t = 1000")
    first = page.locator("#stages canvas").first.screenshot()
    page.keyboard.press("End")
    assert position(page) == 1
    assert page.locator("#stages canvas").first.screenshot() != first
    page.click("#download")
    page.click("#download-menu [data-format=embed]")
    expect(page.locator("#embed p").first).to_contain_text("on your own machine")
    page.locator("#embed .close").click()
    # What was not recorded is computed here, and says so.
    rerun(page, lambda: page.select_option("#preset", "figure-2"))
    expect(fine_print(page)).to_contain_text("engine browser")
    expect(reached(page)).to_contain_text("7 clusters")
    rerun(page, lambda: set_beta(page, "20"))
    expect(page.locator(".stage .what").first).to_contain_text("β = 20")
    page.locator("#attention").scroll_into_view_if_needed()
    expect(page.locator("#attention .key")).to_contain_text("blocks of 3")
    # Long horizons: recorded, on the circle computed here as well, elsewhere the page stops and says so.
    rerun(page, lambda: page.select_option("#preset", "cascade"))
    expect(reached(page)).to_contain_text("one point, x₁(0)")
    rerun(page, lambda: (page.fill("[name=tokens]", "40"), page.press("[name=tokens]", "Enter")))
    expect(fine_print(page)).to_contain_text("tsit5 to t = 64, then rodas, engine browser")
    expect(reached(page)).to_contain_text("one point, x₁(0)")
    rerun(page, lambda: page.select_option("#preset", "figure-1a"))
    expect(fine_print(page)).to_contain_text("the browser takes explicit steps")


def test_by_hand_without_a_server(site: Path, open_page: Open) -> None:
    page = open_page(f"file://{site}/index.html#preset=figure-1c")
    rerun(page, lambda: page.keyboard.press("a"))
    expect(page.locator("#verdict .news")).to_contain_text("One token was appended.")
    expect(page.locator(".stage .what").first).to_contain_text("n = 33")
    page.keyboard.press("c")
    wait_until_done(page, 1)
    page.click("#python")
    expect(page.locator("#code code")).to_contain_text("ms.simulate(left_model")
    page.keyboard.press("Escape")
    with page.expect_download() as waiting:
        page.click("#download")
        page.click("#download-menu [data-format=csv]")
    assert Path(waiting.value.path()).read_text().startswith("time,token,x1,x2,x3,cluster\n")
    page.click("#download")
    page.click("#download-menu [data-format=mp4]")
    expect(page.locator("#notice")).to_contain_text('run.animate("run.mp4")')
    page.locator("#clusters .enlarge").click()
    expect(page.locator("#large .drawing canvas").first).to_be_visible()
    page.locator("#large .close").click()
    expect(page.locator("#clusters .plot canvas").first).to_be_visible()


def test_two_panels_and_many_dimensions_are_recorded(site: Path, open_page: Open) -> None:
    page = open_page(f"file://{site}/index.html#preset=full-causal")
    wait_until_done(page, 1)
    for panel in (0, 1):
        expect(page.locator(f"#verdict [data-panel='{panel}'] .fine")).to_contain_text("(recorded)")
    expect(page.locator("#energy")).to_be_visible()
    rerun(page, lambda: page.select_option("#preset", "sixteen"))
    expect(fine_print(page)).to_contain_text("(recorded)")


def test_with_the_network_cut(host: tuple[str, http.server.ThreadingHTTPServer], open_page: Open) -> None:
    address, server = host
    page = open_page(address)
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    server.shutdown()
    server.server_close()
    # A preset that was not looked at yet, a change, and the page anew: nobody is asked.
    rerun(page, lambda: page.select_option("#preset", "cascade"))
    expect(fine_print(page)).to_contain_text("(recorded)")
    rerun(page, lambda: page.select_option("#preset", "figure-2"))
    rerun(page, lambda: set_beta(page, "40"))
    expect(fine_print(page)).to_contain_text("engine browser")
    page.reload()
    wait_until_done(page)
    expect(page.locator(".stage .what").first).to_contain_text("β = 40")


def test_without_its_recordings_the_page_computes(site: Path, open_page: Open, tmp_path: Path) -> None:
    for name in ("index.html", "page.js", "style.css", "favicon.svg"):
        (tmp_path / name).write_bytes((site / name).read_bytes())
    page = open_page(f"file://{site}/index.html#preset=figure-1c")
    recorded = reached(page).inner_text()
    bare = page.context.new_page()
    bare.goto(f"file://{tmp_path}/index.html#preset=figure-1c")
    wait_until_done(bare)
    expect(fine_print(bare)).to_contain_text("engine browser")
    expect(reached(bare)).to_have_text(recorded)


def test_on_a_phone(browser: Browser, site: Path) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(f"file://{site}/index.html")
    wait_until_done(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("[name=beta]").scroll_into_view_if_needed()
    rerun(page, lambda: set_beta(page, "50"))
    expect(page.locator(".stage .what").first).to_contain_text("β = 50")
    context.close()


def test_a_run_as_one_page(open_page: Open, tmp_path: Path) -> None:
    model = ms.Attention(dim=3, beta=16.0, mask=ms.Window(8))
    run = ms.simulate(model, ms.starts.chain(40, dim=3, seed=1, correlation=0.9), until=50.0)
    run.to_html(tmp_path / "run.html", title="A <chain> & more", text="Each like the one before")
    page = open_page(f"file://{tmp_path}/run.html")
    assert page.title() == "A <chain> & more"
    expect(page.locator("#caption")).to_contain_text("A <chain> & more. Each like the one before.")
    clusters = ms.cluster_labels(run.final, radius=0.5 * 16**-0.5).max() + 1
    page.keyboard.press("End")
    expect(page.locator(".count").first).to_contain_text(f"{clusters} cluster")
    expect(page.locator("#attention .key")).to_contain_text("row sees column")
    # There is one run: nothing asks for another.
    for selector in ("#setting", "#preset", "#python", "#edit", "#log", "#until"):
        expect(page.locator(selector)).to_be_hidden()
    before = page.locator(".stage").first.get_attribute("data-done")
    for key in ("a", "t", "c", "e", "Delete"):
        page.keyboard.press(key)
    page.locator("#stages canvas").first.focus()
    page.keyboard.press(".")  # tokens can be chosen, and not moved: neither by keys nor by hand
    page.keyboard.press("Alt+ArrowUp")
    expect(page.locator("#tip")).to_contain_text("token 0")
    place = page.locator("#tip").evaluate("(tip) => [tip.offsetLeft, tip.offsetTop]")
    box = page.locator("#stages canvas").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + place[0], box["y"] + place[1])
    page.mouse.down()
    page.mouse.move(box["x"] + place[0] + 40, box["y"] + place[1] + 40, steps=4)
    page.mouse.up()
    page.wait_for_timeout(300)
    expect(page.locator("#legend-ghost")).to_be_hidden()
    expect(page.locator("body")).not_to_have_class(re.compile("editing"))
    assert page.locator(".stage").first.get_attribute("data-done") == before
    expect(page.locator(".problem").first).to_be_hidden()


def test_a_run_of_many_dimensions_and_chosen_times_as_one_page(open_page: Open, tmp_path: Path) -> None:
    run = ms.simulate(ms.Attention(dim=6, beta=9.0), ms.sphere.uniform(30, dim=6, seed=0), times=[1.0, 2.0, 4.0])
    run.to_html(tmp_path / "run.html")
    page = open_page(f"file://{tmp_path}/run.html")
    page.keyboard.press("End")
    expect(page.locator(".now").first).to_have_text("t = 4")
    expect(page.locator("#attention")).to_be_hidden()


RECORDER = """(() => {
  globalThis.drawn = { texts: [], strokes: [] };
  const proto = CanvasRenderingContext2D.prototype, of = Object.getOwnPropertyDescriptors(proto);
  const where = ({ canvas }) => {
    const figure = canvas.closest("figure");
    return figure ? figure.id + (canvas.matches(".over") ? " over" : "") : "painting";
  };
  const wrap = (name, also) => {
    proto[name] = function (...given) { also(this, given); return of[name].value.apply(this, given); };
  };
  wrap("clearRect", (ctx) => {
    for (const kind of ["texts", "strokes"]) drawn[kind] = drawn[kind].filter(({ id }) => id !== where(ctx));
  });
  wrap("fillText", (ctx, [text, x, y]) => {
    drawn.texts.push({ id: where(ctx), text, x, y, half: ctx.measureText(text).width / 2 });
  });
  wrap("beginPath", (ctx) => { ctx.legs = []; });
  wrap("moveTo", (ctx, [x, y]) => { ctx.at = [x, y]; });
  wrap("lineTo", (ctx, [x, y]) => { if (ctx.at) (ctx.legs ??= []).push([ctx.at, [x, y]]); ctx.at = [x, y]; });
  wrap("stroke", (ctx) => {
    const id = where(ctx), dotted = ctx.getLineDash().length > 0;
    for (const [a, b] of ctx.legs ?? [])
      drawn.strokes.push({ id, dotted, a, wide: Math.abs(b[0] - a[0]), high: Math.abs(b[1] - a[1]) });
  });
})()"""
"""What the charts of a page draw, by the figure that they are in ("painting": world lines, which are painted beside their place)."""


def to_moment(page: Page, at: float) -> None:
    page.locator("#scrub").evaluate("(node, at) => { node.value = at; node.dispatchEvent(new Event('input')); }", at)


def attention_at(page: Page, frame: int) -> Any:
    """The picture of the attention matrix of a frame, as numbers."""
    expect(page.locator(f"#attention[data-frame='{frame}']")).to_be_attached()
    pixels = "(c) => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)"
    return np.array(page.locator("#attention canvas").evaluate(pixels), dtype=float)


def test_a_schedule_shows_the_model_of_the_moment(open_page: Open, tmp_path: Path) -> None:
    """Before, all of it was shown as the last model."""
    early, late = (
        ms.Attention(dim=3, beta=4.0),
        ms.Attention(dim=3, beta=25.0, value=-np.eye(3), frozen=ms.Frozen(ms.sphere.uniform(3, dim=3, seed=5))),
    )
    start, lengths = ms.sphere.uniform(30, dim=3, seed=2), {"delta": 0.8, "radius": 0.1}
    ms.simulate(ms.Schedule([(0.0, early), (11.0, late)]), start, until=12.0).to_html(tmp_path / "both.html", **lengths)
    for name, model in (("early", early), ("late", late)):
        ms.simulate(model, start, until=12.0).to_html(tmp_path / f"{name}.html", **lengths)
    alone = {}
    for name in ("early", "late"):
        page = open_page(f"file://{tmp_path}/{name}.html")
        to_moment(page, 0.5)
        alone[name] = attention_at(page, 180)
    assert np.abs(alone["early"] - alone["late"]).mean() > 5
    page.context.add_init_script(RECORDER)
    page = open_page(f"file://{tmp_path}/both.html")
    to_moment(page, 0.5)
    expect(page.locator(".what").first).to_have_text(
        "n = 30 · d = 3 · β = 4 · causal · V = I · none frozen · model 1 of 2"
    )
    shown = attention_at(page, 180)
    assert np.abs(shown - alone["early"]).mean() < 0.5  # the run itself, up to the joint
    eigenvalue = "() => drawn.texts.find(({ id, text }) => id === 'spectrum' && text.startsWith('λ'))?.text"
    page.wait_for_function(f"({eigenvalue})() === 'λ max = 1'")
    to_moment(page, 0.95)
    expect(page.locator(".what").first).to_have_text(
        "n = 30 · d = 3 · β = 25 · causal · V = -I · 3 frozen tokens · model 2 of 2"
    )
    page.wait_for_function(f"({eigenvalue})() === 'λ max = -1'")
    expect(page.locator("#legend-joint")).to_be_visible()
    joints = "() => drawn.strokes.filter(({ id, wide, high }) => id === 'clusters' && !wide && high > 50).map(({ a }) => a[0])"
    box = page.locator("#clusters canvas").first.bounding_box()
    assert box is not None
    across = [(x - 30) / (box["width"] - 38) for x in page.evaluate(joints)]
    assert any(abs(place - 11 / 12) < 1e-3 for place in across)


def test_the_attention_of_a_model_that_the_page_cannot_draw_is_no_other(open_page: Open, tmp_path: Path) -> None:
    plain = ms.Attention(dim=2, beta=9.0)
    run = ms.simulate(
        ms.Schedule([(0.0, plain), (1.0, plain.replace(masses=np.arange(1.0, 9.0)))]),
        ms.sphere.uniform(8, dim=2, seed=0),
        until=2.0,
    )
    run.to_html(tmp_path / "run.html")
    page = open_page(f"file://{tmp_path}/run.html")
    to_moment(page, 0.25)
    assert attention_at(page, 90).any()
    to_moment(page, 0.75)
    expect(page.locator("#attention .key")).to_have_text("not on this page")
    expect(page.locator("#attention[data-frame]")).to_have_count(0)


def test_saved_states_are_held(open_page: Open, tmp_path: Path) -> None:
    """Before, tokens went along chords from one state to the next, and curves were slanted over whole decades."""
    model, times = ms.Attention(dim=2, beta=20.0, mask=ms.Window(4)), [20.0, 40.0]
    run = ms.simulate(model, ms.sphere.uniform(12, dim=2, seed=2), times=times)
    run.to_html(tmp_path / "run.html")
    states = [run.start, *run.states]
    counts = [int(ms.cluster_labels(x, radius=0.5 * 20**-0.5).max()) + 1 for x in states]
    assert len(set(counts)) > 1
    open_page("about:blank", done=False).context.add_init_script(RECORDER)
    page = open_page(f"file://{tmp_path}/run.html")
    stage, pictures = page.locator("#stages canvas").first, []
    for at, moment in ((0.02, 0), (0.3, 0), (0.48, 0), (0.52, 1), (0.9, 1), (1.0, 2)):
        to_moment(page, at)
        expect(page.locator(".now").first).to_have_text(f"t = {[0, *times][moment]:g}")
        expect(page.locator(".count").first).to_have_text(re.compile(rf"^{counts[moment]} cluster"))
        pictures.append(stage.evaluate("(canvas) => canvas.toDataURL()"))
    assert pictures[0] == pictures[1] == pictures[2] != pictures[3] == pictures[4]
    slanted = "() => drawn.strokes.filter(({ id, wide, high }) => ['clusters', 'capture'].includes(id) && wide && high).length"
    assert page.evaluate(slanted) == 0
    box = page.locator("#lines canvas").first.bounding_box()
    assert box is not None
    least = 0.06 * (box["height"] - 26) / (2 * np.pi)
    far = "(least) => drawn.strokes.filter(({ id, wide, high }) => id === 'painting' && wide > 20 && high > least)"
    joins = page.evaluate(far, least)
    assert joins
    assert all(line["dotted"] for line in joins)


def test_numbers_of_the_axis_of_time_have_room(open_page: Open, tmp_path: Path) -> None:
    """Before, six decades behind many steps lay on top of one another."""
    run = ms.simulate(ms.Attention(dim=2, beta=12.0), ms.sphere.uniform(30, dim=2, seed=2), until=10.0)
    run.extend(times=[50.0, 1e3, 1e6]).to_html(tmp_path / "run.html")
    open_page("about:blank", done=False).context.add_init_script(RECORDER)
    page = open_page(f"file://{tmp_path}/run.html")
    page.keyboard.press("End")
    expect(page.locator(".now").first).to_have_text("t = 10⁶")
    page.wait_for_timeout(300)
    drawn: Any = page.evaluate("drawn.texts")
    for chart in ("painting", "clusters", "capture"):
        low = max(text["y"] for text in drawn if text["id"] == chart)
        labels = sorted(
            {(text["x"], text["half"], text["text"]) for text in drawn if text["id"] == chart and text["y"] == low}
        )
        assert len(labels) > 3
        assert labels[-1][2] == "10⁶"
        assert all(a[0] + a[1] < b[0] - b[1] for a, b in pairwise(labels))


def test_the_browser_computes_while_the_engine_is_compiled(context: BrowserContext, server: Server) -> None:
    """A server that greets, says that it is warming up, and never answers."""
    page = context.new_page()

    def serve(socket: Any) -> None:
        from metastable.explorer.protocol import dumps

        def answer(text: str) -> None:
            import json

            message = json.loads(text)
            if message["type"] == "simulate":
                tag = {"panel": message["panel"], "run": message["run"]}
                setting, clock = Setting.from_dict(message["setting"]), Clock.from_dict(message["clock"])
                socket.send(dumps({"type": "begin", **tag, **beginning(setting, clock)}))
                socket.send(dumps({"type": "warming", "message": WARMING}))

        socket.on_message(answer)
        socket.send(dumps(greeting()))

    page.route_web_socket("**/socket", serve)
    page.goto(server.address + "#preset=figure-1c")
    wait_until_done(page)
    expect(fine_print(page)).to_contain_text("engine browser")
    expect(page.locator("#notice")).to_contain_text("your browser computes meanwhile")
    rerun(page, lambda: set_beta(page, "5"))
    expect(fine_print(page)).to_contain_text("engine browser")
