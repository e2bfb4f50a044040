"""`evolve`: the equation that a density of infinitely many tokens obeys.

    d_t mu + div(mu v) = (1/kappa) Delta mu,     v = grad psi,     1/kappa = sigma^2/2,

psi as in `interaction`. It is solved in the coefficients of the series: the flux is multiplied out at nodes, its divergence taken
weakly (so the mass does not change by a bit), and diffusion, which is a number for each mode, exactly: the pair Tsit5 for the
variables e^(-t Delta/kappa) mu (Lawson's method), with step control. The series gets more modes whenever its end (the last
tenth, or as many as its symmetry takes) holds more than the tolerance; when no more are allowed, the density is sharper than can be
resolved, and the evolution stops and says when.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._words import counted
from metastable.errors import InvalidInputError, ResolutionError, StoppedEarlyWarning, UnsupportedError
from metastable.integrate import control
from metastable.integrate.tableau import TSIT5
from metastable.meanfield import interaction
from metastable.meanfield.bases import Basis, Circle, Sphere, Zonal, resized
from metastable.meanfield.density import Density
from metastable.meanfield.making import check_degree, check_kept, lift_of, lifted, tail_of
from metastable.meanfield.positions import (
    MOST_POSITIONS,
    POSITIONS,
    CausalDensity,
    averages,
    interpolation,
    nodes_of,
    tail_of_positions,
)
from metastable.model import Attention

MOST_MODES: dict[type[Basis], int] = {Circle: 1024, Zonal: 512, Sphere: 64}
"""Degree that a series may grow to where the caller does not say."""
RTOL = 1e-8
MAX_STEPS = 100_000
LIFT = 10.0
"""Part of the mass, in units of the tolerance, that may be made uniform to lift negative values, before a law counts as unresolved."""


class Field:
    """The right-hand side without diffusion, for coefficients (positions, size) in one basis."""

    def __init__(self, model: Attention, basis: Basis, axis: FloatArray | None, positions: int) -> None:
        beta, dim = interaction.beta_of(model), model.dim
        place = basis.degrees.astype(int)
        self.basis = basis
        self.softmax = interaction.is_softmax(model)
        interaction.check_scale(beta, dim)
        self.weight = interaction.scaled_coefficients(beta, dim, basis.degree)[place]
        self.force = interaction.forces(beta, dim, basis.degree)[place]
        self.decay = interaction.diffusion(model) * basis.laplacian
        self.average = None if positions == 1 else _averages(model, positions)
        anchors = interaction.anchors_of(model)
        # What a token sees of the density, against the whole of it: all, or (positions, 1) those before it.
        self.share = nodes_of(positions)[0][:, None] if anchors.weights.size and _in_order(model) else np.ones((1, 1))
        self.scale = interaction.growth_scale(model) / (self.share + anchors.total)
        self.anchors = None
        if anchors.weights.size:
            # On the axis itself: a rounding error of 1e-16 in the height would be one of 1e-8 across.
            tokens = anchors.tokens if axis is None else np.sign(anchors.tokens @ axis)[:, None] * np.eye(1, dim)
            pull = anchors.weights * np.exp(beta * (basis.nodes @ tokens.T) - abs(beta))
            # Force is the gradient over beta, so beta = 0 is no special case: sum of weights times tokens, in the tangent directions.
            self.anchors = pull.sum(axis=1), np.einsum("cqd,qd->cq", basis.frames, pull @ tokens)

    def potential_parts(self, coefficients: FloatArray) -> tuple[FloatArray, FloatArray]:
        """exp(-|beta|) W * m at the nodes (positions, q), and its gradient over beta (components, positions, q).

        m(u) is what a token at u sees: the frozen tokens, and the density (under a causal mask u times the average of that before it).
        """
        seen = coefficients if self.average is None else self.share * (self.average @ coefficients)
        total, slope = self.basis.values(self.weight * seen), self.basis.gradient(self.force * seen)
        if self.anchors is not None:
            total, slope = total + self.anchors[0], slope + self.anchors[1][:, None, :]
        return total, slope

    def __call__(self, coefficients: FloatArray) -> FloatArray:
        """-div(mu v), (positions, size)."""
        total, slope = self.potential_parts(coefficients)
        velocity = _mean_pull(slope, total) if self.softmax else slope * self.scale
        return self.basis.project_gradient(self.basis.values(coefficients) * velocity)


def _mean_pull(slope: FloatArray, total: FloatArray) -> FloatArray:
    """slope/total, components in front, no longer than one: it is the tangent part of a mean of unit vectors.

    Far from all tokens the series of both is rounding errors of their largest values (and the density is nothing): without the
    bound their ratio would be anything there.
    """
    length = np.sqrt(np.einsum("c...,c...->...", slope, slope))
    return slope / np.maximum(np.maximum(total, length), np.finfo(float).tiny)


def _averages(model: Attention, positions: int) -> FloatArray:
    """What the tokens at each node see of those at all of them: all before them, or everybody."""
    u, weights = nodes_of(positions)
    return averages(positions, u) if _in_order(model) else np.tile(weights, (positions, 1))


def _in_order(model: Attention) -> bool:
    """True when tokens see those before them only."""
    return model.mask.kind == "causal"


@dataclass(frozen=True, eq=False, repr=False)
class Evolution(_checks.LockedArrays):
    """What `evolve` returns.

    Fields
    ------
    model : the model.
    times : the times that were reached, of those asked for, (m,).
    densities : the densities at these times, `Density` or `CausalDensity`.
    status : "success", "unresolved" (the density became sharper than its modes) or "max_steps".
    message : why it stopped early; empty for a success.
    reached : the time that was reached.
    steps, rejected : steps made, and steps tried in vain.
    """

    model: Attention
    times: FloatArray
    densities: tuple[Any, ...]
    status: str
    message: str
    reached: float
    steps: int
    rejected: int

    def __repr__(self) -> str:
        return f"<Evolution: {len(self.times)} densities, t = 0..{self.reached:g}, {counted(self.steps, 'step')}, {self.status}>"

    @property
    def final(self) -> Any:
        """The last density that was asked for and reached."""
        if not self.densities:
            raise InvalidInputError(f"none of the times was reached: {self.message}")
        return self.densities[-1]

    def _laws(self) -> tuple[Density, ...]:
        return tuple(item.mean() if isinstance(item, CausalDensity) else item for item in self.densities)

    @property
    def order_parameter(self) -> FloatArray:
        """|mean token| at the times (of all positions together), (m,)."""
        return np.array([law.order_parameter for law in self._laws()])

    def amplitudes(self, modes: int = 8) -> FloatArray:
        """`Density.amplitudes` at the times (of all positions together), (m, modes)."""
        modes = _checks.count(modes, "modes", maximum=10_000)
        return np.array([law.amplitudes(modes) for law in self._laws()]).reshape(-1, modes)

    def on_circle(self, cells: int = 360) -> tuple[FloatArray, FloatArray]:
        """Angles in [-pi, pi) (cells,) and the density there at each time (m, cells), for pictures."""
        cells = _checks.count(cells, "cells", minimum=2, maximum=100_000)
        if self.model.dim != 2:
            raise UnsupportedError(f"only the circle has angles, not dimension {self.model.dim}")
        angles = -np.pi + 2.0 * np.pi * np.arange(cells) / cells
        return angles, np.array([law.at_angle(angles) for law in self._laws()]).reshape(-1, cells)


def evolve(
    model: Attention,
    density: Density | CausalDensity,
    times: Any,
    *,
    rtol: float = RTOL,
    modes: int | None = None,
    max_steps: int = MAX_STEPS,
) -> Evolution:
    """The density of infinitely many tokens at the given times.

    Full attention moves a `Density`. Causal attention moves a `CausalDensity`, a law for each position; from a `Density`, the same
    law at every position (independent tokens), it does what full attention does (early tokens see the same law as late ones).
    Frozen tokens count by their weight w against the whole density, whose mass is one: it is the limit of n tokens with weights
    w n. Under a causal mask a token at position u sees the part u of the density, so that early tokens feel frozen ones more: then
    positions differ, and a `CausalDensity` is needed (`CausalDensity.alike(density)`).

    Args:
        model: softmax or unnormalised attention, full or causal, Q = K = V = I, with noise and frozen tokens as you like.
        density: the start.
        times: increasing times; 0 is the start.
        rtol: error of a step, and what may be left at the end of the modes, against the density (root mean square). What becomes
            of errors later is the flow's own: where modes grow at the rate r, those of a step grow like exp(r t), and those of
            rounding too, so that a symmetric start that is unstable loses its symmetry after some 36/r, whatever the tolerance.
        modes: degree that the series may grow to (None: 1024 on the circle, 64 on S^2, 512 for zonal densities, or that of the
            start). A start that has more than `rtol` of itself beyond it is refused.
        max_steps: give up after so many steps.

    Returns:
        An `Evolution`. When the density becomes a point mass faster than modes can follow, its status is "unresolved", `reached` says
        when, and a `StoppedEarlyWarning` is given.

    >>> import metastable as ms
    >>> model = ms.Attention(dim=2, beta=5.0, mask=ms.Full())
    >>> evolution = ms.meanfield.evolve(model, ms.meanfield.Density.perturbed(2, {3: 1e-3}), [0.0, 1.0])
    >>> (evolution.amplitudes(3)[1, 2] / evolution.amplitudes(3)[0, 2]).round(3)    # exp of the growth rate 0.682678
    np.float64(1.979)
    """
    model = interaction.checked(model)
    if not isinstance(density, (Density, CausalDensity)):
        raise InvalidInputError(f"density must be a metastable.meanfield.Density or CausalDensity, not {density!r}")
    if density.dim != model.dim:
        raise InvalidInputError(f"the density has dimension {density.dim}, the model {model.dim}")
    _check_anchors(model, density)
    kind, tolerance = type(density.basis), _checks.tolerance(rtol)
    limit = max(MOST_MODES[kind], density.basis.degree) if modes is None else check_degree(modes, kind, "modes")
    if density.basis.degree > limit:
        check_kept(density.basis, density.coefficients, limit, tolerance, f"modes={limit} keeps {limit} of them")
        cut = density.basis.with_degree(limit)
        kept = resized(density.coefficients, cut.size)
        if not lift_of(cut, kept) <= LIFT * tolerance:
            raise ResolutionError(
                f"the density is negative when it is cut to modes={limit}, by more than rtol={tolerance:g} of its mass; allow more "
                "of them"
            )
        density = type(density)(density.dim, lifted(cut, kept), density.axis)
    march = March(model, density, tolerance, limit)
    evolution = march.run(_checks.output_times(times), _checks.count(max_steps, "max_steps"))
    if evolution.status != "success":
        warnings.warn(evolution.message, StoppedEarlyWarning, stacklevel=2)
    return evolution


def _check_anchors(model: Attention, density: Density | CausalDensity) -> None:
    """A zonal density stays zonal only when all frozen tokens are on its axis, and one of all positions only when they leave it so."""
    tokens = interaction.anchors_of(model).tokens
    if density.axis is not None and len(tokens) and np.abs(np.abs(tokens @ density.axis) - 1.0).max() > 1e-12:
        raise UnsupportedError("a zonal density stays so only among frozen tokens at +axis or -axis")
    if len(tokens) and _in_order(model) and isinstance(density, Density):
        raise UnsupportedError(
            "under a causal mask early tokens feel frozen ones more than late tokens do, so that one law does not stay the same at all "
            "positions; start from CausalDensity.alike(density), or use mask=Full()"
        )


class March:
    """Steps of Lawson's method, and the number of modes that they need."""

    def __init__(self, model: Attention, density: Density | CausalDensity, rtol: float, limit: int) -> None:
        self.model, self.axis, self.rtol, self.limit = model, density.axis, rtol, limit
        self.plain = isinstance(density, Density)
        self.state = np.atleast_2d(density.coefficients).copy()
        if len(self.state) == 1 and not self.plain:
            # One position cannot show that laws begin to differ.
            self.state = np.repeat(self.state, POSITIONS, axis=0)
        self.field = Field(model, density.basis, density.axis, len(self.state))
        self.steps = self.rejected = 0
        self.t = 0.0

    def _density(self) -> Density | CausalDensity:
        """The state as a density: nowhere negative, which a series of this tolerance may be."""
        laws = lifted(self.field.basis, self.state)
        if self.plain:
            return Density(self.model.dim, laws[0], self.axis)
        return CausalDensity(self.model.dim, laws, self.axis)

    def run(self, times: FloatArray, max_steps: int) -> Evolution:
        """To the last of `times`, or as far as it goes."""
        densities: list[Any] = []
        reached: list[float] = []
        status, message = "success", ""
        h, previous, after_rejection = 0.0, control.FIRST_ERROR, False
        for stop in times:
            while self.t < stop and not message:
                h = h or self._first_step(float(times[-1]))
                last = stop - self.t <= h * (1.0 + 1e-12)
                width = stop - self.t if last else h
                new, error = self._attempt(width)
                if self.steps + self.rejected >= max_steps:
                    status = "max_steps"
                    message = f"{max_steps} steps reached t = {self.t:.6g}; raise max_steps, or rtol"
                elif not error <= 1.0:
                    self.rejected += 1
                    h, after_rejection = width * control.rejected_factor(error), True
                elif self._sharp(new):
                    self.rejected += 1
                    if not self._refine(new):
                        status, message = "unresolved", self._unresolved(new)
                else:
                    self.steps += 1
                    self.t = float(stop) if last else self.t + width
                    self.state = new
                    factor = control.accepted_factor(error, previous, after_rejection)
                    h = max(h, width * factor) if last else width * factor
                    previous, after_rejection = error, False
            if message:
                break
            densities.append(self._density())
            reached.append(float(stop))
        return Evolution(
            self.model,
            np.array(reached),
            tuple(densities),
            status,
            message,
            self.t,
            self.steps,
            self.rejected,
        )

    def _first_step(self, horizon: float) -> float:
        slope = self.field(self.state)
        largest = float(np.abs(slope).max()) or 1.0
        speed = largest * (float(np.linalg.norm(slope / largest)) / float(np.linalg.norm(self.state)))
        return min(horizon, 0.01 / speed if speed > 0 else horizon, 0.1 / (1.0 + float(self.field.scale.max())))

    def _attempt(self, h: float) -> tuple[FloatArray, float]:
        """The state after a step, and its error in units of the tolerance."""
        decay, a, c = self.field.decay, TSIT5.a, TSIT5.c
        slopes: list[FloatArray] = []
        stage = self.state
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for i in range(TSIT5.stages):
                # exp(-decay h (c_i - c_j)) carries slope j to stage i; the nodes ascend, so none grows.
                stage = np.exp(-decay * (h * c[i])) * self.state
                for j in range(i):
                    if a[i, j] != 0.0:
                        stage = stage + (h * a[i, j]) * np.exp(-decay * (h * (c[i] - c[j]))) * slopes[j]
                slopes.append(self.field(stage))
            error = np.zeros_like(self.state)
            for j, slope in enumerate(slopes):
                error += (h * TSIT5.error[j]) * np.exp(-decay * (h * (1.0 - c[j]))) * slope
            size = self.rtol * float(np.linalg.norm(stage))
            return stage, float(np.linalg.norm(error)) / size if size > 0 else math.inf

    def _sharp(self, state: FloatArray) -> bool:
        """True when the modes (or the positions) do not hold the state any more."""
        return bool(
            tail_of(self.field.basis, state) > self.rtol
            or tail_of_positions(state) > self.rtol
            or not lift_of(self.field.basis, state) <= LIFT * self.rtol
        )

    def _refine(self, new: FloatArray) -> bool:
        """More modes or positions, with the state before the step; False where no more are allowed."""
        positions, degree = len(self.state), self.field.basis.degree
        in_order = tail_of_positions(new) > self.rtol
        if in_order and positions < MOST_POSITIONS:
            positions = min(2 * positions, MOST_POSITIONS)
            self.state = interpolation(len(self.state), nodes_of(positions)[0]) @ self.state
        elif not in_order and degree < self.limit:
            degree = min(2 * degree, self.limit)
        else:
            return False
        basis = self.field.basis.with_degree(degree)
        self.state = resized(self.state, basis.size)
        self.field = Field(self.model, basis, self.axis, positions)
        return True

    def _unresolved(self, new: FloatArray) -> str:
        if tail_of_positions(new) > self.rtol:
            return (
                f"at t = {self.t:.6g} the laws of neighbouring positions differ more than {len(self.state)} positions can show; "
                "raise rtol, or start from laws that change less along the sequence (light frozen tokens move the first ones only)"
            )
        if tail_of(self.field.basis, new) <= self.rtol:
            return (
                f"at t = {self.t:.6g} the density is so large in one place (it becomes a point mass) that elsewhere it is negative, by "
                f"{lift_of(self.field.basis, new):.1e} of the mass, which is more than rtol={self.rtol:g} allows; ask for earlier times"
            )
        return (
            f"at t = {self.t:.6g} the density is sharper than {self.field.basis.degree} modes can show (it becomes a point mass "
            "where tokens meet and no noise spreads them); stop earlier, raise modes or rtol, or follow tokens: "
            f"density.{'sample' if self.plain else 'sequence'}(n, seed)"
        )
