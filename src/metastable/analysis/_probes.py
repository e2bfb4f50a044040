"""Compiled: do followers stay with their leaders? Each is moved along the path that the leaders take.

Only ever imported inside functions: Numba takes half a second to load.
"""

# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from metastable.analysis._kernels import compiled, inner
from metastable.analysis._paths import places_at, write_places

CALM = 0.01
"""Displacement, over the limit, that is none."""
STRIDE = 0.2
"""Way, over the limit, that a follower goes in one step of its own: forces change on the scale of the limit."""
CUT, GROW = 0.25, 2.0
"""By which a step of its own that was too long is cut, and by which the next one may be longer."""
SHORTEST = 0.25
"""Length, times 1 + beta, of a step that is never too long: no rate is above 1 + beta."""
CLOSE = 0.25
"""Distance to its leader, over the limit, of a follower that is close to being away."""
WATCHED = 0.25
"""Steps of a follower that is away, over the time that is `brief`."""
RETURN = 20.0
"""Time after which a follower that nobody else draws is back with its leader: it falls back at a rate of one half or more."""
MOST_STEPS = 2000
"""Steps of its own that a follower has within one step of the leaders; who needs more has left."""


class Followers(NamedTuple):
    """Follower k starts at row k of `tokens` (f, d), has the mass own_k, follows the leader home_k and sees the masses seen_k (m,) at
    the places of the leaders, who have at least its own mass."""

    tokens: Any
    own: Any
    home: Any
    seen: Any


class Rule(NamedTuple):
    """Logits are beta <y, M x> with the `form` M (d, d), of size 1; `pulled` tells that M = I, so that a token beside another one falls
    back to it. A follower has left that is farther than the chord `limit` from its leader for longer than `brief` times the time."""

    beta: Any
    form: Any
    pulled: Any
    limit: Any
    brief: Any


class Leg(NamedTuple):
    """A step of the leaders: its polynomials (5, m, d), the places `end` (m, d) where it ends, when it begins, and its length."""

    piece: Any
    end: Any
    begin: Any
    width: Any


SINCE, LEFT, SEEN, ASIDE, STRAYED = range(5)
"""What is kept of a follower: since when it has been away (infinity: it is not), 1 where it has left its leader, and the last time at
which it was seen away after that; since when it has been `CLOSE` to being away, and 1 where it was so for as long as if it had left."""


class Outcome(NamedTuple):
    """What became of each follower (f,): whether it has `left`; when it was seen away for the last time, infinity where it does not
    come `back`; whether it has `strayed`, and might leave if things were a little different; the leaders `visited` (f, m) beside whom
    it was, once it had left."""

    left: Any
    back: Any
    strayed: Any
    visited: Any


class Work(NamedTuple):
    """Memory of a step: attention weights (m,), the force, the mean place and the mean gradient of logits (3, d), the matrix of the
    step and its symmetric part (2, d, d); places within a step of the leaders (m, d), and where a follower was (d,)."""

    weights: Any
    vectors: Any
    matrices: Any
    places: Any
    before: Any


@inner
def make_work(m, d):
    """Memory for steps among m places in dimension d."""
    return Work(np.empty(m), np.empty((3, d)), np.empty((2, d, d)), np.empty((m, d)), np.empty(d))


@inner
def _put(point, place):
    """A point (d,) to a place."""
    for a in range(len(point)):
        point[a] = place[a]


