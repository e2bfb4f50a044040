"""What tells the dataset of a run from a copy that may have been changed: arrays by their memory, attributes by a digest.

The arrays of a run lie in read-only memory (`_checks.readonly`), and so do slices of them; an array that can be written to, or that was
made of one, lies elsewhere. The attribute `computed` holds a digest of every attribute (and of every text) that was there when the
run was made. Neither is a lock: both find mistakes.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.errors import InvalidInputError

if TYPE_CHECKING:
    import xarray as xr

SEAL = "computed"
"""Attribute of the dataset of a run: JSON with digests of its `attributes` and `texts`, and the names of its `variables`. An ensemble
has it in another form (`ensembles.digests`): digests of its `attributes` and `observables`, how it ended, and its `origin`."""


def put(dataset: xr.Dataset, names: dict[str, list[Any]]) -> None:
    """Give the dataset of a run the attribute `computed`, for the `variables` and `attributes` of `names`.

    (Attributes of its own: a slice of a dataset shares those of the whole.)
    """
    texts = [name for name in names["variables"] if dataset.variables[name].dtype.kind not in "biuf"]
    known = {
        "variables": sorted(str(name) for name in names["variables"]),
        "texts": {str(name): digest_of(dataset.variables[name].values.tolist()) for name in texts},
        "attributes": {str(name): digest_of(dataset.attrs[name]) for name in names["attributes"] if name != SEAL},
    }
    dataset.attrs = {**dataset.attrs, SEAL: json.dumps(known, sort_keys=True)}


def computed(dataset: xr.Dataset) -> dict[str, list[Any]]:
    """Names of the `variables` and `attributes` of a sealed dataset that were computed; all others were added to it."""
    known = json.loads(dataset.attrs[SEAL])
    return {"variables": known["variables"], "attributes": list(known["attributes"])}


def check(dataset: xr.Dataset) -> None:
    """Refuse what is not the dataset of a run, or a slice of it, as it was computed."""
    try:
        known = json.loads(dataset.attrs[SEAL])
        variables, texts, attributes = (known[name] for name in ("variables", "texts", "attributes"))
    except (KeyError, TypeError, ValueError):
        there = (
            f"its attribute {SEAL!r} is not that of a run"
            if SEAL in dataset.attrs
            else f"it lacks the attribute {SEAL!r}"
        )
        raise InvalidInputError(
            f"dataset is not that of a run ({there}); runs come from metastable.simulate and metastable.load"
        ) from None
    there = dataset.variables
    changed = [name for name in variables if name not in there or not (name in texts or lent(there[name].values))]
    changed += [
        name for name, digest in texts.items() if name in there and digest != digest_of(there[name].values.tolist())
    ]
    changed += [
        f"the attribute {name}"
        for name, digest in attributes.items()
        if name not in dataset.attrs or digest != digest_of(dataset.attrs[name])
    ]
    if changed:
        raise InvalidInputError(
            f"dataset is not as it was computed any more, or a copy of it ({', '.join(changed)}), and a run holds nothing else. Take "
            "run.dataset itself or a slice of its times, run.dataset.isel(time=slice(0, 4)); a store opens with metastable.load; what "
            "you changed stays an xarray.Dataset"
        )


def lent(array: np.ndarray) -> bool:
    """True for an array, or a view of one, in the read-only memory of a run."""
    memory: Any = array
    while isinstance(memory, np.ndarray):
        if memory.flags.writeable:
            return False
        memory = memory.base
    return isinstance(memory, memoryview) and memory.readonly


def digest_of(value: Any) -> str:
    """A short digest of an attribute: plain values, or anything by its repr."""
    plain = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    return hashlib.blake2b(json.dumps(plain, sort_keys=True, default=repr).encode(), digest_size=8).hexdigest()
