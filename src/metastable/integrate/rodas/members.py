"""Rodas5P for many members: one independent integration each, spread over threads.

The compiled loop releases the interpreter lock, and members share nothing, so results are the same bit for bit for any number
of threads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate.plan import ATOL, MAX_STEPS, RTOL
from metastable.integrate.rodas.solver import solve
from metastable.integrate.solution import Solution, Statistics, Status
from metastable.model import Attention


@dataclass(frozen=True)
class MemberSolutions:
    """Times (m,), states (members, m, tokens, dim), NaN where a member stopped earlier, and how each member ended."""

    times: FloatArray
    states: FloatArray
    statuses: tuple[Status, ...]
    messages: tuple[str, ...]
    statistics: tuple[Statistics, ...]
    notes: tuple[dict, ...]


def solve_members(
    model: Attention,
    starts: FloatArray,
    *,
    times: FloatArray | Sequence[float],
    until: float | None = None,
    rtol: float = RTOL,
    atol: float = ATOL,
    max_steps: int = MAX_STEPS,
    settled: bool = False,
    threads: int | None = None,
    progress: Report | None = None,
) -> MemberSolutions:
    """`solve` for each of `starts` (members, tokens, dim), saved at `times`.

    `settled`: members stop when all their tokens have; output times behind that hold the state at rest. `progress` gets the
    number of finished members.
    """
    starts = np.asarray(starts, dtype=float)
    times = np.asarray(times, dtype=float)
    horizon = float(times[-1]) if until is None else float(until)
    states = np.full((len(starts), times.size, *starts.shape[1:]), np.nan)
    solutions: list[Solution | None] = [None] * len(starts)
    done = 0

    def work(number: int) -> int:
        solutions[number] = solve(
            model,
            starts[number],
            times=times,
            until=horizon,
            rtol=rtol,
            atol=atol,
            max_steps=max_steps,
            settled=settled,
            keep_dense=False,
        )
        return number

    with ThreadPoolExecutor(max_workers=threads or os.cpu_count() or 1) as pool:
        for number in pool.map(work, range(len(starts))):
            solution = solutions[number]
            assert solution is not None
            states[number, : len(solution.times)] = solution.states
            done += 1
            if progress is not None:
                progress(done)
    finished = [solution for solution in solutions if solution is not None]
    return MemberSolutions(
        times,
        states,
        tuple(solution.status for solution in finished),
        tuple(solution.message for solution in finished),
        tuple(solution.statistics for solution in finished),
        tuple(solution.notes for solution in finished),
    )
