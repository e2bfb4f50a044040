"""The force between two tokens as a function of their angle, and where it peaks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metastable import _checks


def interaction(angle: ArrayLike, beta: float) -> Any:
    """Interaction function h(x) = exp(beta (cos x - 1)) sin x.

    On the circle with Q = K = V = I, dth_k/dt = -(1/Z_k) sum_{j<k} h(th_k - th_j). The exponent is evaluated as
    -2 beta sin^2(x/2), which is exact for small angles and never overflows.

    Args:
        angle: angles in radians, any shape.
        beta: inverse temperature >= 0.

    Returns:
        A float for a scalar angle, otherwise an array of its shape.

    Reference: the paper, section 5 and Lemma A.1, Figure 4.
    """
    beta = _checks.number(beta, "beta", 0.0)
    x = _checks.real_array(angle, "angle")
    force = np.exp(-2.0 * beta * np.sin(0.5 * x) ** 2) * np.sin(x)
    return float(force) if x.ndim == 0 else force


def interaction_peak(beta: float) -> float:
    """Angle tau* in [0, pi] at which the interaction function is largest.

    cos(tau*) = (-1 + sqrt(1 + 4 beta^2))/(2 beta); tau* ~ beta^(-1/2) for large beta and pi/2 for beta = 0. h increases
    on [0, tau*] and decreases on [tau*, pi]. Evaluated through cos = 2 beta/(1 + sqrt(1 + 4 beta^2)) and
    sin^2 = cos/beta = 2/(1 + sqrt(1 + 4 beta^2)), which do not cancel.

    Reference: the paper, Lemma A.1.
    """
    beta = _checks.number(beta, "beta", 0.0)
    root = 1.0 + math.hypot(1.0, 2.0 * beta)
    return math.atan2(math.sqrt(2.0 / root), 2.0 * beta / root)


def initial_inverse_temperature(sigma: float, dim: int) -> float:
    """Effective inverse temperature of a randomly initialised attention head, sigma^2 dim^(3/2).

    Query and key weights have independent entries of standard deviation `sigma`; tokens are unit vectors, so that the
    logit is u^T A u' with A = (dim/sqrt(head_dim)) Q^T K, and the temperature is the root mean square of |A|_F/sqrt(dim).
    The head dimension cancels: E|Q^T K|_F^2 = dim^2 head_dim sigma^4.

    Reference: elementary; for comparison with beta of a `Attention` with Q = K = I, where |beta I|_F/sqrt(dim) = beta.
    """
    sigma = _checks.number(sigma, "sigma", 0.0)
    return sigma**2 * _checks.count(dim, "dim") ** 1.5
