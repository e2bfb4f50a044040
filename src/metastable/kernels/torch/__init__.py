"""The torch engine: right-hand sides as matrix products on the CPU or a GPU, for dimensions and heads of real transformers.

`refusal` says what it can do; `right_hand_side` makes a velocity for one system in NumPy arrays; `march.DeviceSystem` keeps states
on the device between the stages of a step. Besides `checkpoints` only this package imports torch, and only when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metastable.kernels.torch.limits import SUPPORT, installed, library, refusal
from metastable.model import Attention, require

if TYPE_CHECKING:
    from metastable.kernels.protocol import Interaction, Precision, RightHandSide

__all__ = ["SUPPORT", "installed", "library", "refusal", "right_hand_side"]


def right_hand_side(
    model: Attention,
    tokens: int,
    first: int = 0,
    interaction: Interaction = "direct",
    threads: int | None = None,
    dtype: Precision = "float64",
) -> RightHandSide:
    """The velocity on packed states as a callable `f(t, y, out)` with NumPy arrays y and out of shape (tokens, width).

    Rows of `out` below `first` are left alone. `dtype` is the precision of the sums: "float32" has a relative error of about 1e-6.
    """
    model.check_count(tokens)
    require(model, SUPPORT[dtype], tokens)
    library()
    from metastable.kernels.torch.engine import Velocity

    return Velocity(model, tokens, first, threads, dtype)
