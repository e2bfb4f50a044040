"""The results of a sweep as its readers open them. Nothing here writes into the folder of a sweep."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metastable import _checks
from metastable.errors import StoreError
from metastable.stores import find, locks
from metastable.sweep import journal
from metastable.sweep import view as views
from metastable.sweep.journal import Entry
from metastable.sweep.store import DESCRIPTION, JOURNAL, attributes_of, index_of, read_description
from metastable.sweep.tasks import UNFINISHED

FAILED = "failed"
"""Status of members that could not be drawn or measured, and the attribute of results that counts them."""


def open_results(folder: str | os.PathLike[str]) -> Any:
    """The results of a sweep as an `xarray.Dataset` over the grid, also while it runs (NaN where a task is not done).

    Where members stopped early or failed every variable has the attribute `unfinished`: how many did, in the whole sweep; and
    `failed`: how many of them could not be drawn or measured. Where tasks have no result every variable has the attributes `tasks`,
    `done_tasks` and `failed_tasks`: how many there are, are done, and failed.

    What a process that was killed had finished is there as well: where the zarr store lacks tasks of the journal, and nobody works
    on the sweep, the dataset is made of the journal, in memory (the next run brings the store itself up to date).
    """
    place = _checks.path(folder, "folder")
    path = find(place / views.NAME)
    found = _open_zarr(path) if path.exists() else None
    if found is None or (place / DESCRIPTION).exists():
        found = _newest(place, found)
    if found is None:
        raise StoreError(f"{folder} has no result yet: none of its {read_description(place).size} tasks is finished")
    early = _stopped_early(found, path)
    status = _values(found, views.STATUS, path)
    told: dict[str, int] = {}
    if not (status == views.DONE).all():
        done, failed = (int((status == state).sum()) for state in (views.DONE, views.FAILED))
        told |= {"tasks": status.size, "done_tasks": done, "failed_tasks": failed}
    if early:
        counts = journal.early_members(journal.read(place / JOURNAL).entries.values())
        told |= {UNFINISHED: early} | ({FAILED: min(early, counts[FAILED])} if FAILED in counts else {})
    for variable in found.data_vars.values():
        variable.attrs |= told
    return found


def unfinished_members(folder: Path) -> int:
    """Members that stopped early, by the zarr store of a sweep (0 where it does not tell or cannot be read)."""
    try:
        path = folder / views.NAME
        return _stopped_early(_open_zarr(path), path)
    except StoreError:
        return 0


def _open_zarr(path: Path) -> Any:
    """The zarr store of a sweep as it is."""
    import xarray as xr

    try:
        return xr.open_zarr(path, chunks=None)
    except Exception as reason:
        raise _unreadable(path, reason) from reason


def _unreadable(path: Path, reason: Exception) -> StoreError:
    return StoreError(f"{path} cannot be read ({reason}); run the sweep again to repair it")


def _values(results: Any, name: str, path: Path) -> Any:
    """The numbers of a variable."""
    try:
        return results[name].values
    except Exception as reason:
        # Damaged compressed bytes raise whatever the codec raises.
        raise _unreadable(path, reason) from reason


def _stopped_early(results: Any, path: Path) -> int:
    """Members that stopped early, by the variable that counts them."""
    return int(np.nansum(_values(results, UNFINISHED, path))) if UNFINISHED in results else 0


def _newest(folder: Path, stored: Any | None) -> Any | None:
    """All that is safe in the folder of a sweep, of which its zarr store is `stored` (None: there is none): the same where the journal
    has no more; otherwise a dataset in memory, made of the journal; None where nothing is done.

    A writer that was killed leaves tasks in the journal which the zarr store does not have yet, or a zarr store of the grid before.
    (One that works is a few seconds behind.) Nothing is written: whoever reads may have no right to, or only a part of the folder.
    """
    sweep = read_description(folder)
    described = (folder / DESCRIPTION).read_text(encoding="utf-8")
    same = stored is not None and stored.attrs.get("sweep") == described
    status = _values(stored, views.STATUS, folder / views.NAME).ravel() if same else np.full(sweep.size, views.WAITING)
    if (status == views.DONE).all():
        return stored
    recorded = journal.read(folder / JOURNAL).entries
    entries = index_of(sweep).select(recorded)
    if not recorded or (same and not _behind(status, entries)):
        return stored
    if not any(entry.done for entry in entries.values()):
        return stored if same else None
    if same and locks.holder(folder) is not None:
        return stored
    lost = sum(int(number) not in entries for number in np.flatnonzero(status == views.DONE))
    if lost:
        warnings.warn(
            f"{folder / views.NAME} lacks {len(_behind(status, entries))} tasks of the journal, and has {lost} that cannot be read "
            "there any more: opened as it is; run the sweep again for the others",
            stacklevel=3,
        )
        return stored
    return views.in_memory(sweep.axes, attributes_of(sweep), entries)


def _behind(status: np.ndarray, entries: Mapping[int, Entry]) -> list[int]:
    """Tasks whose end is in the journal, but not in a zarr store with this `status` of its tasks."""
    return [
        number
        for number, entry in entries.items()
        if status[number] not in (views.DONE, views.DONE if entry.done else views.FAILED)
    ]
