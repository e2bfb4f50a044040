"""Compiled: do followers stay with their leaders? Each is moved along the path that the leaders take.

Only ever imported inside functions: Numba takes half a second to load.
"""

# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from metastable.analysis._kernels import compiled
from metastable.analysis._paths import places_at

HALVINGS = 6
"""A step in which a follower would leave is cut into up to 2^6 parts before it counts."""
CALM = 0.01
"""Displacement, over the limit, that is none."""
LAST = 16
"""Parts of the stretch of time behind the end of a path."""


class Followers(NamedTuple):
    """Follower k starts at row k of `tokens` (f, d), has the mass own_k, follows the leader home_k and sees the masses seen_k (m,) at
    the places of the leaders, who have at least its own mass."""

    tokens: Any
    own: Any
    home: Any
    seen: Any


class Rule(NamedTuple):
    """Under the inverse temperature `beta`, a follower has left that is farther than the chord `limit` from its leader for longer than
    `brief` times the time."""

    beta: Any
    limit: Any
    brief: Any


class Work(NamedTuple):
    """Memory of a step: attention weights (m,), the force (d,) and the matrix of the step (d, d)."""

    weights: Any
    force: Any
    matrix: Any


@compiled
def make_work(m, d):
    """Memory for steps among m places in dimension d."""
    return Work(np.empty(m), np.empty(d), np.empty((d, d)))


@compiled
def _step(y, own, places, seen, beta, h, work):
    """One linearly implicit Euler step of length h of a token y (d,) of mass `own` among `places` (m, d), where it sees the masses
    `seen` (m,): y + (I - h J)^-1 h F in the tangent space. False where I - h J is not positive: the token leaves within the step.

    With p_j the attention weights, p_0 that of the token itself, and D_j = P_y x_j,

        F = sum_j p_j D_j,     J = beta sum_j p_j (D_j - F)(D_j - F)^T + beta p_0 F F^T - sum_j p_j <y, x_j> I,

    the derivative of F for Q^T K = beta I: the token's own logit does not change along the sphere, and J is symmetric.
    """
    weights, force, matrix = work
    m, d = places.shape
    total, held = own, 0.0
    for j in range(m):
        inner = 0.0
        for a in range(d):
            inner += y[a] * places[j, a]
        weights[j] = seen[j] * math.exp(beta * (inner - 1.0)) if seen[j] > 0.0 else 0.0
        total += weights[j]
    force[:] = 0.0
    matrix[:] = 0.0
    for j in range(m):
        weights[j] /= total
        if weights[j] == 0.0:
            continue
        inner = 0.0
        for a in range(d):
            inner += y[a] * places[j, a]
        held += weights[j] * inner
        for a in range(d):
            along = places[j, a] - inner * y[a]
            force[a] += weights[j] * along
            for b in range(a + 1):
                matrix[a, b] += weights[j] * along * (places[j, b] - inner * y[b])
    for a in range(d):
        for b in range(a + 1):
            matrix[a, b] = -h * beta * (matrix[a, b] - force[a] * force[b])
        matrix[a, a] += 1.0 + h * held
    # Cholesky: the normal direction has the eigenvalue 1 + h held and no force, so that it changes nothing.
    for a in range(d):
        for b in range(a + 1):
            value = matrix[a, b]
            for c in range(b):
                value -= matrix[a, c] * matrix[b, c]
            if a > b:
                matrix[a, b] = value / matrix[b, b]
            elif value > 0.0:
                matrix[a, a] = math.sqrt(value)
            else:
                return False
    for a in range(d):
        value = h * force[a]
        for c in range(a):
            value -= matrix[a, c] * force[c]
        force[a] = value / matrix[a, a]
    for a in range(d - 1, -1, -1):
        for c in range(a + 1, d):
            force[a] -= matrix[c, a] * force[c]
        force[a] /= matrix[a, a]
    square = 0.0
    for a in range(d):
        y[a] += force[a]
        square += y[a] * y[a]
    for a in range(d):
        y[a] /= math.sqrt(square)
    return True


