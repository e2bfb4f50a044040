"""Compiled reading of paths of points: the polynomials (5, m, d) of the steps of `leaders`, in powers of the fraction of a step.

Only ever imported inside functions: Numba takes half a second to load.
"""

# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from metastable.analysis._film import LEBESGUE, SHALLOW
from metastable.analysis._kernels import compiled, inner, labels_few


class PathFilm(NamedTuple):
    """The clusters of a path of points: a film, as in `_film`, for compiled code. `pieces` and `owner` as in `leaders.Path`; `bound`,
    largest squared chord of a link."""

    start: Any
    width: Any
    radius: Any
    pieces: Any
    owner: Any
    bound: Any


@compiled
def places_at(piece, u):
    """Unit points (m, d) at the fraction u of a step."""
    x = np.empty(piece.shape[1:])
    write_places(piece, u, x)
    return x


@inner
def write_places(piece, u, x):
    """The same, into x."""
    m, d = x.shape
    for k in range(m):
        square = 0.0
        for a in range(d):
            x[k, a] = piece[0, k, a] + u * (
                piece[1, k, a] + u * (piece[2, k, a] + u * (piece[3, k, a] + u * piece[4, k, a]))
            )
            square += x[k, a] * x[k, a]
        for a in range(d):
            x[k, a] /= np.sqrt(square)


@compiled
def labels_at(piece, owner, u, bound):
    """Clusters of points at the fraction u of a step; a point that is not its own `owner` (m,) is where its owner is."""
    x, alone, count = np.empty(piece.shape[1:]), np.empty(len(owner), np.int64), 0
    for k in range(len(owner)):
        if owner[k] == k:
            write_places(piece[:, k : k + 1], u, x[count : count + 1])
            alone[k] = count
            count += 1
    labels, found = labels_few(x[:count], bound), np.empty(len(owner), np.int64)
    for k in range(len(owner)):
        found[k] = labels[alone[owner[k]]]
    return found


@inner
def _grow(linked, label, labels, seed, queue):
    """Give `label` to every point that chains of links connect with `seed`."""
    labels[seed], queue[0] = label, seed
    first, last = 0, 1
    while first < last:
        k = queue[first]
        first += 1
        for j in range(len(labels)):
            if labels[j] < 0 and linked[k, j]:
                labels[j], queue[last] = label, j
                last += 1


@inner
def _square(x, k, y, j):
    """|x_k - y_j|^2."""
    total = 0.0
    for a in range(x.shape[1]):
        total += (x[k, a] - y[j, a]) ** 2
    return total


@inner
def _turn(states, k, j):
    """How far x_k - x_j is from its value in the middle at the farthest of five nodes, squared."""
    farthest = 0.0
    for node in range(5):
        square = 0.0
        for a in range(states.shape[2]):
            square += (states[node, k, a] - states[node, j, a] - (states[2, k, a] - states[2, j, a])) ** 2
        farthest = max(farthest, square)
    return farthest


@inner
def held_in(piece, owner, low, high, bound):
    """Parts of clusters (m,) that hold together from fraction `low` of a step to `high`, and how far any pair that may open or close a
    link in between changes its chord at most, from the middle on (0 when no link changes).

    A difference of two points is never farther from its value in the middle than `LEBESGUE` times the farthest of five
    nodes. Only differences count: a cluster that falls as one holds together. Where the ways of both points decide by themselves,
    differences are not looked at.
    """
    m, d = piece.shape[1:]
    states = np.empty((5, m, d))
    for k in range(m):
        if owner[k] == k:
            for node in range(5):
                write_places(piece[:, k : k + 1], low + (high - low) * 0.25 * node, states[node, k : k + 1])
    chord = np.sqrt(bound)
    way = np.empty(m)
    linked = np.zeros((m, m), np.bool_)
    change = 0.0
    for k in range(m):
        if owner[k] != k:
            linked[k, owner[k]] = linked[owner[k], k] = True
            continue
        farthest = 0.0
        for node in range(5):
            farthest = max(farthest, _square(states[node], k, states[2], k))
        way[k] = LEBESGUE * np.sqrt(farthest)
        for j in range(k):
            if owner[j] != j:
                continue
            apart = np.sqrt(_square(states[2], k, states[2], j))
            moved = way[k] + way[j]
            if not (apart + moved <= chord or apart - moved > chord):
                moved = LEBESGUE * np.sqrt(_turn(states, k, j))
            linked[k, j] = linked[j, k] = apart + moved <= chord
            if not linked[k, j] and apart - moved <= chord:
                change = max(change, moved)
    labels, queue, count = np.full(m, -1, np.int64), np.empty(m, np.int64), 0
    for k in range(m):
        if labels[k] < 0:
            _grow(linked, count, labels, k, queue)
            count += 1
    return labels, change


