"""`metastable explore`: the page where tokens move."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer


def explore(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port (default: 8642 or the next free one).")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only serve; do not open a browser.")] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Anything but 127.0.0.1 lets other machines in.")
    ] = "127.0.0.1",
    workers: Annotated[int, typer.Option(min=1, max=16, help="Processes that compute runs.")] = 2,
    export: Annotated[
        Path | None,
        typer.Option(help="Serve nothing: write the page as static files into this folder, for any web host."),
    ] = None,
) -> None:
    """Open the explorer: a page where tokens move, drawn from real runs.

    It listens on this machine only and works offline. Stop it with Ctrl-C. With --export it becomes static files that compute in the
    visitor's browser.
    """
    if export is not None:
        import_module("metastable.explorer.export_site").export(export, typer.echo)
        return
    # By name, because the two shells do not import one another: the page works without the command line, and vice versa.
    server = import_module("metastable.explorer.server")
    server.serve(
        host=host,
        port=port,
        browser=not no_browser,
        workers=workers,
        announce=lambda address: typer.echo(f"The explorer is at {address}  (stop it with Ctrl-C)"),
    )
