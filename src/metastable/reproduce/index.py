"""`index.html`: one page over all papers. What holds, what holds under a condition, and what could not be confirmed."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from io import BytesIO
from pathlib import Path

from metastable import __version__, _checks
from metastable._words import counted
from metastable.errors import InvalidInputError
from metastable.reproduce.own_papers import is_own
from metastable.reproduce.paper import FIRST, Paper
from metastable.reproduce.recipe import VERDICTS, Finding
from metastable.reproduce.report import CLASS, chip, is_ours, plain, tally
from metastable.reproduce.result_store import Result, explain_disk_errors
from metastable.reproduce.typeset import format_seconds, typeset
from metastable.stores import write_file

LISTS = (
    (
        "What we could not confirm",
        "disagrees",
        "Each statement with what was measured; the test that decided is in its report. Not confirmed here is not refuted: "
        "the numbers of tokens, the depth and the draws are finite.",
    ),
    (
        "What holds under a condition",
        "agrees under a condition",
        "True for part of what was tried; the report says which.",
    ),
    ("What could not be tested or decided here", "not available", "The numbers were missing, or too few to decide."),
)
"""Headings of the lists of statements, their verdicts, and a sentence."""

WORDS = {
    "agrees": "hold",
    "agrees under a condition": "hold under a condition",
    "disagrees": "could not be confirmed",
}
"""Verdicts as the end of a sentence."""

THUMBNAIL = 1080
"""Width of the pictures on the page, in pixels: twice what a card has, for screens with fine pixels."""


def write_index(found: Mapping[Paper, Sequence[Result]], out: Path, command: str) -> Path:
    """Write `out/index.html` (whole or not at all) and return its path; `found`: papers with their results."""
    if not isinstance(found, Mapping):
        raise InvalidInputError(f"found must map papers to lists of results, not {type(found).__name__}")
    papers = _checks.instances(found, Paper, "found")
    results = {paper: _checks.instances(found[paper], Result, "found") for paper in papers}
    _checks.text(command, "command")
    folder = _checks.path(out, "out")
    path = folder / "index.html"
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_file(path, render({paper: some for paper, some in results.items() if some}, command).encode())
    return path


def render(found: Mapping[Paper, Sequence[Result]], command: str) -> str:
    """The page as a string."""
    css = files("metastable.reproduce")
    style = css.joinpath("report.css").read_text(encoding="utf-8") + css.joinpath("index.css").read_text(
        encoding="utf-8"
    )
    every = [(paper, result, finding) for paper in found for result in found[paper] for finding in result.findings]
    counts = Counter(finding.verdict for _, _, finding in every)
    theirs = Counter(finding.verdict for _, result, finding in every if not is_ours(result, finding))
    seconds = format_seconds(sum(result.seconds for results in found.values() for result in results))
    lists = "".join(_list(title, verdict, every, note) for title, verdict, note in LISTS)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attention dynamics, recomputed</title><style>{style}</style></head><body><main>
<h1>Attention dynamics, recomputed</h1>
<p class="lead">{len(found)} papers treat tokens as particles on a sphere that attention moves.
<b>{plain(_in_words(theirs, "statement", "theirs"))}</b>{plain(_besides(counts - theirs))}
Tested were {plain(_ways(every))}.</p>
{_bar(counts)}{_links(counts)}
{_minute(found, every)}
<h2 class="part">The papers</h2>
<div class="papers">{"".join(_card(paper, found[paper]) for paper in found)}</div>
<h2 class="part">The statements that did not simply hold</h2>
{lists}
{_revised(found)}
<p class="lead">Computing time {seconds}; metastable {__version__}. <code>{plain(command)}</code></p>
</main></body></html>
"""


