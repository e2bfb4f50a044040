"""What tells an ensemble from one that was edited: a digest of each member, which is selected and joined with it, and of attributes.

An ensemble is a plain `xarray.Dataset`, whose arrays users select, join and write to. Its memory tells nothing, unlike that of a run
(`stores.seal`); what was measured of a member, and which one it is, is known by its digest. Attributes are sealed as those of a run.
That is no lock: it finds mistakes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable._words import counted
from metastable.errors import InvalidInputError
from metastable.stores import seal

if TYPE_CHECKING:
    import xarray as xr

DIGEST = "member_digest"
"""Variable of an ensemble: the digest of what was measured of each member. (As a coordinate it would go along with every observable,
and arrays of two ensembles would not fit into one dataset.)"""
TIMES = "time_digests"
"""Attribute: a digest of each of its times, as text."""
VALUES = "values"
"""Attribute that says of the numbers of an ensemble one of the following."""
AS_COMPUTED = "as computed"
NOT_CHECKED = "a selection of times or observables, joined, or without the attribute 'computed': not checked against what was computed"

COUNTERS = ("accepted", "rejected", "evaluations")
WHO = ("member", "member_seed", "status", *COUNTERS)
"""What is said of each member beside its values: which one it is, and how it went. Part of its digest."""
LENGTHS = ("delta", "radius")
"""Lengths of observables: attributes of an observable, or, where the model of each member sets them, variables (`clusters_radius`)."""
CURRENT = ("members", "seed", "status", "failure")
"""Attributes that depend on who the members are, which `save_ensemble` brings up to date."""
DRAWN = ("model", "method", "engine", "interaction")
"""Attributes that, where each member has a model of its own, depend on the seed: on the first model, or on all of them."""

JOIN = "ensembles that differ in more than the seed are joined with combine_attrs='drop_conflicts'"
REFUSED = "saved as an ensemble; add yours under another name, stats.assign(mine=...), or keep what you changed with stats.to_zarr"

CHUNK = 2**20
"""Numbers that are digested at a time."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def sealed(stats: xr.Dataset, observables: Iterable[str]) -> xr.Dataset:
    """An ensemble that was computed just now, with what `check` and `check_attributes` need."""
    names = list(observables)
    known = {
        "attributes": {str(name): seal.digest_of(stats.attrs[name]) for name in stats.attrs if name not in CURRENT},
        "observables": {name: _digests_of_attributes(stats[name].attrs) for name in names},
        "interrupted": stats.attrs["status"] == "interrupted",
        "failure": seal.digest_of(stats.attrs["failure"]) if "failure" in stats.attrs else None,
    }
    known["origin"] = _origin(stats.attrs["model"], known["attributes"], known["observables"])
    found = stats.assign({DIGEST: ("member", _digests(stats, names, known["origin"]))})
    told = {
        TIMES: " ".join(_digests_of_times(stats)),
        VALUES: AS_COMPUTED,
        seal.SEAL: json.dumps(known, sort_keys=True),
    }
    return found.assign_attrs(told)


def _origin(model: str, attributes: dict[str, str], observables: dict[str, dict[str, str]]) -> str:
    """A digest of what all members of an ensemble, and of those of other seeds that may be joined with it, have in common."""
    told = json.loads(model)
    drawn = told.get("kind") == "drawn"
    shared = {name: digest for name, digest in attributes.items() if not (drawn and name in DRAWN)}
    return seal.digest_of([shared, observables, told["by"] if drawn else None])


def _sealed_with(stats: xr.Dataset) -> dict[str, Any] | None:
    """What `sealed` has put down; None where it is not there any more."""
    try:
        known = json.loads(stats.attrs[seal.SEAL])
        return {name: known[name] for name in ("attributes", "observables", "interrupted", "failure", "origin")}
    except (KeyError, TypeError, ValueError):
        return None


