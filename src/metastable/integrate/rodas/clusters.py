"""Full attention and prefixes over any horizon: tokens that have met are one point with a mass from then on, until they part.

Under full attention the Jacobian has no triangle. As long as tokens contract inside clusters (at rate one) while clusters
creep (at rates of 1e-20 and below), rounding errors of the fast motion drown the slow one. But a token that sits on another
one moves as it does, for ever: so tokens that have come within `REACH` tolerances of each other, and contract, become one
point with their mass at their mean. What is left is small, has no fast motion, and is solved exactly by `points`.

- *What joining costs.* Tokens at distance e of their mean are moved by e, less than the tolerance. Their mean drifts by
  O(beta e^3) per unit of time while they contract, which is nothing.
- *Contracting* means that a token beside the point falls back: with p_kj the attention of the point, D_k its mean gap, and G_k what
  moves it (`forces`), the block

      J = -(lambda + <x_k, G_k>) I + sum_heads beta V sum_j p_kj (x_j - x_k) (M (x_j - x_k) - M D_k)^T      on the tangent space

  of the Jacobian of such a token has a negative symmetric part (its largest eigenvalue is `loosening`). For V = I lambda is 1 and
  G_k = D_k.
- *Release.* Each cluster remembers where its parts were when they met, and how much that can have grown or shrunk since: the integral
  of `loosening`. When the bound passes the tolerance (a heavy cluster nearby pulls a light one apart) the parts are points again.

As long as there are many points, the system with a dense block (`dense`) moves them, in stretches of doubling length.

Under a prefix mask the tokens of the prefix are such points, who lead; they do not feel the others. Those behind see different numbers
of tokens, so that two of them at one place do not move alike: each stays a point of its own, of mass one, solved after all before
it, as under a causal mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.integrate.rodas import control
from metastable.integrate.rodas.forces import Surroundings, lines_of
from metastable.integrate.rodas.points import MET, TAKEN, make_work, places_of, step
from metastable.integrate.rodas.prepare import Frame, frame_of
from metastable.kernels.cpu.compiled import compiled
from metastable.model import Attention, Full

REACH = 1e-2
"""Tokens are joined at this share of the tolerance."""
VANISHED = -140.0
"""Parts of a cluster that are closer than exp of this are at one place."""
SMALL = 200
"""Coordinates up to which all points are solved together by compiled code."""
ROOM = 64
"""Steps that are made before anybody looks."""
NOISE = 4.0 * np.finfo(float).eps
"""Relative error of a force that is the sum of few."""


class Cluster(NamedTuple):
    """Tokens at one place: `tokens` in order; `parts`, the tokens that came together and where they were from their mean (d,) when the
    farthest was at distance exp(`met`); `spread`, the logarithm of what that distance is now at the most."""

    tokens: np.ndarray
    parts: tuple[tuple[np.ndarray, FloatArray], ...]
    met: float
    spread: float


@dataclass(frozen=True)
class Field:
    """What moves points: for each head M, beta and V (h, d, d), all in the coordinates of `frame`, in which R = V_sum - lambda I is
    exact; lambda itself; and the mass of a token's own that it does not see (0 or 1)."""

    frame: Frame
    forms: FloatArray
    betas: FloatArray
    values: FloatArray
    contraction: float
    unseen: float

    @classmethod
    def of(cls, model: Attention) -> Field:
        frame, heads = frame_of(model), model.all_heads
        forms = frame.matrices(head.bilinear for head in heads)
        values = frame.matrices(head.value for head in heads)
        contraction = float(np.linalg.eigvals(values.sum(axis=0)).real.max())
        unseen = 1.0 if isinstance(model.mask, Full) and not model.mask.include_self else 0.0
        return cls(frame, forms, np.array([float(head.beta) for head in heads]), values, contraction, unseen)

    @property
    def at_rest_alone(self) -> bool:
        """True when a single point has nowhere to go."""
        return not self.frame.drift.any()

    def surroundings(self, sizes: FloatArray, leading: int, reach: float) -> Surroundings:
        """For points of these sizes, of whom the `leading` ones see each other and are solved together."""
        order = np.arange(len(sizes))
        seen = order[None, :] < np.maximum(order[:, None] + 1, leading)
        masses = np.where(seen, sizes, 0.0) - self.unseen * np.eye(len(sizes))
        rest, together = np.array(self.frame.drift, order="C"), leading * (self.forms.shape[1] - 1)
        drifting = int(not self.at_rest_alone)
        return Surroundings(lines_of(masses), self.forms, self.betas, self.values, rest, drifting, together, reach)

    def attention(
        self, k: int, places: FloatArray, sizes: FloatArray, head: int
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of point k by one head: p_kj (m,), the gaps x_j - x_k (m, d) and their mean D_k (d,)."""
        gaps = places - places[k]
        logits = self.betas[head] * (gaps @ (self.forms[head].T @ places[k]))
        seen = np.array(sizes, dtype=float)
        seen[k] -= self.unseen
        weights = seen * np.exp(logits - logits[seen > 0].max(initial=-math.inf))
        p = weights / weights.sum()
        return p, gaps, p @ gaps


def loosening(field: Field, places: FloatArray, sizes: FloatArray) -> FloatArray:
    """Largest rate (m,) at which a token beside each point moves away from it; below zero it falls back."""
    result = np.empty(len(places))
    for k, x in enumerate(places):
        block, force = np.zeros((x.size, x.size)), field.frame.drift @ x
        for head, (beta, form, value) in enumerate(zip(field.betas, field.forms, field.values)):
            p, gaps, mean = field.attention(k, places, sizes, head)
            lever = p[:, None] * gaps
            block += beta * (value @ (lever.T @ ((gaps - mean) @ form.T)))
            force = force + value @ mean
        tangent = np.eye(x.size) - np.outer(x, x)
        symmetric = tangent @ (0.5 * (block + block.T)) @ tangent
        # The direction along x is none of the tangent space: it must not be the largest.
        symmetric -= (1.0 + np.abs(symmetric).sum()) * np.outer(x, x)
        result[k] = np.linalg.eigvalsh(symmetric)[-1] - (field.contraction + x @ force)
    return result


def hidden(field: Field, places: FloatArray, sizes: FloatArray, leading: int) -> bool:
    """True when no force can be told from the rounding of what it is the sum of: gaps, and weights with errors as large as logits.

    The `leading` points see each other, the others all before them. (For one head with V = I, the models that are asked whether they
    rest. Forces of 1e-170 have no squares.)
    """
    for k, x in enumerate(places):
        seen = max(k + 1, leading)
        p, gaps, mean = field.attention(k, places[:seen], sizes[:seen], 0)
        doubt = 1.0 + field.betas[0] * np.abs(gaps @ (field.forms[0].T @ x))
        if np.hypot.reduce(mean - (x @ mean) * x) > NOISE * float(p @ (doubt * np.linalg.norm(gaps, axis=1))):
            return False
    return True


# ------------------------------------------------------------------------------------------------- joining, releasing


def apart(start: FloatArray, leading: int) -> tuple[FloatArray, list[Cluster]]:
    """Every token by itself; of the leading ones, those at exactly one place are one point."""
    places, labels = np.unique(start[:leading], axis=0, return_inverse=True)
    groups = [np.flatnonzero(labels.reshape(-1) == label) for label in range(len(places))]
    order = np.argsort([group[0] for group in groups])
    behind = [np.array([token]) for token in range(leading, len(start))]
    found = [Cluster(tokens, (), -math.inf, -math.inf) for tokens in (*(groups[i] for i in order), *behind)]
    return np.concatenate([places[order], start[leading:]]), found


def join(field: Field, places: FloatArray, clusters: list[Cluster], reach: float) -> tuple[FloatArray, list[Cluster]]:
    """Points that are within `reach` of one another and contract become one, at their mean."""
    sizes = np.array([cluster.tokens.size for cluster in clusters], dtype=float)
    near = _neighbours(places, reach)
    if not near:
        return places, clusters
    rates = loosening(field, places, sizes)
    gone = np.zeros(len(places), dtype=bool)
    places, clusters = places.copy(), list(clusters)
    for members in near:
        if rates[members].max() >= 0.0:
            continue
        first = members[0]
        mean = sizes[members] @ places[members] / sizes[members].sum()
        mean /= np.linalg.norm(mean)
        clusters[first] = _united([clusters[k] for k in members], places[members] - mean)
        places[first] = mean
        gone[members[1:]] = True
    return places[~gone], [cluster for cluster, left in zip(clusters, gone) if not left]


def _neighbours(places: FloatArray, reach: float) -> list[np.ndarray]:
    """Groups of two and more points, each within `reach` of the first of them."""
    free, groups = np.ones(len(places), dtype=bool), []
    for k in range(len(places)):
        if free[k]:
            members = np.flatnonzero(free & (np.abs(places - places[k]).max(axis=1) < reach))
            members = members[np.linalg.norm(places[members] - places[k], axis=1) < reach]
            free[members] = False
            if members.size > 1:
                groups.append(members)
    return groups


def _united(clusters: list[Cluster], offsets: FloatArray) -> Cluster:
    """Clusters as one, with the places of their parts from the common mean."""
    parts: list[tuple[np.ndarray, FloatArray]] = []
    for cluster, offset in zip(clusters, offsets):
        if cluster.spread < VANISHED:
            parts.append((cluster.tokens, offset))
        else:
            scale = math.exp(cluster.spread - cluster.met)
            parts += [(tokens, offset + scale * inner) for tokens, inner in cluster.parts]
    tokens = np.sort(np.concatenate([cluster.tokens for cluster in clusters]))
    extent = max(float(np.linalg.norm(offset)) for _, offset in parts)
    size = math.log(extent) if extent > 0.0 else -math.inf
    return Cluster(tokens, tuple(parts), size, size)


def release(places: FloatArray, clusters: list[Cluster], limit: float) -> tuple[FloatArray, list[Cluster]]:
    """Clusters that may be wider than `limit` as their parts."""
    new_places, new_clusters = [], []
    for place, cluster in zip(places, clusters):
        if not cluster.spread > math.log(limit):
            new_places.append(place)
            new_clusters.append(cluster)
            continue
        # The bound grows beyond what it bounds: parts are put back no farther than the limit.
        scale = math.exp(min(cluster.spread, math.log(limit)) - cluster.met)
        for tokens, offset in cluster.parts:
            beside = place + scale * offset
            new_places.append(beside / np.linalg.norm(beside))
            new_clusters.append(Cluster(tokens, (), -math.inf, -math.inf))
    order = np.argsort([cluster.tokens[0] for cluster in new_clusters])
    return np.array(new_places)[order], [new_clusters[i] for i in order]


# ----------------------------------------------------------------------------------------------------------- marching


class Trail(NamedTuple):
    """Room for steps: where they begin and their widths (s,), and their polynomials (s, 5, points, d)."""

    begins: FloatArray
    widths: FloatArray
    pieces: FloatArray


@compiled
def _march(surroundings, work, memory, goal, tries, first, trail):
    """Steps until points meet (MET), the trail is filled, or the end; how many, how many tries are left, and how it ended.

    `memory` is that of the step control, `goal` as for `step`. `first`: no step was made before.
    """
    x, square = work.origin, surroundings.reach**2
    d = len(x)
    leading, count = surroundings.together // (d - 1), 0
    while True:
        if memory[control.T] >= goal[0]:
            return count, tries, control.REACHED
        if count == len(trail.begins):
            return count, tries, control.FULL
        trail.begins[count] = memory[control.T]
        trail.widths[count], tries, code = step(
            surroundings, work, memory, goal, tries, first and count == 0, trail.pieces[count]
        )
        if code != TAKEN:
            return count, tries, code
        count += 1
        for k in range(leading):
            for j in range(k):
                distance = 0.0
                for a in range(d):
                    distance += (x[a, k] - x[a, j]) ** 2
                if distance < square:
                    return count, tries, MET


@dataclass
class Flow:
    """Points on their way: where they are, and who they are. `prefix`: the tokens that see each other; their points stand in front."""

    field: Field
    places: FloatArray
    clusters: list[Cluster]
    tolerance: float
    tokens: int
    prefix: int

    @property
    def leading(self) -> int:
        """How many points see each other."""
        return sum(1 for cluster in self.clusters if cluster.tokens[0] < self.prefix)

    @property
    def sizes(self) -> FloatArray:
        return np.array([cluster.tokens.size for cluster in self.clusters], dtype=float)

    @property
    def point_of(self) -> np.ndarray:
        """The point of each token (tokens,)."""
        found = np.empty(self.tokens, dtype=np.int64)
        for number, cluster in enumerate(self.clusters):
            found[cluster.tokens] = number
        return found

    def join(self) -> None:
        """Let points that have met be one."""
        count = self.leading
        places, clusters = join(self.field, self.places[:count], self.clusters[:count], REACH * self.tolerance)
        self.places = np.concatenate([places, self.places[count:]])
        self.clusters = [*clusters, *self.clusters[count:]]

    def gathered(self, threshold: float) -> bool:
        """True when all points are one, or when those behind a prefix (which are never joined) are within `threshold` of it."""
        if len(self.clusters) == 1:
            return True
        away = np.linalg.norm(self.places[1:] - self.places[0], axis=1)
        return self.leading == 1 and bool(away.max() <= threshold)

    def advance(self, journal: control.Journal, goal: control.Goal, room: int) -> tuple[Trail, int]:
        """Some steps, `room` at the most, with the step control and the counters of a journal: what they leave, and how they ended;
        then joins and releases."""
        m, d = self.places.shape
        # Clusters that may come apart are looked at after every step.
        room = 1 if any(cluster.spread >= VANISHED for cluster in self.clusters) else min(room, ROOM)
        trail = Trail(np.zeros(room), np.zeros(room), np.zeros((room, 5, m, d)))
        surroundings = self.field.surroundings(self.sizes, self.leading, REACH * self.tolerance)
        work = make_work(self.places, surroundings.together, len(self.field.betas))
        done = int(journal.counters[control.ACCEPTED])
        tries = goal.max_steps - done - int(journal.counters[control.REJECTED])
        end = goal.until, goal.tolerance, 0.0
        count, left, code = _march(surroundings, work, journal.control, end, tries, done == 0, trail)
        made = tries - left
        journal.counters[: control.OUTPUTS] += count, made - count, 8 * made, made
        trail = Trail(*(part[:count] for part in trail))
        self.places = places_of(work)
        self._stretch(trail.pieces[:, 0], trail.widths)
        self.places, self.clusters = release(self.places, self.clusters, self.tolerance)
        self.join()
        return trail, int(code)

    def _stretch(self, places: FloatArray, widths: FloatArray) -> None:
        """Let the bounds on the sizes of clusters grow or shrink along steps from these places (s, m, d) to where the points are."""
        leading = self.clusters[: self.leading]
        wide = np.array([cluster.spread >= VANISHED for cluster in leading])
        if not wide.any():
            return
        count, spread = len(leading), np.array([cluster.spread for cluster in leading])
        rates = [loosening(self.field, here[:count], self.sizes[:count]) for here in (*places, self.places)]
        for width, before, after in zip(widths, rates, rates[1:]):
            spread[wide] += width * np.maximum(before, after)[wide]
        self.clusters[:count] = [
            cluster._replace(spread=float(size) if size >= VANISHED else -math.inf)
            for cluster, size in zip(leading, spread)
        ]

    def resting(self, threshold: float) -> float:
        """When one point is left (to lead): how long it takes until its tokens are within `threshold` of it (they contract at rate
        one)."""
        return max(0.0, self.clusters[0].spread - math.log(threshold))


def make_flow(field: Field, tokens: FloatArray, prefix: int, tolerance: float) -> Flow:
    """Tokens (n, d), in the coordinates of the field, joined where they have met; the first `prefix` of them see each other."""
    places, clusters = apart(tokens, prefix)
    flow = Flow(field, places, clusters, tolerance, len(tokens), prefix)
    flow.join()
    return flow
