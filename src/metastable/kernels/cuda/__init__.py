"""The CUDA engine: right-hand sides and whole integrations on an NVIDIA GPU (Numba-CUDA).

`refusal`, `series_refusal`, `series_wins`, `wins` and `pays` say what it can do and when it pays; `right_hand_side` makes a velocity
for one system. `device_system` keeps states on the device between stages; `metastable.integrate.fused.cuda` integrates
ensembles one thread block per member. Only this package imports `numba.cuda`, and only when a kernel is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metastable.kernels.cuda.support import pays, refusal, series_refusal, series_wins, wins
from metastable.model import Attention, require

if TYPE_CHECKING:
    from metastable.kernels.protocol import Interaction, Precision, RightHandSide

__all__ = ["pays", "refusal", "right_hand_side", "series_refusal", "series_wins", "wins"]


def right_hand_side(
    model: Attention,
    tokens: int,
    first: int = 0,
    interaction: Interaction = "direct",
    threads: int | None = None,
    dtype: Precision = "float64",
) -> RightHandSide:
    """The velocity on packed states as a callable `f(t, y, out)` with host arrays y and out of shape (tokens, width).

    Rows of `out` below `first` are left alone. `threads` is for engines on the CPU and means nothing here. `dtype` is the
    precision of the sums; "float32" has a relative error of about 1e-6 and is for statistics (see docs/performance-gpu.md).
    """
    from metastable.kernels.cuda import engine, support

    require(model, support.series_support(model) if interaction == "series" else support.DIRECT[dtype], tokens)
    return engine.make(model, tokens, first, interaction, dtype)
