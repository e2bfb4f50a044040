"""The merge tree of a run: which cluster merged into which, and when."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastable import _checks
from metastable._checks import FloatArray
from metastable._words import counted
from metastable.analysis import _html
from metastable.analysis._film import Film, IntArray, Partition, RunFilm, by_first_token, refine
from metastable.analysis.clusters import (
    cluster_leaders,
    labels_of_unit_tokens,
    leaders_of_labels,
    link_bound,
)
from metastable.analysis.scales import cluster_radius_of_run
from metastable.analysis.trajectory import Trajectory, check_trajectory, joints_of, saved_grid
from metastable.errors import PassingMergeWarning, TimeError, UnsupportedError
from metastable.model import Attention

if TYPE_CHECKING:
    import pandas as pd

FINEST_RESOLUTION = 1e-15
"""Smallest fraction of a step that bisection can tell from the next floating-point number."""
NARROWEST_WINDOW = 1e-12
"""Smallest relative distance of checkpoints whose times floating-point numbers tell apart."""
WINDOW = 0.1
"""Relative length of the windows in which clusters are compared."""


@dataclass(frozen=True)
class MergeTree(_checks.LockedArrays):
    """Merges of a run in order of time. One row per merge, m rows; a cluster is named by its leader, its first token.

    Fields
    ------
    radius : tokens closer than this are linked.
    start_labels : (n,) clusters at `t0`; final_labels : (n,) clusters at the end.
    time : (m,) when cluster `child` became part of cluster `parent`, for good.
    before : (m,) the latest time at which they are known to have been apart; `time - before` is the resolution.
    child, parent : (m,) leaders; the parent's is the smaller one, so it leads the merged cluster.
    child_size, parent_size : (m,) tokens in each just before.
    refined : True when times come from the dense output, False when only saved times were available: then `time` is the first saved
        one after the merge and `before` the last one before it.
    uncertainty : (m,) of predicted trees (`predict_merges`): by how many decades each wait may be off; None for trees of runs.
    doubtful : (m,) of predicted trees: True where the parent itself, or who goes along, is in doubt; None for trees of runs.
    balanced : True for predicted trees that end with clusters in an exact balance, where nothing moves: the slightest push ends it, and
        they merge further, so how many are left says nothing. False for trees of runs.
    until : the end of the run, behind which nothing is known; None for predicted trees, which have none (but where steps ran out).
    noise : sigma of the run (the largest, of several models). Above 0 no merge is for good: tokens that meet part again, and the
        tree shows those that happen to stay together until the end of the run (`PassingMergeWarning`).
    joints : the depths inside the run at which its model becomes another (a `Schedule`, layers with weights of their own).
    t0 : from when on the tree knows: the time of the state that it was predicted from, or the begin of its run (0 for most).
    """

    radius: float
    start_labels: IntArray
    final_labels: IntArray
    time: FloatArray
    before: FloatArray
    child: IntArray
    parent: IntArray
    child_size: IntArray
    parent_size: IntArray
    refined: bool
    uncertainty: FloatArray | None = None
    doubtful: NDArray[np.bool_] | None = None
    until: float | None = None
    noise: float = 0.0
    balanced: bool = False
    joints: tuple[float, ...] = ()
    t0: float = 0.0

    def __repr__(self) -> str:
        span = f", t = {self.time[0]:.3g}..{self.time[-1]:.3g}" if len(self) else ""
        facts = [
            counted(self.tokens, "token") + (f" from t = {self.t0:.6g} on" if self.t0 > 0 else ""),
            counted(len(self), "merge") + span,
            counted(int(self.final_labels.max()) + 1, "cluster") + " left",
        ]
        return f"<MergeTree: {', '.join([*facts, *self.caveats])}>"

    @property
    def caveats(self) -> tuple[str, ...]:
        """What to know before believing the times, in words: that they are those of saved moments, that there was noise, that clusters
        are left which the slightest disturbance would merge."""
        said = {
            "times of saved moments": not self.refined,
            f"under noise {self.noise:g}, where merges are not for good": self.noise > 0,
            "clusters left in an exact balance that any disturbance ends": self.balanced,
            "predicted as far as steps lasted, and no further": self.uncertainty is not None and self.until is not None,
        }
        return tuple(words for words, holds in said.items() if holds)

    def _repr_html_(self) -> str:
        left = int(self.final_labels.max()) + 1
        begin = f"t = {self.t0:.6g}" if self.t0 > 0 else "the start"
        last = [f"{c} into {p} at t = {t:.4g}" for c, p, t in zip(self.child[-3:], self.parent[-3:], self.time[-3:])]
        facts = {
            "tokens": f"{self.tokens}, linked closer than {self.radius:.3g}",
            "merges": f"{len(self)}" + (f", t = {self.time[0]:.3g} to {self.time[-1]:.3g}" if len(self) else ""),
            "clusters": f"{int(self.start_labels.max()) + 1} at {begin}, {left} at the end",
            "last merges": "; ".join(last),
            "times": "refined on dense output" if self.refined else "of saved moments: merged between before and time",
        }
        if self.balanced:
            facts["balance"] = "nothing moves any more, but the slightest disturbance would merge those that are left"
        if self.uncertainty is not None and self.until is not None:
            facts["end"] = f"steps ran out at t = {self.until:.4g}; what merges later is not known"
        if self.noise > 0:
            facts["noise"] = f"{self.noise:g}: tokens that meet part again, and merges are not for good"
        return _html.table("MergeTree", facts)

    def __len__(self) -> int:
        return self.time.size

    @property
    def tokens(self) -> int:
        """Number of tokens n."""
        return self.start_labels.size

    @property
    def complete(self) -> bool:
        """True when one cluster is left at the end (not so for clusters in an exact balance: `balanced`)."""
        return bool(self.final_labels.max() == 0)

    def count(self, t: ArrayLike) -> Any:
        """Number of clusters at the times t (an int for one time, otherwise an array): tokens that have met for good by then.

        Early in a run tokens pass by one another, and `cluster_labels` of the state, which sees distances only, counts fewer (with
        noise they part again at any time). Behind the end of the run the last number stands; times before `t0` are refused.
        """
        times = _checks.real_array(t, "t")
        self._check_known(float(times.min(initial=math.inf)))
        left = int(self.start_labels.max()) + 1 - np.searchsorted(self.time, times, side="right")
        return int(left) if times.ndim == 0 else left

    def labels_at(self, t: float) -> IntArray:
        """Clusters at time t, numbered by first token, shape (n,): tokens that have met for good by then.

        Tokens that are near each other at t but part later are apart here, although `cluster_labels` of the state, which sees
        distances only, puts them together. So at the time of the state a predicted tree can have more clusters than the state. Times
        before `t0` are refused.
        """
        t = _checks.number(t, "t", 0.0)
        self._check_known(t)
        leader = cluster_leaders(self.start_labels)[self.start_labels]
        for child, parent in zip(self.child[self.time <= t], self.parent[self.time <= t]):
            leader[leader == child] = parent
        return by_first_token(leader)

    def _check_known(self, t: float) -> None:
        """Refuse times before the tree begins."""
        if t < self.t0:
            raise TimeError(
                f"this tree knows the clusters from t = {self.t0:.6g} on, and nothing of t = {t:.6g}; what came before is in "
                "the tree of a run that begins earlier, metastable.merge_tree(run)"
            )

    def linkage(self, height: Literal["time", "log10"] = "time", unmerged: float = math.inf) -> FloatArray:
        """The tree as a SciPy linkage matrix, shape (n - 1, 4), for `scipy.cluster.hierarchy`.

        Leaves are tokens; tokens that start in one cluster are joined at height 0.

        Args:
            height: "time", or "log10" for log10(1 + time), which shows many decades.
            unmerged: height at which clusters that never merged are joined; pass a finite one to draw a dendrogram.
        """
        _checks.choice(height, "height", ("time", "log10"))
        if not (isinstance(unmerged, float) and unmerged == math.inf):
            unmerged = _checks.number(unmerged, "unmerged", 0.0)
        leader = cluster_leaders(self.start_labels)[self.start_labels]
        joins = [(int(k), int(leader[k]), 0.0) for k in range(self.tokens) if leader[k] != k]
        heights = self.time if height == "time" else np.log10(1.0 + self.time)
        joins += [(int(c), int(p), float(h)) for c, p, h in zip(self.child, self.parent, heights)]
        joins += [(int(k), 0, float(unmerged)) for k in cluster_leaders(self.final_labels)[1:]]
        node, size = np.arange(self.tokens), np.ones(self.tokens)
        rows = np.empty((len(joins), 4))
        for row, (child, parent, at) in enumerate(joins):
            size[parent] += size[child]
            rows[row] = (*sorted((node[child], node[parent])), at, size[parent])
            node[parent] = self.tokens + row
        return rows

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """The merges as named columns, with `size` after and `clusters` left after each merge."""
        return {
            "time": self.time,
            "before": self.before,
            "child": self.child,
            "parent": self.parent,
            "child_size": self.child_size,
            "parent_size": self.parent_size,
            "size": self.child_size + self.parent_size,
            "clusters": int(self.start_labels.max()) - np.arange(len(self)),
            **({} if self.uncertainty is None else {"uncertainty": self.uncertainty}),
            **({} if self.doubtful is None else {"doubtful": self.doubtful}),
        }

    def to_dataframe(self) -> pd.DataFrame:
        """The merges as a pandas data frame (the columns of `to_columns`)."""
        import pandas as pd

        return pd.DataFrame(self.to_columns())


def merge_tree(
    run: Trajectory, radius: float | None = None, *, window: float = WINDOW, resolution: float = 1e-9
) -> MergeTree:
    """Which cluster of a run merged into which, and when.

    Clusters are those of `cluster_labels` with this `radius`. They are compared at checkpoints, one in each window from
    1e-6 (1 + window)^i on: two tokens have merged if they share a cluster at all later checkpoints. So tokens that
    only pass each other do not count, nor does it count when a cluster stretches for a moment while it falls into
    another one; and the merges always form a tree. The checkpoint of a window is its begin or its middle,
    whichever has fewer clusters. Between checkpoints the leaders of the clusters that merge are
    followed, and the time from which they stay together until the second (but for separations of less than half a window) is found by
    bisection on the dense output, in fractions of a step: that works over any number of decades, although steps late in a merge are
    shorter than the spacing of floating-point numbers at their time. Neither checkpoints nor times depend on where steps end: a
    stretch of time is passed over only where a bound on the ways of the tokens proves that no link opens in it. (A link that opens by
    less than a thousandth of the radius, or than the error of the run, may go unseen.)

    With noise (`model.noise` > 0) nothing merges for good: tokens touch and part again, and whoever is near another at the end of the
    run, and was since some checkpoint, counts as merged. Another horizon gives another tree. There is a `PassingMergeWarning`, and
    the tree says it (`noise`); what noisy runs have is the number of clusters at a time, `metastable.observe.clusters`.

    Args:
        run: a `Run`. Without dense output (`times=` was given) every saved time is a checkpoint, and merges are placed at
            the first saved time after them.
        radius: geodesic distance > 0 below which tokens are linked. None: half of beta^(-1/2), the width of the attraction
            (`metastable.analysis.cluster_radius`); the tree says which it was. A run of several models with different beta needs one.
            What is smaller than the errors of the run by far (1e-10 at the default tolerances) measures these.
        window: relative length of the windows, at least 1e-12. Separations of half of it do not count if nobody else parts at that
            time, and those of up to one and a half may not: a checkpoint is the begin or the middle of its window.
        resolution: bisection stops at this fraction of a step, 1e-15 to 1.

    Returns:
        A `MergeTree`.
    """
    tree = tree_of_run(run, radius, window, resolution)
    warn_of_noise(tree)
    return tree


def warn_of_noise(tree: MergeTree) -> None:
    """Warn whoever called the caller that the merges of a noisy run are not for good."""
    if tree.noise > 0:
        warnings.warn(
            f"this run has noise ({tree.noise:g}), under which tokens that meet part again: its {counted(len(tree), 'merge')} "
            "are those of tokens that happen to be together from then until the end, and another horizon gives others. The number of "
            "clusters at a time is run.observe(metastable.observe.clusters())",
            PassingMergeWarning,
            stacklevel=3,
        )


def tree_of_run(run: Trajectory, radius: float | None, window: float, resolution: float) -> MergeTree:
    """`merge_tree`, without its warning."""
    trajectory = check_trajectory(run)
    if radius is None and not isinstance(trajectory.model, Attention):
        raise UnsupportedError("this run has no inverse temperature to set a radius by; give one: radius=0.3")
    radius = cluster_radius_of_run(trajectory) if radius is None else _checks.number(radius, "radius", 0.0, strict=True)
    bound = link_bound(radius)
    window = _checks.number(window, "window", NARROWEST_WINDOW)
    resolution = _checks.number(resolution, "resolution", FINEST_RESOLUTION, 1.0)
    if trajectory.dense is None:
        tree = _from_saved(trajectory, radius, bound)
    else:
        dim = np.asarray(trajectory.start).shape[1]
        film = RunFilm(trajectory.dense.start, trajectory.dense.width, radius, trajectory.dense, dim)
        tree = tree_of_film(film, window, resolution)
    # The layers of a checkpoint have no noise.
    models = getattr(trajectory, "models", (trajectory.model,))
    noise = max(float(getattr(model, "noise", 0.0)) for model in models)
    return replace(tree, noise=noise, joints=joints_of(trajectory))


def _from_saved(run: Trajectory, radius: float, bound: float) -> MergeTree:
    """Merges between saved times."""
    from metastable.analysis import _rewind

    times, states = saved_grid(run)
    final = partition = labels_of_unit_tokens(states[-1], bound)
    merges, count = _rewind.no_merges(len(final)), 0
    for index in range(len(times) - 2, -1, -1):
        earlier = refine(labels_of_unit_tokens(states[index], bound), partition)
        if earlier.max() > partition.max():
            leaders, sizes = leaders_of_labels(earlier), np.bincount(earlier)
            later = by_first_token(partition[leaders])
            moments = times[index], times[index + 1]
            count = _rewind.record(merges, count, np.arange(len(leaders)), later, leaders, sizes, moments)
        partition = earlier
    known = merges[0][:count], merges[1][:count]
    return _as_tree(known, radius, partition, final, refined=False, known=(float(times[0]), float(times[-1])))


def tree_of_film(film: Any, window: float = WINDOW, resolution: float = 1e-9) -> MergeTree:
    """Merges between checkpoints, refined on the dense output; `film`: a `Film`, or a `_paths.PathFilm`."""
    from metastable.analysis import _rewind

    reader = _rewind.rewind if isinstance(film, Film) else _rewind.rewind_path
    merges, start, final = reader(film, window, resolution)
    begin, end = (float(_rewind.time_of(film, moment)) for moment in ((0, 0.0), (len(film.start) - 1, 1.0)))
    return _as_tree(merges, film.radius, start, final, refined=True, known=(begin, end))


def _as_tree(
    merges: tuple[FloatArray, IntArray],
    radius: float,
    start: Partition,
    final: Partition,
    refined: bool,
    known: tuple[float, float | None],
) -> MergeTree:
    """The tree of merges from the last to the first, as in `_rewind.no_merges`; `known`: its `t0` and `until`."""
    before, time = merges[0][::-1].T.copy()
    child, parent, child_size, parent_size = merges[1][::-1].T.copy()
    row = child, parent, child_size, parent_size
    return MergeTree(radius, start, final, time, before, *row, refined, t0=known[0], until=known[1])


def tree_of_rest(radius: float, labels: Partition, t0: float) -> MergeTree:
    """The tree of clusters that never merge, whatever is waited for from t0 on."""
    nothing = np.empty((0, 2)), np.empty((0, 4), np.int64)
    return _as_tree(nothing, radius, labels, labels, refined=True, known=(t0, None))
