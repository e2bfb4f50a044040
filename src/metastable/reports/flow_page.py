"""The report page of `metastable flow`: self-contained HTML, pictures and tables."""

from __future__ import annotations

import base64
import csv
import html
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from metastable import __version__, stores
from metastable._progress import Report, progress_bar
from metastable.checkpoints.flows.plan import RTOL
from metastable.errors import StoreError
from metastable.reports.flow_study import Study, Variant, merges, moments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("", "cosine", "clusters", "rank", "largest", "its words", "status")
TEXTS = (0, 5, 6)
"""Columns that hold words."""
PICTURES = 5
"""Pictures of a page, at most."""


def _cells(name: str, variant: Variant) -> tuple[str, ...]:
    """One row of the what-if table."""
    return (
        name,
        f"{variant.cosine[-1]:.3f}",
        str(int(variant.clusters[-1])),
        f"{variant.rank:.0f}",
        str(variant.largest),
        " ".join(word.strip() or "␣" for word in variant.words),
        "" if variant.run.status == "success" else f"{variant.run.status} at {variant.run.end:g}",
    )


def _rows(study: Study) -> list[tuple[str, tuple[str, ...]]]:
    """All rows with the group they belong to."""
    loop = f"layer {study.layer} looped to t = {study.choices.until:g}"
    return [("whole stack", _cells(name, variant)) for name, variant in study.stack.items()] + [
        (loop, _cells(name, variant)) for name, variant in study.loop.items()
    ]


def _columns(study: Study) -> int:
    """How many columns are shown: the last one, status, only where a run did not end well."""
    return len(COLUMNS) - (not any(cells[-1] for _, cells in _rows(study)))


