"""A model as plain arrays: what the compiled kernels read."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import UnsupportedError
from metastable.kernels import reference
from metastable.kernels.cpu.support import prefix_loss, refusal, series_refusal, total_error
from metastable.kernels.cpu.vector import LANES
from metastable.kernels.expansion import whole
from metastable.kernels.minimax import LOG2E
from metastable.kernels.protocol import Interaction
from metastable.model import Attention, Full

SMALL_DIMENSION = 4
"""Up to this dimension one system is summed row by row; above it, in tiles of rows (see `tiles`)."""

DEFAULT_MODE_TOLERANCE = 1e-12
"""Error of the velocity that the number of modes of a series is chosen for (saddles amplify errors: keep it small)."""

LARGEST_CIRCLE = 300.0
"""|beta| up to which exp(2 |beta|) and sums of it are safe: where a token's own weight is not the largest, `circle` goes this far."""

CIRCLE, GENERAL, TILES, CIRCLE_SERIES, MATRIX_SERIES, SPHERE_SERIES = range(6)
"""Kernels: direct sums on the circle with Q = K = V = I (`circle`), in small dimension (`general`), in large (`tiles`); series on
the circle with Q = K = V = I and with general matrices (`fourier`), and on the sphere (`harmonics`)."""

SERIES = (CIRCLE_SERIES, MATRIX_SERIES, SPHERE_SERIES)


class Problem(NamedTuple):
    """One model and a number of tokens, ready for compiled code; `kind` says which kernel serves it.

    Exponents are in base 2 (`beta`, `slope` carry log2 e). `value = V`, `rest = V - axial I`: the drift is computed as
    `V D + rest x` with `D` the weighted mean of `x_j - x_k`, so that a force far below rounding of V x survives.
    Both are stored transposed, and like `bilinear` flat and padded to whole vectors, so that inner loops run along memory: row b,
    column a of head h at `(h dim + b) wide + a` holds V_ab. Frozen tokens are padded likewise, with weight zero.

    Where tokens have masses (`weighed`), `lift` is log2 of them, padded by a vector: a mass is an addition to all logits of its token.

    The norm's factor 1/s is `amplitude (t + 1)^-decay`, over the length of the attention sum where `by_length` (see `rules`).

    Series: `modes` (or the degree, on the sphere); on the circle `weight[m]` of `cos(m t)` and `ratio[m] = m/beta`; on the sphere
    `rise` and `fall`, the coefficients of the recurrence (see `harmonics`); `sums` vectors of prefix sums are kept. The first `whole`
    tokens, of mass `whole_mass` together, see one another wholly. Weights are relative to e^|beta|: `own` is what a token's own
    weight, per mass, takes off its sum where it does not see itself (0 where it does), `shrink` = e^-|beta|. What is added is
    multiplied by `mirror`, -1 where tokens repel. `frozen_sums`, one number for each vector of sums, and `frozen_mass` are what frozen
    tokens add to everybody's.
    """

    kind: int
    tokens: int
    first: int
    dim: int
    wide: int
    components: int
    intervals: np.ndarray
    visible: FloatArray
    beta: FloatArray
    slope: FloatArray
    weighed: int
    lift: FloatArray
    bilinear: FloatArray
    bounded: np.ndarray
    value: FloatArray
    rest: FloatArray
    axial: FloatArray
    frozen: FloatArray
    mass: FloatArray
    frozen_count: int
    unnormalized: int
    amplitude: float
    decay: float
    by_length: int
    modes: int
    weight: FloatArray
    ratio: FloatArray
    rise: FloatArray
    fall: FloatArray
    sums: int
    whole: int
    whole_mass: float
    masses: FloatArray
    own: float
    shrink: float
    mirror: float
    frozen_sums: FloatArray
    frozen_mass: float


def _kind(model: Attention, tokens: int, interaction: str) -> int:
    """Which kernel serves the model."""
    plain = model.is_identity and model.norm.law(0.0).length_power == 0.0
    if interaction == "series":
        return SPHERE_SERIES if model.dim == 3 else CIRCLE_SERIES if plain else MATRIX_SERIES
    if (
        model.dim == 2
        and plain
        and model.weights == "softmax"
        and not any(model.slopes)
        and _own_logit_will_do(model, tokens)
    ):
        return CIRCLE
    return GENERAL if model.dim <= SMALL_DIMENSION else TILES


