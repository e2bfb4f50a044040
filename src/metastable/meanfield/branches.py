"""Branches of stationary states: how they change with kappa or beta, by continuation in arclength, with the stability of each point.

A branch is a curve (mu(s), p(s)) with p = kappa or beta. From one point the next is predicted along the tangent and corrected by
Newton's method across it, so that the curve may turn back (folds). Branches leave the uniform state where one of its modes becomes
neutral.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import ConvergenceError, InvalidInputError, MetastableError
from metastable.meanfield import interaction
from metastable.meanfield.arclength import (
    Curve,
    curve_from,
    leaving,
    onset_value,
    onset_values,
    root,
    transcritical,
)
from metastable.meanfield.balance import (
    DEGREE,
    TAIL,
    StationaryState,
    degree_for,
    noisy,
    state_of,
    with_one_law,
    zonal_start,
)
from metastable.meanfield.bases import resized
from metastable.meanfield.density import Density
from metastable.meanfield.making import tail_of
from metastable.meanfield.symmetry import default_axis
from metastable.model import Attention

PARAMETERS = ("kappa", "beta")
POINTS = 400
STEP = 0.05
SMALLEST_STEP = 1e-6
LEAVING = 1e-3
"""Amplitude at which the slope of a branch that crosses the uniform state is measured for its first step."""


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


def checked_range(model: Attention, parameter: str, limits: Any) -> tuple[Attention, str, tuple[float, float]]:
    model = with_one_law(interaction.checked(model))
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
    model, parameter, limits = checked_range(model, parameter, limits)
    points = _checks.count(points, "points", minimum=2, maximum=10_000)
    refuse_anchors(model)
    axis = default_axis(model.dim)
    found = [value for mode in range(1, 9) for value in onset_values(model, parameter, mode, limits, axis)]
    marks = np.geomspace(*limits, points) if limits[0] > 0 else np.linspace(*limits, points)
    marks = np.unique(np.concatenate([marks, found]))
    curve = curve_from(model, axis, parameter, 1.0, DEGREE)
    states = []
    for value in marks:
        system = curve.system(float(value) / curve.unit)
        states.append(state_of(model, system, np.eye(1, system.basis.size)[0], axis))
    ended = "the range was followed to its end"
    return _branch(parameter, states, marks.tolist(), bifurcations=tuple(sorted(found)), mode=0, message=ended)


def refuse_anchors(model: Attention) -> None:
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
        mode: it leaves the uniform state in this mode, where that becomes neutral first within the limits. Where the mode and
            its opposite are different perturbations (even modes for d >= 3, see `Onset.kind`), the branch goes through the
            uniform state: it is followed to both sides, and its points are in order from the end of the opposite perturbation
            (the mode below zero) to the other end.
        start: instead of `mode`: a stationary state of this model (but for the parameter) to go on from, or a density near one;
            the points are in order from smaller values of the parameter, through the start, to larger ones.
        step: longest step, in coefficients of the series (root mean square) and parts of the parameter.
        points: at most so many (on each side of `start`).

    Returns:
        A `Branch`; every point knows whether it is stable, `folds` where it turns. Its axis, where no start says one, is that of
        `Density.perturbed`: e_1, and e_3 for d = 3.
    """
    model, parameter, limits = checked_range(model, parameter, limits)
    mode = _checks.count(mode, "mode", maximum=64)
    step = _checks.number(step, "step", 1e-4, 1.0)
    points = _checks.count(points, "points", minimum=2, maximum=20_000)
    if start is not None:
        return _both_ways(model, parameter, limits, start, step, points)
    refuse_anchors(model)
    axis = default_axis(model.dim)
    value = onset_value(model, parameter, mode, limits, axis)
    sides = []
    for sign in (-1.0, 1.0) if transcritical(model.dim, mode) else (1.0,):
        curve = curve_from(model, axis, parameter, value, max(DEGREE, 4 * mode))
        point = np.append(np.zeros(curve.degree), value / curve.unit)
        along = np.eye(1, point.size, mode - 1)[0]
        if transcritical(model.dim, mode):
            # It leaves at a slope, which the first step must know.
            along = leaving(curve, mode, value, sign * LEAVING) - point
            along /= np.linalg.norm(along)
        sides.append(_follow(curve, point, along, limits, step, points))
    return _joined(parameter, sides, mode)