@inner
def _linearize(y, own, places, seen, rule, h, work):
    """The force F on a token y (d,) of mass `own` among `places` (m, d), where it sees the masses `seen` (m,), and the matrix I - h J
    with its derivative J, into `work`.

    With p_j the attention weights, p_0 that of the token itself, D_j = P_y x_j, and g_j the gradient of logit j,

        F = sum_j p_j D_j,   J = sum_j p_j D_j (g_j - g)^T - sum_j p_j <y, x_j> I,   g = sum_j p_j g_j + p_0 g_0,

    where g_j = beta P_y M x_j and g_0 = beta P_y (M + M^T) y. For M = I it is symmetric.
    """
    weights, beta, form = work.weights, rule.beta, rule.form
    force, mean, gradient = work.vectors[0], work.vectors[1], work.vectors[2]
    matrix, part = work.matrices[0], work.matrices[1]
    m, d = places.shape
    self_logit, top = 0.0, 0.0
    for a in range(d):
        mean[a] = 0.0
        for b in range(d):
            mean[a] += form[b, a] * y[b]
        self_logit += mean[a] * y[a]
    for j in range(m):
        logit = 0.0
        for a in range(d):
            logit += mean[a] * places[j, a]
        weights[j] = beta * (logit - self_logit)
        if seen[j] > 0.0:
            top = max(top, weights[j])
    own_weight = own * math.exp(-top)
    total, held = own_weight, 0.0
    for j in range(m):
        weights[j] = seen[j] * math.exp(weights[j] - top) if seen[j] > 0.0 else 0.0
        total += weights[j]
    force[:], mean[:], part[:] = 0.0, 0.0, 0.0
    for j in range(m):
        weights[j] /= total
        if weights[j] == 0.0:
            continue
        inner = 0.0
        for a in range(d):
            inner += y[a] * places[j, a]
        held += weights[j] * inner
        for a in range(d):
            along = weights[j] * (places[j, a] - inner * y[a])
            force[a] += along
            mean[a] += weights[j] * places[j, a]
            for b in range(d):
                part[a, b] += along * places[j, b]
    # The gradients, in the tangent space: rows of `matrix` are those of sum_j p_j D_j (g_j - g)^T.
    own_weight /= total
    for a in range(d):
        mean_a = 0.0
        for b in range(d):
            mean_a += form[a, b] * (mean[b] + own_weight * y[b]) + form[b, a] * own_weight * y[b]
        gradient[a] = beta * mean_a
    for a in range(d):
        normal = 0.0
        for b in range(d):
            value = -force[a] * gradient[b]
            for c in range(d):
                value += beta * part[a, c] * form[b, c]
            matrix[a, b] = value
            normal += value * y[b]
        for b in range(d):
            matrix[a, b] = -h * (matrix[a, b] - normal * y[b])
        matrix[a, a] += 1.0 + h * held


@inner
def _solve(h, work):
    """(I - h J)^-1 h F in place of the force F of `work`; False where the symmetric part of I - h J is not positive."""
    force, matrix, part = work.vectors[0], work.matrices[0], work.matrices[1]
    d = len(force)
    # Cholesky of the symmetric part, which only has to exist. (The normal direction has a positive value, and no force.)
    for a in range(d):
        for b in range(a + 1):
            value = 0.5 * (matrix[a, b] + matrix[b, a])
            for c in range(b):
                value -= part[a, c] * part[b, c]
            if a > b:
                part[a, b] = value / part[b, b]
            elif value > 0.0:
                part[a, a] = math.sqrt(value)
            else:
                return False
    # So elimination needs no pivots.
    for a in range(d):
        force[a] *= h
    for c in range(d):
        for a in range(c + 1, d):
            factor = matrix[a, c] / matrix[c, c]
            force[a] -= factor * force[c]
            for b in range(c + 1, d):
                matrix[a, b] -= factor * matrix[c, b]
    for a in range(d - 1, -1, -1):
        for c in range(a + 1, d):
            force[a] -= matrix[a, c] * force[c]
        force[a] /= matrix[a, a]
    return True


@inner
def _step(y, own, places, seen, rule, h, work):
    """One linearly implicit Euler step of length h in the tangent space: y + (I - h J)^-1 h F, as in `_linearize`. False where the
    symmetric part of I - h J is not positive: the token may leave within the step."""
    _linearize(y, own, places, seen, rule, h, work)
    if not _solve(h, work):
        return False
    force = work.vectors[0]
    square = 0.0
    for a in range(len(y)):
        y[a] += force[a]
        square += y[a] * y[a]
    for a in range(len(y)):
        y[a] /= math.sqrt(square)
    return True


@inner
def _square(y, place):
    """The squared chord between two points."""
    square = 0.0
    for a in range(len(y)):
        square += (y[a] - place[a]) ** 2
    return square


@inner
def _far(y, place, limit):
    """Whether y is not closer than the chord `limit`."""
    return not _square(y, place) < limit * limit


@inner
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


