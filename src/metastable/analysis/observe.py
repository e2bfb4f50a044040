"""Observables: numbers measured along a run, or on the fly for every member of an ensemble.

An observable is a small frozen object with

- `dims`: names of its dimensions after time, () for a number per time;
- `measure(states, start=..., model=..., times=...)`: states (times, n, d) of one member and its start (n, d) to an array of
  shape (times, ...).

It may have `coordinates`, too: a mapping from names of its dims to the numbers that stand along them (levels of quantiles, middles of
cells), which results carry as coordinates.

One whose class says `follows_model = True` looks at the model itself: in a run with several models it is measured with the one of
each time, once for the times of each model (so do functions of your own that take the model).

`run.observe(metastable.observe.mean_cosine())` gives a `DataArray`; `metastable.ensemble(..., observe={"name": observable})`
measures each member while it runs. Plain functions `f(x)` of one state, or `f(states, times, model)` of all, are observables, too
(`own` gives their dimensions names).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from metastable import _checks, sphere
from metastable._checks import FloatArray
from metastable.analysis import _balls
from metastable.analysis.centers import renyi_centers
from metastable.analysis.clusters import labels_of_unit_tokens, link_bound
from metastable.analysis.observe_attention import attention, attention_entropy, attention_rank
from metastable.analysis.observe_density import density, energy
from metastable.analysis.observe_own import as_observable, coordinates_of, measured, own
from metastable.analysis.scales import CONSUMED_FRACTION, center_separation, cluster_radius
from metastable.analysis.trajectory import distance_to_subspace, subspace_basis, writable
from metastable.errors import InvalidInputError, ObservableError
from metastable.model import Attention

__all__ = [
    "Observable",
    "attention",
    "attention_entropy",
    "attention_rank",
    "center_displacement",
    "clusters",
    "consumed",
    "cosine_quantiles",
    "density",
    "distance_to",
    "energy",
    "mean_cosine",
    "order_parameter",
    "own",
    "state",
]


@runtime_checkable
class Observable(Protocol):
    """What `Run.observe` and `ensemble` measure."""

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes that one moment of it has: none for a number."""
        ...

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        """Values (times, ...) of `states` (times, tokens, dim) at `times`, of a run that began at `start` (tokens, dim)."""
        ...


class Along(NamedTuple):
    """An observable along a run: `name` ("": none), `values` (times, ...), `dims` after time, their `coordinates`, `attributes`."""

    name: str
    values: np.ndarray
    dims: tuple[str, ...]
    coordinates: dict[str, np.ndarray]
    attributes: dict[str, Any]


def along(run: Any, observable: Any) -> Along:
    """An observable at the saved times of a `Trajectory`."""
    item = _for_run(as_observable(observable, "observe"), run)
    name = getattr(item, "name", "")
    label = name or type(item).__name__
    parts = []
    dims: tuple[str, ...] = ()
    for chosen, model in _by_model(run) if getattr(item, "follows_model", False) else [(slice(None), run.model)]:
        states, times = run.states[chosen], run.times[chosen]
        values, dims = measured(item, label, states, start=run.start, model=model, times=times)
        if parts and values.shape[1:] != parts[0].shape[1:]:
            raise ObservableError(
                f"the observable {label!r} returned {values.shape[1:]} numbers per time for one model of the run and "
                f"{parts[0].shape[1:]} for another; return as many for every model"
            )
        parts.append(values)
    values = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return Along(name, values, dims, coordinates_of(item, dims, values.shape[1:]), attributes_of(item))


def _for_run(observable: Any, run: Any) -> Any:
    """`for_model` for all models of a run, which must agree on the lengths that it leaves to them: one number means one thing."""
    found = for_model(observable, run.model)
    for model in getattr(run, "models", ()):
        other = for_model(observable, model)
        if other is not observable and other != found:
            raise InvalidInputError(
                f"the models of this run set different lengths for {observable!r}: {found!r} for the first, {other!r} for another; say "
                "which ones count for the whole run, for example metastable.observe.clusters(radius=0.1)"
            )
    return found


def _by_model(run: Any) -> list[tuple[slice, Any]]:
    """The saved times of a run, in order, with the model that holds then: several in a run of a `Schedule` or of layers."""
    if len(getattr(run, "models", ())) < 2 or not len(run.times):
        return [(slice(None), run.model)]
    schedule = run.schedule
    when = np.array([schedule.index(_at_joint(float(t), schedule.joints)) for t in run.times])
    cuts = [0, *(np.flatnonzero(np.diff(when)) + 1).tolist(), when.size]
    return [(slice(first, last), schedule.models[when[first]]) for first, last in pairwise(cuts)]


