"""The flow of clusters as points, under an inverse temperature that changes with depth, with masses and places that may be changed.

What control solves for: a cascade of many decades in milliseconds, smooth in every number that goes in. One frozen token is the
same as a first token with its weight as its mass (token 1 rests when V = I), so a sink is one more point.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metastable._checks import FloatArray
from metastable.analysis.cascade import counts_refusal
from metastable.analysis.leaders import ONE_LEFT, STILL, Path
from metastable.analysis.merging import MergeTree
from metastable.analysis.standing import ARRIVED, LATEST, TOLERANCE, Clusters
from metastable.errors import ConvergenceError, UnsupportedError
from metastable.model import Attention, Causal

Pieces = Sequence[tuple[float, float]]
"""(depth from which it holds, inverse temperature), in order; the first depth is that of the state or earlier."""


@dataclass(frozen=True)
class Event:
    """A merge: `child` falls into `parent` (first tokens) at `time`."""

    child: int
    parent: int
    time: float

    def pair(self, sink: bool) -> str:
        """Who into whom, in words; `sink`: token 0 is the frozen one, and those of the run come behind it."""
        return f"{self.child - sink} into " + ("the sink" if sink and self.parent == 0 else str(self.parent - sink))

    def said(self, sink: bool) -> str:
        """The same, and when."""
        return f"{self.pair(sink)} at t = {self.time:.4g}"

    def __str__(self) -> str:
        return self.said(False)


def sink_refusal(model: Attention, tokens: int) -> str | None:
    """Why the clusters of this model, whose frozen token may be one of them, are no points; None: they are."""
    if model.frozen is None:
        return counts_refusal(model, tokens)
    if len(model.frozen.tokens) != 1:
        return f"the flow of clusters takes one frozen token, and this model has {len(model.frozen.tokens)}"
    if not isinstance(model.mask, Causal):
        return "a frozen token stands for a first one, which rests, under the causal mask only"
    # Who sits on the frozen token stays there, whatever it weighs: only the others' leaders may be left.
    return counts_refusal(model.replace(frozen=None), tokens)


def with_sink(state: FloatArray, model: Attention) -> tuple[FloatArray, Attention]:
    """State and model (of those that `sink_refusal` has nothing against) with the frozen token as first token; both as they are where
    there is none.
    """
    if model.frozen is None:
        return state, model
    assert model.frozen.weights is not None
    masses = np.ones(len(state)) if model.masses is None else np.asarray(model.masses)
    weights = np.concatenate([np.maximum(model.frozen.weights, 1e-300), masses])
    return np.concatenate([model.frozen.tokens, state]), model.replace(frozen=None, masses=weights)


def clusters_of(state: FloatArray, model: Attention, t0: float, radius: float) -> Clusters:
    """The clusters of a state as points; `UnsupportedError` for models whose clusters are none."""
    reason = sink_refusal(model, len(state))
    if reason is not None:
        raise UnsupportedError(f"{reason}; control of single merges is for clusters that are points until they fall")
    return Clusters(*with_sink(state, model), t0, radius)


def changed(clusters: Clusters, *, places: FloatArray | None = None, masses: FloatArray | None = None) -> Clusters:
    """The same clusters at other places, or with another matrix of masses."""
    other = copy.copy(clusters)
    other.places = clusters.places if places is None else places
    other.masses = clusters.masses if masses is None else masses
    return other


def tree_of(
    clusters: Clusters, pieces: Pieces | None = None, *, until: float = LATEST, tolerance: float = TOLERANCE
) -> MergeTree:
    """The merges of clusters under `pieces` (None: the beta of the model), up to depth `until`."""
    beta = clusters.model.all_heads[0].beta
    pieces = [(clusters.t0, beta)] if pieces is None else list(pieces)
    ends = [*(begin for begin, _ in pieces[1:]), until]
    paths, places = [], clusters.places
    for (begin, value), end in zip(pieces, ends):
        begin = max(begin, clusters.t0)
        if end <= begin:
            continue
        path = clusters.path(
            places, ARRIVED * clusters.radius, (end - begin) * clusters.pace, beta=value, tolerance=tolerance
        )
        if path.end < (end - begin) * clusters.pace and path.code not in (ONE_LEFT, STILL):
            raise ConvergenceError(f"the flow of clusters stopped at t = {begin + path.end / clusters.pace:.4g}")
        if len(path.begin):
            places = _last(path)
            paths.append(path._replace(begin=path.begin + (begin - clusters.t0) * clusters.pace))
        if path.code == ONE_LEFT:
            break
    return clusters.read(_joined(paths, clusters))


def _last(path: Path) -> FloatArray:
    """Where the points are at the end of a path."""
    x = path.pieces[-1].sum(axis=0)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _joined(paths: list[Path], clusters: Clusters) -> Path:
    """Paths that follow one another as one."""
    if not paths:
        return clusters.path(clusters.places, ARRIVED * clusters.radius, 0.0)
    begin, width, pieces, owner = (
        np.concatenate([getattr(path, name) for path in paths]) for name in ("begin", "width", "pieces", "owner")
    )
    return Path(begin, width, pieces, owner, paths[-1].code, paths[-1].end)


def events_of(tree: MergeTree) -> list[Event]:
    """The merges of a tree in order of time."""
    return [Event(int(c), int(p), float(t)) for c, p, t in zip(tree.child, tree.parent, tree.time)]


def fall_of(tree: MergeTree, child: int, into: int | None = None) -> Event | None:
    """The merge in which cluster `child` is swallowed; None when it never is, or by a cluster that `into` is not part of then."""
    rows = np.flatnonzero(tree.child == child)
    if rows.size == 0:
        return None
    event = Event(child, int(tree.parent[rows[0]]), float(tree.time[rows[0]]))
    if into is None:
        return event
    labels = tree.labels_at(event.time)
    return event if labels[into] == labels[event.parent] and not _earlier(tree, into, child, event.time) else None


def _earlier(tree: MergeTree, into: int, child: int, time: float) -> bool:
    """True when `into` had become part of `child` itself before."""
    before = tree.time < time
    leader = {int(c): int(p) for c, p in zip(tree.child[before], tree.parent[before])}
    while into in leader:
        into = leader[into]
        if into == child:
            return True
    return False
