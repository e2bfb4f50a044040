"""Ensembles on disk, with the guarantees of runs: whole or not at all, and checksums of every variable and attribute."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from metastable import _checks, dataset
from metastable.ensembles import digests
from metastable.ensembles.record import current_attributes
from metastable.errors import InvalidInputError, StoreError
from metastable.stores import membership

if TYPE_CHECKING:
    import xarray as xr

KIND = "ensemble"
ORDER = "variable_order"
"""Attribute of the store: names of the variables in their order, which a folder does not keep."""
OWN = ("kind", ORDER)
"""Attributes that belong to the store: `load_ensemble` takes them away again."""


def save_ensemble(stats: xr.Dataset, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Keep the dataset that `ensemble` returned as a zarr store; an existing store stays untouched unless `overwrite=True`.

    All of it appears at `path`, or nothing does; and a store that was interrupted, damaged or edited is refused by
    `load_ensemble`. Variables that you added to the dataset (numbers or text) are kept, too. Members may have been selected
    (`stats.isel(member=...)`) or ensembles joined (`xarray.concat`): the attributes `members`, `seed`, `status` and `failure` are
    stored as they are for the members that are there.

    Values and times that are not what was computed any more (`stats.clusters[0] = 1`) are refused, and so are members with another
    number, seed or status, and other attributes (`model`, `method`, the `radius` of an observable): put yours under another name, or
    keep them with `stats.to_zarr`; the names `kind` and `variable_order` are the store's. Values and members are known by the digest
    of each member (`member_digest`), of all observables at all times; where some were left out the attribute `values` says that they
    were not checked. Attributes are known by the attribute `computed`, as those of runs.
    """
    import xarray as xr

    # Joined ensembles of several models have no attribute that would say one (combine_attrs="drop_conflicts").
    ours = isinstance(stats, xr.Dataset) and "member" in stats.dims and ("model" in stats.attrs or "status" in stats)
    if not ours:
        raise InvalidInputError(
            f"stats must be the dataset that metastable.ensemble returns, not {type(stats).__name__}; any other dataset has to_zarr"
        )
    if stats.attrs.get("kind") == KIND and ORDER in stats.attrs:
        raise InvalidInputError(
            "stats is a store as another reader opens it, with what metastable adds to one; open it with metastable.load_ensemble(path)"
        )
    for name in OWN:
        if name in stats.attrs:
            raise InvalidInputError(f"the attribute {name!r} is one of the store's own; put yours under another name")
    told = membership.said_once(stats)
    digests.check_attributes(told)
    attributes = current_attributes(told)
    membership.check_joined(told)
    values = digests.check(told)
    told = _storable(told)
    told.attrs = {**attributes, digests.VALUES: values, "kind": KIND, ORDER: list(told.data_vars)}
    dataset.save(told, _checks.path(path), _checks.flag(overwrite, "overwrite"))


def _storable(stats: xr.Dataset) -> xr.Dataset:
    """The ensemble with seeds that are all numbers or all text; refuses one that does not say how each member went."""
    if "status" in stats and stats["status"].isnull().any():
        raise InvalidInputError(
            "stats does not say how all members went: nothing of them is left at some times (after stats.where(...), or an outer "
            "join). Leave those times out, stats.dropna('time', how='all'), or those members, stats.dropna('member'), or keep what "
            "there is with stats.to_zarr"
        )
    if "member_seed" in stats.coords and stats["member_seed"].dtype == object:
        return stats.assign_coords(member_seed=stats["member_seed"].astype(str))
    return stats


def load_ensemble(path: str | os.PathLike[str]) -> xr.Dataset:
    """The ensemble that `save_ensemble` stored; refuses what is missing, foreign, unfinished, damaged or edited."""
    found = dataset.verified(_checks.path(path))
    if found.attrs.get("kind") != KIND:
        raise StoreError(f"{path} holds a run, not an ensemble; open it with metastable.load")
    del found.attrs["kind"]
    order = found.attrs.get(ORDER)
    if not isinstance(order, list) or sorted(map(str, order)) != sorted(map(str, found.data_vars)):
        return found  # written before there was an order; whatever has its name is the user's
    del found.attrs[ORDER]
    return found.drop_vars(order).assign({name: found[name] for name in order})
