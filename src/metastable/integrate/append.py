"""More tokens for a finished run: only the new ones are integrated, the earlier ones are read off their dense output.

Under a causal mask the first tokens never notice later ones, so their trajectories are reused: the KV cache of this system.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import tsit5
from metastable.integrate.solution import Dense, JoinedDense, Solution
from metastable.kernels.protocol import RightHandSide


def solve(
    right_hand_side: Callable[[int], RightHandSide],
    earlier: Dense | JoinedDense,
    tokens: FloatArray,
    until: float,
    *,
    rtol: float,
    atol: float,
    max_steps: int,
    breakpoints: Sequence[float] = (),
    progress: Report | None = None,
) -> Solution:
    """Integrate the packed new `tokens` (new, width) beside the run `earlier`; the solution holds all tokens.

    `right_hand_side(first)` makes the velocity that moves tokens from `first` on. Steps land on the steps of the earlier run:
    its dense output is smooth between them only.
    """
    old = earlier(0.0)
    first = len(old)
    move = right_hand_side(first)

    def forced(t: float, y: FloatArray, out: FloatArray) -> None:
        y[:first] = earlier(min(t, earlier.end))
        out[:first] = 0.0
        move(t, y, out)

    solution = tsit5.solve(
        forced,
        np.concatenate([old, tokens]),
        tokens.shape[1] if tokens.shape[1] == earlier.dim else earlier.dim,
        until,
        rtol=rtol,
        atol=atol,
        max_steps=max_steps,
        first=first,
        breakpoints=sorted({*breakpoints, *earlier.start[1:].tolist()}),
        progress=progress,
    )
    states = solution.states
    for saved, t in zip(states, solution.times):
        saved[:first] = earlier(min(float(t), earlier.end))
    dense = solution.dense
    if isinstance(dense, Dense):
        later = Dense(dense.chart, dense.dim, dense.start, dense.width, dense.coefficients[:, :, first:].copy())
        dense = JoinedDense(earlier, later)
    return Solution(solution.times, states, solution.status, solution.statistics, dense, solution.message)
