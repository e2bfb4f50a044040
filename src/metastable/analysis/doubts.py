"""What a predicted tree knows of its own faults: `uncertainty` and `doubtful` of `predict_merges`."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from metastable.analysis._film import IntArray
from metastable.analysis.clusters import cluster_leaders
from metastable.analysis.merging import MergeTree

SOONEST = 1e-3
"""Waits that are shorter, in times of a fall, are all the same."""
SAME_TIME = 0.05
"""Decades by which times of merges with and without followers may differ: the time of a fall, early."""
LEFT_OVER = 0.2
"""Part of what more points change in the time of a merge that may be left: so many are not carried along."""
AT_ONCE = 3.0
"""Merges of one cluster that are closer in time, in times of a fall, happen at once."""


def with_doubts(
    tree: MergeTree,
    base: MergeTree,
    copies: list[MergeTree],
    t0: float,
    encounter: float,
    torn: NDArray[np.bool_],
) -> MergeTree:
    """The tree with `uncertainty`, `doubtful`, `balanced`, `t0`: from disturbed `copies` of the tree `base`, where fewer points are
    carried along; from what the others change; from merges at once, and those (m,) that are `torn`."""
    square, doubtful = np.zeros(len(tree)), at_once(tree, encounter) | torn
    change = _decades(tree, base, t0, encounter)
    for copy in copies:
        off = _decades(tree, copy, t0, encounter)
        doubtful |= np.isnan(off)
        square += np.nan_to_num(off - change) ** 2
        doubtful |= unseen(tree, copy)
    wait = np.maximum(tree.time - t0, encounter)
    # Times are known as exactly as numbers of their size: late states leave few digits for a wait.
    either = np.hypot(encounter, np.spacing(tree.time)) / (math.log(10.0) * wait)
    parts = np.stack([np.sqrt(square / max(1, len(copies))), either, LEFT_OVER * change])
    # (Squares of these leave double precision.)
    uncertainty = np.hypot.reduce(np.nan_to_num(parts), axis=0)
    # (A copy whose steps ran out, too, is only ahead.)
    balanced = any(copy.until is None and copy.final_labels.max() < tree.final_labels.max() for copy in copies)
    return replace(tree, uncertainty=uncertainty, doubtful=doubtful, balanced=balanced)


def _decades(tree: MergeTree, other: MergeTree, t0: float, encounter: float) -> NDArray[np.float64]:
    """By how many decades of time since t0 each merge (m,) is later in the other tree; NaN where it has another parent, or none."""
    found = {(int(child), int(parent)): float(t) for child, parent, t in zip(other.child, other.parent, other.time)}
    later = np.full(len(tree), np.nan)
    for row, (child, parent) in enumerate(zip(tree.child, tree.parent)):
        waits = np.maximum(
            (tree.time[row] - t0, found.get((int(child), int(parent)), np.nan) - t0), SOONEST * encounter
        )
        later[row] = math.log10(waits[1] / waits[0])
    return later


def elsewhere(tree: MergeTree, other: MergeTree) -> NDArray[np.bool_]:
    """Which merges (m,) of a tree have another parent in the other one, or happen at another time (`SAME_TIME`)."""
    found = {int(child): row for row, child in enumerate(other.child)}
    differs = np.ones(len(tree), dtype=bool)
    for row, child in enumerate(tree.child):
        at = found.get(int(child))
        if at is not None and other.parent[at] == tree.parent[row]:
            differs[row] = abs(math.log10(other.time[at] / tree.time[row])) > SAME_TIME
    return differs


def touches(tree: MergeTree, labels: IntArray) -> NDArray[np.bool_]:
    """Which merges (m,) are of tokens that share a cluster of `labels` (n,) with others who are elsewhere in the tree at that time."""
    first = cluster_leaders(tree.start_labels)
    leader, home = first.copy(), labels[first]
    rows = np.zeros(len(tree), dtype=bool)
    for row, (child, parent) in enumerate(zip(tree.child, tree.parent)):
        here = np.unique(home[(leader == child) | (leader == parent)])
        rows[row] = any(len(np.unique(leader[home == cluster])) > 1 for cluster in here)
        leader[leader == child] = parent
    return rows


def holding(tree: MergeTree, until: dict[int, float]) -> NDArray[np.bool_]:
    """Which merges (m,) are of a cluster that holds the token of a key, up to the time that belongs to it."""
    first = cluster_leaders(tree.start_labels)
    leader = first.copy()
    rows = np.zeros(len(tree), dtype=bool)
    for row, (child, parent) in enumerate(zip(tree.child, tree.parent)):
        held = [leader[tree.start_labels[token]] for token, end in until.items() if tree.time[row] <= end]
        rows[row] = child in held or parent in held
        leader[leader == child] = parent
    return rows


def unseen(tree: MergeTree, other: MergeTree) -> NDArray[np.bool_]:
    """Which merges (m,) of a tree are of clusters that tokens leave or join in the other one, and not in this one, until they are back
    with the leader of their cluster (by the clocks of both: the other one may be early)."""
    home, there = cluster_leaders(tree.start_labels), set(cluster_leaders(tree.start_labels).tolist())
    goes, known = _merges(other), _merges(tree)
    until: dict[int, float] = {}
    for child in goes.keys() - there:
        leader = int(home[tree.start_labels[child]])
        way, ways = _way(child, goes), dict(_way(leader, goes))
        meeting, back = next(((place, max(t, ways[place])) for place, t in way if place in ways), (child, math.inf))
        back = max(back, dict(_way(leader, known)).get(meeting, 0.0))
        _doubt(until, [(leader, 0.0), *way], back)
    return holding(tree, until)


def otherwise(tree: MergeTree, closer: MergeTree) -> NDArray[np.bool_]:
    """Which merges (m,) of a tree are of clusters that merge elsewhere, or at another time, for who looks closer at the same way, until
    both have merged."""
    known, goes = _merges(tree), _merges(closer)
    until: dict[int, float] = {}
    for row in np.flatnonzero(elsewhere(tree, closer)):
        child = int(tree.child[row])
        back = max(float(tree.time[row]), goes[child][1]) if child in goes else math.inf
        _doubt(until, [*_way(child, known), *_way(child, goes)], back)
    return holding(tree, until)


def _doubt(until: dict[int, float], way: list[tuple[int, float]], back: float) -> None:
    """Doubt the clusters on the way of a token that it reaches before it is back, until then."""
    for place, since in way:
        if since <= back:
            until[place] = max(back, until.get(place, 0.0))


def _merges(tree: MergeTree) -> dict[int, tuple[int, float]]:
    """The merges of a tree: child -> (parent, time)."""
    return {int(child): (int(parent), float(t)) for child, parent, t in zip(tree.child, tree.parent, tree.time)}


def _way(token: int, goes: dict[int, tuple[int, float]]) -> list[tuple[int, float]]:
    """The leaders of the clusters that a token is in, one after the other, and from when on it is."""
    way = [(token, 0.0)]
    while way[-1][0] in goes:
        parent, t = goes[way[-1][0]]
        way.append((parent, t))
    return way


def at_once(tree: MergeTree, encounter: float) -> NDArray[np.bool_]:
    """Which merges (m,) have a parent in doubt because a third cluster is on its way into the same place.

    While three fall into one another within `AT_ONCE` times `encounter`, their followers are stretched between them, and may link the
    third to either before the leaders meet. Of clusters a < b < c, b goes into a in any case; c goes into a or into b.
    """
    rows = np.zeros(len(tree), dtype=bool)
    for row in range(len(tree)):
        for later in range(row + 1, len(tree)):
            if not tree.time[later] - tree.time[row] < AT_ONCE * encounter:
                break
            if {int(tree.child[row]), int(tree.parent[row])} & {int(tree.child[later]), int(tree.parent[later])}:
                rows[row if tree.child[row] > tree.child[later] else later] = True
    return rows
