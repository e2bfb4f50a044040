"""What tells the numbers of an ensemble from others: a digest of each member, which is selected and joined with it.

An ensemble is a plain `xarray.Dataset`, whose arrays users select, join and write to. Its memory tells nothing, unlike that of a run
(`stores.seal`); what was measured of a member is known by its digest. That is no lock: it finds mistakes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable._words import counted
from metastable.errors import InvalidInputError

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
NOT_CHECKED = "a selection of times or observables, or joined: not checked against what was computed"

REFUSED = "saved as an ensemble; add yours under another name, stats.assign(mine=...), or keep what you changed with stats.to_zarr"

CHUNK = 2**20
"""Numbers that are digested at a time."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def sealed(stats: xr.Dataset, observables: Iterable[str]) -> xr.Dataset:
    """An ensemble that was computed just now, with what `check` needs."""
    found = stats.assign({DIGEST: ("member", _digests(stats, observables))})
    return found.assign_attrs({TIMES: " ".join(_digests_of_times(stats)), VALUES: AS_COMPUTED})


def check(stats: xr.Dataset) -> str:
    """What can be said of the numbers of an ensemble (`VALUES`); refuses those that are not as they were computed.

    The digest of a member is that of all its observables at all times: where some were left out, nothing can be said.
    """
    known, found = stats.attrs.get(TIMES), stats.get(DIGEST)
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
    if not whole or found is None or found.dims != ("member",) or sorted(times) != sorted(known):
        return NOT_CHECKED
    stats = stats.isel(time=[times.index(item) for item in known])
    numbers = all(stats[name].dtype.kind in "biuf" for name in names)
    wrong = stats["member"].values[_digests(stats, names) != found.values if numbers else slice(None)].tolist()
    if wrong:
        shown = ", ".join(map(str, wrong[:6])) + (", ..." if len(wrong) > 6 else "")
        raise InvalidInputError(
            f"the values of {counted(len(wrong), 'member')} of stats ({shown}) are not what was computed any more, so they are not "
            f"{REFUSED}"
        )
    return AS_COMPUTED


def _digests_of_times(stats: xr.Dataset) -> list[str]:
    times = np.atleast_1d(stats["time"].values)
    known = [time.astype(np.float64).tobytes() if times.dtype.kind in "biuf" else repr(time).encode() for time in times]
    return [f"{_hash(item):016x}"[:12] for item in known]


def _digests(stats: xr.Dataset, observables: Iterable[str]) -> np.ndarray:
    """One number for each member (members,), the sum over all its values of their bits mixed with the place where they stand.

    53 bits of it: xarray makes floating-point numbers of whole ones on many ways (`where`), and they survive that.
    """
    members = stats.sizes["member"]
    total = np.zeros(members, dtype=np.uint64)
    if members == 0:  # interrupted before the first one was finished
        return total.astype(np.int64)
    for name in observables:
        values = stats[name]
        inner = sorted(str(dim) for dim in values.dims if dim not in ("member", "time"))
        array: Any = values.transpose("member", "time", *inner).values.reshape(members, -1)
        places = np.uint64(_hash(name.encode())) + GOLDEN * np.arange(1, array.shape[1] + 1, dtype=np.uint64)
        rows = max(1, CHUNK // max(1, array.shape[1]))
        for first in range(0, members, rows):
            bits = np.ascontiguousarray(array[first : first + rows], dtype=np.float64).view(np.uint64)
            total[first : first + rows] += _mixed(bits ^ _mixed(places)).sum(axis=1, dtype=np.uint64)
    return (total >> np.uint64(11)).astype(np.int64)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """A bijection of 64 bits in which every bit of the result depends on every bit given (the finaliser of SplitMix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
