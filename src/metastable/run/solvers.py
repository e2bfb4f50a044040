"""Each method of `simulate` as one call into a room below."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from metastable._progress import Report
from metastable.errors import UnsupportedError
from metastable.integrate.solution import Solution
from metastable.kernels import select
from metastable.run.problem import Problem


def _auto(problem: Problem, report: Report) -> Solution:
    from metastable.integrate import auto

    return auto.solve(
        problem.model,
        problem.packed,
        problem.until,
        times=problem.times,
        rtol=problem.rtol,
        atol=problem.atol,
        max_steps=problem.max_steps,
        settled=problem.settled,
        choice=problem.choice,
        progress=report,
    )


def _tsit5(problem: Problem, report: Report) -> Solution:
    from metastable.integrate import explicit

    return explicit.solve(
        problem.model,
        problem.packed,
        problem.until,
        times=problem.times,
        rtol=problem.rtol,
        atol=problem.atol,
        max_steps=problem.max_steps,
        choice=problem.choice,
        progress=report,
    )


def _solve_layers(problem: Problem, report: Report) -> Solution:
    from metastable.integrate import layers

    return layers.solve(problem.models, problem.packed, problem.step, times=problem.times, progress=report)


def _sde(problem: Problem, report: Report) -> Solution:
    from metastable.integrate import sde

    model = problem.model
    steps = int(np.rint(problem.until / problem.step))
    return sde.solve(
        select.right_hand_side(model, len(problem.start), problem.choice),
        problem.packed,
        model.dim,
        model.noise,
        problem.step,
        steps,
        sde.normals(problem.seed or 0, len(problem.start), model.dim),
        times=problem.times,
        progress=report,
    )


def _rodas(problem: Problem, report: Report) -> Solution:
    from metastable.integrate import rodas

    reason = rodas.refusal(problem.model, len(problem.start))
    if reason is not None:
        raise UnsupportedError(reason)
    return rodas.solve(
        problem.model,
        problem.start,
        times=problem.times,
        until=problem.until,
        rtol=problem.rtol,
        atol=problem.atol,
        max_steps=problem.max_steps,
        settled=problem.settled,
        progress=report,
    )


SOLVERS: dict[str, Callable[[Problem, Report], Solution]] = {
    "auto": _auto,
    "tsit5": _tsit5,
    "rodas": _rodas,
    "layers": _solve_layers,
    "sde": _sde,
}
"""Method -> the function that solves a problem with it."""
