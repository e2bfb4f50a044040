"""Explicit integration with whichever engine was chosen: one compiled call where the system fits one, step by step else."""

from __future__ import annotations

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import tsit5
from metastable.integrate.solution import Solution
from metastable.kernels import select
from metastable.model import Attention


def solve(
    model: Attention,
    start: FloatArray,
    until: float,
    *,
    times: FloatArray | None,
    rtol: float,
    atol: float,
    max_steps: int,
    choice: select.Backend,
    progress: Report | None = None,
) -> Solution:
    """Tsit5 from the packed state `start` to `until` with the engine and interaction of `choice`."""
    if choice.engine == "cpu":
        from metastable.integrate import fused

        if fused.supports(model, len(start), choice.interaction):
            return fused.solve(
                model,
                start,
                times,
                until,
                rtol=rtol,
                atol=atol,
                max_steps=max_steps,
                interaction=choice.interaction,
                threads=choice.threads,
                progress=progress,
            )
    if choice.engine == "cuda":
        from metastable.integrate.fused import cuda as fused_cuda

        return fused_cuda.solve(
            model,
            start,
            times,
            until,
            rtol=rtol,
            atol=atol,
            max_steps=max_steps,
            interaction=choice.interaction,
            dtype=choice.dtype,
            progress=progress,
        )
    rhs = select.right_hand_side(model, len(start), choice)
    return tsit5.solve(
        rhs,
        start,
        model.dim,
        until,
        times=times,
        rtol=rtol,
        atol=atol,
        max_steps=max_steps,
        breakpoints=model.norm.breakpoints,
        progress=progress,
    )
