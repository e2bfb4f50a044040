"""Branches of stationary states: how they change with kappa or beta, by continuation in arclength, with the stability of each point.

A branch is a curve (mu(s), p(s)) with p = kappa or beta. From one point the next is predicted along the tangent and corrected by Newton's
method across it, so that the curve may turn back (folds). Branches leave the uniform state where one of its modes becomes neutral.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import brentq

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import ConvergenceError, InvalidInputError, MetastableError, NumericalRangeError
from metastable.meanfield import interaction
from metastable.meanfield.bases import resized
from metastable.meanfield.density import Density, tail_of
from metastable.meanfield.stationary import (
    DEGREE,
    LARGEST_DEGREE,
    RESIDUAL,
    TAIL,
    StationaryState,
    System,
    jacobian,
    make_system,
    noisy,
    residual,
    sector_matrix,
    state_of,
    zonal_start,
)
from metastable.model import Attention

PARAMETERS = ("kappa", "beta")
POINTS = 400
STEP = 0.05
SMALLEST_STEP = 1e-6
DIFFERENCE = 1e-6
"""Relative step of the derivative of the equations in the parameter (central differences)."""
ONSET = 0.08
"""Amplitude at which the bending of a branch at its onset is measured first (then at a half and at a quarter of it)."""


@dataclass(frozen=True, eq=False, repr=False)
class Branch:
    """Stationary states along a curve.

    Fields
    ------
    parameter : "kappa" or "beta".
    values : the parameter at the points (m,).
    order_parameter : |mean token| (m,).
    growth : largest growth rate of perturbations (m,); `stable` (m,) says where it is not above zero.
    states : the states themselves.
    folds : the values of the parameter at which the branch turns back.
    bifurcations : the values at which a zonal mode becomes neutral, of the uniform branch.
    mode : degree of the mode in which it left the uniform state; 0 for the uniform branch, -1 for one that began elsewhere.
    message : why it ended.
    """

    parameter: str
    values: FloatArray
    order_parameter: FloatArray
    growth: FloatArray
    stable: np.ndarray
    states: tuple[StationaryState, ...]
    folds: tuple[float, ...] = ()
    bifurcations: tuple[float, ...] = ()
    mode: int = -1
    message: str = ""

    def __repr__(self) -> str:
        low, high = self.values.min(), self.values.max()
        return f"<Branch: {len(self.values)} states, {self.parameter} = {low:.6g}..{high:.6g}, {int(self.stable.sum())} stable>"


def _branch(parameter: str, states: list[StationaryState], values: list[float], **more: Any) -> Branch:
    return Branch(
        parameter,
        np.array(values),
        np.array([state.order_parameter for state in states]),
        np.array([state.growth for state in states]),
        np.array([state.stable for state in states]),
        tuple(states),
        **more,
    )


@dataclass
class _Curve:
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


def onset_value(model: Attention, parameter: str, mode: int, limits: tuple[float, float], axis: FloatArray) -> float:
    """The parameter between the limits at which mode `mode` of the uniform state becomes neutral, from the linearised equation."""
    curve = _Curve(model, axis, parameter, _kappa(model), interaction.beta_of(model), max(DEGREE, 2 * mode))

    def rate(value: float) -> float:
        system = curve.system(value / curve.unit)
        uniform = np.eye(1, system.basis.size)[0]
        return float(sector_matrix(system, uniform, 0)[mode - 1, mode - 1]) * system.kappa

    marks = np.geomspace(*limits, 65) if limits[0] > 0 else np.linspace(*limits, 65)
    signs = np.array([rate(float(mark)) for mark in marks])
    changes = np.flatnonzero(np.sign(signs[1:]) != np.sign(signs[:-1]))
    if not changes.size:
        raise InvalidInputError(
            f"mode {mode} of the uniform state becomes neutral nowhere for {parameter} between {limits[0]:g} and {limits[1]:g}; "
            "widen limits"
        )
    first = int(changes[0])
    return float(brentq(rate, float(marks[first]), float(marks[first + 1]), xtol=1e-14, rtol=1e-14))


def _kappa(model: Attention) -> float:
    """kappa of the model; 1 where it has no noise (then it is the parameter)."""
    return noisy(model) if model.noise > 0 else 1.0


def _check(model: Attention, parameter: str, limits: Any) -> tuple[Attention, str, tuple[float, float]]:
    model = interaction.checked(model)
    parameter = _checks.choice(parameter, "parameter", PARAMETERS)
    low, high = (float(value) for value in _checks.vector(limits, "limits", 2))
    if not low < high or (parameter == "kappa" and low <= 0):
        raise InvalidInputError(f"limits must be a lower and an upper value of {parameter}, not {limits!r}")
    if parameter == "kappa" and not 1e-9 <= low < high <= 1e9:
        raise InvalidInputError(f"limits of kappa must lie between 1e-9 and 1e9, not {limits!r}")
    if parameter == "beta":
        noisy(model)
        for edge in (low, high):
            interaction.checked(model.replace(beta=edge, heads=None))
    return model, parameter, (low, high)


def uniform_branch(
    model: Attention, parameter: str = "kappa", limits: tuple[float, float] = (0.1, 10.0), points: int = 61
) -> Branch:
    """The uniform state over a range of kappa or beta: its stability, and where its modes 1..8 become neutral."""
    model, parameter, limits = _check(model, parameter, limits)
    points = _checks.count(points, "points", minimum=2, maximum=10_000)
    _refuse_anchors(model)
    axis = np.eye(1, model.dim)[0]
    found = []
    for mode in range(1, 9):
        try:
            found.append(onset_value(model, parameter, mode, limits, axis))
        except InvalidInputError:
            continue
    marks = np.geomspace(*limits, points) if limits[0] > 0 else np.linspace(*limits, points)
    marks = np.unique(np.concatenate([marks, found]))
    curve = _Curve(model, axis, parameter, _kappa(model), interaction.beta_of(model), DEGREE)
    states = []
    for value in marks:
        system = curve.system(float(value) / curve.unit)
        states.append(state_of(model, system, np.eye(1, system.basis.size)[0], axis))
    ended = "the range was followed to its end"
    return _branch(parameter, states, marks.tolist(), bifurcations=tuple(sorted(found)), mode=0, message=ended)


def _refuse_anchors(model: Attention) -> None:
    if model.frozen is not None:
        raise InvalidInputError("with frozen tokens the uniform law is not stationary; give start= a StationaryState")


def branch(
    model: Attention,
    parameter: str = "kappa",
    limits: tuple[float, float] = (0.1, 10.0),
    *,
    mode: int = 1,
    start: StationaryState | Density | None = None,
    step: float = STEP,
    points: int = POINTS,
) -> Branch:
    """A branch of stationary states, by pseudo-arclength continuation in kappa = 2/sigma^2 or in beta.

    Args:
        model: SA or USA with noise (the noise says kappa where beta is the parameter; else it is not looked at).
        parameter: "kappa" or "beta".
        limits: the range of the parameter; the branch is followed until it leaves it.
        mode: it leaves the uniform state in this mode, where that becomes neutral within the limits.
        start: instead of `mode`: a stationary state to go on from, towards smaller values of the parameter first, then larger ones.
        step: longest step, in coefficients of the series (root mean square) and parts of the parameter.
        points: at most so many (on each side of `start`).

    Returns:
        A `Branch`; every point knows whether it is stable, `folds` where it turns.
    """
    model, parameter, limits = _check(model, parameter, limits)
    mode = _checks.count(mode, "mode", maximum=64)
    step = _checks.number(step, "step", 1e-4, 1.0)
    points = _checks.count(points, "points", minimum=2, maximum=20_000)
    if start is not None:
        return _both_ways(model, parameter, limits, start, step, points)
    _refuse_anchors(model)
    axis = np.eye(1, model.dim)[0]
    value = onset_value(model, parameter, mode, limits, axis)
    curve = _Curve(model, axis, parameter, _kappa(model), interaction.beta_of(model), max(DEGREE, 4 * mode))
    point = np.append(np.zeros(curve.degree), value / curve.unit)
    along = np.zeros(point.size)
    along[mode - 1] = 1.0
    followed = _follow(curve, point, along, limits, step, points)
    return _branch(parameter, followed.states, followed.values, folds=tuple(followed.folds), mode=mode, message=followed.message)


def _both_ways(
    model: Attention, parameter: str, limits: tuple[float, float], start: Any, step: float, points: int
) -> Branch:
    """From a state towards smaller values, and towards larger ones."""
    density = zonal_start(model, start)
    assert density.axis is not None
    kappa = noisy(start.model if isinstance(start, StationaryState) else model)
    beta = interaction.beta_of(start.model if isinstance(start, StationaryState) else model)
    sides = []
    for sign in (-1.0, 1.0):
        degree = max(DEGREE, min(density.basis.degree, LARGEST_DEGREE))
        curve = _Curve(model, density.axis, parameter, kappa, beta, degree)
        value = kappa if parameter == "kappa" else beta
        if not limits[0] <= value <= limits[1]:
            raise InvalidInputError(f"the start has {parameter} = {value:g}, which is not between the limits {limits}")
        guess = np.append(resized(density.coefficients, degree + 1)[1:], value / curve.unit)
        along = np.zeros(guess.size)
        along[-1] = sign
        point, _ = curve.correct(guess, along)
        sides.append(_follow(curve, point, along, limits, step, points))
    back, forth = sides
    return _branch(
        parameter,
        [*back.states[:0:-1], *forth.states],
        [*back.values[:0:-1], *forth.values],
        folds=tuple(sorted({*back.folds, *forth.folds})),
        message=f"{back.message}; {forth.message}",
    )


@dataclass
class _Followed:
    states: list[StationaryState] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    folds: list[float] = field(default_factory=list)
    message: str = ""

    def add(self, curve: _Curve, point: FloatArray) -> None:
        system = curve.system(float(point[-1]))
        self.states.append(state_of(curve.model, system, curve.whole(point), curve.axis))
        self.values.append(float(point[-1]) * curve.unit)


def _follow(
    curve: _Curve, point: FloatArray, along: FloatArray, limits: tuple[float, float], step: float, points: int
) -> _Followed:
    """From a point in the direction `along` until the parameter leaves the limits, or no further."""
    found = _Followed()
    found.add(curve, point)
    h = 0.2 * step
    # The curve leaves the uniform state across its tangent space; elsewhere it is the null vector.
    tangent = along if not point[:-1].any() else curve.tangent(point, along)
    while len(found.values) < points:
        try:
            # Sharp states have large coefficients; steps are parts of them.
            length = h * float(np.linalg.norm(curve.whole(point)))
            new, count = curve.correct(point + length * tangent, tangent)
            system = curve.system(float(new[-1]))
            if tail_of(system.basis, curve.whole(new)) > TAIL:
                if not curve.refined():
                    found.message = f"at {found.values[-1]:.6g} the state is sharper than {curve.degree} modes can show"
                    return found
                point, tangent = curve.padded(point), curve.padded(tangent)
                continue
            turned = curve.tangent(new, tangent)
            if turned @ tangent < 0.9:
                raise ConvergenceError("the branch bends too much")
            here = Density(curve.model.dim, curve.whole(new), curve.axis)
        except (MetastableError, np.linalg.LinAlgError) as reason:
            h *= 0.5
            if h < SMALLEST_STEP:
                found.message = f"stopped at {found.values[-1]:.6g}: {reason}"
                return found
            continue
        if turned[-1] * tangent[-1] < 0 and point[:-1].any():
            found.folds.append(_fold(curve, point, tangent, length) * curve.unit)
        value = float(new[-1]) * curve.unit
        if not limits[0] <= value <= limits[1]:
            found.message = f"{curve.parameter} = {value:.6g} is beyond the limits"
            return found
        if len(found.values) > 2 and here.order_parameter < 1e-7 and not (np.abs(new[:-1]) > 1e-7).any():
            found.message = f"back at the uniform state at {value:.6g}"
            return found
        point, tangent = new, turned
        found.add(curve, point)
        h = min(step, 1.4 * h) if count <= 5 else h
    found.message = f"{points} points were not enough to leave the limits; raise points or step"
    return found


def _fold(curve: _Curve, point: FloatArray, tangent: FloatArray, step: float) -> float:
    """The parameter where the branch turns, between a point and the next one."""

    def pace(length: float) -> float:
        there, _ = curve.correct(point + length * tangent, tangent)
        return float(curve.tangent(there, tangent)[-1])

    try:
        length = float(brentq(pace, 0.0, step, xtol=1e-13, rtol=1e-12))
    except ValueError:  # rounding at the ends
        length = step
    return float(curve.correct(point + length * tangent, tangent)[0][-1])


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
    model, parameter, limits = _check(model, parameter, limits)
    mode = _checks.count(mode, "mode", maximum=64)
    _refuse_anchors(model)
    axis = np.eye(1, model.dim)[0]
    value = onset_value(model, parameter, mode, limits, axis)
    curve = _Curve(model, axis, parameter, _kappa(model), interaction.beta_of(model), max(DEGREE, 4 * mode))
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
