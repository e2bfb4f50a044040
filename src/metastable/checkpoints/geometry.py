"""Geometry of token clouds, layer by layer: cosines, effective rank, clusters, Renyi and strong centers, and whether the order
of the text matters for them.

All functions take unit vectors, (layer, token, feature), as `to_sphere` returns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable._checks import FloatArray, count, matrix, number, real_array, tokens, vector
from metastable._checks import seed as check_seed
from metastable.analysis.centers import consumed, renyi_centers
from metastable.checkpoints import arguments
from metastable.checkpoints.linear import cloud_distances
from metastable.errors import InvalidInputError, TokenError

if TYPE_CHECKING:
    import xarray as xr

DELTAS = tuple(round(0.1 * step, 1) for step in range(1, 16))
"""Default distances, in radians. Independent tokens in high dimension are pi/2 = 1.57 apart."""


def mean_cosine(x: FloatArray) -> float:
    """Mean of <x_i, x_j> over i != j, for unit rows x (tokens, dim): (|sum x|^2 - n) / (n (n - 1))."""
    total = x.sum(axis=0)
    return float((total @ total - len(x)) / (len(x) * (len(x) - 1)))


def effective_rank(x: FloatArray) -> float:
    """exp of the entropy of the normalised singular values of x (tokens, dim); Roy and Vetterli, EUSIPCO 2007.

    Between 1 (all tokens on a line) and min(tokens, dim) (all directions alike).
    """
    cloud = matrix(x, "x", error=TokenError)
    if not cloud.any():
        raise TokenError("x holds no token that is not zero, so it has no directions to count")
    strengths = np.linalg.svd(cloud, compute_uv=False)
    share = strengths / strengths.sum()
    return float(np.exp(-(share * np.log(np.where(share > 0, share, 1.0))).sum()))


def strong_gaps(distances: FloatArray) -> FloatArray:
    """Distance of each token to the nearest one before it, min_{t<s} d(s, t), shape (tokens,); infinite for the first.

    Token s is a strong center at delta exactly when its gap exceeds delta, so one pass answers for all delta.
    """
    earlier = np.tri(len(distances), k=-1, dtype=bool)
    return np.where(earlier, distances, np.inf).min(axis=1)


def renyi_count(distances: FloatArray, delta: float) -> int:
    """Number of Renyi centers, from a matrix of distances: `renyi_centers` without going back to 576 coordinates each time."""
    free = np.ones(len(distances), dtype=bool)
    centers = 0
    for token in range(len(distances)):
        if free[token]:
            centers += 1
            free &= distances[token] > delta
    return centers


def linkage_heights(distances: FloatArray) -> FloatArray:
    """Distances at which clusters merge (single linkage), shape (tokens - 1,), increasing.

    Of n tokens n - #{heights < delta} clusters are left at delta, the count of `cluster_count`, for all delta at once.
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    symmetric = 0.5 * (distances + distances.T)
    np.fill_diagonal(symmetric, 0.0)
    return linkage(squareform(symmetric, checks=False), "single")[:, 2]


def exchangeable_strong_count(distances: FloatArray, delta: float) -> float:
    """Mean number of strong centers over all orders of this cloud, exactly: sum_i 1/(1 + k_i), k_i = others within delta.

    Token i is a strong center when it comes before all its k_i neighbours, which happens in 1/(1 + k_i) of the orders. This is
    the plug-in form of E[1/mu(B_delta)] (Lemma C.1 of arXiv:2411.04990) with mu the empirical measure.
    """
    near = arguments.distances(distances) <= number(delta, "delta", 0.0)
    # A token is near itself, whatever rounding says.
    return float((1.0 / near.sum(axis=1).clip(1)).sum())


def exchangeable_gap_sum(distances: FloatArray) -> float:
    """Mean of sum_{s>0} min_{t<s} d(s, t) over all orders, exactly.

    The nearest earlier token of i is its j-th nearest neighbour with probability 1/(j (j + 1)): among i and its j nearest,
    that neighbour comes first and i second, in front of the others.
    """
    others = np.sort(distances + np.diag(np.full(len(distances), np.inf)), axis=1)[:, :-1]
    rank = np.arange(1, len(distances))
    return float((others / (rank * (rank + 1))).sum())


