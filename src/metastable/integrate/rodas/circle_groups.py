"""Slaved tokens on the circle: who may follow a leader, and when groups are released (see `circle`)."""

from __future__ import annotations

import numpy as np

from metastable.integrate.rodas.circle_sweep import COSINE, SINE, SIZE
from metastable.kernels.cpu.compiled import allocating as helper
from metastable.kernels.cpu.compiled import inner as kernel
from metastable.kernels.cpu.fastmath import LOG2E, sincos
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, load, maximum, total

JOIN = 1e-3
"""A token joins its leader within this part of the tolerance."""
RELEASE = 1e-1
"""A group is released when the pull from outside exceeds this part of the tolerance; it forms below a quarter of it."""
GROUP_EVERY = 4
"""Accepted steps between two searches for new groups."""


@kernel
def place(system):
    """Cosines, sines and masses of all rows at the current angles, in the columns of stage 1."""
    stages, masses, frozen = system.memory.stages, system.memory.masses, system.frozen_mass.size
    for j in range(frozen):
        masses[j] = system.frozen_mass[j]
    for r in range(system.count[0]):
        s, c = sincos(system.angles[system.leader[r]])
        stages[0, COSINE, frozen + r] = c
        stages[0, SINE, frozen + r] = s
        masses[frozen + r] = system.rows[SIZE, r]


@kernel
def _outside(system, r, radius):
    """Bound on what everything farther than `radius` adds to the force on any token of row r."""
    masses, frozen = system.memory.masses, system.frozen_mass.size
    cosine, sine = system.memory.stages[0, COSINE], system.memory.stages[0, SINE]
    c, s = cosine[frozen + r], sine[frozen + r]
    stop = frozen + system.count[0]
    scale = system.beta * LOG2E
    result = fill(0.0)
    for j in range(0, stop, LANES):
        cj = load(cosine, j)
        sj = load(sine, j)
        angle = sj * c - cj * s
        weight = keep(load(masses, j), stop - j) * exp2((cj * c + sj * s - 1.0) * scale)
        result += weight * maximum(maximum(angle, 0.0 - angle) - 2.0 * radius, fill(0.0))
    return total(result)


@kernel
def release(system, limit, radius):
    """Give back their freedom to the tokens of groups that are pulled apart."""
    changed = False
    for r in range(system.count[0]):
        if system.rows[SIZE, r] > 1.0 and _outside(system, r, radius) > limit:
            changed = True
            for k in range(system.angles.size):
                if system.owner[k] == r:
                    system.root[k] = k
    return changed


@helper
def join(system, limit, radius):
    """Slave the tokens that sit on an earlier one while nothing pulls at them."""
    rows = system.count[0]
    changed = False
    place = np.empty(rows)
    for r in range(rows):
        angle = system.angles[system.leader[r]]
        place[r] = angle - 2.0 * np.pi * np.floor(angle / (2.0 * np.pi))
    order = np.argsort(place)
    first = 0
    while first < rows:
        last = first
        while last + 1 < rows and place[order[last + 1]] - place[order[last]] <= radius:
            last += 1
        if last > first:
            head = order[first]
            for q in range(first, last + 1):
                head = min(head, order[q])
            if _outside(system, head, radius) <= limit:
                for q in range(first, last + 1):
                    if abs(place[order[q]] - place[head]) <= radius and order[q] != head:
                        changed = True
                        _enslave(system, order[q], head)
        first = last + 1
    return changed


@kernel
def _enslave(system, row, head):
    """Hand the tokens of a row over to the leader of another row."""
    master = system.leader[head]
    for k in range(system.angles.size):
        if system.owner[k] == row and system.root[k] == system.leader[row]:
            system.root[k] = master
            system.angles[k] = system.angles[master]


@kernel
def renumber(system):
    """Rows, leaders, owners and sizes from `root`."""
    rows = 0
    for k in range(system.angles.size):
        if system.root[k] == k:
            system.leader[rows] = k
            system.rows[SIZE, rows] = 1.0
            system.owner[k] = rows
            rows += 1
        else:
            r = system.owner[system.root[k]]
            system.owner[k] = r
            system.rows[SIZE, r] += 1.0
    system.count[0] = rows


@helper
def regroup(system, tolerance):
    """Release groups that are pulled apart, and every few steps look for new ones."""
    place(system)
    changed = release(system, RELEASE * tolerance, JOIN * tolerance)
    system.count[1] += 1
    if system.count[1] >= GROUP_EVERY:
        system.count[1] = 0
        changed |= join(system, 0.25 * RELEASE * tolerance, JOIN * tolerance)
    if changed:
        renumber(system)
