"""Explicit integration with whichever engine was chosen: one compiled call where the system fits one, step by step else."""

from __future__ import annotations

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import on_device, tsit5
from metastable.integrate.plan import Plan
from metastable.integrate.solution import Members, Solution, one_by_one
from metastable.kernels import select


def solve(plan: Plan, start: FloatArray, report: Report | None) -> Solution:
    """Tsit5 from the packed state `start` with the engine and interaction of the plan."""
    model, backend, accuracy = plan.model, plan.backend, plan.accuracy
    if backend.engine == "cpu":
        from metastable.integrate import fused

        if fused.supports(model, len(start), backend.interaction):
            return fused.solve(
                model,
                start,
                plan.save.times,
                plan.save.until,
                rtol=accuracy.rtol,
                atol=accuracy.atol,
                max_steps=accuracy.max_steps,
                interaction=backend.interaction,
                threads=backend.threads,
                progress=report,
            )
    if backend.engine == "cuda":
        from metastable.integrate.fused import cuda as fused_cuda

        return fused_cuda.solve(
            model,
            start,
            plan.save.times,
            plan.save.until,
            rtol=accuracy.rtol,
            atol=accuracy.atol,
            max_steps=accuracy.max_steps,
            interaction=backend.interaction,
            dtype=backend.dtype,
            progress=report,
        )
    if backend.engine == "torch":
        return on_device.solve_torch(plan, start, report)
    return tsit5.solve(
        select.right_hand_side(model, len(start), backend),
        start,
        model.dim,
        plan.save.until,
        times=plan.save.times,
        rtol=accuracy.rtol,
        atol=accuracy.atol,
        max_steps=accuracy.max_steps,
        breakpoints=model.norm.breakpoints,
        progress=report,
    )


def solve_members(plan: Plan, starts: FloatArray, first: int, report: Report) -> Members:
    """One compiled call (CPU or GPU) for all of `starts` where the model fits one, else one member after the other."""
    model, backend, times = plan.model, plan.backend, plan.save.times
    assert times is not None
    options = {
        "rtol": plan.accuracy.rtol,
        "atol": plan.accuracy.atol,
        "max_steps": plan.accuracy.max_steps,
        "interaction": backend.interaction,
        "progress": report,
    }
    if backend.engine == "cuda":
        from metastable.integrate.fused import cuda as fused_cuda

        return Members(
            *fused_cuda.solve_members(model, starts, times, dtype=backend.dtype, threads=backend.threads, **options)
        )
    if backend.engine == "cpu":
        from metastable.integrate import fused

        if fused.supports(model, starts.shape[1], backend.interaction):
            return Members(*fused.solve_members(model, starts, times, threads=backend.threads, **options))
    return one_by_one(starts, times.size, report, lambda start, _: solve(plan, plan.packed(start), None), first)
