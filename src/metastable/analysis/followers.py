"""Do the followers of a cluster go where its leader goes? Groups of them as points of their own.

For Q^T K = c I, c > 0, a token beside the leader of its cluster falls back to it, unless others draw it away, and it sees more of
them than the leader does. So it rests beside the leader, falls a little before or after it, and the followers of the first
token, which never moves, may go over to a heavy cluster that comes near. Under other Q and K a follower need not fall back: when
the leader falls it may stay, or fall into another cluster. So followers are carried along: group g of a cluster is a point at
its first token, with the tokens of the group ahead of each viewer as its mass. Points that coincide are not joined, so that they may
part again.

For Q^T K = c I that is done for a limited time, and longer where it is necessary (`unsteady`): a token of each group is moved along
the path that the leaders take, without acting on them, which costs less than the path.

Where masses differ and a token is heavier than one before it, nobody in a group is heavier than its first token: when its leader
falls, a heavier one is still held by its own mass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastable._checks import FloatArray
from metastable.analysis._film import IntArray, by_first_token
from metastable.analysis.clusters import cluster_leaders, link_bound
from metastable.analysis.merging import WINDOW, MergeTree, tree_of_film

MOST_POINTS = 32
"""Points by which a state is carried along, if that is possible: groups are as small as it allows."""

FEW = 8
"""The same for disturbed cascades."""

GROWTH = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
"""Factors by which groups of followers may grow along the sequence; 1: each token is a group by itself."""

PROBED = 2.0
"""The same for the groups of which a token is watched, and the largest one in clusters that may be torn."""

LONGER = 1.2
"""How much longer than it seems to be necessary followers are carried along."""

BRIEF = 0.02
"""Followers that are away from their leader for a shorter part of the time have not left: checkpoints of trees are farther apart."""


def groups_by(labels: IntArray, growth: float | None, torn: NDArray[np.bool_] | None = None) -> IntArray:
    """The clusters `labels` (n,) parted into groups (n,), numbered by first token: the leader, and its followers in groups.

    Early followers see few tokens at their place and later ones more and more alike numbers, so groups grow by the factor `growth`
    (None: a cluster is one group). In clusters that are `torn` (clusters,) they grow by `PROBED` at most.
    """
    found = np.empty_like(labels)
    for cluster in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == cluster)
        factor = min(growth or PROBED, PROBED) if torn is not None and torn[cluster] else growth
        numbers = np.arange(members.size)
        if factor is None:
            numbers[:] = 0
        elif factor > 1.0:
            numbers[1:] = 1 + np.floor(np.log(numbers[1:]) / np.log(factor) + 1e-9).astype(np.int64)
        found[members] = members[0] + labels.size * numbers
    return by_first_token(found)


def groups_of(labels: IntArray, torn: NDArray[np.bool_] | None = None, most: int = MOST_POINTS) -> IntArray:
    """The smallest groups (n,) of `groups_by` of which there are at most so many, and the largest where there is no such."""
    groups = labels
    for growth in GROWTH:
        groups = groups_by(labels, growth, torn)
        if groups.max() < most:
            break
    return groups


class Watched(NamedTuple):
    """What followers do along a path: the first `tokens` (f,) of groups; whether each has `left` its leader, until `back` (in the time
    of the path); whether it has `strayed`, and might leave; the leaders (tokens) that it has `visited` then."""

    tokens: IntArray
    left: NDArray[np.bool_]
    back: FloatArray
    strayed: NDArray[np.bool_]
    visited: list[IntArray]


def probes(clusters: Any) -> IntArray:
    """The tokens that are watched: the first one of each group of followers."""
    groups = cluster_leaders(groups_by(clusters.labels, PROBED))
    return groups[~np.isin(groups, clusters.leaders)]


def last_ones(groups: IntArray) -> IntArray:
    """The last token of each group (n,) of several: the one that sees most beyond what the first one sees."""
    last = len(groups) - 1 - np.unique(groups[::-1], return_index=True)[1]
    return last[np.bincount(groups) > 1]


def watch(clusters: Any, path: Any, tokens: IntArray) -> Watched:
    """Whether followers leave their leader along the `path` (`leaders.Path`) of the leaders.

    Each is moved along: drawn by the tokens ahead of it, who are at the places of their leaders. It has left when it is farther than
    the radius from its leader for longer than `BRIEF` of the time. What is shorter is a cluster that stretches in a fall, which no
    tree shows.
    """
    from metastable.analysis import _probes

    if len(tokens) == 0 or len(path.width) == 0:
        nobody = np.zeros(len(tokens), dtype=bool)
        return Watched(tokens, nobody, np.zeros(len(tokens)), nobody, [tokens[:0] for _ in tokens])
    ahead = np.arange(len(clusters.tokens)) < tokens[:, None]
    begin, limit = clusters.t0 * clusters.pace, np.sqrt(link_bound(clusters.radius))
    seen = _probes.leaving(
        begin + path.begin,
        path.width,
        path.pieces,
        _probes.Followers(
            clusters.tokens[tokens],
            clusters.token_mass[tokens],
            clusters.labels[tokens],
            _probes.with_nobody(ahead @ clusters.member.T),
        ),
        _probes.Rule(clusters.strength, clusters.form, clusters.pulled_back, limit, BRIEF),
    )
    visited = [clusters.leaders[row] for row in seen.visited]
    return Watched(tokens, seen.left, seen.back - begin, seen.strayed, visited)


def unsteady(clusters: Any, seen: Watched) -> tuple[NDArray[np.bool_], float]:
    """Which clusters (k,) have followers that leave, and when, in the time of the path, all of them are back."""
    found = np.zeros(len(clusters.leaders), dtype=bool)
    found[clusters.labels[seen.tokens[seen.left]]] = True
    return found, float(np.max(seen.back[seen.left], initial=0.0))


def wavering(clusters: Any, way: Any, tokens: IntArray) -> dict[int, float]:
    """The clusters that followers may change: those that one of the `tokens` leaves or visits on this `way`, by leader, and until
    when."""
    found: dict[int, float] = {}
    seen = watch(clusters, way, tokens)
    for row in np.flatnonzero(seen.left):
        home = clusters.leaders[clusters.labels[tokens[row]]]
        until = clusters.t0 + LONGER * float(seen.back[row]) / clusters.pace
        found |= {leader: max(until, found.get(leader, 0.0)) for leader in (int(home), *seen.visited[row].tolist())}
    return found


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


def tree_of_groups(
    path: Any,
    groups: IntArray,
    radius: float,
    pace: float,
    resolution: float,
    begin: float = 0.0,
    window: float = WINDOW,
) -> MergeTree:
    """The merge tree of tokens in `groups` (n,) that went the way of their points, from the time `begin` on.

    As `merge_tree` reads a run, by windows of its time, so that a cluster that stretches for a moment while it falls is one. Tokens
    that part later are apart from the start.
    """
    from metastable.analysis._paths import PathFilm

    film = PathFilm(begin + path.begin / pace, path.width / pace, radius, path.pieces, path.owner, link_bound(radius))
    return in_tokens(tree_of_film(film, window, resolution), groups)


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
    merges = tree.time, tree.before, child, parent, sizes[0], sizes[1]
    return MergeTree(tree.radius, start, final, *merges, refined=True, t0=tree.t0)