def _at_joint(t: float, joints: tuple[float, ...]) -> float:
    """t, or the joint that it is but for the rounding of a multiple of the step."""
    near = [joint for joint in joints if abs(t - joint) <= 4 * np.spacing(joint)]
    return near[-1] if near else t


def for_model(observable: Any, model: Attention) -> Any:
    """The observable with the lengths that it left to the model (`metastable.analysis.scales`) filled in."""
    return observable.for_model(model) if hasattr(observable, "for_model") else observable


def attributes_of(item: Any) -> dict[str, Any]:
    """What a dataset says of an observable: its text, and the lengths that it was measured with (`lengths_of`)."""
    return {"observable": text_of(item), **lengths_of(item)}


def text_of(item: Any) -> str:
    """An observable in words, without where in memory its functions are: that says nothing, and may be where others were."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(item))


def lengths_of(item: Any) -> dict[str, float]:
    """`delta` and `radius` of one of our observables that has them; not those left to the model."""
    return {name: float(getattr(item, name)) for name in _names_of_lengths(item) if getattr(item, name) is not None}


def lengths_left(item: Any) -> tuple[str, ...]:
    """Which of `lengths_of` are left to the model."""
    return tuple(name for name in _names_of_lengths(item) if getattr(item, name) is None)


def _names_of_lengths(item: Any) -> tuple[str, ...]:
    return ("delta", "radius") if isinstance(item, Consumed) else ("radius",) if isinstance(item, Clusters) else ()


@dataclass(frozen=True)
class Consumed:
    """Fraction of tokens near a center; made by `consumed`. None: the model decides."""

    delta: float | None
    radius: float | None
    strong: bool
    moving: bool

    @property
    def dims(self) -> tuple[str, ...]:
        return ()

    def lengths(self, model: Attention) -> tuple[float, float]:
        """delta and radius."""
        delta = center_separation(model) if self.delta is None else self.delta
        return delta, CONSUMED_FRACTION * delta if self.radius is None else self.radius

    def for_model(self, model: Attention) -> Consumed:
        return replace(self, **dict(zip(("delta", "radius"), self.lengths(model))))

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        from metastable.analysis import _kernels

        delta, radius = self.lengths(model)
        centers = renyi_centers(start, delta, self.strong)
        states = writable(states)
        bound = _balls.within_or_at(radius)
        return _kernels.consumed_fraction(states, centers, np.asarray(start)[centers], self.moving, bound)


def consumed(
    delta: float | None = None, radius: float | None = None, strong: bool = False, moving: bool = True
) -> Consumed:
    """Fraction (0..1) of tokens within `radius` of a center of the start. Every token counts once, whatever its mass.

    Args:
        delta: separation of the centers, see `metastable.renyi_centers`; None for 4 beta^(-1/2) of the model.
        radius: geodesic radius; None for 0.1 delta (delta itself is degenerate: every token is within delta of a center).
        strong: strong Renyi centers instead of Renyi centers.
        moving: measure from the centers' current positions (True) or from where they started (False).

    Reference: arXiv:2411.04990, Figure 3.
    """
    delta = None if delta is None else _checks.number(delta, "delta", 0.0, strict=True)
    if radius is not None:
        radius = _checks.number(radius, "radius", 0.0)
    elif delta is not None:
        radius = CONSUMED_FRACTION * delta
    return Consumed(delta, radius, _checks.flag(strong, "strong"), _checks.flag(moving, "moving"))


@dataclass(frozen=True)
class Clusters:
    """Number of clusters; made by `clusters`. None: the model decides."""

    radius: float | None

    @property
    def dims(self) -> tuple[str, ...]:
        return ()

    def for_model(self, model: Attention) -> Clusters:
        return Clusters(cluster_radius(model) if self.radius is None else self.radius)

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        bound = link_bound(cluster_radius(model) if self.radius is None else self.radius)
        states = writable(states)
        if states.shape[2] == 2:
            from metastable.analysis import _kernels

            return _kernels.count_clusters_circle(states, bound)
        return np.array([labels_of_unit_tokens(x, bound).max() + 1 for x in states], dtype=np.int64)


def clusters(radius: float | None = None) -> Clusters:
    """Number of clusters: components of the graph of tokens closer than `radius` (see `metastable.cluster_labels`).

    None: half of beta^(-1/2) of the model, as in `metastable.merge_tree`. Datasets say which radius it was.
    """
    return Clusters(None if radius is None else _checks.number(radius, "radius", 0.0, strict=True))


@dataclass(frozen=True)
class State:
    """The tokens themselves; made by `state`."""

    @property
    def dims(self) -> tuple[str, ...]:
        return ("token", "coord")

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        return np.array(states)


def state() -> State:
    """The tokens themselves, dims (token, coord): keep every member's trajectory (memory!)."""
    return State()


