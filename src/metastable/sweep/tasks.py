"""One task of a sweep: the ensemble at one grid point, as plain values, with a key that names its result.

The key is a hash of everything that determines the result (and of nothing else): a task keeps its result when the grid grows
or its axes are reordered, and never takes that of another.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.errors import StoppedEarlyWarning, SweepError
from metastable.integrate.solution import tally
from metastable.model import Attention
from metastable.sweep import own

if TYPE_CHECKING:
    import xarray as xr

Execute = Callable[["Task"], "xr.Dataset"]
"""What a task runs: takes a `Task`, returns a dataset of numeric variables."""
ENSEMBLE_TASK = "metastable.sweep.tasks:run_ensemble"
"""The task function of `metastable sweep`."""
UNFINISHED = "unfinished"
"""The variable that counts the members of a task that stopped early."""
EARLY = "early"
"""Attribute of a result with how many members stopped early, by status, as JSON."""
FUNCTIONS = "functions"
"""Where a record says of which versions of one's own functions it was made (`sweep.own.fingerprints`)."""


def canonical(value: Any) -> str:
    """JSON that is equal for equal values (sorted keys; repr of a float64 is exact)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(text: str) -> str:
    """A 128-bit hash in hexadecimal."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Task:
    """The ensemble at one grid point.

    `index`: place on each axis. `point`: label on each axis, for people. The rest is what `metastable.ensemble` is called
    with, as plain values: `model` (see `Attention.to_dict`), `observe` (name -> table with a `kind` of `metastable.observe`
    and its arguments), `options` (method, engine, tolerances, ...). `threads` does not change results and is not part of
    the key.
    """

    number: int
    index: tuple[int, ...]
    point: Mapping[str, Any]
    model: Mapping[str, Any]
    tokens: int
    members: int
    times: tuple[float, ...]
    observe: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any]
    seed: int
    keep: str
    threads: int | None = None
    start: str | Mapping[str, Any] = own.UNIFORM

    @cached_property
    def key(self) -> str:
        """Names the result of this task."""
        content = [
            self.model,
            self.tokens,
            self.members,
            list(self.times),
            self.observe,
            self.options,
            self.seed,
            self.keep,
        ]
        # Keys of sweeps that say nothing about starts are those of earlier versions.
        return digest(canonical(content if self.start == own.UNIFORM else [*content, self.start]))

    @property
    def where(self) -> str:
        """The grid point in words: `beta = 64, mask = causal`."""
        return describe(self.point)

    def attention(self) -> Attention:
        """The model as an object."""
        return Attention.from_dict(dict(self.model))

    def observables(self) -> dict[str, Any]:
        """The observables as objects of `metastable.observe`."""
        return {name: observable(name, table) for name, table in self.observe.items()}

    def sampler(self) -> Any:
        """What `metastable.ensemble` takes for `start`: "uniform", or a function."""
        return own.start(self.start)


def describe(point: Mapping[str, Any]) -> str:
    """A grid point in words."""
    shown = (
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}" for name, value in point.items()
    )
    return ", ".join(shown) or "the only point"


def observable(name: str, table: Mapping[str, Any]) -> Any:
    """The observable that `[observe.NAME]` describes."""
    where = f"observe.{name}"
    kind = table["kind"]
    arguments = {key: value for key, value in table.items() if key != "kind"}
    if own.is_path(kind):
        return own.observable(where, kind, arguments)
    make = own.maker(where, kind)
    try:
        return make(**arguments)
    except TypeError as reason:
        raise SweepError(f"{where}: {reason}") from None


def load(path: str) -> Callable[..., Any]:
    """The function that `"package.module:name"` names."""
    return own.load(path, "the task function")


def run_ensemble(task: Task) -> xr.Dataset:
    """The ensemble of a task, with the observables of its members over time (NaN from where a member failed).

    The variable `unfinished` counts the members that stopped early (the attribute `early`: by status).
    An ensemble that was interrupted has fewer members than it should: it is no result. One of which no member reached the last time
    is a failure.
    """
    from metastable.ensembles import ensemble, own  # Numba and xarray, which only workers need

    with warnings.catch_warnings(), own.known_otherwise():
        warnings.simplefilter("ignore", StoppedEarlyWarning)  # what it says is counted, or ends the task
        result = ensemble(
            task.attention(),
            tokens=task.tokens,
            members=task.members,
            times=np.array(task.times),
            seed=task.seed,
            observe=task.observables(),
            start=task.sampler(),
            threads=task.threads,
            progress=False,
            **task.options,
        )
    if result.attrs["status"] == "interrupted":
        raise KeyboardInterrupt
    for name, array in result.data_vars.items():
        both = [dim for dim in map(str, array.dims) if dim in task.point]
        if both:
            raise SweepError(
                f"{both[0]!r} is an axis of the grid and a dimension of the observable {name}; rename the axis"
            )
    statuses = result["status"].values
    reason = result.attrs.get("failure", "")
    finished = statuses == "success"
    if not finished.any():
        raise SweepError(
            f"none of the {statuses.size} members reached t = {task.times[-1]:g} ({tally(statuses)}); "
            + (
                reason
                or "raise max_steps in [run] where that is the reason, or run one member with metastable.simulate to see why"
            )
        )
    early = Counter(map(str, statuses[~finished]))
    return result.assign({UNFINISHED: early.total()}).assign_attrs({EARLY: json.dumps(dict(sorted(early.items())))})


