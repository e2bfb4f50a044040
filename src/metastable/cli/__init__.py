"""The command line: a thin shell. Each command lives in a file of its own and is imported only when it is called."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `metastable`. Errors of ours become one readable line and exit code 2."""
    from metastable.cli.app import build
    from metastable.errors import MetastableError

    try:
        build(sys.argv[1:])()
    except MetastableError as error:
        from rich.console import Console
        from rich.markup import escape

        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(2)
