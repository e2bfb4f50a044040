"""The command group. Only the command that was asked for is imported, so `metastable --help` answers at once."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

COMMANDS = {
    "simulate": ("simulate", "Simulate one sequence of tokens and keep the run."),
    "extend": ("extend", "Take a stored run further."),
    "predict": ("predict", "Which clusters of a stored run will merge, and when, over any number of decades."),
    "reproduce": ("reproduce", "Reproduce papers: their figures, tables, lemmas and theorems."),
    "sweep": ("sweep", "Phase diagrams: grids of ensembles, resumable, on a laptop or a cluster."),
    "control": (
        "controlling",
        "Turn it around: the temperature for so many clusters, schedules that hold and release.",
    ),
    "spectrum": ("checkpoints", "Spectra of the value matrices of a real language model."),
    "geometry": ("checkpoints", "Token geometry of a real language model, layer by layer."),
    "flow": ("flow", "What if: the layers of a real language model looped, without MLP, with nulls."),
    "meaning": ("meaning", "The words that the value matrices of a language model read and write."),
    "explore": ("explore", "Open the explorer: a page where tokens move."),
    "bench": ("bench", "Measure speed against the solvers people use now."),
    "info": ("info", "What a bug report needs: versions, processor, GPU, caches, extras."),
}
"""Command -> (module of `metastable.cli` that holds a function or a Typer group of that name, its line in the overview)."""

HELP = "The laboratory for attention dynamics: tokens as particles on the sphere, moved by causal self-attention."
EPILOG = "Start with:  metastable simulate --tokens 200 --beta 64 --until 200    or:  metastable reproduce --list"


def _version(show: bool) -> None:
    if show:
        from metastable import __version__

        typer.echo(f"metastable {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that hold for all commands."""


def _placeholder() -> None:
    """Stands for a command in the overview; the real one is imported when it is named first on the command line."""


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application for these command-line arguments."""
    app = typer.Typer(
        name="metastable",
        help=HELP,
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name, (module, line) in COMMANDS.items():
        if not arguments or arguments[0] != name:
            app.command(name, help=line)(_placeholder)
            continue
        command = getattr(import_module(f"metastable.cli.{module}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app
