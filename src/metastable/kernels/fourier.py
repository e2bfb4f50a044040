"""Sums on the circle in O(n M): the interaction as a short Fourier series, sums over earlier tokens as prefix sums, sums over all
tokens as one total.

For Q = K = V = I the weight of token j for token k is a function of one angle,

    exp(beta (cos t - 1)) = a_0 + sum_{m>=1} a_m cos(m t),   a_0 = e^-beta I_0(beta),  a_m = 2 e^-beta I_m(beta),

and the force is its derivative, -(1/beta) d/dt. With prefix sums C_m = a_m sum_{j<=k} cos(m th_j), S_m likewise,

    Z_k = sum_m C_m cos(m th_k) + S_m sin(m th_k),    Z_k dth_k/dt = sum_m (m/beta) (S_m cos(m th_k) - C_m sin(m th_k)).

Tokens that see one another wholly (full attention, or a prefix) all have the same C_m and S_m: they are summed first, and what is
left is a trigonometric polynomial to evaluate at each token. A mass multiplies what a token adds. For beta < 0
`exp(beta cos t) = exp(|beta| cos(t - pi))`: the same series, for tokens that are mirrored before they are added.

About 7 sqrt(beta) modes suffice. The floor of the error is rounding of the sums, about 1e-16 times the number of tokens, so
series are for short horizons, never for metastable forces.

`cos(m th)` comes from the recurrence `cos((m+1) th) = 2 cos(th) cos(m th) - cos((m-1) th)`: two operations per mode. Vectors hold
members of an ensemble, or stretches of one long sequence: then a first pass sums each stretch, so that every stretch
knows what lies before it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.vector import LANES, fill, load, root, store, where
from metastable.kernels.expansion import truncated
from metastable.kernels.minimax import LOG2E
from metastable.model import Attention

SMALLEST_BETA = 1e-13
"""Below it beta is replaced by it: the coefficients keep their limits and m/beta stays finite."""

MODES_LIMIT = 100_000


@lru_cache(256)
def _modes_for(beta: float, tolerance: float) -> tuple[int, np.ndarray]:
    from scipy.special import ive

    beyond = f"more than {MODES_LIMIT} modes"
    return truncated(lambda m: np.where(m == 0, 1.0, 2.0) * ive(m, beta), beta, tolerance, MODES_LIMIT, beyond)


def modes_for(beta: float, tolerance: float) -> tuple[int, np.ndarray]:
    """Number of modes M whose neglected tail, in weight and in force, is below `tolerance`; and the coefficients a_0..a_M."""
    modes, coefficients = _modes_for(beta, tolerance)
    return modes, coefficients.copy()


def pair_tolerance(tokens: int, tolerance: float, loss: float = 1.0) -> float:
    """Tail allowed per pair so that `tokens` pairs stay within `tolerance`, but not below their rounding, about 1e-15 each.

    Where the weights of a token add up to less than one they are divided by as much: `loss`.
    """
    return max(tolerance / tokens, 1e-15) / loss


def circle_series(beta: float, tokens: int, tolerance: float, loss: float = 1.0) -> tuple[int, np.ndarray, np.ndarray]:
    """Modes M, coefficients a_0..a_M (of |beta|) and m/beta for Q = K = V = I."""
    size = max(abs(beta), SMALLEST_BETA)
    modes, weight = modes_for(size, pair_tolerance(tokens, tolerance, loss))
    return modes, weight, np.arange(modes + 1) / (-size if beta < 0 else size)


def matrix_modes(model: Attention, tokens: int, tolerance: float, loss: float = 1.0) -> int:
    """Number of modes for a general Q^T K: that of the largest `beta |M^T x|`."""
    head = model.all_heads[0]
    size = max(abs(head.beta) * head.bilinear_size, SMALLEST_BETA)
    modes, _ = modes_for(size, pair_tolerance(tokens, tolerance, loss))
    # One more: the mean position also needs the neighbours of each coefficient.
    return modes + 1


def mode_sums(tokens: np.ndarray, weights: np.ndarray, modes: int) -> np.ndarray:
    """Sums over tokens (k, 2) of their weights times (cos, sin)(m th), (modes, 2), from m = 1 on."""
    phase = np.outer(np.arange(1, modes + 1), np.arctan2(tokens[:, 1], tokens[:, 0]))
    return np.stack([np.cos(phase) @ weights, np.sin(phase) @ weights], axis=1)


# ------------------------------------------------------------------------------------------- sums over stretches


@inlined
def _start(x, y, mass=1.0):
    """`mass` times (cos, sin)(m th) for m = 1 and for m = 0 behind it, from those of th."""
    return x * mass, y * mass, fill(0.0) + mass, fill(0.0)


@inlined
def _next(twice, wave):
    """From modes m and m - 1 to m + 1 and m; `twice` is 2 cos th."""
    x, y, x_old, y_old = wave
    return twice * x - x_old, twice * y - y_old, x, y


@inner
def add_stretch(problem, stretch, last):
    """Add `weight[m] mass (cos, sin)(m th)` of the first `last` tokens of each lane to the sums (two vectors per mode).

    Two at a time share the loads.
    """
    length, sums, weight, mirror = stretch.length, stretch.sums, problem.weight, problem.mirror
    for i in range(0, last, 2):
        # An odd token out is added with weight zero in place of the second.
        present = 1.0 if i + 1 < last else 0.0
        j = i + 1 if i + 1 < last else i
        x, u = load(stretch.x, i * LANES) * mirror, load(stretch.x, j * LANES) * mirror
        y, v = load(stretch.x, (length + i) * LANES) * mirror, load(stretch.x, (length + j) * LANES) * mirror
        first = _start(x, y, load(stretch.mass, i * LANES))
        second = _start(u, v, load(stretch.mass, j * LANES) * present)
        for m in range(1, problem.modes + 1):
            place = 2 * LANES * (m - 1)
            store(sums, place, load(sums, place) + weight[m] * first[0] + weight[m] * second[0])
            store(sums, place + LANES, load(sums, place + LANES) + weight[m] * first[1] + weight[m] * second[1])
            first, second = _next(x + x, first), _next(u + u, second)


@inner
def circle_stretch(problem, stretch, first, out):
    """Angular velocities of the tokens of each lane from `first` on, one after the other, for Q = K = V = I; the sums, of all before
    `first`, are overwritten.

    Two tokens at a time, x + i y and u + i v, share the loads of the sums.
    """
    length, sums, weight, ratio = stretch.length, stretch.sums, problem.weight, problem.ratio
    earlier = load(stretch.before, 0)
    for i in range(first, length, 2):
        j = i + 1 if i + 1 < length else i
        x, u = load(stretch.x, i * LANES), load(stretch.x, j * LANES)
        y, v = load(stretch.x, (length + i) * LANES), load(stretch.x, (length + j) * LANES)
        one, two = _start(x, y), _start(u, v)
        total_x = (earlier + (i - first + 1.0)) * weight[0]
        total_u = (earlier + (i - first + 2.0)) * weight[0]
        force_x = force_u = fill(0.0)
        for m in range(1, problem.modes + 1):
            place = 2 * LANES * (m - 1)
            c = load(sums, place) + weight[m] * one[0]
            s = load(sums, place + LANES) + weight[m] * one[1]
            total_x = total_x + c * one[0]
            total_x = total_x + s * one[1]
            force_x = force_x + ratio[m] * (s * one[0] - c * one[1])
            c = c + weight[m] * two[0]
            s = s + weight[m] * two[1]
            store(sums, place, c)
            store(sums, place + LANES, s)
            total_u = total_u + c * two[0]
            total_u = total_u + s * two[1]
            force_u = force_u + ratio[m] * (s * two[0] - c * two[1])
            one, two = _next(x + x, one), _next(u + u, two)
        store(out, i * LANES, force_x / total_x)
        if j > i:
            store(out, j * LANES, force_u / total_u)


@inlined
def divisor(problem, stretch, i, weight_sum):
    """What the force on token i of each lane is divided by: the sum of weights, or the mass of those whom it sees (times e^-|beta|, as
    the weights are), without the token's own part where it does not see itself."""
    seen = load(stretch.before, 0) * problem.shrink if problem.unnormalized else weight_sum
    return seen - problem.own * load(stretch.mass, i * LANES)


