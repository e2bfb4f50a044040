"""The xarray schema of a run, and zarr stores that say whether they are whole.

A run is a dataset with dims `time`, `token`, `coord` (`member` in front for ensembles): variable `x` (and `radius` for norms that
have one), `start`, the dense output where it was kept, the larger arrays of the model, and attributes that say how it was made.

A store is written beside its final place and moved there when it is complete (see `metastable.stores`), and carries a checksum of
every variable and every attribute: a store that was interrupted, truncated, damaged or edited is refused when opened, never read as
if it were whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from metastable import _checks, stores
from metastable._checks import FloatArray
from metastable.errors import (
    IncompleteStoreError,
    InvalidInputError,
    MetastableError,
    StoreError,
    StoreExistsError,
    VariantError,
)
from metastable.integrate.solution import DEGREE, STATUSES, Chart, Dense, JoinedDense, Solution, join
from metastable.model import Attention, Schedule
from metastable.model.serialize import from_text, is_array, to_text
from metastable.stores import folders, labels, precision, seal

if TYPE_CHECKING:
    import xarray as xr

FORMAT = "metastable-2"
"""Version of the layout, stored as the attribute `format`. The first one had no checksums of attributes."""
FORMATS = ("metastable-1", FORMAT)
"""Layouts that can be read."""
ZARR_NAMES = ("zarr.json", "c", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
"""Files and folders of zarr, of its versions 2 and 3."""
CHUNK_NAME = re.compile(r"\d+(\.\d+)*")
"""Files of chunks in version 2."""
OF_SYSTEMS = (".DS_Store", "Thumbs.db", "desktop.ini")
"""What file managers leave in every folder."""


def fingerprint(array: np.ndarray) -> str:
    """A short hash of an array's bytes: identifies a start that has no seed."""
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest()


def models_of(dataset: xr.Dataset) -> tuple[Attention, ...]:
    """The model (or models, one per layer or piece) of the dataset of a run. Version 0.2 wrote all arrays into the text."""
    return from_text(dataset.attrs["model"], lambda name: dataset[name].values)


