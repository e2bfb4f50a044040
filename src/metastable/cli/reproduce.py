"""`metastable reproduce`: papers, recomputed."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

FORMAT_HELP = "Formats of the figures, comma separated: png, pdf, svg."
MEMBERS_HELP = "Experiments of Figure 3; a small number makes every item smaller, for a quick look."
PAPER_HELP = "Papers by arXiv number, comma separated, or all (see --list)."
FROM_HELP = "A paper of your own: a folder whose __init__.py defines PAPER."


def one_thread_for_blas() -> None:
    """Items share their draws among the processors themselves; threads of BLAS below them would wait for one another (eigenvalues of a
    112 x 112 matrix then take up to 18 times the processor time). BLAS reads this when NumPy is loaded; what the user set stays.
    """
    if "numpy" not in sys.modules:
        for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, "1")


def reproduce(
    items: Annotated[
        list[str] | None, typer.Argument(help="Items, for example: figure-3 table-1. Default: all.")
    ] = None,
    paper: Annotated[str, typer.Option(help=PAPER_HELP)] = "2411.04990",
    own: Annotated[Path | None, typer.Option("--from", help=FROM_HELP)] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures, data and report.html.")] = Path("out"),
    members: Annotated[int, typer.Option(help=MEMBERS_HELP)] = 5000,
    seed: Annotated[int, typer.Option(help="Seed of every random draw.")] = 0,
    engine: Annotated[str, typer.Option(help="auto, cpu, cuda or reference.")] = "auto",
    format: Annotated[str, typer.Option(help=FORMAT_HELP)] = "png",
    list: Annotated[bool, typer.Option("--list", help="Show all papers and items, with times, and exit.")] = False,
) -> None:
    """Reproduce a paper: its figures, tables, lemmas and theorems, recomputed and compared with what it says.

    Stops and resumes: finished items are kept. Ends with a table of verdicts and OUT/report.html (other papers than the first:
    OUT/NUMBER/report.html, and OUT/index.html over all of them).
    """
    one_thread_for_blas()
    from rich.console import Console

    from metastable.errors import StoppedEarlyWarning
    from metastable.reproduce import Settings, all_papers, find_papers, load_paper
    from metastable.reproduce.display import print_catalogue, print_verdicts, terminal
    from metastable.reproduce.own_papers import remembered
    from metastable.reproduce.runner import run_papers, select

    console = Console(soft_wrap=False)
    known = [*all_papers()] if own is None else [*all_papers(), load_paper(own)]
    if list:
        print_catalogue(console, known)
        return
    chosen = known[-1:] if own is not None else find_papers(paper, known, elsewhere=remembered(out))
    selection = select(items or [], chosen)
    settings = Settings(seed=seed, members=members, engine=engine)
    warnings.simplefilter("ignore", StoppedEarlyWarning)  # the verdicts say it
    source = [f"--from {own}"] if own is not None else [] if paper == "2411.04990" else [f"--paper {paper}"]
    command = ["metastable reproduce", *source, *(items or []), f"--seed {seed} --members {members} --engine {engine}"]
    try:
        with terminal(console) as watch:
            outcome = run_papers(selection, settings, out, " ".join(command), format.split(","), watch, known)
    except KeyboardInterrupt:
        console.print(
            f"stopped; finished items are kept in {out}: run the same command to go on", highlight=False, soft_wrap=True
        )
        raise typer.Exit(130) from None
    for one, results in outcome.results.items():
        if len(outcome.results) > 1:
            console.print(f"[bold]{one.number}[/]  {one.title}", highlight=False)
        print_verdicts(console, results)
    for name, page in [("report", path) for path in outcome.reports] + (
        [("index", outcome.index)] if outcome.index else []
    ):
        console.print(f"{name}: {page.resolve()}", highlight=False, soft_wrap=True)
    if any(result.verdict == "failed" for results in outcome.results.values() for result in results):
        raise typer.Exit(1)
