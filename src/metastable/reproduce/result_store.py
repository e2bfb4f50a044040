"""Results on disk: one folder per item, complete or absent.

An item is computed in a hidden folder and renamed into place when everything is written, `result.json` last. A run that was
killed therefore leaves finished items whole and unfinished ones absent.

    out/figure-3/result.json    parameters, fingerprint, findings, seconds
    out/figure-3/data.zarr      everything that was measured (xarray)
    out/figure-3/*.csv          the same, one table per set of dimensions, where small enough to read
    out/figure-3/figure.png     and .pdf, .svg as asked
    out/figure-2/play-*.html    runs of the figure as pages that play them, where the recipe has some
"""

from __future__ import annotations

import csv
import html
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import __version__, stores
from metastable.errors import IncompleteStoreError, MetastableError, StoreError, StoreFullError
from metastable.figures import style
from metastable.reproduce.recipe import Finding, Recipe, Settings, overall

if TYPE_CHECKING:
    import xarray as xr

MARKER = "result.json"
PLAYER = "play-"
"""How pages begin that play a run of the item."""
CSV_LIMIT = 20_000
"""Tables with more cells than this are kept in zarr only."""


@dataclass(frozen=True)
class Result:
    """One finished (or failed) item."""

    name: str
    title: str
    statement: str
    origin: str
    parameters: dict[str, Any]
    findings: tuple[Finding, ...]
    verdict: str
    seconds: float
    command: str
    settings: dict[str, Any]
    fingerprint: str
    version: str = __version__
    folder: Path | None = None
    formats: tuple[str, ...] = ()
    resumed: bool = field(default=False, compare=False)
    error: str | None = None
    hindsight: str = ""
    traceback: str = field(default="", compare=False)

    @property
    def figure(self) -> Path | None:
        """The PNG, if there is one."""
        return None if self.folder is None else self.folder / "figure.png"

    @property
    def players(self) -> dict[str, Path]:
        """Pages that play a run of the item, by title."""
        pages = [] if self.folder is None else sorted(self.folder.glob(f"{PLAYER}*.html"))
        return {html.unescape(_title(page)): page for page in pages}


def _title(page: Path) -> str:
    found = re.search("<title>(.*?)</title>", page.read_text(encoding="utf-8"))
    return page.stem if found is None else found[1]


@contextmanager
def explain_disk_errors(folder: Path) -> Iterator[None]:
    """Turn what the operating system says about a folder into a sentence with the fix."""
    try:
        yield
    except OSError as reason:
        cause = reason.__cause__ if isinstance(reason.__cause__, OSError) else reason
        if isinstance(cause, MetastableError) and not isinstance(cause, StoreFullError):
            raise
        if isinstance(stores.storage_error(folder, cause), StoreFullError):
            raise StoreError(
                f"the disk that holds {folder} is full; finished items are kept: free some space and run the same "
                "command "
                "again, or choose another disk with --out"
            ) from reason
        raise StoreError(f"cannot write into {folder}: {cause}; choose another folder with --out") from reason


def prepare(out: str | Path) -> Path:
    """The output folder, made and checked for writing; leftovers of killed runs are removed."""
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, not a folder; choose another one with --out")
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
    stores.tidy(folder)
    return folder


def write_data(dataset: xr.Dataset, folder: Path) -> None:
    """`data.zarr` and one CSV per set of dimensions (scalars together in `values.csv`)."""
    import warnings

    plain = dataset.copy()
    plain.attrs = {
        key: value.item() if isinstance(value, np.generic) else value for key, value in dataset.attrs.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr announces that strings have no final specification yet
        plain.to_zarr(folder / "data.zarr", mode="w", consolidated=False)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, variable in dataset.data_vars.items():
        if variable.size <= CSV_LIMIT:
            groups.setdefault(tuple(str(d) for d in variable.dims), []).append(str(name))
    for dims, names in groups.items():
        _write_table(dataset, dims, names, folder / f"{'-by-'.join(dims) or 'values'}.csv")


def _write_table(dataset: xr.Dataset, dims: tuple[str, ...], names: list[str], path: Path) -> None:
    shape = tuple(dataset.sizes[dim] for dim in dims)
    columns: dict[str, np.ndarray] = {}
    for axis, dim in enumerate(dims):
        values = dataset[dim].values if dim in dataset.coords else np.arange(dataset.sizes[dim])
        view = [1] * len(dims)
        view[axis] = -1
        columns[dim] = np.broadcast_to(np.asarray(values).reshape(view), shape).ravel()
    for name in names:
        columns[name] = dataset[name].values.ravel()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values())))