def _both_ways(
    model: Attention, parameter: str, limits: tuple[float, float], start: Any, step: float, points: int
) -> Branch:
    """From a state towards smaller values, and towards larger ones."""
    density = zonal_start(model, start)
    assert density.axis is not None
    here = _same_but_for(parameter, model, start) if isinstance(start, StationaryState) else model
    kappa, beta = noisy(here), interaction.beta_of(here)
    value = kappa if parameter == "kappa" else beta
    if not limits[0] <= value <= limits[1]:
        raise InvalidInputError(f"the start has {parameter} = {value:g}, which is not between the limits {limits}")
    sides = []
    for sign in (-1.0, 1.0):
        degree = degree_for(density)
        curve = Curve(model, density.axis, parameter, kappa, beta, degree)
        guess = np.append(resized(density.coefficients, degree + 1)[1:], value / curve.unit)
        along = np.zeros(guess.size)
        along[-1] = sign
        point, _ = curve.correct(guess, along)
        sides.append(_follow(curve, point, along, limits, step, points))
    return _joined(parameter, sides, -1)


def _same_but_for(parameter: str, model: Attention, start: StationaryState) -> Attention:
    """The model of a state, if it is the given one at another value of the parameter."""
    other, own = start.model, model
    differ = [
        what
        for what, here, there in (
            ("weights", own.weighting.kind, other.weighting.kind),
            ("frozen tokens", own.frozen, other.frozen),
            ("beta", interaction.beta_of(own), interaction.beta_of(other)),
        )
        if here != there and what != parameter
    ]
    if parameter == "beta" and not math.isclose(noisy(own), start.kappa, rel_tol=1e-9):
        differ.append("noise")
    if differ:
        raise InvalidInputError(
            f"start is a state of a model with other {' and '.join(differ)}; give branch that model (start.model), or "
            "find the state of this one first: stationary(model, start)"
        )
    return other


def _joined(parameter: str, sides: list[_Followed], mode: int) -> Branch:
    """One branch, or two that begin at one point as a single one, the first of them backwards."""
    back, forth = sides[:-1], sides[-1]
    return _branch(
        parameter,
        [*(state for side in back for state in side.states[:0:-1]), *forth.states],
        [*(value for side in back for value in side.values[:0:-1]), *forth.values],
        folds=tuple(sorted({fold for side in sides for fold in side.folds})) if back else tuple(forth.folds),
        mode=mode,
        message="; ".join(side.message for side in sides),
    )


@dataclass
class _Followed:
    states: list[StationaryState] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    folds: list[float] = field(default_factory=list)
    message: str = ""

    def add(self, curve: Curve, point: FloatArray) -> None:
        system = curve.system(float(point[-1]))
        self.states.append(state_of(curve.model, system, curve.whole(point), curve.axis))
        self.values.append(float(point[-1]) * curve.unit)


def _follow(
    curve: Curve, point: FloatArray, along: FloatArray, limits: tuple[float, float], step: float, points: int
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
            Density(curve.model.dim, curve.whole(new), curve.axis)  # refuses what is negative somewhere
        except (MetastableError, np.linalg.LinAlgError) as reason:
            h *= 0.5
            if h < SMALLEST_STEP:
                found.message = f"stopped at {found.values[-1]:.6g}: {reason}"
                return found
            continue
        if new[:-1] @ point[:-1] < 0:
            found.message = f"back at the uniform state near {curve.parameter} = {float(new[-1]) * curve.unit:.6g}"
            return found
        if turned[-1] * tangent[-1] < 0 and point[:-1].any():
            found.folds.append(_fold(curve, point, tangent, length) * curve.unit)
        value = float(new[-1]) * curve.unit
        if not limits[0] <= value <= limits[1]:
            _add_last(found, curve, point, new, limits[0] if value < limits[0] else limits[1])
            return found
        point, tangent = new, turned
        found.add(curve, point)
        h = min(step, 1.4 * h) if count <= 5 else h
    found.message = f"{points} points were not enough to leave the limits; raise points or step"
    return found


def _add_last(found: _Followed, curve: Curve, point: FloatArray, new: FloatArray, limit: float) -> None:
    """The state where the branch leaves the limits, between a point and the next one."""
    found.message = f"left the limits at {curve.parameter} = {limit:.6g}"
    share = (limit / curve.unit - point[-1]) / (new[-1] - point[-1])
    row = np.eye(1, new.size, new.size - 1)[0]
    guess = point + share * (new - point)
    guess[-1] = limit / curve.unit
    try:
        found.add(curve, curve.correct(guess, row)[0])
        found.values[-1] = limit
    except (MetastableError, np.linalg.LinAlgError):
        found.message += " (the state there was not found)"


def _fold(curve: Curve, point: FloatArray, tangent: FloatArray, step: float) -> float:
    """The parameter where the branch turns, between a point and the next one."""

    def pace(length: float) -> float:
        there, _ = curve.correct(point + length * tangent, tangent)
        return float(curve.tangent(there, tangent)[-1])

    try:
        length = root(pace, 0.0, step)
    except ValueError:  # rounding at the ends
        length = step
    return float(curve.correct(point + length * tangent, tangent)[0][-1])
