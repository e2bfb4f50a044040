"""`metastable predict`: the merges that follow from a stored run, over any number of decades."""

from __future__ import annotations

import csv
import io
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metastable import stores
from metastable._words import counted
from metastable.cli.options import OUTPUT
from metastable.cli.pictures import check_file, check_picture, write_picture
from metastable.errors import StoppedEarlyWarning

if TYPE_CHECKING:
    from metastable.analysis import MergeTree


def predict(
    store: Annotated[Path, typer.Argument(help="The stored run.")],
    at: Annotated[
        float | None, typer.Option("--at", "-t", help="Moment of the run to predict from. Default: its end.")
    ] = None,
    radius: Annotated[
        float | None, typer.Option(help="Tokens closer than this are one cluster. Default: 0.5 beta^(-1/2).")
    ] = None,
    blur: Annotated[
        float | None,
        typer.Option(help="Radians by which places are uncertain. Default: as far as stragglers may pull them."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=OUTPUT)
    ] = False,
    table: Annotated[
        Path | None, typer.Option("--csv", help="Write the merges to this table (.csv).", rich_help_panel=OUTPUT)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the tree into this picture (.png, .pdf, .svg).", rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Which cluster of a stored run will merge into which, and when: predicted, not simulated.

    A cluster goes by the number of its first token. The uncertainty is a standard deviation in decades of the wait; where even
    the partner is in doubt there is a question mark.

    [bold]Examples[/]

        metastable simulate -n 200 -b 64 --until 100 --out run.zarr

        metastable predict run.zarr

        metastable predict run.zarr --at 50 --plot tree.pdf --csv merges.csv

        metastable predict run.zarr --json > merges.json
    """
    from metastable import run as runs

    if plot is not None:
        check_picture(plot)
    if table is not None:
        check_file(table, (".csv",), "writing")
    run = runs.load(store)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoppedEarlyWarning)  # the summary says it
        tree = run.predict_merges(at, radius=radius, blur=blur)
    moment = run.end if at is None else at
    if table is not None:
        with stores.new_file(table, durable=False) as partial:
            partial.write_text(_csv(tree), encoding="utf-8")
    if plot is not None:
        write_picture(tree.plot(), plot)
    if as_json:
        typer.echo(json.dumps(_json(tree, moment), indent=1))
        return
    _show(tree, moment, [path for path in (table, plot) if path is not None])


def _rows(tree: MergeTree) -> list[dict[str, Any]]:
    """The merges, one dictionary of plain numbers for each."""
    columns = {name: column.tolist() for name, column in tree.to_columns().items()}
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _csv(tree: MergeTree) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(tree.to_columns()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(tree))
    return text.getvalue()


def _json(tree: MergeTree, moment: float) -> dict[str, Any]:
    return {
        "t0": moment,
        "tokens": tree.tokens,
        "radius": tree.radius,
        "clusters": int(tree.start_labels.max()) + 1,
        "left": int(tree.final_labels.max()) + 1,
        "balanced": tree.balanced,
        "until": tree.until,
        "merges": _rows(tree),
    }


def _show(tree: MergeTree, moment: float, written: list[Path]) -> None:
    """The table of merges, and what is left."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    clusters, left = (int(labels.max()) + 1 for labels in (tree.start_labels, tree.final_labels))
    console.print(
        f"{counted(clusters, 'cluster')} at t = {moment:.6g} (tokens linked closer than {tree.radius:.3g}, and for good)",
        highlight=False,
    )
    if len(tree):
        shown = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("time", "decades off", "cluster of", "into that of", "tokens", "clusters left"):
            shown.add_column(name, justify="right")
        for row in _rows(tree):
            shown.add_row(
                f"{row['time']:.6g}",
                f"{row['uncertainty']:.2g}",
                str(row["child"]),
                f"{row['parent']}{' ?' if row['doubtful'] else ''}",
                f"{row['child_size']} + {row['parent_size']}",
                str(row["clusters"]),
            )
        console.print(shown)
    end = "the end of time" if tree.until is None else f"t = {tree.until:.6g}"
    console.print("; ".join([f"{counted(left, 'cluster')} left at {end}", *tree.caveats]), highlight=False)
    for path in written:
        console.print(f"wrote {path}", highlight=False)
