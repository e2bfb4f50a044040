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
from metastable.stores import membership, seal
from metastable.stores.membership import DIGEST, DIGEST_BITS, LENGTHS, WHO

if TYPE_CHECKING:
    import xarray as xr

TIMES = "time_digests"
"""Attribute: a digest of each of its times, as text."""
VALUES = "values"
"""Attribute that says of the numbers of an ensemble one of the following."""
AS_COMPUTED = "as computed"
NOT_CHECKED = (
    "a selection of times or observables, joined, of an earlier version, or without the attribute 'computed': not checked against what "
    "was computed"
)

CURRENT = ("members", "seed", "status", "failure")
"""Attributes that depend on who the members are, which `save_ensemble` brings up to date."""
DRAWN = ("model", "method", "engine", "interaction")
"""Attributes that, where each member has a model of its own, depend on the seed: on the first model, or on all of them."""

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
    known["timed"] = True
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


def check_attributes(stats: xr.Dataset) -> None:
    """Refuse attributes that say something else than when the ensemble was computed: its model, how it went, the radius of clusters.

    Ensembles that were joined with combine_attrs='drop_conflicts' and differ in them have none that could be checked (nor do their
    values count as checked then, see `check`).
    """
    known = membership.sealed_with(stats)
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
            f"{membership.JOIN}"
        )


def _digests_of_attributes(attributes: Any) -> dict[str, str]:
    """Digests of what the attributes of an observable say of how it was measured."""
    return {name: seal.digest_of(attributes[name]) for name in ("observable", *LENGTHS) if name in attributes}


def check(stats: xr.Dataset) -> str:
    """What can be said of the numbers of an ensemble (`VALUES`); refuses those that are not as they were computed.

    The digest of a member is that of all its observables at all times, and of the attributes that it was computed with: where some
    were left out, nothing can be said. Of ensembles that were joined along something else than members, every part is asked.
    """
    made, names = membership.sealed_with(stats), membership.observed(stats)
    dims = {*stats[DIGEST].dims} if DIGEST in stats else set()
    selected = _selected_times(stats, dims)
    if made is None or "member" not in dims or not _whole(stats, names):
        return NOT_CHECKED
    changed = np.zeros(stats.sizes["member"], dtype=bool)
    for part in _parts(stats):
        changed |= _changed(part, names, made)
    if not changed.any():
        # Digests of earlier versions do not know their times: those of one ensemble stand in its attributes.
        return AS_COMPUTED if made["timed"] or (dims == {"member"} and not selected) else NOT_CHECKED
    if selected:
        return NOT_CHECKED
    raise InvalidInputError(_edited(stats["member"].values[changed].tolist(), joined=dims != {"member"}))


def _selected_times(stats: xr.Dataset, dims: set[Any]) -> bool:
    """True where times may have been left out since digests, which have `dims`, were made; refuses times that were never computed."""
    known = stats.attrs.get(TIMES)
    if "time" in dims or not isinstance(known, str) or "time" not in stats.coords:
        # Those of parts that were joined along times differ, and are not there, or are those of the first.
        return not isinstance(known, str) and ("time" in dims or dims == {"member"})
    known, times = known.split(), _digests_of_times(stats)
    # Ensembles that were joined along times have more of them than the first part says.
    if len(times) <= len(known) and not {*times} <= {*known}:
        raise InvalidInputError(
            f"the times of stats are not those that were computed any more, so they are not {REFUSED}; ensembles of other times "
            "are joined with combine_attrs='drop_conflicts'"
        )
    return sorted(times) != sorted(known)


def _whole(stats: xr.Dataset, names: list[str]) -> bool:
    """True where all that digests are made of is there: observables `names` along times, and what is said of members."""
    there = all(name in stats.variables and {"member", "time"} <= {*stats[name].dims} for name in names)
    return bool(names) and there and "time" in stats.coords and all(name in stats.variables for name in WHO)


def _parts(stats: xr.Dataset) -> Iterator[xr.Dataset]:
    """The ensembles that were joined: slices of which each member has one digest."""
    inner = [dim for dim in stats[DIGEST].dims if dim not in ("member", "time")]
    for place in np.ndindex(*(stats.sizes[dim] for dim in inner)):
        part = stats.isel(dict(zip(inner, place)), drop=True)
        if "time" not in part[DIGEST].dims:
            yield part
            continue
        for places in membership.parts_of_times(part):
            piece = part.isel(time=places)
            yield membership.gathered(piece, (*WHO, DIGEST, *membership.lengths(piece)))