def check_attributes(stats: xr.Dataset) -> None:
    """Refuse attributes that say something else than when the ensemble was computed: its model, how it went, the radius of clusters.

    Ensembles that were joined with combine_attrs='drop_conflicts' and differ in them have none that could be checked (nor do their
    values count as checked then, see `check`).
    """
    known = _sealed_with(stats)
    if known is None:
        return
    attributes, observables, interrupted, failure = (
        known[name] for name in ("attributes", "observables", "interrupted", "failure")
    )
    there = stats.attrs
    changed = [
        f"the attribute {name}"
        for name, digest in attributes.items()
        if name not in there or seal.digest_of(there[name]) != digest
    ]
    changed += ["the attribute status"] if (there.get("status") == "interrupted") != interrupted else []
    # Gone with the members that failed, where those were left out.
    changed += ["the attribute failure"] if "failure" in there and seal.digest_of(there["failure"]) != failure else []
    for name in observables:
        now = _digests_of_attributes(stats[name].attrs) if name in stats else {}
        changed += [f"the {item} of {name}" for item, digest in now.items() if observables[name].get(item) != digest]
    if changed:
        raise InvalidInputError(
            f"stats does not say any more what it said when it was computed ({', '.join(changed)}), so it is not {REFUSED}; "
            f"{JOIN}"
        )


def _digests_of_attributes(attributes: Any) -> dict[str, str]:
    """Digests of what the attributes of an observable say of how it was measured."""
    return {name: seal.digest_of(attributes[name]) for name in ("observable", *LENGTHS) if name in attributes}


def check(stats: xr.Dataset) -> str:
    """What can be said of the numbers of an ensemble (`VALUES`); refuses those that are not as they were computed.

    The digest of a member is that of all its observables at all times, and of the attributes that it was computed with: where some
    were left out, nothing can be said.
    """
    made, known, found = _sealed_with(stats), stats.attrs.get(TIMES), stats.get(DIGEST)
    if found is not None and {"member"} < {*found.dims}:
        return NOT_CHECKED if made is None else _check_joined(stats, known, made["origin"])
    if not isinstance(known, str) or "time" not in stats.coords:
        return NOT_CHECKED
    known, times = known.split(), _digests_of_times(stats)
    # Ensembles that were joined along times have more of them than the first part says.
    if len(times) <= len(known) and not {*times} <= {*known}:
        raise InvalidInputError(
            f"the times of stats are not those that were computed any more, so they are not {REFUSED}; ensembles of other times "
            "are joined with combine_attrs='drop_conflicts'"
        )
    try:
        names = list(json.loads(stats.attrs["observe"]))
        whole = all({"member", "time"} <= {*stats[name].dims} for name in names)
    except (KeyError, TypeError, ValueError):
        return NOT_CHECKED
    said = all(name in stats.variables and stats[name].dims == ("member",) for name in (*WHO, *_lengths(stats, names)))
    if (
        made is None
        or not (whole and said)
        or found is None
        or found.dims != ("member",)
        or sorted(times) != sorted(known)
    ):
        return NOT_CHECKED
    stats = stats.isel(time=[times.index(item) for item in known])
    numbers = all(stats[name].dtype.kind in "biuf" for name in names)
    changed = _digests(stats, names, made["origin"]) != found.values if numbers else slice(None)
    wrong = stats["member"].values[changed].tolist()
    if wrong:
        shown = ", ".join(map(str, wrong[:6])) + (", ..." if len(wrong) > 6 else "")
        raise InvalidInputError(
            f"the values of {counted(len(wrong), 'member')} of stats ({shown}) are not what was computed any more, or the number "
            "(member), seed, status or steps are not, or they were computed with another model, or otherwise, than the attributes of "
            f"stats say, so they are not {REFUSED}; number members by a coordinate of your own, stats.assign_coords(place=('member', "
            f"...)); {JOIN}"
        )
    return AS_COMPUTED


def _check_joined(stats: xr.Dataset, known: Any, origin: str) -> str:
    """`check` of ensembles that were joined along something else than members, under the attributes of the first, with the digests of
    its times, `known` (not there where those of the parts differ and were dropped)."""
    try:
        names = list(json.loads(stats.attrs["observe"]))
        whole = all({"member", "time"} <= {*stats[name].dims} for name in names)
    except (KeyError, TypeError, ValueError):
        return NOT_CHECKED
    there = all(name in stats.variables for name in WHO)
    numbers = whole and all(stats[name].dtype.kind in "biuf" for name in names)
    told = isinstance(known, str)
    if told and "time" not in stats[DIGEST].dims:
        whole = whole and sorted(_digests_of_times(stats)) == sorted(known.split())
    if not (whole and there and numbers and "time" in stats.coords):
        return NOT_CHECKED
    if all((_digests(part, names, origin) == part[DIGEST].values).all() for part in _parts(stats, names)):
        return AS_COMPUTED
    if not told and "time" in stats[DIGEST].dims:
        return NOT_CHECKED  # some times of a part may have been left out
    raise InvalidInputError(
        "stats was joined along something else than members, and not all of its parts are whole and as computed under the "
        f"attributes of the first, so they are not {REFUSED}; {JOIN}, and parts of which times were left out are saved without the "
        "attribute 'computed'"
    )


