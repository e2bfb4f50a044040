"""Stationary states of tokens with noise: laws at which attraction and diffusion balance.

    mu = exp(kappa psi)/Z,      psi = (1/beta) W * mu (USA),  (1/beta) log(W * mu) (SA),      kappa = 2/sigma^2,

zonal ones, in any dimension, by Newton's method on their series. The interaction in harmonics is integrated numerically here, not
taken from the formula with Bessel functions, so what this module finds checks those formulas.

Stability is that of the Fokker-Planck equation linearised at the state, against perturbations of every symmetry F(z) Y_m(w), z the
height along the axis, Y_m a harmonic of degree m in the directions across (m up to `SECTORS` at least, and on until rates fall:
the ring around an equator breaks into as many clusters as grow fastest). Turning the state as a whole costs
nothing; that mode (m = 1) is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import ConvergenceError, InvalidInputError, ResolutionError, UnsupportedError
from metastable.meanfield import bases, interaction
from metastable.meanfield.bases import Zonal, gauss_rule, resized, zonal_polynomials
from metastable.meanfield.density import Density
from metastable.meanfield.making import check_kept, tail_of
from metastable.model import Attention

DEGREE = 32
LARGEST_DEGREE = 512
TAIL = 1e-11
"""Part of a state that may be left at the end of its modes."""
RESIDUAL = 1e-12
"""Root mean square of mu - exp(kappa psi)/Z, against mu, of what counts as stationary."""
ITERATIONS = 60
SECTORS = 3
"""Degree m, across the axis, up to which the growth of perturbations is computed in any case."""
SECTOR_DEGREE = 96
"""Degree of perturbations, at most: those that grow, or decay slowest, are smooth."""
NEUTRAL = 1e-9
"""Growth, in units of the diffusion, that cannot be told from none."""


class System(NamedTuple):
    """A model at one kappa and beta, for zonal series of one degree."""

    basis: Zonal
    beta: float
    kappa: float
    softmax: bool
    force: FloatArray
    """exp(-|beta|) c_l/beta for l = 0.. (0 for l = 0, which does not matter)."""
    base: float
    """exp(-|beta|) (c_0 + weights of frozen tokens)."""
    anchors: FloatArray
    """The part of frozen tokens in S at the nodes (q,)."""
    scale: float


def make_system(model: Attention, axis: FloatArray, degree: int, kappa: float, beta: float) -> System:
    """The system for the model with other kappa and beta."""
    basis = bases.make(Zonal, model.dim, degree)
    assert isinstance(basis, Zonal)
    size = abs(beta)
    interaction.check_scale(beta, model.dim)
    z, weights, polynomials = _harmonics(model.dim, degree, max(2 * degree + 8, 64 + math.ceil(12.0 * math.sqrt(size))))
    force = (weights * _lift(beta, z)) @ polynomials
    force[0] = 0.0
    base = float(weights @ np.exp(beta * z - size))
    frozen = interaction.anchors_of(model)
    signs = np.sign(frozen.tokens @ axis)
    pull = np.zeros_like(basis.heights)
    for sign, weight in zip(signs, frozen.weights):
        pull += weight * _lift(beta, sign * basis.heights)
    base += frozen.total * math.exp(-size)
    softmax = interaction.is_softmax(model)
    scale = 1.0 if softmax else interaction.growth_scale(model.replace(beta=beta, heads=None)) / (1.0 + frozen.total)
    return System(basis, beta, kappa, softmax, force, base, pull, scale)


@lru_cache(maxsize=16)
def _harmonics(dim: int, degree: int, count: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Nodes and weights of a rule, and P_0..P_degree (P_l(1) = 1) at the nodes, (count, degree + 1)."""
    z, weights = gauss_rule(dim, count)
    top, _ = zonal_polynomials(dim, degree, np.ones(1))
    return z, weights, zonal_polynomials(dim, degree, z)[0] / top


