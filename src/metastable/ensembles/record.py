"""What an ensemble keeps: observables member by member, and the statistics over members."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.ensembles import digests
from metastable.ensembles.own import Readings, own_functions, read
from metastable.ensembles.problem import Problem, names_of_lengths
from metastable.errors import InvalidInputError, ObservableError
from metastable.integrate.solution import FAILED, MEMBER_STATUSES, SUCCESS, UNFINISHED
from metastable.model import Attention
from metastable.stores import membership, seal

if TYPE_CHECKING:
    import xarray as xr


GIVE_UP = 32
"""When so many members have failed, and none has not, the rest is not tried."""

EXACT = 2**53
"""Up to here floating-point numbers hold whole ones exactly."""

MEMBER_QUANTILE = "member_quantile"
"""The dim of quantiles over members where an observable has a dim `quantile` of its own."""
OWN_QUANTILE = "_own_quantile"


@dataclass
class Record:
    """What has been measured so far, member by member."""

    problem: Problem
    values: dict[str, np.ndarray] = field(default_factory=dict)
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    coordinates: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """Of each dim, what the observables that have it say stands along it."""
    lengths: dict[str, np.ndarray] = field(default_factory=dict)
    """Lengths that each member's own model has set, as `clusters_radius` (members,): in ensembles of drawn models."""
    status: np.ndarray = field(init=False)
    statistics: np.ndarray = field(init=False)
    interrupted: bool = False
    stopped: bool = False
    """Nobody waits for what is not measured yet."""
    failure: str = ""
    """Why the first member failed that could not be drawn or measured."""
    error: Exception | None = None
    """What was raised then."""
    methods: set[str] = field(default_factory=set)
    functions: Readings = field(init=False)
    """What functions of users were made of before anything was computed."""

    def __post_init__(self) -> None:
        self.status = np.full(self.problem.members, UNFINISHED)
        self.statistics = np.zeros((self.problem.members, 3), dtype=np.int64)
        self.functions = read(self.problem)

    def measure(self, member: int, start: FloatArray, states: FloatArray, model: Attention) -> None:
        """Measure the times that a member reached; the others stay NaN."""
        from metastable.analysis.observe import for_model, lengths_left, lengths_of
        from metastable.analysis.observe_own import coordinates_of, measured

        problem = self.problem
        reached = int(np.isfinite(states).all(axis=(1, 2)).sum())
        if reached == 0:
            return
        for name, observable in problem.observables.items():
            item = for_model(observable, model)
            for length, value in lengths_of(item).items():
                if length in lengths_left(observable):
                    self.lengths.setdefault(f"{name}_{length}", np.full(problem.members, np.nan))[member] = value
            found, dims = measured(
                item,
                name,
                states[:reached],
                start=start,
                model=model,
                times=problem.times[:reached],
                whose=problem.named(member),
            )
            if name not in self.values:
                for dim, along in coordinates_of(item, dims, found.shape[1:]).items():
                    self.coordinates.setdefault(dim, []).append(along)
            if found.dtype.kind in "iu" and found.size and max(abs(int(found.min())), int(found.max())) > EXACT:
                raise ObservableError(
                    f"the observable {name!r} returned whole numbers beyond 2**53, and ensembles keep floating-point numbers, which do "
                    "not tell those apart; return smaller ones, or their digits as an array"
                )
            self._make_room(name, found.shape[1:], dims)
            self.values[name][member, :reached] = found

    def _make_room(self, name: str, shape: tuple[int, ...], dims: tuple[str, ...]) -> None:
        """Memory for an observable, once its shape is known; every member must have that shape."""
        if name not in self.values:
            self.values[name] = np.full((self.problem.members, self.problem.times.size, *shape), np.nan)
            self.dims[name] = dims
            self._check_sizes(name, shape, dims)
            lengths = names_of_lengths(self.problem.observables)
            both = [dim for dim in dims if dim in self.problem.observables or dim in lengths]
            if both:
                what = f"a length of {lengths[both[0]]!r}" if both[0] in lengths else "an observable"
                raise ObservableError(
                    f"{both[0]!r} is the name of {what} and of a dimension of the observable {name!r}; call one of them "
                    "otherwise, in observe={...} or with metastable.observe.own(f, dims=(...))"
                )
        known = self.values[name].shape[2:]
        if shape != known:
            raise ObservableError(
                f"the observable {name!r} returned {shape} numbers per time for one member and {known} for another; return as many for "
                "every member"
            )

    def _check_sizes(self, name: str, shape: tuple[int, ...], dims: tuple[str, ...]) -> None:
        """A dimension has one size in the whole dataset."""
        for other, known in self.dims.items():
            sizes = dict(zip(known, self.values[other].shape[2:]))
            for dim, size in zip(dims, shape):
                if sizes.get(dim, size) != size:
                    raise ObservableError(
                        f"the dimension {dim!r} has size {size} in the observable {name!r} and {sizes[dim]} in {other!r}; give one of "
                        "them another name: metastable.observe.own(f, dims=(...))"
                    )

    def fail(self, member: int, reason: Exception | str) -> None:
        """A member that could not be drawn or measured: nothing of it is kept but why (of the first one)."""
        for values in self.values.values():
            values[member] = np.nan
        self.status[member] = FAILED
        said = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
        if not self.failure:
            self.failure, self.error = f"member {member}, {said}", reason if isinstance(reason, Exception) else None

    def check_hope(self) -> None:
        """Raise what the first member failed with when all have failed, or the first `GIVE_UP` of them: then it never works."""
        tried = self.status != UNFINISHED
        enough = min(GIVE_UP, self.problem.members)
        if self.error is not None and tried.sum() >= enough and (self.status[tried] == FAILED).all():
            raise self.error

    def _seeds(self, members: int) -> np.ndarray:
        """The seed, said of each member (members,): true also of members that are selected or joined. Text where it is large."""
        seed = self.problem.seed
        return np.full(members, seed if seed < 2**63 else str(seed))

    def _status(self) -> str:
        """Of the whole ensemble: "success" when every member reached the last time."""
        if self.interrupted:
            return "interrupted"
        return "success" if (self.status == SUCCESS).all() else "incomplete"

    def _agreed_coordinates(self) -> dict[str, np.ndarray]:
        """Coordinates of the inner dims. Where two observables put different numbers along one dim it has none."""
        return {dim: all_[0] for dim, all_ in self.coordinates.items() if all(np.array_equal(all_[0], x) for x in all_)}

    def dataset(self) -> xr.Dataset:
        """The finished members as a dataset."""
        import xarray as xr

        from metastable import __version__
        from metastable.analysis.observe import attributes_of, text_of
        from metastable.dataset import FORMAT

        problem, plan = self.problem, self.problem.plan
        # Only members before the first unfinished one: beyond it the quick ones would be over-represented.
        unfinished = np.flatnonzero(self.status == UNFINISHED)
        finished = np.arange(unfinished[0] if unfinished.size else problem.members)
        for name in problem.observables:
            if name not in self.values:  # nobody reached a time
                self._make_room(name, (), ())
        own = own_functions(problem, self.functions)
        variables: dict[str, Any] = {
            name: (
                ("member", "time", *self.dims.get(name, ())),
                values if finished.size == problem.members else values[finished],
                attributes_of(problem.observables[name]),
            )
            for name, values in self.values.items()
        }
        variables["status"] = ("member", np.array(MEMBER_STATUSES)[self.status[finished]])
        variables |= {name: ("member", all_[finished]) for name, all_ in self.lengths.items()}
        for column, name in enumerate(membership.COUNTERS):
            variables[name] = ("member", self.statistics[finished, column])
        found = xr.Dataset(
            variables,
            coords={
                "member": finished,
                "time": problem.times,
                "member_seed": ("member", self._seeds(finished.size)),
                **self._agreed_coordinates(),
            },
            attrs={
                "format": FORMAT,
                "metastable_version": __version__,
                "model": problem.model_json,
                "tokens": problem.tokens,
                "members": finished.size,
                "seed": problem.seed,
                "start": "uniform" if problem.draw is None else problem.draw.name,
                "method": "+".join(sorted(self.methods)) or plan.method,
                "engine": plan.backend.engine,
                "interaction": plan.backend.interaction,
                "dtype": plan.backend.dtype,
                **asdict(plan.accuracy),
                "status": self._status(),
                "observe": json.dumps({name: text_of(item) for name, item in problem.observables.items()}),
                **({"own_functions": json.dumps(own)} if own else {}),
                **({"failure": self.failure} if self.failure else {}),
            },
        )
        return digests.sealed(found, problem.observables)


