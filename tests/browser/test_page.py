"""The page in a real browser: it moves, it obeys, it says what happened."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from metastable.model import declare
from tests.browser.conftest import rerun, wait_until_done


def reached(page: Page, panel: int = 0):
    return page.locator(f"#verdict dl[data-panel='{panel}'] .reached")


def position(page: Page) -> float:
    return float(page.locator("#scrub").input_value())


def set_range(page: Page, selector: str, value: float) -> None:
    page.locator(selector).evaluate(
        "(node, value) => { node.value = value; node.dispatchEvent(new Event('input', {bubbles: true}));"
        " node.dispatchEvent(new Event('change', {bubbles: true})); }",
        value,
    )


def picture(page: Page) -> str:
    return page.locator(".stage[data-panel='0'] canvas").evaluate("canvas => canvas.toDataURL()")


def test_it_opens_and_moves(visit):
    page = visit()
    print(f"\nfirst picture {page.locator('html').get_attribute('data-first-frame')} ms after opening")
    assert page.title() == "metastable explorer"
    first, before = picture(page), position(page)
    for _ in range(100):
        page.wait_for_timeout(100)
        if picture(page) != first:
            break
    assert picture(page) != first
    assert position(page) > before
    expect(page.locator("#verdict .predicted")).to_have_text("one point, x₁(0) (theorem)")
    expect(reached(page)).to_contain_text("clusters at t = 1000")


@pytest.mark.parametrize(
    ("preset", "predicted", "end"),
    [
        ("figure-1a", "one point, x₁(0) (theorem)", r"one point, x₁\(0\) by t = "),
        ("figure-1b", "one point in L (conjecture)", r"one point in L by t = "),
        ("figure-1c", "two points, ξ and −ξ (conjecture)", r"two points, ξ and −ξ by t = "),
        ("figure-1d", "a cloud of points around L (conjecture)", r"a cloud of points around L$"),
        ("figure-1e", "two clouds, around ξ and −ξ (conjecture)", r"two clouds, around ξ and −ξ$"),
        ("figure-1f", "one point rotating in L", r"one point rotating in L"),
        ("figure-2", "one point, x₁(0) (theorem)", r"not yet: 7 clusters at t = 200"),
        ("cascade", "one point, x₁(0) (theorem)", r"one point, x₁\(0\) by t = .*10[⁰¹²³⁴⁵⁶⁷⁸⁹]+"),
        ("frozen", "the atlas covers no frozen tokens", r"150 of 150 tokens within"),
    ],
)
def test_presets_reach_their_known_ends(visit, preset, predicted, end):
    page = visit(f"#preset={preset}")
    expect(page.locator("#verdict .predicted")).to_have_text(predicted)
    expect(reached(page)).to_have_text(re.compile(end))
    expect(page.locator("#preset")).to_have_value(preset)


def test_presets_are_chosen_from_the_menu(visit):
    page = visit("#preset=figure-2")
    rerun(page, lambda: page.locator("#preset").select_option("figure-1c"))
    expect(page.locator(".stage .what").first).to_contain_text("n = 32 · d = 3 · β = 9")
    expect(reached(page)).to_contain_text("two points")
    expect(page.locator("#caption")).to_have_text("Two points, ξ and −ξ.")
    # Another horizon is another setting, and what is not in the picture is not in its legend.
    rerun(page, lambda: (page.fill("#until", "20"), page.press("#until", "Enter")))
    expect(page.locator("#caption")).to_have_text("Changed from “Simple top eigenvalue”.")
    page.locator("[name=centers]").uncheck()
    expect(page.locator("#legend-strong")).to_be_hidden()
    expect(page.locator("#legend-first")).to_be_visible()
    rerun(page, lambda: page.click("#reset"))
    expect(page.locator("#until")).to_have_value("5000")
    expect(page.locator("#legend-strong")).to_be_visible()


def test_sliders_change_the_simulation(visit):
    page = visit("#preset=figure-2")
    page.keyboard.press("End")
    expect(page.locator(".stage .count").first).to_have_text("7 clusters")
    rerun(page, lambda: set_range(page, "[name=beta-slider]", 500))
    expect(page.locator("[name=beta]")).to_have_value("10")
    expect(page.locator(".stage .what").first).to_contain_text("β = 10")
    expect(page.locator(".stage .count").first).not_to_have_text("7 clusters")
    rerun(page, lambda: (page.fill("[name=tokens]", "40"), page.press("[name=tokens]", "Enter")))
    expect(page.locator(".stage .what").first).to_contain_text("n = 40")
    rerun(page, lambda: page.select_option("[name=mask]", "full"))
    expect(page.locator("#verdict .predicted")).to_contain_text("Full()")
    rerun(page, lambda: (page.fill("#until", "1e3"), page.press("#until", "Enter")))
    page.keyboard.press("Escape")
    page.locator("#stages canvas").first.focus()
    page.keyboard.press("End")
    expect(page.locator("#clock")).to_have_text("t = 1000")
    expect(page.locator("#preset")).to_have_value("")


def test_the_form_offers_what_the_package_declares(visit):
    """Kinds, labels and suggested numbers come from the model's declarations."""
    page = visit("#preset=figure-2")
    catalogue = declare.catalogue()
    for family in ("mask", "norm", "weights"):
        offered = [item for item in catalogue[family] if item["fields"] is not None]
        found = page.locator(f"[name={family}] option").evaluate_all("all => all.map((o) => [o.value, o.textContent])")
        assert found == [[item["kind"], item["label"]] for item in offered]
    expect(page.locator("[name=norm-tau]")).to_be_hidden()
    rerun(page, lambda: page.select_option("[name=norm]", "mix_ln"))
    expect(page.locator("[name=norm-tau]")).to_have_value("5")
    rerun(page, lambda: (page.fill("[name=norm-tau]", "7"), page.press("[name=norm-tau]", "Enter")))
    expect(page.locator(".stage .what").first).to_contain_text("Mix-LN")
    rerun(page, lambda: page.select_option("[name=mask]", "sink"))
    expect(page.locator("[name=mask-sinks]")).to_have_value("1")
    expect(page.locator("[name=mask-width]")).to_have_value("16")
    expect(page.locator("[name=mask-length]")).to_be_hidden()
    # The radius that counts clusters is shown, and can be changed.
    expect(page.locator("[name=radius]")).to_have_value("0.0625")
    before = page.locator(".stage .count").first.inner_text()
    rerun(page, lambda: (page.fill("[name=radius]", "1.5"), page.press("[name=radius]", "Enter")))
    expect(page.locator(".stage .count").first).not_to_have_text(before)


