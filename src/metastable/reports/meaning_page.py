"""Table and page of `metastable meaning`."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table

from metastable import __version__, checkpoints, stores
from metastable.errors import InvalidInputError, StoreError

if TYPE_CHECKING:
    import xarray as xr

SHOWN = 12
"""Heads in the table of the terminal when there are more: those whose words are most and least alike."""
STANDING_OUT = 3
"""Standard deviations of random directions beyond which a list is counted."""
LIST = 5
"""Words of a list in the terminal."""
NUMBERS = ("head", "eigenvalue", "score", "alike", "p")
"""Columns in front of the lists."""
LISTS = ("read", "written", "suppressed")
SHOWN_LISTS = (
    ("read", "read_z", "reads"),
    ("written", "write_z", "writes"),
    ("suppressed", "suppress_z", "suppresses"),
)
"""Lists with their z and the names of their columns."""

KINDS = {"largest": "leading", "most negative": "most negative", "modulus": "largest (in modulus)"}
"""What the first mode is called, by the order in which modes were asked for."""

TOO_FEW = "<p>Too few heads for tests over heads; the picture shows them beside their random heads.</p>"

GRID_CSS = """
.grid{border-collapse:separate;border-spacing:2px;width:auto}
.grid th{font:600 .7rem system-ui,sans-serif;color:var(--soft);border:0;padding:0 .2rem;text-align:center}
.grid td{width:1.5rem;min-width:1.5rem;height:1.5rem;border:0;padding:0;border-radius:3px;text-align:center;
font:600 .75rem/1.5rem system-ui,sans-serif}
.grid a{display:block;color:inherit;text-decoration:none}
.grid td:hover{outline:2px solid var(--ink)}
.words td{font-size:.9rem}.words td.w{min-width:13rem}
@media(max-width:36rem){.words,.words tbody,.words tr{display:block}.words tr:first-child{display:none}
.words tr{padding:.5rem 0;border-bottom:1px solid var(--line)}.words td{display:inline-block;border:0;padding:.1rem .8rem .1rem 0}
.words td.z{display:block}
.words td.w{display:block;min-width:0;overflow-wrap:anywhere}.words td::before{content:attr(data-name) " ";color:var(--soft)}}
tr:target td{background:#fff4d6}
"""


def _complex(value: complex) -> str:
    if np.isnan(value):
        return "none"
    return f"{value.real:+.3g}" if value.imag == 0 else f"{value.real:+.3g}±{abs(value.imag):.2g}i"


def _number(value: float, form: str) -> str:
    """A number, or a dash where there is none (a head that writes nothing, a mode without draws of its kind)."""
    return format(value, form) if np.isfinite(value) else "–"


def _kind(found: xr.Dataset) -> str:
    """The first mode in words: "leading", "most negative" ..."""
    return KINDS[str(found.attrs.get("which", "largest"))]


def _places(found: xr.Dataset) -> list[tuple[int, int, int]]:
    """All (layer, head, mode) places in order; a head that has fewer modes than were asked for has fewer."""
    there = ~np.isnan(np.asarray(found["eigenvalue"].values, dtype=np.complex128).real)
    return [(int(i), int(j), int(k)) for i, j, k in np.argwhere(there)]


def _row(found: xr.Dataset, at: tuple[int, int, int]) -> dict[str, Any]:
    """One mode as plain values."""
    i, j, k = at
    value = complex(found["eigenvalue"].values[at])
    return {
        "layer": int(found["layer"].values[i]),
        "head": int(found["head"].values[j]),
        "mode": int(found["mode"].values[k]),
        "eigenvalue_real": value.real,
        "eigenvalue_imaginary": value.imag,
        "sign_score": float(found["sign_score"].values[i, j]),
        "alike": float(found["alike"].values[at]),
        "alike_p": float(found["alike_p"].values[at]),
        "alike_usual": float(found["alike_usual"].values[at]),
        "shared": int(found["shared"].values[at]),
        "read_z": float(found["read_z"].values[at]),
        "write_z": float(found["write_z"].values[at]),
        "suppress_z": float(found["suppress_z"].values[at]),
        "shared_suppressed": int(found["shared_suppressed"].values[at]),
        **{side: [str(word) for word in found[side].values[at]] for side in LISTS},
    }


def _show(words: list[str], count: int | None = None) -> str:
    """Words of a list, separated so that spaces at their fronts do not matter."""
    return " · ".join(word.strip().replace("\r", "").replace("\t", "⇥") or "␣" for word in words[:count] if word)


def _head_name(found: xr.Dataset, row: dict[str, Any]) -> str:
    """layer.head, and the number of the mode (from 1) where there are several."""
    return f"{row['layer']}.{row['head']}" + (f" #{row['mode'] + 1}" if found.sizes["mode"] > 1 or row["mode"] else "")


def _shown_lists(rows: list[dict[str, Any]]) -> tuple[tuple[str, str, str], ...]:
    """Suppressed words are shown where some mode is real and negative: they are what it does to the words that it reads."""
    repelling = any(row["eigenvalue_imaginary"] == 0 and row["eigenvalue_real"] < 0 for row in rows)
    return SHOWN_LISTS if repelling else SHOWN_LISTS[:2]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Numbers of one mode: eigenvalue, sign score of its head, alike, p."""
    return (
        _complex(complex(row["eigenvalue_real"], row["eigenvalue_imaginary"])),
        f"{row['sign_score']:+.2f}",
        _number(row["alike"], "+.2f"),
        _number(row["alike_p"], ".3f"),
    )


def table(found: xr.Dataset) -> Table:
    """Heads for the terminal: all of a few, else the most and the least alike."""
    places = _places(found)
    if len(places) > 2 * SHOWN:
        alike = np.nan_to_num([found["alike"].values[at] for at in places], nan=0.0)
        order = np.argsort(alike, kind="stable")
        places = [places[i] for i in order[-SHOWN:][::-1]] + [places[i] for i in order[:SHOWN][::-1]]
    rows = [_row(found, at) for at in places]
    lists = _shown_lists(rows)
    result = Table(
        title=f"{found.attrs['source']}: words read and written by the {_kind(found)} eigenvectors of V",
        title_justify="left",
        caption=f"alike: +1 reads and writes the same words, -1 opposite ones; p: against {found.sizes['draw']} random heads with the "
        "singular values of the head; z: how far the words stand out, in standard deviations of random directions (or planes), "
        "known to 3 %" + ("; suppresses: what the direction makes less likely" if len(lists) > 2 else ""),
        caption_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for name in NUMBERS:
        result.add_column(name, justify="right", no_wrap=True)
    for _, _, name in lists:
        result.add_column("z", justify="right", no_wrap=True)
        result.add_column(name)
    for row in rows:
        words = [part for side, z, _ in lists for part in (_number(row[z], "+.1f"), escape(_show(row[side], LIST)))]
        result.add_row(_head_name(found, row), *_cells(row), *words)
    return result


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + "s" * (number != 1)


def sentences(found: xr.Dataset) -> list[str]:
    """What the tests over all heads say; what could not be tested (one layer has no depth) is left out."""
    try:
        result = checkpoints.compare_heads(found)
    except InvalidInputError:
        return []
    chance = 100 * result.level
    lead = found.isel(mode=0)
    reads, writes = (lead[name].values > STANDING_OUT for name in ("read_z", "write_z"))
    lines = [
        f"Reading and writing are significantly more alike than in a random head (p <= {result.level:g}) in {result.same_words} of "
        f"{result.heads} heads and less in {result.opposite_words}; by chance {chance:.0f} % of the heads are one or the other.",
        _likeness_sentence(result, _kind(found)),
        _correlation_sentence(result),
        f"The best words of the median head stand out by {float(np.nanmedian(lead['read_z'])):+.1f} (read) and "
        f"{float(np.nanmedian(lead['write_z'])):+.1f} (written) standard deviations of random directions; {reads.sum()} heads read and "
        f"{writes.sum()} write words that stand out by more than {STANDING_OUT}, {(reads & writes).sum()} do both.",
    ]
    return [line for line in lines if line]


def _listed(*parts: tuple[float, str]) -> list[str]:
    """Numbers with their words, those that there are."""
    return [f"{value:+.3f} {words}".rstrip() for value, words in parts if np.isfinite(value)]


def _likeness_sentence(result: checkpoints.Comparison, kind: str) -> str:
    """Likeness of heads whose eigenvalue is real and positive, of the others and of random heads."""
    others = result.heads - result.real_positive
    means = _listed(
        (
            result.alike_real_positive,
            f"in the {_counted(result.real_positive, 'head')} whose {kind} eigenvalue is real and positive",
        ),
        (
            result.alike_others,
            "in the others"
            if result.real_positive
            else f"in all heads; in none is the {kind} eigenvalue real and positive",
        ),
    )
    random = _listed(
        (result.alike_null_real, f"where the {kind} eigenvalue is real"),
        (result.alike_null_complex, "where it is complex"),
    )
    above = _listed((result.excess_real_positive, ""), (result.excess_others, ""))
    difference = (
        f" (difference: p = {result.difference_p:.4f}, permuted)"
        if np.isfinite(result.difference_p)
        else " (too few of one kind for a test of the difference)"
        if result.real_positive and others
        else ""
    )
    line = f"Mean likeness: {', '.join(means)}"
    line += f"; in random heads with the same singular values {' and '.join(random)}." if random else "."
    return line + (f" Above random heads of their own kind: {' and '.join(above)}{difference}." if above else "")


def _correlation_sentence(result: checkpoints.Comparison) -> str:
    """How the excess goes with the sign score and with depth; nothing where neither varies."""
    said = []
    if np.isfinite(result.sign_correlation):
        null = (
            f" (random heads: {result.sign_correlation_null:+.2f}, p = {result.sign_p:.1g})"
            if np.isfinite(result.sign_p)
            else ""
        )
        said.append(f"with the sign score {result.sign_correlation:+.2f}{null}")
    if np.isfinite(result.depth_correlation):
        said.append(f"with depth {result.depth_correlation:+.2f} (p = {result.depth_p:.1g})")
    if not said:
        return ""
    return (
        f"Rank correlation of that excess {', '.join(said)}; heads that share a value projection are not independent."
    )


def write(out: Path, found: xr.Dataset, source: str) -> list[Path]:
    """meaning.html (self-contained), meaning.csv (word lists as JSON), sign-grid.png and likeness.png."""
    from metastable.figures import flow_view, style

    pictures = {"sign-grid": flow_view.sign_grid_page(found), "likeness": flow_view.likeness_page(found)}
    buffer = io.BytesIO()
    pictures["likeness"].savefig(buffer, format="png", dpi=170)
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = [path for name, page in pictures.items() for path in style.save(page, out / name)]
        page, rows = out / "meaning.html", out / "meaning.csv"
        with stores.new_file(rows) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(_row(found, (0, 0, 0))))
            writer.writeheader()
            for at in _places(found):
                row = _row(found, at)
                # Words hold spaces, commas and bars: lists as JSON can be taken apart again.
                lists = {side: json.dumps(row[side], ensure_ascii=False) for side in LISTS}
                writer.writerow({**row, **lists})
        stores.write_file(page, _page(found, source, base64.b64encode(buffer.getvalue()).decode()).encode())
    except OSError as reason:
        raise StoreError(f"cannot write to {out}: {reason}; choose another folder") from reason
    return [page, rows, *written]


def _color(score: float) -> tuple[str, str]:
    """Background and ink of a sign score, as in the figures."""
    from metastable.figures import style

    red, green, blue, _ = style.diverging_map()((score + 1) / 2)
    background = f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
    return background, "#fff" if abs(score) > 0.75 else "#16191d"


def _mark(row: dict[str, Any]) -> str:
    """● more alike than random heads, ✕ less alike, nothing where chance explains it."""
    if not row["alike_p"] <= 0.05:
        return ""
    return "●" if row["alike"] > row["alike_usual"] else "✕"


def _grid(found: xr.Dataset) -> str:
    """Heads x layers as an HTML table: colour is the sign score, words on hover, a tap leads to the row of the head."""
    layers = "".join(f"<th>{int(layer)}</th>" for layer in found["layer"].values)
    body = ""
    for j in range(found.sizes["head"]):
        cells = ""
        for i in range(found.sizes["layer"]):
            row = _row(found, (i, j, 0))
            background, ink = _color(row["sign_score"])
            tip = html.escape(
                f"layer {row['layer']}, head {row['head']}: sign score {row['sign_score']:+.2f}, alike {_number(row['alike'], '+.2f')} "
                f"(p {_number(row['alike_p'], '.3f')})\nreads: {_show(row['read'])}\nwrites: {_show(row['written'])}"
            )
            cells += (
                f'<td style="background:{background};color:{ink}" title="{tip}"><a href="#h{row["layer"]}-{row["head"]}">'
                f"{_mark(row) or '&nbsp;'}</a></td>"
            )
        body += f"<tr><th>{int(found['head'].values[j])}</th>{cells}</tr>"
    return f'<table class="grid"><tr><th></th>{layers}</tr>{body}</table>'


def _words(found: xr.Dataset) -> str:
    """All modes with their words."""
    places = _places(found)
    rows = [_row(found, at) for at in places]
    lists = _shown_lists(rows)
    body = ""
    for at, row in zip(places, rows):
        anchor = f' id="h{row["layer"]}-{row["head"]}"' if at[2] == 0 else ""
        cells = (_head_name(found, row) + _mark(row), *_cells(row))
        # On a phone a row is a block, and its cells say what they are.
        body += f"<tr{anchor}>" + "".join(
            f'<td data-name="{name}">{html.escape(cell)}</td>' for name, cell in zip(NUMBERS, cells)
        )
        for side, z, name in lists:
            body += f'<td class="z" data-name="{name}: z">{_number(row[z], "+.1f")}</td>'
            body += f'<td class="w" data-name="">{html.escape(_show(row[side]))}</td>'
        body += "</tr>"
    head = "".join(f"<th>{name}</th>" for name in (*NUMBERS, *(name for _, _, side in lists for name in ("z", side))))
    return f'<table class="words"><tr>{head}</tr>{body}</table>'


def _page(found: xr.Dataset, source: str, picture: str) -> str:
    """The page as HTML, without scripts."""
    css = files("metastable.reproduce").joinpath("report.css").read_text(encoding="utf-8") + GRID_CSS
    said = "".join(f"<p>{html.escape(line)}</p>" for line in sentences(found))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>What the heads of {html.escape(source)} read and write</title><style>{css}</style></head><body><main>
<h1>What the heads of {html.escape(source)} read and write</h1>
<p class="lead">{html.escape(str(found.attrs["architecture"]))}, {_counted(found.sizes["layer"], "layer")},
{_counted(found.sizes["head"], "head")} each,
{found.attrs["vocabulary"]} words. metastable {__version__}.</p>
<section><h2>How to read it</h2>
<p>What a head moves from one token to another goes through its value matrix V = O W. An eigenvector of V is a direction that a head
hands on as it is, only longer (eigenvalue above 0: it <i>attracts</i>) or turned around (below 0: it <i>repels</i>). The words of a
head are those that excite its {_kind(found)} eigenvector (<b>reads</b>: {html.escape(str(found.attrs["reading"]))}) and those that the
eigenvector makes more likely (<b>writes</b>: {html.escape(str(found.attrs["writing"]))}) or, where heads repel, less likely
(<b>suppresses</b>). <b>alike</b> is +1 when these are the same
words and −1 when they are opposite ones; p compares it with {found.sizes["draw"]} random heads that have the singular values of this
head. ● more alike, ✕ less alike than random heads (p ≤ 0.05).
<b>z</b> says how far the words of a list stand out, in standard deviations of what
random directions give (random planes where the eigenvalue is complex): a list with z near 0 is what any direction gives, however much
it looks like a story.</p></section>
<section><h2>All heads</h2><p>Columns: layers. Rows: heads. Colour: sign score Σ Re λ / Σ |λ|, from −1 (blue, all eigenvalues repel)
to +1 (orange, all attract). Hover for the words, tap to find the head in the table below.</p>
<div class="scroll">{_grid(found)}</div></section>
<section><h2>What the tests say</h2>{said or TOO_FEW}
<figure class="scroll"><img alt="likeness of read and written words by kind of eigenvalue and by layer"
src="data:image/png;base64,{picture}"></figure></section>
<section><h2>Words</h2><div class="scroll">{_words(found)}</div></section>
</main></body></html>
"""
