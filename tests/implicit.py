"""Members by Rodas5P, as an ensemble solves them."""

from __future__ import annotations

import numpy as np

from metastable.integrate.methods import METHODS
from metastable.integrate.plan import Accuracy, Plan, Save
from metastable.integrate.solution import MEMBER_STATUSES
from metastable.kernels.select import Backend


def solve_members(model, starts, times, *, settled=False, threads=None, **accuracy):
    """States (members, times, tokens, dim) and the statuses of members from given starts; saved at `times`."""
    times = np.asarray(times, dtype=float)
    plan = Plan(
        (model,), "rodas", Save(times[-1], times, settled), Accuracy(**accuracy), Backend("cpu", threads=threads)
    )
    solve = METHODS["rodas"].solve_members
    assert solve is not None
    found = solve(plan, starts, 0, lambda done: None)
    return found.states, [MEMBER_STATUSES[code] for code in found.status]