def _changed(part: xr.Dataset, names: list[str], made: dict[str, Any]) -> np.ndarray:
    """Which members of one ensemble (members,) are not those that their digests were made of."""
    once = (*WHO, DIGEST, *membership.lengths(part))
    numbers = all(part[name].dtype.kind in "biuf" for name in names)
    if not numbers or any(part[name].dims != ("member",) for name in once):
        return np.full(part.sizes["member"], True)
    return _digests(part, names, made["origin"], made["timed"]) != part[DIGEST].values


def _edited(wrong: list[Any], joined: bool) -> str:
    """Why members are refused whose digests are of something else."""
    if joined:
        return (
            "stats was joined along something else than members, and not all of its parts are whole and as computed under the "
            f"attributes of the first, so they are not {REFUSED}; {membership.JOIN}, and parts of which times were left out are saved "
            "without the attribute 'computed'"
        )
    shown = ", ".join(map(str, wrong[:6])) + (", ..." if len(wrong) > 6 else "")
    return (
        f"the values of {counted(len(wrong), 'member')} of stats ({shown}) are not what was computed any more, or the number "
        "(member), seed, status or steps are not, or they were computed with another model, or otherwise (or by an earlier version), "
        f"than the attributes of stats say, so they are not {REFUSED}; number members by a coordinate of your own, "
        f"stats.assign_coords(place=('member', ...)); {membership.JOIN}"
    )


def _digests_of_times(stats: xr.Dataset) -> list[str]:
    times = np.atleast_1d(stats["time"].values)
    known = [time.astype(np.float64).tobytes() if times.dtype.kind in "biuf" else repr(time).encode() for time in times]
    return [f"{_hash(item):016x}"[:12] for item in known]


def _digests(stats: xr.Dataset, observables: list[str], origin: str, timed: bool = True) -> np.ndarray:
    """One number for each member (members,), the sum over all its values, and over what is said of it (`WHO`), of their bits mixed with
    the place where they stand (observable, time, and the rest); and above it the `origin`, so that members of another model are
    strangers to its attributes.

    53 bits of it: xarray makes floating-point numbers of whole ones on many ways (`where`), and they survive that. (Those of earlier
    versions, which are not `timed`, have the number of a time for its place, and the origin in the sum.)
    """
    size = stats.sizes["member"]
    total = np.full(size, _hash(origin.encode()), dtype=np.uint64)
    if size == 0:  # interrupted before the first one was finished
        return total.astype(np.int64)
    for name in (*WHO, *membership.lengths(stats)):
        total += _mixed(_bits(stats[name].values) ^ _mixed(np.array([_hash(name.encode())], dtype=np.uint64)))
    times = stats["time"].values
    clock = _mixed(_bits(times)) if timed else GOLDEN * np.argsort(np.argsort(times)).astype(np.uint64)
    for name in observables:
        values = stats[name]
        inner = sorted(str(dim) for dim in values.dims if dim not in ("member", "time"))
        array: Any = values.transpose("member", "time", *inner).values.reshape(size, -1)
        cells = array.shape[1] // len(clock)
        places = np.uint64(cells) * clock[:, None] + GOLDEN * np.arange(1, cells + 1, dtype=np.uint64)
        places = _mixed(np.uint64(_hash(name.encode())) + places.ravel())
        rows = max(1, CHUNK // max(1, array.shape[1]))
        for first in range(0, size, rows):
            bits = np.ascontiguousarray(array[first : first + rows], dtype=np.float64).view(np.uint64)
            total[first : first + rows] += _mixed(bits ^ places).sum(axis=1, dtype=np.uint64)
    if not timed:
        return (total >> np.uint64(11)).astype(np.int64)
    return (membership.origin_bits(origin) << DIGEST_BITS) + (total >> np.uint64(64 - DIGEST_BITS)).astype(np.int64)


def _bits(values: np.ndarray) -> np.ndarray:
    """64 bits for each number, or for each text; the same ones for 3 and 3.0, which xarray makes of it, and for "3", which becomes of
    a seed that is joined with a larger one."""
    if values.dtype.kind in "biuf":
        return np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    known = {value: _bits_of(value) for value in {*values.tolist()}}
    return np.array([known[value] for value in values.tolist()], dtype=np.uint64)


def _bits_of(value: Any) -> int:
    text = str(value)
    small = text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) < 2**63
    if small or isinstance(value, float):
        return int(np.float64(text).view(np.uint64))
    return _hash(text.encode())


def _mixed(bits: np.ndarray) -> np.ndarray:
    """A bijection of 64 bits in which every bit of the result depends on every bit given (the finaliser of SplitMix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
