"""What an ensemble says of each member beside its values: which one it is, how it went, and the digest that it is known by.

An ensemble is a plain `xarray.Dataset`, which users select, join and mask. Here is what those who save, summarize and draw it have to
know of that; `ensembles.digests` makes the digests and compares them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable._words import counted
from metastable.errors import InvalidInputError, RepeatedMembersWarning
from metastable.stores import seal

if TYPE_CHECKING:
    import xarray as xr

DIGEST = "member_digest"
"""Variable of an ensemble: the digest of what was measured of each member. (As a coordinate it would go along with every observable,
and arrays of two ensembles would not fit into one dataset.)"""
DIGEST_BITS = 33
"""Lower bits of a digest, which tell values. The 20 above them tell the origin: what members that may be joined have in common."""
COUNTERS = ("accepted", "rejected", "evaluations")
WHO = ("member", "member_seed", "status", *COUNTERS)
"""What is said of each member beside its values: which one it is, and how it went. Part of its digest."""
ONCE = ("status", *COUNTERS, DIGEST)
"""Variables that say one thing of each member."""
LENGTHS = ("delta", "radius")
"""Lengths of observables: attributes of an observable, or, where the model of each member sets them, variables (`clusters_radius`)."""
NOBODY = "stats has no members, or no times, left: select some that are there"
JOIN = "ensembles that differ in more than the seed are joined with combine_attrs='drop_conflicts'"


def require_some(stats: xr.Dataset) -> None:
    """Refuse an ensemble of which no members, or no times, are left."""
    if 0 in (stats.sizes.get("member"), stats.sizes.get("time")):
        raise InvalidInputError(NOBODY)


def observed(stats: xr.Dataset) -> list[str]:
    """Names of what was observed, there or not; none where the attributes do not say it."""
    try:
        return [str(name) for name in json.loads(stats.attrs["observe"])]
    except (KeyError, TypeError, ValueError):
        return []


def measured(stats: xr.Dataset) -> list[str]:
    """Names of the variables with numbers of members: observables, and what was added to them; not what is said of each member."""
    flat = [str(name) for name, values in stats.data_vars.items() if "member" in values.dims]
    numbers = [name for name in flat if stats[name].dtype.kind in "biuf"]
    return [name for name in numbers if name not in (*WHO, DIGEST, *lengths(stats))]


def lengths(stats: xr.Dataset) -> list[str]:
    """Variables with the lengths that the model of each member has set: of observables that do not say one length for all.

    (An observable may have such a name itself where no model sets that length.)
    """
    names = [name for name in observed(stats) if name in stats]
    names = names or [str(name) for name in stats.data_vars if "observable" in stats[name].attrs]
    pairs = [(name, length) for name in names for length in LENGTHS if length not in stats[name].attrs]
    found = [f"{name}_{length}" for name, length in pairs]
    return [name for name in found if name in stats and name not in names]


def sealed_with(stats: xr.Dataset) -> dict[str, Any] | None:
    """What `ensembles.digests.sealed` has put down; None where it is not there any more.

    `timed` is True where digests know the times and tell the origin: those of earlier versions do not.
    """
    try:
        known = json.loads(stats.attrs[seal.SEAL])
        found = {name: known[name] for name in ("attributes", "observables", "interrupted", "failure", "origin")}
        return {**found, "timed": known.get("timed", False)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


# ------------------------------------------------------------------------------------------------------------ once


def said_once(stats: xr.Dataset) -> xr.Dataset:
    """The ensemble with what is said once of each member so again: `stats.where(...)` spreads it over times and lengths.

    Where ensembles were joined along something else than members (`xarray.concat(parts, "beta")`), what differs between them stays;
    along times it is said at all times of a part again.
    """
    found = gathered(stats, (*ONCE, *lengths(stats)))
    if DIGEST not in found or "time" not in found[DIGEST].dims:
        return found
    spread = [name for name in (*ONCE, *lengths(found)) if name in found and "time" in found[name].dims]
    masked = [name for name in spread if found[name].isnull().any()]
    parts = parts_of_times(found) if masked else []
    return found.assign({name: _filled(found[name].variable, parts) for name in masked})


def gathered(stats: xr.Dataset, names: Iterable[str]) -> xr.Dataset:
    """The ensemble whose variables `names`, where they are there, have no dims along which they say one thing, or nothing."""
    spread = {name: stats[name].variable for name in names if name in stats and {"member"} < {*stats[name].dims}}
    return stats.assign({name: _once(variable) for name, variable in spread.items()})


def _once(variable: xr.Variable) -> xr.Variable:
    """A variable without the dims along which it says one thing, or nothing."""
    if variable.size == 0:
        raise InvalidInputError(NOBODY)
    for dim in [dim for dim in variable.dims if dim != "member"]:
        there = variable.notnull()
        one = variable.isel({dim: there.argmax(dim)})
        if ((variable == one) | ~there).all():
            variable = one.transpose(*(kept for kept in variable.dims if kept != dim))
    return variable


def _filled(variable: xr.Variable, parts: Sequence[list[int]]) -> xr.Variable:
    """A variable that says at all times of a part what it says at the first one where it says something."""
    turned = variable.transpose("time", ...)
    values, empty = turned.values.copy(), turned.isnull().values
    for places in parts:
        first = empty[places].argmin(axis=0)[None]
        known = np.take_along_axis(values[places], first, axis=0)
        values[places] = np.where(empty[places], known, values[places])
    return turned.copy(data=values).transpose(*variable.dims)


def parts_of_times(stats: xr.Dataset) -> list[list[int]]:
    """The times of each ensemble of those that were joined along them, by number: where members have the same digests.

    All of them must agree that are there: members that failed have one digest in all parts of earlier versions. A time of which so much
    is masked that it may be of several parts is one by itself.
    """
    digests = stats[DIGEST].transpose("time", ...).values.astype(float)
    rows = digests.reshape(len(digests), -1)
    parts: list[tuple[np.ndarray, list[int]]] = []
    for place in np.argsort(np.isnan(rows).sum(axis=1), kind="stable").tolist():  # those that know most come first
        of = [number for number, (known, _) in enumerate(parts) if _agree(known, rows[place])]
        if len(of) == 1:
            known, places = parts[of[0]]
            parts[of[0]] = np.where(np.isnan(known), rows[place], known), [*places, place]
        else:
            parts.append((rows[place], [place]))
    return sorted(sorted(places) for _, places in parts)


def _agree(one: np.ndarray, other: np.ndarray) -> bool:
    """True where two rows have numbers in common, and no different ones (NaN: not there)."""
    both = ~(np.isnan(one) | np.isnan(other))
    return bool(both.any() and (one == other)[both].all())


# ------------------------------------------------------------------------------------------------------------ joined


def check_joined(stats: xr.Dataset) -> None:
    """Refuse members of several models (or otherwise computed) under the attributes of the first; warn of those that are there twice.

    The warning is that of whoever calls the caller.
    """
    strangers = _strangers(stats)
    if strangers:
        raise InvalidInputError(
            f"{counted(strangers, 'member')} of stats were computed with another model, or otherwise (or by an earlier version of "
            "metastable), than the attributes of stats say: several models (or starts, tolerances, observables, functions of your own) "
            f"were joined under the attributes of the first; {JOIN}"
        )
    _check_repeated(stats)


def _strangers(stats: xr.Dataset) -> int:
    """How many members come from elsewhere than the attributes, by their digests.

    (Means over a dim of joined ensembles make numbers of digests, too, but leave no text. `fillna(0)` is no digest.)
    """
    made = sealed_with(stats)
    if made is None or not made["timed"] or DIGEST not in stats or "status" not in stats:
        return 0
    digests = stats[DIGEST]
    there = digests.notnull() & (digests != 0)
    foreign = (digests.where(there, 0).astype(np.int64) >> DIGEST_BITS) != origin_bits(made["origin"])
    return int((foreign & there).any([dim for dim in digests.dims if dim != "member"]).sum())


def origin_bits(origin: str) -> int:
    """What digests hold of an origin."""
    return int(origin, 16) % 2**20


def _check_repeated(stats: xr.Dataset) -> None:
    """One seed, number and model make one member: two of them are the same, or of two models, of which `attrs` names the first."""
    told = [stats[name] for name in ("member", "member_seed", DIGEST) if name in stats.variables]
    if "model" not in stats.attrs or len(told) < 3 or any(variable.dims != ("member",) for variable in told):
        return
    names = list(zip(map(str, seeds(stats)), stats["member"].values.tolist()))
    repeated = len(names) - len(set(names))
    if len(set(zip(names, stats[DIGEST].values.tolist()))) > len(set(names)):
        raise InvalidInputError(
            "stats holds members of the same seed and number with other values: ensembles of several models (or starts, times, "
            "observables) were joined under the attributes of the first; join them with xarray.concat(ensembles, 'member', "
            "combine_attrs='drop_conflicts')"
        )
    if repeated:
        warnings.warn(
            f"{repeated} of the {counted(len(names), 'member')} of stats are there already (same seed, same number): they say nothing "
            "new, and errors of means come out too small; join ensembles of different seeds",
            RepeatedMembersWarning,
            stacklevel=4,
        )


def seeds(stats: xr.Dataset) -> list[int]:
    """The seed of each member, in one row; -1 where an outer join left none. (Large ones are text, and joined with small ones both.)"""
    known = stats["member_seed"]
    return [int(seed) for seed in known.where(known.notnull(), -1).values.ravel().tolist()]
