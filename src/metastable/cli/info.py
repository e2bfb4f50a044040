"""`metastable info`: what a bug report needs."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Versions, processor, vector width, threads, GPU, caches and extras of this installation.

    Paste its output into a bug report.

    [bold]Examples[/]

        metastable info

        metastable info --json > info.json
    """
    from metastable.environment import environment

    sections = environment()
    if as_json:
        typer.echo(json.dumps(sections, indent=1))
        return
    width = max(len(name) for section in sections.values() for name in section)
    for title, section in sections.items():
        typer.echo(title)
        for name, value in section.items():
            typer.echo(f"  {name:<{width}}  {value}" if name else f"  {value}")
