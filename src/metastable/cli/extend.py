"""`metastable extend`: a stored run taken further."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from metastable.cli.options import OUTPUT, SOLVER, Overwrite, Plot, Quiet, Threads
from metastable.cli.pictures import check_picture, write_picture
from metastable.cli.simulate import STOPPED_EARLY, read_times, read_until, summary
from metastable.cli.stopping import stoppable
from metastable.errors import InvalidInputError, StoppedEarlyWarning


def extend(
    store: Annotated[Path, typer.Argument(help="The stored run.")],
    until: Annotated[
        str | None, typer.Option("--until", "-t", help="Later time to reach, or 'settled'.", rich_help_panel=SOLVER)
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(
            help="Further output times: '1,10,100' or 'log:0.1,1e6,50'. Default: as the run.", rich_help_panel=SOLVER
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="auto (as the run was made), tsit5 or rodas.", rich_help_panel=SOLVER)
    ] = "auto",
    max_steps: Annotated[
        int | None,
        typer.Option(
            help="Give up after this many further steps. Default: as many as the run was given.", rich_help_panel=SOLVER
        ),
    ] = None,
    threads: Threads = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Keep the longer run here. Default: in place.", rich_help_panel=OUTPUT),
    ] = None,
    overwrite: Overwrite = False,
    plot: Plot = None,
    quiet: Quiet = False,
) -> None:
    """Take a stored run further: the run that a later --until would have given, of which only the new part is computed.

    [bold]Examples[/]

    The longer run takes the place of the stored one when it is complete; until then that one stays as it is:

        metastable extend run.zarr --until 1e6

    Both are kept:

        metastable extend run.zarr --until 1e6 --out longer.zarr

    A store that another process takes further at the moment is refused.

    The exit code is 3 when the run stopped early; what it reached is kept.
    """
    from metastable import run as runs
    from metastable import stores
    from metastable.dataset import check_destination

    store = store.expanduser()
    # Of two that take a store further in its place one would compute for nothing: the second is refused.
    with stores.claimed(store) if out is None else nullcontext():
        run = runs.load(store)
        destination, replace = (store, True) if out is None else (out, overwrite)
        check_destination(destination, replace)
        if plot is not None:
            check_picture(plot)
        if out is None and times is not None and run.dense is not None:
            raise InvalidInputError(
                f"{store} holds every step with dense output, which --times would drop; keep both: --out FILE, or leave --times out"
            )
        warnings.simplefilter("ignore", StoppedEarlyWarning)  # the summary says it
        with stoppable(f"{store} is as it was"):
            longer = run.extend(
                read_until(until),
                times=read_times(times),
                method=method,
                max_steps=max_steps,
                threads=threads,
                progress=False if quiet else None,
            )
        longer.save(destination, overwrite=replace)
    if plot is not None:
        write_picture(longer.plot(), plot)
    summary(longer, destination, plot)
    if longer.status != "success":
        raise typer.Exit(STOPPED_EARLY)
