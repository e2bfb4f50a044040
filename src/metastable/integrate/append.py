"""More tokens for a finished run: only the new ones are integrated, the earlier ones are read off their dense output.

Under a causal mask the first tokens never notice later ones, so their trajectories are reused: the KV cache of this system.
"""

from __future__ import annotations

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import march, tsit5
from metastable.integrate.plan import Plan
from metastable.integrate.solution import Dense, JoinedDense, Solution
from metastable.kernels import select


def solve(plan: Plan, earlier: Dense | JoinedDense, tokens: FloatArray, report: Report) -> Solution:
    """Integrate the packed new `tokens` (new, width) beside the run `earlier`; the solution holds all tokens.

    Steps land on the steps of the earlier run: its dense output is smooth between them only.
    """
    old = earlier(0.0)
    first = len(old)
    move = select.right_hand_side(plan.model, first + len(tokens), plan.backend, first)

    def forced(t: float, y: FloatArray, out: FloatArray) -> None:
        y[:first] = earlier(min(t, earlier.end))
        out[:first] = 0.0
        move(t, y, out)

    system = tsit5.System(forced, np.concatenate([old, tokens]), plan.model.dim, plan.accuracy, first, plan.tableau)
    solution = march.integrate(
        system,
        march.Recorder(plan.model.dim, None),
        plan.save.until,
        plan.accuracy,
        breakpoints=sorted({*plan.model.norm.breakpoints, *earlier.start[1:].tolist()}),
        progress=report,
    )
    states = solution.states.copy()  # they are part of the dense output, of which the earlier tokens have their own
    for saved, t in zip(states, solution.times):
        saved[:first] = earlier(min(float(t), earlier.end))
    dense = solution.dense
    if isinstance(dense, Dense):
        later = Dense(dense.chart, dense.dim, dense.start, dense.width, dense.coefficients[:, :, first:].copy())
        dense = JoinedDense(earlier, later)
    return Solution(solution.times, states, solution.status, solution.statistics, dense, solution.message)
