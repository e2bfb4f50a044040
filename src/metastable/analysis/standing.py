"""The clusters of a state as points with masses, and the way that these points take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastable import sphere
from metastable._checks import FloatArray
from metastable.analysis.clusters import (
    IntArray,
    cluster_leaders,
    cluster_sizes,
    labels_of_unit_tokens,
    link_bound,
)
from metastable.analysis.followers import tree_of_groups
from metastable.analysis.gathering import gathering_places, outside_pull
from metastable.analysis.merging import WINDOW, MergeTree, tree_of_rest
from metastable.errors import InvalidInputError
from metastable.model import Attention, Causal
from metastable.model.values import scalar_multiple

LATEST = 1e306
"""The end of time: what has not merged by then never does, as far as double precision tells."""
TOLERANCE = 1e-6
"""Error of a step of the leaders, radians."""
MEETING = 1e-8
"""The same under full attention, where an error of a fall is one of the place at which two clusters meet, and not only of its time:
later waits are longer or shorter by exp(beta) of it."""
MOST_CLUSTERS = 400
"""More are not a metastable state, and their flow is no shorter than that of the tokens."""
GATHERED = 1e-3
"""Change of logits that is nothing."""
HELD = 0.02
"""Part of the force that holds a token in its cluster by which others may pull it, and it gathers as if they were not there."""
ARRIVED = 0.02
"""A leader that has come this near to another, in radii, is one with it."""
MAX_STEPS = 100_000
RESOLUTION = 1e-9
"""Fraction of a step at which a search for a meeting ends."""
SMALLEST_BLUR = 1e-5
"""Radians by which a place is uncertain at least: errors of a simulation with the default tolerances."""
ENCOUNTER = 1.0
"""Time (over the size of V) that a fall takes: within it, when two clusters have met is a matter of definition."""
BALANCE = 1e-14
"""Force, over the forces that it is the sum of, which may be their rounding."""
COPIES = 4
"""Disturbed cascades that the uncertainty comes from."""


def pulled_back(model: Attention) -> bool:
    """True when a token beside another one always falls back to it, for Q^T K = c I with c >= 0."""
    form = model.all_heads[0].bilinear
    factor = 1.0 if form is None else scalar_multiple(form)
    return factor is not None and factor >= 0.0


class Clusters:
    """The clusters of a state as points with masses."""

    def __init__(
        self, tokens: FloatArray, model: Attention, t0: float, radius: float, labels: np.ndarray | None = None
    ) -> None:
        """`labels` (n,): groups of tokens to take for clusters; None: tokens that are linked."""
        self.tokens: FloatArray = tokens
        self.model: Attention = model
        self.t0: float = t0
        self.radius: float = radius
        self.labels: IntArray = labels_of_unit_tokens(tokens, link_bound(radius)) if labels is None else labels
        self.leaders: IntArray = cluster_leaders(self.labels)
        self.sizes: IntArray = cluster_sizes(self.labels)
        count = len(self.leaders)
        if count > MOST_CLUSTERS:
            raise InvalidInputError(
                f"the state has {count} clusters of radius {radius:.3g}, more than {MOST_CLUSTERS}: nothing is metastable yet; give a "
                "later state, for example that of metastable.simulate(model, start, until=100.0), or a larger radius"
            )
        value = model.all_heads[0].value
        self.pace: float = 1.0 if value is None else float(scalar_multiple(value) or 1.0)
        self.causal: bool = isinstance(model.mask, Causal)
        causal = self.causal
        self.token_mass: FloatArray = np.ones(len(tokens)) if model.masses is None else np.asarray(model.masses, float)
        self.places: FloatArray = tokens[self.leaders]
        self._misplaced: FloatArray = np.zeros(count)
        self.pulled: NDArray[np.bool_] = np.zeros(count, dtype=bool)
        if not causal:
            self._gather()
        self.member: FloatArray = np.zeros((count, len(tokens)))
        self.member[self.labels, np.arange(len(tokens))] = self.token_mass
        seen = np.arange(len(tokens)) <= self.leaders[:, None] if causal else np.ones((count, len(tokens)))
        self.masses: FloatArray = seen @ self.member.T
        self.together: int = (model.dim - 1) * (1 if causal else count)

    def _gather(self) -> None:
        """Full attention: places are where tokens gather. Clusters whose tokens others pull meanwhile, so that they do not gather by
        themselves, are `pulled`."""
        around = self._bilinear, float(self.model.all_heads[0].beta)
        places, error = gathering_places(self.tokens, self.labels, self.token_mass, *around)
        self.places, self._misplaced = places, error
        spread = self._spread(places)
        if self.strength * spread.max(initial=0.0) < GATHERED:
            return  # others pull all tokens of a cluster alike
        drift, part = outside_pull(self.tokens, self.labels, self.token_mass, places, *around)
        length, most = np.linalg.norm(drift, axis=1), np.zeros(len(places))
        np.maximum.at(most, self.labels, part)
        self.pulled = (most > HELD) & (self.strength * np.maximum(length, most * spread) > GATHERED)
        self.places, self._misplaced = sphere.retract(places + drift), error + length

    def _spread(self, places: FloatArray) -> FloatArray:
        """How far the farthest token of each cluster (clusters,) is from its place, radians."""
        spread = np.zeros(len(places))
        np.maximum.at(spread, self.labels, sphere.distance(self.tokens, places[self.labels]))
        return spread

    def disturbed(self, blur: float | None) -> list[FloatArray]:
        """The places, each moved in its tangent space by `blur` times a normal number; the same ones in every call."""
        count, dim = self.places.shape
        scale = self._blur() if blur is None else np.full(count, blur)
        noise = np.random.default_rng(0).standard_normal((COPIES, count, dim))
        return [sphere.retract(self.places + scale[:, None] * part) for part in noise]

    def _blur(self) -> FloatArray:
        """How far the tokens that are not on their places yet may move these, radians (clusters,).

        They arrive at a rate of about one half. Until then cluster j, of spread s_j, pulls with a force that is off by a part of up to
        beta s_j (at most all of it), so place k moves by up to sum_j 2 p_kj min(1, beta s_j) |x_j - x_k|. Under full attention there is
        also the error of the place at which a cluster gathers.
        """
        apart, weights, _ = self._attention()
        pull = weights * np.linalg.norm(apart, axis=2) * np.minimum(1.0, self.strength * self._spread(self.places))
        return np.maximum(2.0 * pull.sum(axis=1) + self._misplaced, SMALLEST_BLUR)

    @property
    def _bilinear(self) -> FloatArray:
        """Q^T K."""
        form = self.model.all_heads[0].bilinear
        return np.eye(self.model.dim) if form is None else np.ascontiguousarray(form)

    def _attention(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The gaps x_j - x_k (k, j, d) between places, how much attention p_kj (k, j) they have, and its logits (k, j)."""
        apart = self.places[None] - self.places[:, None]
        logits = self.model.all_heads[0].beta * np.einsum("ka,ab,kjb->kj", self.places, self._bilinear, apart)
        weights = self.masses * np.exp(np.minimum(logits - logits.max(axis=1, keepdims=True), 0.0))
        return apart, weights / weights.sum(axis=1, keepdims=True), logits

    @property
    def speeds(self) -> FloatArray:
        """|dx_k/dt| of the places (clusters,), however small: a sum of gaps, each of them exact to rounding."""
        apart, weights, _ = self._attention()
        force = np.einsum("kj,kja->ka", weights, apart)
        along = np.einsum("ka,ka->k", self.places, force)[:, None]
        # (Squares of forces below 1e-154 would be zero.)
        return self.pace * np.hypot.reduce(force - along * self.places, axis=1)

    @property
    def hidden(self) -> NDArray[np.bool_]:
        """Which places (clusters,) are in a balance that no number tells from an exact one: rounding decides where they go."""
        apart, weights, logits = self._attention()
        parts = (
            weights * (1.0 + np.abs(logits)) * np.linalg.norm(apart, axis=2)
        )  # weights err by as much as their logits
        return self.speeds <= BALANCE * self.pace * parts.sum(axis=1)

    @property
    def tolerance(self) -> float:
        """Error of a step, radians."""
        return TOLERANCE if self.causal else MEETING

    def group_path(self, places: FloatArray, together: float = LATEST, tolerance: float | None = None) -> Any:
        """The way of groups at these places, which may part after they have met; from the time `together` on they stay so."""
        from metastable.analysis import _paths, leaders

        if together <= 0.0:
            return self.path(places, ARRIVED * self.radius, tolerance=tolerance)
        path = self.path(places, 0.0, until=together, gathered=self._gathered(), tolerance=tolerance)
        if together < LATEST and path.code == leaders.REACHED:
            reached = _paths.places_at(path.pieces[-1], 1.0)
            path = self.path(reached, ARRIVED * self.radius, begin=path.end, tolerance=tolerance, before=path)
        return path

    def _gathered(self) -> float:
        """Distance to the first token within which all are one cluster for ever: there logits are equal, and it does not move."""
        return min(ARRIVED * self.radius, GATHERED / (1.0 + self.strength))

    @property
    def encounter(self) -> float:
        """Time that a fall takes."""
        return ENCOUNTER / self.pace

    @property
    def strength(self) -> float:
        """beta |Q^T K|, by how much logits change with places."""
        head = self.model.all_heads[0]
        return abs(head.beta) * head.bilinear_size

    @property
    def form(self) -> FloatArray:
        """Q^T K beta over its size: logits are `strength` times this form of places."""
        head = self.model.all_heads[0]
        if head.bilinear is None or self.strength == 0.0:
            return np.eye(self.model.dim)
        return np.ascontiguousarray(head.bilinear * (head.beta / self.strength))

    @property
    def pulled_back(self) -> bool:
        """As `pulled_back` says of the model."""
        return pulled_back(self.model)

    def path(
        self,
        places: FloatArray,
        reach: float,
        until: float = LATEST,
        *,
        begin: float = 0.0,
        beta: float | None = None,
        tolerance: float | None = None,
        gathered: float = 0.0,
        before: Any = None,
    ) -> Any:
        """The way of points from these places on, as long as `until`; those within `reach` of one another are one, and all are when
        they have `gathered`.

        `beta`: another inverse temperature than that of the model. `before`: the way until `begin`, which is made longer.
        """
        from metastable.analysis import leaders
        from metastable.integrate.rodas.forces import plain_surroundings

        value = float(self.model.all_heads[0].beta if beta is None else beta)
        surroundings = plain_surroundings(self.masses, self._bilinear, value, self.together, reach)
        return leaders.solve(
            places,
            surroundings,
            begin=begin,
            until=until,
            tolerance=self.tolerance if tolerance is None else tolerance,
            max_steps=MAX_STEPS,
            gathered=gathered,
            before=before,
        )

    def read(self, path: Any, resolution: float = RESOLUTION, window: float = WINDOW) -> MergeTree:
        """The merges of a path, as `merge_tree` reads those of a run; `until` where the path ended before all was known."""
        from metastable.analysis import leaders

        if len(path.begin) == 0:  # nothing moves
            stands = labels_of_unit_tokens(self.places, link_bound(self.radius))[self.labels]
            return tree_of_rest(self.radius, stands, self.t0)
        tree = tree_of_groups(path, self.labels, self.radius, self.pace, resolution, self.t0, window)
        known = path.code in (leaders.ONE_LEFT, leaders.STILL, leaders.REACHED)
        return tree if known else replace(tree, until=self.t0 + path.end / self.pace)
