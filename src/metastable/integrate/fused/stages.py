"""The arithmetic of one Tsit5 step on flat arrays of whole vectors.

`y` the state, `k` the seven stages one after the other (`size` numbers each), `h` a vector of step sizes: one per member when
lanes are members, all the same when the vectors run along one system. Sums over stages are written out: a loop over them would
cost as much as the right-hand side of a small system.
"""

from __future__ import annotations

from metastable.integrate.tableau import TSIT5
from metastable.kernels.cpu.compiled import inner
from metastable.kernels.cpu.vector import LANES, fill, load, root, store, where

A21 = float(TSIT5.a[1, 0])
A31, A32 = (float(value) for value in TSIT5.a[2, :2])
A41, A42, A43 = (float(value) for value in TSIT5.a[3, :3])
A51, A52, A53, A54 = (float(value) for value in TSIT5.a[4, :4])
A61, A62, A63, A64, A65 = (float(value) for value in TSIT5.a[5, :5])
A71, A72, A73, A74, A75, A76 = (float(value) for value in TSIT5.a[6, :6])
E1, E2, E3, E4, E5, E6, E7 = (float(value) for value in TSIT5.error)
NODES = tuple(float(value) for value in TSIT5.c)
DENSE = tuple(tuple(float(value) for value in row) for row in TSIT5.dense)


@inner
def early_state(stage, y, k, size, h, new, first, last):
    """`new` = the argument of stage 1 to 3 (counted from 0), entries first..last."""
    step = load(h, 0)
    for i in range(first, last, LANES):
        if stage == 1:
            change = A21 * load(k, i)
        elif stage == 2:
            change = A31 * load(k, i) + A32 * load(k, size + i)
        else:
            change = A41 * load(k, i) + A42 * load(k, size + i) + A43 * load(k, 2 * size + i)
        store(new, i, load(y, i) + step * change)


@inner
def late_state(stage, y, k, size, h, new, first, last):
    """`new` = the argument of stage 4 to 6; that of stage 6 is the solution."""
    step = load(h, 0)
    for i in range(first, last, LANES):
        k1 = load(k, i)
        k2 = load(k, size + i)
        k3 = load(k, 2 * size + i)
        k4 = load(k, 3 * size + i)
        if stage == 4:
            change = A51 * k1 + A52 * k2 + A53 * k3 + A54 * k4
        elif stage == 5:
            change = A61 * k1 + A62 * k2 + A63 * k3 + A64 * k4 + A65 * load(k, 4 * size + i)
        else:
            change = A71 * k1 + A72 * k2 + A73 * k3 + A74 * k4 + A75 * load(k, 4 * size + i)
            change = change + A76 * load(k, 5 * size + i)
        store(new, i, load(y, i) + step * change)


@inner
def stage_state(stage, y, k, size, h, new, first, last):
    """`new` = y + h sum_j a_stage,j k_j, entries first..last."""
    if stage <= 3:
        early_state(stage, y, k, size, h, new, first, last)
    else:
        late_state(stage, y, k, size, h, new, first, last)


@inner
def square_error(k, size, h, first, last):
    """Sum over the entries first..last of the squared error estimate, in each lane."""
    step = load(h, 0)
    result = fill(0.0)
    for i in range(first, last, LANES):
        estimate = E1 * load(k, i) + E2 * load(k, size + i) + E3 * load(k, 2 * size + i) + E4 * load(k, 3 * size + i)
        estimate = estimate + E5 * load(k, 4 * size + i) + E6 * load(k, 5 * size + i) + E7 * load(k, 6 * size + i)
        estimate = step * estimate
        result = result + estimate * estimate
    return result


@inner
def square_norm(k, start, other, first, last):
    """Sum of squares of stage `start` (minus stage `other` if that is not negative), entries first..last, in each lane.

    `start` and `other` are places in `k`.
    """
    result = fill(0.0)
    for i in range(first, last, LANES):
        value = load(k, start + i)
        if other >= 0:
            value = value - load(k, other + i)
        result = result + value * value
    return result


@inner
def retract_members(y, tokens, dim):
    """Unit rows, lane by lane (y holds dim vectors per token)."""
    for token in range(tokens):
        square = fill(0.0)
        for a in range(dim):
            value = load(y, (token * dim + a) * LANES)
            square = square + value * value
        inverse = 1.0 / root(square)
        for a in range(dim):
            place = (token * dim + a) * LANES
            store(y, place, load(y, place) * inverse)


@inner
def accept_members(y, k, size, new, accepted):
    """In the lanes where `accepted` is not zero: the new state, and the last stage as the first of the next step."""
    mask = load(accepted, 0)
    for i in range(0, size, LANES):
        store(y, i, where(mask, load(new, i), load(y, i)))
        store(k, i, where(mask, load(k, 6 * size + i), load(k, i)))


@inner
def dense_weights(u, weights):
    """`weights[i]` of stage i at the fraction u of a step: y(t + u h) = y + h sum_i weights[i] k_i."""
    for i in range(7):
        row = DENSE[i]
        weights[i] = u * (row[0] + u * (row[1] + u * (row[2] + u * row[3])))
