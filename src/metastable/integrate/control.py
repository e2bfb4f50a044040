"""Step size control shared by the explicit integrators.

PI controller of Hairer and Wanner, *Solving Ordinary Differential Equations II*, section IV.2: after an accepted step
of scaled error e (previous one e_old) the step is multiplied by

    SAFETY * e^(-PROPORTIONAL) * e_old^INTEGRAL      clipped to [SHRINK, GROW],

and never grows right after a rejection; a rejected step is multiplied by `SAFETY * e^(-1/ORDER)`, at least SHRINK.
The compiled integrators compile these functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from metastable._checks import FloatArray

ORDER = 5
SAFETY = 0.9
PROPORTIONAL = 0.7 / ORDER
INTEGRAL = 0.4 / ORDER
SHRINK = 0.2
GROW = 10.0
ERROR_FLOOR = 1e-10
"""Smallest error the controller believes in (a step without error would grow without bound)."""
FIRST_ERROR = 1e-4
"""What the controller takes for the previous error on the first step."""


def accepted_factor(error: float, previous: float, after_rejection: bool) -> float:
    """Factor for the next step after an accepted one."""
    error = max(error, ERROR_FLOOR)
    factor = min(GROW, max(SHRINK, SAFETY * error**-PROPORTIONAL * max(previous, ERROR_FLOOR) ** INTEGRAL))
    return min(factor, 1.0) if after_rejection else factor


def rejected_factor(error: float) -> float:
    """Factor for the repeated step after a rejection; a non-finite error shrinks as much as allowed."""
    return max(SHRINK, SAFETY * error ** (-1.0 / ORDER)) if math.isfinite(error) else SHRINK


def scaled_error(error: FloatArray, old: FloatArray, new: FloatArray, dim: int, rtol: float, atol: float) -> float:
    """Root mean square over tokens of the local error over the tolerance.

    Directions have length one, so their scale is `atol + rtol`; a radius column is measured relative to itself.
    """
    direction = error[:, :dim] / (atol + rtol)
    square = np.einsum("ij,ij->i", direction, direction)
    if error.shape[1] > dim:
        radius = np.maximum(np.abs(old[:, dim]), np.abs(new[:, dim]))
        square = square + (error[:, dim] / (atol + rtol * radius)) ** 2
    return float(np.sqrt(square.mean()))


def trial_step(speed: float, tolerance: float, horizon: float) -> float:
    """Length of the Euler step that probes a start of that scaled speed: tokens, which have length one, move by about a hundredth."""
    return min(0.01 / (tolerance * speed), horizon) if tolerance * speed > 1e-10 else min(1e-6, horizon)


def first_step(speed: float, curvature: float, trial: float, horizon: float) -> float:
    """First step size from the scaled speed, its change per time over the trial step, and the trial step."""
    largest = max(speed, curvature)
    wanted = max(1e-6, 1e-3 * trial) if largest <= 1e-15 else (0.01 / largest) ** (1.0 / ORDER)
    return min(100.0 * trial, wanted, horizon)


def initial_step(speed: float, bend: Callable[[float], float], tolerance: float, horizon: float) -> float:
    """First step size from t = 0: Hairer, Norsett, Wanner I, section II.4 (one extra evaluation).

    `speed` is the scaled size of the velocity, `bend(trial)` that of its change over an Euler step.
    """
    tiny = float(np.finfo(float).tiny)
    if not math.isfinite(speed):
        return tiny  # no step can be taken from here, and the march will say so
    trial = max(trial_step(speed, tolerance, horizon), tiny)
    return first_step(speed, bend(trial) / trial, trial, horizon)