def _own_logit_will_do(model: Attention, tokens: int) -> bool:
    """True when weights relative to a token's own stay in range: always where that is the largest, else up to some beta.

    (`circle` knows no masses.)
    """
    beta = model.all_heads[0].beta
    if model.masses is not None:
        return False
    return abs(beta) < LARGEST_CIRCLE or (beta >= 0 and model.mask.sees_self(tokens))


def _series(model: Attention, kind: int, tokens: int, tolerance: float) -> dict[str, Any]:
    """The coefficients of the series (placeholders for direct sums)."""
    empty = np.zeros(1)
    result: dict[str, Any] = {"modes": 0, "weight": empty, "ratio": empty, "rise": empty, "fall": empty}
    beta = model.all_heads[0].beta
    if kind not in SERIES:
        return {**result, "sums": 2}
    loss = total_error(model, tokens)[0] if isinstance(model.mask, Full) else prefix_loss(model, tokens)
    if kind == CIRCLE_SERIES:
        from metastable.kernels.fourier import circle_series

        modes, weight, ratio = circle_series(beta, tokens, tolerance, loss)
        result.update(modes=modes, weight=weight, ratio=ratio)
    elif kind == MATRIX_SERIES:
        from metastable.kernels.fourier import matrix_modes

        # The coefficients differ from token to token: sums are kept without them.
        modes = matrix_modes(model, tokens, tolerance, loss)
        result.update(modes=modes, weight=np.ones(modes + 1))
    elif kind == SPHERE_SERIES:
        from metastable.kernels.harmonics import sphere_series

        degree, ratio, rise, fall = sphere_series(beta, tokens, tolerance, loss)
        result.update(modes=degree, ratio=ratio, rise=rise, fall=fall)
    # `rise` has one entry per harmonic, and one in all on the circle. With a total there are coefficients of the force as well.
    sums = 2 * max(result["rise"].size, result["modes"] + 1)
    return {**result, "sums": 2 * sums if kind == CIRCLE_SERIES and whole(model, tokens) else sums}


def _totals(model: Attention, kind: int, tokens: int, masses: FloatArray) -> dict[str, Any]:
    """What a series needs to know about tokens that see one another wholly (placeholders for others)."""
    beta, count = model.all_heads[0].beta, whole(model, tokens) if kind in SERIES else 0
    if not count:
        return {"whole": 0, "whole_mass": 0.0, "masses": masses, "own": 0.0, "shrink": 1.0, "mirror": 1.0}
    shrink = float(np.exp(-abs(beta))) if model.weights == "unnormalized" else 1.0
    weight = shrink if model.weights == "unnormalized" else float(np.exp(beta - abs(beta)))
    return {
        "whole": count,
        "whole_mass": float(masses[:count].sum()),
        "masses": masses,
        "own": 0.0 if model.mask.sees_self(tokens) else weight,
        "shrink": shrink,
        # A general Q^T K carries the sign of beta into the queries.
        "mirror": -1.0 if beta < 0 and kind != MATRIX_SERIES else 1.0,
    }


def _frozen_sums(model: Attention, series: dict[str, Any], mirror: float) -> FloatArray:
    """What frozen tokens add to the sums of a series, in their order (zero where there are none, or where sums are direct)."""
    result = np.zeros(series["sums"])
    if model.frozen is None or series["modes"] == 0:
        return result
    tokens, weights = mirror * np.asarray(model.frozen.tokens), np.asarray(model.frozen.weights, dtype=float)
    if model.dim == 3:
        from metastable.kernels.harmonics import harmonic_sums

        found = harmonic_sums(tokens, weights, series["rise"], series["fall"])
    else:
        from metastable.kernels.fourier import mode_sums

        found = series["weight"][1:, None] * mode_sums(tokens, weights, series["modes"])
    result[: found.size] = found.ravel()
    return result


