"""Explicit methods on the GPU: whole ensembles, one thread block per member.

The semantics are those of `integrate.tsit5`: the same first step, error norm, controller, dense output and status. Ensembles of
models that do not fit into a thread block (see `kernels.cuda.support.fused_refusal`) are integrated member by member.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import UnsupportedError
from metastable.integrate import control, explicit
from metastable.integrate.plan import Plan
from metastable.integrate.solution import Members, one_by_one
from metastable.integrate.tableau import Tableau
from metastable.kernels.cuda import support
from metastable.model import require

if TYPE_CHECKING:
    from metastable.kernels.cuda.batch import MemberBatch
    from metastable.kernels.cuda.members import Scheme
    from metastable.kernels.cuda.observables import Capture, Components


def scheme_of(tableau: Tableau) -> Scheme:
    """A method and its step control as the kernels want them."""
    from metastable.kernels.cuda.members import Scheme

    return Scheme(tableau, control)


def _check(plan: Plan, tokens: int) -> None:
    """Refuse what the engine cannot do in the precision of the plan, on any machine or on this one."""
    reason = support.refusal(plan.model, tokens, plan.backend.dtype)
    if reason is not None:
        raise UnsupportedError(reason)


def _batches(plan: Plan, starts: FloatArray) -> Iterator[tuple[slice, MemberBatch]]:
    """Integrate members in batches that fit onto the device: which ones, and their batch."""
    from metastable.kernels.cuda.batch import MemberBatch, largest_batch
    from metastable.kernels.cuda.members import Limits

    model, times, dtype, count = plan.model, plan.save.times, plan.backend.dtype, len(starts)
    assert times is not None
    size = largest_batch(model, starts.shape[1], len(times), dtype)
    limits = Limits(plan.accuracy.tolerance, plan.accuracy.max_steps)
    for begin in range(0, count, size):
        part = slice(begin, min(begin + size, count))
        batch = MemberBatch(model, starts[part], times, limits, scheme_of(plan.tableau), dtype)
        batch.launch()
        yield part, batch


def solve_members(plan: Plan, starts: FloatArray, first: int, report: Report) -> Members:
    """Integrate members from 0 to the last time of the plan, each with its own step size; as `fused.solve_members`.

    `starts` (members, tokens, dim), numbered from `first`; `report` is called with the number of members finished. In float32
    velocities are evaluated in single precision (states are still added up in double): for statistics of
    runs to T of a few hundred, where the median member is off by about 1e-5; never for long horizons.
    """
    model, times, tokens = plan.model, plan.save.times, starts.shape[1]
    assert times is not None
    _check(plan, tokens)
    if plan.backend.interaction == "series" or support.fused_refusal(model, tokens, plan.backend.dtype) is not None:
        solve = explicit.solve
        return one_by_one(starts, times.size, report, lambda start, _: solve(plan, plan.packed(start), None), first)
    states = np.empty((len(starts), len(times), tokens, model.dim))
    counts = np.empty((len(starts), 4), dtype=np.int64)
    for part, batch in _batches(plan, starts):
        states[part], counts[part] = batch.states(), batch.counts()
        report(float(part.stop))
    return Members(states, counts[:, :3], counts[:, 3])


def observe_members(
    plan: Plan, starts: FloatArray, wanted: Mapping[str, Capture | Components]
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """As `solve_members`, but with observables measured on the device instead of states: arrays (members, times) by name.

    Only for models that fit into a thread block (`kernels.cuda.support.fused_refusal`).
    """
    from metastable.kernels.cuda.observables import measure

    times, tokens = plan.save.times, starts.shape[1]
    assert times is not None
    _check(plan, tokens)
    require(plan.model, support.FUSED[plan.backend.dtype], tokens)
    values = {name: np.empty((len(starts), len(times))) for name in wanted}
    counts = np.empty((len(starts), 4), dtype=np.int64)
    for part, batch in _batches(plan, starts):
        for name, observable in wanted.items():
            values[name][part] = measure(observable, batch.starts, batch.out)
        counts[part] = batch.counts()
    return values, counts[:, :3], counts[:, 3]
