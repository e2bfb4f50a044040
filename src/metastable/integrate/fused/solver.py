"""The whole adaptive integration (Tsit5) in compiled code: one system, or thousands of members.

The compiled calls run beside the interpreter (they do not hold its lock) and are watched from Python: progress is reported,
and Ctrl-C stops them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate.solution import (
    DENSE_LIMIT,
    Dense,
    Solution,
    Statistics,
    Status,
    dense_overflow,
    diverged,
    out_of_steps,
    unchart,
)
from metastable.kernels import cpu
from metastable.kernels.cpu.support import FUSED
from metastable.kernels.protocol import Interaction
from metastable.model import Attention, why_not

WATCH_INTERVAL = 0.1
"""Seconds between looks at a running computation."""

FIRST_ROOM = 64
"""Steps that memory for dense output is first made for; it doubles when they are used up."""


def supports(model: Attention, tokens: int, interaction: str = "direct") -> bool:
    """True when `solve` and `solve_members` can integrate the model."""
    if why_not(model, FUSED, tokens) is not None:
        return False
    return interaction == "direct" or cpu.series_refusal(model, tokens) is None


def _chart(model: Attention) -> Literal["angle", "ambient"]:
    return "angle" if model.dim == 2 else "ambient"


def _to_chart(states: FloatArray) -> FloatArray:
    """Unit tokens (..., tokens, dim) as flat numbers of the chart (..., tokens * components)."""
    if states.shape[-1] == 2:
        return np.arctan2(states[..., 1], states[..., 0])
    return np.ascontiguousarray(states.reshape(*states.shape[:-2], -1))


def _watch(work: Callable[[], Any], stop: Callable[[], None], look: Callable[[], None] | None) -> Any:
    """Run `work` in a thread of its own; call `look` now and then; on Ctrl-C call `stop`, wait and raise again."""
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=target, name="metastable-integrate", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(WATCH_INTERVAL)
            if look is not None:
                look()
    except BaseException:
        stop()
        thread.join()
        raise
    if failure:
        raise failure[0]
    return outcome[0]


# -------------------------------------------------------------------------------------------------------- members


def solve_members(
    model: Attention,
    starts: FloatArray,
    times: FloatArray,
    *,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    max_steps: int = 100_000,
    interaction: Interaction = "direct",
    threads: int | None = None,
    progress: Report | None = None,
) -> tuple[FloatArray, np.ndarray, np.ndarray]:
    """Integrate many members from 0 to `times[-1]`, each with its own step size.

    `starts` (members, tokens, dim) unit tokens; `times` increasing. Returns states (members, times, tokens, dim), statistics
    (members, 3: accepted, rejected, evaluations) and status (members,): 0 success, 1 max_steps, 2 diverged, 3 not finished
    (after Ctrl-C, which is not raised here). States that were not reached are NaN. `progress` is called with the number of
    members finished. A member's numbers do not depend on the other members, nor on the number of threads.
    """
    from metastable.integrate.fused import members as loop
    from metastable.kernels.cpu import members as kernels
    from metastable.kernels.cpu.problem import prepare
    from metastable.kernels.cpu.threads import thread_count

    count, tokens, dim = starts.shape
    problem = prepare(model, tokens, interaction=interaction, chart=_chart(model))
    kernel = kernels.kernel(problem)
    # Left empty: the workers touch this memory first, each its own part.
    states = np.empty((count, times.size, tokens, dim))
    statistics = np.zeros((count, 3), dtype=np.int64)
    status = np.full(count, loop.UNFINISHED, dtype=np.int64)
    queue = np.zeros(3, dtype=np.int64)
    begin = _to_chart(np.asarray(starts, dtype=float))
    # A lane for every member: more workers than full vectors would have nothing to do.
    workers = max(1, min(thread_count(threads), -(-count // loop.LANES)))

    def work() -> None:
        arguments = (begin, times, float(times[-1]), rtol + atol, max_steps, queue, states, statistics, status)
        # The compiled call runs without the interpreter lock: plain threads are enough.
        with ThreadPoolExecutor(workers, "metastable-members") as pool:
            for worker in [pool.submit(loop.work, kernel, problem, *arguments) for _ in range(workers)]:
                worker.result()

    def stop() -> None:
        queue[loop.STOP] = 1

    with contextlib.suppress(KeyboardInterrupt):
        _watch(work, stop, None if progress is None else lambda: progress(float(queue[loop.FINISHED])))
    states[status == loop.UNFINISHED] = np.nan
    if progress is not None:
        progress(float(queue[loop.FINISHED]))
    return states, statistics, status


# ----------------------------------------------------------------------------------------------------- one system


class _March:
    """The arrays of one running integration."""

    def __init__(
        self,
        model: Attention,
        start: FloatArray,
        times: FloatArray | None,
        interaction: Interaction,
        threads: int | None,
    ) -> None:
        from metastable.integrate.fused import system as loop
        from metastable.kernels.cpu import system
        from metastable.kernels.cpu.compiled import aligned_array
        from metastable.kernels.cpu.problem import prepare
        from metastable.kernels.cpu.threads import thread_count

        self.loop = loop
        self.model = model
        self.tokens, self.dim = start.shape
        self.problem = prepare(model, self.tokens, interaction=interaction, chart=_chart(model))
        self.buffers = system.allocate(self.problem)
        self.kernel = system.kernel(self.problem, self.buffers)
        self.count = thread_count(threads)
        self.threads = True if self.count > 1 and system.pays(self.problem) else None
        self.entries = self.tokens * self.problem.components
        size = -(-self.entries // loop.LANES) * loop.LANES
        self.y = aligned_array(size)
        self.y[: self.entries] = _to_chart(start).reshape(-1)
        self.k = aligned_array(7 * size)
        self.new = aligned_array(size)
        self.h = aligned_array(loop.LANES)
        self.rest = (aligned_array(loop.CHUNKS * loop.LANES), np.zeros(self.entries), np.zeros(7))
        self.clock = np.zeros(3)
        self.ledger = np.zeros(8, dtype=np.int64)
        self.times = np.empty(0) if times is None else np.asarray(times, dtype=float)
        self.states = np.empty((self.times.size, self.tokens, self.dim))
        room = 0 if times is not None else FIRST_ROOM
        self.kept = (np.empty(room), np.empty(room), np.empty((room, 5, self.entries)))

    def advance(self, until: float, tolerance: float, max_steps: int) -> int:
        """One compiled call; returns why it ended."""
        from metastable.kernels.cpu.threads import using

        arguments = (
            self.kernel,
            self.problem,
            until,
            tolerance,
            max_steps,
            self.times,
            self.y,
            self.k,
            self.new,
            self.h,
        )
        arguments += (self.buffers, self.states, self.kept, self.clock, self.ledger, self.rest, self.threads)
        if not self.threads:
            return self.loop.advance(*arguments)
        with using(self.count):
            return self.loop.advance(*arguments)

    def grow(self) -> bool:
        """Double the memory for dense output; False when the limit is reached."""
        room = self.kept[0].size
        if 2 * self.kept[2].nbytes > DENSE_LIMIT:
            return False
        grown = (np.empty(2 * room), np.empty(2 * room), np.empty((2 * room, 5, self.entries)))
        for old, new in zip(self.kept, grown):
            new[:room] = old
        self.kept = grown
        return True

    def stop(self) -> None:
        self.ledger[self.loop.STOP] = 1

    def packed(self) -> FloatArray:
        """The present state (tokens, dim)."""
        return unchart(self.y[: self.entries].reshape(self.tokens, -1), _chart(self.model), self.dim)

    def solution(self, status: Status, message: str) -> Solution:
        """What was computed."""
        ledger, loop = self.ledger, self.loop
        statistics = Statistics(int(ledger[loop.ACCEPTED]), int(ledger[loop.REJECTED]), int(ledger[loop.EVALUATIONS]))
        if self.kept[0].size == 0:
            done = int(ledger[loop.OUTPUT])
            return Solution(self.times[:done].copy(), self.states[:done], status, statistics, None, message)
        steps = int(ledger[loop.PIECES_KEPT])
        start, width, pieces = (array[:steps].copy() for array in self.kept)
        if steps == 0:
            return Solution(np.zeros(1), self.packed()[None], status, statistics, None, message)
        chart = _chart(self.model)
        polynomials = pieces.reshape(steps, 5, self.tokens, -1)
        dense = Dense(chart, self.dim, start, width, polynomials)
        times = np.append(start, self.clock[loop.TIME])
        states = np.concatenate([unchart(polynomials[:, 0], chart, self.dim), self.packed()[None]])
        return Solution(times, states, status, statistics, dense, message)


def solve(
    model: Attention,
    start: FloatArray,
    times: FloatArray | None,
    until: float,
    *,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    max_steps: int = 100_000,
    interaction: Interaction = "direct",
    threads: int | None = None,
    progress: Report | None = None,
) -> Solution:
    """Integrate one system (tokens, dim) from 0 to `until`: outputs at `times`, or every step with dense output for None.

    Dense output is in angles on the circle and ambient else. The result does not depend on `threads` (None: all).
    """
    march = _March(model, start, times, interaction, threads)
    loop = march.loop
    tolerance = rtol + atol

    def look() -> None:
        if progress is not None:
            progress(float(march.clock[loop.TIME]))

    while True:
        reason = _watch(lambda: march.advance(float(until), tolerance, max_steps), march.stop, look)
        if reason != loop.FULL:
            break
        if not march.grow():
            return march.solution(*dense_overflow(march.clock[loop.TIME]))
    look()
    t = march.clock[loop.TIME]
    if reason == loop.MAX_STEPS:
        return march.solution(*out_of_steps(t, max_steps))
    if reason == loop.DIVERGED:
        return march.solution(*diverged(t))
    return march.solution("success", "")
