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
"""Waits that are shorter are all the same."""
SAME_TIME = 0.05
"""Decades by which times of merges with and without followers may differ: the time of a fall, early."""
AT_ONCE = 3.0
"""Merges of one cluster that are closer in time, in times of a fall, happen at once."""


def with_doubts(
    tree: MergeTree, copies: list[MergeTree], t0: float, encounter: float, torn: NDArray[np.bool_] | None = None
) -> MergeTree:
    """The tree with `uncertainty`, `doubtful`, `balanced`: from disturbed cascades, merges at once, and those (m,) that are `torn`."""
    square, doubtful = np.zeros(len(tree)), at_once(tree, encounter)
    if torn is not None:
        doubtful |= torn
    for copy in copies:
        found = {int(child): row for row, child in enumerate(copy.child)}
        for row, child in enumerate(tree.child):
            other = found.get(int(child))
            doubtful[row] |= other is None or copy.parent[other] != tree.parent[row]
            if other is not None:
                waits = np.maximum((tree.time[row] - t0, copy.time[other] - t0), SOONEST)
                square[row] += math.log10(waits[1] / waits[0]) ** 2
    wait = np.maximum(tree.time - t0, encounter)
    uncertainty = np.sqrt(square / max(1, len(copies)) + (encounter / (math.log(10.0) * wait)) ** 2)
    balanced = any(copy.final_labels.max() < tree.final_labels.max() for copy in copies)
    return replace(tree, uncertainty=uncertainty, doubtful=doubtful, balanced=balanced)


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
