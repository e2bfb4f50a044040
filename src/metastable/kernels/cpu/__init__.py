"""The CPU engine: compiled right-hand sides (Numba, float64), direct sums and series.

`refusal`, `series_refusal` and `series_wins` say what it can do; `right_hand_side` makes a velocity for one system. The fused
integrators (`metastable.integrate.fused`) call the compiled functions of `members` and `system` directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metastable.kernels.cpu.support import DERIVATIVE, refusal, series_refusal, series_wins
from metastable.model import Attention, require

if TYPE_CHECKING:
    from metastable._checks import FloatArray
    from metastable.kernels.protocol import Interaction, RightHandSide
    from metastable.kernels.pullback import Pullback

__all__ = ["DERIVATIVE", "make_pullback", "refusal", "right_hand_side", "series_refusal", "series_wins"]


def make_pullback(model: Attention, tokens: int, chart: str = "ambient", threads: int | None = None) -> Pullback:
    """The pullback of direct sums, for states in `chart` ("angle": one angle to a token, on the circle)."""
    from metastable.kernels.cpu.pullback import Compiled

    require(model, DERIVATIVE, tokens)
    return Compiled(model, tokens, chart, threads)


def right_hand_side(
    model: Attention,
    tokens: int,
    first: int = 0,
    interaction: Interaction = "direct",
    threads: int | None = None,
    mode_tolerance: float = 1e-12,
) -> RightHandSide:
    """The velocity on packed states as a callable `f(t, y, out)` with y and out of shape (tokens, dim).

    Rows of `out` below `first` are left alone. `threads` None: all; the result does not depend on it.
    """
    import numpy as np

    from metastable.kernels.cpu import system
    from metastable.kernels.cpu.memory import Reference
    from metastable.kernels.cpu.problem import prepare
    from metastable.kernels.cpu.threads import thread_count, using

    problem = prepare(model, tokens, first=first, interaction=interaction, mode_tolerance=mode_tolerance)
    prepared = Reference(system.make(problem))
    count = thread_count(threads)
    threaded = True if count > 1 and system.pays(problem) else None

    def velocity(t: float, y: FloatArray, out: FloatArray) -> None:
        state = np.ascontiguousarray(y, dtype=np.float64).reshape(-1)
        result = out.reshape(-1) if out.flags.c_contiguous else out.copy().reshape(-1)
        with using(count if threaded else None):
            system.evaluate(prepared, float(t), state, result, threaded)
        if not out.flags.c_contiguous:
            out[...] = result.reshape(out.shape)

    return velocity
