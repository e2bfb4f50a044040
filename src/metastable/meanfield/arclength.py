"""The equations of a branch of stationary states, with the parameter among the unknowns; and where the uniform state leaves one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy import optimize

from metastable._checks import FloatArray
from metastable.errors import ConvergenceError, InvalidInputError
from metastable.meanfield import interaction
from metastable.meanfield.balance import (
    DEGREE,
    LARGEST_DEGREE,
    RESIDUAL,
    System,
    jacobian,
    make_system,
    noisy,
    residual,
    sector_matrix,
)
from metastable.meanfield.bases import resized
from metastable.model import Attention

DIFFERENCE = 1e-6
"""Relative step of the derivative of the equations in the parameter (central differences)."""


@dataclass
class Curve:
    """The equations of one branch: unknown are the coefficients of degree 1.. and the parameter over `unit`."""

    model: Attention
    axis: FloatArray
    parameter: str
    kappa: float
    beta: float
    degree: int
    unit: float = field(init=False)

    def __post_init__(self) -> None:
        self.unit = max(abs(self.kappa if self.parameter == "kappa" else self.beta), 1e-2)

    def system(self, p: float) -> System:
        """At p = parameter/unit."""
        value = p * self.unit
        kappa, beta = (value, self.beta) if self.parameter == "kappa" else (self.kappa, value)
        return make_system(self.model, self.axis, self.degree, kappa, beta)

    @staticmethod
    def whole(unknown: FloatArray) -> FloatArray:
        """All coefficients, the mass in front."""
        return np.concatenate([[1.0], unknown[:-1]])

    def residual(self, unknown: FloatArray) -> FloatArray:
        return residual(self.system(float(unknown[-1])), self.whole(unknown))

    def jacobian(self, unknown: FloatArray) -> FloatArray:
        """(size - 1, size): in the coefficients, and in the parameter."""
        p, a = float(unknown[-1]), self.whole(unknown)
        width = DIFFERENCE * max(abs(p), 1e-3)
        ahead, behind = residual(self.system(p + width), a), residual(self.system(p - width), a)
        return np.column_stack([jacobian(self.system(p), a), (ahead - behind) / (2.0 * width)])

    def tangent(self, unknown: FloatArray, along: FloatArray) -> FloatArray:
        """Unit tangent at a point, on the side of `along`."""
        bordered = np.vstack([self.jacobian(unknown), along])
        vector = np.linalg.solve(bordered, np.eye(1, along.size, along.size - 1)[0])
        vector /= np.linalg.norm(vector)
        return vector if vector @ along >= 0 else -vector

    def correct(self, guess: FloatArray, row: FloatArray) -> tuple[FloatArray, int]:
        """The point of the curve with <row, point - guess> = 0, and the iterations it took."""
        point = guess.copy()
        for count in range(1, 13):
            wrong = np.append(self.residual(point), row @ (point - guess))
            if np.linalg.norm(wrong) <= RESIDUAL * np.linalg.norm(self.whole(point)):
                return point, count
            point = point - np.linalg.solve(np.vstack([self.jacobian(point), row]), wrong)
            if not np.isfinite(point).all() or np.linalg.norm(point - guess) > 1.0 + np.linalg.norm(guess):
                break
        if np.linalg.norm(wrong) <= 1e3 * RESIDUAL * np.linalg.norm(self.whole(point)):
            return point, count
        raise ConvergenceError("Newton's method left the branch")

    def refined(self) -> bool:
        """Twice as many modes; False where no more are allowed."""
        if 2 * self.degree > LARGEST_DEGREE:
            return False
        self.degree *= 2
        return True

    def padded(self, unknown: FloatArray) -> FloatArray:
        """A point (or a tangent) with the modes of now."""
        return np.append(resized(unknown[:-1], self.degree), unknown[-1])


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a function between two points at which it has different signs."""
    return float(optimize.root_scalar(function, bracket=(low, high), method="brentq", xtol=1e-14).root)


