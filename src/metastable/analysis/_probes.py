"""Compiled: do followers stay with their leaders? Each is moved along the path that the leaders take.

Places fill vectors: they are lines (d, width), one for each coordinate, as wide as whole vectors. Behind the last one there is nobody
of any mass.

Only ever imported inside functions: Numba takes half a second to load.
"""

# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from metastable.analysis._kernels import compiled, inner
from metastable.integrate.rodas.forces import width_for
from metastable.kernels.cpu.fastmath import exp2 as exp2_of_one
from metastable.kernels.cpu.vector import LANES, exp2, fill, largest, load, maximum, root, store, total, where
from metastable.kernels.minimax import LOG2E

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
    """Follower k starts at row k of `tokens` (f, d), has the mass own_k, follows the leader home_k and sees the masses seen_k (width,)
    at the places of the leaders, who have at least its own mass."""

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
    """A step of the leaders: its polynomials in lines (5, d, width), the places `end` (d, width) where it ends, when it begins, and
    its length."""

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
    """Memory of a step: attention weights (width,), the force, the mean place and the mean gradient of logits (3, d), the matrix of
    the step and its symmetric part (2, d, d); places within a step of the leaders (d, width), and where a follower was (d,)."""

    weights: Any
    vectors: Any
    matrices: Any
    places: Any
    before: Any


def with_nobody(masses):
    """Masses (f, m) in whole vectors (f, width)."""
    lines = np.zeros((len(masses), width_for(masses.shape[1])))
    lines[:, : masses.shape[1]] = masses
    return lines


@inner
def make_work(width, d):
    """Memory for steps among places in lines of this width, in dimension d."""
    return Work(np.empty(width), np.empty((3, d)), np.empty((2, d, d)), np.empty((d, width)), np.empty(d))


@inner
def _write_lines(piece, lines):
    """The polynomials (5, m, d) of a step in lines (5, d, width), the entries of which behind the last place are left as they are."""
    for power in range(5):
        for k in range(piece.shape[1]):
            for a in range(piece.shape[2]):
                lines[power, a, k] = piece[power, k, a]


@inner
def _stand(lines, places, k):
    """Polynomials in lines of place k, which stands where it is."""
    for a in range(len(places)):
        lines[0, a, k] = places[a, k]
        for power in range(1, 5):
            lines[power, a, k] = 0.0


@inner
def _write_places(lines, u, x):
    """Unit places (d, width) at the fraction u of a step, to x."""
    for j in range(0, x.shape[1], LANES):
        square = fill(0.0)
        for a in range(len(x)):
            value = load(lines[4, a], j)
            for power in range(3, -1, -1):
                value = load(lines[power, a], j) + value * u
            store(x[a], j, value)
            square += value * value
        length = root(square)
        for a in range(len(x)):
            store(x[a], j, load(x[a], j) / length)


@inner
def _put(point, place):
    """A point (d,) to a place."""
    for a in range(len(point)):
        point[a] = place[a]


@inner
def _weigh(query, own_logit, own, places, seen, strength, work):
    """Attention weights of the `places` to `work.weights`, with the logits strength (<query, x_j> - own_logit); returns that of the
    token itself, of the mass `own`."""
    weights = work.weights
    top = fill(0.0)
    for j in range(0, len(weights), LANES):
        logit = fill(-own_logit)
        for a in range(len(query)):
            logit += load(places[a], j) * query[a]
        logit = logit * (strength * LOG2E)
        store(weights, j, logit)
        top = maximum(top, where(load(seen, j), logit, 0.0))
    highest = largest(top)
    sums, own_weight = fill(0.0), own * exp2_of_one(-highest)
    for j in range(0, len(weights), LANES):
        # (Who is not seen may have a larger logit than all others, and its power may be no number.)
        weight = load(seen, j) * exp2(fill(0.0) - maximum(highest - load(weights, j), 0.0))
        store(weights, j, weight)
        sums += weight
    whole = own_weight + total(sums)
    for j in range(0, len(weights), LANES):
        store(weights, j, load(weights, j) / whole)
    return own_weight / whole


@inner
def _moments(places, work):
    """sum_j p_j x_j to the mean place of `work`, sum_j p_j x_j x_j^T to its second matrix."""
    weights, mean, second = work.weights, work.vectors[1], work.matrices[1]
    for a in range(len(mean)):
        sums = fill(0.0)
        for j in range(0, len(weights), LANES):
            sums += load(weights, j) * load(places[a], j)
        mean[a] = total(sums)
        for b in range(a + 1):
            sums = fill(0.0)
            for j in range(0, len(weights), LANES):
                sums += load(weights, j) * load(places[a], j) * load(places[b], j)
            second[a, b] = second[b, a] = total(sums)


