"""A film read backwards: which clusters of a run, or of a path of points, merged into which, and when.

A film has moments (a step and a fraction of it), clusters that can be looked at, and bounds on how long they hold: see `_film`. Runs
have many tokens and dense output of several kinds, and their film is an object. Paths of points (`_paths.PathFilm`) have few, a
prediction reads a dozen of them, and their film is compiled. What is written here serves both: plain Python that Numba can
compile. The functions `look`, `held`, `locate`, `last_unsure` and `last_parting` are methods of the object, and those of `_paths`.

Only ever imported inside functions: Numba takes half a second to load.
"""

# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from metastable._jit import PART
from metastable.analysis import _paths
from metastable.analysis._kernels import by_first_token, compiled, first_of_each, friends, refine

EARLIEST = 1e-6
"""The first checkpoint."""
BRIEF = tuple(2.0**-power for power in range(7, -1, -1))
"""How long before the end of a separation it is looked whether there was none, in halves of a window."""
TINY, HUGE = 1e-300, 1e300
"""Instead of time 0, which has no logarithm; beyond the other one, multiples of times leave double precision."""
CHILD, PARENT, CHILD_SIZE, PARENT_SIZE = range(4)
"""Columns of merges."""


OPTIONS: Any = {**PART, "error_model": "numpy", "nogil": True}
shared = register_jitable(**OPTIONS)
"""For functions that are called from Python as they are, and compiled into compiled ones."""

# ------------------------------------------------------------------------------------------------ what a film can do


def _of_films(name):
    """The function `name` of films: a method where it is an object, `_paths.name` for a compiled one."""
    quick = getattr(_paths, name)

    def function(film, *arguments):
        return getattr(film, name)(*arguments)

    function.__name__ = name

    @overload(function, jit_options=OPTIONS)
    def _(film, *arguments):
        if isinstance(film, types.NamedTuple):
            return lambda film, *arguments: quick(film, *arguments)
        return None

    return function


look, held, locate, last_unsure, last_parting = map(
    _of_films, ("look", "held", "locate", "last_unsure", "last_parting")
)


@shared
def time_of(film, moment):
    """The time at a fraction of a step."""
    return film.start[moment[0]] + moment[1] * film.width[moment[0]]


# ------------------------------------------------------------------------------------------------------ checkpoints


@shared
def _half_at(t, half):
    """Number of the last half window that has begun at time t, -1 when none has."""
    if not t > 0.0:
        return -1
    since = math.log(t / EARLIEST) if t < HUGE else math.log(t) - math.log(EARLIEST)
    return max(-1, math.floor(since / half))


@shared
def _begin_of(number, half):
    """When a half window begins."""
    since = number * half
    return EARLIEST * math.exp(since) if since < 700.0 else math.exp(min(709.0, since + math.log(EARLIEST)))


@shared
def _checkpoint(film, window, half):
    """The begin or the middle of a window, where there are fewer clusters, and these; the end where one of them is outside (so a
    window that the end cuts has two, as all have). Before the first window: the start."""
    if window < 0:
        return (0, 0.0), look(film, 0, 0.0)
    end = time_of(film, (len(film.start) - 1, 1.0))
    begin, middle = _begin_of(2 * window, half), _begin_of(2 * window + 1, half)
    first = locate(film, begin if begin < end else math.inf)
    second = locate(film, middle if middle < end else math.inf)
    there, then = look(film, first[0], first[1]), look(film, second[0], second[1])
    return (first, there) if there.max() <= then.max() else (second, then)


@shared
def _since(times):
    """log(times / EARLIEST), of many."""
    late = np.log(np.maximum(times, HUGE)) - math.log(EARLIEST)
    return np.where(times < HUGE, np.log(np.minimum(times, HUGE) / EARLIEST), late)


@shared
def _touched(film, half):
    """Which steps (steps,) touch a window that those before them do not: the others are told by their neighbours."""
    begins, ends = np.maximum(film.start, TINY), np.maximum(film.start + film.width, TINY)
    before, after = np.floor(_since(begins) / half), np.floor(_since(ends) / half)
    return np.maximum(before, -1.0) < np.maximum(after, -1.0)


# --------------------------------------------------------------------------------------------------------- merges


@shared
def no_merges(tokens):
    """Room for all merges of so many tokens: when each was apart and together (m, 2), and `CHILD` to `PARENT_SIZE` of it (m, 4)."""
    return np.empty((tokens, 2)), np.empty((tokens, 4), np.int64)


