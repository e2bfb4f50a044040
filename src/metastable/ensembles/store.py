"""Ensembles on disk, with the guarantees of runs: whole or not at all, and checksums of every variable and attribute."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks, dataset
from metastable.errors import IncompleteStoreError, InvalidInputError, StoreError

if TYPE_CHECKING:
    import xarray as xr

KIND = "ensemble"
LABELS = "labels"
"""Attribute of a variable that was text: what its numbers stand for. (Zarr has no settled format for arrays of strings.)"""


def save_ensemble(stats: xr.Dataset, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Keep the dataset that `ensemble` returned as a zarr store; an existing store stays untouched unless `overwrite=True`.

    All of it appears at `path`, or nothing does; and a store that was interrupted, damaged or edited is refused by
    `load_ensemble`. Variables that you added to the dataset (numbers or text) are kept, too.
    """
    import xarray as xr

    if not isinstance(stats, xr.Dataset) or "member" not in stats.dims or "model" not in stats.attrs:
        raise InvalidInputError(
            f"stats must be the dataset that metastable.ensemble returns, not {type(stats).__name__}; any other dataset has to_zarr"
        )
    numbers = {name: _as_numbers(str(name), variable) for name, variable in stats.variables.items()}
    plain = xr.Dataset(
        {name: variable for name, variable in numbers.items() if name not in stats.coords},
        coords={name: numbers[name] for name in stats.coords},
        attrs={**stats.attrs, "kind": KIND},
    )
    dataset.save(plain, _checks.path(path), _checks.flag(overwrite, "overwrite"))


def load_ensemble(path: str | os.PathLike[str]) -> xr.Dataset:
    """The ensemble that `save_ensemble` stored; refuses what is missing, foreign, unfinished, damaged or edited."""
    found = dataset.verified(_checks.path(path))
    if found.attrs.get("kind") != KIND:
        raise StoreError(f"{path} holds a run, not an ensemble; open it with metastable.load")
    try:
        text = {name: _as_text(variable) for name, variable in found.variables.items() if LABELS in variable.attrs}
    except (ValueError, TypeError, IndexError) as reason:
        raise IncompleteStoreError(f"{path} is damaged: {reason}; run it again") from reason
    found = found.assign({name: value for name, value in text.items() if name not in found.coords})
    found = found.assign_coords({name: value for name, value in text.items() if name in found.coords})
    del found.attrs["kind"]
    return found


def _as_numbers(name: str, variable: Any) -> tuple[Any, ...]:
    """A variable as (dims, values, attributes), text as numbers with a table of labels."""
    values = np.asarray(variable.values)
    if values.dtype.kind in "biuf":
        return variable.dims, values, dict(variable.attrs)
    if values.dtype.kind not in "UOT" or not all(isinstance(item, str) for item in values.ravel().tolist()):
        raise InvalidInputError(
            f"the variable {name!r} holds {values.dtype}, which cannot be stored; drop it or make it numbers"
        )
    labels, codes = np.unique(values.astype(str), return_inverse=True)
    table = json.dumps(labels.tolist())
    return variable.dims, codes.reshape(values.shape).astype(np.int64), {**variable.attrs, LABELS: table}


def _as_text(variable: Any) -> tuple[Any, ...]:
    attributes = dict(variable.attrs)
    labels = np.array(json.loads(attributes.pop(LABELS)), dtype=str)
    return variable.dims, labels[variable.values], attributes