def _minute(found: Mapping[Paper, Sequence[Result]], every: Sequence[tuple[Paper, Result, Finding]]) -> str:
    """What a reader with one minute takes away: what each paper has shown, and what could not be confirmed."""
    shown = "".join(
        f'<li><p>{typeset(paper.summary)}</p><p class="where"><a href="#{plain(paper.number)}">{typeset(paper.title)}</a>: '
        f"{plain(_held(results))}</p></li>"
        for paper, results in found.items()
    )
    doubts = [(p, r, f) for p, r, f in every if f.verdict == "disagrees" and not is_ours(r, f)]
    undecided = [(p, r, f) for p, r, f in every if f.verdict == "not available" and not is_ours(r, f)]
    failed = "".join(
        _doubt(p, r, f"{r.title} could not be computed: {r.error}") for p in found for r in found[p] if r.error
    )
    first = "".join(_doubt(p, r, f.claim, f.measured) for p, r, f in doubts) + failed
    second = "".join(_doubt(p, r, f.claim, f.measured) for p, r, f in undecided)
    first = (
        f'<ul class="short">{first}</ul>'
        if first
        else "<p>Nothing: every statement of theirs that was tested held.</p>"
    )
    second = f'<h3>Not decided</h3><ul class="short">{second}</ul>' if second else ""
    return f"""<div class="minute"><section><h2>What the field has shown</h2><ul class="short">{shown}</ul></section>
<section><h2>What we could not confirm</h2>{first}{second}</section></div>"""


def _doubt(paper: Paper, result: Result, text: str, measured: str = "", limit: int = 150) -> str:
    """A statement, the beginning of what was measured (all of it is below), and where to read on."""
    short = measured if len(measured) <= limit else measured[: limit - 1].rsplit(" ", 1)[0] + " …"
    found = f'<p class="measured">Found: {typeset(short)}</p>' if short else ""
    place = f'<a href="{_place(paper)}#{plain(result.name)}">{plain(paper.number)} · {typeset(result.title)}</a>'
    return f'<li><p>{typeset(text)}</p>{found}<p class="where">{place}</p></li>'


def _held(results: Sequence[Result]) -> str:
    """`11 of 12 statements hold, 1 under a condition`, of those of the paper that could be decided."""
    counts = Counter(
        f.verdict for r in results for f in r.findings if not is_ours(r, f) and f.verdict != "not available"
    )
    if not counts:
        return "no statement of its own was decided"
    rest = [
        f"{counts[verdict]} {text}"
        for verdict, text in (("agrees under a condition", "under a condition"), ("disagrees", "not confirmed"))
        if counts[verdict]
    ]
    total, good = counts.total(), counts["agrees"]
    every = "all" if total > 1 else "the"
    start = (
        f"{every} {counted(total, 'statement')} tested {'holds' if total == 1 else 'hold'}"
        if good == total
        else (f"{good} of {counted(total, 'statement')} tested {'holds' if good == 1 else 'hold'}")
    )
    return ", ".join([start, *rest])


def _in_words(counts: Counter[str], word: str, whose: str) -> str:
    """`Of 90 statements of theirs that were tested 80 hold, 8 hold under a condition and 2 could not be confirmed.`"""
    tested = counts.total() - counts["not available"]
    parts = [
        f"{counts[verdict]} {text.replace('hold', 'holds') if counts[verdict] == 1 else text}"
        for verdict, text in WORDS.items()
        if counts[verdict]
    ]
    joined = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts) or "none was judged"
    return f"Of {counted(tested, word)} of {whose} that {'was' if tested == 1 else 'were'} tested {joined}."


def _ways(every: Sequence[tuple[Paper, Result, Finding]]) -> str:
    """`70 lines by simulation, 20 by computing what a formula or an equation says`, of those that could be decided."""
    decided = [finding for _, _, finding in every if finding.verdict != "not available"]
    computed = sum(finding.computed for finding in decided)
    simulated = f"{counted(len(decided) - computed, 'line')} by simulation or random draws"
    return simulated + (f", {computed} by computation without one (formulas, states of rest)" if computed else "")


def _besides(counts: Counter[str]) -> str:
    """The same for claims of this project, where there are any."""
    return " " + _in_words(counts, "claim", "our own") if counts.total() else ""


def _revised(found: Mapping[Paper, Sequence[Result]]) -> str:
    """Items with something that was chosen after a result had been seen."""
    links = [
        f'<a href="{_place(paper)}#{plain(result.name)}">{paper.number} · {plain(result.name)}</a>'
        for paper in found
        for result in found[paper]
        if result.hindsight
    ]
    if not links:
        return ""
    return (
        f'<p class="links">In {counted(len(links), "item")} something was changed after a result had been seen; the '
        f"reports say what: {' · '.join(links)}</p>"
    )


def _links(counts: Counter[str]) -> str:
    """Where to find what did not hold, for readers who do not scroll."""
    found = [(title, verdict) for title, verdict, _ in LISTS if counts[verdict]]
    listed = " · ".join(f'<a href="#{CLASS[verdict]}">{title} ({counts[verdict]})</a>' for title, verdict in found)
    return f'<p class="links">{listed}</p>' if found else ""


