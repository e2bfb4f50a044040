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

from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate.rodas.control import REACHED, T, first_control
from metastable.integrate.rodas.forces import Surroundings
from metastable.integrate.rodas.points import STILL as STILL
from metastable.integrate.rodas.points import TAKEN, make_work, step
from metastable.kernels.cpu.compiled import allocating, compiled, inner
from metastable.kernels.cpu.memory import Reference

FIRST_STEP = 1e-2
ROOM = 512
"""Steps for which memory is made at first; it grows as needed."""

ONE_LEFT = 20
"""How a march ended, besides REACHED, EXHAUSTED and LOST of `rodas.control` and STILL of `rodas.points`."""


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


def joined(one: Path, other: Path) -> Path:
    """A path and its continuation."""
    pairs = ((getattr(one, name), getattr(other, name)) for name in ("begin", "width", "pieces", "owner"))
    return Path(*(np.concatenate(pair) for pair in pairs), code=other.code, end=other.end)


@inner
def _absorb(surroundings, work):
    """Join leaders that have met; returns how many are left. The earlier one stands for both, where their masses put them."""
    x, masses = work.charts.origin, surroundings.masses
    m, d = x.shape
    left = 0
    for k in range(m):
        if not work.alone[k]:
            continue
        left += 1
        for j in range(k):
            if not work.alone[j]:
                continue
            square = 0.0
            for a in range(d):
                square += (x[k, a] - x[j, a]) ** 2
            if not square < surroundings.reach**2:
                continue
            fraction = masses[j, k] / (masses[j, k] + masses[j, j])  # 0 where the earlier one does not see the other
            for a in range(d):
                x[j, a] += fraction * (x[k, a] - x[j, a])
            for i in range(m):
                masses[i, j] += masses[i, k]
                masses[i, k] = 0.0
                if work.owner[i] == k:
                    work.owner[i] = j
            work.alone[k] = 0
            left -= 1
            break
    return left


@inner
def _gathered(work, distance):
    """Whether every leader is within `distance` (a chord) of the first."""
    x = work.charts.origin
    m, d = x.shape
    for k in range(1, m):
        square = 0.0
        for a in range(d):
            square += (x[k, a] - x[0, a]) ** 2
        if not square < distance**2:
            return False
    return True


@allocating
def _grown(array):
    """A copy with room for twice as many steps."""
    larger = np.zeros((2 * len(array), *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger


@compiled
def _march(surroundings, work, control, goal, max_steps, gathered):
    """Steps to the end (`goal`: when, and the tolerance): their begins, widths, polynomials and owners, and how it ended."""
    m, d = work.charts.origin.shape
    begins, widths, pieces = np.zeros(ROOM), np.zeros(ROOM), np.zeros((ROOM, 5, m, d))
    owners = np.zeros((ROOM, m), dtype=np.int64)
    steps, tries = 0, max_steps
    left = _absorb(surroundings, work)
    while True:
        code = ONE_LEFT if left == 1 else REACHED
        if left == 1 or control[T] >= goal[0]:
            break
        if steps == len(begins):
            begins, widths, pieces, owners = _grown(begins), _grown(widths), _grown(pieces), _grown(owners)
        begins[steps], owners[steps] = control[T], work.owner
        widths[steps], tries, code = step(surroundings, work, control, goal, tries, steps == 0, pieces[steps])
        if code != TAKEN:
            break
        steps += 1
        left = 1 if _gathered(work, gathered) else _absorb(surroundings, work)
    return begins[:steps], widths[:steps], pieces[:steps], owners[:steps], code


def solve(
    places: FloatArray,
    surroundings: Surroundings,
    *,
    begin: float,
    until: float,
    tolerance: float,
    max_steps: int,
    gathered: float = 0.0,
) -> Path:
    """Move leaders at `places` (m, d) from time `begin` until one is left, nothing moves any more, or `until` (see `Path`).

    They also count as one when all are within `gathered` (a chord) of the first. Well below 1/(beta |M|) all logits are equal there, so
    everybody goes to the first one, which stands still.
    """
    surroundings = surroundings._replace(masses=np.array(surroundings.masses, dtype=float))
    control = first_control(float(begin), FIRST_STEP)
    work = make_work(places, surroundings.together)
    goal = float(until), float(tolerance)
    begins, widths, pieces, owners, code = _march(
        Reference(surroundings), Reference(work), control, goal, max_steps, float(gathered)
    )
    return Path(begins, widths, pieces, owners, int(code), float(control[0]))