def _parts(stats: xr.Dataset, names: list[str]) -> Iterator[xr.Dataset]:
    """The ensembles that were joined: slices of which each member has one digest."""
    inner = [dim for dim in stats[DIGEST].dims if dim not in ("member", "time")]
    for place in np.ndindex(*(stats.sizes[dim] for dim in inner)):
        part = stats.isel(dict(zip(inner, place)), drop=True)
        if "time" not in part[DIGEST].dims:
            yield part
            continue
        rows = part[DIGEST].transpose("time", "member").values
        _, which = np.unique(rows, axis=0, return_inverse=True)
        for number in range(which.max() + 1):
            piece = part.isel(time=np.flatnonzero(which.ravel() == number))
            once = [name for name in (*WHO, DIGEST, *_lengths(piece, names)) if "time" in piece[name].dims]
            yield piece.assign({name: piece[name].isel(time=0, drop=True) for name in once})


def measured(stats: xr.Dataset) -> list[str]:
    """Names of the variables with numbers of members: observables, and what was added to them; not what is said of each member."""
    flat = [str(name) for name, values in stats.data_vars.items() if "member" in values.dims]
    numbers = [name for name in flat if stats[name].dtype.kind in "biuf"]
    try:
        observed = [name for name in json.loads(stats.attrs["observe"]) if name in stats]
    except (KeyError, TypeError, ValueError):
        observed = [name for name in numbers if "observable" in stats[name].attrs]
    return [name for name in numbers if name not in (*WHO, DIGEST, *_lengths(stats, observed))]


def _digests_of_times(stats: xr.Dataset) -> list[str]:
    times = np.atleast_1d(stats["time"].values)
    known = [time.astype(np.float64).tobytes() if times.dtype.kind in "biuf" else repr(time).encode() for time in times]
    return [f"{_hash(item):016x}"[:12] for item in known]


def _digests(stats: xr.Dataset, observables: Iterable[str], origin: str) -> np.ndarray:
    """One number for each member (members,), the sum over all its values, and over what is said of it (`WHO`), of their bits mixed with
    the place where they stand; and of the `origin`, so that members of another model are strangers to its attributes.

    53 bits of it: xarray makes floating-point numbers of whole ones on many ways (`where`), and they survive that.
    """
    members = stats.sizes["member"]
    total = np.full(members, _hash(origin.encode()), dtype=np.uint64)
    if members == 0:  # interrupted before the first one was finished
        return total.astype(np.int64)
    names = list(observables)
    for name in (*WHO, *_lengths(stats, names)):
        total += _mixed(_bits(stats[name].values) ^ _mixed(np.array([_hash(name.encode())], dtype=np.uint64)))
    for name in names:
        values = stats[name]
        inner = sorted(str(dim) for dim in values.dims if dim not in ("member", "time"))
        array: Any = values.transpose("member", "time", *inner).values.reshape(members, -1)
        places = np.uint64(_hash(name.encode())) + GOLDEN * np.arange(1, array.shape[1] + 1, dtype=np.uint64)
        rows = max(1, CHUNK // max(1, array.shape[1]))
        for first in range(0, members, rows):
            bits = np.ascontiguousarray(array[first : first + rows], dtype=np.float64).view(np.uint64)
            total[first : first + rows] += _mixed(bits ^ _mixed(places)).sum(axis=1, dtype=np.uint64)
    return (total >> np.uint64(11)).astype(np.int64)


def _lengths(stats: xr.Dataset, observables: list[str]) -> list[str]:
    """Variables with the lengths that the model of each member has set: of observables that do not say one length for all.

    (An observable may have such a name itself where no model sets that length.)
    """
    pairs = [(name, length) for name in observables for length in LENGTHS if length not in stats[name].attrs]
    named = [f"{name}_{length}" for name, length in pairs]
    return [name for name in named if name in stats and name not in observables]


def _bits(values: np.ndarray) -> np.ndarray:
    """64 bits for each number, or for each text; the same ones for 3 and 3.0, which xarray makes of it."""
    if values.dtype.kind in "biuf":
        return np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    known = {text: _hash(text.encode()) for text in {str(value) for value in values.tolist()}}
    return np.array([known[str(value)] for value in values.tolist()], dtype=np.uint64)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """A bijection of 64 bits in which every bit of the result depends on every bit given (the finaliser of SplitMix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
