"""The whole cascade of merges from the clusters at one moment: `predict_merges`.

A cluster is its leader: the first token, which the others sit on. Under the causal mask a leader sees only earlier
tokens, so it is one token among standing places with masses, `Frozen(places, masses)`: the clusters that lead it,
each with as many tokens as come before it. Until it falls it hardly moves; when it falls, its mass joins another
place. So n tokens over any number of decades are a handful of points whose flow (`leaders`) takes
milliseconds.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastable import _checks
from metastable._checks import FloatArray
from metastable.analysis._film import by_first_token
from metastable.analysis.clusters import IntArray, labels_of_unit_tokens, link_bound
from metastable.analysis.doubts import elsewhere, holding, otherwise, touches, unseen, with_doubts
from metastable.analysis.followers import (
    FEW,
    LONGER,
    MOST_POINTS,
    groups_by,
    groups_of,
    heavier_followers,
    last_ones,
    parted_by_mass,
    probes,
    unsteady,
    watch,
    wavering,
)
from metastable.analysis.merging import MergeTree
from metastable.analysis.scales import cluster_radius
from metastable.analysis.standing import ARRIVED, LATEST, MAX_STEPS, MOST_CLUSTERS, Clusters, pulled_back
from metastable.errors import NumericalRangeError, StoppedEarlyWarning, UnsupportedError
from metastable.model import Attention, Causal, Rule, Support, why_not
from metastable.model.values import scalar_multiple

COUNTING = 1e-5
"""Error of a step of the leaders, radians, where only the number of clusters is asked for."""
DISTURBED = 3.0
"""Errors of steps in disturbed cascades, over `Clusters.tolerance`: their places are uncertain by `standing.SMALLEST_BLUR` at least."""
SMALLEST_RADIUS = 1e-8
"""Below it the last part of a fall is made of the errors of its steps."""
LONGEST_COUNT = 1e250
"""Horizon up to which forces that leave double precision have moved nothing."""
ROUGH = 1e-5
"""As `standing.RESOLUTION` in disturbed cascades."""
SHORT = 0.04
"""Windows in which followers are looked for that are away for so short a time that the tree does not show it."""
MOST_TOGETHER = 96
"""Coordinates of points that are carried along under full attention, where all are solved at once."""
TOGETHER = 1e4
"""Time, over 1 + beta, from which on followers fall at the same time as their leader: they do so within some beta of it."""


def _multiple_rule(model: Attention, tokens: int | None) -> str | None:
    value = model.all_heads[0].value
    factor = 1.0 if value is None else scalar_multiple(value)
    if factor is not None and factor > 0.0:
        return None
    if factor is not None:
        return f"needs tokens that attract each other, and V = {factor:g} I does not"
    return "needs V to be a multiple of the identity: under other V a cluster does not stand still while it waits"


SUPPORT = Support(
    "predict_merges",
    norms=frozenset({"post_ln"}),
    masks=frozenset({"causal", "full"}),
    weights=frozenset({"softmax"}),
    parts=frozenset({"bilinear", "value", "masses"}),
    rules=(Rule("value", _multiple_rule),),
)
"""The models whose clusters are points that stand until they fall."""


def predict_merges(
    state: Any,
    model: Attention,
    t0: float = 0.0,
    *,
    radius: float | None = None,
    blur: float | None = None,
) -> MergeTree:
    """Which cluster of a state will merge into which, and when, over any number of decades: without running the tokens.

    The clusters of `cluster_labels(state, radius)` become points with masses, and the flow of these points is solved:

        dx_k/dt = P_{x_k} sum_j p_kj (x_j - x_k),     p_kj = m_kj exp(beta <Q x_k, K (x_j - x_k)>) / Z_k.

    Under the causal mask point k is the leader (first token) of its cluster and m_kj the number of tokens of cluster
    j ahead of it: one token among `Frozen(places, masses)`, which stand still until they fall themselves. Under full
    attention a cluster is the place at which its tokens gather (near their mean direction, by masses where they have some), and
    m_kj the size of cluster j; where others pull its tokens before they have gathered, these are points of their own until they have.

    The tree is that of a run from this moment on, as `merge_tree` reads it. It is wrong where a leader is so near the middle between
    two clusters that less than `blur` decides which one wins, and the tree says so: `uncertainty` holds, for each merge, the root mean
    square deviation in log10(time - t0) of four cascades whose places are disturbed by `blur` (and at least the time of order one
    that a fall takes, and a fifth of what followers change), and `doubtful` is True where one of them goes into another cluster. The
    uncertainty is a standard deviation from four draws, not a bound: errors of more than three times as much happen in about one of a
    hundred merges, and up to six times have been seen.

    Followers need not be where their leader is (under the causal mask): they rest beside it, fall a little before or after it, or
    go over to a heavier cluster. So they are carried along as points of their own (`followers`), in groups that grow along the
    sequence. For Q^T K = c I, c >= 0, and masses that do not grow along the sequence they fall back to their leader, unless a heavier
    cluster that comes near draws them over; there that is done until time has passed that makes the rest negligible, and longer where
    a token that is moved along the leaders' path leaves. Under other Q and K, or where a later token is heavier than an earlier
    one and so holds itself longer, it is done to the end. Tokens that part after t0 are apart in the tree from the start, as in
    `merge_tree`. Merges of clusters that are torn in this way, until they are whole again, those of clusters that a token leaves or
    joins for 2 to 10 % of the time, or in a disturbed cascade only, and those that the leaders by themselves would place elsewhere
    are `doubtful`; all are where there are more than 400 groups (full attention: points of more than 96 coordinates), who are not
    followed. So is a merge while a third
    cluster falls into the same place (`doubts.at_once`). Clusters in an exact balance (antipodes, the corners of a square) never
    move, and are left at the end; where the disturbed cascades go on the tree is `balanced`, and says so. Where rounding moves them all
    the same, their merges are `doubtful`.

    Args:
        state: unit tokens (n, d) at time t0, late enough for clusters to have formed: `run.at(100.0)`.
        model: causal or full softmax attention with one head, V a positive multiple of I, any Q and K, `PostLN()`.
        t0: the time of the state.
        radius: as in `merge_tree`, at least 1e-8: tokens closer than this are one cluster, and clusters whose leaders come closer
            have merged.
        blur: radians by which the place of each cluster is uncertain. None: how far tokens that are not on their
            leaders yet may still pull it, and at least 1e-5, the errors of a simulation with the default tolerances.

    Returns:
        A `MergeTree` whose `start_labels` are the clusters at t0, with `uncertainty` and `doubtful`; and `until`, where 100,000 steps
        did not reach the end (`StoppedEarlyWarning`: under some Q and K clusters turn, or rest in a balance). The clusters are those
        of `cluster_labels(state, radius)`, but for tokens that part later (see above), which are apart.

    Raises:
        UnsupportedError: for models whose clusters do not stand still (other masks, V, norms, weights, noise, several
            heads, ...).
        InvalidInputError: when there are more than 400 clusters: nothing is metastable yet.

    >>> import metastable as ms
    >>> model = ms.Attention(dim=2, beta=16.0)
    >>> run = ms.simulate(model, ms.sphere.uniform(40, dim=2, seed=0), until=50.0)
    >>> tree = ms.predict_merges(run.final, model, t0=50.0)
    >>> tree.complete
    True
    """
    _checks.instance(model, Attention, "model")
    tokens = model.check_tokens(state, "state")
    reason = why_not(model, SUPPORT, len(tokens))
    if reason is not None:
        raise UnsupportedError(f"{reason}; simulate it: {_instead(model, len(tokens))}")
    _check_range(model)
    t0 = _checks.number(t0, "t0", 0.0)
    radius = cluster_radius(model) if radius is None else _checks.number(radius, "radius", SMALLEST_RADIUS)
    blur = None if blur is None else _checks.number(blur, "blur", 0.0, 1.0)
    clusters = Clusters(tokens, model, t0, radius)
    tree = _predicted(clusters, blur)
    assert tree.doubtful is not None
    if tree.until is not None:
        warnings.warn(
            f"the way of the clusters ended at t = {tree.until:.6g}, after {MAX_STEPS} steps: they turn, or stand in a "
            "balance of which rounding errors are left; what merges later is not known (the attribute until of the tree)",
            StoppedEarlyWarning,
            stacklevel=3,
        )
    return replace(tree, doubtful=tree.doubtful | np.isin(tree.child, clusters.leaders[clusters.hidden]))


def _predicted(clusters: Clusters, blur: float | None) -> MergeTree:
    """`predict_merges` of a state of clusters."""
    tokens, model, t0, radius = clusters.tokens, clusters.model, clusters.t0, clusters.radius
    path = clusters.path(clusters.places, ARRIVED * radius)
    alone = clusters.read(path)
    carried = _carried(clusters, path)
    if carried is None or _too_many(clusters, carried):
        return _disturbed_leaders(clusters, alone, alone, np.full(len(alone), carried is not None), blur)
    points = Clusters(tokens, model, t0, radius, carried.groups)
    way = points.group_path(points.places, carried.together)
    tree = points.read(way)
    closer = points.read(way, ROUGH, SHORT)
    unsure = unseen(tree, closer) | otherwise(tree, closer)
    if clusters.causal and not points.pulled_back:
        unsure |= holding(tree, wavering(points, way, last_ones(carried.groups)))
    # Until they part they are one cluster, which no tree of merges can say: whoever reads it must know.
    torn = touches(tree, clusters.labels) | elsewhere(tree, alone)
    # (Under full attention those that are carried along may part in a disturbed cascade only.)
    if clusters.causal and not torn.any() and len(tree) == len(alone):
        return _disturbed_leaders(clusters, tree, alone, unsure, blur, carried.close)
    few = Clusters(tokens, model, t0, radius, carried.few)
    places = [few.places, *few.disturbed(blur)]
    base, *copies = (
        few.read(few.group_path(start, carried.back, DISTURBED * few.tolerance), ROUGH) for start in places
    )
    return with_doubts(tree, base, copies, t0, few.encounter, torn | unsure)


def _too_many(clusters: Clusters, carried: _Carried) -> bool:
    """True where followers are more than can be carried along."""
    count = int(carried.groups.max()) + 1
    return count > MOST_CLUSTERS if clusters.causal else count * (clusters.model.dim - 1) > MOST_TOGETHER


def _disturbed_leaders(
    clusters: Clusters,
    tree: MergeTree,
    alone: MergeTree,
    unsure: NDArray[np.bool_],
    blur: float | None,
    close: IntArray | None = None,
) -> MergeTree:
    """The tree with its doubts, from disturbed cascades of leaders `alone`: also of what is `unsure` (m,), and of those clusters that
    tokens which are `close` to leaving leave there."""
    disturbed = clusters.disturbed(blur) if len(clusters.leaders) > 1 else []
    ways = [
        clusters.path(places, ARRIVED * clusters.radius, tolerance=DISTURBED * clusters.tolerance)
        for places in disturbed
    ]
    copies = [clusters.read(way, ROUGH) for way in ways]
    if close is not None:
        for way in ways:
            unsure = unsure | holding(tree, wavering(clusters, way, close))
    return with_doubts(tree, alone, copies, clusters.t0, clusters.encounter, unsure)


def counts_after(
    state: FloatArray, model: Attention, t0: float, times: FloatArray, *, radius: float | None = None
) -> FloatArray:
    """Clusters at the later `times` (increasing, beyond t0) of a state at time t0, shape (times,): the flow of its leaders alone.

    The same flow as in `predict_merges`, without its uncertainty and no further than the last time: milliseconds for any horizon.
    Counted are the places that are not linked at that moment, as `cluster_labels` counts tokens. NaN behind the last time that was
    reached. For models that `counts_refusal` has nothing against; beta may be any, since forces that leave double precision move
    nothing until `LONGEST_COUNT`.
    """
    radius = cluster_radius(model) if radius is None else radius
    clusters = Clusters(state, model, t0, radius)
    waits = (np.asarray(times, dtype=float) - t0) * clusters.pace
    path = clusters.path(clusters.places, ARRIVED * radius, until=float(waits[-1]), tolerance=COUNTING)
    counts = np.full(waits.size, np.nan)
    bound = link_bound(radius)
    for row, wait in enumerate(waits):
        counts[row] = _count_at(path, float(wait), clusters.places, bound)
    return counts


def _count_at(path: Any, wait: float, places: FloatArray, bound: float) -> float:
    """Clusters that a path has at the time `wait` of its own; NaN where it did not come so far."""
    from metastable.analysis import _paths, leaders

    if len(path.begin) == 0:
        return float(labels_of_unit_tokens(places, bound).max() + 1)
    if wait > path.end and path.code not in (leaders.ONE_LEFT, leaders.STILL):
        return math.nan
    step = max(0, int(np.searchsorted(path.begin, wait, side="right")) - 1)
    fraction = min(1.0, (wait - path.begin[step]) / path.width[step])
    return float(_paths.labels_at(path.pieces[step], path.owner[step], fraction, bound).max() + 1)


def counts_refusal(model: Attention, tokens: int) -> str | None:
    """Why `counts_after` does not count the clusters of this model, or None."""
    reason = why_not(model, SUPPORT, tokens)
    if reason is None and isinstance(model.mask, Causal) and heavier_followers(model.masses):
        return "followers that are heavier than their leader may part from it"
    if reason is None and isinstance(model.mask, Causal) and not pulled_back(model):
        return "followers may part from their leader under these Q and K"
    return reason


class _Carried(NamedTuple):
    """Followers that are carried along: their `groups` (n,), and as `few` of them as will do for disturbed cascades; the time of the
    path when all that leave are `back`, and `together`, from which on leaders tell all; tokens that are `close` to leaving."""

    groups: IntArray
    few: IntArray
    back: float
    together: float
    close: IntArray


def _carried(clusters: Clusters, path: Any) -> _Carried | None:
    """How followers are carried along (None: they need not be); leaders by themselves take this path."""
    labels, masses = clusters.labels, clusters.model.masses
    if len(labels) == 0:
        return None
    if not clusters.causal:
        return _gathering(clusters) if clusters.pulled.any() else None
    if heavier_followers(masses):
        groups, few = (parted_by_mass(groups_of(labels, most=most), clusters.token_mass) for most in (MOST_POINTS, FEW))
        return _Carried(groups, few, LATEST, LATEST, labels[:0])
    if not clusters.pulled_back:
        return _Carried(groups_of(labels), groups_of(labels, most=FEW), LATEST, LATEST, labels[:0])
    seen = watch(clusters, path, probes(clusters))
    which, last = unsteady(clusters, seen)
    back = min(LATEST, LONGER * last)
    together = max(back, TOGETHER * (1.0 + clusters.strength))
    close = seen.tokens[seen.strayed & ~seen.left]
    return _Carried(groups_of(labels, which), groups_by(labels, None, which), back, together, close)


def _gathering(clusters: Clusters) -> _Carried:
    """Under full attention: the tokens of clusters that others pull before they have gathered are carried along, until they have."""
    labels = clusters.labels
    first = np.where(clusters.pulled[labels], np.arange(len(labels)), clusters.leaders[labels])
    groups = by_first_token(first)
    together = TOGETHER * (1.0 + clusters.strength)
    return _Carried(groups, groups, together, together, labels[:0])


def _instead(model: Attention, tokens: int) -> str:
    """The call that finds the merges of a model that cannot be predicted."""
    from metastable.integrate import rodas

    settles = model.noise == 0 and rodas.horizon_refusal(model, tokens, LATEST, settled=True) is None
    until = "until='settled'" if settles else "until=1000.0" + (", seed=0" if model.noise > 0 else "")
    radius = ", radius=0.1" if model.beta is None or model.beta <= 0 else ""
    return f"metastable.merge_tree(metastable.simulate(model, start, {until}){radius})"


def _check_range(model: Attention) -> None:
    """Forces between any two places must be numbers of double precision."""
    from metastable.integrate.rodas import LOGIT_SPREAD

    head = model.all_heads[0]
    strength = head.bilinear_size
    if 2.0 * abs(head.beta) * strength > LOGIT_SPREAD:
        raise NumericalRangeError(
            f"beta = {head.beta:g} is beyond the limit |beta| <= {LOGIT_SPREAD / (2.0 * strength):.4g} for this Q^T K: forces between "
            "antipodes, exp(-2 beta), leave double precision; lower beta"
        )
