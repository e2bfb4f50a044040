"""The methods by name: one table for `simulate` and `ensemble`.

solve(plan, start, report) -> Solution                          one system, from its packed state
solve_members(plan, starts, first, report) -> Members           many, from their tokens; `first` numbers the first of them
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import auto, explicit, layers, rodas, sde
from metastable.integrate.plan import Plan
from metastable.integrate.solution import Members, Solution, one_by_one
from metastable.integrate.tableau import TABLEAUS
from metastable.kernels import select
from metastable.kernels.protocol import Steps
from metastable.model import EVERY_PART, Attention, Support, why_not


class Method(NamedTuple):
    """Why a method cannot do a model on so many tokens, whatever the engine (None: it can); how it solves one system; how it
    solves many (None: it is not for members); and its steps ("fixed": of one size, which the user gives; "auto" ends in implicit ones,
    for it is what is left of the wish when nothing simpler was found: `planning`)."""

    refusal: Callable[[Attention, int], str | None]
    solve: Callable[[Plan, FloatArray, Report], Solution]
    solve_members: Callable[[Plan, FloatArray, int, Report], Members] | None
    steps: Steps = "explicit"


def _rodas(plan: Plan, start: FloatArray, report: Report | None) -> Solution:
    return rodas.solve(plan.model, start, plan.save, plan.accuracy, progress=report, resume=plan.resume)


def _rodas_members(plan: Plan, starts: FloatArray, first: int, report: Report) -> Members:
    """Implicit members, each on a thread: the compiled loop releases the interpreter lock, and members share nothing."""
    from metastable.kernels.cpu.threads import thread_count

    assert plan.save.times is not None
    solve, size = rodas.member_solver(plan.model, plan.save, plan.accuracy), plan.save.times.size
    threads = thread_count(plan.backend.threads)
    return one_by_one(starts, size, report, lambda start, _: solve(start), first, threads)


def _layers(plan: Plan, start: FloatArray, report: Report | None) -> Solution:
    models = plan.models * plan.steps if len(plan.models) == 1 else plan.models
    return layers.solve(
        models, start, plan.accuracy.step, times=plan.save.times, progress=report, first=plan.steps_done
    )


def _layers_members(plan: Plan, starts: FloatArray, first: int, report: Report) -> Members:
    assert plan.save.times is not None
    return one_by_one(starts, plan.save.times.size, report, lambda x, _: _layers(plan, plan.packed(x), None), first)


def _sde(plan: Plan, start: FloatArray, report: Report | None) -> Solution:
    """One system with the noise of the plan's seed."""
    rhs = select.right_hand_side(plan.model, len(start), plan.backend)
    return sde.solve(plan, rhs, start, sde.normals(plan.seed or 0, len(start), plan.model.dim), report)


def _sde_members(plan: Plan, starts: FloatArray, first: int, report: Report) -> Members:
    """Every member has noise of its own, independent of its start."""
    assert plan.save.times is not None

    def solve(start: FloatArray, member: int) -> Solution:
        sequence = np.random.SeedSequence(plan.seed or 0, spawn_key=(member, 0))
        own = replace(plan, seed=int(sequence.generate_state(1, np.uint64)[0]))
        return _sde(own, plan.packed(start), None)

    return one_by_one(starts, plan.save.times.size, report, solve, first)


def _left_to_engines(method: str, *but: str) -> Support:
    """A method that takes whatever an engine evaluates, `but` some parts. (Rodas and layers look inside the model: they have
    lists of their own.)"""
    parts = EVERY_PART - {*but}
    return Support(f"method={method!r}", None, None, None, None, parts, use="use method='auto'")


EXPLICIT = {name: _left_to_engines(name, "noise") for name in TABLEAUS}
SDE = _left_to_engines("sde")


def _explicit(name: str) -> Method:
    return Method(lambda model, tokens: why_not(model, EXPLICIT[name], tokens), explicit.solve, explicit.solve_members)


METHODS: dict[str, Method] = {
    # It chooses among the others, and refuses nothing by itself.
    "auto": Method(lambda model, tokens: None, auto.solve, None, "implicit"),
    **{name: _explicit(name) for name in TABLEAUS},
    "rodas": Method(rodas.refusal, _rodas, _rodas_members, "implicit"),
    "layers": Method(lambda model, tokens: why_not(model, layers.SUPPORT, tokens), _layers, _layers_members, "fixed"),
    "sde": Method(lambda model, tokens: why_not(model, SDE, tokens), _sde, _sde_members, "fixed"),
}
FIXED_STEP = tuple(name for name, method in METHODS.items() if method.steps == "fixed")
"""Methods that take a step."""
