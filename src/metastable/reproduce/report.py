"""`report.html`: one self-contained page with every figure embedded, readable on a phone, with no script."""

from __future__ import annotations

import base64
import html
import os
import platform
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from metastable import __version__, _checks
from metastable.reproduce.paper import FIRST, Paper, find_papers
from metastable.reproduce.recipe import VERDICTS, Finding
from metastable.reproduce.result_store import Result, explain_disk_errors
from metastable.reproduce.typeset import format_seconds, typeset
from metastable.stores import write_file

CLASS = {
    "agrees": "agrees",
    "agrees under a condition": "condition",
    "disagrees": "disagrees",
    "not available": "none",
    "failed": "failed",
}

PIXELS = 132
"""Pixels of the page for an inch of a figure: one as wide as a page of a paper fills the text."""
NARROW = 4.8
"""Width in inches up to which a figure is read on a phone without being moved."""
HINT = '<p class="hint">the figure is wider than the screen: move it sideways</p>'


def write_report(
    results: Sequence[Result], out: Path, command: str, paper: Paper | None = None, index: bool = False
) -> Path:
    """Write `out/report.html` (whole or not at all) and return its path; `paper`: whose results these are (None: 2411.04990), `index`:
    with a link to the page over all papers.
    """
    results = _checks.instances(results, Result, "results")
    source = find_papers(FIRST)[0] if paper is None else _checks.instance(paper, Paper, "paper")
    _checks.text(command, "command")
    _checks.flag(index, "index")
    out = _checks.path(out, "out")
    path = out / "report.html"
    with explain_disk_errors(out):
        write_file(path, render(results, command, source, index).encode())
    return path


