"""`metastable bench`: the benchmarks of the source tree, from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from metastable.errors import StoreError


def bench(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed on to the benchmarks; '--help' after '--' lists what they take.")
    ] = None,
) -> None:
    """Measure speed against the solvers people use now: ratios, all contenders in one interleaved run.

    The benchmarks live beside the package in its source tree, because they compare with libraries that the package does not need.

    [bold]Examples[/]

        metastable bench

        metastable bench -- --help
    """
    root = _source_tree()
    raise typer.Exit(subprocess.call([sys.executable, "-m", "benchmarks", *(arguments or [])], cwd=root))


def _source_tree() -> Path:
    """The folder that holds `benchmarks/`: the working directory, or the checkout that the package is installed from."""
    for folder in (Path.cwd(), *Path(__file__).resolve().parents):
        if (folder / "benchmarks" / "__main__.py").is_file():
            return folder
    raise StoreError("the benchmarks are part of the source tree, not of the installed package; run this in a checkout")