def onset_value(model: Attention, parameter: str, mode: int, limits: tuple[float, float], axis: FloatArray) -> float:
    """The first parameter between the limits at which mode `mode` of the uniform state becomes neutral; `InvalidInputError` where
    there is none."""
    found = onset_values(model, parameter, mode, limits, axis)
    if not found:
        raise InvalidInputError(
            f"mode {mode} of the uniform state becomes neutral nowhere for {parameter} between {limits[0]:g} and {limits[1]:g}; "
            "widen limits"
        )
    return found[0]


def onset_values(
    model: Attention, parameter: str, mode: int, limits: tuple[float, float], axis: FloatArray
) -> list[float]:
    """All parameters between the limits at which mode `mode` of the uniform state is neutral, from the linearised equation: a mode
    may grow in between only."""
    curve = curve_from(model, axis, parameter, 1.0, max(DEGREE, 2 * mode))

    def rate(value: float) -> float:
        return uniform_rate(curve, mode, value)

    marks = np.geomspace(*limits, 65) if limits[0] > 0 else np.linspace(*limits, 65)
    rates = np.array([rate(float(mark)) for mark in marks])
    # A window that is narrower than the marks hides between them, where the rate comes nearest to zero.
    for k in range(1, len(marks) - 1):
        away = np.abs(rates[k - 1 : k + 2])
        if rates[k] != 0 and (np.sign(rates[k - 1 : k + 2]) == np.sign(rates[k])).all() and away[1] <= away.min():
            sign = float(np.sign(rates[k]))
            peak = optimize.minimize_scalar(
                lambda value, sign=sign: sign * rate(float(value)),
                bounds=(marks[k - 1], marks[k + 1]),
                method="bounded",
            )
            if peak.fun < 0:
                marks, rates = np.append(marks, peak.x), np.append(rates, sign * peak.fun)
    order = np.argsort(marks)
    marks, rates = marks[order], rates[order]
    changes = np.flatnonzero(rates[1:] * rates[:-1] < 0)
    crossed = [root(rate, float(marks[first]), float(marks[first + 1])) for first in changes]
    return sorted([*crossed, *(float(mark) for mark in marks[rates == 0])])


def uniform_rate(curve: Curve, mode: int, value: float) -> float:
    """Growth rate of a zonal mode of the uniform state, times kappa, at a value of the parameter."""
    system = curve.system(value / curve.unit)
    uniform = np.eye(1, system.basis.size)[0]
    return float(sector_matrix(system, uniform, 0)[mode - 1, mode - 1]) * system.kappa


def transcritical(dim: int, mode: int) -> bool:
    """True where a mode and its opposite are different perturbations: P_l of even degree in three dimensions and more.

    A turn by pi/k takes cos(k theta) to its opposite, and the reflection of the axis does so with P_l of odd degree.
    """
    return dim > 2 and mode % 2 == 0


def leaving(curve: Curve, mode: int, value: float, amplitude: float) -> FloatArray:
    """The point, on the branch that leaves the uniform state at `value`, at which the mode has an amplitude (that of a density's
    `amplitudes`; below zero: of the opposite perturbation)."""
    pole = curve.system(value / curve.unit).basis.functions(np.eye(1, curve.model.dim))[0][mode]
    guess = np.append(np.zeros(curve.degree), value / curve.unit)
    guess[mode - 1] = amplitude * pole
    return curve.correct(guess, np.eye(1, guess.size, mode - 1)[0])[0]


def curve_from(model: Attention, axis: FloatArray, parameter: str, value: float, degree: int) -> Curve:
    """A curve near a value of the parameter, which takes the place of the model's own (that is not looked at)."""
    if parameter == "kappa":
        return Curve(model, axis, parameter, value, interaction.beta_of(model), degree)
    return Curve(model, axis, parameter, noisy(model), value, degree)
