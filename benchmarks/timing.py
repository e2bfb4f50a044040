"""Fair timing on a shared machine: contenders take turns, and the best turn of each counts.

CPU seconds of the whole process (all threads) are measured, so waiting for a busy core costs nobody anything and hidden threads
count for their owner.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Contender:
    """Something to time: `run` does `units` units of work and returns what it found."""

    name: str
    run: Callable[[], Any]
    units: float = 1.0
    rounds: int = 10**9
    """Turns at the most (for what takes long)."""
    seconds: list[float] = field(default_factory=list)
    result: Any = None

    @property
    def best(self) -> float:
        """CPU seconds per unit, best turn."""
        return min(self.seconds) / self.units


left_out: list[str] = []
"""Contenders that could not run, with the reason: the tables say so."""


def race(contenders: list[Contender], rounds: int = 5, report: Callable[[str], None] = print) -> list[Contender]:
    """Let the contenders take turns; the first, untimed, compiles and warms up caches. Those that raise are left out, named."""
    ready = []
    for contender in contenders:
        try:
            contender.result = contender.run()
        except Exception as reason:
            left_out.append(f"{contender.name} ({type(reason).__name__}: {reason})")
            report(f"  left out: {left_out[-1]}")
            continue
        ready.append(contender)
    for turn in range(rounds):
        for contender in ready:
            if turn < contender.rounds:
                start = time.process_time()
                contender.result = contender.run()
                contender.seconds.append(time.process_time() - start)
    return ready


def repeat(function: Callable[[], Any], times: int) -> Callable[[], Any]:
    """A function that calls another several times, for what is too short to time once."""

    def run() -> Any:
        result = None
        for _ in range(times):
            result = function()
        return result

    return run