def render(results: Sequence[Result], command: str, paper: Paper, index: bool = False) -> str:
    """The page as a string."""
    counts = Counter(result.verdict for result in results)
    summary = tally(counts)
    title = typeset(f"{paper.title}, recomputed")
    citation = plain(paper.citation)
    source = f'<a href="{paper.link}">{citation}</a>' if paper.link else citation
    place = "index.html" if paper.number == FIRST else "../index.html"
    above = f'<p><a href="{place}">All papers</a></p>' if index else ""
    total = format_seconds(sum(result.seconds for result in results))
    css = files("metastable.reproduce").joinpath("report.css").read_text(encoding="utf-8")
    version = f"metastable {__version__}, Python {platform.python_version()}, {os.cpu_count()} processors"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{plain(paper.title)}, recomputed</title><style>{css}</style></head><body><main>
{above}<h1>{title}</h1>
<p class="lead">{plain(paper.covers)} of {source}, simulated or computed again and compared
with what the paper says. {len(results)} items: {plain(summary)}. Computing time {total}; {plain(version)}.</p>
<p><code>{plain(command)}</code></p>
{_overview(results)}
{"".join(_section(result) for result in results)}
<p class="lead">Each item's folder beside this page holds its data (zarr and CSV), its figure and <code>result.json</code>.
A verdict is decided by the test that its line names, most by a tolerance written there; where a p-value decides, the level is
0.001 unless the line names another. Intervals are 95 %; a number behind ± is a standard error. An item's verdict is that of its
lines where they agree with one another, else "agrees under a condition"; claims of our own count only where it has no others.</p>
</main></body></html>
"""


def plain(value: Any) -> str:
    return html.escape(str(value))


def chip(verdict: str) -> str:
    return f'<span class="chip {CLASS[verdict]}">{plain(verdict)}</span>'


def _mixed(result: Result) -> str:
    """How many lines have which verdict, where not all agree."""
    checked = Counter(finding.verdict for finding in result.findings if finding.verdict != "not available")
    if set(checked) <= {"agrees"}:
        return ""
    return f'<span class="mixed">{checked.total()} lines: {plain(tally(checked))}</span>'


def tally(counts: Counter[str]) -> str:
    """How many there are of each verdict: 15 agree, 1 disagrees."""
    return ", ".join(
        f"{counts[verdict]} {verdict if counts[verdict] == 1 else verdict.replace('agrees', 'agree')}"
        for verdict in (*VERDICTS, "failed")
        if counts[verdict]
    )


def _overview(results: Sequence[Result]) -> str:
    rows = "".join(
        f'<tr><td><a href="#{plain(r.name)}">{typeset(r.title)}</a></td><td>{chip(r.verdict)}{_mixed(r)}</td>'
        f'<td class="time optional">{format_seconds(r.seconds)}</td></tr>'
        for r in results
    )
    head = '<tr><th>item</th><th>verdict</th><th class="optional"></th></tr>'
    return f'<section><table class="overview">{head}{rows}</table></section>'


def _section(result: Result) -> str:
    origin = "" if result.origin == "paper" else " · beyond the paper"
    body = _failure(result) if result.error else "".join(_finding(f, result) for f in result.findings)
    label = f'<span class="name">{plain(result.name)}{origin}</span>'
    return f"""<section id="{plain(result.name)}"><header><h2>{label}{typeset(result.title)}</h2>
{chip(result.verdict)}</header>
<p>{typeset(result.statement)}</p>
{_image(result)}
{_players(result)}{_hindsight(result)}{body}
<details><summary>Parameters, command and time ({format_seconds(result.seconds)})</summary>
{_parameters(result)}</details></section>
"""


def _failure(result: Result) -> str:
    """What went wrong, and where in the code, for the one who has to mend it."""
    where = (
        f"<details open><summary>Traceback</summary><pre>{plain(result.traceback)}</pre></details>"
        if result.traceback
        else ""
    )
    return f"<p>{plain(result.error)}</p>{where}"


def is_ours(result: Result, finding: Finding) -> bool:
    """True for claims of this project, which no paper made."""
    return finding.ours or result.origin == "beyond"


def _hindsight(result: Result) -> str:
    """What was chosen after a result had been seen: the reader must be able to judge it."""
    if not result.hindsight:
        return ""
    return f'<p class="hindsight"><b>Changed after a result was seen.</b> {typeset(result.hindsight)}</p>\n'


def _finding(finding: Finding, result: Result) -> str:
    says = "our claim" if is_ours(result, finding) else "paper says"
    found = "we computed" if finding.computed else "we measured"
    return (
        f'<div class="finding {CLASS[finding.verdict]}"><dl><dt>{says}</dt><dd>{typeset(finding.claim)}</dd>'
        f"<dt>{found}</dt><dd>{typeset(finding.measured)}</dd><dt>test</dt><dd>{typeset(finding.test)}</dd>"
        f'<dt>verdict</dt><dd class="verdict {CLASS[finding.verdict]}">{plain(finding.verdict)}</dd></dl></div>'
    )


def _image(result: Result) -> str:
    """The figure, as large as its letters ask for: a narrow one is not blown up, and only a wide one scrolls on a phone."""
    if result.figure is None or not result.figure.is_file():
        return ""
    from PIL import Image  # comes with matplotlib

    with Image.open(result.figure) as picture:
        inches = picture.width / float(picture.info.get("dpi", (100.0,))[0])
    content = base64.b64encode(result.figure.read_bytes()).decode()
    wide = inches > NARROW
    opened = f'{HINT}<figure class="scroll">' if wide else "<figure>"
    return (
        f'{opened}<img alt="{plain(result.title)}" style="width:{PIXELS * inches:.0f}px" '
        f'src="data:image/png;base64,{content}"></figure>'
    )


def _players(result: Result) -> str:
    """Links to the pages beside the report that play the runs of the figure."""
    links = [
        f'<a href="{plain(page.parent.name)}/{plain(page.name)}">{typeset(title)}</a>'
        for title, page in result.players.items()
    ]
    return f"<p>Watch it move: {', '.join(links)}.</p>\n" if links else ""


def _parameters(result: Result) -> str:
    rows = "".join(f"<tr><td>{plain(key)}</td><td>{plain(value)}</td></tr>" for key, value in result.parameters.items())
    chosen = ", ".join(f"{key} {value}" for key, value in result.settings.items())
    return (
        f'<p><code>{plain(result.command)}</code></p><div class="scroll"><table>{rows}'
        f"<tr><td>settings</td><td>{plain(chosen)}</td></tr>"
        f"<tr><td>fingerprint</td><td>{plain(result.fingerprint)}</td></tr></table></div>"
    )
