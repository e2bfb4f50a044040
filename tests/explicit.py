"""Compiled explicit integrations of given starts, as `simulate` and `ensemble` call them."""

from __future__ import annotations

from typing import Any

from metastable.integrate import explicit, fused, march
from metastable.integrate.plan import Accuracy, Plan, Save
from metastable.kernels.select import Backend


def plan(model, until, times=None, *, interaction: Any = "direct", threads=None, **accuracy):
    """Engine "cpu", to `until`; output at `times`, or every step (None)."""
    return Plan((model,), "tsit5", Save(until, times), Accuracy(**accuracy), Backend("cpu", interaction, threads))


def solve(model, start, times, until, *, progress=None, **options):
    """One system."""
    return explicit.solve(plan(model, float(until), times, **options), start, progress)


def solve_members(model, starts, times, *, progress=None, **options):
    """States, statistics and statuses of members."""
    return fused.solve_members(plan(model, float(times[-1]), times, **options), starts, progress)


def solve_system(system, save, breakpoints=()):
    """A system that is marched from 0, step by step in Python."""
    recorder = march.Recorder(system.dim, save.times)
    return march.integrate(system, recorder, save.until, system.accuracy, breakpoints=breakpoints)
