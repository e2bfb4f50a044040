"""`metastable control`: what must be set so that something happens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from metastable.cli.options import MODEL, OUTPUT, SOLVER, START, Overwrite, Quiet, Threads
from metastable.cli.pictures import check_picture, write_picture
from metastable.cli.stopping import stoppable
from metastable.cli.variants import field_help, read_variant, variant_help
from metastable.errors import InvalidInputError

control = typer.Typer(
    help="Turn the question around: what must be set so that clusters appear, last and end as wanted.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

GOAL = "Goal"


@control.command()
def temperature(
    clusters: Annotated[
        float, typer.Option("--clusters", "-c", help="How many clusters, on average.", rich_help_panel=GOAL)
    ],
    until: Annotated[float, typer.Option("--until", "-t", help="At which depth.", rich_help_panel=GOAL)],
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Tokens of a sequence.", rich_help_panel=START)] = 200,
    dim: Annotated[int, typer.Option("--dim", "-d", help=field_help("dim"), rich_help_panel=MODEL)] = 2,
    knob: Annotated[
        str,
        typer.Option(
            help="What is turned: beta, noise, tokens, window (needs --mask window:W), norm (needs --norm with a number).",
            rich_help_panel=GOAL,
        ),
    ] = "beta",
    beta: Annotated[
        float | None,
        typer.Option("--beta", "-b", help=f"{field_help('beta')} For knobs other than beta.", rich_help_panel=MODEL),
    ] = None,
    mask: Annotated[
        str | None, typer.Option(help=variant_help("mask", "Who sees whom: "), rich_help_panel=MODEL)
    ] = None,
    norm: Annotated[str | None, typer.Option(help=variant_help("norm"), rich_help_panel=MODEL)] = None,
    noise: Annotated[float | None, typer.Option(help=field_help("noise"), rich_help_panel=MODEL)] = None,
    between: Annotated[
        str | None, typer.Option(help="Bounds of the knob: '5,50'. Default: what the law says.", rich_help_panel=GOAL)
    ] = None,
    accuracy: Annotated[
        float | None,
        typer.Option(
            help="Standard error of the mean to stop at. Default: 0.0035 sqrt(clusters).", rich_help_panel=SOLVER
        ),
    ] = None,
    members: Annotated[int, typer.Option(help="Spend no more members than this.", rich_help_panel=SOLVER)] = 20_000,
    exact: Annotated[
        bool,
        typer.Option(help="Simulate every member to the end, also where leaders would do.", rich_help_panel=SOLVER),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of all tries.", rich_help_panel=START)] = 0,
    threads: Threads = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw what was tried (.png, .pdf, .svg).", rich_help_panel=OUTPUT)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """The inverse temperature (or another knob) at which there are so many clusters at that depth, on average.

    The search starts from the law N(t) = pi/arccos(1 - ln t/beta) and spends ensembles where they matter: on both sides of the root.
    What it finds is measured with members of its own, until the mean number of clusters there is known to --accuracy.

    [bold]Examples[/]

    Five clusters of 200 tokens at depth a million:

        metastable control temperature --clusters 5 --until 1e6

    A first look, in seconds:

        metastable control temperature -c 5 -t 1e6 --accuracy 0.05

    On the sphere, with a picture of what was tried:

        metastable control temperature -c 10 -t 100 --dim 3 --plot tried.png

    How wide a window must be for six clusters at beta = 32:

        metastable control temperature -c 6 -t 100 --knob window --mask window:32 --beta 32 --between 4,200
    """
    from metastable.control import tune
    from metastable.model import Attention

    if plot is not None:
        check_picture(plot)
    if knob != "beta" and beta is None:
        raise InvalidInputError(
            f"--knob {knob} turns another number than beta; say which beta the model has: --beta 32"
        )
    table: dict[str, Any] = {"dim": dim, "beta": 1.0 if beta is None else beta}
    if noise is not None:
        table["noise"] = noise
    for family, text in (("mask", mask), ("norm", norm)):
        if text is not None:
            table[family] = read_variant(family, text)
    options = {} if threads is None else {"threads": threads}
    with stoppable():
        found = tune(
            Attention.from_dict(table),
            knob,
            tokens=tokens,
            clusters=clusters,
            until=until,
            seed=seed,
            accuracy=accuracy,
            members=members,
            between=None if between is None else read_bounds(between),
            exact=exact,
            progress=False if quiet else None,
            **options,
        )
    if plot is not None:
        write_picture(found.plot(), plot)
    show(found, {"drawn in": str(plot) if plot is not None else ""})


@control.command()
def schedule(
    store: Annotated[Path, typer.Argument(help="A stored run, at least until its clusters have gathered (t = 100).")],
    at: Annotated[float, typer.Option("--at", help="The depth of the merge.", rich_help_panel=GOAL)],
    event: Annotated[
        str | None,
        typer.Option(
            help="'15,1': the cluster of token 15 falls into that of token 1. Default: no merge before --at.",
            rich_help_panel=GOAL,
        ),
    ] = None,
    since: Annotated[
        float | None, typer.Option(help="Beta may change from this depth on. Default: 100.", rich_help_panel=GOAL)
    ] = None,
    verify: Annotated[bool, typer.Option(help="Simulate the schedule.", rich_help_panel=SOLVER)] = True,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Keep the simulated run (a zarr store).", rich_help_panel=OUTPUT)
    ] = None,
    overwrite: Overwrite = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw world lines without and with the change.", rich_help_panel=OUTPUT)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """The least change of beta over depth that makes one cluster fall into another at a chosen depth, or none before it.

    A cluster waits for a time exp(beta (1 - cos D)): beta moves it by decades. The change begins behind the last earlier merge, so that
    all of those stay as they are, and ends behind the merge that it is for. Without --event all clusters are held until --at.

    [bold]Examples[/]

    A run, and what its clusters will do:

        metastable simulate -n 60 -d 2 -b 32 --until 100 --seed 1 --out run.zarr
        metastable control schedule run.zarr --at 1e20

    The cluster of token 6 into that of token 3, at 3e4 instead of 4e5:

        metastable control schedule run.zarr --event 6,3 --at 3e4 --plot before-after.png

    Merges against the order of the sequence are refused: under the causal mask a later leader falls into an earlier one.
    """
    from metastable.control import schedule as steer
    from metastable.dataset import check_destination
    from metastable.run import load

    if (out is not None or plot is not None) and not verify:
        raise InvalidInputError("--out and --plot need the simulation that --no-verify leaves out")
    if out is not None:
        check_destination(out, overwrite)
    if plot is not None:
        check_picture(plot)
    run = load(store)
    with stoppable("nothing was kept"):
        found = steer(
            run,
            None if event is None else read_pair(event),
            at=at,
            since=since,
            verify=verify,
            progress=False if quiet else None,
        )
    if out is not None:
        assert found.run is not None
        found.run.save(out, overwrite=overwrite)
    if plot is not None:
        write_picture(found.plot(), plot)
    show(found, {"kept in": str(out) if out else "", "drawn in": str(plot) if plot else ""})


def read_bounds(text: str) -> tuple[float, float]:
    """'5,50' as two numbers."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidInputError(f"--between should read 'LOW,HIGH', not {text!r}") from None
    return low, high


def read_pair(text: str) -> tuple[int, int]:
    """'15,1' as two tokens."""
    try:
        child, parent = (int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInputError(f"--event should read 'TOKEN,TOKEN', not {text!r}") from None
    return child, parent


def show(found: Any, more: dict[str, str]) -> None:
    """A short table of what was found."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in {**found.facts, **more}.items():
        if text:
            table.add_row(name, text)
    Console().print(table)