@lru_cache(maxsize=16)
def _sector_functions(dim: int, degree: int, nodes: int, m: int) -> tuple[FloatArray, FloatArray]:
    """Functions F(z) of mean square one for degrees m..degree at the nodes of the basis, (q, ...), and sqrt(1 - z^2) F'."""
    z, weights = gauss_rule(dim, nodes)
    across = np.sqrt(1.0 - z**2)
    value, slope = zonal_polynomials(dim + 2 * m, degree - m, z)
    norm = math.sqrt(float(weights @ across ** (2 * m)))
    high = across[:, None] ** m / norm
    return high * value, high * (across[:, None] * slope - m * (z / across)[:, None] * value)


def _lift(beta: float, z: FloatArray) -> FloatArray:
    """exp(-|beta|) (exp(beta z) - 1)/beta: the force of one token, less a constant; z for beta = 0."""
    size = abs(beta)
    if size < 1.0:
        return math.exp(-size) * (np.expm1(beta * z) / beta if size > 0 else z)
    return (np.exp(beta * z - size) - math.exp(-size)) / beta


def _potential(system: System, a: FloatArray) -> tuple[FloatArray, FloatArray]:
    """psi at the nodes, less a constant, and T with d psi = K h/T (K h the series of force times h)."""
    lift = system.basis.values(system.force * a) + system.anchors
    if not system.softmax:
        return lift * system.scale, np.full_like(lift, 1.0 / system.scale)
    total = system.base + system.beta * lift
    if system.beta == 0.0:
        return lift / system.base, total
    return np.log(np.maximum(total, 1e-300) / system.base) / system.beta, total


def equilibrium(system: System, a: FloatArray) -> tuple[FloatArray, FloatArray]:
    """exp(kappa psi)/Z at the nodes for the law a (size,), and T."""
    psi, total = _potential(system, a)
    rho = np.exp(system.kappa * (psi - psi.max()))
    return rho / float(system.basis.weights @ rho), total


def residual(system: System, a: FloatArray) -> FloatArray:
    """mu - exp(kappa psi)/Z in coefficients of degree 1.., (size - 1,)."""
    rho, _ = equilibrium(system, a)
    return (a - system.basis.project(rho))[1:]


def jacobian(system: System, a: FloatArray) -> FloatArray:
    """Derivative of `residual` in the coefficients of degree 1.., (size - 1, size - 1)."""
    basis = system.basis
    rho, total = equilibrium(system, a)
    changes = basis.values(np.diag(system.force)[1:]) / total
    changes = system.kappa * rho * (changes - (changes @ (basis.weights * rho))[:, None])
    return np.eye(basis.size - 1) - basis.project(changes)[:, 1:].T


def solve(system: System, a: FloatArray) -> FloatArray:
    """The stationary law near a (size,), by Newton's method with shortened steps."""
    a = a.copy()
    wrong = residual(system, a)
    for _ in range(ITERATIONS):
        error = float(np.linalg.norm(wrong))
        if error <= RESIDUAL * float(np.linalg.norm(a)):
            return a
        step = np.linalg.lstsq(jacobian(system, a), wrong, rcond=1e-14)[0]
        for share in 0.5 ** np.arange(12.0):
            new = a.copy()
            new[1:] -= share * step
            value = residual(system, new)
            if np.linalg.norm(value) < (1.0 - 0.1 * share) * error:
                break
        else:
            if error <= 100.0 * RESIDUAL * float(np.linalg.norm(a)):
                return a  # rounding
            break
        a, wrong = new, value
    raise ConvergenceError(
        f"no stationary state was found from this start (the residual is {float(np.linalg.norm(wrong)):.2e}); start nearer to one, "
        "for example from a density that was evolved for some time"
    )


# ------------------------------------------------------------------------------------------------------------ stability


