"""Numbers in stores: matrices of a trained model are float32 (or shorter) in its checkpoint, and are stored so when nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

Chosen = Callable[[str], bool]
"""Says of the name of a variable whether it is meant."""


def narrowed(dataset: xr.Dataset, chosen: Chosen) -> xr.Dataset:
    """The dataset with its `chosen` variables of float64 as float32 where that is the same numbers."""
    replaced = {}
    for name, variable in dataset.variables.items():
        if not chosen(str(name)) or variable.dtype != np.float64:
            continue
        with np.errstate(over="ignore"):
            short = variable.values.astype(np.float32)
        if np.array_equal(short, variable.values):
            replaced[name] = (variable.dims, short, variable.attrs)
    return dataset.assign(replaced)


def widened(dataset: xr.Dataset, chosen: Chosen) -> xr.Dataset:
    """The dataset that `narrowed` was given."""
    return dataset.assign(
        {
            name: (variable.dims, variable.values.astype(np.float64), variable.attrs)
            for name, variable in dataset.variables.items()
            if chosen(str(name)) and variable.dtype == np.float32
        }
    )
