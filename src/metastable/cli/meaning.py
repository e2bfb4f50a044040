"""`metastable meaning`: what the spectrum of a language model's value matrices says in words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metastable._checks import seed as check_seed
from metastable.cli.checkpoints import SOURCE_HELP, _check_folder, _read_text


def meaning(
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    layer: Annotated[int | None, typer.Option(help="Only this layer (0 is the first).")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head.")] = None,
    modes: Annotated[int, typer.Option(help="Eigenvalues of each head, from the largest real part on.")] = 1,
    words: Annotated[int, typer.Option(help="Length of the word lists.")] = 10,
    text: Annotated[
        Path | None,
        typer.Option(help="Read with the states of this text's tokens instead of the vocabulary's embeddings."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Use the first so many tokens of --text.")] = 512,
    seed: Annotated[int, typer.Option(help="Seed of the nulls.")] = 0,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the page, its pictures and the table (CSV).")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace files in --out.")] = False,
) -> None:
    """The words that each head reads and writes: eigenvectors of its value matrix V = O W, against random heads.

    [bold]Examples[/]

        metastable meaning smollm2 --out page

        metastable meaning smollm2 --layer 29 --head 2 --modes 3
    """
    from rich.console import Console

    from metastable import checkpoints
    from metastable.reports import meaning_page

    _check_folder(out, overwrite, "meaning.html")
    given = None if text is None else _read_text(text)
    seed = check_seed(seed, "--seed")
    found = checkpoints.meaning(
        source,
        layer,
        head,
        modes=modes,
        words=words,
        text=given,
        max_tokens=max_tokens if given is not None else None,
        seed=seed,
        revision=revision,
    )
    console = Console()
    console.print(meaning_page.table(found))
    for line in meaning_page.sentences(found):
        console.print(line, highlight=False)
    if out is not None:
        for path in meaning_page.write(out, found, source):
            console.print(f"wrote {path}", highlight=False)
