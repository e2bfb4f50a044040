"""Explicit integration with whichever engine was chosen: one compiled call where the system fits one, step by step else."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import march, tsit5
from metastable.integrate.plan import Plan
from metastable.integrate.solution import Chart, Members, Solution, one_by_one
from metastable.integrate.tableau import TSIT5
from metastable.kernels import select
from metastable.model import require


def _compiled(plan: Plan, tokens: int) -> ModuleType | None:
    """Where the whole integration is compiled on the CPU, if it is."""
    if plan.backend.engine != "cpu":
        return None
    from metastable.integrate import fused

    return fused if fused.supports(plan.model, tokens, plan.backend.interaction) else None


def _options(plan: Plan, report: Report | None) -> dict[str, Any]:
    """What the compiled integrations take by name."""
    care, backend = plan.accuracy, plan.backend
    tolerances = {"rtol": care.rtol, "atol": care.atol, "max_steps": care.max_steps}
    return {**tolerances, "interaction": backend.interaction, "threads": backend.threads, "progress": report}


def _torch(plan: Plan, start: FloatArray, report: Report | None) -> Solution:
    """With engine="torch": states stay where the velocity is computed."""
    from metastable.kernels import torch

    require(plan.model, torch.SUPPORT[plan.backend.dtype], len(start))
    from metastable.kernels.torch.device_system import DeviceSystem
    from metastable.kernels.torch.engine import Velocity

    velocity = Velocity(plan.model, len(start), 0, plan.backend.threads, plan.backend.dtype)
    start = np.ascontiguousarray(start, dtype=np.float64)
    return march.follow(DeviceSystem(velocity, start, TSIT5, plan.accuracy, march.polynomial), plan, start, report)


def system_of(plan: Plan, start: FloatArray, depth: float = 0.0) -> tuple[march.Movable, FloatArray, Chart]:
    """The system that `solve` marches with engine "reference" or "cpu" from the packed state `start`, that state in the chart of the
    system, and the chart. `depth`: where the time of the plan begins (in a `Schedule`: `scheduled`)."""
    fused = _compiled(plan, len(start))
    if fused is not None and (plan.model.norm.autonomous or depth == 0.0):
        return fused.system_of(plan.model, start, plan.accuracy, plan.backend.interaction, plan.backend.threads)
    rhs = select.right_hand_side(plan.model, len(start), plan.backend)
    moving = tsit5.in_depth(rhs, depth, plan.model.norm)
    return tsit5.System(moving, np.array(start), plan.model.dim, 0, plan.accuracy), start, "ambient"


def solve(plan: Plan, start: FloatArray, report: Report | None) -> Solution:
    """Tsit5 from the packed state `start` with the engine and interaction of the plan."""
    model, save = plan.model, plan.save
    if plan.backend.engine == "cuda":
        from metastable.integrate.fused import cuda

        return cuda.solve(plan, start, report)
    if plan.backend.engine == "torch":
        return _torch(plan, start, report)
    fused = _compiled(plan, len(start))
    if fused is not None:
        return fused.solve(model, start, save.times, save.until, resume=plan.resume, **_options(plan, report))
    return tsit5.solve(
        select.right_hand_side(model, len(start), plan.backend),
        start,
        model.dim,
        save.until,
        times=save.times,
        breakpoints=model.norm.breakpoints,
        progress=report,
        resume=plan.resume,
        **vars(plan.accuracy),
    )


def solve_members(plan: Plan, starts: FloatArray, first: int, report: Report) -> Members:
    """One compiled call (CPU or GPU) for all of `starts` where the model fits one, else one member after the other."""
    times = plan.save.times
    assert times is not None
    if plan.backend.engine == "cuda":
        from metastable.integrate.fused import cuda

        return cuda.solve_members(plan, starts, first, report)
    fused = _compiled(plan, starts.shape[1])
    if fused is not None:
        return Members(*fused.solve_members(plan.model, starts, times, **_options(plan, report)))
    return one_by_one(starts, times.size, report, lambda start, _: solve(plan, plan.packed(start), None), first)
