"""Explicit integration with whichever engine was chosen: one compiled call where the system fits one, step by step else."""

from __future__ import annotations

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import march, tsit5
from metastable.integrate.plan import Plan
from metastable.integrate.solution import Chart, Members, Solution, one_by_one
from metastable.kernels import select


def _on_device(plan: Plan, start: FloatArray, report: Report | None) -> Solution:
    """With engine "cuda" or "torch": states stay where the velocity is computed."""
    velocity = select.right_hand_side(plan.model, len(start), plan.backend)
    if plan.backend.engine == "cuda":
        from metastable.kernels.cuda.device_system import DeviceSystem
    else:
        from metastable.kernels.torch.device_system import DeviceSystem
    start = np.ascontiguousarray(start, dtype=np.float64)
    system: march.System = DeviceSystem(velocity, start, plan.tableau, plan.accuracy, march.polynomial)  # type: ignore[arg-type]
    return march.follow(system, plan, report)


def system_of(plan: Plan, start: FloatArray, depth: float = 0.0) -> tuple[march.Movable, Chart]:
    """The system that `solve` marches with engine "reference" or "cpu" from the packed state `start`, compiled where it can be, and the
    chart of its state. `depth`: where the time of the plan begins (in a `Schedule`: `scheduled`)."""
    if plan.backend.engine == "cpu" and (plan.model.norm.autonomous or depth == 0.0):
        from metastable.integrate import fused

        return fused.system_of(plan, start)
    rhs = select.right_hand_side(plan.model, len(start), plan.backend)
    moving = tsit5.in_depth(rhs, depth, plan.model.norm)
    return tsit5.System(moving, start, plan.model.dim, plan.accuracy, tableau=plan.tableau), "ambient"


def solve(plan: Plan, start: FloatArray, report: Report | None) -> Solution:
    """The explicit method of the plan from the packed state `start` with its engine and interaction."""
    if plan.backend.engine in ("cuda", "torch"):
        return _on_device(plan, start, report)
    system, chart = system_of(plan, start)
    return march.follow(system, plan, report, chart)


def solve_members(plan: Plan, starts: FloatArray, first: int, report: Report) -> Members:
    """One compiled call (CPU or GPU) for all of `starts` where the model fits one, else one member after the other."""
    assert plan.save.times is not None
    if plan.backend.engine == "cuda":
        from metastable.integrate.fused import cuda

        return cuda.solve_members(plan, starts, first, report)
    if plan.backend.engine == "cpu":
        from metastable.integrate import fused

        return fused.solve_members(plan, starts, report)
    size = plan.save.times.size
    return one_by_one(starts, size, report, lambda start, _: solve(plan, plan.packed(start), None), first)
