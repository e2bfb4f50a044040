"""Where a branch leaves the uniform state, and whether it does so without a jump."""

from __future__ import annotations

import math
from dataclasses import dataclass

from metastable import _checks
from metastable.errors import NumericalRangeError
from metastable.meanfield.arclength import curve_from, leaving, onset_value, transcritical, uniform_rate
from metastable.meanfield.balance import DEGREE
from metastable.meanfield.branches import checked_range, refuse_anchors
from metastable.meanfield.symmetry import default_axis
from metastable.model import Attention

ONSET = 0.08
"""Amplitude at which the bending of a branch at its onset is measured first (then at a half and at a quarter of it)."""
SIDE = 1e-4
"""How far from an onset, in parts of the parameter, it is asked on which side the mode grows."""


@dataclass(frozen=True)
class Onset:
    """Where a branch leaves the uniform state, and how: parameter = value + slope amplitude + curvature amplitude^2 + ...

    The amplitude is |mean token| for mode 1 (of any mode: that of a density's `amplitudes`; below zero it is one of the opposite
    perturbation).

    Fields
    ------
    parameter, mode : what is varied, and the mode in which the branch leaves.
    value : the parameter at which the mode is neutral.
    kind : "pitchfork", where the opposite perturbation is the same one turned (slope 0: all modes of the circle, odd ones
        elsewhere), or "transcritical", where it is another one (even modes for d >= 3): the branch crosses the uniform state from
        one side to the other.
    slope, curvature : as above.
    grows : "above" or "below": the side of `value` on which the mode grows (kappa: above; beta: either).
    """

    parameter: str
    mode: int
    value: float
    curvature: float
    kind: str = "pitchfork"
    slope: float = 0.0
    grows: str = "above"

    @property
    def continuous(self) -> bool:
        """True when the branch leaves to the side on which the mode grows, so that the state changes without a jump as the parameter
        gets there. Else there is a jump, and hysteresis; that is so where it is transcritical."""
        return self.kind == "pitchfork" and (self.curvature > 0 if self.grows == "above" else self.curvature < 0)


def onset(
    model: Attention, parameter: str = "kappa", limits: tuple[float, float] = (1e-3, 1e3), *, mode: int = 1
) -> Onset:
    """Where the branch of a mode begins (the first such parameter between the limits) and how it bends there, by continuation: no
    formula is used.

    It looks at this one mode. Where other modes of the uniform state grow already (`uniform_branch` says where), the branch begins
    unstable.

    >>> import metastable as ms
    >>> found = ms.meanfield.onset(ms.Attention(dim=2, beta=1.0, mask=ms.Full(), weights="unnormalized"))
    >>> round(found.value, 6), found.continuous
    (1.769413, True)
    """
    model, parameter, limits = checked_range(model, parameter, limits)
    mode = _checks.count(mode, "mode", maximum=64)
    refuse_anchors(model)
    axis = default_axis(model.dim)
    value = onset_value(model, parameter, mode, limits, axis)
    curve = curve_from(model, axis, parameter, value, max(DEGREE, 4 * mode))
    crossing = transcritical(model.dim, mode)
    slopes, bends = [], []
    for amplitude in (ONSET, ONSET / 2, ONSET / 4):
        ahead = float(leaving(curve, mode, value, amplitude)[-1]) * curve.unit - value
        # The other side is the same one turned, or must be looked at.
        behind = float(leaving(curve, mode, value, -amplitude)[-1]) * curve.unit - value if crossing else ahead
        slopes.append(0.5 * (ahead - behind) / amplitude)
        bends.append(0.5 * (ahead + behind) / amplitude**2)
    slope, curvature = _limit(slopes), _limit(bends)
    if not (math.isfinite(slope) and math.isfinite(curvature)):
        raise NumericalRangeError("the bending of the branch leaves double precision")
    width = SIDE * max(abs(value), SIDE)
    rising = uniform_rate(curve, mode, value + width) > uniform_rate(curve, mode, value - width)
    kind = "transcritical" if crossing else "pitchfork"
    return Onset(parameter, mode, value, curvature, kind, slope, "above" if rising else "below")


def _limit(values: list[float]) -> float:
    """The limit of a series in amplitude^2 whose amplitudes are halved twice (Richardson)."""
    once = [(4.0 * values[1] - values[0]) / 3.0, (4.0 * values[2] - values[1]) / 3.0]
    return (16.0 * once[1] - once[0]) / 15.0
