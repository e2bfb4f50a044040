"""The flow of the leaders of clusters: few points with masses, Rodas5P, any horizon.

When the tokens of every cluster sit on its leader (its first token), the leaders move among themselves as

    dx_k/dt = P_{x_k} D_k,     D_k = sum_j p_kj (x_j - x_k),     p_kj = m_kj exp(beta x_k^T M (x_j - x_k)) / Z_k,

with M = Q^T K, V = I, and m_kj the number of tokens of cluster j that leader k sees (m_kk its own ones). Under a
causal mask m is lower triangular and m_kk = 1: each leader is one token among the places and masses of those before
it. Under full attention m_kj is the size of cluster j.

The method is that of `integrate.rodas.points`: single points are solved one after the other when the order of the leaders is that of
their influence, all at once otherwise.

A leader that has come within `reach` of another is one with it from then on: its mass moves over, and it leaves the
system. What is still pulled elsewhere follows later, as tokens of one cluster do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate.rodas.control import EXHAUSTED, REACHED, T, first_control
from metastable.integrate.rodas.forces import Surroundings, lines_of, width_for
from metastable.integrate.rodas.points import STILL as STILL
from metastable.integrate.rodas.points import TAKEN, Work, make_work, places_of, step
from metastable.kernels.cpu.compiled import allocating, compiled, inner
from metastable.kernels.cpu.memory import Reference
from metastable.kernels.cpu.vector import LANES

FIRST_STEP = 1e-2
LATE = 10.0
"""Tolerances by which a step of a fall may be late, over the time at which it happens: at the default one hundred-thousandth of the
time, a few times as much in all. (The tolerance itself makes merges late by about beta times as much: up to 4e-4 of the time.)"""
FEW_LEFT = 0.75
"""Share of the points that are still alone at which the others are left behind, where all are solved at once."""
ROOM = 512
"""Steps for which memory is made at first; it grows as needed."""

# How a march ended, besides REACHED, EXHAUSTED and LOST of `rodas.control` and STILL of `rodas.points`; the last one is the end of a
# stretch only.
ONE_LEFT, FEWER = range(20, 22)


class Path(NamedTuple):
    """Where the leaders went: s steps of m leaders.

    begin, width : (s,) each step; pieces : (s, 5, m, d) coefficients of powers of the fraction u of a step, to be
    normalised;
    owner : (s, m) the leader that each one is one with during the step (itself while it moves alone); code : how it
        ended; end : the last time.
    """

    begin: FloatArray
    width: FloatArray
    pieces: FloatArray
    owner: np.ndarray
    code: int
    end: float


@inner
def _square(x, k, j):
    """|x_k - x_j|^2 of points in lines (d, width)."""
    total = 0.0
    for a in range(len(x)):
        total += (x[a, k] - x[a, j]) ** 2
    return total


@inner
def _absorb(surroundings, work):
    """Join leaders that have met; returns how many are left. The earlier one stands for both, where their masses put them."""
    x, masses = work.origin, surroundings.masses
    m = len(work.owner)
    left = 0
    for k in range(m):
        if work.alone[k] == 0.0:
            continue
        left += 1
        for j in range(k):
            if work.alone[j] == 0.0 or not _square(x, k, j) < surroundings.reach**2:
                continue
            fraction = masses[k, j] / (masses[k, j] + masses[j, j])  # 0 where the earlier one does not see the other
            for a in range(len(x)):
                x[a, j] += fraction * (x[a, k] - x[a, j])
            for i in range(m):
                masses[j, i] += masses[k, i]
                masses[k, i] = 0.0
                if work.owner[i] == k:
                    work.owner[i] = j
            work.alone[k] = 0.0
            left -= 1
            break
    return left


@inner
def _gathered(work, distance):
    """Whether every leader is within `distance` (a chord) of the first."""
    near = True
    for k in range(1, len(work.owner)):
        near = near and _square(work.origin, k, 0) < distance**2
    return near


@allocating
def _grown(array):
    """A copy with room for twice as many steps."""
    larger = np.empty((2 * len(array), *array.shape[1:]), dtype=array.dtype)
    known, room = array.ravel(), larger.ravel()
    for entry in range(known.size):
        room[entry] = known[entry]
    return larger


@compiled
def _march(surroundings, work, control, goal, limits, tries):
    """Steps to the end, or to `limits`: their begins, widths, polynomials and owners, how it ended, and how many of the `tries` are
    left. `goal` as for `points.step`; limits: the distance at which all have gathered, the number of points moving alone at which a
    stretch ends, and whether no step was made before."""
    gathered, fewest, first = limits
    m, d = len(work.owner), len(work.origin)
    begins, widths, pieces = np.empty(ROOM), np.empty(ROOM), np.empty((ROOM, 5, m, d))
    owners = np.empty((ROOM, m), dtype=np.int64)
    steps = 0
    left = _absorb(surroundings, work)
    while True:
        code = ONE_LEFT if left == 1 else REACHED if control[T] >= goal[0] else EXHAUSTED if tries <= 0 else TAKEN
        if code == TAKEN and left <= fewest:
            code = FEWER
        if code != TAKEN:
            break
        if steps == len(begins):
            begins, widths, pieces, owners = _grown(begins), _grown(widths), _grown(pieces), _grown(owners)
        begins[steps] = control[T]
        for k in range(m):
            owners[steps, k] = work.owner[k]
        widths[steps], tries, code = step(surroundings, work, control, goal, tries, first and steps == 0, pieces[steps])
        if code != TAKEN:
            break
        steps += 1
        left = 1 if _gathered(work, gathered) else _absorb(surroundings, work)
    return begins[:steps], widths[:steps], pieces[:steps], owners[:steps], code, tries


@compiled
def _write_all(pieces, owners, names, stands, all_pieces, all_owners):
    """Pieces and owners of the points `names`, into those of all points, for whom the points number `stands` (m,) of them stand."""
    for number in range(len(pieces)):
        for k in range(len(stands)):
            all_owners[number, k] = names[owners[number, stands[k]]]
            for power in range(pieces.shape[1]):
                for a in range(pieces.shape[3]):
                    all_pieces[number, power, k, a] = pieces[number, power, stands[k], a]


def _fewest(surroundings: Surroundings, work: Work) -> int:
    """How many points that move alone are so few that the others are left behind: they make a vector less, or a smaller system."""
    count = len(work.owner)
    return int(FEW_LEFT * count) if surroundings.together > len(work.y) else width_for(count) - LANES


def _those_left(surroundings: Surroundings, work: Work) -> tuple[np.ndarray, Surroundings, Work]:
    """The points that move alone (their numbers), and what moves them: others have no mass."""
    left = np.flatnonzero(work.alone)
    n = len(work.y)
    together = n * int((left < surroundings.together // n).sum())
    masses = lines_of(surroundings.masses[np.ix_(left, left)].T)
    work = make_work(places_of(work)[left], together)
    return left, surroundings._replace(masses=masses, together=together), work


def solve(
    places: FloatArray,
    surroundings: Surroundings,
    *,
    begin: float,
    until: float,
    tolerance: float,
    max_steps: int,
    gathered: float = 0.0,
    late: float = LATE,
    before: Path | None = None,
) -> Path:
    """Move leaders at `places` (m, d) from time `begin` until one is left, nothing moves any more, or `until` (see `Path`).

    They also count as one when all are within `gathered` (a chord) of the first. Well below 1/(beta |M|) all logits are equal there, so
    everybody goes to the first one, which stands still.

    `late`: a step of a point that falls may be off by the tolerance times late t |v| along its velocity v. That delays the fall by late
    times the tolerance of its time t, and lets its last decades pass in half as many steps.

    `before`: the way until `begin`, of the same points; the path that is returned begins with it.

    Whoever has joined another one costs hardly anything more: most steps of a cascade are those of the last two or three.
    """
    surroundings = surroundings._replace(masses=np.array(surroundings.masses, dtype=float))
    control = first_control(float(begin), FIRST_STEP)
    work = make_work(places, surroundings.together)
    goal = (float(until), float(tolerance), float(late))
    m, d = places.shape
    names, stands, code, tries = np.arange(m), np.arange(m), FEWER, max_steps
    stretches: list[tuple[Any, ...]] = [] if before is None else [(*before[:4], names, stands)]
    while code == FEWER:
        limits = (float(gathered), _fewest(surroundings, work), tries == max_steps)
        *found, code, tries = _march(Reference(surroundings), Reference(work), control, goal, limits, tries)
        stretches.append((*found, names, stands))
        if code == FEWER:
            left, surroundings, smaller = _those_left(surroundings, work)
            names, stands, work = names[left], np.searchsorted(left, work.owner)[stands], smaller
    if len(stretches) == 1:
        begins, widths, pieces, owners, *_ = stretches[0]
        return Path(begins, widths, pieces, owners, int(code), float(control[T]))
    steps = sum(len(stretch[0]) for stretch in stretches)
    pieces, owners, done = np.empty((steps, 5, m, d)), np.empty((steps, m), dtype=np.int64), 0
    for begins, _, part, owner, known, standing in stretches:
        end = done + len(begins)
        _write_all(part, owner, known, standing, pieces[done:end], owners[done:end])
        done = end
    begins, widths = (np.concatenate([stretch[number] for stretch in stretches]) for number in (0, 1))
    return Path(begins, widths, pieces, owners, int(code), float(control[T]))