def _cloud(states: xr.Dataset | FloatArray) -> FloatArray:
    """Unit vectors (layer, token, feature) from a dataset of `to_sphere` or an array."""
    given = states if isinstance(states, (np.ndarray, list, tuple)) else arguments.dataset(states)["x"].values
    x = real_array(given, "states", TokenError)
    if x.ndim == 2:
        x = x[None]
    if x.ndim != 3 or x.shape[1] < 3 or not x.size:
        raise InvalidInputError(f"tokens must have shape (layer, token, feature) with at least 3 tokens, not {x.shape}")
    tokens(x[0], "states")
    if np.abs(np.einsum("ltf,ltf->lt", x, x) - 1).max() > 1e-6:
        raise InvalidInputError("tokens are not unit vectors; pass states through to_sphere first")
    return x


def _depths(states: xr.Dataset | FloatArray, size: int) -> tuple[str, np.ndarray]:
    """What numbers the clouds: `"layer"` and the layers, or for a run `"time"` and its times (a looped layer has many)."""
    if isinstance(states, (np.ndarray, list, tuple)):
        return "layer", np.arange(size)
    axis = str(states["x"].dims[0])
    return axis, states[axis].values if axis in states.coords else np.arange(size)


def _children(axis: str, depths: np.ndarray) -> list[int]:
    """Which child of a seed belongs to each cloud: that of its layer's number, so that it does not matter what else was chosen; in a
    run, whose times need not be whole, that of its place.
    """
    named = axis == "layer" and depths.dtype.kind in "iu" and depths.size and depths.min() >= 0
    return [int(number) for number in depths] if named else list(range(len(depths)))


def _attributes(states: xr.Dataset | FloatArray) -> dict[str, Any]:
    return {} if isinstance(states, (np.ndarray, list, tuple)) else dict(states.attrs)


def token_geometry(states: xr.Dataset | FloatArray, deltas: Sequence[float] = DELTAS) -> xr.Dataset:
    """Shape of the token cloud of every layer.

    Args:
        states: from `to_sphere`; or the dataset of a run, whose results are over `time` instead of layer.
        deltas: distances (radians) at which centers and clusters are counted.

    Returns:
        Dataset over layer: `mean_cosine`, `mean_cosine_centered` (the mean token subtracted first), `effective_rank`, `nearest`
        (median distance to the nearest other token); over (layer, delta): `renyi`, `strong` (centers in the order of the text),
        `strong_exchangeable` (exact mean of `strong` over all orders) and `clusters` (groups linked by steps below delta).
    """
    import xarray as xr

    x = _cloud(states)
    sweep = vector(deltas, "deltas")
    if not sweep.size or (sweep <= 0).any() or (sweep > np.pi).any():
        raise InvalidInputError("deltas must be distances between 0 and pi")
    per_layer = np.empty((len(x), 4))
    per_delta = np.empty((len(x), sweep.size, 4))
    for place, cloud in enumerate(x):
        distances = cloud_distances(cloud)
        centered = cloud - cloud.mean(axis=0)
        length = np.linalg.norm(centered, axis=1, keepdims=True)
        centered = np.divide(centered, length, out=np.zeros_like(centered), where=length > 0)
        others = distances + np.diag(np.full(len(cloud), np.inf))
        per_layer[place] = (
            mean_cosine(cloud),
            mean_cosine(centered),
            effective_rank(cloud),
            np.median(others.min(axis=1)),
        )
        gaps, heights = strong_gaps(distances), linkage_heights(distances)
        for step, delta in enumerate(sweep):
            per_delta[place, step] = (
                renyi_count(distances, float(delta)),
                (gaps > delta).sum(),
                exchangeable_strong_count(distances, float(delta)),
                len(cloud) - (heights < delta).sum(),
            )
    layer_names = ("mean_cosine", "mean_cosine_centered", "effective_rank", "nearest")
    delta_names = ("renyi", "strong", "strong_exchangeable", "clusters")
    axis, depths = _depths(states, len(x))
    variables: dict[str, Any] = {name: (axis, per_layer[:, i]) for i, name in enumerate(layer_names)}
    variables.update({name: ((axis, "delta"), per_delta[..., i]) for i, name in enumerate(delta_names)})
    coordinates = {axis: depths, "delta": sweep}
    return xr.Dataset(variables, coords=coordinates, attrs={**_attributes(states), "tokens": x.shape[1]})


def permuted_gap_sums(distances: FloatArray, permutations: int, generator: np.random.Generator) -> FloatArray:
    """sum_{s>0} min_{t<s} d(s, t) in `permutations` random orders of the cloud, shape (permutations,)."""
    size = len(distances)
    order = np.argsort(distances + np.diag(np.full(size, np.inf)), axis=1, kind="stable")[:, :-1]
    nearest = np.take_along_axis(distances, order, axis=1)
    sums = np.empty(permutations)
    for place in range(permutations):
        rank = generator.permutation(size)
        earlier = rank[order] < rank[:, None]
        # The first neighbour, by distance, that comes earlier; the token of rank 0 has none.
        found = nearest[np.arange(size), earlier.argmax(axis=1)]
        sums[place] = found[rank > 0].sum()
    return sums