@inner
def circle_total(problem, stretch, last, out):
    """Angular velocities of the first `last` tokens of each lane, who see one another wholly, for Q = K = V = I.

    The sums are those of everybody. Times m/beta they are the coefficients of the force; these are put behind them.
    """
    length, sums, modes = stretch.length, stretch.sums, problem.modes
    behind = 2 * LANES * modes
    for m in range(1, modes + 1):
        for place in range(2 * LANES * (m - 1), 2 * LANES * m, LANES):
            store(sums, behind + place, load(sums, place) * problem.ratio[m])
    constant = load(stretch.before, 0) * problem.weight[0]
    for i in range(0, last, 2):
        j = i + 1 if i + 1 < last else i
        x, u = load(stretch.x, i * LANES), load(stretch.x, j * LANES)
        y, v = load(stretch.x, (length + i) * LANES), load(stretch.x, (length + j) * LANES)
        one, two = _start(x, y), _start(u, v)
        total_x = total_u = constant
        force_x = force_u = fill(0.0)
        for m in range(1, modes + 1):
            place = 2 * LANES * (m - 1)
            c, s = load(sums, place), load(sums, place + LANES)
            total_x = total_x + c * one[0]
            total_u = total_u + c * two[0]
            total_x = total_x + s * one[1]
            total_u = total_u + s * two[1]
            c, s = load(sums, behind + place), load(sums, behind + place + LANES)
            force_x = force_x + s * one[0]
            force_u = force_u + s * two[0]
            force_x = force_x - c * one[1]
            force_u = force_u - c * two[1]
            one, two = _next(x + x, one), _next(u + u, two)
        store(out, i * LANES, force_x / divisor(problem, stretch, i, total_x))
        if j > i:
            store(out, j * LANES, force_u / divisor(problem, stretch, j, total_u))


