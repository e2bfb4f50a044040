"""The results of a sweep as its readers open them.

Nothing here writes into the folder of a sweep, but that `find` ends what a writer began who died while it put a new `results.zarr` in
the place of an old one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from metastable import _checks
from metastable.errors import MetastableError, StoreError, UnreadJournalWarning
from metastable.stores import find, locks, steadily
from metastable.sweep import journal, own
from metastable.sweep import table as tables
from metastable.sweep import view as views
from metastable.sweep.journal import Entry
from metastable.sweep.specification import Sweep
from metastable.sweep.store import DESCRIPTION, JOURNAL, attributes_of, index_of, read_description, read_versions
from metastable.sweep.tasks import UNFINISHED

AT_ONCE = 2**28
"""Bytes of results that are read, and so checked, when they are opened; larger ones when they are used."""
FAILED = "failed"
"""Status of members that could not be drawn or measured, and the attribute of results that counts them."""


def open_results(folder: str | os.PathLike[str]) -> Any:
    """The results of a sweep as an `xarray.Dataset` over the grid, also while it runs (NaN where a task is not done).

    Where members stopped early or failed every variable has the attribute `unfinished`: how many did, in the whole sweep; and
    `failed`: how many of them could not be drawn or measured. Where tasks have no result every variable has the attributes `tasks`,
    `done_tasks` and `failed_tasks`: how many there are, are done, and failed. Statistics have the attribute `members`: of how many each
    task has made them.

    What a process that was killed had finished is there as well: a zarr store that lacks tasks of the journal is left as it is, and the
    dataset is made of the journal, all of it in memory (the next run brings the store itself up to date). While somebody works on the
    sweep the store follows a few seconds behind, and is what you get. Where the journal cannot be read the store is what you get, too,
    with an `UnreadJournalWarning`, and without `failed`. A damaged store is refused; results of more than 256 MB are read, and checked,
    as they are used.
    """
    place = _checks.path(folder, "folder")
    path = find(place / views.NAME)
    stored = _open_zarr(path) if path.exists() else None
    found = _newest(place, stored)
    if found is None:
        raise StoreError(f"{folder} has no result yet: none of its {read_description(place).size} tasks is finished")
    early = _stopped_early(found, path)
    status = _values(found, tables.STATUS, path)
    told: dict[str, int] = {}
    if not (status == tables.DONE).all():
        done, failed = (int((status == state).sum()) for state in (tables.DONE, tables.FAILED))
        told |= {"tasks": status.size, "done_tasks": done, "failed_tasks": failed}
    if early:
        told |= {UNFINISHED: early} | _failed_members(place, found, early)
    for variable in found.data_vars.values():
        variable.attrs |= told | ({"members": _sweep_of(found).members} if "statistic" in variable.dims else {})
    return found


def _failed_members(folder: Path, found: Any, early: int) -> dict[str, int]:
    """How many of the members that stopped `early` in the tasks of `found` could not be drawn or measured, by the journal."""
    try:
        entries = _entries(folder, _sweep_of(found))
    except (MetastableError, OSError) as reason:
        warnings.warn(
            f"how many members could not be drawn or measured is not known: the journal of {folder} cannot be read ({reason})",
            UnreadJournalWarning,
            stacklevel=3,
        )
        return {}
    counts = journal.early_members(entries.values())
    return {FAILED: min(early, counts[FAILED])} if FAILED in counts else {}


def unfinished_members(folder: Path, sweep: Sweep, keys: list[str], entries: Mapping[int, Entry]) -> int:
    """Members that stopped early, of the tasks (of these `keys`) of a sweep: by their records, or by the zarr store (records of earlier
    versions do not say it)."""
    known: dict[str, int] = {}
    with suppress(MetastableError):  # no store, or none that can be read
        stored, counts = _unfinished(folder)
        other = _sweep_of(stored)
        known = dict(zip(keys if other.identity == sweep.identity else index_of(other).keys, counts.tolist()))
    return sum(
        max(sum(count for _, count in entry.early), known.get(keys[number], 0))
        for number, entry in entries.items()
        if entry.done
    )


def unfinished_in_store(folder: Path) -> int:
    """Members that stopped early, by the zarr store alone (0 where it does not tell, or cannot be read)."""
    try:
        return int(_unfinished(folder)[1].sum())
    except StoreError:
        return 0


def _unfinished(folder: Path) -> tuple[Any, np.ndarray]:
    """The zarr store of a sweep, as it is, and how many members stopped early in each of its tasks."""
    import xarray as xr

    path = folder / views.NAME
    try:
        stored = xr.open_zarr(path, chunks=None)
        counts = stored[UNFINISHED].values if UNFINISHED in stored else np.zeros(0)
    except Exception as reason:
        raise _unreadable(path, reason) from reason
    return stored, np.nan_to_num(counts).ravel().astype(int)


def read_variable(results: Any, name: str, folder: Path) -> Any:
    """A variable of `open_results(folder)`, read."""
    try:
        return results[name].load()
    except Exception as reason:
        raise _unreadable(folder / views.NAME, reason) from reason


def _open_zarr(path: Path) -> Any:
    """The zarr store of a sweep as it is, but refused where it is damaged."""
    return steadily(path, _read_zarr)


def _read_zarr(path: Path) -> Any:
    import xarray as xr

    try:
        found = xr.open_zarr(path, chunks=None)
        lost = views.lost_chunk(path)
        if lost is None:
            found[tables.STATUS].load()  # first: who works on the sweep writes it last
            return found.load() if found.nbytes <= AT_ONCE else found
    except Exception as reason:
        # Damaged compressed bytes raise whatever the codec raises.
        raise _unreadable(path, reason) from reason
    raise _unreadable(path, lost)


def _unreadable(path: Path, reason: Exception | str) -> StoreError:
    return StoreError(f"{path} cannot be read ({reason}); run the sweep again to repair it")


def _values(results: Any, name: str, path: Path) -> Any:
    """The numbers of a variable."""
    try:
        return results[name].values
    except Exception as reason:
        raise _unreadable(path, reason) from reason


def _stopped_early(results: Any, path: Path) -> int:
    """Members that stopped early, by the variable that counts them."""
    return int(np.nansum(_values(results, UNFINISHED, path))) if UNFINISHED in results else 0


def _sweep_of(stored: Any) -> Sweep:
    """The sweep whose results a zarr store holds."""
    with own.as_stored():
        return Sweep.from_toml(stored.attrs.get("sweep"))


def _newest(folder: Path, stored: Any | None) -> Any | None:
    """All that is safe in the folder of a sweep, of which its zarr store is `stored` (None: there is none): the same where the journal
    has no more or cannot be read; otherwise a dataset in memory, made of the journal; None where nothing is done.

    A writer that was killed leaves tasks in the journal which the zarr store does not have yet, or a zarr store of the grid before.
    Nothing is written: whoever reads may have no right to, or only a part of the folder.
    """
    if stored is None:
        return _of_the_journal(folder)
    if not (folder / DESCRIPTION).exists():
        return stored
    status = _values(stored, tables.STATUS, folder / views.NAME).ravel()
    try:
        sweep = read_description(folder)
        same = _sweep_of(stored).identity == sweep.identity
        whole = bool((status == tables.DONE).all()) and not own.names(sweep)  # by whichever version of these
        if same and (whole or locks.holder(folder) is not None):
            return stored
        contents = journal.read(folder / JOURNAL, read_versions(folder, sweep))
        entries = index_of(sweep).select(contents.entries)
        return _in_memory(sweep, entries) if _differs(stored, status, sweep, entries, contents.others) else stored
    except (MetastableError, OSError) as reason:
        warnings.warn(
            f"{folder / views.NAME} is opened as it is, and may lack tasks of the journal ({reason}); run the sweep again for those",
            UnreadJournalWarning,
            stacklevel=3,
        )
        return stored


def _of_the_journal(folder: Path) -> Any | None:
    """The results of a sweep by its journal alone; None where nothing is done."""
    try:
        sweep = read_description(folder)
        return _in_memory(sweep, _entries(folder, sweep))
    except MetastableError:
        raise
    except OSError as reason:  # a writer that has just begun sets damaged segments aside
        raise StoreError(f"the journal of {folder} cannot be read now ({reason}); try again") from reason


def _entries(folder: Path, sweep: Sweep) -> dict[int, Entry]:
    """What the journal of a folder has of the tasks of a sweep, by their number."""
    return index_of(sweep).select(journal.read(folder / JOURNAL, read_versions(folder, sweep)).entries)


def _in_memory(sweep: Sweep, entries: Mapping[int, Entry]) -> Any | None:
    """The results of a sweep, made of its journal; None where nothing is done."""
    done = any(entry.done for entry in entries.values())
    return tables.in_memory(sweep.axes, attributes_of(sweep), entries) if done else None


def _differs(
    stored: Any, status: np.ndarray, sweep: Sweep, entries: Mapping[int, Entry], others: Collection[str]
) -> bool:
    """True where a zarr store, with this `status` of its tasks, is of another grid than the sweep, has less than its journal, or has
    what other versions of functions of one's own have made. Raises where the journal has lost something that the store has.

    `others`: keys of what these have made.
    """
    other, index = _sweep_of(stored), index_of(sweep)
    now = _status_by_key(index.keys, entries)
    held = dict(zip(index_of(other).keys, status.tolist()))
    more = {
        key for key, state in held.items() if state == tables.DONE and key in index.numbers and now.get(key) != state
    }
    lost = more.difference(others)
    if lost:
        raise StoreError(f"{len(lost)} tasks of the store cannot be read in the journal any more")
    return bool(more) or other.identity != sweep.identity or any(held.get(key) != state for key, state in now.items())


def _status_by_key(keys: list[str], entries: Mapping[int, Entry]) -> dict[str, int]:
    """What the journal says of the tasks of a sweep."""
    return {keys[number]: tables.DONE if entry.done else tables.FAILED for number, entry in entries.items()}