def table(study: Study) -> Group:
    """The what-if tables for the terminal, one for each group."""
    groups: dict[str, Table] = {}
    shown = _columns(study)
    for label, cells in _rows(study):
        if label not in groups:
            groups[label] = Table(title=label, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
            for place, name in enumerate(COLUMNS[:shown]):
                groups[label].add_column(name, justify="left" if place in TEXTS else "right", no_wrap=place != TEXTS[1])
        groups[label].add_row(*(escape(cell) for cell in cells[:shown]))
    head = (
        f"[bold]{escape(study.flow.source)}[/]: {study.tokens} tokens, linked at {study.choices.radius:g} rad. At the end of each run; "
        "largest: tokens in the largest cluster, and the words that its mean stands for."
    )
    return Group(head, *groups.values())


def _curves(variants: Mapping[str, Variant]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Mean cosines and clusters as curves for the figures."""
    cosines = {name: (variant.time, variant.cosine) for name, variant in variants.items()}
    return cosines, {name: (variant.time, variant.clusters) for name, variant in variants.items()}


def pictures(study: Study, report: Report | None = None) -> dict[str, Figure]:
    """All pictures by name; `report` hears how many of `PICTURES` are drawn, or left out."""
    from metastable.figures import flow_view

    told = report or (lambda done: None)
    found: dict[str, Figure] = {
        "what-if": flow_view.what_if_page(
            _curves(study.stack), _curves(study.loop), layer=study.layer, until=study.choices.until
        )
    }
    chosen = (
        ("merges-model", study.stack.get("the model"), "the model as it is", "layer", False),
        ("merges-attention", study.stack.get("attention only"), "attention only", "layer", False),
        (
            "merges-loop",
            study.loop.get("attention only"),
            f"layer {study.layer} looped to t = {study.choices.until:g}, attention only",
            "time (layers)",
            True,
        ),
    )
    told(1.0)
    for place, (name, variant, title, label, log) in enumerate(chosen, start=2):
        if variant is not None:
            tree, words = merges(study, variant)
            found[name] = flow_view.merge_page(
                tree, variant.run.text, end=variant.run.end, title=title, label=label, log=log, words=words
            )
        told(float(place))
    if study.parts is not None:
        found["parts"] = flow_view.decomposition_page(study.parts)
    told(float(PICTURES))
    return found


def write(out: Path, study: Study, source: str, text_name: str, *, progress: bool | None = None) -> list[Path]:
    """report.html (self-contained), its pictures, what-if.csv, curves.csv and parts.csv; `progress` as in `flow_study.study`."""
    from metastable.figures import style

    with progress_bar("pictures", 3.0 * PICTURES, progress) as report:
        drawn = pictures(study, report)
        images: dict[str, str] = {}
        for place, (name, page) in enumerate(drawn.items(), start=1):
            buffer = io.BytesIO()
            page.savefig(buffer, format="png", dpi=150)
            images[name] = base64.b64encode(buffer.getvalue()).decode()
            report(PICTURES + PICTURES * place / len(drawn))
        written: list[Path] = []
        try:
            out.mkdir(parents=True, exist_ok=True)
            for place, (name, page) in enumerate(drawn.items(), start=1):
                written += style.save(page, out / name)
                report(2.0 * PICTURES + PICTURES * place / len(drawn))
            written += _tables(out, study)
            target = out / "report.html"
            stores.write_file(target, _page(study, images, source, text_name).encode())
        except OSError as reason:
            raise StoreError(f"cannot write to {out}: {reason}; choose another folder") from reason
    return [target, *written]


def _tables(out: Path, study: Study) -> list[Path]:
    """The numbers behind the page."""
    table_path, curves_path = out / "what-if.csv", out / "curves.csv"
    with stores.new_file(table_path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("run", "variant", *COLUMNS[1:]))
        writer.writerows((group, *cells) for group, cells in _rows(study))
    with stores.new_file(curves_path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("run", "variant", "time", "mean_cosine", "clusters"))
        for kind, variants in (("stack", study.stack), ("loop", study.loop)):
            for name, variant in variants.items():
                for row in zip(variant.time, variant.cosine, variant.clusters):
                    writer.writerow((kind, name, *row))
    paths = [table_path, curves_path]
    if study.parts is not None:
        paths.append(out / "parts.csv")
        stores.write_file(paths[-1], study.parts.to_dataframe().to_csv().encode())
    return paths


def _figure(images: Mapping[str, str], name: str, alt: str) -> str:
    if name not in images:
        return ""
    return f'<figure class="scroll"><img alt="{html.escape(alt)}" src="data:image/png;base64,{images[name]}"></figure>'


KEY_CSS = """
.key{display:none;flex-wrap:wrap;gap:.2rem 1rem;list-style:none;margin:.3rem 0;padding:0;font:.8rem/1.5 system-ui,sans-serif}
@media(max-width:36rem){.key{display:flex}}
.key b{color:var(--soft);font-weight:600}
.key i{display:inline-block;width:1.6rem;border-top:3px solid;vertical-align:middle;margin-right:.35rem}
"""


def _key(label: str, names: Iterable[str]) -> str:
    """The legend of two panels for a phone, which shows only a part of the picture at a time."""
    from metastable.figures.flow_view import curve_looks

    items = "".join(
        f'<li><i style="border-color:{color};border-top-style:{"dashed" if dashed else "solid"}"></i>{html.escape(name)}</li>'
        for name, (color, dashed) in curve_looks(names).items()
    )
    return f'<ul class="key"><li><b>{html.escape(label)}</b></li>{items}</ul>'


def _html_table(study: Study) -> str:
    shown = _columns(study)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in COLUMNS[:shown])
    body, group = "", ""
    for label, cells in _rows(study):
        if label != group:
            body += f'<tr><th colspan="{shown}">{html.escape(label)}</th></tr>'
            group = label
        body += "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells[:shown]) + "</tr>"
    return f"<table><tr>{head}</tr>{body}</table>"


def _reading(study: Study) -> str:
    """What was seen on this text, in sentences with its numbers."""
    sentences = []
    model, attention = study.stack.get("the model"), study.stack.get("attention only")
    if model is not None:
        sentences.append(
            f"At the end of the stack the model's {study.tokens} tokens form {int(model.clusters[-1])} clusters with a mean cosine of "
            f"{model.cosine[-1]:.2f}."
        )
    if attention is not None:
        sentences.append(
            f"Without the feed-forward parts they form {int(attention.clusters[-1])}, with a mean cosine of {attention.cosine[-1]:.3f}."
        )
    loop = study.loop.get("attention only")
    if loop is not None:
        counts = [(int(loop.clusters[loop.time == t][0]), t) for t in moments(float(loop.time[-1]))]
        steps = ", ".join(
            f"{clusters}{' clusters' * (place == 0)} at t = {t:g}" for place, (clusters, t) in enumerate(counts)
        )
        sentences.append(f"The attention of layer {study.layer}, looped to t = {loop.time[-1]:g}, leaves {steps}.")
        gaussian = study.loop.get("null: random weights")
        if gaussian is not None:
            sentences.append(
                f"The same layer with random weights leaves {int(gaussian.clusters[-1])}: few clusters alone are no sign of training; "
                "compare when they form and how long they last."
            )
    return " ".join(sentences)


def _page(study: Study, images: Mapping[str, str], source: str, text_name: str) -> str:
    """The report as HTML."""
    css = files("metastable.reproduce").joinpath("report.css").read_text(encoding="utf-8") + KEY_CSS
    flow, radius = study.flow, study.choices.radius
    choices = {**asdict(study.choices), "layer": study.layer}
    rows = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(str(v))}</td></tr>" for k, v in choices.items())
    refused = "".join(f"<li>{html.escape(name)}: {html.escape(reason)}</li>" for name, reason in study.refused.items())
    left_out = f"<section><h2>Left out</h2><ul>{refused}</ul></section>" if refused else ""
    parts = (
        f"""<section><h2>What attention and feed-forward part each do</h2>{_figure(images, "parts", "angles and changes by layer")}
<p><b>a</b> the angle by which each part turns a token (median, band: 0.1 to 0.9 quantile); <b>b</b>, <b>c</b> what each does to the
mean cosine between tokens and to the energy (1/2β n²) Σ exp β(cos − 1), β = 1. Above zero: it gathers tokens; below: it spreads
them.</p></section>"""
        if "parts" in images
        else ""
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>The layers of {html.escape(source)} as a flow</title><style>{css}</style></head><body><main>
<h1>The layers of {html.escape(source)} as a flow</h1>
<p class="lead">{html.escape(flow.architecture)}, {flow.depth} layers, dim {flow.dim}; text: {html.escape(text_name)},
{study.tokens} tokens counted. metastable {__version__}.</p>
<section><h2>In short</h2><p>{html.escape(_reading(study))}</p>
<p>Every hidden state is taken as a point on a sphere: its direction. Tokens closer than {radius:g} rad ({radius * 57.2958:.0f}°) are
linked, and linked tokens are one cluster. Each run calls the model's own layers, with parts left out, repeated, or with random weights
in their place. One text is one draw.</p></section>
<section><h2>What if</h2>{_key("a, b", study.stack)}{_key("c, d", study.loop)}
{_figure(images, "what-if", "mean cosine and clusters over depth for each what-if")}
<div class="scroll">{_html_table(study)}</div>
<p>Cosine: mean over pairs of tokens; rank: effective rank of the cloud (exp of the entropy of its singular values); largest: tokens
in the largest cluster. Words: what the model's own last norm and head make of the mean state of that cluster (logit lens); for a
model without a head, the nearest input embeddings. Nulls: the text in random order; value matrices with the same singular values and
random frames (Haar); every matrix random with its own spread.</p>
<p>In the loop everything but “with its feed-forward part” is attention only, the nulls too: compare them with “attention only”.
There the layer is random, the states that enter it are the model's. Half the temperature: the logits of attention are divided by
½, which makes it twice as sharp.</p>
<p>The words are a rough reading. The head was trained on states behind the last layer of the whole model: in runs that the model was
never trained for (parts off, loops, random weights) they are often rare pieces of words, which say where a cluster lies and nothing
more.</p>
<p>A looped layer F is the differential equation dx/dt = F(x) − x, whose Euler step of length one is the layer; time is counted in
layers. It is solved by Tsitouras' method (Tsit5) with an estimated error per step below {RTOL:g} of each token's length (root mean
square over tokens), up to t = {study.choices.until:g}: what is said of the loop is said of that time and not of later ones, and the
last merges may depend on the tolerance.</p>
</section>
<section><h2>Who merges with whom</h2>
<p>One line is one token, in the order of the text. Where a token joins the cluster of an earlier one for good, its line ends there
and the other grows thicker. At the end: how many tokens, and the words that the cluster stands for. Grey: alone.</p>
{_figure(images, "merges-model", "merges of tokens through the layers of the model")}
{_figure(images, "merges-attention", "merges of tokens through the layers, attention only")}
{_figure(images, "merges-loop", "merges of tokens in a looped layer, log time")}</section>
{parts}{left_out}
<section><h2>Choices</h2><div class="scroll"><table>{rows}</table></div></section>
</main></body></html>
"""
