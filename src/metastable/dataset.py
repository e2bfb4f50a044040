"""The xarray schema of a run, and zarr stores that say whether they are whole.

A run is a dataset with dims `time`, `token`, `coord` (`member` in front for ensembles): variable `x` (and `radius` for norms that
have one), `start`, the dense output where it was kept, and attributes that say how it was made.

A store is written beside its final place and moved there when it is complete, and carries a checksum of every variable: a store
that was interrupted, truncated or damaged is refused when opened, never read as if it were whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import IncompleteStoreError, StoreError, StoreExistsError
from metastable.integrate.solution import Dense, JoinedDense, Solution, join
from metastable.model import Attention

if TYPE_CHECKING:
    import xarray as xr

FORMAT = "metastable-1"
"""Version of the layout, stored as the attribute `format`."""


def fingerprint(array: np.ndarray) -> str:
    """A short hash of an array's bytes: identifies a start that has no seed."""
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest()


def model_json(models: Attention | Sequence[Attention]) -> str:
    """One model, or one per layer, as JSON."""
    if isinstance(models, Attention):
        return models.to_json()
    return json.dumps([model.to_dict() for model in models])


def models_from_json(text: str) -> tuple[Attention, ...]:
    """The model (or models, one per layer) that `model_json` wrote."""
    data = json.loads(text)
    return tuple(Attention.from_dict(item) for item in (data if isinstance(data, list) else [data]))


def from_solution(
    solution: Solution, models: Attention | Sequence[Attention], start: FloatArray, attributes: dict[str, Any]
) -> xr.Dataset:
    """The dataset of a run: saved states, dense output, and how they were made."""
    import xarray as xr

    from metastable import __version__

    model = models if isinstance(models, Attention) else models[0]
    dim = model.dim
    variables: dict[str, Any] = {
        "x": (("time", "token", "coord"), solution.states[:, :, :dim]),
        "start": (("token", "coord"), start),
    }
    if model.norm.has_radius:
        variables["radius"] = (("time", "token"), solution.states[:, :, dim])
    variables |= _dense_variables(solution.dense)
    statistics = solution.statistics
    return xr.Dataset(
        variables,
        coords={"time": solution.times, "token": np.arange(len(start)), "coord": np.arange(dim)},
        attrs={
            "format": FORMAT,
            "metastable_version": __version__,
            "model": model_json(models),
            "start_hash": fingerprint(start),
            "status": solution.status,
            "message": solution.message,
            "accepted": statistics.accepted,
            "rejected": statistics.rejected,
            "evaluations": statistics.evaluations,
            "jacobians": statistics.jacobians,
            "notes": json.dumps(solution.notes),
            **attributes,
        },
    )


def _dense_variables(dense: Dense | JoinedDense | None) -> dict[str, Any]:
    """Dense output as variables `dense0_start`, `dense0_width`, `dense0_coefficients`, `dense1_...`."""
    variables: dict[str, Any] = {}
    for number, part in enumerate(() if dense is None else dense.parts):
        name = f"dense{number}"
        step = f"{name}_step"
        dims = (step, "power", f"{name}_token", f"{name}_component")
        variables[f"{name}_start"] = ((step,), part.start)
        variables[f"{name}_width"] = ((step,), part.width)
        variables[f"{name}_coefficients"] = (dims, part.coefficients, {"chart": part.chart, "dim": part.dim})
    return variables


def dense_of(dataset: xr.Dataset) -> Dense | JoinedDense | None:
    """The dense output stored in a dataset, or None."""
    parts = []
    while f"dense{len(parts)}_coefficients" in dataset:
        name = f"dense{len(parts)}"
        coefficients = dataset[f"{name}_coefficients"]
        parts.append(
            Dense(
                coefficients.attrs["chart"],
                int(coefficients.attrs["dim"]),
                dataset[f"{name}_start"].values,
                dataset[f"{name}_width"].values,
                coefficients.values,
            )
        )
    return join(parts)


# -------------------------------------------------------------------------------------------------------- stores


def check_destination(path: str | os.PathLike, overwrite: bool = False) -> Path:
    """`path` as a place where a store may be written; raises before any work is done."""
    target = Path(path)
    if target.exists() or target.is_symlink():
        if not overwrite:
            raise StoreExistsError(
                f"{target} exists and was left untouched; choose another name, or overwrite it (overwrite=True, --overwrite)"
            )
        if not _is_store(target):
            raise StoreExistsError(
                f"{target} exists and is not a metastable store, so it is never overwritten; remove it yourself"
            )
    parent = target.absolute().parent
    if not parent.is_dir():
        raise StoreError(f"the folder {parent} does not exist; create it first")
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".metastable-"):
            pass
    except OSError as reason:
        raise StoreError(f"the folder {parent} is not writable ({reason.strerror}); choose another place") from None
    return target


def _is_store(path: Path) -> bool:
    """True for a folder that looks like one of our zarr stores, whole or not."""
    metadata = path / "zarr.json"
    if not metadata.is_file():
        return False
    try:
        return str(json.loads(metadata.read_text())["attributes"]["format"]).startswith("metastable")
    except (ValueError, KeyError, TypeError, OSError):
        return False


def checksums(dataset: xr.Dataset) -> dict[str, str]:
    """A checksum of every variable's bytes."""
    return {str(name): fingerprint(dataset[name].values) for name in sorted(map(str, dataset.variables))}


def save(dataset: xr.Dataset, path: str | os.PathLike, overwrite: bool = False) -> Path:
    """Write `dataset` as a zarr store: all of it appears at `path`, or nothing does."""
    target = check_destination(path, overwrite)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.absolute().parent))
    try:
        complete = dataset.assign_attrs(checksums=json.dumps(checksums(dataset)))
        complete.to_zarr(scratch / "store", mode="w", consolidated=False)
        if target.exists():
            # The old store leaves only when the new one is whole and on its way in.
            os.replace(target, scratch / "old")
        os.replace(scratch / "store", target)
    except OSError as reason:
        if (scratch / "old").exists() and not target.exists():
            os.replace(scratch / "old", target)
        raise StoreError(f"{target} could not be written: {reason}") from reason
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def load(path: str | os.PathLike) -> xr.Dataset:
    """Read a store written by `save`; refuses what is missing, foreign, unfinished or damaged."""
    import xarray as xr

    target = Path(path)
    if not target.exists():
        raise StoreError(f"{target} does not exist")
    if not _is_store(target):
        raise StoreError(f"{target} is not a metastable store")
    try:
        with xr.open_zarr(target, consolidated=False, chunks=None) as stored:
            dataset = stored.load()
    except Exception as reason:
        raise IncompleteStoreError(
            f"{target} cannot be read and is probably unfinished or damaged: {reason}"
        ) from reason
    try:
        expected = json.loads(dataset.attrs.pop("checksums"))
    except (KeyError, ValueError):
        if "member" in dataset.dims:
            raise StoreError(f"{target} holds an ensemble, not a run; open it with xarray.open_zarr") from None
        raise IncompleteStoreError(f"{target} was not finished when it was written; run it again") from None
    actual = checksums(dataset)
    wrong = sorted(name for name in {*expected, *actual} if expected.get(name) != actual.get(name))
    if wrong:
        raise IncompleteStoreError(
            f"{target} is damaged: {', '.join(wrong)} differ from what was written; run it again"
        )
    return dataset