# ------------------------------------------------------------------------------------------- general Q, K, V


@inner
def _bessel(kappa, modes, table):
    """`e^-kappa I_m(kappa)` for m = 0..modes in each lane, into `table` (one vector per mode).

    Backward ratios r_m = I_m / I_{m-1} = kappa / (2 m + kappa r_{m+1}) (stable; Olver et al., DLMF 10.33), then
    I_0 = 1 / (1 + 2 sum_m r_1 ... r_m) since e^kappa = I_0 + 2 sum I_m.
    """
    ratio = fill(0.0)
    for m in range(modes + 16, modes, -1):
        ratio = kappa / (2.0 * m + kappa * ratio)
    for m in range(modes, 0, -1):
        ratio = kappa / (2.0 * m + kappa * ratio)
        store(table, m * LANES, ratio)
    product = fill(1.0)
    norm = fill(1.0)
    for m in range(1, modes + 1):
        product = product * load(table, m * LANES)
        store(table, m * LANES, product)
        norm = norm + product + product
    scale = 1.0 / norm
    store(table, 0, scale)
    for m in range(1, modes + 1):
        store(table, m * LANES, load(table, m * LANES) * scale)


@inner
def matrix_stretch(problem, stretch, whole):
    """Weighted mean position of what each token sees, for a general Q^T K (the sums are plain, not weighted), into `mean`.

    The first `whole` tokens of each lane see one another wholly and are in the sums; each later one is added as it comes.

    With M^T x_k = r (cos phi, sin phi) and kappa = beta r the weights are exp(kappa (cos(phi - th_j) - 1)), so
    Z = I_0 n + 2 sum I_m (C_m cos m phi + S_m sin m phi) up to e^-kappa. The real part of sum_j w_j e^{i(th_j - phi)} has
    coefficients I_{m-1} + I_{m+1} (derivative in kappa), the imaginary part (2 m / kappa) I_m (derivative in the angle).
    """
    length, sums, table, mean, wide = stretch.length, stretch.sums, stretch.table, stretch.mean, problem.wide
    beta = problem.beta[0] / LOG2E
    m00, m01 = beta * problem.bilinear[0], beta * problem.bilinear[1]
    m10, m11 = beta * problem.bilinear[wide], beta * problem.bilinear[wide + 1]
    for i in range(length):
        x, y = load(stretch.x, i * LANES), load(stretch.x, (length + i) * LANES)
        query_x = m00 * x + m10 * y
        query_y = m01 * x + m11 * y
        kappa = root(query_x * query_x + query_y * query_y)
        safe = where(kappa, kappa, 1.0)
        phi_x = where(kappa, query_x / safe, 1.0)
        phi_y = where(kappa, query_y / safe, 0.0)
        _bessel(kappa, problem.modes + 1, table)
        later = 1.0 if i >= whole else 0.0
        count = load(stretch.before, 0) + later * (i - whole + 1.0)
        lower = load(table, 0)
        middle = load(table, LANES)
        z = lower * count
        along = middle * count
        across = fill(0.0)
        own, query = _start(x, y, later), _start(phi_x, phi_y)
        for m in range(1, problem.modes + 1):
            place = 2 * LANES * (m - 1)
            c = load(sums, place) + own[0]
            s = load(sums, place + LANES) + own[1]
            store(sums, place, c)
            store(sums, place + LANES, s)
            upper = load(table, (m + 1) * LANES)
            even = c * query[0] + s * query[1]
            z = z + 2.0 * (middle * even)
            along = along + (lower + upper) * even
            # (2 m / kappa) I_m = I_{m-1} - I_{m+1}: finite also for kappa = 0.
            across = across + (lower - upper) * (s * query[0] - c * query[1])
            lower, middle = middle, upper
            own, query = _next(x + x, own), _next(phi_x + phi_x, query)
        along = along / z
        across = across / z
        store(mean, i * LANES, along * phi_x - across * phi_y)
        store(mean, (length + i) * LANES, along * phi_y + across * phi_x)