def sector_matrix(system: System, a: FloatArray, m: int) -> FloatArray:
    """The linearised Fokker-Planck equation for perturbations F(z) Y_m, in an orthonormal basis of degrees m.. (from 1 on: the mass
    stays) to `SECTOR_DEGREE` at most.

    d/dt <f, h> = integral <grad f, h grad psi + mu grad (d psi)> - (1/kappa) l (l + d - 2) <f, h>.
    """
    basis, dim = system.basis, system.basis.dim
    across = basis.nodes[:, 1]
    highest = min(basis.degree, SECTOR_DEGREE)
    functions, steep = _sector_functions(dim, highest, across.size, m)
    degrees = np.arange(m, highest + 1)
    rho, total = basis.values(a), _potential(system, a)[1]
    lift_slope = basis.gradient(system.force * a)[0] + _anchor_slope(system)
    velocity = lift_slope / total
    force = system.force[degrees]
    # grad (K h/T) = grad (K h)/T - K h grad T/T^2, and grad T = beta grad S for softmax, 0 else.
    bend = system.beta * lift_slope / total**2 if system.softmax else np.zeros_like(total)
    pulled = force * (steep / total[:, None] - functions * bend[:, None])
    weights = basis.weights[:, None]
    matrix = steep.T @ (weights * (velocity[:, None] * functions + rho[:, None] * pulled))
    around = float(m * (m + dim - 3)) / across**2
    matrix += functions.T @ (weights * (around * rho / total)[:, None] * (force * functions))
    matrix -= np.diag(degrees * (degrees + dim - 2.0)) / system.kappa
    return matrix[1:, 1:] if m == 0 else matrix


def _anchor_slope(system: System) -> FloatArray:
    """Derivative along the meridian of the part of frozen tokens."""
    if not system.anchors.any():
        return np.zeros_like(system.anchors)
    fine = system.basis
    return fine.gradient(fine.project(system.anchors))[0]


def growth(system: System, a: FloatArray) -> tuple[float, int]:
    """Largest rate at which a perturbation grows (below zero: all decay), and its symmetry m."""
    uniform = float(np.linalg.norm(a[1:])) < 1e-9
    highest = 1 if system.basis.dim == 2 else min(system.basis.degree, SECTOR_DEGREE) - 1
    best, where, before = -math.inf, 0, math.inf
    for m in range(highest + 1):
        values = np.linalg.eigvals(sector_matrix(system, a, m))
        if m == 1 and not uniform and not system.anchors.any():
            values = np.delete(values, int(np.argmin(np.abs(values))))
        rate = float(values.real.max())
        if rate > best + NEUTRAL / system.kappa:
            best, where = rate, m
        if m >= SECTORS and rate < min(before, best):
            break
        before = rate
    return best, where


@dataclass(frozen=True, eq=False, repr=False)
class StationaryState:
    """A law at which attraction and noise balance.

    Fields
    ------
    model : the model, with its noise.
    density : the law, zonal.
    growth : largest rate at which a perturbation of it grows; below zero all decay. Turning the state is left out. (Under a
        causal mask: of perturbations that are the same at all positions.)
    symmetry : degree m, across the axis, of that perturbation (0: it stays zonal).
    residual : root mean square of mu - exp(kappa psi)/Z.
    """

    model: Attention
    density: Density
    growth: float
    symmetry: int
    residual: float

    def __repr__(self) -> str:
        kind = "stable" if self.stable else "unstable"
        return f"<StationaryState: kappa = {self.kappa:.6g}, |mean| = {self.order_parameter:.6g}, {kind}>"

    @property
    def kappa(self) -> float:
        """2/sigma^2."""
        return 2.0 / self.model.noise**2

    @property
    def stable(self) -> bool:
        """True when every perturbation decays (a rate below 1e-9/kappa cannot be told from none)."""
        return self.growth < NEUTRAL / self.kappa

    @property
    def order_parameter(self) -> float:
        """|mean token|."""
        return self.density.order_parameter


def noisy(model: Attention) -> float:
    """kappa of a model that has one."""
    model = with_one_law(interaction.checked(model))
    if not model.noise > 0:
        raise UnsupportedError(
            "without noise stationary laws are point masses, not densities; give the model noise: noise=sqrt(2/kappa)"
        )
    kappa = 2.0 / model.noise / model.noise
    if not 1e-12 < kappa < 1e12:
        raise InvalidInputError(f"kappa = 2/noise^2 must be between 1e-12 and 1e12, not {kappa:g}")
    return kappa


