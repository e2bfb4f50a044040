"""What the terminal shows while recipes run: a live bar on a terminal, one line per item everywhere, a table at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from metastable.reproduce.paper import Paper
from metastable.reproduce.recipe import Recipe, Report
from metastable.reproduce.result_store import Result
from metastable.reproduce.runner import Watch
from metastable.reproduce.typeset import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

COLORS = {
    "agrees": "green",
    "agrees under a condition": "yellow",
    "disagrees": "red",
    "not available": "bright_black",
    "failed": "bold red",
}


@contextmanager
def terminal(console: Console, show: bool | None = None) -> Iterator[Watch]:
    """A `Watch` that draws progress on `console`; `show=None` draws bars only where there is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    live = console.is_terminal if show is None else show
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not live,
    ) as bars:
        everything = bars.add_task("[bold]reproduce", total=None)
        current = bars.add_task("", total=100)

        def started(recipe: Recipe, number: int, total: int) -> Report:
            bars.update(everything, total=total, completed=number - 1)
            bars.reset(current, description=recipe.name, total=100)
            return lambda fraction: bars.update(current, completed=round(100 * fraction))

        def ended(result: Result, number: int, total: int) -> None:
            bars.update(everything, completed=number)
            when = "done before" if result.resumed else format_seconds(result.seconds)
            color = COLORS[result.verdict]
            place = f"[bright_black]\\[{number:>2}/{total}][/]"
            line = f"{place} {result.name:<18} [{color}]{result.verdict}[/] [bright_black]{when}[/]"
            bars.console.print(line, highlight=False)
            if result.error:
                bars.console.print(f"         {result.error}", highlight=False, markup=False)
                for row in result.traceback.rstrip().splitlines():
                    bars.console.print(
                        f"         {row}", highlight=False, markup=False, style="bright_black", soft_wrap=True
                    )

        yield Watch(started, ended)


def print_catalogue(console: Console, papers: Sequence[Paper]) -> None:
    """Every paper, its items with one line each, and about how long they take on two processors."""
    from rich.table import Table

    for paper in papers:
        total = "" if paper.seconds is None else f"  [bright_black]about {format_seconds(paper.seconds)}[/]"
        console.print(f"[bold]{paper.number}[/]  {paper.title}{total}", highlight=False)
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        table.add_column(justify="right", style="bright_black", no_wrap=True)
        for recipe in paper.recipes:
            time = "" if recipe.seconds is None else format_seconds(recipe.seconds)
            table.add_row(f"  {recipe.name}", recipe.title, time)
        console.print(table)


def headline(result: Result, limit: int = 110) -> str:
    """The first thing that was measured, cut to `limit` characters (the report has all of it)."""
    checked = [finding for finding in result.findings if finding.verdict != "not available"] or list(result.findings)
    text = result.error or (checked[0].measured if checked else "")
    return text if len(text) <= limit else text[: limit - 1].rsplit(" ", 1)[0] + " …"


def print_verdicts(console: Console, results: Sequence[Result]) -> None:
    """The table of verdicts."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("item", style="bold", no_wrap=True)
    table.add_column("verdict")
    table.add_column("measured")
    table.add_column("time", justify="right", no_wrap=True)
    for result in results:
        verdict = f"[{COLORS[result.verdict]}]{result.verdict}[/]"
        table.add_row(result.name, verdict, Text(headline(result)), format_seconds(result.seconds))
    console.print(table)
