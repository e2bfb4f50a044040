"""Tangent vectors carried along an explicit run: the derivative of its accepted steps, forwards.

Of a step y -> R(z) with stages k_i = f(t_i, Y_i) the tangent vectors V (columns, one for each) go through

    V_i = V + h sum_{j<i} a_ij K_j,     K_i = J(t_i, Y_i) V_i,     V -> R'(z) (V + h sum_j b_j K_j),

with the Jacobian J of the right-hand side: what `adjoint` walks back, in the other direction. Steps are short enough for small
changes everywhere (`resolved`), so that what decays is seen to decay. After each of them the vectors are made orthonormal again,
V = Q R (discrete QR method: Dieci, Van Vleck, *Appl. Numer. Math.* 17 (1995) 275-291), and the factors R are multiplied with one
another as long as what they stretch and what they shrink stay comparable. The derivative of the run is then Q R_m ... R_1 Q_0^T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import explicit, march, resolved
from metastable.integrate.adjoint import LAST
from metastable.integrate.plan import Plan
from metastable.integrate.tableau import TSIT5
from metastable.kernels import reference, select
from metastable.model import Attention, why_not

Jacobian = Callable[[float, FloatArray], FloatArray]

GROWTH = 1e3
"""By how much a kept factor stretches or shrinks at the most (a single step may do more)."""


def jacobian_of(model: Attention, tokens: int, choice: select.Backend, chart: str, depth: float = 0.0) -> Jacobian:
    """J(t, y), (size, size) for the numbers of a state in `chart`: analytic where `kernels.reference` has it, else by pullbacks."""
    if why_not(model, reference.JACOBIAN, tokens) is None:
        return lambda t, y: _analytic(model, y, chart)
    pull = select.pullback(model, tokens, choice, chart)

    def jacobian(t: float, y: FloatArray) -> FloatArray:
        rows, out = np.empty((y.size, y.size)), np.empty_like(y)
        for i in range(y.size):
            covector = np.zeros_like(y)
            covector.reshape(-1)[i] = 1.0
            pull(model.norm.depth_of(depth, t), y, covector, out)
            rows[i] = out.reshape(-1)
        return rows

    return jacobian


def _analytic(model: Attention, y: FloatArray, chart: str) -> FloatArray:
    """`reference.jacobian` in a chart; the right-hand side normalises first, so columns are divided by the length of their
    token."""
    if chart == "angle":
        x = np.concatenate([np.cos(y), np.sin(y)], axis=1)
        along = np.stack([-x[:, 1], x[:, 0]], axis=1)
        return np.einsum("ka,kajb,jb->kj", along, reference.jacobian(model, x), along)
    length = np.sqrt(np.einsum("ij,ij->i", y, y))
    full = reference.jacobian(model, y / length[:, None]) / length[:, None]
    return full.reshape(y.size, y.size)


def tangent_frame(x: FloatArray) -> FloatArray:
    """Orthonormal tangent vectors at unit vectors x (..., dim), shape (..., dim - 1, dim): rows of Householder's reflection."""
    sign = np.where(x[..., :1] < 0, -1.0, 1.0)
    normal = x.copy()
    normal[..., :1] += sign
    square = np.sum(normal * normal, axis=-1)[..., None, None]
    reflection = np.eye(x.shape[-1]) - 2.0 * normal[..., :, None] * normal[..., None, :] / square
    return reflection[..., 1:, :]


@dataclass
class Frame:
    """Orthonormal tangent vectors (size, count) of a state in its chart, and the triangular factors by which they were divided on
    the way."""

    vectors: FloatArray
    factors: list[FloatArray] = field(default_factory=list)

    def orthonormalise(self, moved: FloatArray) -> None:
        """Go on with `moved` = Q R: the vectors are Q, and R is multiplied into the last factor, or begins a new one.

        What counts is the diagonal of R, not the lengths of the vectors: those of directions that decay at different rates all
        become like the slowest one, and what is lost of the others was told by the diagonal.
        """
        self.vectors, factor = np.linalg.qr(moved)
        if self.factors:
            product = factor @ self.factors[-1]
            heights = np.abs(np.diagonal(product))
            if heights.max(initial=1.0) <= GROWTH and heights.min(initial=1.0) >= 1.0 / GROWTH:
                self.factors[-1] = product
                return
        self.factors.append(factor)


@dataclass
class Tangents(march.Recorder):
    """A recorder that carries a `Frame` through the accepted steps of a system."""

    system: march.Movable | None = None
    plan: Plan | None = None
    depth: float = 0.0
    jacobian: Jacobian | None = None
    frame: Frame = field(default_factory=lambda: Frame(np.empty((0, 0))))

    def wants(self, end: float) -> bool:
        return True

    def step(self, t: float, h: float, end: float, new: FloatArray, polynomial) -> None:
        super().step(t, h, end, new, polynomial)
        assert self.system is not None
        assert self.plan is not None
        assert self.jacobian is not None
        y, k, vectors = self.system.state(), self.system.slopes(), self.frame.vectors
        latest, slopes = resolved.latest_stage(self.plan, self.depth, t), np.empty((LAST, *vectors.shape))
        for i in range(LAST):
            place = y + h * np.tensordot(TSIT5.a[i, :i], k[:i], 1)
            moved = vectors + h * np.tensordot(TSIT5.a[i, :i], slopes[:i], 1)
            slopes[i] = self.jacobian(min(t + TSIT5.c[i] * h, latest), place) @ moved
        moved = vectors + h * np.tensordot(TSIT5.a[LAST, :LAST], slopes, 1)
        place = y + h * np.tensordot(TSIT5.a[LAST, :LAST], k[:LAST], 1)
        if self.chart == "ambient":
            moved = resolved.through_retraction(place, self.dim, moved)
        self.frame.orthonormalise(moved)


def carry(
    plan: Plan,
    start: FloatArray,
    vectors: FloatArray,
    report: Report | None = None,
    depth: float = 0.0,
    *,
    shorter: bool = False,
) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
    """Tangent vectors (tokens, width, count) at the packed state `start`, carried to the end of the plan (method "tsit5").

    `shorter`: in steps at most half as long, against which those of always can be compared; one more ends in the middle, so that they
    are others in any case.

    Returns the packed state there, the orthonormal vectors Q (tokens, width, count), and the factors R_0, ..., R_m, of which the
    first is that of the vectors as they are given.
    """
    system, chart = explicit.system_of(plan, start, depth)
    jacobian = jacobian_of(plan.model, len(start), plan.backend, chart, depth)
    if chart == "angle":
        along = np.stack([-start[:, 1], start[:, 0]], axis=1)
        inside = np.einsum("ka,kav->kv", along, vectors)
    else:
        inside = vectors.reshape(start.size, -1)
    recorder = Tangents(
        plan.model.dim, np.array([plan.save.until]), chart, system=system, plan=plan, depth=depth, jacobian=jacobian
    )
    recorder.frame.orthonormalise(inside)
    bound, stops = resolved.RESOLVED, resolved.jumps(plan, depth)
    if shorter:
        bound, stops = 0.5 * bound, sorted([*stops, 0.5 * plan.save.until])
    solution = resolved.solve(plan, start, system, recorder, report, depth, followed=bound, stops=stops)
    final, found = solution.states[-1], recorder.frame.vectors
    if chart == "angle":
        along = np.stack([-final[:, 1], final[:, 0]], axis=1)
        return final, along[:, :, None] * found[:, None, :], recorder.frame.factors
    return final, found.reshape(*start.shape, -1), recorder.frame.factors