def exchangeability_test(states: xr.Dataset | FloatArray, *, permutations: int = 199, seed: int = 0) -> xr.Dataset:
    """Does the order of the text matter for the strong centers? One test per layer.

    The statistic T = sum_{s>0} min_{t<s} d(s, t) is the integral over delta of the number of strong centers (without the
    first token). For an exchangeable cloud all orders are alike: its mean over orders is exact (`exchangeable_gap_sum`), its
    spread comes from random orders. Fewer strong centers than chance (z < 0): tokens resemble some that stand before them more
    than a random order would have it.

    Random orders of a layer come from the child of `seed` that belongs to its number.

    Returns:
        Dataset over layer (over time for the dataset of a run): `statistic`, `null_mean`, `null_deviation`, `z`, `p` (two-sided, by
        permutation) and `effect` = statistic/null_mean - 1.
    """
    import xarray as xr

    x = _cloud(states)
    permutations = count(permutations, "permutations", 2, 100_000_000)
    root = check_seed(seed)
    rows = np.empty((len(x), 6))
    axis, depths = _depths(states, len(x))
    children = _children(axis, depths)
    for place, cloud in enumerate(x):
        distances = cloud_distances(cloud)
        observed = float(strong_gaps(distances)[1:].sum())
        generator = np.random.default_rng(np.random.SeedSequence(root, spawn_key=(children[place],)))
        sums = permuted_gap_sums(distances, permutations, generator)
        mean, deviation = exchangeable_gap_sum(distances), float(sums.std(ddof=1))
        extreme = int((np.abs(sums - mean) >= abs(observed - mean)).sum())
        z = (observed - mean) / deviation if deviation > 0 else 0.0
        rows[place] = (observed, mean, deviation, z, (1 + extreme) / (1 + permutations), observed / mean - 1)
    names = ("statistic", "null_mean", "null_deviation", "z", "p", "effect")
    return xr.Dataset(
        {name: (axis, rows[:, i]) for i, name in enumerate(names)},
        coords={axis: depths},
        attrs={**_attributes(states), "permutations": permutations, "seed": root},
    )


def capture_curves(
    states: xr.Dataset | FloatArray,
    delta: float,
    *,
    radius: float | None = None,
    strong: bool = False,
    moving: bool = True,
    null_samples: int = 100,
    seed: int = 0,
) -> xr.Dataset:
    """Figure 3 of arXiv:2411.04990 for a real model: how many tokens stand near a center, against depth.

    Centers are chosen in the first layer of `states`, at distance `delta`; a token counts in a later layer when it is within
    `radius` (None: 0.1 delta) of the current place of some center (`moving`) or of a first place of one. The null takes as many
    tokens at random instead of the centers.

    Returns:
        Dataset over layer (over time for the dataset of a run): `consumed` (fraction), `null_mean`, `null_low`, `null_high` (0.1 and
        0.9 quantiles over samples).
    """
    import xarray as xr

    x = _cloud(states)
    delta = number(delta, "delta", 0.0, np.pi, strict=True)
    radius = 0.1 * delta if radius is None else number(radius, "radius", 0.0, np.pi, strict=True)
    null_samples, root = count(null_samples, "null_samples", 1, 1_000_000), check_seed(seed)
    strong, moving = arguments.switch(strong, "strong"), arguments.switch(moving, "moving")
    centers = np.asarray(renyi_centers(x[0], delta, strong=strong))
    generator = np.random.default_rng(root)
    choices = [generator.choice(x.shape[1], len(centers), replace=False) for _ in range(null_samples)]
    rows = np.empty((len(x), 4))
    for place, cloud in enumerate(x):
        here = centers if moving else x[0, centers]
        near = cloud_distances(cloud, cloud if moving else x[0]) <= radius
        null = np.array([near[:, chosen].any(axis=1).mean() for chosen in choices])
        rows[place] = consumed(cloud, here, radius), null.mean(), *np.quantile(null, (0.1, 0.9))
    names = ("consumed", "null_mean", "null_low", "null_high")
    axis, depths = _depths(states, len(x))
    return xr.Dataset(
        {name: (axis, rows[:, i]) for i, name in enumerate(names)},
        coords={axis: depths, "center": centers},
        attrs={
            **_attributes(states),
            "delta": delta,
            "radius": radius,
            "strong": int(strong),
            "moving": int(moving),
            "null_samples": null_samples,
        },
    )
