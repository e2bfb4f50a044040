"""Progress bars for long work: rich on a terminal, HTML in a notebook, silent otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from html import escape
from typing import Any

from metastable import _checks

Report = Callable[[float], None]
"""Called with the work done so far (same unit as `total`)."""


COMPILING = "compiling, once per machine"
"""What a progress bar says while code is compiled that no earlier run has left in the cache."""

_listeners: list[Callable[[bool], None]] = []
"""Called with True when compilation begins, with False when it is over: one for each progress bar that is shown."""


def tell_compiling(begins: bool) -> None:
    """Tell whoever looks at a progress bar that code is being compiled, or no longer; and whoever looks at a terminal without one."""
    for listener in _listeners:
        listener(begins)
    if begins and not _listeners:
        _tell_terminal()


@cache
def _tell_terminal() -> None:
    """A line, once in a process: the first prediction of merges on a machine takes half a minute, and has no progress bar."""
    if sys.stderr is not None and sys.stderr.isatty():  # a service may have none
        print(f"metastable: {COMPILING} ...", file=sys.stderr, flush=True)


def _ignore(done: float) -> None:
    """Progress that nobody watches."""


_outer: ContextVar[tuple[Report, float, float] | None] = ContextVar("outer", default=None)
"""Where the bar of a larger work stands, and how much of it is being done: see `part_of`."""


@contextmanager
def part_of(report: Report, begin: float, size: float) -> Iterator[None]:
    """Progress bars inside are not shown: their work is that from `begin` to `begin + size` of the bar that `report` moves.

    It never moves back: where several bars follow one another inside, each begins anew, and what is furthest counts.
    """
    furthest = begin

    def forward(done: float) -> None:
        nonlocal furthest
        furthest = max(furthest, done)
        report(furthest)

    token = _outer.set((forward, begin, size))
    try:
        yield
    finally:
        _outer.reset(token)
    report(begin + size)


@contextmanager
def progress_bar(description: str, total: float, show: bool | None = None) -> Iterator[Report]:
    """A progress bar over `total` units of work; yields a function to call with the work done so far.

    `show=None` shows the bar only when standard error is a terminal, or in a notebook; True and False decide, all else is refused.
    Inside `part_of` none is shown, even where `show` is True: the larger bar moves instead (and stands still for False).
    """
    show = _checks.progress(show)
    outer = _outer.get()
    if outer is not None and show is not False:
        whole, begin, size = outer
        yield lambda done: whole(begin + size * (min(1.0, done / total) if total > 0 else 1.0))
        return
    notebook = None if show is False else _notebook()
    if show is None:
        show = notebook is not None or sys.stderr.isatty()
    if not show:
        _listeners.append(_ignore)
        try:
            yield _ignore
        finally:
            _listeners.remove(_ignore)
        return
    if notebook is not None:
        with _notebook_bar(notebook, description, total) as shown:
            yield shown
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
PATIENCE = 0.5
"""Seconds before the first one: what is done by then needs no bar."""


def _notebook() -> Any:
    """The module that shows things in a notebook, or None elsewhere; asks nobody who is not there already."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # A kernel talks to a page; a shell in a terminal has a terminal.
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython import display  # pyright: ignore[reportMissingImports]

    return display


class _NotebookBar:
    """A bar in the output of a cell. Plain HTML, so that it needs no widgets."""

    def __init__(self, display: Any, description: str, total: float) -> None:
        self.display, self.description, self.total = display, description, total
        self.began = time.monotonic()
        self.due = self.began + PATIENCE
        self.done, self.note = 0.0, ""
        self.handle: Any = None

    def picture(self) -> dict[str, str]:
        share = min(1.0, self.done / self.total) if self.total > 0 else 1.0
        spent = time.monotonic() - self.began
        left = f", {spent * (1 - share) / share:.0f} s left" if 0 < share < 1 else ""
        text = f"{self.description}{self.note}: {100 * share:.1f} % after {spent:.0f} s{left}"
        page = f"<progress value='{share:.4f}' max='1'></progress> {escape(text)}"
        return {"text/html": page, "text/plain": text}

    def report(self, done: float) -> None:
        self.done = done
        if time.monotonic() >= self.due:
            self.show(self.picture())

    def listen(self, begins: bool) -> None:
        self.note = f" ({COMPILING})" if begins else ""
        self.show(self.picture())

    def show(self, picture: dict[str, str]) -> None:
        self.due = time.monotonic() + REFRESH
        if self.handle is None:
            self.handle = self.display.display(picture, raw=True, display_id=True)
        else:
            self.handle.update(picture, raw=True)

    def close(self) -> None:
        """Gone when the work is done."""
        if self.handle is not None:
            self.handle.update({"text/html": "", "text/plain": ""}, raw=True)


@contextmanager
def _notebook_bar(display: Any, description: str, total: float) -> Iterator[Report]:
    bar = _NotebookBar(display, description, total)
    _listeners.append(bar.listen)
    try:
        yield bar.report
    finally:
        _listeners.remove(bar.listen)
        bar.close()
