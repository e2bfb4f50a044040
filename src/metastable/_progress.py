"""Progress bars for long work: rich on a terminal, silent otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[float], None]
"""Called with the work done so far (same unit as `total`)."""


COMPILING = "compiling, once per machine"
"""What a progress bar says while code is compiled that no earlier run has left in the cache."""

_listeners: list[Callable[[bool], None]] = []
"""Called with True when compilation begins, with False when it is over: one for each progress bar that is shown."""


def tell_compiling(begins: bool) -> None:
    """Tell whoever looks at a progress bar that code is being compiled, or no longer."""
    for listener in _listeners:
        listener(begins)


def _ignore(done: float) -> None:
    """Progress that nobody watches."""


@contextmanager
def progress_bar(description: str, total: float, show: bool | None = None) -> Iterator[Report]:
    """A progress bar over `total` units of work; yields a function to call with the work done so far.

    `show=None` shows the bar only when standard error is a terminal; True and False decide.
    """
    if show is None:
        show = sys.stderr.isatty()
    if not show:
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>5.1f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total, rate="")

        def report(done: float) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, completed=done, rate="" if not speed else f"{speed:.3g}/s")

        def listen(begins: bool) -> None:
            bar.update(task, description=f"{description}: {COMPILING}" if begins else description)

        _listeners.append(listen)
        try:
            yield report
        finally:
            _listeners.remove(listen)