def with_one_law(model: Attention) -> Attention:
    """`model`, if its stationary laws are the same at all positions of a sequence."""
    if model.frozen is not None and model.mask.kind == "causal":
        raise UnsupportedError(
            "under a causal mask early tokens feel frozen ones more than late tokens do, so that every position has a "
            "stationary law of its own; use mask=Full(), or evolve a CausalDensity until it rests"
        )
    return model


def zonal_start(model: Attention, start: Any) -> Density:
    """A start as a zonal density that fits the model."""
    if isinstance(start, StationaryState):
        start = start.density
    _checks.instance(start, Density, "start")
    if start.dim != model.dim:
        raise InvalidInputError(f"the start has dimension {start.dim}, the model {model.dim}")
    tokens = interaction.anchors_of(model).tokens
    density = start.as_zonal()
    assert density.axis is not None
    if len(tokens) and np.abs(np.abs(tokens @ density.axis) - 1.0).max() > 1e-12:
        raise UnsupportedError(
            "stationary laws are looked for among zonal ones, so frozen tokens must be at +axis or -axis of the start; "
            "give it the axis: Density.perturbed(dim, {1: 0.1}, axis=token)"
        )
    return density


def degree_for(start: Density) -> int:
    """The degree with which a search from a zonal start begins."""
    check_kept(
        start.basis, start.coefficients, LARGEST_DEGREE, 1e-3, f"stationary states have {LARGEST_DEGREE} at most"
    )
    return max(DEGREE, min(start.basis.degree, LARGEST_DEGREE))


def state_of(model: Attention, system: System, a: FloatArray, axis: FloatArray) -> StationaryState:
    """The state for a solved system."""
    rate, m = growth(system, a)
    error = float(np.linalg.norm(residual(system, a)))
    noise = math.sqrt(2.0 / system.kappa)
    here = (
        model.replace(noise=noise)
        if system.beta == interaction.beta_of(model)
        else with_beta(model, system.beta, noise)
    )
    return StationaryState(here, Density(model.dim, a, axis), rate, m, error)


def with_beta(model: Attention, beta: float, noise: float) -> Attention:
    """The model at another inverse temperature (its one head is the identity)."""
    return model.replace(beta=beta, heads=None, noise=noise)


def stationary(model: Attention, start: Density | StationaryState) -> StationaryState:
    """The stationary law near `start`: where Newton's method goes from there, stable or not.

    Laws are looked for among zonal ones: a start on the circle or on S^2 is averaged around its mean token first, or around the axis
    that keeps most of it (`Density.as_zonal`; on the circle: made even). The number of modes grows until the law is resolved.

    Args:
        model: SA or USA, full or causal, Q = K = V = I, with noise; under full attention frozen tokens on the axis of the start.
        start: a density, or a state found for other parameters.

    Raises:
        ConvergenceError: no state was found from there.
        ResolutionError: the state has more detail than `LARGEST_DEGREE` modes.

    >>> import metastable as ms
    >>> model = ms.Attention(dim=2, beta=1.0, mask=ms.Full(), weights="unnormalized", noise=1.0)    # kappa = 2 > 1.769
    >>> ms.meanfield.stationary(model, ms.meanfield.Density.perturbed(2, {1: 1.0}))
    <StationaryState: kappa = 2, |mean| = 0.543821, stable>
    """
    kappa, beta = noisy(model), interaction.beta_of(model)
    density = zonal_start(model, start)
    assert density.axis is not None
    degree = degree_for(density)
    a = density.coefficients
    while True:
        system = make_system(model, density.axis, degree, kappa, beta)
        a = solve(system, resized(a, system.basis.size))
        if tail_of(system.basis, a) <= TAIL:
            return state_of(model, system, a, density.axis)
        if 2 * degree > LARGEST_DEGREE:
            raise ResolutionError(
                f"at kappa = {kappa:g}, beta = {beta:g} the state is sharper than {degree} modes can show; raise the noise"
            )
        degree *= 2