@shared
def record(merges, count, earlier, later, tokens, weight, moments):
    """Enter every merge that leads from the finer partition `earlier` to the coarser `later`, from the last one on, behind the `count`
    that are known; returns how many are known then.

    Both are partitions of the clusters led by `tokens`, which have `weight` tokens each. `moments`: when they were apart, and together.
    """
    times, rows = merges
    first = first_of_each(earlier)
    sizes = np.zeros(len(first), np.int64)
    for k in range(len(earlier)):
        sizes[earlier[k]] += weight[k]
    home = later[first]
    known, parents = count, first_of_each(home)
    size = sizes[parents]
    for part in np.argsort(home, kind="mergesort"):  # cluster by cluster, in order of their leaders
        parent = home[part]
        if parents[parent] != part:
            rows[count, CHILD], rows[count, PARENT] = tokens[first[part]], tokens[first[parents[parent]]]
            rows[count, CHILD_SIZE], rows[count, PARENT_SIZE] = sizes[part], size[parent]
            times[count, 0], times[count, 1] = moments
            size[parent] += sizes[part]
            count += 1
    for row in range((count - known) // 2):
        for column in range(4):
            here, there = rows[known + row, column], rows[count - 1 - row, column]
            rows[known + row, column], rows[count - 1 - row, column] = there, here
    return count


@shared
def _look_for_friends(film, half, after, begin, leaders, apart, later, here, friend, before):
    """Who of the leaders that are `here` is `apart` for less than half a window before the moment `after`: with whom of the
    others it was together before that, to `friend`, and when, to `before` (step and fraction)."""
    first = first_of_each(later)[later]
    mates = here & (apart == apart[first])
    away = here & ~mates
    for part in BRIEF:
        moment = locate(film, time_of(film, after) * (1.0 - part * half))
        if moment <= begin or not away.any():
            break
        found = friends(look(film, moment[0], moment[1])[leaders], first, mates, away)
        for k in np.flatnonzero(found >= 0):
            friend[k], away[k] = found[k], False
            before[0][k], before[1][k] = moment


@shared
def _with_friends(labels, friend):
    """Labels of those that leaders are with: of their `friend`, who may be with another one."""
    there = friend
    while (there != friend[there]).any():
        there = friend[there]
    return labels[there]


@shared
def _chase(film, half, resolution, begin, end, leaders, sizes, together, merges, count):
    """Enter the merges between two moments, backwards: the leaders (of clusters of these sizes) are all apart at the first, and as
    `together` says at the second.

    Whoever is away for a moment only is with its `friend`, with whom it was `before` that, and is not looked at until then.
    """
    later = together
    own = np.arange(len(leaders))
    friend = own.copy()
    before = np.full(len(leaders), begin[0]), np.full(len(leaders), begin[1])
    while later.max() + 1 < len(leaders):  # else all are apart, and nothing is left to be found
        here = friend == own
        since = begin
        for k in np.flatnonzero(~here):
            if since < (before[0][k], before[1][k]):
                since = (before[0][k], before[1][k])
        groups = later[here]
        step, low, high = last_parting(
            film, by_first_token(groups, later.max() + 1), leaders[here], since, end, resolution
        )
        if step < 0 and here.all():
            break
        if step < 0:
            end = since
            friend = np.where((before[0] == since[0]) & (before[1] == since[1]), own, friend)
            continue
        end, after = (step, low), (step, high)
        apart = look(film, step, low)[leaders]
        earlier = refine(_with_friends(by_first_token(apart, apart.max() + 1), friend), later)
        _look_for_friends(film, half, after, begin, leaders, earlier, later, here, friend, before)
        earlier = by_first_token(_with_friends(earlier, friend), earlier.max() + 1)
        if earlier.max() > later.max():
            moments = time_of(film, end), time_of(film, after)
            count = record(merges, count, earlier, later, leaders, sizes, moments)
            later = earlier
    return count


@shared
def _compare(film, half, resolution, window, partition, merges, count):
    """Who of those that share a cluster of `partition` was together at the checkpoint of this window (-1: at the start), too? The
    others merge before the next one. Returns what is shared at both, and how many merges are known."""
    begin, state = _checkpoint(film, window, half)
    earlier = refine(state, partition)
    if earlier.max() > partition.max():
        leaders, sizes = first_of_each(earlier), np.bincount(earlier)
        home = partition[leaders]
        moving = leaders[np.bincount(home)[home] > 1]
        # The next checkpoint behind the start is in the window where the first half begins after it, or in the one behind that.
        later = window + 1 if window >= 0 else (_half_at(time_of(film, (0, 0.0)), half) + 1) // 2
        end = _checkpoint(film, later, half)[0]
        if end <= begin:
            end = _checkpoint(film, later + 1, half)[0]
        together = by_first_token(partition[moving], partition.max() + 1)
        weight = sizes[earlier[moving]]
        count = _chase(film, half, resolution, begin, end, moving, weight, together, merges, count)
    return earlier, count


@shared
def rewind(film, window, resolution):
    """The merges of a film by windows of this relative length, and of bisections to this fraction of a step, from the last to the
    first, as in `no_merges`; who shares a cluster at all checkpoints, and who at the end (n,)."""
    half, last = 0.5 * math.log1p(window), len(film.start) - 1
    final = partition = look(film, last, 1.0)
    merges, count = no_merges(len(final)), 0
    asked = _touched(film, half)
    step = last_unsure(film, last, asked, partition)
    stretches = [(0.0, 1.0)]
    while step >= 0:
        if len(stretches) == 0:
            step = last_unsure(film, step - 1, asked, partition)
            stretches.append((0.0, 1.0))
            continue
        # Nothing is to be done where it is sure that nothing changes, or where no window begins.
        low, high = stretches.pop()
        first, until = _half_at(time_of(film, (step, low)), half) + 1, _half_at(time_of(film, (step, high)), half)
        if first > until or refine(held(film, step, low, high)[0], partition).max() == partition.max():
            continue
        if first == until or high - low <= resolution:
            partition, count = _compare(film, half, resolution, until // 2, partition, merges, count)
        else:
            middle = 0.5 * (low + high)
            stretches += [(low, middle), (middle, high)]
    partition, count = _compare(film, half, resolution, -1, partition, merges, count)
    return (merges[0][:count], merges[1][:count]), partition, final


rewind_path = compiled(lambda film, window, resolution: rewind(film, window, resolution))