@inner
def _opens(piece, owner, low, high, bound, partition, groups):
    """Whether points that share a label of `partition` (-1: does not matter) may part in a stretch of a step; and the change that
    `held_in` tells."""
    labels, change = held_in(piece, owner, low, high, bound)
    return _parts(labels, partition, groups), change


@inner
def _parts(labels, partition, groups):
    """Whether points that share one of the labels 0 to `groups` of `partition` (-1: does not matter) differ in `labels`."""
    first = np.full(groups + 1, -1, np.int64)
    for k in range(len(labels)):
        group = partition[k]
        if group >= 0:
            if first[group] < 0:
                first[group] = labels[k]
            elif first[group] != labels[k]:
                return True
    return False


@inner
def _parting_in(piece, owner, bound, together, low, high, shallow, resolution):
    """`last_parting` in one step, between two of its fractions: (True, apart, together from then on), or (False, 0, 0)."""
    groups = together.max()
    lows, highs = np.empty(64), np.empty(64)
    lows[0], highs[0], count = low, high, 1
    while count > 0:
        count -= 1
        low, high = lows[count], highs[count]
        opens, change = _opens(piece, owner, low, high, bound, together, groups)
        if not opens:
            continue
        if change > shallow and high - low > resolution and count < 62:
            middle = 0.5 * (low + high)
            lows[count], highs[count], lows[count + 1], highs[count + 1] = low, middle, middle, high
            count += 2
        elif _parts(labels_at(piece, owner, low, bound), together, groups):
            while high - low > resolution:
                middle = 0.5 * (low + high)
                if _parts(labels_at(piece, owner, middle, bound), together, groups):
                    low = middle
                else:
                    high = middle
            return True, low, high
    return False, 0.0, 0.0


# ---------------------------------------------------------------------------------------------------- what films can do


@inner
def look(film, step, u):
    """Clusters (m,) at a moment."""
    return labels_at(film.pieces[step], film.owner[step], u, film.bound)


@inner
def held(film, step, low, high):
    """As `held_in` says."""
    return held_in(film.pieces[step], film.owner[step], low, high, film.bound)


@inner
def locate(film, t):
    """Step and fraction of a time; the end for a later one."""
    step = max(0, np.searchsorted(film.start, t, side="right") - 1)
    return step, min(1.0, max(0.0, (t - film.start[step]) / film.width[step]))


@inner
def last_unsure(film, step, asked, partition):
    """The last step up to `step`, of those that are `asked` for, in which points that share a label of `partition` are not sure to hold
    together; -1 when there is none."""
    groups = partition.max()
    while step >= 0:
        if asked[step]:
            labels, _ = held(film, step, 0.0, 1.0)
            if _parts(labels, partition, groups):
                break
        step -= 1
    return step


@inner
def last_parting(film, together, leaders, begin, end, resolution):
    """The last moment from `begin` to `end`, (step, fraction) both, at which `leaders` that share a label of `together` were in
    different clusters.

    It is proven that nothing happens where it does not look, but that links which open by less than `SHALLOW` of the radius and close
    again may go unseen. Returns (step, apart, together from then on); step -1 when there is none.
    """
    groups = np.full(film.pieces.shape[2], -1, np.int64)
    groups[leaders] = together
    shallow = SHALLOW * film.radius
    for step in range(end[0], begin[0] - 1, -1):
        low, high = begin[1] if step == begin[0] else 0.0, end[1] if step == end[0] else 1.0
        if low < high:
            piece, owner = film.pieces[step], film.owner[step]
            found, apart, after = _parting_in(piece, owner, film.bound, groups, low, high, shallow, resolution)
            if found:
                return step, apart, after
    return -1, 0.0, 0.0
