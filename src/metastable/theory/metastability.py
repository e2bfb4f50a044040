"""Lemma 5.1: for how long strong Renyi centers stand still (d = 2, Q = K = V = I)."""

from __future__ import annotations

import math

from metastable import _checks
from metastable.errors import InvalidInputError
from metastable.theory.interaction import interaction, interaction_peak


def _check(position: int, beta: float, c: float) -> tuple[int, float, float]:
    position = _checks.count(position, "position")
    beta = _checks.number(beta, "beta", 0.0, strict=True)
    c = _checks.number(c, "c", 0.0, strict=True)
    reach = c / math.sqrt(beta)
    if not interaction_peak(beta) <= reach <= math.pi:
        raise InvalidInputError(
            f"c beta^(-1/2) = {reach:.4g} must lie between the peak of the interaction, {interaction_peak(beta):.4g}, and "
            "pi: only there does the force decrease with distance; c > 1 suffices for beta > 1"
        )
    return position, beta, c


def strong_center_displacement(position: int, beta: float, c: float, time: float) -> float:
    """Bound on how far strong center number `position` has moved by `time`: time * position * h(c beta^(-1/2)).

    Each of the fewer than `position` tokens before it pulls with at most h(c beta^(-1/2)) (and Z_k >= 1), as long as they
    stay further away than c beta^(-1/2): valid while the bound is below eps c beta^(-1/2), if strong centers are
    separated by more than c (1 + 2 eps) beta^(-1/2).

    Args:
        position: s_j, the place of the token in the sequence counted from 1 (its index plus one).
        beta: inverse temperature > 0.
        c: separation in units of beta^(-1/2); c beta^(-1/2) must be beyond the peak of the interaction.
        time: t >= 0.

    Reference: the paper, Lemma 5.1.
    """
    position, beta, c = _check(position, beta, c)
    return _checks.number(time, "time", 0.0) * position * interaction(c / math.sqrt(beta), beta)


def strong_center_time(position: int, beta: float, c: float, eps: float) -> float:
    """Time T_j up to which strong center s_j = `position` moves by less than eps c beta^(-1/2).

    T_j = eps c beta^(-1/2) / (s_j h(c beta^(-1/2))), if strong centers are separated by more than
    c (1 + 2 eps) beta^(-1/2). Exponential in c^2, divided by the index in the sequence. Infinite when h underflows.

    Args: as for `strong_center_displacement`, and eps > 0.

    Reference: the paper, Lemma 5.1.
    """
    position, beta, c = _check(position, beta, c)
    eps = _checks.number(eps, "eps", 0.0, strict=True)
    reach = c / math.sqrt(beta)
    force = interaction(reach, beta)
    return math.inf if force <= 0 else eps * reach / (position * force)


def strong_center_sufficient_time(position: int, beta: float, c: float, eps: float) -> float:
    """The simpler, shorter time T_j = eps exp(c^2/2 - c^4/(24 beta)) / s_j of Lemma 5.1.

    It follows from `strong_center_time` with sin x <= x and cos x - 1 <= -x^2/2 + x^4/24.

    Reference: the paper, Lemma 5.1.
    """
    position, beta, c = _check(position, beta, c)
    eps = _checks.number(eps, "eps", 0.0, strict=True)
    exponent = 0.5 * c**2 - c**4 / (24.0 * beta)
    return math.inf if exponent > 709.0 else eps * math.exp(exponent) / position