def width_of(dim: int) -> int:
    """The dimension in whole vectors (in pairs of vectors for `tiles`)."""
    step = LANES if dim <= SMALL_DIMENSION else 2 * LANES
    return -(-dim // step) * step


def _flat(matrices: np.ndarray) -> FloatArray:
    """Matrices (h, d, d) flat, with rows padded to `width_of(d)`."""
    heads, dim, _ = matrices.shape
    padded = np.zeros((heads, dim, width_of(dim)))
    padded[:, :, :dim] = matrices
    return padded.ravel()


def _heads(model: Attention, tokens: int) -> dict[str, np.ndarray]:
    """The heads as stacked arrays."""
    dim = model.dim
    identity = np.eye(dim)
    bilinear = np.array([identity if h.bilinear is None else h.bilinear for h in model.all_heads])
    value = np.array([identity if h.value is None else h.value for h in model.all_heads])
    # A multiple of the identity has no tangent part of its own: subtract it exactly.
    axial = np.array([v[0, 0] if np.array_equal(v, v[0, 0] * identity) else np.trace(v) / dim for v in value])
    return {
        "beta": LOG2E * np.array([h.beta for h in model.all_heads]),
        "slope": LOG2E * np.array(model.slopes, dtype=float),
        "bilinear": _flat(bilinear),
        # With Q^T K = I no logit exceeds beta, which the token itself reaches; unless tokens repel, do not see themselves or
        # have masses.
        "bounded": (model.masses is None and model.mask.sees_self(tokens))
        & np.array([h.bilinear is None and h.beta >= 0 for h in model.all_heads]),
        "value": _flat(value.transpose(0, 2, 1)),
        "rest": _flat((value - axial[:, None, None] * identity).transpose(0, 2, 1)),
        "axial": axial,
    }


def _frozen(model: Attention) -> dict[str, object]:
    """Frozen tokens, coordinates first, padded to whole vectors."""
    tokens = np.empty((0, model.dim)) if model.frozen is None else model.frozen.tokens
    mass = np.empty(0) if model.frozen is None else np.asarray(model.frozen.weights)
    seen = mass > 0
    tokens, mass = tokens[seen], mass[seen]
    width = -(-len(mass) // LANES) * LANES
    padded = np.zeros((model.dim, width))
    padded[:, : len(mass)] = tokens.T
    weights = np.zeros(width)
    weights[: len(mass)] = mass
    return {"frozen": padded.ravel(), "mass": weights, "frozen_count": len(mass), "frozen_mass": float(weights.sum())}


def _visible(model: Attention, intervals: np.ndarray) -> FloatArray:
    """What unnormalised weights are divided by, (heads, tokens): how many tokens each one sees, or their mass, or the sum of exp(bias);
    and the weights of the frozen ones."""
    heads, tokens = len(model.all_heads), len(intervals)
    if model.weights != "unnormalized":
        return np.zeros((heads, 0))
    if model.bias is not None:
        return np.exp(reference.log_divisors(model, tokens))
    start, stop = intervals[:, :, 0], intervals[:, :, 1]
    masses = np.ones(tokens) if model.masses is None else model.masses
    # Every second sum is that of a range (of one entry where it is empty), added up by itself: masses may be of any sizes.
    sums = np.add.reduceat(np.append(masses, 0.0), intervals.ravel())[::2].reshape(start.shape)
    frozen = 0.0 if model.frozen is None else float(np.asarray(model.frozen.weights).sum())
    return np.tile(np.where(stop > start, sums, 0.0).sum(axis=1) + frozen, (heads, 1))


def prepare(
    model: Attention,
    tokens: int,
    *,
    first: int = 0,
    interaction: Interaction = "direct",
    chart: Literal["ambient", "angle"] = "ambient",
    mode_tolerance: float = DEFAULT_MODE_TOLERANCE,
) -> Problem:
    """The arrays for `model` on `tokens` tokens, or `UnsupportedError` with the engine that can do it."""
    reason = refusal(model, tokens) or (series_refusal(model, tokens) if interaction == "series" else None)
    if reason is not None:
        raise UnsupportedError(reason)
    model.check_count(tokens)
    kind = _kind(model, tokens, interaction)
    law = model.norm.law(0.0)
    intervals = model.mask.intervals(tokens)
    assert intervals is not None
    masses = np.ones(tokens) if model.masses is None else np.array(model.masses, dtype=float)
    series, totals = _series(model, kind, tokens, mode_tolerance), _totals(model, kind, tokens, masses)
    return Problem(
        kind=kind,
        tokens=tokens,
        first=first,
        dim=model.dim,
        wide=width_of(model.dim),
        components=1 if chart == "angle" else model.dim,
        intervals=np.ascontiguousarray(intervals),
        visible=_visible(model, intervals),
        weighed=int(model.masses is not None),
        lift=np.concatenate([np.log2(masses), np.zeros(LANES)]),
        unnormalized=int(model.weights == "unnormalized"),
        amplitude=float(law.amplitude),
        decay=float(law.decay),
        by_length=int(law.length_power == 1.0),
        frozen_sums=_frozen_sums(model, series, totals["mirror"]),
        **series,  # type: ignore[arg-type]
        **totals,  # type: ignore[arg-type]
        **_heads(model, tokens),  # type: ignore[arg-type]
        **_frozen(model),  # type: ignore[arg-type]
    )