@inner
def _linearize(y, own, places, seen, rule, h, work):
    """The force F on a token y (d,) of mass `own` among `places` (d, width), where it sees the masses `seen` (width,), and the matrix
    I - h J with its derivative J, into `work`.

    With p_j the attention weights, p_0 that of the token itself, D_j = P_y x_j, and g_j the gradient of logit j,

        F = sum_j p_j D_j,   J = sum_j p_j D_j (g_j - g)^T - sum_j p_j <y, x_j> I,   g = sum_j p_j g_j + p_0 g_0,

    where g_j = beta P_y M x_j and g_0 = beta P_y (M + M^T) y. For M = I it is symmetric.
    """
    beta, form = rule.beta, rule.form
    force, mean, gradient = work.vectors[0], work.vectors[1], work.vectors[2]
    matrix, part = work.matrices[0], work.matrices[1]
    d = len(y)
    own_logit = 0.0
    for a in range(d):
        gradient[a] = 0.0
        for b in range(d):
            gradient[a] += form[b, a] * y[b]
        own_logit += gradient[a] * y[a]
    own_weight = _weigh(gradient, own_logit, own, places, seen, beta, work)
    _moments(places, work)
    held = 0.0
    for a in range(d):
        held += y[a] * mean[a]
    for a in range(d):
        force[a] = mean[a] - held * y[a]
        mean_a = 0.0
        for b in range(d):
            mean_a += form[a, b] * (mean[b] + own_weight * y[b]) + form[b, a] * own_weight * y[b]
        gradient[a] = beta * mean_a
    # P_y sum_j p_j x_j x_j^T: a column at a time.
    for b in range(d):
        along = 0.0
        for a in range(d):
            along += y[a] * part[a, b]
        for a in range(d):
            part[a, b] -= along * y[a]
    # The gradients, in the tangent space: rows of `matrix` are those of sum_j p_j D_j (g_j - g)^T.
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
def _calm(places, count, c, heaviest, rule):
    """Whether nobody at place c of `count`, who sees at most the mass `heaviest` elsewhere, is drawn from it by more than `CALM`.

    Others pull with at most 2 heaviest e^(beta (cos - 1)), and the leader pulls back at a rate of at least one half.
    """
    nearest, distance = -1.0, CALM * rule.limit
    for j in range(count):
        if _far(places[:, j], places[:, c], distance):
            inner = 0.0
            for a in range(len(places)):
                inner += places[a, j] * places[a, c]
            nearest = max(nearest, inner)
    return 4.0 * heaviest * math.exp(rule.beta * (nearest - 1.0)) < distance


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
            _write_places(piece, done + part, places)
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
        away = _square(y, places[:, home])
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
                for j in range(len(visited)):
                    visited[j] |= not _far(y, places[:, j], limit)
    return True


def leaving(begin, width, pieces, followers, rule):
    """Which `followers` leave their leader, as the `rule` says: `Outcome`.

    `begin` (absolute times), `width` and `pieces` as in `leaders.Path`; behind its end leaders stand.
    """
    heaviest = np.full(pieces.shape[2], -1.0)
    elsewhere = followers.seen.sum(axis=1) - followers.seen[np.arange(len(followers.home)), followers.home]
    np.maximum.at(heaviest, followers.home, np.maximum(elsewhere, 0.0) / followers.own)
    lost, tracks, visited = _follow_all(begin, width, pieces, followers, rule, heaviest)
    back = np.where(lost, np.inf, tracks[:, SEEN])
    return Outcome(lost | (tracks[:, LEFT] > 0.0), back, tracks[:, STRAYED] > 0.0, visited)


@compiled
def _follow_all(begin, width, pieces, followers, rule, heaviest):
    """Move all followers along all steps of the leaders, beside each of whom a follower sees at most the mass `heaviest` (m,)
    elsewhere (-1: nobody follows): who is lost (f,), what is kept of each (f, 5), and whom it has visited (f, m).

    (Loops, no expressions of whole arrays, which take Numba seconds to compile.)
    """
    tokens, _, home, seen = followers
    f, d = tokens.shape
    m, across = pieces.shape[2], seen.shape[1]
    lost, visited, tracks = np.zeros(f, np.bool_), np.zeros((f, m), np.bool_), np.zeros((f, STRAYED + 1))
    y, calm, quiet = tokens.copy(), np.zeros(m, np.bool_), np.zeros(m, np.bool_)
    work, lines, places = make_work(across, d), np.zeros((5, d, across)), np.empty((d, across))
    for k in range(m, across):
        lines[0, 0, k] = 1.0  # places of nobody, on the sphere
    for k in range(f):
        tracks[k, SINCE] = tracks[k, ASIDE] = np.inf
    for step in range(len(width)):
        _write_lines(pieces[step], lines)
        _write_places(lines, 1.0, places)
        for c in range(m):
            if heaviest[c] >= 0.0:
                before = calm[c]
                calm[c] = rule.pulled and _calm(places, m, c, heaviest[c], rule)
                quiet[c] = before and calm[c]
        leg = Leg(lines, places, begin[step], width[step])
        near = rule.limit if width[step] > RETURN else CALM * rule.limit
        for k in range(f):
            if lost[k]:
                continue
            if calm[home[k]] and not _far(y[k], places[:, home[k]], near if quiet[home[k]] else CALM * rule.limit):
                _put(y[k], places[:, home[k]])
                tracks[k, SINCE], tracks[k, ASIDE] = np.inf, np.inf
            else:
                lost[k] = not _follow(k, followers, rule, leg, y[k], tracks[k], visited[k], work)
    for k in range(m):
        _stand(lines, places, k)
    end = begin[-1] + width[-1]
    leg = Leg(lines, places, end, rule.brief * end)
    for k in range(f):
        if not lost[k] and tracks[k, SINCE] < np.inf:
            stays = _follow(k, followers, rule, leg, y[k], tracks[k], visited[k], work)
            lost[k] = not stays or tracks[k, SINCE] < np.inf
    return lost, tracks, visited
