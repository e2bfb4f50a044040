"""What a model says to a density: which models have a limit of infinitely many tokens here, and their interaction in harmonics.

W(<x, y>) = exp(beta <x, y>) acts on harmonics of degree l as the number (Funk and Hecke)

    c_l = Gamma(d/2) (2/beta)^(d/2 - 1) I_(l + d/2 - 1)(beta),

and the velocity of a token among the density mu is a gradient, v = grad psi:

    softmax        psi = (1/beta) log(W * mu),
    unnormalised   psi = (1/beta) W * mu.

All numbers here are scaled by exp(-|beta|), so that softmax has no largest beta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, ive

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, NumericalRangeError
from metastable.model import Attention, Rule, Support, require

LARGEST_BETA = 1e5
"""Beyond it a density would need thousands of modes to be seen at all."""
LARGEST_EXPONENT = 700.0
"""exp of more leaves double precision."""
SERIES_UP_TO = 16.0
"""|beta| up to which Bessel functions are summed here: all terms are positive, so that nothing is lost however small beta is."""


def _beta_rule(model: Attention, tokens: int | None) -> str | None:
    beta = abs(model.all_heads[0].beta)
    return None if beta <= LARGEST_BETA else f"is not made for |beta| > {LARGEST_BETA:g} (beta is {beta:g})"


def _support(who: str, *parts: str) -> Support:
    return Support(
        who,
        norms=frozenset({"post_ln"}),
        masks=frozenset({"full", "causal"}),
        weights=frozenset({"softmax", "unnormalized"}),
        parts=frozenset({"repulsion", "noise", "blind", "lonely", *parts}),
        rules=(Rule("beta", _beta_rule),),
    )


EVOLUTION = _support("the limit of infinitely many tokens", "frozen")
UNIFORM = _support("the stability of the uniform density")
"""Frozen tokens leave no uniform density at rest."""


def checked(model: Attention, support: Support = EVOLUTION) -> Attention:
    """`model` if densities of it can be computed, else a named exception."""
    if not isinstance(model, Attention):
        raise InvalidInputError(f"model must be an Attention, not {type(model).__name__}")
    require(model, support)
    growth_scale(model)
    return model


def beta_of(model: Attention) -> float:
    """The inverse temperature."""
    return model.all_heads[0].beta


def diffusion(model: Attention) -> float:
    """1/kappa = sigma^2/2: what multiplies the Laplacian."""
    result = 0.5 * model.noise * model.noise
    if not math.isfinite(result):
        raise NumericalRangeError(f"noise={model.noise:g} is too large: its square leaves double precision; lower it")
    return result


def is_softmax(model: Attention) -> bool:
    """True for SA, False for USA."""
    return model.weighting.kind == "softmax"


def growth_scale(model: Attention) -> float:
    """exp(|beta|) for USA, whose own time scale it is the inverse of; 1 for SA."""
    if is_softmax(model):
        return 1.0
    if abs(beta_of(model)) > LARGEST_EXPONENT:
        raise NumericalRangeError(
            f"weights='unnormalized' moves tokens at the speed exp(beta), which leaves double precision at "
            f"beta = {beta_of(model):g}; lower beta to {LARGEST_EXPONENT:g}, or use weights='softmax'"
        )
    return math.exp(abs(beta_of(model)))


def scaled_coefficients(beta: float, dim: int, degree: int) -> FloatArray:
    """exp(-|beta|) c_l for l = 0..degree; c_l(-beta) = (-1)^l c_l(beta)."""
    size, l = abs(beta), np.arange(degree + 1.0)
    lead, total = _parts(size, dim, degree)
    # lead is the first term over beta/2, but for l = 0.
    result = np.where(l == 0, lead, 0.5 * size * lead) * total
    return result * np.where((beta < 0) & (l % 2 == 1), -1.0, 1.0)


def forces(beta: float, dim: int, degree: int) -> FloatArray:
    """exp(-|beta|) c_l/beta, also at beta = 0 (Kuramoto: 1/d for l = 1, else nothing); 0 for l = 0, which moves nobody."""
    l = np.arange(degree + 1.0)
    lead, total = _parts(abs(beta), dim, degree)
    result = np.where(l == 0, 0.0, 0.5 * lead * total)
    return result * np.where((beta < 0) & (l % 2 == 0), -1.0, 1.0)


def _parts(size: float, dim: int, degree: int) -> tuple[FloatArray, FloatArray]:
    """Two factors of exp(-size) c_l for beta = size >= 0 (but for a factor size/2 where l > 0), l = 0..degree."""
    l, half = np.arange(degree + 1.0), 0.5 * dim - 1.0
    bessel = ive(l + half, size) if size > SERIES_UP_TO else np.zeros(1)
    if bessel[0] > 0:
        with np.errstate(divide="ignore"):
            result = np.exp(gammaln(0.5 * dim) + half * math.log(2.0 / size) + np.log(bessel))
        return result, np.where(l == 0, 1.0, 2.0 / size)
    return _first_terms(size, dim, degree), _sums(size, dim, degree) * math.exp(-size)


def _first_terms(size: float, dim: int, degree: int) -> FloatArray:
    """Gamma(d/2)/Gamma(l + d/2) (size/2)^l for l = 0, that over size/2 for l >= 1: products of small numbers, which end in 0."""
    i = np.arange(1.0, degree)
    with np.errstate(under="ignore"):
        return np.concatenate([[1.0, 2.0 / dim], 2.0 / dim * np.cumprod(size / (dim + 2.0 * i))])[: degree + 1]


def _sums(size: float, dim: int, degree: int) -> FloatArray:
    """The series of c_l over its first term: sum_k (size^2/4)^k/(k! (l + d/2)_k)."""
    l = np.arange(degree + 1.0)
    term, total = np.ones_like(l), np.ones_like(l)
    with np.errstate(under="ignore", over="ignore"):
        for k in range(1, 10_000):
            term = term * (0.25 * size * size) / (k * (k + l + 0.5 * dim - 1.0))
            total += term
            if (term <= 1e-17 * total).all():
                break
    if not np.isfinite(total).all():
        raise NumericalRangeError(
            f"the interaction for beta = {size:g} in dimension {dim} leaves double precision; lower beta"
        )
    return total


def check_scale(beta: float, dim: int) -> None:
    """Refuse an interaction whose mean over the sphere, against its largest value, is no number: softmax would divide by it."""
    if not scaled_coefficients(beta, dim, 0)[0] > 1e-290:
        raise NumericalRangeError(
            f"beta = {beta:g} in dimension {dim}: the mean of exp(beta <x, y>) over the sphere against its largest value exp(|beta|) "
            "leaves double precision; lower beta"
        )


def relative_forces(beta: float, dim: int, degree: int) -> FloatArray:
    """c_l/(beta c_0) for l = 0..degree, also where exp(-|beta|) c_0 is below the smallest number (high dimensions); 0 for l = 0."""
    size, l, half = abs(beta), np.arange(degree + 1.0), 0.5 * dim - 1.0
    bessel = ive(l + half, size) if size > SERIES_UP_TO else np.zeros(1)
    if bessel[0] > 1e-290:
        result = bessel / (size * bessel[0])
    else:
        sums = _sums(size, dim, degree)
        result = 0.5 * _first_terms(size, dim, degree) * sums / sums[0]
    return np.where(l == 0, 0.0, result) * np.where((beta < 0) & (l % 2 == 0), -1.0, 1.0)


@dataclass(frozen=True)
class Anchors:
    """Frozen tokens (m, dim) and what each counts against the density, whose mass is one."""

    tokens: FloatArray
    weights: FloatArray

    @property
    def total(self) -> float:
        return float(self.weights.sum())


def anchors_of(model: Attention) -> Anchors:
    """The frozen tokens of a model."""
    if model.frozen is None:
        return Anchors(np.empty((0, model.dim)), np.empty(0))
    return Anchors(model.frozen.tokens, np.asarray(model.frozen.weights))


# --------------------------------------------------------------------------------------------- the uniform density


def growth_rates(model: Attention, modes: int = 8) -> FloatArray:
    """Rates at which perturbations of the uniform density grow, for harmonics of degree 1..modes; shape (modes,).

        r_l = l (l + d - 2) [ c_l/beta - 1/kappa ]  for USA,    c_l/c_0 instead of c_l for SA,    1/kappa = sigma^2/2,

    on the circle without noise k^2 I_k(beta)/(beta I_0(beta)) for SA. Under a causal mask they are those of perturbations that are the
    same at all positions of the sequence.

    >>> import metastable as ms
    >>> ms.meanfield.growth_rates(ms.Attention(dim=2, beta=5.0, mask=ms.Full()), modes=4).round(6)
    array([0.178677, 0.514117, 0.682678, 0.600089])

    Reference: arXiv:2410.23228.
    """
    model = checked(model, UNIFORM)
    modes = _checks.count(modes, "modes", maximum=100_000)
    beta, dim = beta_of(model), model.dim
    l = np.arange(1.0, modes + 1.0)
    pull = relative_forces(beta, dim, modes) if is_softmax(model) else forces(beta, dim, modes) * growth_scale(model)
    return l * (l + dim - 2.0) * (pull[1:] - diffusion(model))


def fastest_mode(model: Attention) -> int:
    """Degree of the perturbation of the uniform density that grows fastest: how many clusters a circle shows first.

    0 where noise keeps the uniform density stable (nothing grows). About sqrt(2 beta) on the circle for large beta.

    >>> import metastable as ms
    >>> ms.meanfield.fastest_mode(ms.Attention(dim=2, beta=100.0, mask=ms.Full()))
    14

    Reference: arXiv:2410.23228.
    """
    model = checked(model, UNIFORM)
    # l^2 c_l peaks where l^2 is about 2 beta, or d beta, and falls like a Gaussian behind.
    reach = 16 + math.ceil(8.0 * math.sqrt(abs(beta_of(model)) * model.dim))
    rates = growth_rates(model, min(reach, 100_000))
    return int(np.argmax(rates)) + 1 if rates.max() > 0 else 0


def critical_kappa(model: Attention) -> float:
    """kappa = 2/sigma^2 at which noise stops holding the uniform density together: below it every perturbation decays.

        1/kappa = max_l c_l/beta  (l = 1 for beta > 0),    USA: kappa = 2 (beta/2)^(d/2)/(Gamma(d/2) I_(d/2)(beta)),

    with c_l/c_0 for SA. The noise of the model itself is not looked at.

    >>> import metastable as ms
    >>> round(ms.meanfield.critical_kappa(ms.Attention(dim=2, beta=1.0, mask=ms.Full(), weights="unnormalized")), 6)
    1.769413

    Reference: arXiv:2606.05140, arXiv:2510.20094.
    """
    quiet = checked(model, UNIFORM).replace(noise=0.0)
    l = np.arange(1.0, 4.0)
    largest = float((growth_rates(quiet, 3) / (l * (l + model.dim - 2.0))).max())
    if not largest > 0 or not math.isfinite(1.0 / largest):
        raise NumericalRangeError(f"the interaction of beta = {beta_of(model):g} underflows; no kappa is critical")
    return 1.0 / largest


def tricritical_beta(dim: int) -> float:
    """beta_* of USA: up to it the transition at `critical_kappa` is continuous, above it there is a jump and hysteresis.

        I_(d/2 + 1)(beta_*)/I_(d/2)(beta_*) = 1/d

    >>> import metastable as ms
    >>> round(ms.meanfield.tricritical_beta(2), 6)
    2.446918

    Reference: arXiv:2606.05140, arXiv:2510.20094.
    """
    from scipy.optimize import root_scalar

    dim = _checks.count(dim, "dim", minimum=2, maximum=10_000)

    def excess(beta: float) -> float:
        # The ratio of neighbours by its continued fraction: the functions themselves underflow in large dimension.
        ratio = 0.0
        for order in range(dim // 2 + 200, 0, -1):
            ratio = beta / (2.0 * (0.5 * dim + order) + beta * ratio)
        return ratio * dim - 1.0

    return float(root_scalar(excess, bracket=(0.1, 4.0), method="brentq", xtol=1e-14).root)
