"""Where a branch leaves the uniform state, and whether it does so without a jump."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from metastable import _checks
from metastable.errors import NumericalRangeError
from metastable.meanfield.arclength import curve_from, onset_value
from metastable.meanfield.balance import DEGREE
from metastable.meanfield.branches import checked_range, refuse_anchors
from metastable.model import Attention

ONSET = 0.08
"""Amplitude at which the bending of a branch at its onset is measured first (then at a half and at a quarter of it)."""


@dataclass(frozen=True)
class Onset:
    """Where a branch leaves the uniform state, and how it bends there: parameter = value + curvature amplitude^2 + ...

    The amplitude is |mean token| for mode 1 (of any mode: that of a density's `amplitudes`). `continuous`: the branch bends towards
    larger parameters, so the state changes without a jump; else there is one, and hysteresis.
    """

    parameter: str
    mode: int
    value: float
    curvature: float

    @property
    def continuous(self) -> bool:
        return self.curvature > 0


def onset(
    model: Attention, parameter: str = "kappa", limits: tuple[float, float] = (1e-3, 1e3), *, mode: int = 1
) -> Onset:
    """Where the branch of a mode begins and how it bends there, by continuation: no formula is used.

    >>> import metastable as ms
    >>> found = ms.meanfield.onset(ms.Attention(dim=2, beta=1.0, mask=ms.Full(), weights="unnormalized"))
    >>> round(found.value, 6), found.continuous
    (1.769413, True)
    """
    model, parameter, limits = checked_range(model, parameter, limits)
    mode = _checks.count(mode, "mode", maximum=64)
    refuse_anchors(model)
    axis = np.eye(1, model.dim)[0]
    value = onset_value(model, parameter, mode, limits, axis)
    curve = curve_from(model, axis, parameter, value, max(DEGREE, 4 * mode))
    pole = curve.system(value / curve.unit).basis.functions(np.eye(1, model.dim))[0][mode]
    row = np.zeros(curve.degree + 1)
    row[mode - 1] = 1.0
    bends = []
    for amplitude in (ONSET, ONSET / 2, ONSET / 4):
        guess = np.append(np.zeros(curve.degree), value / curve.unit)
        guess[mode - 1] = amplitude * pole
        point, _ = curve.correct(guess, row)
        bends.append((float(point[-1]) * curve.unit - value) / amplitude**2)
    once = [(4.0 * bends[1] - bends[0]) / 3.0, (4.0 * bends[2] - bends[1]) / 3.0]
    curvature = (16.0 * once[1] - once[0]) / 15.0
    if not math.isfinite(curvature):
        raise NumericalRangeError("the bending of the branch leaves double precision")
    return Onset(parameter, mode, value, curvature)
