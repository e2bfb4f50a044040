"""Panels and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL = "Model"
START = "Start"
SOLVER = "Solver"
OUTPUT = "Output"

Threads = Annotated[int | None, typer.Option(help="CPU threads.", rich_help_panel=SOLVER)]
Overwrite = Annotated[bool, typer.Option(help="Replace an existing run at --out.", rich_help_panel=OUTPUT)]
Plot = Annotated[
    Path | None, typer.Option(help="Draw the run into this picture (.png, .pdf, .svg).", rich_help_panel=OUTPUT)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.", rich_help_panel=OUTPUT)]