def current_attributes(stats: xr.Dataset) -> dict[Any, Any]:
    """The attributes, with those that depend on who the members are as these members have them.

    Refuses members that are not there: an outer join (`xarray.merge`, `reindex`) fills them with NaN.
    """
    gone, joined = np.zeros(stats.sizes["member"], dtype=bool), False
    for name in ("member_seed", "status"):
        if name in stats.variables and "member" in stats[name].dims:
            missing = stats[name].isnull()
            if name == "status" and "time" in missing.dims:
                missing = missing.all("time")  # `where` masks it with values, at some times (coordinates it does not)
            gone |= missing.any([dim for dim in missing.dims if dim != "member"]).values
            joined |= missing.ndim > 1
    if gone.any() and joined:
        raise InvalidInputError(
            f"{gone.sum()} of the {gone.size} members of stats are not in all of the ensembles that were joined; join those that are, "
            'with xarray.concat(ensembles, ..., join="inner")'
        )
    if gone.any():
        raise InvalidInputError(
            f"{gone.sum()} of the {gone.size} members of stats are empty, as an outer join leaves them; join ensembles with "
            "xarray.concat(ensembles, dim='member'), or leave the empty members out: stats.dropna('member', how='all')"
        )
    attributes = {**stats.attrs, "members": stats.sizes["member"]}
    if "member_seed" in stats.coords:
        seeds = sorted({*membership.seeds(stats)})
        attributes["seed"] = seeds[0] if len(seeds) == 1 else seeds
    if "status" in stats and "member" in stats["status"].dims:
        status = stats["status"].values
        statuses = {*status[stats["status"].notnull().values].tolist()}
        if attributes.get("status") != "interrupted":
            attributes["status"] = "success" if statuses <= {"success"} else "incomplete"
        if "failed" not in statuses:
            attributes.pop("failure", None)
    return attributes


