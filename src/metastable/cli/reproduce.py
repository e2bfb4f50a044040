"""`metastable reproduce`: the paper, recomputed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

FORMAT_HELP = "Formats of the figures, comma separated: png, pdf, svg."
MEMBERS_HELP = "Experiments of Figure 3; a small number makes every item smaller, for a quick look."


def reproduce(
    items: Annotated[
        list[str] | None, typer.Argument(help="Items, for example: figure-3 table-1. Default: all.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures, data and report.html.")] = Path("out"),
    members: Annotated[int, typer.Option(help=MEMBERS_HELP)] = 5000,
    seed: Annotated[int, typer.Option(help="Seed of every random draw.")] = 0,
    engine: Annotated[str, typer.Option(help="auto, cpu, cuda or reference.")] = "auto",
    format: Annotated[str, typer.Option(help=FORMAT_HELP)] = "png",
    list: Annotated[bool, typer.Option("--list", help="Show all items with a line each, and exit.")] = False,
) -> None:
    """Reproduce the paper: every figure, table, lemma and theorem, recomputed and compared with what it says.

    Stops and resumes: finished items are kept. Ends with a table of verdicts and OUT/report.html.
    """
    from rich.console import Console

    from metastable.errors import StoppedEarlyWarning
    from metastable.reproduce import Settings, catalogue, choose, run_recipes, with_earlier, write_report
    from metastable.reproduce.display import print_catalogue, print_verdicts, terminal

    console = Console(soft_wrap=False)
    if list:
        print_catalogue(console, catalogue())
        return
    recipes = choose(items or [], catalogue())
    settings = Settings(seed=seed, members=members, engine=engine)
    warnings.simplefilter("ignore", StoppedEarlyWarning)  # the verdicts say it
    try:
        with terminal(console) as watch:
            results = run_recipes(recipes, settings, out, format.split(","), watch)
    except KeyboardInterrupt:
        console.print(f"stopped; finished items are kept in {out}: run the same command to go on", highlight=False)
        raise typer.Exit(130) from None
    command = " ".join(["metastable reproduce", *(items or []), f"--seed {seed} --members {members} --engine {engine}"])
    report = write_report(with_earlier(results, catalogue(), settings, out), out, command)
    print_verdicts(console, results)
    console.print(f"report: {report.resolve()}", highlight=False, soft_wrap=True)
    if any(result.verdict == "failed" for result in results):
        raise typer.Exit(1)