def read_data(folder: Path) -> xr.Dataset:
    """The dataset of a finished item."""
    import xarray as xr

    path = folder / "data.zarr"
    if not path.is_dir():
        raise IncompleteStoreError(f"{path} is missing; delete {folder} and run the item again")
    try:
        with xr.open_zarr(path, consolidated=False) as dataset:
            return dataset.load()
    except Exception as reason:  # zarr and its codecs raise whatever damaged bytes lead to
        raise IncompleteStoreError(
            f"{path} cannot be read ({reason}); delete {folder} and run the item again"
        ) from reason


def store(
    recipe: Recipe, settings: Settings, dataset: xr.Dataset, seconds: float, out: Path, formats: Sequence[str]
) -> Result:
    """Judge, draw and write one item, then move it into place in one step."""
    final = out / recipe.name
    with explain_disk_errors(out), stores.new_folder(final, overwrite=True) as folder:
        write_data(dataset, folder)
        kinds = draw(recipe, dataset, folder, formats)
        write_players(recipe, dataset, folder)
        result = _result(recipe, settings, recipe.judge(dataset), seconds, kinds)
        write_marker(result, folder)
    return replace(result, folder=final)


def draw(recipe: Recipe, dataset: xr.Dataset, folder: Path, formats: Sequence[str]) -> tuple[str, ...]:
    """Draw an item's figure in all `formats`; a PNG is always made, for the report."""
    kinds = tuple(dict.fromkeys(("png", *formats)))
    style.save(recipe.draw(dataset), folder / "figure", kinds)
    return kinds


def write_players(recipe: Recipe, dataset: xr.Dataset, folder: Path) -> None:
    """The runs that a recipe offers, each as a page with a player."""
    for number, (title, run) in enumerate({} if recipe.play is None else recipe.play(dataset).items(), start=1):
        run.to_html(folder / f"{PLAYER}{number}.html", title=title, text=recipe.title)


def _result(
    recipe: Recipe, settings: Settings, findings: list[Finding], seconds: float, kinds: tuple[str, ...]
) -> Result:
    return Result(
        name=recipe.name,
        title=recipe.title,
        statement=recipe.statement,
        origin=recipe.origin,
        parameters=json.loads(json.dumps(dict(recipe.parameters), default=str)),
        findings=tuple(findings),
        verdict=overall(findings),
        seconds=seconds,
        command=recipe.command(settings),
        settings=asdict(settings),
        fingerprint=recipe.fingerprint(settings),
        formats=kinds,
        hindsight=recipe.hindsight,
    )


def failure(recipe: Recipe, settings: Settings, reason: str, seconds: float, traceback: str = "") -> Result:
    """The result of an item that could not be computed; `traceback`: where in the code it failed."""
    return replace(_result(recipe, settings, [], seconds, ()), verdict="failed", error=reason, traceback=traceback)


def write_marker(result: Result, folder: Path) -> None:
    """`result.json`, whole or not at all."""
    content = asdict(replace(result, folder=None))
    for name in ("resumed", "folder", "traceback"):
        content.pop(name)
    stores.write_file(folder / MARKER, json.dumps(content, indent=1, ensure_ascii=False).encode())


def finished(recipe: Recipe, settings: Settings, out: Path) -> Result | None:
    """The stored result of the same computation, or None if there is none (other settings, other version, unfinished)."""
    folder = out / recipe.name
    try:
        content = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        findings = tuple(Finding(**finding) for finding in content.pop("findings"))
        content["formats"] = tuple(content["formats"])
        result = Result(**content, findings=findings, folder=folder, resumed=True)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if result.fingerprint != recipe.fingerprint(settings) or not (folder / "data.zarr").is_dir():
        return None
    # What is said of stored numbers is that of today: how lines are summed up, and what was changed after a result.
    return replace(result, hindsight=recipe.hindsight, verdict=overall(findings) if findings else result.verdict)
