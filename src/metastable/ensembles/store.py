"""Ensembles on disk, with the guarantees of runs: whole or not at all, and checksums of every variable and attribute."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks, dataset
from metastable.errors import InvalidInputError, StoreError

if TYPE_CHECKING:
    import xarray as xr

KIND = "ensemble"


def save_ensemble(stats: xr.Dataset, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Keep the dataset that `ensemble` returned as a zarr store; an existing store stays untouched unless `overwrite=True`.

    All of it appears at `path`, or nothing does; and a store that was interrupted, damaged or edited is refused by
    `load_ensemble`. Variables that you added to the dataset (numbers or text) are kept, too. Members may have been selected
    (`stats.isel(member=...)`) or ensembles joined (`xarray.concat`): the attributes `members`, `seed`, `status` and `failure` are
    stored as they are for the members that are there.
    """
    import xarray as xr

    if not isinstance(stats, xr.Dataset) or "member" not in stats.dims or "model" not in stats.attrs:
        raise InvalidInputError(
            f"stats must be the dataset that metastable.ensemble returns, not {type(stats).__name__}; any other dataset has to_zarr"
        )
    told = stats.copy()
    told.attrs = {**_brought_up_to_date(stats), "kind": KIND}
    dataset.save(told, _checks.path(path), _checks.flag(overwrite, "overwrite"))


def _brought_up_to_date(stats: xr.Dataset) -> dict[Any, Any]:
    """The attributes, with those that depend on who the members are as these members have them."""
    attributes = {**stats.attrs, "members": stats.sizes["member"]}
    if "member_seed" in stats.coords:
        seeds = sorted({int(seed) for seed in np.unique(stats["member_seed"].values)})
        attributes["seed"] = seeds[0] if len(seeds) == 1 else seeds
    if "status" in stats and stats["status"].dims == ("member",):
        statuses = set(stats["status"].values.tolist())
        if attributes.get("status") != "interrupted":
            attributes["status"] = "success" if statuses <= {"success"} else "incomplete"
        if "failed" not in statuses:
            attributes.pop("failure", None)
    return attributes


def load_ensemble(path: str | os.PathLike[str]) -> xr.Dataset:
    """The ensemble that `save_ensemble` stored; refuses what is missing, foreign, unfinished, damaged or edited."""
    found = dataset.verified(_checks.path(path))
    if found.attrs.get("kind") != KIND:
        raise StoreError(f"{path} holds a run, not an ensemble; open it with metastable.load")
    del found.attrs["kind"]
    return found