@dataclass(frozen=True)
class MeanCosine:
    """Mean cosine over pairs; made by `mean_cosine`."""

    @property
    def dims(self) -> tuple[str, ...]:
        return ()

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        tokens = states.shape[1]
        if tokens == 1:
            return np.ones(len(states))
        total = np.asarray(states).sum(axis=1)
        return (np.einsum("td,td->t", total, total) - tokens) / (tokens * (tokens - 1))


def mean_cosine() -> MeanCosine:
    """Mean of <x_i, x_j> over pairs i != j (1 for a single token). Every token counts once, whatever its mass.

    (`metastable.derivatives.mean_cosine` is another number: the mean cosine to a target.)
    """
    return MeanCosine()


@dataclass(frozen=True)
class CosineQuantiles:
    """Quantiles of the cosines over pairs; made by `cosine_quantiles`."""

    levels: tuple[float, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        return ("quantile",)

    @property
    def coordinates(self) -> dict[str, np.ndarray]:
        """The levels."""
        return {"quantile": np.array(self.levels)}

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        tokens = states.shape[1]
        if tokens == 1:
            return np.ones((len(states), len(self.levels)))
        pairs = np.triu_indices(tokens, 1)
        return np.array([np.quantile((x @ x.T)[pairs], self.levels) for x in np.asarray(states)])


def cosine_quantiles(levels: Sequence[float] = (0.1, 0.5, 0.9)) -> CosineQuantiles:
    """Quantiles of <x_i, x_j> over pairs i < j, dims (quantile,), whose coordinate are the levels. Every token counts once, whatever
    its mass.
    """
    checked = tuple(_checks.number(level, "levels", 0.0, 1.0) for level in _checks.vector(levels, "levels").tolist())
    if not checked:
        raise InvalidInputError("levels must hold at least one number between 0 and 1")
    return CosineQuantiles(checked)


@dataclass(frozen=True)
class OrderParameter:
    """Length of the mean token; made by `order_parameter`."""

    @property
    def dims(self) -> tuple[str, ...]:
        return ()

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        return np.linalg.norm(np.asarray(states).mean(axis=1), axis=1)


def order_parameter() -> OrderParameter:
    """Kuramoto's order parameter |sum_k x_k|/n: 1 when all tokens agree, about n^(-1/2) for independent uniform ones. Every token
    counts once, whatever its mass.

    (`metastable.derivatives.order_parameter` is its square, which has a slope at zero.)
    """
    return OrderParameter()


@dataclass(frozen=True)
class DistanceTo:
    """Distance of each token to a subspace; made by `distance_to`."""

    subspace: tuple[tuple[float, ...], ...]

    @property
    def dims(self) -> tuple[str, ...]:
        return ("token",)

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        basis = subspace_basis(np.array(self.subspace), states.shape[2])
        return distance_to_subspace(np.asarray(states), basis)


def distance_to(subspace: Any) -> DistanceTo:
    """Geodesic distance of each token to a subspace L, dims (token,).

    Args:
        subspace: spanning columns, shape (d, k), for example `metastable.predict(model).subspace`, or one vector (d,).
    """
    columns = _checks.real_array(subspace, "subspace")
    basis = subspace_basis(columns, columns.shape[0] if columns.ndim else 0)
    return DistanceTo(tuple(tuple(row) for row in basis.tolist()))


@dataclass(frozen=True)
class CenterDisplacement:
    """How far centers have moved; made by `center_displacement`."""

    delta: float
    strong: bool

    @property
    def dims(self) -> tuple[str, ...]:
        return ("token",)

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        centers = renyi_centers(start, self.delta, self.strong)
        moved = np.full(states.shape[:2], np.nan)
        moved[:, centers] = sphere.distance(np.asarray(states)[:, centers], np.asarray(start)[centers])
        return moved


def center_displacement(delta: float, strong: bool = True) -> CenterDisplacement:
    """Geodesic distance of each center of the start from where it started, dims (token,); NaN for tokens that are none.

    Reference: arXiv:2411.04990, Lemma 5.1 (strong centers stand still).
    """
    return CenterDisplacement(_checks.number(delta, "delta", 0.0, strict=True), _checks.flag(strong, "strong"))