def from_solution(
    solution: Solution,
    models: Attention | Sequence[Attention],
    start: FloatArray,
    attributes: dict[str, Any],
    more: dict[str, Any] | None = None,
) -> xr.Dataset:
    """The dataset of a run: saved states, dense output, and how they were made; and `more` variables."""
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
    text, arrays = to_text(models, len(start))
    variables |= {name: (tuple(f"{name}_axis{i}" for i in range(item.ndim)), item) for name, item in arrays.items()}
    statistics = solution.statistics
    axes = {"time": np.array(solution.times), "token": np.arange(len(start)), "coord": np.arange(dim)}
    return xr.Dataset(
        variables | (more or {}),
        coords={name: (name, _locked_index(name, values)) for name, values in axes.items()},
        attrs={
            "format": FORMAT,
            "metastable_version": __version__,
            "model": text,
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


def readonly(dataset: xr.Dataset) -> xr.Dataset:
    """The same dataset with arrays that cannot be written to: what users get from a run is what was computed.

    (The arrays are shared, not copied; whoever holds the given ones can still write to them. Coordinates with an index are copied,
    unless they are locked already: pandas, which keeps them, would lend out its own array.)
    """
    return locked(dataset.copy(deep=False))


def locked(dataset: xr.Dataset) -> xr.Dataset:
    """`readonly` of a dataset that is nobody else's: its own variables change."""
    indexes: dict[Any, Any] = {}
    for name, variable in dataset.variables.items():
        values: Any = variable.values
        if values.dtype.kind not in "biuf" or seal.lent(values):
            continue
        if name in dataset.xindexes:
            indexes[name] = (variable.dims, _locked_index(name, np.array(values)), variable.attrs, variable.encoding)
        else:
            variable.data = _checks.readonly(values)
    return dataset.assign_coords(indexes) if indexes else dataset


def _locked_index(name: Any, values: np.ndarray) -> Any:
    """An index that lends out no array which can be written to."""
    import pandas as pd

    return pd.Index(_checks.readonly(values), copy=False, name=name)


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


def check_destination(path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """`path` as a place where a store may be written; raises before any work is done."""
    target = _followed(_path(path))
    stores.settle(target)
    if target.exists() or target.is_symlink():
        if not overwrite:
            raise StoreExistsError(
                f"{target} exists and was left untouched; choose another name, or overwrite it (overwrite=True, --overwrite)"
            )
        stores.steadily(target, partial(_check_replaceable, target))
    stores.check_folder(target)
    try:
        with folders.scratch(target.absolute()):
            pass
    except OSError as reason:
        raise StoreError(
            f"the folder {target.absolute().parent} is not writable ({reason.strerror}); choose another place"
        ) from None
    return target


def _check_replaceable(target: Path, place: Path) -> None:
    """Refuse to overwrite what is at `place` instead of the store `target`, unless it is a store of ours and nothing else."""
    if _format(place) is None and os.path.lexists(place):
        raise StoreExistsError(
            f"{target} exists and is not a metastable store, so it is never overwritten; remove it yourself"
        )
    others = _foreign(place) if place.exists() else []
    if others:
        raise StoreExistsError(
            f"{target} also holds what is not part of a store and would be lost ({', '.join(others)}); move that away first"
        )


def _foreign(store: Path) -> list[str]:
    """Files and folders within a store, and within its arrays, that are neither zarr's nor a file manager's."""
    found = []
    for item in sorted(store.iterdir()):
        if item.name in ZARR_NAMES or item.name in OF_SYSTEMS:
            continue
        if not _is_array(item):
            found.append(item.name)
            continue
        found += [
            f"{item.name}/{part.name}"
            for part in sorted(item.iterdir())
            if part.name not in ZARR_NAMES and part.name not in OF_SYSTEMS and not CHUNK_NAME.fullmatch(part.name)
        ]
    return found


def _is_array(folder: Path) -> bool:
    """True for the folder of an array of zarr, of version 2 or 3 (a group would be another store)."""
    try:
        return (folder / ".zarray").is_file() or json.loads((folder / "zarr.json").read_bytes())["node_type"] == "array"
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _followed(path: Path) -> Path:
    """Where a link to a store leads: the store is replaced, never the link. (A link to nothing stays what it is.)"""
    if not path.is_symlink():
        return path
    place = Path(os.path.realpath(path))
    return place if stores.find(place).exists() else path


def _path(path: Any) -> Path:
    """`path` as a path."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InvalidInputError(f"the place of a store must be a path, for example 'run.zarr', not {path!r}")
    return _checks.path(path, "the place of a store")


def _format(path: Path) -> str | None:
    """What the folder says about its layout: "metastable-..." for one of our zarr stores, whole or not; None for anything else."""
    try:
        found = json.loads((path / "zarr.json").read_text(encoding="utf-8"))["attributes"]["format"]
    except (ValueError, KeyError, TypeError, OSError):
        return None
    return found if isinstance(found, str) and found.startswith("metastable") else None


def checksums(dataset: xr.Dataset) -> dict[str, str]:
    """A checksum of every variable's bytes."""
    return {str(name): fingerprint(dataset[name].values) for name in sorted(map(str, dataset.variables))}


def attribute_checksums(dataset: xr.Dataset) -> dict[str, str]:
    """A checksum of every attribute, and of how every variable lies in memory ("x (layout)": dims, shape, type, attributes)."""
    described: dict[str, Any] = {str(name): value for name, value in dataset.attrs.items() if name not in _CHECKSUMS}
    for name in map(str, dataset.variables):
        variable = dataset[name]
        layout = [list(map(str, variable.dims)), list(variable.shape), variable.dtype.str, _plain(variable.attrs)]
        described[f"{name} (layout)"] = layout
    return {name: _digest(value) for name, value in sorted(described.items())}


_CHECKSUMS = ("checksums", "attribute_checksums")


def _digest(value: Any) -> str:
    text = json.dumps(_plain(value), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    """What JSON makes of an attribute."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


@dataclass
class Stored:
    """Where a run is stored, the `stamp` that tells its store from any other that may be there by now, and how much that holds: the
    `end` of the run, and its `tokens` by number and fingerprint of their start."""

    place: Path
    stamp: str
    end: float
    tokens: tuple[int, str]

    @classmethod
    def of(cls, place: Path, stamp: str, dataset: xr.Dataset) -> Stored:
        times = np.atleast_1d(dataset["time"].values) if "time" in dataset.variables else np.zeros(0)
        end = float(times[-1]) if len(times) else 0.0
        return cls(place, stamp, end, (int(dataset.sizes.get("token", 0)), str(dataset.attrs.get("start_hash"))))

    def check(self, dataset: xr.Dataset, store: Path) -> None:
        """Refuse to replace `store`, once at `place`, by a run that continues the one that was stored here first, where it is something
        else, or holds what that run does not."""
        try:
            found = _stamp(json.loads((store / "zarr.json").read_text(encoding="utf-8"))["attributes"])
        except (ValueError, KeyError, TypeError, OSError):
            found = None
        if found != self.stamp:
            raise StoreExistsError(
                f"{self.place} does not hold the run any more that this one continues: something else was stored there meanwhile, and "
                "was left untouched; save this one under another name"
            )
        mine, (tokens, start) = Stored.of(self.place, self.stamp, dataset), self.tokens
        same = mine.tokens[0] >= tokens and fingerprint(dataset["start"].values[:tokens]) == start
        if same and mine.end >= self.end:
            return
        there = f"reaches t = {self.end:g}, and this one t = {mine.end:g}" if same else "has other tokens"
        raise StoreExistsError(
            f"{self.place} holds another continuation of the same run, which {there}: it was left untouched; save this one under "
            "another name"
        )


def _stamp(attributes: Mapping[Any, Any]) -> str:
    """What the checksums among the attributes of a store say in short."""
    return _digest([attributes.get(name) for name in _CHECKSUMS])


def save(dataset: xr.Dataset, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Write `dataset` as a zarr store: all of it appears at `path`, or nothing does; where that is (links are followed)."""
    return store(dataset, path, overwrite).place


def store(
    dataset: xr.Dataset, path: str | os.PathLike[str], overwrite: bool = False, continued: Stored | None = None
) -> Stored:
    """`save`; where that is the place of the run that this one has `continued`, nothing else is overwritten there.

    What was written is read back before it takes the place: attributes and names that zarr or xarray give a meaning of their own
    (`units`, `scale_factor`, "a/b") can make something else of a variable. Encodings are left out: stores hold numbers as they are.
    """
    target = check_destination(path, overwrite)
    taken = sorted(set(_CHECKSUMS) & set(dataset.attrs))
    if taken:
        raise InvalidInputError(f"the attribute {taken[0]} is the store's own; give yours another name")
    complete = precision.narrowed(labels.text_as_numbers(dataset.drop_encoding()), is_array)
    complete = complete.assign_attrs(_plain({**dataset.attrs, "format": FORMAT}))
    try:
        sums = {"checksums": checksums(complete), "attribute_checksums": attribute_checksums(complete)}
    except (TypeError, ValueError) as reason:
        raise InvalidInputError(
            f"an attribute cannot be stored: {reason}; use text, numbers and lists of them"
        ) from None
    complete = complete.assign_attrs({name: json.dumps(value) for name, value in sums.items()})
    place = Path(os.path.realpath(target))
    check = None
    if continued is not None and continued.place == place:
        check = partial(continued.check, dataset)
        if stores.find(target).exists():
            check(stores.find(target))
    with stores.new_folder(target, overwrite=overwrite, check=check) as folder:
        try:
            complete.to_zarr(folder, mode="w", consolidated=False)
            _verify(_read(folder, target), target, FORMAT)
        except (KeyError, TypeError, ValueError, IncompleteStoreError) as reason:
            raise InvalidInputError(
                f"this dataset would not be the same when opened again, so it was not saved ({reason}); look at the attributes "
                "and names of the variables that you added"
            ) from reason
    return Stored.of(place, _stamp(complete.attrs), dataset)


def load(path: str | os.PathLike[str]) -> xr.Dataset:
    """Read the run that `save` stored; refuses what is missing, foreign, unfinished, damaged or edited."""
    return opened(path)[0]


def opened(path: str | os.PathLike[str]) -> tuple[xr.Dataset, Stored]:
    """`load`, and where that was."""
    dataset, stored = _verified(path)
    if "member" in dataset.dims:
        raise StoreError(f"{path} holds an ensemble, not a run; open it with metastable.load_ensemble")
    try:
        check_run(dataset)
    except VariantError as reason:
        raise VariantError(
            f"{path} is sound, but its model cannot be made here: {reason}. Import the module that defines it, as it was then, before "
            "metastable.load (commands import no modules: take such a run from Python)"
        ) from None
    except InvalidInputError as reason:
        raise IncompleteStoreError(f"{path} is damaged: {reason}; run it again") from reason
    return dataset, stored


def verified(path: str | os.PathLike[str]) -> xr.Dataset:
    """Whatever `save` stored, compared with its checksums; read again where another store takes its place meanwhile."""
    return _verified(path)[0]


def _verified(path: str | os.PathLike[str]) -> tuple[xr.Dataset, Stored]:
    target = _path(path)
    dataset, stamp = stores.steadily(_followed(target), partial(_verified_at, target))
    return dataset, Stored.of(Path(os.path.realpath(target)), stamp, dataset)


def _verified_at(target: Path, place: Path) -> tuple[xr.Dataset, str]:
    """The store `target`, which lies at `place`, and its stamp."""
    if not place.exists():
        raise StoreError(f"{target} does not exist")
    layout = _format(place)
    if layout is None:
        raise StoreError(f"{target} is not a metastable store")
    if layout not in FORMATS:
        raise StoreError(
            f"{target} has the format {layout!r}, and this version of metastable reads {' and '.join(FORMATS)}; it was written by a "
            "newer version (install that one: pip install --upgrade metastable), is of another kind, or is damaged"
        )
    dataset = _read(place, target)
    if "member" in dataset.dims and not set(_CHECKSUMS) & set(dataset.attrs):
        raise StoreError(
            f"{target} holds an ensemble that was not saved by save_ensemble; open it with xarray.open_zarr"
        )
    stamp = _stamp(dataset.attrs)
    _verify(dataset, target, layout)
    try:
        return labels.numbers_as_text(precision.widened(dataset, is_array)), stamp
    except (ValueError, TypeError, IndexError) as reason:
        raise IncompleteStoreError(f"{target} is damaged: {reason}; run it again") from reason


def _read(place: Path, target: Path) -> xr.Dataset:
    import xarray as xr

    try:
        with xr.open_zarr(place, consolidated=False, chunks=None) as stored:
            return stored.load()
    except Exception as reason:  # zarr and its codecs raise whatever damaged bytes lead to
        raise IncompleteStoreError(
            f"{target} cannot be read and is probably unfinished or damaged: {reason}"
        ) from reason


def _verify(dataset: xr.Dataset, target: Path, layout: str) -> None:
    """Compare with the checksums, which are taken out of the attributes."""
    expected: dict[str, str] = {}
    actual: dict[str, str] = {}
    for name, compute in zip(_CHECKSUMS, (checksums, attribute_checksums)):
        if name not in dataset.attrs and name == "attribute_checksums" and layout == FORMATS[0]:
            continue
        try:
            expected |= dict(json.loads(dataset.attrs[name]))
        except (KeyError, ValueError, TypeError):
            raise IncompleteStoreError(
                f"{target} was not finished when it was written, or its attribute {name} is damaged; run it again"
            ) from None
        actual |= compute(dataset)
    wrong = sorted(name for name in {*expected, *actual} if expected.get(name) != actual.get(name))
    if wrong:
        raise IncompleteStoreError(f"{target} is damaged, not as written: {', '.join(wrong)}; run it again")
    for name in _CHECKSUMS:
        dataset.attrs.pop(name, None)


# ---------------------------------------------------------------------------------------- what a run must have


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"{name} must be text, not {value!r}")
    return value


def _notes(value: Any, name: str) -> None:
    try:
        found = json.loads(_text(value, name))
    except ValueError as reason:
        raise InvalidInputError(f"{name} is not JSON: {reason}") from None
    if not isinstance(found, dict):
        raise InvalidInputError(f"{name} must be a table, not {found!r}")


LAYERS = "checkpoint layers"
"""Kind of model of runs that a checkpoint's own layers made."""
_TALLY = partial(_checks.count, minimum=0)
_SIZE = partial(_checks.number, minimum=0.0)
ATTRIBUTES: dict[str, Callable[[Any, str], Any]] = {
    "metastable_version": _text,
    "model": _text,
    "start_hash": _text,
    "status": partial(_checks.choice, allowed=STATUSES),
    "message": _text,
    "accepted": _TALLY,
    "rejected": _TALLY,
    "evaluations": _TALLY,
    "jacobians": _TALLY,
    "notes": _notes,
    "method": _text,
    "engine": _text,
    "interaction": _text,
    "dtype": _text,
    "until": _SIZE,
    "rtol": _SIZE,
    "atol": _SIZE,
    "step": _SIZE,
    "seed": partial(_checks.count, minimum=-1),
    "max_steps": _checks.count,
}
"""Attributes that every stored run has, each with its check (value, name)."""


def describes_layers(model: str) -> bool:
    """True for the attribute `model` of a run that a checkpoint's own layers made (`metastable.checkpoints.flow`)."""
    try:
        described = json.loads(model)
    except ValueError:
        return False
    return isinstance(described, dict) and described.get("kind") == LAYERS


def _check_variables(dataset: xr.Dataset, dims: dict[str, tuple[str, ...]]) -> None:
    for name, wanted in dims.items():
        if name not in dataset.variables:
            raise InvalidInputError(f"it lacks the variable {name}")
        if dataset[name].dims != wanted or dataset[name].dtype != np.float64:
            raise InvalidInputError(f"the variable {name} must be float64 over {', '.join(wanted)}")


def check_run(dataset: xr.Dataset) -> None:
    """Raise `InvalidInputError` for a dataset that is not a run: attributes, variables and shapes; `VariantError` for one whose model
    has a variant that no class here makes."""
    missing = [name for name in ATTRIBUTES if name not in dataset.attrs]
    if missing:
        raise InvalidInputError(f"it lacks the attribute{'s' if missing[1:] else ''} {', '.join(missing)}")
    for name, check in ATTRIBUTES.items():
        check(dataset.attrs[name], f"the attribute {name}")
    dims = {"x": ("time", "token", "coord"), "start": ("token", "coord"), "time": ("time",)}
    if describes_layers(dataset.attrs["model"]):
        _check_variables(dataset, dims)
        return
    _checks.tolerance(dataset.attrs["rtol"])
    try:
        models = models_of(dataset)
    except VariantError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError) as reason:
        raise InvalidInputError(f"the attribute model describes no model: {reason}") from None
    if not models:
        raise InvalidInputError("the attribute model describes no model")
    _check_schedule(dataset.attrs.get("schedule"), models)
    if models[0].norm.has_radius:
        dims["radius"] = ("time", "token")
    _check_variables(dataset, dims)
    if dataset.sizes["coord"] != models[0].dim:
        raise InvalidInputError(
            f"tokens have {dataset.sizes['coord']} coordinates, but the model has dim={models[0].dim}"
        )
    if dataset.attrs["start_hash"] != fingerprint(dataset["start"].values):
        raise InvalidInputError("the attribute start_hash is not that of the stored start")
    _check_dense(dataset, models[0])


def _check_schedule(joints: Any, models: tuple[Attention, ...]) -> None:
    """The same for the depths at which the models of a `Schedule` begin, where it has one."""
    if joints is None:
        return
    try:
        found = json.loads(joints)
        if len(found) != len(models):
            raise ValueError(f"{len(found)} joints for {len(models)} models")
        Schedule(tuple(zip(found, models)))
    except (ValueError, TypeError, MetastableError) as reason:
        raise InvalidInputError(f"the attribute schedule says nothing about when the models hold: {reason}") from None


def _check_dense(dataset: xr.Dataset, model: Attention) -> None:
    """The same for dense output, where there is any."""
    number, tokens = 0, 0
    while f"dense{number}_coefficients" in dataset:
        name = f"dense{number}"
        coefficients = dataset[f"{name}_coefficients"]
        _checks.choice(coefficients.attrs.get("chart"), f"the chart of {name}", get_args(Chart))
        _checks.count(coefficients.attrs.get("dim"), f"the dimension of {name}", model.dim, model.dim)
        for part in ("start", "width"):
            if f"{name}_{part}" not in dataset or dataset[f"{name}_{part}"].shape != coefficients.shape[:1]:
                raise InvalidInputError(f"{name}_{part} does not fit {name}_coefficients")
        if coefficients.ndim != 4 or coefficients.shape[1] != DEGREE + 1:
            raise InvalidInputError(f"{name}_coefficients has shape {coefficients.shape}")
        tokens += coefficients.shape[2]
        number += 1
    if number and tokens != dataset.sizes["token"]:
        raise InvalidInputError(f"the dense output has {tokens} tokens, the run {dataset.sizes['token']}")
