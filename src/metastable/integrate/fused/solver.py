"""Explicit methods on the CPU: one system, compiled steps strung together by Python; or thousands of members, compiled as a whole.

The workers of an ensemble run beside the interpreter (they do not hold its lock) and are watched from Python: progress is
reported, and Ctrl-C stops them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import march
from metastable.integrate.plan import Plan
from metastable.integrate.solution import UNFINISHED, Chart, Members
from metastable.model import Attention

WATCH_INTERVAL = 0.1
"""Seconds between looks at a running computation."""


def _chart(model: Attention) -> Chart:
    return "angle" if model.dim == 2 else "ambient"


def _to_chart(states: FloatArray) -> FloatArray:
    """Unit tokens (..., tokens, dim) as flat numbers of the chart (..., tokens * components)."""
    if states.shape[-1] == 2:
        return np.arctan2(states[..., 1], states[..., 0])
    return np.ascontiguousarray(states.reshape(*states.shape[:-2], -1))


def solve_members(plan: Plan, starts: FloatArray, progress: Report | None = None) -> Members:
    """Integrate many members from 0 to the last time of the plan, each with its own step size.

    `starts` (members, tokens, dim) unit tokens. `progress` is called with the number of members finished; after Ctrl-C, which is not
    raised here, the others are unfinished. A member's numbers do not depend on the other members, nor on the number of threads.
    """
    from metastable.integrate.fused import queue as loop
    from metastable.kernels.cpu import members as kernels
    from metastable.kernels.cpu.memory import Reference
    from metastable.kernels.cpu.problem import prepare
    from metastable.kernels.cpu.threads import thread_count

    (count, tokens, _), times, backend = starts.shape, plan.save.times, plan.backend
    assert times is not None
    problem = prepare(plan.model, tokens, interaction=backend.interaction, chart=_chart(plan.model))
    batch = loop.make_batch(problem, plan.tableau, plan.accuracy, _to_chart(np.asarray(starts, dtype=float)), times)
    # A lane for every member: more workers than full vectors would have nothing to do.
    workers = max(1, min(thread_count(backend.threads), -(-count // loop.LANES)))
    shared, lanes = Reference(batch), [Reference(loop.make_lanes(batch)) for _ in range(workers)]
    kernel = kernels.kernel(problem.kind, shared.field("problem"), lanes[0].field("scratch"))
    with suppress(KeyboardInterrupt), ThreadPoolExecutor(workers, "metastable-members") as pool:
        try:
            running = {pool.submit(loop.work, kernel, shared, own) for own in lanes}
            while running:
                done, running = wait(running, WATCH_INTERVAL)
                for worker in done:
                    worker.result()
                if progress is not None:
                    progress(float(batch.queue[loop.FINISHED]))
        finally:
            batch.queue[loop.STOP] = 1  # for those who are still at work
    batch.states[batch.status == UNFINISHED] = np.nan
    if progress is not None:
        progress(float(batch.queue[loop.FINISHED]))
    return Members(batch.states, batch.statistics, batch.status)


def system_of(plan: Plan, start: FloatArray) -> tuple[march.Movable, Chart]:
    """The system that stands at the tokens `start` (tokens, dim), and the chart that its state is in: angles on the circle, ambient
    else. Its numbers do not depend on threads."""
    from metastable.integrate.fused.system import System
    from metastable.kernels.cpu.problem import prepare
    from metastable.kernels.cpu.threads import thread_count

    chart, tokens = _chart(plan.model), len(start)
    problem = prepare(plan.model, tokens, interaction=plan.backend.interaction, chart=chart)
    begin = _to_chart(np.asarray(start, dtype=float)).reshape(tokens, -1)
    return System(problem, begin, plan.accuracy.tolerance, thread_count(plan.backend.threads), plan.tableau), chart