def test_scrub_and_play(visit):
    page = visit("#preset=figure-2")
    set_range(page, "#scrub", 0.5)
    expect(page.locator("#clock")).to_have_text("t = 100")
    expect(page.locator("#play")).to_have_attribute("aria-label", "Play")
    page.wait_for_timeout(300)
    assert position(page) == 0.5
    page.click("#play")
    page.wait_for_timeout(500)
    assert position(page) > 0.5
    page.select_option("#speed", "4")
    expect(page.locator("#clock")).to_have_text("t = 200")
    expect(page.locator("#play")).to_have_attribute("aria-label", "Play")
    box = page.locator("#lines .over").bounding_box()
    page.mouse.click(box["x"] + 0.25 * box["width"], box["y"] + box["height"] / 2)
    assert 0.1 < position(page) < 0.3
    rerun(page, lambda: page.click("#log"))
    expect(page.locator("#log")).to_have_attribute("aria-pressed", "true")


def test_a_link_restores_the_state(visit):
    page = visit("#preset=figure-1c")
    rerun(page, lambda: (page.fill("[name=beta]", "6.5"), page.press("[name=beta]", "Enter")))
    set_range(page, "#scrub", 0.37)
    page.locator("[name=trails]").uncheck()
    page.select_option("#height", "x1")
    stage = page.locator(".stage canvas").first.bounding_box()
    page.mouse.move(stage["x"] + stage["width"] - 12, stage["y"] + stage["height"] / 2)
    page.mouse.down()
    page.mouse.move(stage["x"] + stage["width"] - 80, stage["y"] + stage["height"] / 2 + 60, steps=5)
    page.mouse.up()
    page.wait_for_timeout(3000)
    link = page.evaluate("location.hash")
    assert link.startswith("#s=")
    other = visit(link)
    for selector in (".stage .what >> nth=0", "#clock", ".stage .count >> nth=0"):
        expect(other.locator(selector)).to_have_text(page.locator(selector).inner_text())
    assert position(other) == pytest.approx(position(page), abs=1e-3)
    expect(other.locator("[name=trails]")).not_to_be_checked()
    expect(other.locator("#height")).to_have_value("x1")
    expect(other.locator("[name=beta]")).to_have_value("6.5")
    other.wait_for_timeout(500)
    assert picture(other) == picture(page)