def _place(paper: Paper) -> str:
    """The address of a paper's report, seen from the page."""
    return "report.html" if paper.number == FIRST else f"{paper.number}/report.html"


def _bar(counts: Counter[str]) -> str:
    """A strip whose parts are as long as there are verdicts of each kind."""
    parts = "".join(
        f'<span class="{CLASS[verdict]}" style="flex:{counts[verdict]}" title="{counts[verdict]} {verdict}"></span>'
        for verdict in VERDICTS
        if counts[verdict]
    )
    return f'<div class="bar" role="img" aria-label="{plain(tally(counts))}">{parts}</div>'


def _card(paper: Paper, results: Sequence[Result]) -> str:
    counts = Counter(finding.verdict for result in results for finding in result.findings)
    failed = sum(result.verdict == "failed" for result in results)
    lost = f", {counted(failed, 'item')} failed" if failed else ""
    items = "".join(
        f'<li><span class="dot {CLASS[result.verdict]}" title="{plain(result.verdict)}"></span>'
        f'<a href="{_place(paper)}#{plain(result.name)}">{typeset(result.title)}</a></li>'
        for result in results
    )
    number = f'<a href="{paper.link}">arXiv:{paper.number}</a>' if paper.link else plain(paper.number)
    if is_own(paper):
        number += f" · your own, as of the last call with {plain(paper.recipes[0].options)}"
    return f"""<section class="paper" id="{plain(paper.number)}"><span class="name">{number}</span>
<h2><a href="{_place(paper)}">{typeset(paper.title)}</a></h2>
{_picture(paper, results)}
{_bar(counts)}<p class="tally">{plain(tally(counts))}{lost}</p>
{_doubts(paper, results)}<details><summary>{counted(len(results), "item")}</summary><ul class="items">{items}</ul></details></section>
"""


def _doubts(paper: Paper, results: Sequence[Result]) -> str:
    """The items with a statement of theirs that could not be confirmed, on the card itself."""
    links = [
        f'<a href="{_place(paper)}#{plain(result.name)}">{typeset(result.title)}</a>'
        for result in results
        if any(finding.verdict == "disagrees" and not is_ours(result, finding) for finding in result.findings)
    ]
    return f'<p class="doubts disagrees">not confirmed: {"; ".join(links)}</p>\n' if links else ""


def _picture(paper: Paper, results: Sequence[Result]) -> str:
    """The figure that stands for the paper, made small."""
    drawn = [result for result in results if result.figure is not None and result.figure.is_file()]
    chosen = next((result for result in drawn if result.name == paper.picture), drawn[0] if drawn else None)
    if chosen is None or chosen.figure is None:
        return ""
    content = base64.b64encode(_thumbnail(chosen.figure)).decode()
    return (
        f'<a href="{_place(paper)}#{plain(chosen.name)}"><img alt="{plain(chosen.title)}" '
        f'src="data:image/png;base64,{content}"></a>'
    )


def _thumbnail(path: Path) -> bytes:
    """A PNG of at most `THUMBNAIL` pixels across."""
    from PIL import Image  # comes with matplotlib

    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        buffer = BytesIO()
        small.quantize(64).save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def _list(title: str, verdict: str, every: Sequence[tuple[Paper, Result, Finding]], note: str) -> str:
    chosen = [(paper, result, finding) for paper, result, finding in every if finding.verdict == verdict]
    if not chosen:
        return (
            ""
            if verdict != "disagrees"
            else f"<section><h2>{title}</h2><p>Nothing: every statement held.</p></section>"
        )
    rows = "".join(
        f'<li class="finding {CLASS[verdict]}"><p>{typeset(finding.claim)}</p>'
        f'<p class="measured">{typeset(finding.measured)}</p>'
        f'<p class="where"><a href="{_place(paper)}#{plain(result.name)}">{paper.number} · {typeset(result.title)}</a>'
        f"{' · our claim' if is_ours(result, finding) else ''}</p></li>"
        for paper, result, finding in chosen
    )
    body = f'<ul class="list">{rows}</ul>'
    lead = f"<p>{note}</p>" if note else ""
    if verdict != "disagrees":
        body = f"<details><summary>{counted(len(chosen), 'statement')}</summary>{body}</details>"
    return f'<section id="{CLASS[verdict]}"><header><h2>{title}</h2>{chip(verdict)}</header>{lead}{body}</section>'
