"""What Ctrl-C does to a command that computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def stoppable(left: str = "") -> Iterator[None]:
    """Work that Ctrl-C ends: the command says so, and what is `left` of it, and exits with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("; ".join(["stopped by Ctrl-C", *([left] if left else [])]), err=True)
        raise typer.Exit(130) from None
