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

from collections import namedtuple

import numpy as np

from metastable.integrate.rodas.circle_groups import regroup
from metastable.integrate.rodas.circle_sweep import DIAGONAL, INCREMENT, VELOCITY, attempt, put_frozen, sweep_memory
from metastable.integrate.rodas.control import AT_REST, HIDDEN, MOVING, register
from metastable.integrate.rodas.tableau import POLYNOMIAL, STAGES, WEIGHTS
from metastable.kernels.cpu.compiled import address_of
from metastable.kernels.cpu.compiled import allocating as helper
from metastable.kernels.cpu.compiled import inner as kernel
from metastable.kernels.cpu.fastmath import LOG2E

CircleSystem = namedtuple(
    "CircleSystem",
    [
        "angles",  # (n,) angle of every token, that of the leader for a slaved one
        "root",  # (n,) token that stands for this one (itself unless slaved)
        "owner",  # (n,) row of that token
        "leader",  # (n,) token of each row
        "count",  # (2,) number of rows; steps since the last search for groups
        "rows",  # (5, n) for each row: tokens it stands for, its own weight, velocity, J_kk, inverse pivot
        "ranges",  # (n, r, 2) visible columns of each row without itself, unused when plain
        "frozen_mass",  # (m,) weights of the frozen tokens, which are the first columns
        "memory",  # of the sweep: `circle_sweep.Sweep`
        "beta",
        "logarithms",  # (n + 1,) log2 of 0 (never used), 1, 2, ...
        "slope",  # of a positional bias, times log2(e)
        "plain",  # True when token k sees everybody before it
        "grouping",  # True when tokens may be slaved
        "result",  # (4,) what the last attempt returned, and the error from which it may give up early
        "address",  # of the compiled attempt
    ],
)


def make(angles, beta, *, frozen_angles, frozen_mass, slope, ranges, own, grouping) -> CircleSystem:
    """A system at rest at the given angles. `ranges` None: the plain causal mask."""
    n = len(angles)
    index = np.arange(n)
    memory = sweep_memory(len(frozen_angles) + n)
    put_frozen(memory, np.asarray(frozen_angles, dtype=float))
    system = CircleSystem(
        angles=np.array(angles, dtype=float),
        root=index.copy(),
        owner=index.copy(),
        leader=index.copy(),
        count=np.array([n, 0]),
        rows=np.array([np.ones(n), own, *np.zeros((3, n))]),
        ranges=np.zeros((1, 1, 2), dtype=np.int64) if ranges is None else ranges,
        frozen_mass=np.array(frozen_mass, dtype=float),
        memory=memory,
        beta=float(beta),
        logarithms=np.log2(np.maximum(1, np.arange(n + 1))),
        slope=float(slope * LOG2E),
        plain=ranges is None,
        grouping=bool(grouping and ranges is None and slope == 0.0),
        result=np.array([0.0, 0.0, 0.0, np.inf]),
        address=0,
    )
    return system._replace(address=address_of(attempt, system, 1.0))


@kernel
def _polynomial(system, piece):
    frozen, stages = system.frozen_mass.size, system.memory.stages
    for k in range(system.angles.size):
        column = frozen + system.owner[k]
        piece[0, k, 0] = system.angles[k]
        for power in range(4):
            value = 0.0
            for i in range(STAGES):
                value += POLYNOMIAL[power, i] * stages[i, INCREMENT, column]
            piece[power + 1, k, 0] = value


BLUR = 2e-15
"""Rounding errors of the difference of two angles near pi, radians."""


@kernel
def _settled(system, threshold):
    """`AT_REST` when every row is stable and within `threshold` of the rest that Newton predicts, or feels exactly nothing.

    `HIDDEN` when a row is unstable and nearer to the place of its rest than angles can tell: antipodes, whose angle is never
    exactly pi.
    """
    hidden = False
    for r in range(system.count[0]):
        force = abs(system.rows[VELOCITY, r])
        diagonal = system.rows[DIAGONAL, r]
        if force == 0.0 or (diagonal < 0.0 and force <= -diagonal * threshold):
            continue
        if not force <= diagonal * BLUR:
            return MOVING
        hidden = True
    return HIDDEN if hidden else AT_REST


@helper
def _commit(system, tolerance):
    frozen, stages = system.frozen_mass.size, system.memory.stages
    for r in range(system.count[0]):
        step = 0.0
        for i in range(STAGES):
            step += WEIGHTS[i] * stages[i, INCREMENT, frozen + r]
        system.angles[system.leader[r]] += step
    for k in range(system.angles.size):
        system.angles[k] = system.angles[system.root[k]]
    if system.grouping:
        regroup(system, tolerance)


register(CircleSystem, _commit, _polynomial, _settled)
