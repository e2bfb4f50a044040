"""The closed forms of arXiv:2605.09213, and what they become for a finite number of tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import linalg, optimize, special


def mode_rate(mode: Any, beta: float) -> Any:
    """a_m = m^2 I_m(beta)."""
    return np.asarray(mode, dtype=float) ** 2 * special.iv(mode, beta)


def response(amount: Any, distance: Any) -> Any:
    """psi_c(y) = sum_k c^(k+1) y^k/(k! (k+1)!) = sqrt(c/y) I_1(2 sqrt(c y)), with psi_c(0) = c."""
    c, y = np.broadcast_arrays(np.asarray(amount, dtype=float), np.asarray(distance, dtype=float))
    safe = np.maximum(y, 1e-12)
    return np.where(y > 1e-12, np.sqrt(c / safe) * special.iv(1, 2 * np.sqrt(c * safe)), c)


def influence(source: Any, mode: Any, time: float, beta: float, slope: float) -> Any:
    """g_m(s) = lambda e^(lambda s)/(e^lambda - 1) psi_{a_m t}(Y), Y = ln[(e^lambda - 1)/(e^(lambda s) - 1)]: the limit of
    n E[cos m(theta_n(t) - theta_s(0))] for a source at s in (0, 1).
    """
    s = np.asarray(source, dtype=float)
    distance = np.log(np.expm1(slope) / np.expm1(slope * s))
    return slope * np.exp(slope * s) / np.expm1(slope) * response(mode_rate(mode, beta) * time, distance)


def weights(tokens: int, slope: float) -> Any:
    """w_jk proportional to e^(-lambda (j-k)/n) for k < j, rows summing to 1 (the first is zero). Shape (n, n)."""
    index = np.arange(tokens)
    matrix = np.tril(np.exp(-slope * (index[:, None] - index[None, :]) / tokens), -1)
    total = matrix.sum(axis=1, keepdims=True)
    return np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)


def finite_influence(tokens: int, mode: int, time: float, beta: float, slope: float) -> Any:
    """n [exp(a_m t W)]_js for all readers j and sources s: what g_m is before the sums over tokens become integrals. Shape (n, n).

    To first order in the correlations c_j = E[e^(im(theta_j(t) - theta_s(0)))] obeys dc_j/dt = a_m sum_k w_jk c_k (ours; the
    limit n -> infinity of its last row is `influence`).
    """
    return tokens * linalg.expm(float(mode_rate(mode, beta)) * time * weights(tokens, slope))


def mode_weights(width: float, modes: int) -> Any:
    """w_m = e^(-pi^2 m^2/(2 M^2)) for m = 1..modes."""
    m = np.arange(1, modes + 1)
    return np.exp(-(math.pi**2) * m**2 / (2 * width**2))


def profile(source: Any, time: float, beta: float, slope: float, width: float = 8.0, modes: int = 20) -> Any:
    """S_t(s) = sum_m w_m g_m(s)."""
    s = np.asarray(source, dtype=float)
    each = [w * influence(s, m, time, beta, slope) for m, w in enumerate(mode_weights(width, modes), start=1)]
    return np.sum(each, axis=0)


def critical_time(beta: float, slope: float, width: float = 8.0, modes: int = 20) -> float:
    """t_crit = 2 (1 - e^-lambda) sum(w a)/sum(w a^2): until then the profile rises towards the reader."""
    w, a = mode_weights(width, modes), mode_rate(np.arange(1, modes + 1), beta)
    return float(-2.0 * np.expm1(-slope) * (w @ a) / (w @ a**2))


def lowest_place(time: float, beta: float, slope: float, width: float = 8.0, modes: int = 20) -> float:
    """Where the profile is lowest: what is lost (1: it falls all the way to the reader)."""
    grid = np.linspace(1e-3, 1.0, 1000)
    values = profile(grid, time, beta, slope, width, modes)
    k = int(np.argmin(values))
    if k in (0, grid.size - 1):
        return float(grid[k])
    found: Any = optimize.minimize_scalar(
        lambda s: float(profile(s, time, beta, slope, width, modes)),
        bounds=(grid[k - 1], grid[k + 1]),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(found.x)