@compiled
def _advance(y, own, piece, places, seen, beta, h, work):
    """Move y along a whole step of the leaders, to `places`, in parts where it is unstable; False where that does not help."""
    before = y.copy()
    parts = 1
    for _ in range(HALVINGS + 1):
        stays = True
        for part in range(parts):
            at = places if part == parts - 1 else places_at(piece, (part + 1.0) / parts)
            stays = _step(y, own, at, seen, beta, h / parts, work)
            if not stays:
                break
        if stays:
            return True
        y[:] = before
        parts *= 2
    return False


@compiled
def _far(y, place, limit):
    """Whether y is not closer than the chord `limit`."""
    square = 0.0
    for a in range(len(y)):
        square += (y[a] - place[a]) ** 2
    return not square < limit * limit


@compiled
def _calm(places, c, heaviest, beta, distance):
    """Whether nobody at place c, who sees at most the mass `heaviest` elsewhere, is drawn from it by more than `distance`.

    Others pull with at most 2 heaviest e^(beta (cos - 1)), and the leader pulls back at a rate of at least one half.
    """
    nearest = -1.0
    for j in range(len(places)):
        if _far(places[j], places[c], distance):
            inner = 0.0
            for a in range(places.shape[1]):
                inner += places[j, a] * places[c, a]
            nearest = max(nearest, inner)
    return 4.0 * heaviest * math.exp(beta * (nearest - 1.0)) < distance


@compiled
def leaving(begin, width, pieces, followers, rule):
    """Which `followers` (f,) leave their leader, as the `rule` says; and the last time (f,) at which each of them is seen away,
    infinity where it does not come back.

    `begin` (absolute times), `width` and `pieces` as in `leaders.Path`; behind its end leaders stand. A follower whose place becomes
    unstable in a long step has left it.
    """
    tokens, own, home, seen = followers
    beta, limit, brief = rule
    f, d = tokens.shape
    m = pieces.shape[2]
    found, lost = np.zeros(f, np.bool_), np.zeros(f, np.bool_)
    since, back = np.full(f, np.inf), np.zeros(f)
    heaviest = np.zeros(m)
    for k in range(f):
        heaviest[home[k]] = max(heaviest[home[k]], (seen[k].sum() - seen[k, home[k]]) / own[k])
    y, calm = tokens.copy(), np.zeros(m, np.bool_)
    work = make_work(m, d)
    for step in range(len(width)):
        places, now = places_at(pieces[step], 1.0), begin[step] + width[step]
        for c in range(m):
            calm[c] = _calm(places, c, heaviest[c], beta, CALM * limit)
        for k in range(f):
            place = places[home[k]]
            if lost[k]:
                continue
            if calm[home[k]] and not _far(y[k], place, CALM * limit):
                y[k], since[k] = place, np.inf
            elif not _advance(y[k], own[k], pieces[step], places, seen[k], beta, width[step], work):
                found[k], lost[k], back[k] = True, True, np.inf
            elif not _far(y[k], place, limit):
                since[k] = np.inf
            else:
                since[k] = min(since[k], now)
                if now > since[k] * (1.0 + brief):
                    found[k], back[k] = True, now
    for k in range(f):
        span = brief * (begin[-1] + width[-1])
        if since[k] < np.inf and _stays_away(y[k], k, places, followers, rule, span, work):
            found[k], back[k] = True, np.inf
    return found, back


@compiled
def _stays_away(y, k, places, followers, rule, span, work):
    """Whether follower k, who is at y, is still far from its leader after the time `span`, while leaders stand."""
    for _ in range(LAST):
        if not _step(y, followers.own[k], places, followers.seen[k], rule.beta, span / LAST, work):
            return True
        if not _far(y, places[followers.home[k]], rule.limit):
            return False
    return True
