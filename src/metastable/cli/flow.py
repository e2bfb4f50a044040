"""`metastable flow`: a language model's own layers as a flow, as they are and as they are not."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from metastable.cli.checkpoints import SOURCE_HELP, _check_folder, _read_text


def flow(
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    text: Annotated[
        Path | None, typer.Option(help="Text file (UTF-8). Default: a page of prose shipped with metastable.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Use the first so many tokens of the text.")] = 128,
    layer: Annotated[
        int | None, typer.Option(help="The layer that is looped. Default: a third of the way down.")
    ] = None,
    until: Annotated[
        float, typer.Option(help="How long it is looped (Tsit5, rtol 1e-3); one layer is one unit.")
    ] = 200.0,
    radius: Annotated[
        float, typer.Option(help="Tokens closer than this angle (radians) are linked to clusters.")
    ] = 0.3,
    drop_first: Annotated[
        int, typer.Option(help="Leave the first so many tokens (attention sinks) out of the counts.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the nulls.")] = 0,
    device: Annotated[str | None, typer.Option(help="Where to run, for example cuda. Default: the CPU.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the report page, its pictures and the tables (CSV).")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace files in --out.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar (nor, without a terminal, a line for each run).")
    ] = False,
) -> None:
    """A language model's own layers as a flow: what if it had no MLP, no attention, one layer looped, random weights?

    [bold]Examples[/]

        metastable flow smollm2 --text my.txt --out report

        metastable flow minilm --layer 3 --until 50
    """
    from rich.console import Console

    from metastable.reports import flow_page, flow_study

    _check_folder(out, overwrite, "report.html")
    words = _read_text(text)
    choices = flow_study.Choices(max_tokens, layer, until, radius, drop_first, seed)
    # Where nobody sees a bar, a line for each run: together they take a minute and more.
    lines = None if quiet or sys.stderr.isatty() else partial(typer.echo, err=True)
    progress = False if quiet else None
    study = flow_study.study(source, words, choices, device=device, revision=revision, progress=progress, tell=lines)
    console = Console()
    console.print(flow_page.table(study))
    if out is not None:
        name = "the prose shipped with metastable" if text is None else text.name
        for path in flow_page.write(out, study, source, name, progress=progress):
            console.print(f"wrote {path}", highlight=False)
