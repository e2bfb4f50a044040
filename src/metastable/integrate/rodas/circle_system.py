"""Rodas5P on the circle (Q = K = V = I): one pass over the rows does all eight stages.

Token k depends on tokens 1..k only, so with the stages of the earlier tokens known, all eight stages of token k follow from row k
of the Jacobian alone: the row is computed, used eight times while it is in cache, and thrown away. The Jacobian is never stored
(n = 4000 needs no n^2 memory) and the triangular solve rides along with the pair loop of the right-hand side.

Slaved tokens. Once a token sits on the first token of its cluster (its leader) and everything outside pulls the cluster by
less than a small part of the tolerance, it follows its leader with a lag below that pull divided by the attraction
(at least 1/2). It then leaves the state and only its mass stays, added to the leader's column when the sweep passes its
index. The pull is measured after every step and the group is released when it grows. This needs the plain causal mask
without positional bias; frozen tokens are allowed.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from metastable.integrate.rodas.circle_sweep import Rows, attempt, sweep_memory
from metastable.integrate.rodas.control import AT_REST, ENOUGH, HIDDEN, MOVING, RESULT_SIZE, STATE, Calls, with_calls
from metastable.integrate.rodas.tableau import POLYNOMIAL, STAGES, WEIGHTS
from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.fastmath import sincos
from metastable.kernels.cpu.vector import LANES, exp2, fill, keep, load, maximum, total
from metastable.kernels.jacobian_circle import at_stage
from metastable.kernels.minimax import LOG2E

CircleSystem = namedtuple(
    "CircleSystem",
    [
        "angles",  # (n,) angle of every token, that of the leader for a slaved one
        "root",  # (n,) token that stands for this one (itself unless slaved)
        "owner",  # (n,) row of that token
        "leader",  # (n,) token of each row
        "count",  # (2,) number of rows; steps since the last search for groups
        "order",  # (n,) tokens by the angles `places` (n,) at which they were when groups were last looked for
        "places",
        "rows",  # `circle_sweep.Rows`
        "ranges",  # (n, r, 2) visible columns of each row without itself, unused when plain
        "frozen_mass",  # (m,) weights of the frozen tokens, which are the first columns
        "memory",  # of the sweep: `circle_sweep.Sweep`
        "beta",
        "logarithms",  # (n + 1,) log2 of 0 (never used), 1, 2, ...
        "slope",  # of a positional bias, times log2(e)
        "plain",  # 1 when token k sees everybody before it and itself, without bias
        "grouping",  # 1 when tokens may be slaved
        "result",  # see `control`; the error that matters is that from which an attempt may give up early
        "calls",  # addresses of its compiled functions
    ],
)


def make(angles, beta, *, frozen=((), ()), slope=0.0, seen=None, grouping=True) -> CircleSystem:
    """A system at rest at the given angles; `frozen` are the angles and weights of the frozen tokens.

    `seen` None: the plain causal mask; else the columns that each row sees without itself, and who sees itself.
    """
    n = len(angles)
    index = np.arange(n)
    ranges, own = (np.zeros((1, 1, 2), dtype=np.int64), np.ones(n)) if seen is None else seen
    frozen_angles, frozen_mass = (np.array(part, dtype=float) for part in frozen)
    memory = sweep_memory(len(frozen_angles) + n)
    # Frozen tokens are the first columns of every stage.
    memory.stages.cosine[:, : len(frozen_angles)] = np.cos(frozen_angles)
    memory.stages.sine[:, : len(frozen_angles)] = np.sin(frozen_angles)
    system = CircleSystem(
        angles=np.array(angles, dtype=float),
        root=index.copy(),
        owner=index.copy(),
        leader=index.copy(),
        count=np.array([n, 0]),
        order=index.copy(),
        places=np.zeros(n),
        rows=Rows(np.ones(n), own, *np.zeros((3, n))),
        ranges=ranges,
        frozen_mass=frozen_mass,
        memory=memory,
        beta=float(beta),
        logarithms=np.log2(np.maximum(1, np.arange(n + 1))),
        slope=float(slope * LOG2E),
        plain=int(seen is None and slope == 0.0),
        grouping=int(grouping and seen is None and slope == 0.0),
        result=np.zeros(RESULT_SIZE),
        calls=Calls(0, 0, 0, 0),
    )
    system.result[ENOUGH] = np.inf
    return with_calls(system, attempt, _commit, _polynomial, _settled, piece=np.zeros((5, n, 1)))


@inner
def _polynomial(system, piece):
    """Dense output in the angle."""
    frozen, increments = system.frozen_mass.size, system.memory.stages.vector
    for k in range(system.angles.size):
        column = frozen + system.owner[k]
        piece[0, k, 0] = system.angles[k]
        for power in range(4):
            value = 0.0
            for i in range(STAGES):
                value += POLYNOMIAL[power, i] * increments[i, column]
            piece[power + 1, k, 0] = value


BLUR = 2e-15
"""Rounding errors of the difference of two angles near pi, radians."""


@inner
def _settled(system, threshold):
    """At rest when every row is stable and within `threshold` of the rest that Newton predicts, or feels exactly nothing.

    Hidden when a row is unstable and nearer to the place of its rest than angles can tell: antipodes, whose angle is never
    exactly pi.
    """
    state = AT_REST
    for r in range(system.count[0]):
        force = abs(system.rows.velocity[r])
        diagonal = system.rows.diagonal[r]
        if force == 0.0 or (diagonal < 0.0 and force <= -diagonal * threshold):
            continue
        if not force <= diagonal * BLUR:
            state = MOVING
            break
        state = HIDDEN
    system.result[STATE] = state


# ------------------------------------------------------------------------------------------------------- slaved tokens

JOIN = 1e-3
"""A token joins its leader within this part of the tolerance."""
RELEASE = 1e-1
"""A group is released when the pull from outside exceeds this part of the tolerance; it forms below a quarter of it."""
GROUP_EVERY = 4
"""Accepted steps between two searches for new groups."""


@inlined
def place(system):
    """Cosines, sines and masses of all rows at the current angles, in the columns of stage 1."""
    columns, masses, frozen = at_stage(system.memory.stages, 0), system.memory.masses, system.frozen_mass.size
    for j in range(frozen):
        masses[j] = system.frozen_mass[j]
    for r in range(system.count[0]):
        s, c = sincos(system.angles[system.leader[r]])
        columns.cosine[frozen + r] = c
        columns.sine[frozen + r] = s
        masses[frozen + r] = system.rows.size[r]


@inner
def _outside(system, r, radius):
    """Bound on what everything farther than `radius` adds to the force on any token of row r."""
    masses, frozen = system.memory.masses, system.frozen_mass.size
    columns = at_stage(system.memory.stages, 0)
    c, s = columns.cosine[frozen + r], columns.sine[frozen + r]
    stop = frozen + system.count[0]
    scale = system.beta * LOG2E
    result = fill(0.0)
    for j in range(0, stop, LANES):
        cj = load(columns.cosine, j)
        sj = load(columns.sine, j)
        angle = sj * c - cj * s
        weight = keep(load(masses, j), stop - j) * exp2((cj * c + sj * s - 1.0) * scale)
        result += weight * maximum(maximum(angle, 0.0 - angle) - 2.0 * radius, fill(0.0))
    return total(result)


@inlined
def release(system, limit, radius):
    """Give back their freedom to the tokens of groups that are pulled apart."""
    changed = False
    for r in range(system.count[0]):
        if system.rows.size[r] > 1.0 and _outside(system, r, radius) > limit:
            changed = True
            for k in range(system.angles.size):
                if system.owner[k] == r:
                    system.root[k] = k
    return changed


@inlined
def _sort(order, places):
    """Sort tokens by their places. They are where they were a few steps ago, all but in order: insertion is the fastest way."""
    for last in range(1, order.size):
        token = order[last]
        q = last
        while q > 0 and places[order[q - 1]] > places[token]:
            order[q] = order[q - 1]
            q -= 1
        order[q] = token


@inlined
def join(system, limit, radius):
    """Slave the tokens that sit on an earlier one while nothing pulls at them."""
    order, places, n = system.order, system.places, system.angles.size
    turn = 2.0 * math.pi
    changed = False
    for k in range(n):
        places[k] = system.angles[k] - turn * math.floor(system.angles[k] / turn)
    _sort(order, places)
    first = 0
    while first < n:
        last, head, slaves = first, order[first], 0
        while last + 1 < n and places[order[last + 1]] - places[order[last]] <= radius:
            last += 1
            head = min(head, order[last])
        for q in range(first, last + 1):
            slaves += system.root[order[q]] != order[q]
        # The first token of a chain leads itself: whoever leads another token sits at the same place.
        if last > first + slaves and _outside(system, system.owner[head], radius) <= limit:
            for q in range(first, last + 1):
                token = order[q]
                if token != head and system.root[token] == token and abs(places[token] - places[head]) <= radius:
                    changed = True
                    _enslave(system, token, head)
        first = last + 1
    return changed


@inlined
def _enslave(system, token, head):
    """Hand a token and those that follow it over to another one."""
    for k in range(system.angles.size):
        if system.root[k] == token:
            system.root[k] = head
            system.angles[k] = system.angles[head]


@inlined
def renumber(system):
    """Rows, leaders, owners and sizes from `root`."""
    rows = 0
    for k in range(system.angles.size):
        if system.root[k] == k:
            system.leader[rows] = k
            system.rows.size[rows] = 1.0
            system.owner[k] = rows
            rows += 1
        else:
            r = system.owner[system.root[k]]
            system.owner[k] = r
            system.rows.size[r] += 1.0
    system.count[0] = rows


@inlined
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


@inner
def _commit(system, tolerance):
    """Move the rows, and their slaves with them."""
    frozen, increments = system.frozen_mass.size, system.memory.stages.vector
    for r in range(system.count[0]):
        step = 0.0
        for i in range(STAGES):
            step += WEIGHTS[i] * increments[i, frozen + r]
        system.angles[system.leader[r]] += step
    for k in range(system.angles.size):
        system.angles[k] = system.angles[system.root[k]]
    if system.grouping:
        regroup(system, tolerance)
