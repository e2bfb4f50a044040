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
from metastable.reproduce.display import format_seconds
from metastable.reproduce.recipe import VERDICTS, Finding
from metastable.reproduce.result_store import Result, explain_disk_errors
from metastable.reproduce.typeset import typeset
from metastable.stores import write_file

PAPER = "N. Karagodin, Y. Polyanskiy, P. Rigollet, Clustering in Causal Attention Masking, NeurIPS 2024"
LINK = "https://arxiv.org/abs/2411.04990"

_CLASS = {
    "agrees": "agrees",
    "agrees under a condition": "condition",
    "disagrees": "disagrees",
    "not available": "none",
    "failed": "failed",
}


def write_report(results: Sequence[Result], out: Path, command: str) -> Path:
    """Write `out/report.html` (whole or not at all) and return its path."""
    results = _checks.instances(results, Result, "results")
    _checks.text(command, "command")
    out = _checks.path(out, "out")
    path = out / "report.html"
    with explain_disk_errors(out):
        write_file(path, render(results, command).encode())
    return path


def render(results: Sequence[Result], command: str) -> str:
    """The page as a string."""
    counts = Counter(result.verdict for result in results)
    summary = _tally(counts)
    total = format_seconds(sum(result.seconds for result in results))
    css = files("metastable.reproduce").joinpath("report.css").read_text(encoding="utf-8")
    version = f"metastable {__version__}, Python {platform.python_version()}, {os.cpu_count()} processors"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Clustering in causal attention masking, recomputed</title><style>{css}</style></head><body><main>
<h1>Clustering in causal attention masking, recomputed</h1>
<p class="lead">Every figure, table, lemma and theorem of <a href="{LINK}">{_text(PAPER)}</a>, simulated again and compared
with what the paper says. {len(results)} items: {_text(summary)}. Computing time {total}; {_text(version)}.</p>
<p><code>{_text(command)}</code></p>
{_overview(results)}
{"".join(_section(result) for result in results)}
<p class="lead">Each item's folder beside this page holds its data (zarr and CSV), its figure and <code>result.json</code>.
A verdict is decided by the test named in its line; tests use the level 0.001, intervals are 95 %.</p>
</main></body></html>
"""


def _text(value: Any) -> str:
    return html.escape(str(value))


def _chip(verdict: str) -> str:
    return f'<span class="chip {_CLASS[verdict]}">{_text(verdict)}</span>'


def _mixed(result: Result) -> str:
    """How many lines have which verdict, where not all agree."""
    checked = Counter(finding.verdict for finding in result.findings if finding.verdict != "not available")
    if set(checked) <= {"agrees"}:
        return ""
    return f'<span class="mixed">{checked.total()} lines: {_text(_tally(checked))}</span>'


def _tally(counts: Counter[str]) -> str:
    """How many there are of each verdict: 15 agree, 1 disagrees."""
    return ", ".join(
        f"{counts[verdict]} {verdict if counts[verdict] == 1 else verdict.replace('agrees', 'agree')}"
        for verdict in (*VERDICTS, "failed")
        if counts[verdict]
    )


def _overview(results: Sequence[Result]) -> str:
    rows = "".join(
        f'<tr><td><a href="#{_text(r.name)}">{typeset(r.title)}</a></td><td>{_chip(r.verdict)}{_mixed(r)}</td>'
        f'<td class="time optional">{format_seconds(r.seconds)}</td></tr>'
        for r in results
    )
    head = '<tr><th>item</th><th>verdict</th><th class="optional"></th></tr>'
    return f'<section><div class="scroll"><table>{head}{rows}</table></div></section>'


def _section(result: Result) -> str:
    origin = "" if result.origin == "paper" else " · beyond the paper"
    body = (
        f"<p>{_text(result.error)}</p>"
        if result.error
        else "".join(_finding(f, result.origin) for f in result.findings)
    )
    label = f'<span class="name">{_text(result.name)}{origin}</span>'
    return f"""<section id="{_text(result.name)}"><header><h2>{label}{typeset(result.title)}</h2>
{_chip(result.verdict)}</header>
<p>{typeset(result.statement)}</p>
{_image(result)}
{body}
<details><summary>Parameters, command and time ({format_seconds(result.seconds)})</summary>
{_parameters(result)}</details></section>
"""


def _finding(finding: Finding, origin: str) -> str:
    says = "paper says" if origin == "paper" else "claim"
    return (
        f'<div class="finding {_CLASS[finding.verdict]}"><dl><dt>{says}</dt><dd>{typeset(finding.claim)}</dd>'
        f"<dt>we measured</dt><dd>{typeset(finding.measured)}</dd><dt>test</dt><dd>{typeset(finding.test)}</dd>"
        f'<dt>verdict</dt><dd class="verdict {_CLASS[finding.verdict]}">{_text(finding.verdict)}</dd></dl></div>'
    )


def _image(result: Result) -> str:
    if result.figure is None or not result.figure.is_file():
        return ""
    content = base64.b64encode(result.figure.read_bytes()).decode()
    return f'<figure class="scroll"><img alt="{_text(result.title)}" src="data:image/png;base64,{content}"></figure>'


def _parameters(result: Result) -> str:
    rows = "".join(f"<tr><td>{_text(key)}</td><td>{_text(value)}</td></tr>" for key, value in result.parameters.items())
    chosen = ", ".join(f"{key} {value}" for key, value in result.settings.items())
    return (
        f'<p><code>{_text(result.command)}</code></p><div class="scroll"><table>{rows}'
        f"<tr><td>settings</td><td>{_text(chosen)}</td></tr>"
        f"<tr><td>fingerprint</td><td>{_text(result.fingerprint)}</td></tr></table></div>"
    )