def test_side_by_side_stays_in_step(visit):
    page = visit("#preset=full-causal")
    wait_until_done(page, 1)
    now = page.locator(".stage .now")
    for _ in range(8):
        page.wait_for_timeout(120)
        left, right = page.evaluate("[...document.querySelectorAll('.stage .now')].map((node) => node.textContent)")
        assert left == right
    expect(page.locator(".stage .what").nth(0)).to_contain_text("causal")
    expect(page.locator(".stage .what").nth(1)).to_contain_text("full")
    assert now.count() == 2
    expect(reached(page, 1)).to_contain_text("clusters at t = 1000")
    page.click("#which [data-panel='1']")
    rerun(page, lambda: (page.fill("[name=beta]", "4"), page.press("[name=beta]", "Enter")), 1)
    expect(page.locator(".stage .what").nth(0)).to_contain_text("β = 32")
    expect(page.locator(".stage .what").nth(1)).to_contain_text("β = 4")
    page.click("#compare")
    expect(page.locator(".stage").nth(1)).to_be_hidden()
    expect(page.locator(".stage .what").nth(0)).to_contain_text("β = 4")


def test_a_bad_matrix_shows_its_error_and_a_good_one_recovers(visit):
    page = visit("#preset=figure-2")
    page.select_option("[name=value]", "matrix")
    page.fill("[name=value-matrix]", "1 2\n3")
    page.locator("[name=value-matrix]").blur()
    problem = page.locator(".stage .problem").first
    expect(problem).to_be_visible()
    expect(problem).to_contain_text("value")
    page.fill("[name=value-matrix]", "1 x\n0 1")
    page.locator("[name=value-matrix]").blur()
    expect(page.locator("#notice")).to_contain_text("real numbers")
    page.fill("[name=value-matrix]", "1 0\n0 -1")
    rerun(page, lambda: page.locator("[name=value-matrix]").blur())
    expect(problem).to_be_hidden()
    expect(page.locator("#verdict .predicted")).to_contain_text("two points")
    page.fill("[name=tokens]", "1e6")
    page.press("[name=tokens]", "Enter")
    expect(problem).to_contain_text("up to 2000 tokens")


def token_on_screen(page: Page) -> tuple[float, float]:
    """A place on the picture where a token can be taken hold of."""
    canvas = page.locator(".stage canvas").first
    box = canvas.bounding_box()
    for k in range(400):
        x, y = box["x"] + box["width"] * (0.25 + 0.5 * ((k * 0.618) % 1)), box["y"] + box["height"] * (0.25 + k / 800)
        page.mouse.move(x, y)
        if "hand" in (canvas.get_attribute("class") or ""):
            return x, y
    raise AssertionError("no token was found under the pointer")


