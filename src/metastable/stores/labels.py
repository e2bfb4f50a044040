"""Text in stores: variables of text are stored as numbers with a table of labels, as zarr has no settled format for text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.errors import InvalidInputError

if TYPE_CHECKING:
    import xarray as xr

LABELS = "labels"
"""Attribute of a variable of numbers that stand for text."""


def text_as_numbers(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset with numbers only; refuses variables that are neither numbers nor text."""
    return _replaced(
        dataset,
        {name: _numbers(str(name), item) for name, item in dataset.variables.items() if item.dtype.kind not in "biuf"},
    )


def numbers_as_text(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset that `text_as_numbers` was given; raises ValueError, TypeError or IndexError for a table that does not fit."""
    return _replaced(dataset, {name: _text(item) for name, item in dataset.variables.items() if LABELS in item.attrs})


def _replaced(dataset: xr.Dataset, variables: dict[Any, tuple[Any, ...]]) -> xr.Dataset:
    dataset = dataset.assign({name: item for name, item in variables.items() if name not in dataset.coords})
    return dataset.assign_coords({name: item for name, item in variables.items() if name in dataset.coords})


def _numbers(name: str, variable: xr.Variable) -> tuple[Any, ...]:
    """A variable of text as (dims, values, attributes)."""
    values = np.asarray(variable.values)
    if values.dtype.kind not in "UOT" or not all(isinstance(item, str) for item in values.ravel().tolist()):
        raise InvalidInputError(
            f"the variable {name!r} holds {values.dtype}, which cannot be stored; drop it or make it numbers"
        )
    labels, codes = np.unique(values.astype(str), return_inverse=True)
    table = json.dumps(labels.tolist())
    return variable.dims, codes.reshape(values.shape).astype(np.int64), {**variable.attrs, LABELS: table}


def _text(variable: xr.Variable) -> tuple[Any, ...]:
    attributes = dict(variable.attrs)
    labels = np.array(json.loads(attributes.pop(LABELS)), dtype=str)
    return variable.dims, labels[variable.values], attributes
