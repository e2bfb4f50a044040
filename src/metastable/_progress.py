"""Progress bars for long work: rich on a terminal, HTML in a notebook, silent otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

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

    `show=None` shows the bar only when standard error is a terminal, or in a notebook; True and False decide.
    """
    notebook = None if show is False else _notebook()
    if show is None:
        show = notebook is not None or sys.stderr.isatty()
    if not show:
        yield _ignore
        return
    if notebook is not None:
        with _notebook_bar(notebook, description, total) as report:
            yield report
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


# --------------------------------------------------------------------------------------------------- notebooks

REFRESH = 0.2
"""Seconds between two pictures of a bar in a notebook, each of which is a message to the browser."""


def _notebook() -> Any:
    """The module that shows things in a notebook, or None elsewhere; asks nobody who is not there already."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # A kernel talks to a page; a shell in a terminal has a terminal.
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython import display  # pyright: ignore[reportMissingImports]

    return display


@contextmanager
def _notebook_bar(display: Any, description: str, total: float) -> Iterator[Report]:
    """A bar in the output of a cell, gone when the work is done. Plain HTML, so that it needs no widgets."""
    began = time.monotonic()
    state: dict[str, Any] = {"done": 0.0, "shown": began, "note": ""}

    def picture() -> Any:
        share = min(1.0, state["done"] / total) if total > 0 else 1.0
        spent = time.monotonic() - began
        left = f", {spent * (1 - share) / share:.0f} s left" if 0 < share < 1 else ""
        text = escape(f"{description}{state['note']}: {100 * share:.1f} % after {spent:.0f} s{left}")
        return display.HTML(f"<progress value='{share:.4f}' max='1'></progress> {text}")

    handle = display.display(picture(), display_id=True)

    def show() -> None:
        state["shown"] = time.monotonic()
        handle.update(picture())

    def report(done: float) -> None:
        state["done"] = done
        if time.monotonic() - state["shown"] > REFRESH:
            show()

    def listen(begins: bool) -> None:
        state["note"] = f" ({COMPILING})" if begins else ""
        show()

    _listeners.append(listen)
    try:
        yield report
    finally:
        _listeners.remove(listen)
        handle.update(display.HTML(""))