def summarize(stats: xr.Dataset, quantiles: Sequence[float] = (0.1, 0.9)) -> xr.Dataset:
    """Mean, standard error and quantiles over the members, NaN left out.

    Each observable `NAME`, and each variable of yours that has numbers for members (True and False are 1 and 0), becomes `NAME_mean`,
    `NAME_error` and `NAME_quantile` (dim `quantile` in front; `member_quantile` where an observable has a dim of that name already, as
    `cosine_quantiles` does). Where members are infinite the mean is, too (NaN for both signs), and the error is NaN, as are
    quantiles that lie between a finite and an infinite one. The attributes `members`, `seed`, `status` and `failure` are those of
    the members that are there (see `save_ensemble`); members that were computed otherwise than the other attributes say (another
    model) are refused.
    """
    import xarray as xr

    if not isinstance(stats, xr.Dataset):
        raise InvalidInputError(
            f"stats must be the dataset that metastable.ensemble returns, not {type(stats).__name__}"
        )
    if isinstance(quantiles, (str, bytes)) or not isinstance(quantiles, (Sequence, np.ndarray)):
        raise InvalidInputError(f"quantiles must be a list of numbers such as (0.1, 0.9), not {quantiles!r}")
    levels = [_checks.number(q, "quantiles", 0.0, 1.0) for q in _checks.vector(quantiles, "quantiles")]
    if "member" not in stats.dims:
        raise InvalidInputError(
            "stats has no members any more (no dim 'member'), so there is nothing to summarize over"
        )
    membership.require_some(stats)
    stats = membership.said_once(stats)
    membership.check_joined(stats)
    attributes = {
        name: value
        for name, value in current_attributes(stats).items()
        if name not in (digests.TIMES, digests.VALUES, seal.SEAL)
    }
    result: dict[str, Any] = {}
    level = MEMBER_QUANTILE if "quantile" in stats.dims else "quantile"
    for name in membership.measured(stats):
        values = stats[name].astype(float, copy=False)
        with warnings.catch_warnings():
            quiet = "(All-NaN|Mean of empty|Degrees of freedom|invalid value)"  # nobody there, and infinity - infinity
            warnings.filterwarnings("ignore", quiet, RuntimeWarning)
            result[f"{name}_mean"] = values.mean("member")
            result[f"{name}_error"] = values.std("member", ddof=1) / np.sqrt(values.count("member"))
            # xarray has one name for the new dim, which must be free.
            own = {"quantile": OWN_QUANTILE} if "quantile" in values.dims else {}
            found = values.rename(own).quantile(levels, dim="member").rename(quantile=level)
        result[f"{name}_quantile"] = found.rename({new: old for old, new in own.items()})
    return xr.Dataset(result, attrs=attributes)
