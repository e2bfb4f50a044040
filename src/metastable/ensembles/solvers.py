"""The methods of `ensemble`: a batch of starts to states, statistics and status codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.ensembles.problem import Problem
from metastable.errors import MetastableError
from metastable.integrate import solution
from metastable.integrate.methods import whole_steps
from metastable.kernels import select

STATUSES = (*solution.STATUSES, "unfinished", "failed")
"""Names of the integrators' status codes, in order, then those of members that were interrupted or raised."""
SUCCESS, UNFINISHED, FAILED = (STATUSES.index(name) for name in ("success", "unfinished", "failed"))

Batch = tuple[FloatArray, np.ndarray, np.ndarray]


def _tsit5(problem: Problem, starts: FloatArray, first: int, report: Report) -> Batch:
    """Explicit members: one compiled call (CPU or GPU) where the model fits one, else one after the other."""
    options = {
        "rtol": problem.rtol,
        "atol": problem.atol,
        "max_steps": problem.max_steps,
        "interaction": problem.choice.interaction,
        "threads": problem.choice.threads,
        "progress": report,
    }
    if problem.choice.engine == "cuda":
        from metastable.integrate.fused import cuda as fused_cuda

        return fused_cuda.solve_members(problem.model, starts, problem.times, dtype=problem.choice.dtype, **options)
    if problem.choice.engine == "cpu":
        from metastable.integrate import fused

        if fused.supports(problem.model, problem.tokens, problem.choice.interaction):
            return fused.solve_members(problem.model, starts, problem.times, **options)

    def solve(start: FloatArray, member: int) -> Any:
        from metastable.integrate import explicit

        return explicit.solve(
            problem.model,
            start,
            float(problem.times[-1]),
            times=problem.times,
            rtol=problem.rtol,
            atol=problem.atol,
            max_steps=problem.max_steps,
            choice=problem.choice,
        )

    return _one_by_one(problem, starts, first, report, solve)


def _rodas(problem: Problem, starts: FloatArray, first: int, report: Report) -> Batch:
    """Implicit members, parallel over threads."""
    from metastable.integrate import rodas

    solved = rodas.solve_members(
        problem.model,
        starts,
        times=problem.times,
        rtol=problem.rtol,
        atol=problem.atol,
        max_steps=problem.max_steps,
        threads=problem.choice.threads,
        progress=report,
    )
    statistics = np.array([[s.accepted, s.rejected, s.evaluations] for s in solved.statistics])
    return solved.states, statistics, np.array([STATUSES.index(name) for name in solved.statuses])


def _sde(problem: Problem, starts: FloatArray, first: int, report: Report) -> Batch:
    from metastable.integrate import sde

    model = problem.model
    steps = whole_steps(problem.times, problem.step, "sde", problem.max_steps)
    rhs = select.right_hand_side(model, problem.tokens, problem.choice)

    def solve(start: FloatArray, member: int) -> Any:
        noise = sde.normals(problem.noise_seed(member), problem.tokens, model.dim)
        return sde.solve(rhs, start, model.dim, model.noise, problem.step, steps, noise, times=problem.times)

    return _one_by_one(problem, starts, first, report, solve)


def _layers(problem: Problem, starts: FloatArray, first: int, report: Report) -> Batch:
    from metastable.integrate import layers

    models = (problem.model,) * whole_steps(problem.times, problem.step, "layers", problem.max_steps)
    return _one_by_one(
        problem,
        starts,
        first,
        report,
        lambda start, member: layers.solve(models, start, problem.step, times=problem.times),
    )


def _one_by_one(problem: Problem, starts: FloatArray, first: int, report: Report, solve: Callable[..., Any]) -> Batch:
    """Members in a plain loop; one that raises is recorded as failed."""
    count = len(starts)
    dim = problem.model.dim
    states = np.full((count, problem.times.size, *starts.shape[1:]), np.nan)
    statistics = np.zeros((count, 3), dtype=np.int64)
    status = np.full(count, UNFINISHED)
    packed = np.ones((*starts.shape[:2], problem.model.width))
    packed[:, :, :dim] = starts
    for i in range(count):
        try:
            solution = solve(packed[i], first + i)
        except KeyboardInterrupt:
            break
        except MetastableError:
            status[i] = FAILED
            continue
        states[i, : len(solution.times)] = solution.states[:, :, :dim]
        statistics[i] = solution.statistics.accepted, solution.statistics.rejected, solution.statistics.evaluations
        status[i] = STATUSES.index(solution.status)
        report(i + 1)
    return states, statistics, status


SOLVERS: dict[str, Callable[[Problem, FloatArray, int, Report], Batch]] = {
    "tsit5": _tsit5,
    "rodas": _rodas,
    "sde": _sde,
    "layers": _layers,
}
"""Method -> the function that solves a batch with it."""
