"""Do the followers of a cluster go where its leader goes? Groups of them as points of their own.

For Q^T K = c I, c > 0, a token beside the leader of its cluster falls back to it: the cluster is its leader, unless others draw the
follower away. It sees more of them than the leader does: the first token never moves, but its followers may go over to a heavy
cluster that comes near. Under other Q and K a follower need not fall back: when the leader falls it may stay, or fall into another
cluster. So there the followers are carried along: group g of a cluster is a point at its first token, with the tokens of the
group ahead of each viewer as its mass. Points that coincide are not joined, so that they may part again.

For Q^T K = c I that is done only for clusters that need it (`unsteady`): a token of each group is moved along the path that the
leaders take, without acting on them, which costs less than the path.

The same is done where masses differ and a token is heavier than one before it: when its leader falls, its own mass still holds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastable._checks import FloatArray
from metastable.analysis._film import SHALLOW, Film, IntArray, Moment, Partition, by_first_token
from metastable.analysis.clusters import cluster_leaders, link_bound
from metastable.analysis.merging import MergeTree, tree_of_film

MOST_POINTS = 12
"""Tokens up to which each is a group by itself; of more, groups of 1, 1, 2, 4, ... in the order of the sequence."""

BRIEF = 0.02
"""Followers that are away from their leader for a shorter part of the time have not left: checkpoints of trees are farther apart."""


def groups_of(labels: IntArray, most: int = MOST_POINTS) -> IntArray:
    """The clusters `labels` (n,) parted into groups (n,), numbered by first token: the leader, and its followers in groups.

    Early followers see few tokens at their place and later ones more and more alike numbers, so groups double in size.
    """
    if labels.size <= most:
        return np.arange(labels.size)
    found = np.empty_like(labels)
    for cluster in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == cluster)
        found[members] = members[0] + labels.size * np.ceil(np.log2(1.0 + np.arange(members.size))).astype(np.int64)
    return by_first_token(found)


def groups_within(labels: IntArray, which: NDArray[np.bool_]) -> IntArray:
    """The clusters `labels` (n,) of which only those in `which` (clusters,) are parted into groups, numbered by first token."""
    groups, first = groups_of(labels), cluster_leaders(labels)
    return by_first_token(np.where(which[labels], cluster_leaders(groups)[groups], first[labels]))


def unsteady(clusters: Any, path: Any) -> tuple[NDArray[np.bool_], float]:
    """Which clusters (k,) have followers that leave their leader along the `path` (`leaders.Path`) of the leaders, for Q^T K = c I,
    and when, in the time of the path, all of them are back.

    A token of each group of `groups_of` is moved along: drawn by the tokens ahead of it, who are at the places of their leaders.
    It has left when it is farther than the radius from its leader for longer than `BRIEF` of the time. What is shorter is a cluster
    that stretches in a fall, which no tree shows.
    """
    from metastable.analysis import _probes

    found = np.zeros(len(clusters.leaders), dtype=bool)
    groups = cluster_leaders(groups_of(clusters.labels))
    first = groups[~np.isin(groups, clusters.leaders)]
    if len(first) == 0 or len(path.width) == 0:
        return found, 0.0
    ahead = np.arange(len(clusters.tokens)) < first[:, None]
    begin = clusters.t0 * clusters.pace
    left, back = _probes.leaving(
        begin + path.begin,
        path.width,
        path.pieces,
        _probes.Followers(
            clusters.tokens[first], clusters.token_mass[first], clusters.labels[first], ahead @ clusters.member.T
        ),
        _probes.Rule(clusters.strength, np.sqrt(link_bound(clusters.radius)), BRIEF),
    )
    found[clusters.labels[first[left]]] = True
    return found, float(np.max(back[left] - begin, initial=0.0))


def heavier_followers(masses: Any) -> bool:
    """True when a token is heavier than one before it: beside that one it is held by more than that one was."""
    if masses is None:
        return False
    given: FloatArray = np.asarray(masses, dtype=float)
    return bool((given[1:] > given[:-1]).any())


def parted_by_mass(groups: IntArray, masses: FloatArray) -> IntArray:
    """The `groups` (n,) parted further, numbered by first token: nobody is heavier than the first of its group.

    The first token of a group, which stands for it, is held at its place by its own mass; a heavier one would stay longer.
    """
    found = np.empty_like(groups)
    for group in range(int(groups.max()) + 1):
        members = np.flatnonzero(groups == group)
        record = np.maximum.accumulate(masses[members])
        found[members] = members[np.searchsorted(record, record)]
    return by_first_token(found)


@dataclass(frozen=True)
class PathFilm(Film):
    """The clusters of a path of points, by compiled code: `pieces` as in `leaders.Path`; `bound`, largest squared chord of a link."""

    pieces: FloatArray
    bound: float

    def last_unsure(self, step: int, asked: NDArray[np.bool_], partition: Partition) -> int:
        from metastable.analysis import _paths

        return _paths.last_unsure(self.pieces, self.bound, partition, asked, step)

    def last_parting(
        self, together: Partition, leaders: IntArray, begin: Moment, end: Moment, resolution: float
    ) -> tuple[Moment, Moment] | None:
        from metastable.analysis import _paths

        groups = np.full(self.pieces.shape[2], -1, np.int64)
        groups[leaders] = together
        shallow = SHALLOW * self.radius
        step, low, high = _paths.last_parting_of(self.pieces, self.bound, groups, begin, end, shallow, resolution)
        return None if step < 0 else ((step, low), (step, high))

    def look(self, step: int, u: float) -> Partition:
        from metastable.analysis import _paths

        return _paths.labels_at(self.pieces[step], u, self.bound)

    def held(self, step: int, low: float, high: float) -> tuple[Partition, float]:
        """As `Film` says. Only distances count: a cluster that falls as one holds. The way is that of pairs whose link may change."""
        from metastable.analysis import _paths

        return _paths.held(self.pieces[step], low, high, self.bound)


def tree_of_groups(
    path: Any, groups: IntArray, radius: float, pace: float, resolution: float, begin: float = 0.0
) -> MergeTree:
    """The merge tree of tokens in `groups` (n,) that went the way of their points, from the time `begin` on.

    As `merge_tree` reads a run, by windows of its time, so that a cluster that stretches for a moment while it falls is one. Tokens
    that part later are apart from the start.
    """
    film = PathFilm(begin + path.begin / pace, path.width / pace, radius, path.pieces, link_bound(radius))
    return in_tokens(tree_of_film(film, resolution=resolution), groups)


def in_tokens(tree: MergeTree, groups: IntArray) -> MergeTree:
    """A tree of points as one of the tokens (n,) that they stand for; it is predicted, and has no end."""
    first = cluster_leaders(groups)
    start, final = tree.start_labels[groups], tree.final_labels[groups]
    size = {int(leader): int((start == label).sum()) for label, leader in enumerate(cluster_leaders(start))}
    child, parent = first[tree.child], first[tree.parent]
    sizes = np.empty((2, len(tree)), dtype=np.int64)
    for row, (c, p) in enumerate(zip(child.tolist(), parent.tolist())):
        sizes[:, row] = size[c], size[p]
        size[p] += size[c]
    return MergeTree(tree.radius, start, final, tree.time, tree.before, child, parent, sizes[0], sizes[1], True)