# ------------------------------------------------------------------------------------------- what is kept of a result

STATISTICS = ("mean", "std", "q10", "q50", "q90", "count")
"""Labels of the dim `statistic`, which replaces `member` with `keep = "statistics"`: over the members that finished."""


@dataclass(frozen=True)
class Variable:
    """A named array with named dims; `coordinate` marks the coordinate of a dim."""

    name: str
    dims: tuple[str, ...]
    values: np.ndarray
    coordinate: bool = False


def variables(dataset: xr.Dataset, keep: str) -> list[Variable]:
    """The numeric variables of a result as float64, reduced over members if so asked, and the coordinates of their dims."""
    from metastable.stores.membership import DIGEST

    kept: list[Variable] = []
    for name in sorted(map(str, dataset.data_vars)):
        array = dataset[name]
        if array.dtype.kind not in "biuf" or name == DIGEST:
            continue
        dims, values = tuple(map(str, array.dims)), np.asarray(array.values, dtype=np.float64)
        if keep == "statistics" and "member" in dims:
            values = statistics(values, dims.index("member"))
            dims = tuple("statistic" if dim == "member" else dim for dim in dims)
        kept.append(Variable(name, dims, np.array(values, order="C")))
    if not kept:
        raise SweepError("the task function returned no numeric variable; observe at least one thing")
    used = dict.fromkeys(dim for variable in kept for dim in variable.dims)
    for dim in used:
        if dim in dataset.coords and dataset[dim].dtype.kind in "biuf":
            values = np.ascontiguousarray(dataset[dim].values, dtype=np.float64)
            kept.append(Variable(dim, (dim,), values, coordinate=True))
    return kept


def statistics(values: np.ndarray, axis: int) -> np.ndarray:
    """`STATISTICS` along `axis`, leaving out members that are NaN (NaN where nobody is left, 0 for the count).

    Infinite members count: means and quantiles are infinite where they make them so, and NaN where they say nothing, as the spread is.
    """
    moved = np.moveaxis(values, axis, -1)
    present = ~np.isnan(moved)
    count = present.sum(axis=-1)
    some = np.maximum(count, 1)
    with np.errstate(invalid="ignore", over="ignore"):  # infinity minus infinity, and beyond double precision
        mean = np.where(present, moved, 0.0).sum(axis=-1) / some
        spread = np.where(present, (moved - mean[..., None]) ** 2, 0.0).sum(axis=-1) / np.maximum(count - 1, 1)
        ordered = np.sort(np.where(present, moved, np.inf), axis=-1)
        quantiles = [_quantile(ordered, count, level) for level in (0.1, 0.5, 0.9)]
    gone = count == 0
    rows = [np.where(gone, np.nan, row) for row in (mean, np.where(count > 1, np.sqrt(spread), np.nan), *quantiles)]
    return np.moveaxis(np.stack([*rows, count.astype(np.float64)], axis=-1), -1, axis)


def _quantile(ordered: np.ndarray, count: np.ndarray, level: float) -> np.ndarray:
    """Linear interpolation between order statistics of the first `count` entries (NumPy's default definition); where one of the two is
    infinite it is the quantile, but for places at the other one."""
    place = level * np.maximum(count - 1, 0)
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, np.maximum(count - 1, 0))
    # Where nobody is present the entries are infinite; the caller replaces the result by NaN.
    ends = [np.take_along_axis(ordered, place_of[..., None], axis=-1)[..., 0] for place_of in (low, high)]
    below, above = (np.where(count > 0, end, 0.0) for end in ends)
    part = place - low
    weighted = np.where(np.isfinite(above - below), below + part * (above - below), (1 - part) * below + part * above)
    return np.where((part == 0) | (below == above), below, weighted)