@inner
def _follow(k, followers, rule, leg, y, track, visited, work):
    """Move follower k, who is at y (d,), along a leg of the leaders; False where it is lost.

    It makes as few linearly implicit steps of its own as its place allows: one where that is stable, and, where it falls, steps that
    follow the fall. What is kept of it is brought up to date in `track` (5,), and whom it has `visited` (m,).
    """
    piece, end, begin, h = leg
    home, limit = followers.home[k], rule.limit
    before = work.before
    done, part, tries = 0.0, 1.0, 0
    while done < 1.0:
        part = min(part, 1.0 - done)
        watching = track[SINCE] < np.inf and not track[SEEN] >= track[SINCE]
        if watching:
            part = min(part, max(WATCHED * rule.brief * (begin + done * h), SHORTEST / (1.0 + rule.beta)) / h)
        if done + part < 1.0:
            places = work.places
            write_places(piece, done + part, places)
        else:
            places = end
        _put(before, y)
        stays = _step(y, followers.own[k], places, followers.seen[k], rule, part * h, work)
        tries += 1
        if tries > MOST_STEPS:
            return False
        short = part * h * (1.0 + rule.beta) <= SHORTEST
        if not short and (not stays or _far(y, before, STRIDE * limit)):
            _put(y, before)
            part *= CUT
            continue
        done += part
        part *= GROW
        now = begin + min(1.0, done) * h
        away = _square(y, places[home])
        if away < (CLOSE * limit) ** 2:
            track[ASIDE] = np.inf
        else:
            track[ASIDE] = min(track[ASIDE], now)
            track[STRAYED] = max(track[STRAYED], 1.0 * (now > track[ASIDE] * (1.0 + rule.brief)))
        if away < limit * limit:
            track[SINCE] = np.inf
        else:
            track[SINCE] = min(track[SINCE], now)
            if now > track[SINCE] * (1.0 + rule.brief):
                track[LEFT], track[SEEN] = 1.0, now
                for j in range(len(places)):
                    visited[j] |= not _far(y, places[j], limit)
    return True


@compiled
def leaving(begin, width, pieces, followers, rule):
    """Which `followers` leave their leader, as the `rule` says: `Outcome`.

    `begin` (absolute times), `width` and `pieces` as in `leaders.Path`; behind its end leaders stand.
    """
    tokens, own, home, seen = followers
    f, d = tokens.shape
    m = pieces.shape[2]
    lost, visited = np.zeros(f, np.bool_), np.zeros((f, m), np.bool_)
    tracks = np.zeros((f, STRAYED + 1))
    heaviest, homes = np.zeros(m), np.zeros(m, np.bool_)
    for k in range(f):
        tracks[k, SINCE] = tracks[k, ASIDE] = np.inf
        homes[home[k]] = True
        heaviest[home[k]] = max(heaviest[home[k]], (seen[k].sum() - seen[k, home[k]]) / own[k])
    y, calm, quiet = tokens.copy(), np.zeros(m, np.bool_), np.zeros(m, np.bool_)
    work = make_work(m, d)
    for step in range(len(width)):
        places = places_at(pieces[step], 1.0)
        for c in np.flatnonzero(homes):
            quiet[c] = calm[c]
            calm[c] = rule.pulled and _calm(places, c, heaviest[c], rule.beta, CALM * rule.limit)
            quiet[c] = quiet[c] and calm[c]
        leg = Leg(pieces[step], places, begin[step], width[step])
        near = rule.limit if width[step] > RETURN else CALM * rule.limit
        for k in range(f):
            if lost[k]:
                continue
            if calm[home[k]] and not _far(y[k], places[home[k]], near if quiet[home[k]] else CALM * rule.limit):
                _put(y[k], places[home[k]])
                tracks[k, SINCE], tracks[k, ASIDE] = np.inf, np.inf
            else:
                lost[k] = not _follow(k, followers, rule, leg, y[k], tracks[k], visited[k], work)
    end = begin[-1] + width[-1]
    last, places = np.zeros_like(pieces[-1]), places_at(pieces[-1], 1.0)
    for c in range(m):
        _put(last[0, c], places[c])
    leg = Leg(last, places, end, rule.brief * end)
    for k in range(f):
        if not lost[k] and tracks[k, SINCE] < np.inf:
            lost[k] = not _follow(k, followers, rule, leg, y[k], tracks[k], visited[k], work)
            lost[k] |= tracks[k, SINCE] < np.inf
    left = lost | (tracks[:, LEFT] > 0.0)
    return Outcome(left, np.where(lost, np.inf, tracks[:, SEEN]), tracks[:, STRAYED] > 0.0, visited)
