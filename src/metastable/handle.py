"""`Handle`: what every result of a run offers, whatever moved its tokens: the arrays of its dataset, observables, pictures."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, TimeError
from metastable.integrate.solution import Statistics
from metastable.stores import seal

if TYPE_CHECKING:
    import xarray as xr

    from metastable.dataset import Stored


OWN = "own"
"""Attribute of a stored run that names the variables and attributes which a user added to its dataset."""

BEGIN = "begin"
"""Attribute of a run that does not begin at time 0: when it does."""


@dataclass(frozen=True, eq=False)
class Handle(ABC):
    """A handle on an `xarray.Dataset` of the schema of runs: dims `time`, `token`, `coord`, variables `x` and `start`.

    Variables and attributes of your own may be added to `dataset`; they are saved and loaded with the run. What was computed stays:
    the properties of a run do not notice when `dataset` is changed, and `save` refuses to store it so. A handle is made of the dataset
    of another one, or of a slice of its times; a copy, whose numbers may be others by now, is refused.
    """

    dataset: xr.Dataset
    _made: xr.Dataset = field(init=False, repr=False)
    """The dataset as it was computed, whatever is done to `dataset`."""
    _stored: Stored | None = field(init=False, repr=False, default=None)
    """Where the run is stored: where it was read or saved last."""
    _continued: Stored | None = field(init=False, repr=False, default=None)
    """The same of the run that this one continues, shared by all that do."""

    def __post_init__(self) -> None:
        import xarray as xr

        from metastable.dataset import readonly

        if not isinstance(self.dataset, xr.Dataset):
            kind = type(self.dataset).__name__
            raise InvalidInputError(
                f"dataset must be an xarray.Dataset of the schema of runs, not {kind}; runs come from simulate and load"
            )
        seal.check(self.dataset)
        self._hold(readonly(self.dataset), seal.computed(self.dataset))

    @classmethod
    def _of_computed(cls, dataset: xr.Dataset) -> Self:
        """The handle on a dataset that was computed just now, or read from a store whose checksums are right (and is nobody else's)."""
        from metastable.dataset import locked

        handle = object.__new__(cls)
        names = {"variables": list(dataset.variables), "attributes": list(dataset.attrs)}
        if OWN in dataset.attrs:
            added = json.loads(dataset.attrs[OWN])
            names = {kind: [name for name in there if name not in added[kind]] for kind, there in names.items()}
            names["attributes"].remove(OWN)
            dataset.attrs = {name: value for name, value in dataset.attrs.items() if name != OWN}
        seal.put(dataset, names)
        handle._hold(locked(dataset), names)
        return handle

    def _hold(self, dataset: xr.Dataset, computed: dict[str, list[Any]]) -> None:
        """Keep `dataset`, which is read-only, and apart from it what was `computed` (names of `variables` and `attributes`)."""
        added = {*map(str, dataset.variables)} - {*map(str, computed["variables"])}
        made = dataset.drop_vars(added) if added else dataset.copy()
        made.attrs = {name: dataset.attrs[name] for name in (*computed["attributes"], seal.SEAL)}
        object.__setattr__(self, "dataset", dataset)
        object.__setattr__(self, "_made", made)

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "_made": self._made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copied and sent between processes, arrays come out writable; here they are as in any run."""
        from metastable.dataset import readonly

        for name, dataset in state.items():
            object.__setattr__(self, name, readonly(dataset))

    @property
    @abstractmethod
    def model(self) -> Any:
        """What moved the tokens."""

    @abstractmethod
    def at(self, t: float | Sequence[float] | FloatArray) -> FloatArray:
        """Tokens at time t."""

    @property
    def times(self) -> FloatArray:
        """Saved times (depth), shape (times,)."""
        return self._made["time"].values

    @property
    def states(self) -> FloatArray:
        """Unit tokens at the saved times, shape (times, tokens, dim)."""
        return self._made["x"].values

    @property
    def radius(self) -> FloatArray | None:
        """Radii at the saved times, shape (times, tokens), for norms that have them."""
        return self._made["radius"].values if "radius" in self._made else None

    @property
    def start(self) -> FloatArray:
        """Unit tokens at the beginning (`begin`), shape (tokens, dim)."""
        return self._made["start"].values

    @property
    def begin(self) -> float:
        """The time of `start`: 0, but for states that were given from a later one on."""
        return float(self._made.attrs.get(BEGIN, 0.0))

    @property
    def final(self) -> FloatArray:
        """Unit tokens at the last saved time, shape (tokens, dim)."""
        return self.states[-1] if len(self.times) else self.start

    @property
    def end(self) -> float:
        """The last time that was reached and kept."""
        return float(self.times[-1]) if len(self.times) else self.begin

    @property
    def status(self) -> str:
        """ "success", "max_steps", "diverged" or "unresolved"; `message` says more."""
        return self._made.attrs["status"]

    @property
    def message(self) -> str:
        """Why a run stopped early; empty for a success."""
        return self._made.attrs["message"]

    @property
    def method(self) -> str:
        """The method that made the run."""
        return self._made.attrs["method"]

    @property
    def engine(self) -> str:
        """The engine that made the run."""
        return self._made.attrs["engine"]

    @property
    def interaction(self) -> str:
        """How interactions were summed: "direct" or "series"."""
        return self._made.attrs["interaction"]

    @property
    def notes(self) -> dict[str, Any]:
        """What else is worth knowing, for example where an automatic method switched."""
        return json.loads(self._made.attrs["notes"])

    @property
    def stats(self) -> Statistics:
        """Steps accepted and rejected, right-hand sides and Jacobians evaluated."""
        names = ("accepted", "rejected", "evaluations", "jacobians")
        return Statistics(*(int(self._made.attrs[name]) for name in names))

    def observe(self, observable: Any) -> xr.DataArray:
        """An observable at the saved times: one of `metastable.observe`, or a function of your own.

        A function is `f(x) -> number or array` of one state (tokens, dim), or `f(states, times, model) -> array (times, ...)` of
        all of them; the result has its name (see also `metastable.observe.own`). In a run of several models (a `Schedule`, layers) the
        second is called once for each model, with the states and times at which it holds, so `states[0]` is not always the start.

        >>> import metastable as ms
        >>> run = ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(5, dim=2, seed=0), times=[0.0, 1.0])
        >>> def height(x):
        ...     return x[:, 1].max()
        >>> run.observe(height).name
        'height'
        """
        import xarray as xr

        from metastable.analysis.observe import along

        found = along(self, observable)
        return xr.DataArray(
            found.values,
            dims=("time", *found.dims),
            coords={"time": self.times, **found.coordinates},
            attrs=found.attributes,
            name=found.name or None,
        )

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Keep the run as a zarr store; an existing store stays untouched unless `overwrite=True`.

        A run that continues a stored one (`extend`, `append`) takes the place of that one only, or of a shorter continuation of it:
        where something else was stored there meanwhile, by another process for example, or a continuation that reaches further or
        has other tokens, `StoreExistsError` is raised, and nothing is overwritten.
        """
        from metastable import dataset

        stored = dataset.store(self._kept(), _checks.path(path), _checks.flag(overwrite, "overwrite"), self._continued)
        for known in (self._stored, self._continued):
            if known is not None and known.place == stored.place:
                known.stamp, known.end, known.tokens = stored.stamp, stored.end, stored.tokens
                stored = known
        object.__setattr__(self, "_stored", stored)

    def _kept(self) -> xr.Dataset:
        """What `save` stores: what was computed, and what was added to `dataset`; refuses a dataset that says something else."""
        from metastable.dataset import check_run

        made, now = self._made, self.dataset
        changed = [
            str(name) for name, variable in made.variables.items() if not _same(variable, now.variables.get(name))
        ]
        changed += [f"the attribute {name}" for name, value in made.attrs.items() if now.attrs.get(name) != value]
        if changed:
            raise InvalidInputError(
                f"run.dataset is not what was computed any more ({', '.join(changed)} changed), so it is not saved as a run; change a "
                "copy instead, data = run.dataset.copy(), and save that with data.to_zarr. Variables and attributes of your own may be "
                "added under other names"
            )
        added = self._added()
        complete = now.assign_attrs({OWN: json.dumps(added)}) if any(added.values()) else now
        odd = [name for name in now.attrs if not isinstance(name, str)]
        if odd:
            raise InvalidInputError(f"the attribute {odd[0]!r} of run.dataset is named by no text; a store takes text")
        check_run(complete)
        return complete

    def _added(self) -> dict[str, list[str]]:
        """Names of the `variables` and `attributes` that were added to `dataset` since the run was made."""
        made, now = self._made, self.dataset
        return {
            "variables": [str(name) for name in now.variables if name not in made.variables],
            "attributes": [str(name) for name in now.attrs if name not in made.attrs],
        }

    def plot(self, **options: Any) -> Any:
        """Draw the run as its dimension suggests; see `metastable.figures.draw_run`."""
        from metastable import figures

        return figures.draw_run(self, **options)

    def animate(self, path: str | Path, **options: Any) -> None:
        """Write a film of the run (.mp4 or .gif); see `metastable.figures.animate`."""
        from metastable import figures

        figures.animate(self, path, **options)


def _same(made: xr.Variable, now: xr.Variable | None) -> bool:
    return now is not None and made.dtype == now.dtype and made.identical(now)


def moments_of(t: Any) -> FloatArray | float:
    """The argument of `at`: several times as a vector, one as a number."""
    if isinstance(t, (Sequence, np.ndarray)) and not isinstance(t, str):
        array = _checks.real_array(t, "t", TimeError)
        if array.ndim != 0:
            return _checks.vector(array, "t", error=TimeError)
        t = float(array)
    return _checks.number(t, "t", 0.0, error=TimeError)