def test_a_token_is_dragged_and_only_later_ones_notice(visit):
    page = visit("#preset=figure-1a")
    set_range(page, "#scrub", 0)
    x, y = token_on_screen(page)
    page.mouse.click(x, y)  # a token that is not chosen stays where it is: the drag would rotate
    page.mouse.down()
    page.mouse.move(x + 30, y + 20, steps=4)
    rerun(page, lambda: (page.mouse.move(x + 60, y + 40, steps=4), page.mouse.up()))
    news = page.locator("#verdict .news")
    expect(news).to_contain_text(re.compile(r"Token \d+ was moved\."))
    expect(news).to_contain_text(re.compile(r"did not notice|end in the same place|of the 32 from there on"))
    rerun(page, lambda: page.click("#undo-hand"))
    expect(news).to_have_count(0)


def test_a_token_is_appended(visit):
    page = visit("#preset=figure-1c")
    page.click("#append")
    expect(page.locator("#notice")).to_contain_text("Click where the new token begins")
    box = page.locator(".stage canvas").first.bounding_box()
    rerun(page, lambda: page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 0.45 * box["height"]))
    expect(page.locator(".stage .what").first).to_contain_text("n = 33")
    expect(page.locator("#verdict .news")).to_contain_text("One token was appended.")


def test_an_eigenvalue_is_dragged_across_zero_and_off_the_axis(visit):
    page = visit("#preset=figure-1c")
    rerun(page, lambda: (page.fill("#until", "40"), page.press("#until", "Enter")))
    plane = page.locator("#spectrum canvas")
    plane.scroll_into_view_if_needed()
    box = plane.bounding_box()
    half, cx, cy = box["width"] / 2 - 4, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    at = lambda re, im: (cx + half * re / 1.3, cy - half * im / 1.3)  # noqa: E731
    page.mouse.move(*at(1.0, 0.0))
    page.mouse.down()
    page.mouse.move(*at(0.7, 0.3), steps=3)
    rerun(page, lambda: (page.mouse.move(*at(0.8, 0.6), steps=3), page.mouse.up()))
    expect(page.locator("#verdict .predicted")).to_have_text("one point rotating in L")
    expect(page.locator("[name=eigen-0-imaginary]")).not_to_have_value("0")
    rerun(page, lambda: (page.fill("[name=eigen-0-imaginary]", "0.5"), page.press("[name=eigen-0-imaginary]", "Enter")))
    expect(page.locator("[name=eigen-0-imaginary]")).to_have_value("0.5")


def test_the_python_is_shown_and_runs(visit, capsys):
    page = visit("#preset=figure-2")
    page.click("#python")
    expect(page.locator("#code code")).to_contain_text("simulate")
    code = page.locator("#code code").inner_text()
    scope: dict = {}
    exec(compile(code, "shown.py", "exec"), scope)
    assert "clusters at the end: 7" in capsys.readouterr().out
    expect(reached(page)).to_contain_text("7 clusters")
    page.keyboard.press("Escape")
    expect(page.locator("#code")).to_be_hidden()


def test_charts_are_enlarged_by_plotly(visit):
    """Every chart opens large in its frame, without a complaint of the browser, and Escape closes it, also from inside."""
    page = visit()
    dialog, drawing = page.locator("#large"), page.locator("#large .drawing")
    for name, traces in (("lines", 2), ("clusters", 2), ("capture", 2), ("attention", 1), ("spectrum", 1)):
        page.wait_for_timeout(300)  # the attention matrix follows the clock
        page.locator(f"#{name} .enlarge").click()
        expect(drawing).to_have_attribute("data-drawn", re.compile(r"\d+"))
        assert int(drawing.get_attribute("data-drawn")) >= traces
        chart = page.frame_locator("#large iframe")
        expect(chart.locator(".main-svg").first).to_be_visible()
        chart.locator("body").press("Escape")
        expect(dialog).to_be_hidden()
    expect(page.locator("#large iframe")).to_have_count(0)
